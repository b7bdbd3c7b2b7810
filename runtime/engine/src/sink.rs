//! The sinks of messages. A sink writes the messages of a key in the order in which it receives them. The outbox
//! publisher decides which messages a sink gets, and when messages count as published.

mod content;
mod error;
mod file;
mod kept_lines;
mod pending_runs;
mod published_counts;
mod publisher;
mod sequenced;
mod sinks;
mod watermark;

use std::io;

pub(crate) use error::PublisherError;
pub(crate) use file::FileSink;
pub(crate) use kept_lines::UnpublishedMessages;
pub(crate) use published_counts::PublishedCounts;
pub(crate) use publisher::{
    CommittedBatch, OutboxBacklog, OutboxPublisher, PartitionHandle, PublisherCommand,
};
pub(crate) use sequenced::SequencedSink;
pub(crate) use sinks::Sinks;
pub(crate) use watermark::PublishWatermark;

use ordain_store::Mark;

#[derive(Debug)]
pub(crate) enum LineSink {
    /// A file that contains each message exactly once. In one write, the store removes messages from the outbox and
    /// records the new length of the file.
    File(Box<FileSink>),
    /// Standard output, which gets each message at least once.
    Standard,
}

impl LineSink {
    /// Appends encoded messages. A failed write may have written a part of the bytes. In a file, the next write
    /// overwrites this part; in standard output, this part remains.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        use io::Write;
        match self {
            Self::File(file) => file.append(bytes),
            Self::Standard => {
                let mut out = io::stdout().lock();
                out.write_all(bytes)?;
                out.flush()
            }
        }
    }

    /// Opens the file at the sink's path if all appended data is synced and the path no longer leads to the open file,
    /// for example after log rotation. Creates a missing file. If another file is open now, returns its mark (the
    /// record of its length and identity for the store). The caller must store this mark before it appends. This mark
    /// replaces the marks of this sink in all pending runs (runs whose messages the store has not recorded as published
    /// yet).
    pub(crate) fn follow_path(&mut self) -> io::Result<Option<Mark>> {
        match self {
            Self::File(file) => file.follow_path(),
            Self::Standard => Ok(None),
        }
    }

    /// Returns the path of the file, or "standard output", for log lines and errors.
    pub(crate) fn location(&self) -> String {
        match self {
            Self::File(file) => file.path().display().to_string(),
            Self::Standard => "standard output".to_owned(),
        }
    }

    /// Returns whether the file contains appended data that is possibly not durable yet. Always `false` for standard
    /// output.
    pub(crate) fn needs_sync(&self) -> bool {
        match self {
            Self::File(file) => file.needs_sync(),
            Self::Standard => false,
        }
    }

    /// Makes the appended data of a file durable. `unsynced` contains the lines since the previous sync. If another
    /// process removed or truncated the file before the sync had ended, writes these lines a second time, and returns a
    /// mark that replaces the marks of this sink in all pending runs.
    pub(crate) fn sync(&mut self, unsynced: &[u8]) -> io::Result<Option<Mark>> {
        match self {
            Self::File(file) => file.sync(unsynced),
            Self::Standard => Ok(None),
        }
    }

    /// Returns the mark of the file; `None` for standard output. The mark contains the length of the file after the
    /// newest append. The store writes the mark together with the removal of the messages from the outbox.
    pub(crate) fn mark(&self) -> Option<Mark> {
        match self {
            Self::File(file) => Some(file.mark()),
            Self::Standard => None,
        }
    }
}
