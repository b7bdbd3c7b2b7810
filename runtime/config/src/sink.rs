//! `[sinks.NAME]`: where messages go.

use super::section::{kinds, section};
use super::template::RoutingKey;
use super::text::{Name, Place, Text};

kinds! {
    /// Where messages go.
    pub enum Sink {
        /// An exchange of the broker.
        "amqp" => Amqp(AmqpSink),
        /// Lines of a file or of standard output, each a CloudEvent in JSON.
        "file" => File(FileSink),
        /// Another stream of this Ordain.
        "stream" => Stream(StreamSink),
    }
}

impl Sink {
    /// Whether its messages are numbered within their keys.
    pub fn sequenced(&self) -> bool {
        match self {
            Self::Amqp(sink) => sink.sequenced,
            Self::File(sink) => sink.sequenced,
            Self::Stream(sink) => sink.sequenced,
        }
    }
}

section! {
    /// `[sinks.NAME] kind = "amqp"`.
    pub struct AmqpSink {
        /// The exchange.
        exchange: Text;
        /// The routing key, with the placeholders `{key}`, `{type}` and `{stream}`.
        routing_key: RoutingKey = "{key}",
            because "the next Ordain takes the routing key for its key";
        /// Whether each message gets its own number within its key.
        sequenced: bool = false,
            because "the numbers and their replay log cost a write for each message";
    }
}

section! {
    /// `[sinks.NAME] kind = "file"`.
    pub struct FileSink {
        /// The file, or `-` for standard output, where a line may come twice after a crash.
        path: Place;
        /// Whether each message gets its own number within its key.
        sequenced: bool = false,
            because "the numbers and their replay log cost a write for each message";
    }
}

section! {
    /// `[sinks.NAME] kind = "stream"`.
    pub struct StreamSink {
        /// A stream here whose source is of kind `stream`.
        stream: Name;
        /// Whether each message gets its own number within its key.
        sequenced: bool = false,
            because "the numbers and their replay log cost a write for each message";
    }
}
