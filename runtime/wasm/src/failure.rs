//! Converts the error of a call into the failure of an event. The failure's message states the fault. The message also
//! names the setting whose limit the handler exceeded, or the handler's functions in which a trap occurred. A trap is
//! an error by which WebAssembly ends a call, such as a division by zero.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use ordain_core::{FailedAttempt, FailureKind, HandlerLimit};
use rustix::io::Errno;
use wasmtime::{PoolConcurrencyLimitError, Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use super::settings::{DisplaySize, HandlerLimits};
use ordain_util::text::truncated;

/// Maximum number of guest functions (functions of the handler's WebAssembly code) that the message of a trap names,
/// from the innermost function outwards.
const FRAME_LIMIT: usize = 3;

/// Maximum size, in bytes, of the reason that a handler gives for a rejection or a retry. The store keeps the reason in
/// the record of the key or in the dead letter, and lists of keys and dead letters show it.
const REASON_LIMIT_BYTES: usize = 4 << 10;

/// The text by which Wasmtime reports that a guest returned more data than the host may copy for one result (one
/// lift). The error has no type of its own. A test checks that Wasmtime still uses this text.
const LIFT_EXHAUSTED_TEXT: &str = "fuel allocated for hostcalls has been exhausted";

/// The beginning of a Rust panic's text.
const PANIC_PREFIX: &str = "panicked at ";

/// The error of a guest (the WebAssembly code of a handler) that exceeded a limit of the host, or emitted an invalid
/// message.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub(super) struct LimitExceeded {
    /// The exceeded limit; `None` if the operator cannot raise the limit, or if the message is invalid.
    pub(super) limit: Option<HandlerLimit>,
    /// The fault and, if the operator can raise the limit, the setting of the limit and its value.
    pub(super) message: String,
}

impl From<LimitExceeded> for FailedAttempt {
    fn from(broken: LimitExceeded) -> Self {
        let LimitExceeded { limit, message: words } = broken;
        Self { kind: FailureKind::Limit, limit, message: words, after_ms: None }
    }
}

/// The error of a guest that exceeded its time limit.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct TimeoutExceeded(String);

impl TimeoutExceeded {
    pub(super) fn running(timeout: Duration) -> Self {
        Self(format!("the handler ran longer than {timeout:?} (`plugins.timeout`)"))
    }

    pub(super) fn waiting(timeout: Duration) -> Self {
        Self(format!(
            "the handler waits longer than {timeout:?} (`plugins.timeout`), or waits for something that can never \
             occur"
        ))
    }
}

/// Builds a failure that names no limit and requests no retry delay.
fn failure(kind: FailureKind, message: String) -> FailedAttempt {
    FailedAttempt { kind, limit: None, message, after_ms: None }
}

/// Converts the error of a call into a failure. `last_words` is the end of the event's output to standard error.
pub(super) fn classify(
    error: &wasmtime::Error,
    last_words: &str,
    limits: &HandlerLimits,
) -> FailedAttempt {
    if let Some(broken) = error.downcast_ref::<LimitExceeded>() {
        return broken.clone().into();
    }
    if let Some(timed_out) = error.downcast_ref::<TimeoutExceeded>() {
        return FailedAttempt {
            limit: Some(HandlerLimit::Timeout),
            ..failure(FailureKind::Timeout, timed_out.to_string())
        };
    }
    if let Some(full) = error.downcast_ref::<PoolConcurrencyLimitError>() {
        // A retry can succeed: the pool of instances has room again when another instance ends.
        let message = format!("there is no room for another instance of the handler: {full}");
        return failure(FailureKind::Retry, message);
    }
    if error.chain().any(|cause| cause.is::<io::Error>() || cause.is::<Errno>()) {
        // A retry can succeed: the machine, and not the handler, caused the error.
        let message = format!("the machine cannot run the handler now: {error:#}");
        return failure(FailureKind::Retry, message);
    }
    if let Some(I32Exit(code)) = error.downcast_ref::<I32Exit>() {
        let message = format!("the handler exited with code {code}");
        return failure(FailureKind::Error, append_output(message, last_words));
    }
    if let Some(trap) = error.downcast_ref::<Trap>() {
        if *trap == Trap::UnreachableCodeReached && !last_words.trim().is_empty() {
            return failure(FailureKind::Error, uncaught_message(last_words));
        }
        let trap = trap.to_string();
        let what = trap.strip_prefix("wasm trap: ").unwrap_or(&trap);
        return failure(FailureKind::Trap, format!("trap: {what}{}", trap_location(error)));
    }
    let cause = error.root_cause().to_string();
    if cause.contains(LIFT_EXHAUSTED_TEXT) {
        let words = format!(
            "the handler returned more than {} at once, as the outcome of one event. This limit is the sum of \
             `plugins.state_size` ({}), `plugins.messages_size` ({}) and 1 KiB for each of the {} messages that \
             `plugins.messages` allows",
            DisplaySize(limits.lift_limit()),
            DisplaySize(limits.state_size),
            DisplaySize(limits.messages_size),
            limits.messages,
        );
        return LimitExceeded { limit: Some(HandlerLimit::OutcomeSize), message: words }.into();
    }
    failure(FailureKind::Trap, format!("trap: {cause}{}", trap_location(error)))
}

/// Cuts a handler's reason to its maximum size.
pub(super) fn cut_reason(words: String) -> String {
    truncated(words, REASON_LIMIT_BYTES)
}

/// Returns the failure's message for an error that the handler's code did not catch. `last_words` is the end of the
/// output to standard error.
fn uncaught_message(last_words: &str) -> String {
    let Some(at) = last_words.rfind(PANIC_PREFIX) else {
        return format!("uncaught error: {}", last_words.trim());
    };
    // A Rust panic: first `panicked at PLACE:`, then the message on separate lines, and then a note on backtraces.
    let text = &last_words[at..];
    let text = text.split("\nnote: run with `RUST_BACKTRACE").next().unwrap_or(text);
    text.trim().replacen(":\n", ": ", 1)
}

fn append_output(mut message: String, last_words: &str) -> String {
    if !last_words.trim().is_empty() {
        message.push_str(": ");
        message.push_str(last_words.trim());
    }
    message
}

/// Returns the guest functions in which the error occurred, as the end of a message. Returns an empty text if the
/// component does not contain the names of the functions.
fn trap_location(error: &wasmtime::Error) -> String {
    let mut location = String::new();
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else { return location };
    let mut names: Vec<_> =
        backtrace.frames().iter().filter_map(wasmtime::FrameInfo::func_name).collect();
    // A function that calls itself counts once.
    names.dedup();
    for (depth, name) in names.into_iter().take(FRAME_LIMIT).enumerate() {
        let joint = if depth == 0 { " in " } else { ", called by " };
        let _ = write!(location, "{joint}`{:#}`", rustc_demangle::demangle(name));
    }
    location
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uncaught_error_keeps_its_message_and_location() {
        let rust = "a line of its own\n\nthread '<unnamed>' (1) panicked at src/lib.rs:7:9:\n\
                    no such order: 17\nnote: run with `RUST_BACKTRACE=1` environment variable to \
                    display a backtrace\n";
        assert_eq!(uncaught_message(rust), "panicked at src/lib.rs:7:9: no such order: 17");
        let python = "Traceback (most recent call last):\nValueError: no such order\n";
        assert_eq!(
            uncaught_message(python),
            "uncaught error: Traceback (most recent call last):\nValueError: no such order"
        );
    }
}
