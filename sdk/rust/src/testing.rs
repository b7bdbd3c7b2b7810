//! Runs a handler natively, without a host: passes the events of one key to the handler, and keeps the state from event
//! to event.
//!
//! ```
//! use ordain_sdk::prelude::*;
//! use ordain_sdk::testing::{Runner, json};
//!
//! fn count(_event: Event<Raw>, count: Option<u64>) -> Result<Outcome<u64>> {
//!     Ok(Outcome::put(count.unwrap_or(0) + 1))
//! }
//!
//! let mut run = Runner::new(count);
//! run.event("one", json!({"any": "data"})).unwrap();
//! run.event("two", Raw::from("or bytes")).unwrap();
//! assert_eq!(run.state(), Some(2));
//! ```

use std::marker::PhantomData;

use crate::call::call;
use crate::{Change, Decode, Encode, Event, Failure, Outcome, Raw, Result};

pub use serde_json::json;

/// A handler with the state and the next sequence of one key.
///
/// The runner converts data and state to bytes and back, as the host and a component do. A test therefore detects a
/// conversion that loses data. A panic of the handler also makes the test panic.
#[derive(Debug)]
pub struct Runner<D, S, F> {
    handle: F,
    state: Option<Vec<u8>>,
    next: u64,
    ended: bool,
    types: PhantomData<fn(D) -> S>,
}

impl<D, S, F> Runner<D, S, F>
where
    D: Decode,
    S: Decode + Encode,
    F: Fn(Event<D>, Option<S>) -> Result<Outcome<S>>,
{
    /// Creates a runner for a key without state, whose next sequence is 1.
    pub fn new(handle: F) -> Self {
        Self { handle, state: None, next: 1, ended: false, types: PhantomData }
    }

    /// Passes the next event of the key to the handler. `data` is encoded as JSON; a value of type [`Raw`] stays
    /// unchanged.
    ///
    /// # Panics
    /// Panics in the same cases as [`Self::send`], and if `data` cannot be written as JSON.
    pub fn event(&mut self, kind: &str, data: impl Encode) -> Result<Outcome<Raw>> {
        self.send(self.next_event(kind, data))
    }

    /// Returns the next event without passing it to the handler, so that the test can change it and then call
    /// [`Self::send`].
    ///
    /// # Panics
    /// Panics if `data` cannot be written as JSON.
    pub fn next_event(&self, kind: &str, data: impl Encode) -> Event<Raw> {
        let data = data
            .encode()
            .unwrap_or_else(|error| panic!("the data of a test event cannot be encoded: {error}"));
        Event {
            stream: "test".into(),
            key: "key".into(),
            sequence: self.next,
            id: format!("key/{}", self.next),
            kind: kind.into(),
            source: "/test".into(),
            time_ms: Some(0),
            content_type: "application/json".into(),
            headers: Vec::new(),
            data: Raw(data),
            end_of_sequence: false,
        }
    }

    /// Passes an event to the handler. If the handler requests a retry, the runner stays unchanged. Otherwise the
    /// runner settles the event (ends it for good), even if the handler rejects the event.
    ///
    /// # Panics
    /// Panics if the key has ended, because the host passes no more events of such a key to the handler. Also panics if
    /// the handler panics, or if a state cannot be decoded or encoded: in these cases, a component would trap.
    pub fn send(&mut self, mut event: Event<Raw>) -> Result<Outcome<Raw>> {
        assert!(!self.ended, "the key has ended before event {} {:?}", event.sequence, event.kind);
        let sequence = event.sequence;
        let end = event.end_of_sequence;
        let data = std::mem::take(&mut event.data).0;
        let result = call(&self.handle, event.with_data(()), data, self.state.clone());
        if matches!(result, Err(Failure::Retry { .. })) {
            return result;
        }
        // A test may send an event with an earlier sequence. Such an event does not advance the key.
        self.next = self.next.max(sequence.saturating_add(1));
        self.ended = end;
        if let Ok(outcome) = &result {
            self.ended |= outcome.complete;
            match &outcome.state {
                Change::Keep => {}
                Change::Put(state) => self.state = Some(state.0.clone()),
                Change::Delete => self.state = None,
            }
        }
        result
    }

    /// Returns the current state.
    ///
    /// # Panics
    /// Panics if the state cannot be decoded.
    pub fn state(&self) -> Option<S> {
        self.state.clone().map(|state| {
            S::decode(state).unwrap_or_else(|error| panic!("the state cannot be decoded: {error}"))
        })
    }

    /// Sets the state before the first event. `state` is encoded into the bytes that the host would store.
    #[must_use]
    pub fn with_state(mut self, state: impl Encode) -> Self {
        let state = state
            .encode()
            .unwrap_or_else(|error| panic!("the state of a test cannot be encoded: {error}"));
        self.state = Some(state);
        self
    }

    /// Returns whether an event or an outcome has ended the key.
    pub fn ended(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests;
