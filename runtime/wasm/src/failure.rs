//! Converts the error of a call into the failure of an event. The failure's message states the fault. The message also
//! names the setting whose limit the handler exceeded, or the handler's functions in which a trap occurred. A trap is
//! an error by which WebAssembly ends a call, such as a division by zero.

mod language_error;

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use ordain_core::{FailedAttempt, FailureKind, HandlerLimit};
use rustix::io::Errno;
use wasmtime::{PoolConcurrencyLimitError, Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use super::excerpt::Excerpt;
use super::settings::{DisplaySize, HandlerLimits};
use language_error::LanguageError;
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

/// The error of a guest that ended its call by the interface [`FAULT_INTERFACE`](super::guest::FAULT_INTERFACE).
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct ReportedFault(String);

impl ReportedFault {
    pub(super) fn new(message: &str) -> Self {
        let message = message.trim();
        if message.is_empty() {
            return Self("the handler reported a fault without a message".to_owned());
        }
        Self(Excerpt::of(message))
    }
}

/// Builds a failure that names no limit and requests no retry delay.
fn failure(kind: FailureKind, message: String) -> FailedAttempt {
    FailedAttempt { kind, limit: None, message, after_ms: None }
}

/// Converts the error of a call into a failure. `stderr` is an excerpt of the event's output to standard
/// error.
pub(super) fn classify(
    error: &wasmtime::Error,
    stderr: &str,
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
    if let Some(fault) = error.downcast_ref::<ReportedFault>() {
        return failure(FailureKind::Error, fault.to_string());
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
        return failure(FailureKind::Error, append_error(message, stderr));
    }
    if let Some(trap) = error.downcast_ref::<Trap>() {
        if *trap == Trap::UnreachableCodeReached && !stderr.trim().is_empty() {
            return failure(FailureKind::Error, LanguageError::find(stderr).uncaught());
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

fn append_error(mut message: String, stderr: &str) -> String {
    if !stderr.trim().is_empty() {
        message.push_str(": ");
        message.push_str(&LanguageError::find(stderr).text);
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

    fn classified(error: impl Into<wasmtime::Error>, stderr: &str) -> FailedAttempt {
        classify(&error.into(), stderr, &HandlerLimits::default())
    }

    #[test]
    fn reported_fault_is_the_message() {
        let failed = classified(ReportedFault::new("\n Error: no such order ☃\n  at f\n"), "noise");
        assert_eq!(failed.kind, FailureKind::Error);
        assert_eq!(failed.message, "Error: no such order ☃\n  at f");
        let failed = classified(ReportedFault::new(" \n"), "noise");
        assert_eq!(failed.message, "the handler reported a fault without a message");
    }

    #[test]
    fn long_fault_keeps_its_beginning_and_its_end() {
        let message =
            classified(ReportedFault::new(&format!("a{}z", "☃".repeat(1 << 20))), "").message;
        assert!(message.len() < 3 << 10, "{}", message.len());
        assert!(message.starts_with("a☃") && message.ends_with("☃z"), "{message}");
        assert!(message.contains(" bytes are left out "), "{message}");
    }

    #[test]
    fn exit_is_reported_with_the_error_of_the_language() {
        let message = |stderr| classified(I32Exit(1), stderr).message;
        assert_eq!(message(" \n"), "the handler exited with code 1");
        assert_eq!(message("no such order\n"), "the handler exited with code 1: no such order");
    }

    #[test]
    fn trap_is_an_uncaught_error_only_if_the_handler_wrote_its_text() {
        let failed = classified(Trap::UnreachableCodeReached, "no such order\n");
        assert_eq!(failed.kind, FailureKind::Error);
        assert_eq!(failed.message, "uncaught error: no such order");
        let failed = classified(Trap::UnreachableCodeReached, "");
        assert_eq!(failed.kind, FailureKind::Trap);
    }
}
