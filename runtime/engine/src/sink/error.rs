//! Why publishing ends for good.

use std::sync::Arc;

use ordain_store::StoreError;

/// Why publishing ended for good.
#[derive(Debug, thiserror::Error)]
pub enum PublisherError {
    /// The store failed.
    #[error("the store failed while messages were marked as published")]
    Store(#[from] StoreError),
    /// A message was committed for a sink that the configuration no longer has.
    #[error(
        "stream {stream} has a committed message of key {key:?}, event {sequence}, for the sink \
         {sink:?}, which is not configured: add the sink again until the message is published"
    )]
    UnknownSink {
        /// The stream.
        stream: String,
        /// The key of the event that caused it.
        key: String,
        /// The event.
        sequence: u64,
        /// The sink.
        sink: String,
    },
    /// A dead letter was committed to be forwarded, and the configuration no longer says where.
    #[error(
        "stream {stream} has a committed dead letter of key {key:?}, event {sequence}, to be \
         forwarded, and no `dead_letter`: set it again until the letter is published"
    )]
    NoLetterSink {
        /// The stream.
        stream: String,
        /// The letter's key.
        key: String,
        /// The letter's sequence.
        sequence: u64,
    },
    /// The store has lost numbers that were given.
    #[error(
        "stream {stream}: the store went back in time: shard {shard} has lost more messages to {to} than this \
         process has in memory. The next start counts on from the messages that the shard has, so some numbers come \
         twice: check the receivers for numbers that two messages of the last minutes share"
    )]
    WentBack {
        /// The stream.
        stream: String,
        /// Where the messages go.
        to: String,
        /// The shard.
        shard: u32,
    },
    /// The store says that a newer owner gives messages, and there is none.
    #[error(
        "stream {stream}: the store has numbers for {to} in shard {shard} from an owner whose epoch is above \
         that of this one, which owns the partition. Somebody has removed or put back a part of the store: \
         put back the rest as well, or give the stream another name"
    )]
    Fenced {
        /// The stream.
        stream: String,
        /// Where the messages go.
        to: String,
        /// The shard.
        shard: u32,
    },
    /// Messages were committed for a stream that the configuration no longer has.
    #[error(
        "the store has committed messages of stream {0:?}, which is not configured: add the stream \
         again until they are published"
    )]
    UnknownStream(Arc<str>),
    /// The sync of a file failed. The disk may lack some of the file, and another sync would not show that.
    #[error(
        "sink {sink}: the disk did not take what was written to {path}: {error}. Check the disk and start \
         again: Ordain then writes the missing messages from its store"
    )]
    NotSynced {
        /// The sink.
        sink: String,
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// Whoever read standard output has gone.
    #[error(
        "nobody reads standard output any more, to which the sink {0} writes; what is committed \
         and was not written is published at the next start"
    )]
    NoReader(String),
}
