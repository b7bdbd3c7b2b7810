//! Completions: what workers and the publisher send back to the driver of a partition.

use ordain_core::Input;
use ordain_wasm::Results;
use tokio::sync::oneshot;

/// Completions that may wait for the driver: more only make their senders wait.
pub const INBOX: usize = 1_024;

/// A completion on its way to the sequencer.
#[derive(Debug)]
pub enum Note {
    /// Turns that a worker finished.
    Turns(Results),
    /// Asks to be answered as soon as the store is known to have all commits of the partition, because it may have gone
    /// back in time. There is no answer if the partition is given up.
    StoreCheck(oneshot::Sender<()>),
    /// Anything else.
    Input(Input),
}
