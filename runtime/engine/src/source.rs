//! The sources of events. A source delivers events in the order in which it reads them. After a restart of the process,
//! a source repeats the delivery of all unacknowledged events. Exception: standard input cannot deliver an event a
//! second time. A source must never decide how an event is settled.

mod file;
mod file_set;
mod inbox;
mod line_splitter;
mod notifier;
mod queue;
mod unconfirmed;
mod unread;

use std::sync::Arc;

use ordain_core::Event;

pub use file::{FileOptions, read_file};
pub use file_set::{FileSet, ScanResult};
pub(crate) use file_set::{find_by_identity, is_same_inode, rotated_files};
pub use inbox::{Inbox, unrouted_queue};
pub use notifier::{QueueNotifier, QueueNotifiers};
pub use queue::{QueueOptions, read_queue};
pub(crate) use unread::watch_accepted_events;

/// Returns the next early event of an inbox: an event that arrived over HTTP while the broker accepted no events. The
/// source later delivers a copy of this event. Returns `None` if the inbox has ended. Never returns if the stream has
/// no inbox.
pub async fn next_offered(inbox: &mut Option<Inbox>) -> Option<Arc<Event>> {
    match inbox {
        Some(inbox) => inbox.next().await,
        None => std::future::pending().await,
    }
}
