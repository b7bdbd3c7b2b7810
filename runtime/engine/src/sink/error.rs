//! The errors that end publishing.

use std::sync::Arc;

use ordain_store::StoreError;

/// The reason why the outbox publisher ended.
#[derive(Debug, thiserror::Error)]
pub enum PublisherError {
    /// The store failed while messages were marked as published.
    #[error("the store failed while messages were marked as published")]
    Store(#[from] StoreError),
    /// A message was committed for a sink that the configuration no longer has.
    #[error(
        "stream {stream} has a committed message of key {key:?}, event {sequence}, for the sink {sink:?}, which is not \
         configured. Add the sink again, at least until the message is published"
    )]
    UnknownSink {
        /// The stream whose handler emitted the message.
        stream: String,
        /// The key of the event that emitted the message.
        key: String,
        /// The sequence of the event.
        sequence: u64,
        /// The name of the missing sink.
        sink: String,
    },
    /// A dead letter was committed for forwarding, and the configuration no longer has a sink for the dead letters of
    /// the stream.
    #[error(
        "stream {stream} must send a copy of a committed dead letter (key {key:?}, event {sequence}) to a sink, but \
         the setting `dead_letter` of the stream, which names the sink, is missing. Set `dead_letter` again, at least \
         until the copy is published"
    )]
    NoLetterSink {
        /// The stream that must forward the dead letter.
        stream: String,
        /// The letter's key.
        key: String,
        /// The letter's sequence.
        sequence: u64,
    },
    /// The store has lost messages to which it had assigned numbers, and this process cannot repeat all of them.
    #[error(
        "stream {stream}: the store went back in time: shard {shard} has lost more messages to {to} than this process \
         has in memory. The next start continues after the last number that the shard still has, so some numbers are \
         assigned twice. Check whether a receiver has two messages of the last minutes with the same key and number"
    )]
    StoreRolledBack {
        /// The stream that sent the messages.
        stream: String,
        /// The destination of the messages.
        to: String,
        /// The shard that has lost messages.
        shard: u32,
    },
    /// For 30 seconds, the store has refused to number messages of this owner. According to the store, a later owner
    /// has sent messages from the same outbox, or these messages are already published. But this process still owns the
    /// partition, and has not recorded these messages as published. The contradiction shows that a part of the store
    /// was removed or restored.
    #[error(
        "stream {stream}: shard {shard} of the store refuses to number messages to {to}: according to its data, a \
         later owner of the partition has sent messages, or these messages are already published. Neither can be true, \
         because this process owns the partition and has not recorded these messages as published. Therefore, only a \
         part of the store was removed or restored. Restore the other parts to the same point in time, or give the \
         stream another name"
    )]
    Fenced {
        /// The stream that sends messages to the destination.
        stream: String,
        /// The destination of the messages.
        to: String,
        /// The shard that has the numbers.
        shard: u32,
    },
    /// The outbox has messages of a stream that neither this configuration nor another running instance has.
    #[error(
        "the store has committed messages of stream {0:?}, which is not configured: add the stream again, at least \
         until the messages are published"
    )]
    UnknownStream(Arc<str>),
    /// The sync of a file failed, so the disk may lack a part of the file. A second sync could succeed without this
    /// part, so the outbox publisher ends without a retry.
    #[error(
        "sink {sink}: the disk did not accept the data written to {path}: {error}. Check the disk and start Ordain \
         again: the start writes the missing messages from the store"
    )]
    NotSynced {
        /// The name of the sink.
        sink: String,
        /// The path of the file.
        path: String,
        /// The reason of the failure.
        error: std::io::Error,
    },
    /// Standard output no longer has a reader.
    #[error(
        "standard output, to which the sink {0} writes, has no reader any more; at the next start, Ordain publishes \
         the committed messages that were not written"
    )]
    NoReader(String),
}
