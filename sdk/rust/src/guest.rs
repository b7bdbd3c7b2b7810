//! The WebAssembly side of the SDK: the generated bindings, and conversions between their types and the types of this
//! crate. This module only converts, and makes no decisions.

use std::fmt;
use std::panic::{self, PanicHookInfo};
use std::sync::Once;

use crate::call::call;
use crate::log::Level;
use crate::{Change, Decode, Encode, Event, Failure, Message, Outcome, Raw, Result};
use bindings::ordain::handler::{fault, logging, types};

#[allow(
    unsafe_code,
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated; the contract is documented in the WIT"
)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "wit",
        world: "ordain:handler/plugin",
        pub_export_macro: true,
    });
}

/// Passes one call of the host to the handler, and converts the event, the state and the result.
pub fn handle<D, S, F>(
    handle: F,
    event: types::Event,
    state: Option<Vec<u8>>,
) -> std::result::Result<types::Outcome, types::Failure>
where
    D: Decode,
    S: Decode + Encode,
    F: Fn(Event<D>, Option<S>) -> Result<Outcome<S>>,
{
    static HOOK: Once = Once::new();
    HOOK.call_once(|| panic::set_hook(Box::new(report_panic)));

    let types::Event { data, .. } = event;
    let event = Event {
        stream: event.stream,
        key: event.key,
        sequence: event.sequence,
        id: event.id,
        kind: event.type_,
        source: event.source,
        time_ms: event.time_ms,
        content_type: event.content_type,
        headers: event.headers,
        data: (),
        end_of_sequence: event.end_of_sequence,
    };
    match call(&handle, event, data, state) {
        Ok(outcome) => Ok(outcome.into()),
        Err(failure) => Err(failure.into()),
    }
}

/// Writes a panic to standard error, which is a part of the host's log. Then ends the call with the location and the
/// message of the panic, in one line.
fn report_panic(info: &PanicHookInfo<'_>) {
    eprintln!("{info}");
    fault::fail(&info.to_string().replacen(":\n", ": ", 1));
}

/// Writes a line to the host's log.
pub(crate) fn log(level: Level, line: fmt::Arguments<'_>) {
    let level = match level {
        Level::Trace => logging::Level::Trace,
        Level::Debug => logging::Level::Debug,
        Level::Info => logging::Level::Info,
        Level::Warn => logging::Level::Warn,
        Level::Error => logging::Level::Error,
    };
    match line.as_str() {
        Some(line) => logging::log(level, line),
        None => logging::log(level, &line.to_string()),
    }
}

impl From<Outcome<Raw>> for types::Outcome {
    fn from(outcome: Outcome<Raw>) -> Self {
        Self {
            state: match outcome.state {
                Change::Keep => types::Change::Keep,
                Change::Put(Raw(state)) => types::Change::Put(state),
                Change::Delete => types::Change::Delete,
            },
            messages: outcome.messages.into_iter().map(Into::into).collect(),
            complete: outcome.complete,
        }
    }
}

impl From<Message> for types::Message {
    fn from(message: Message) -> Self {
        Self {
            sink: message.sink,
            key: message.key,
            type_: message.kind,
            content_type: message.content_type,
            headers: message.headers,
            data: message.data.0,
            delay_ms: message.delay_ms,
            end_of_sequence: message.end_of_sequence,
        }
    }
}

impl From<Failure> for types::Failure {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Retry { reason, after_ms } => {
                Self::Retry(types::RetryInfo { reason, after_ms })
            }
            Failure::Reject(reason) => Self::Reject(reason),
        }
    }
}
