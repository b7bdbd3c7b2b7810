//! Write Ordain handlers in Rust.
//!
//! A handler is a function. It takes one event and the state that the event before it left, and
//! returns what becomes of the state and which messages go out. Ordain calls it once for every
//! event of a key, in order, and keeps all of its outcome or nothing.
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
//! Its crate is a library that becomes a component:
//!
//! ```toml
//! [lib]
//! crate-type = ["cdylib"]
//!
//! [dependencies]
//! ordain-sdk = { path = "…" }
//! serde = { version = "1", features = ["derive"] }
//!
//! [profile.release]
//! lto = true
//! strip = "debuginfo" # 0.1 MB instead of 3
//! ```
//!
//! `cargo build --release --target wasm32-wasip2` makes the `.wasm` file for the plugins folder.
//! The same function runs natively under `cargo test`: see [`testing`].
//!
//! # Where an error goes
//!
//! | what happened | write | then |
//! |---|---|---|
//! | the event is refused | [`Failure::reject`], [`OrFail::or_reject`], or `?` alone | it is dead-lettered with the reason, the key goes on |
//! | it may work later | [`Failure::retry`], [`OrFail::or_retry`] | it is tried again, later events of the key wait |
//! | the data does not decode | nothing | it is rejected |
//! | a bug, or a state that does not decode | a panic | it is tried once more, then the key parks with the panic's text until it is retried or a new version of the handler comes |
//!
//! `?` alone rejects because a handler reads nothing but its arguments: what failed on them fails
//! on them again. A state that does not decode panics instead, since the event is not to blame:
//! rejecting would lose it, and with it all later events of the key, one by one.
//!
//! # What a handler sees of the world
//!
//! No files, environment or sockets. The clock shows the event's time, and randomness is drawn
//! from the event's stream, key and sequence. What it prints goes to the host's log, as do the
//! lines of [`log`]. An instance is used for many events, also of other keys: what is left in a
//! `static` may be there or not, and only the state is kept.

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

/// Everything that a handler commonly needs, with the two derives of `serde`.
pub mod prelude {
    pub use serde::{Deserialize, Serialize};

    pub use crate::{Change, Event, Failure, Message, OrFail, Outcome, Raw, Result, log};
}

/// Makes a function the handler of this component. Once per crate.
///
/// The function is a `fn(Event<D>, Option<S>) -> Result<Outcome<S>>` with any `D` that is
/// [`Decode`] and any `S` that is [`Decode`] and [`Encode`]. Outside of wasm the macro only checks
/// that it is one.
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

/// What [`handler!`] expands to. Not for use.
#[doc(hidden)]
pub mod __private {
    pub use crate::call::check;
    #[cfg(target_arch = "wasm32")]
    pub use crate::guest::{
        bindings, bindings::export, bindings::exports::ordain::handler::handler::Guest,
        bindings::ordain::handler::types, handle,
    };
}
