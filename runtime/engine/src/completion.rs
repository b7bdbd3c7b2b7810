//! Completions: what workers and the publisher send back to the driver of a partition.

use ordain_core::Input;
use ordain_wasm::Results;

/// Completions that may wait for the driver: more only make their senders wait.
pub const INBOX: usize = 1_024;

/// A completion on its way to the sequencer.
#[derive(Debug)]
pub enum Note {
    /// Turns that a worker finished.
    Turns(Results),
    /// Anything else.
    Input(Input),
}
