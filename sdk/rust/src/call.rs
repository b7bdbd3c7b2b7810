//! A call of a handler: decodes the event and the state from bytes, and encodes the outcome into bytes. A component
//! makes this call for its host, and a [`Runner`](crate::testing::Runner) makes it for a test.

use crate::{Change, Decode, Encode, Event, Failure, Outcome, Raw, Result};

/// Makes the compiler check that `_handle` is a handler: only a handler meets the trait bounds of this function.
pub fn check<D, S, F>(_handle: F)
where
    D: Decode,
    S: Decode + Encode,
    F: Fn(Event<D>, Option<S>) -> Result<Outcome<S>>,
{
}

/// Calls `handle`. Rejects the event if its data cannot be decoded.
///
/// # Panics
/// Panics if the state cannot be decoded, or if the new state cannot be encoded. The cause is a bug of the handler, or
/// a state that another version of the handler wrote. The crate's documentation explains why such a fault must not
/// reject the event.
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
    let event = decode_data(event, data)?;
    let state = state.map(read_state);
    let Outcome { state, messages, complete } = handle(event, state)?;
    let state = match state {
        Change::Keep => Change::Keep,
        Change::Delete => Change::Delete,
        Change::Put(state) => Change::Put(Raw(write_state(state))),
    };
    Ok(Outcome { state, messages, complete })
}

/// Decodes the data of an event. Rejects the event if its data cannot be decoded.
pub(crate) fn decode_data<D: Decode>(event: Event<()>, data: Vec<u8>) -> Result<Event<D>> {
    let size = data.len();
    match D::decode(data) {
        Ok(data) => Ok(event.with_data(data)),
        Err(error) => Err(bad_data(&event, size, &error)),
    }
}

#[cold]
fn bad_data(event: &Event<()>, size: usize, error: &str) -> Failure {
    Failure::Reject(format!(
        "the data of this event of type {:?} ({size} bytes of {:?}) cannot be decoded: {error}",
        event.kind, event.content_type,
    ))
}

/// Decodes a state. Panics if the state cannot be decoded.
pub(crate) fn read_state<S: Decode>(bytes: Vec<u8>) -> S {
    let size = bytes.len();
    S::decode(bytes).unwrap_or_else(|error| {
        panic!(
            "the state of this key ({size} bytes) cannot be decoded: {error}. If another version of the handler wrote \
             the state, this version must be able to read that state"
        )
    })
}

fn write_state<S: Encode>(state: S) -> Vec<u8> {
    state.encode().unwrap_or_else(|error| panic!("the new state cannot be encoded: {error}"))
}
