//! `[sinks.NAME]`: the destinations of messages.

use super::scalar::choice;
use super::section::{kinds, section};
use super::template::RoutingKeyTemplate;
use super::text::{FileOrStdio, ResourceName, SinkExchange};

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
        /// The exchange to which Ordain publishes the messages. The empty text is the default exchange of the broker,
        /// which delivers a message to the queue that the routing key names.
        exchange: SinkExchange;
        /// The routing key, with the placeholders `{key}`, `{type}`, `{stream}` and `{property:reply_to}`. The value of
        /// `{property:reply_to}` is the header `property:reply_to`, which the handler sets. Required if `exchange` is
        /// empty.
        routing_key: RoutingKeyTemplate = "{key}",
            because "a stream of Ordain that reads the messages takes the key from the routing key by default";
        /// How the sink treats a message that no queue accepts. With `keep`, Ordain repeats the publication until a
        /// queue accepts the message. With `drop`, Ordain logs and counts the message, and continues. Default: `drop`
        /// if the routing key contains `{property:reply_to}`, otherwise `keep`.
        unroutable: Option<UnroutablePolicy>,
            because "the queue for a reply disappears with its client, and no other program reads the reply; any other \
                     missing queue is usually a mistake that an operator corrects";
        /// If true, each message gets a number within its key.
        sequenced: bool = false,
            because "for each message, the numbering and the copy for replay cost another write to the store";
    }
}

/// The treatment of a message that no queue accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnroutablePolicy {
    /// The sink repeats the publication until a queue accepts the message.
    Keep,
    /// The sink drops the message.
    Drop,
}

choice!(UnroutablePolicy { "keep" => UnroutablePolicy::Keep, "drop" => UnroutablePolicy::Drop, });

impl AmqpSinkConfig {
    /// Returns whether the sink publishes to the default exchange of the broker.
    pub fn is_default_exchange(&self) -> bool {
        self.exchange.0.is_empty()
    }

    /// Returns how the sink treats a message that no queue accepts.
    pub fn unroutable_policy(&self) -> UnroutablePolicy {
        match self.unroutable {
            Some(policy) => policy,
            None if self.routing_key.names_reply_queue() => UnroutablePolicy::Drop,
            None => UnroutablePolicy::Keep,
        }
    }
}

section! {
    /// `[sinks.NAME] kind = "file"`.
    pub struct FileSinkConfig {
        /// The file, or `-` for standard output, where a line may be repeated after a crash.
        path: FileOrStdio;
        /// If true, each message gets a number within its key.
        sequenced: bool = false,
            because "for each message, the numbering and the copy for replay cost another write to the store";
    }
}

section! {
    /// `[sinks.NAME] kind = "stream"`.
    pub struct StreamSinkConfig {
        /// A stream of this configuration whose source is of kind `stream`.
        stream: ResourceName;
        /// If true, each message gets a number within its key.
        sequenced: bool = false,
            because "for each message, the numbering and the copy for replay cost another write to the store";
    }
}
