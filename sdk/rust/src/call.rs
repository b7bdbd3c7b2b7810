//! One call of a handler, from bytes to bytes: what a component does for its host and a
//! [`Runner`](crate::testing::Runner) for its test.

use crate::{Change, Decode, Encode, Event, Failure, Outcome, Raw, Result};

/// Checks by its bounds that `handle` is a handler.
pub fn check<D, S, F>(_handle: F)
where
    D: Decode,
    S: Decode + Encode,
    F: Fn(Event<D>, Option<S>) -> Result<Outcome<S>>,
{
}

/// Calls `handle`. Data that does not decode rejects the event.
///
/// # Panics
/// The state does not decode, or the new one does not encode: a bug of the handler, or a state of
/// another version of it. See the crate's documentation for why that must not reject.
pub(crate) fn call<D, S, F>(
    handle: &F,
    event: Event<()>,
    data: Vec<u8>,
    state: Option<Vec<u8>>,
) -> Result<Outcome<Raw>>
where
    D: Decode,
    S: Decode + Encode,
    F: Fn(Event<D>, Option<S>) -> Result<Outcome<S>>,
{
    let size = data.len();
    let data = D::decode(data).map_err(|error| bad_data(&event, size, &error))?;
    let state = state.map(read_state);
    let Outcome { state, messages, complete } = handle(event.with_data(data), state)?;
    let state = match state {
        Change::Keep => Change::Keep,
        Change::Delete => Change::Delete,
        Change::Put(state) => Change::Put(Raw(write_state(state))),
    };
    Ok(Outcome { state, messages, complete })
}

#[cold]
fn bad_data(event: &Event<()>, size: usize, error: &str) -> Failure {
    Failure::Reject(format!(
        "the data of this {:?} ({size} bytes of {:?}) is not what the handler reads: {error}",
        event.kind, event.content_type,
    ))
}

fn read_state<S: Decode>(bytes: Vec<u8>) -> S {
    let size = bytes.len();
    S::decode(bytes).unwrap_or_else(|error| {
        panic!(
            "the state of this key ({size} bytes) is not what the handler reads: {error}. If \
             another version of the handler wrote it, this one must read that too"
        )
    })
}

fn write_state<S: Encode>(state: S) -> Vec<u8> {
    state.encode().unwrap_or_else(|error| panic!("the new state cannot be written: {error}"))
}
