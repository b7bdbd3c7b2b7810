//! `[sinks.NAME]`: the destinations of messages.

use super::section::{kinds, section};
use super::template::RoutingKeyTemplate;
use super::text::{AmqpName, FileOrStdio, ResourceName};

kinds! {
    /// The destination of messages.
    pub enum SinkConfig {
        /// An exchange of the broker.
        "amqp" => Amqp(AmqpSinkConfig),
        /// A file or standard output, with one CloudEvent in JSON per line.
        "file" => File(FileSinkConfig),
        /// Another stream of this configuration.
        "stream" => Stream(StreamSinkConfig),
    }
}

impl SinkConfig {
    /// Returns whether Ordain numbers the messages of the sink within their keys.
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
    pub struct AmqpSinkConfig {
        /// The exchange to which Ordain publishes the messages.
        exchange: AmqpName;
        /// The routing key, with the placeholders `{key}`, `{type}` and `{stream}`.
        routing_key: RoutingKeyTemplate = "{key}",
            because "a stream of Ordain that reads the messages takes the key from the routing key by default";
        /// If true, each message gets a number within its key.
        sequenced: bool = false,
            because "numbers and their replay log cost a write for each message";
    }
}

section! {
    /// `[sinks.NAME] kind = "file"`.
    pub struct FileSinkConfig {
        /// The file, or `-` for standard output, where a line may be repeated after a crash.
        path: FileOrStdio;
        /// If true, each message gets a number within its key.
        sequenced: bool = false,
            because "numbers and their replay log cost a write for each message";
    }
}

section! {
    /// `[sinks.NAME] kind = "stream"`.
    pub struct StreamSinkConfig {
        /// A stream of this configuration whose source is of kind `stream`.
        stream: ResourceName;
        /// If true, each message gets a number within its key.
        sequenced: bool = false,
            because "numbers and their replay log cost a write for each message";
    }
}
