//! Completions: the messages that other tasks, such as the workers and the publisher, send to the driver of a
//! partition.

use ordain_core::Input;
use ordain_wasm::TurnResults;
use tokio::sync::oneshot;

/// Maximum number of completions that wait for the driver. At the limit, a sender waits.
pub const COMPLETION_LIMIT: usize = 1_024;

/// A message to the driver of a partition.
#[derive(Debug)]
pub enum Completion {
    /// Turns (runs of events of one key) that a worker has executed.
    Turns(TurnResults),
    /// A request to check the store, because the store may have gone back in time (lost its newest writes). The driver
    /// answers when it knows that the store has all commits of the partition. If the driver ends before the check is
    /// complete, the requester gets no answer.
    StoreCheck(oneshot::Sender<()>),
    /// Any other input for the sequencer.
    Input(Input),
}
