//! From the error of a call to the failure of an event, in words that help whoever reads them:
//! what happened, and the setting or the place in the handler to look at.

use std::fmt::Write as _;
use std::time::Duration;

use ordain_core::{Failure, FailureKind, Limit};
use wasmtime::{PoolConcurrencyLimitError, Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use super::settings::{Limits, Size};
use ordain_util::text::cut;

/// Functions of the guest that are named with a trap.
const FRAMES: usize = 3;

/// Bytes of a reason in the handler's own words. It is stored with the job and shown in lists.
const REASON_SIZE: usize = 4 << 10;

/// How the library says that a guest gave more than one lift may take. The error has no type of
/// its own to know it by; a test holds this to the library.
const LIFT_EXHAUSTED: &str = "fuel allocated for hostcalls has been exhausted";

/// How a Rust panic begins.
const PANIC: &str = "panicked at ";

/// A limit of the host that a guest ran into.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{words}")]
pub(super) struct LimitBroken {
    /// The limit, if it can be lifted.
    pub(super) limit: Option<Limit>,
    /// The limit in words, with its value and its setting.
    pub(super) words: String,
}

impl From<LimitBroken> for Failure {
    fn from(broken: LimitBroken) -> Self {
        let LimitBroken { limit, words } = broken;
        Self { kind: FailureKind::Limit, limit, message: words, after_ms: None }
    }
}

/// A guest has used up its time.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct TimedOut(String);

impl TimedOut {
    pub(super) fn running(timeout: Duration) -> Self {
        Self(format!("the handler ran longer than {timeout:?}, which `plugins.timeout` allows"))
    }

    pub(super) fn waiting(timeout: Duration) -> Self {
        Self(format!(
            "the handler waits longer than {timeout:?}, which `plugins.timeout` allows, or for \
             something that cannot come"
        ))
    }
}

/// A failure without a limit, and without a wish for when to try again.
fn failure(kind: FailureKind, message: String) -> Failure {
    Failure { kind, limit: None, message, after_ms: None }
}

/// What the error of a call means. `last_words` is what the event wrote to standard error.
pub(super) fn classify(error: &wasmtime::Error, last_words: &str, limits: &Limits) -> Failure {
    if let Some(broken) = error.downcast_ref::<LimitBroken>() {
        return broken.clone().into();
    }
    if let Some(timed_out) = error.downcast_ref::<TimedOut>() {
        return Failure {
            limit: Some(Limit::Timeout),
            ..failure(FailureKind::Timeout, timed_out.to_string())
        };
    }
    if let Some(full) = error.downcast_ref::<PoolConcurrencyLimitError>() {
        // It passes when other events end.
        let message = format!("there is no room for another instance of the handler: {full}");
        return failure(FailureKind::Retry, message);
    }
    if let Some(I32Exit(code)) = error.downcast_ref::<I32Exit>() {
        let message = format!("the handler exited with code {code}");
        return failure(FailureKind::Error, with_words(message, last_words));
    }
    if let Some(trap) = error.downcast_ref::<Trap>() {
        if *trap == Trap::UnreachableCodeReached && !last_words.trim().is_empty() {
            return failure(FailureKind::Error, uncaught(last_words));
        }
        let trap = trap.to_string();
        let what = trap.strip_prefix("wasm trap: ").unwrap_or(&trap);
        return failure(FailureKind::Trap, format!("trap: {what}{}", place(error)));
    }
    let cause = error.root_cause().to_string();
    if cause.contains(LIFT_EXHAUSTED) {
        let words = format!(
            "the handler gave the host more than {} at once, which is beyond `plugins.state_size` ({}) \
             and `plugins.messages_size` ({}) together",
            Size(limits.lift()),
            Size(limits.state_size),
            Size(limits.messages_size),
        );
        return LimitBroken { limit: Some(Limit::OutcomeSize), words }.into();
    }
    failure(FailureKind::Trap, format!("trap: {cause}{}", place(error)))
}

/// The words of a handler, cut to what is kept of them.
pub(super) fn reason(words: String) -> String {
    cut(words, REASON_SIZE)
}

/// The text of an uncaught error.
fn uncaught(last_words: &str) -> String {
    let Some(at) = last_words.rfind(PANIC) else {
        return format!("uncaught error: {}", last_words.trim());
    };
    // A Rust panic: `panicked at PLACE:`, the message on its own lines, and a note on backtraces.
    let text = &last_words[at..];
    let text = text.split("\nnote: run with `RUST_BACKTRACE").next().unwrap_or(text);
    text.trim().replacen(":\n", ": ", 1)
}

fn with_words(mut message: String, last_words: &str) -> String {
    if !last_words.trim().is_empty() {
        message.push_str(": ");
        message.push_str(last_words.trim());
    }
    message
}

/// Where in the guest it happened, as far as the component has names.
fn place(error: &wasmtime::Error) -> String {
    let mut place = String::new();
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else { return place };
    let mut names: Vec<_> =
        backtrace.frames().iter().filter_map(wasmtime::FrameInfo::func_name).collect();
    // A recursion is one place.
    names.dedup();
    for (depth, name) in names.into_iter().take(FRAMES).enumerate() {
        let joint = if depth == 0 { " in " } else { ", called by " };
        let _ = write!(place, "{joint}`{:#}`", rustc_demangle::demangle(name));
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_uncaught_error() {
        let rust = "a line of its own\n\nthread '<unnamed>' (1) panicked at src/lib.rs:7:9:\n\
                    no such order: 17\nnote: run with `RUST_BACKTRACE=1` environment variable to \
                    display a backtrace\n";
        assert_eq!(uncaught(rust), "panicked at src/lib.rs:7:9: no such order: 17");
        let python = "Traceback (most recent call last):\nValueError: no such order\n";
        assert_eq!(
            uncaught(python),
            "uncaught error: Traceback (most recent call last):\nValueError: no such order"
        );
    }
}
