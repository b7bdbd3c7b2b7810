//! Lines for the host's log: `log::info!("{} paid", event.key)`.
//!
//! The host adds stream, key and sequence to each line. If the lines of one event exceed the limit `plugins.log`, the
//! host logs only the beginning of these lines. In a native build, the lines go to standard error.

use std::fmt;

pub use crate::{
    __debug as debug, __error as error, __info as info, __trace as trace, __warn as warn,
};

/// The importance of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A step of the handler, for detailed tracing.
    Trace,
    /// A detail that helps to find a fault.
    Debug,
    /// Ordinary progress that is worth a log line.
    Info,
    /// A possible fault.
    Warn,
    /// A fault that needs a repair.
    Error,
}

/// Writes a line to the log. The macros of this module are a shorter form of this call.
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
