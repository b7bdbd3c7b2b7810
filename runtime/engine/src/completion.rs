//! Completions: the values that other parts of the process, such as the workers and the outbox publisher, send to the
//! driver of a partition.

use ordain_core::Input;
use ordain_wasm::TurnResults;
use tokio::sync::oneshot;

/// Maximum number of completions that wait for the driver. At the limit, a sender waits. Exception: the sender of a
/// report that the store may have gone back in time does not wait, and drops the report.
pub const COMPLETION_LIMIT: usize = 1_024;

/// A value that another part of the process sends to the driver of a partition.
#[derive(Debug)]
pub enum Completion {
    /// The results of turns (runs of events of one key) that a worker has executed.
    Turns(TurnResults),
    /// A request to check the store, because the store may have gone back in time (lost its newest writes). The driver
    /// answers when each shard of the store has confirmed that it has all commits of the partition. If the driver ends
    /// before it has completed the check, the requester gets no answer.
    StoreCheck(oneshot::Sender<()>),
    /// Any other input for the sequencer.
    Input(Input),
}
