//! Lines for the host's log: `log::info!("{} paid", event.key)`.
//!
//! The host adds stream, key and sequence. It cuts what exceeds its limit for one event. Outside
//! of wasm the lines go to standard error.

use std::fmt;

pub use crate::{
    __debug as debug, __error as error, __info as info, __trace as trace, __warn as warn,
};

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Every step.
    Trace,
    /// For who looks for a fault.
    Debug,
    /// What is good to know.
    Info,
    /// Something looks wrong.
    Warn,
    /// Something is wrong.
    Error,
}

/// Writes one line. The macros of this module are shorter.
pub fn write(level: Level, line: fmt::Arguments<'_>) {
    #[cfg(target_arch = "wasm32")]
    crate::guest::log(level, line);
    #[cfg(not(target_arch = "wasm32"))]
    eprintln!("{level:?}: {line}");
}

/// Logs at [`Level::Trace`].
#[doc(hidden)]
#[macro_export]
macro_rules! __trace {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Trace, ::core::format_args!($($line)*)) };
}

/// Logs at [`Level::Debug`].
#[doc(hidden)]
#[macro_export]
macro_rules! __debug {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Debug, ::core::format_args!($($line)*)) };
}

/// Logs at [`Level::Info`].
#[doc(hidden)]
#[macro_export]
macro_rules! __info {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Info, ::core::format_args!($($line)*)) };
}

/// Logs at [`Level::Warn`].
#[doc(hidden)]
#[macro_export]
macro_rules! __warn {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Warn, ::core::format_args!($($line)*)) };
}

/// Logs at [`Level::Error`].
#[doc(hidden)]
#[macro_export]
macro_rules! __error {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Error, ::core::format_args!($($line)*)) };
}
