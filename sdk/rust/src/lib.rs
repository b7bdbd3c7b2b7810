//! An SDK for Ordain handlers in Rust.
//!
//! A handler is a function. The function receives one event of a key and the state of the key after the previous event.
//! The function returns the change of the state and the messages to publish. Ordain calls the function for each event
//! of a key, in order. If a call requests a retry, panics, or exceeds a limit of time or size, Ordain makes another
//! call for the same event. Ordain also makes another call if the outcome of a call is lost before the commit. Ordain
//! commits either the whole outcome of a call or nothing.
//!
//! ```
//! use ordain_sdk::prelude::*;
//!
//! #[derive(Deserialize)]
//! struct Payment {
//!     cents: u64,
//! }
//!
//! #[derive(Serialize, Deserialize, Default)]
//! struct Account {
//!     cents: u64,
//! }
//!
//! fn handle(event: Event<Payment>, account: Option<Account>) -> Result<Outcome<Account>> {
//!     let mut account = account.unwrap_or_default();
//!     account.cents =
//!         account.cents.checked_add(event.data.cents).or_reject("the account is full")?;
//!     log::info!("{} holds {} cents", event.key, account.cents);
//!     let receipt = Message::json("receipts", "account.credited", &account);
//!     Ok(Outcome::put(account).emit(receipt))
//! }
//!
//! ordain_sdk::handler!(handle);
//! #
//! # let mut run = ordain_sdk::testing::Runner::new(handle);
//! # run.event("paid", ordain_sdk::testing::json!({"cents": 5})).unwrap();
//! # assert_eq!(run.state().unwrap().cents, 5);
//! ```
//!
//! The crate of a handler is a library that is compiled to a component:
//!
//! ```toml
//! [lib]
//! crate-type = ["cdylib"]
//!
//! [dependencies]
//! ordain-sdk = "0.1"
//! serde = { version = "1", features = ["derive"] }
//!
//! [profile.release]
//! lto = true
//! strip = "debuginfo" # 0.1 MB instead of 3
//! ```
//!
//! `cargo build --release --target wasm32-wasip2` creates the `.wasm` file for the folder of handlers. `cargo test`
//! runs the same function natively: see [`testing`]. `ordain new --lang rust account` creates such a crate, with a copy
//! of this SDK.
//!
//! # Errors
//!
//! | cause | write | effect |
//! |---|---|---|
//! | the event is invalid | [`Failure::reject`], [`OrFail::or_reject`], or `?` alone | the event is dead-lettered with the reason, and the key continues |
//! | a later try may succeed | [`Failure::retry`], [`OrFail::or_retry`] | the event is retried, and later events of the key wait |
//! | the data cannot be decoded | nothing | the event is rejected |
//! | a bug, or a state that cannot be decoded | a panic | the event is retried once; if the retry panics too, the key by default parks with the panic's text, until the stream runs another version of the handler |
//!
//! `?` alone rejects the event, because the result of a handler depends only on its arguments: with the same arguments,
//! the error would occur again. A state that cannot be decoded causes a panic instead, because the fault is in the
//! state, not in the event. If the handler rejected the event, Ordain would dead-letter this event and then every later
//! event of the key.
//!
//! # The environment of a handler
//!
//! A handler has no files, environment variables or sockets. The clock starts at the event's time (or, if the event has
//! no time, at the present time of the host's machine), and advances only when the handler sleeps. Random numbers are
//! derived from the event's stream, key and sequence. Printed text and the lines of [`log`] go to the host's log. By
//! default, one Wasm instance handles many events of different keys, and Ordain may replace the instance at any time. A
//! value in a `static` may therefore come from an event of another key, or be lost. Ordain keeps only the state that
//! the handler returns.

pub mod log;
pub mod testing;

mod call;
mod codec;
mod event;
mod failure;
#[cfg(target_arch = "wasm32")]
mod guest;
mod message;
mod outcome;

pub use codec::{Decode, Encode, Raw};
pub use event::Event;
pub use failure::{Failure, OrFail, Result};
pub use message::Message;
pub use outcome::{Change, Outcome};

/// Compiles the code in the README of this crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The items that most handlers need, with the two derives of `serde`.
pub mod prelude {
    pub use serde::{Deserialize, Serialize};

    pub use crate::{Change, Event, Failure, Message, OrFail, Outcome, Raw, Result, log};
}

/// Declares a function as the handler of this component. Use the macro once per crate.
///
/// The function is a `fn(Event<D>, Option<S>) -> Result<Outcome<S>>` with any `D` that implements [`Decode`] and any
/// `S` that implements [`Decode`] and [`Encode`]. In a native build, the macro only checks these bounds.
#[macro_export]
macro_rules! handler {
    ($handle:path) => {
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn() = || $crate::__private::check($handle);

        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Handler;

            impl $crate::__private::Guest for Handler {
                fn handle(
                    event: $crate::__private::types::Event,
                    state: ::core::option::Option<$crate::__private::types::Bytes>,
                ) -> ::core::result::Result<
                    $crate::__private::types::Outcome,
                    $crate::__private::types::Failure,
                > {
                    $crate::__private::handle($handle, event, state)
                }
            }

    $crate::__private::export!(Handler with_types_in $crate::__private::bindings);
        };
    };
}

/// Items for the expansion of [`handler!`]; not for direct use.
#[doc(hidden)]
pub mod __private {
    pub use crate::call::check;
    #[cfg(target_arch = "wasm32")]
    pub use crate::guest::{
        bindings, bindings::export, bindings::exports::ordain::handler::handler::Guest,
        bindings::ordain::handler::types, handle,
    };
}
