//! Completions: the messages of workers and of the publisher to the driver of a partition.

use ordain_core::Input;
use ordain_wasm::TurnResults;
use tokio::sync::oneshot;

/// Maximum number of completions that wait for the driver; further senders wait.
pub const COMPLETION_LIMIT: usize = 1_024;

/// A message to the driver.
#[derive(Debug)]
pub enum Completion {
    /// Turns that a worker finished.
    Turns(TurnResults),
    /// A request for an answer when the driver knows that the store has all commits of the partition, because the store
    /// may have gone back in time. A driver that ends does not answer.
    StoreCheck(oneshot::Sender<()>),
    /// Any other input of the sequencer.
    Input(Input),
}
