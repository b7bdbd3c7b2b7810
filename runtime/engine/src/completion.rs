//! Completions: the messages of workers and of the publisher to the driver of a partition.

use ordain_core::Input;
use ordain_wasm::TurnResults;
use tokio::sync::oneshot;

/// Maximum number of completions that wait for the driver. At the limit, a sender waits.
pub const COMPLETION_LIMIT: usize = 1_024;

/// A message to the driver.
#[derive(Debug)]
pub enum Completion {
    /// Finished turns: each is a run of events of one key that a worker executed.
    Turns(TurnResults),
    /// A request to check the store, because the store may have gone back in time. The driver answers when it knows
    /// that the store has all commits of the partition. A driver that ends does not answer.
    StoreCheck(oneshot::Sender<()>),
    /// Any other input of the sequencer.
    Input(Input),
}
