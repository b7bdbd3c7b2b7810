//! `[streams.NAME] source`: the source of a stream's events.

use super::format::MessageFormat;
use super::location::{
    EventLocations, IdLocation, KeyLocation, MessageProperty, Place, ValueLocation,
};
use super::queue_names::partition_queue;
use super::reader::{ConfigReader, ReferenceRow, SettingNode, SettingValue};
use super::section::{kinds, section};
use super::text::{AmqpName, FileOrStdio};

kinds! {
    /// The source of a stream's events.
    pub enum SourceConfig {
        /// A queue of the broker, or several queues that share the keys.
        "amqp" => Amqp(AmqpSourceConfig),
        /// Requests to `[ingress]`.
        "http" => Http(HttpSourceConfig),
        /// A file or standard input, with one CloudEvent in JSON per line.
        "file" => File(FileSourceConfig),
        /// Messages of sinks of kind `stream`, and events that the command `publish` stores.
        "stream" => Stream(StreamSourceConfig),
    }
}

impl SourceConfig {
    /// Returns the number of partitions of the stream.
    pub fn partitions(&self) -> u32 {
        match self {
            Self::Amqp(source) => source.partitions,
            Self::Http(source) => source.partitions,
            Self::File(source) => source.partitions,
            Self::Stream(source) => source.partitions,
        }
    }

    /// Returns approximately how many events of a partition may wait in its queue in the store; for the kind `amqp`,
    /// this queue is the inbox. Returns `None` for a file, which has no queue in the store.
    pub fn queue_limit(&self) -> Option<u64> {
        match self {
            Self::Amqp(source) => Some(source.inbox),
            Self::Http(source) => Some(source.queue),
            Self::Stream(source) => Some(source.queue),
            Self::File(_) => None,
        }
    }

    /// Returns a text that names, for an operator, the place from which the stream receives its events.
    pub fn place(&self) -> String {
        match self {
            Self::Amqp(AmqpSourceConfig { queue, partitions, .. }) => {
                let name = |partition| partition_queue(&queue.0, *partitions, partition);
                match partitions.saturating_sub(1) {
                    0 => format!("queue {:?}", name(0)),
                    last => format!("queues {:?} to {:?}", name(0), name(last)),
                }
            }
            Self::Http(_) => "HTTP requests".to_owned(),
            Self::File(FileSourceConfig { path: FileOrStdio::Stdio, .. }) => {
                "standard input".to_owned()
            }
            Self::File(FileSourceConfig { path: FileOrStdio::File(path), .. }) => {
                format!("file {}", path.display())
            }
            Self::Stream(_) => "other streams and the command `publish`".to_owned(),
        }
    }

    /// Returns how many deliveries of a partition may be unacknowledged.
    pub fn prefetch(&self) -> usize {
        match self {
            Self::Amqp(source) => source.prefetch,
            Self::Http(source) => source.prefetch,
            Self::File(source) => source.prefetch,
            Self::Stream(source) => source.prefetch,
        }
    }
}

section! {
    /// `source = { kind = "amqp" }`.
    pub struct AmqpSourceConfig {
        /// The exchange that spreads the events over the queues. Required with more than one partition or
        /// with `bind`.
        exchange: Option<AmqpName>;
        /// The queue. With more than one partition the queues are `{queue}.0`, `{queue}.1` and so on.
        queue: AmqpName;
        /// Number of queues that share the keys. The number cannot be changed while the store has data of the
        /// stream.
        partitions: u32 [1 to 1_024] = 1,
            because "one queue needs no plugin in the broker";
        /// Maximum number of unacknowledged deliveries of a partition.
        prefetch: usize [1 to 65_535] = 4_000,
            because "a queue with a backlog delivers 4,000 events in about 50 ms; a commit takes less time, so the broker \
                     can continue to deliver during a commit";
        /// Number of consecutive unreadable messages after which a partition stops and leaves these messages in its
        /// queue. If the stream has read no message yet, and `prefetch` is lower than this number, a partition can stop
        /// earlier. With the value 0, the partition never stops, and each unreadable message immediately becomes a dead
        /// letter.
        unreadable_limit: usize [0 to 65_535] = 100,
            because "100 such messages in a row usually mean that a producer has changed the form of its messages; \
                     because these messages remain in the queue, no producer needs to send them again";
        /// Approximate maximum number of events of a partition that came over HTTP and wait in the store. Beyond this
        /// number, Ordain rejects requests, and producers retry later.
        inbox: u64 [1 to 1_000_000_000] = 100_000,
            because "100,000 events arrive in a minute at 1,600 events/s; if the broker is unavailable for longer, \
                     producers can send the rejected requests again later";
        /// The library that writes the messages. The format names the default places of the id, type and time. The
        /// settings `id`, `type` and `time` replace these places. A format requires the setting `key`.
        format: Option<MessageFormat>;
        /// The place of the key, or several places. Ordain uses the first place that is present and not empty. `*`
        /// makes the whole stream one key. A text with places in braces combines the values of these places into one
        /// key.
        key: KeyLocation = "routing-key",
            because "the exchange spreads events by routing key, so all events of a key are in one partition";
        /// The place of the id; by default the property `message_id` or the header `cloudEvents:id`. With `content`,
        /// Ordain computes the id from key, type and data. With `none`, which is valid only in `fifo` streams, each
        /// delivery gets an id of its own, so that an event can take effect more than once.
        id: Option<IdLocation>;
        /// The place of the sequence; by default the header `X-Sequence-ID` or `cloudEvents:sequence`.
        sequence: Option<ValueLocation>;
        /// The place of the type; by default the property `type` or the header `cloudEvents:type`.
        kind as "type": Option<ValueLocation>;
        /// The place of the time; by default the header `cloudEvents:time` or `timestamp_in_ms`, or the property
        /// `timestamp`.
        time: Option<ValueLocation>;
        /// Exchanges that feed `exchange`.
        bind: Vec<ExchangeBinding> = [],
            because "the bindings can also be declared outside Ordain";
        /// If true, Ordain declares the exchange, queues and bindings that are missing.
        declare: bool = true,
            because "a first start should need no preparation in the broker";
    }
}

section! {
    /// `source = { kind = "http" }`.
    pub struct HttpSourceConfig {
        /// Number of partitions that share the keys. The number cannot be changed while the store has data of the
        /// stream.
        partitions: u32 [1 to 1_024] = 1,
            because "one instance needs only one partition";
        /// Maximum number of events of a partition that the source reads in advance. An event counts until it is
        /// settled, or until it has moved from memory to the store.
        prefetch: usize [1 to 1_000_000] = 4_000,
            because "a source of kind `amqp` has the same default";
        /// Approximate maximum number of events of a partition that wait in the store. Beyond this number, Ordain
        /// rejects requests, and producers retry later.
        queue: u64 [1 to 1_000_000_000] = 100_000,
            because "100,000 events arrive in a minute at 1,600 events/s; if a stream falls further behind, its \
                     producers can send the rejected requests again later";
        /// The place of the key, or several places; by default the attribute `partitionkey` or `subject`. Ordain uses
        /// the first place that is present and not empty. `*` makes the whole stream one key. A text with places in
        /// braces combines the values of these places into one key.
        key: Option<KeyLocation>;
        /// The place of the id; by default the attribute `id`. With `content`, Ordain computes the id from key, type
        /// and data. With `none`, which is valid only in `fifo` streams, each arriving event gets an id of its own, so
        /// that an event that arrives twice takes effect twice.
        id: Option<IdLocation>;
        /// The place of the sequence; by default the attribute `sequence`.
        sequence: Option<ValueLocation>;
        /// The place of the type; by default the attribute `type`.
        kind as "type": Option<ValueLocation>;
        /// The place of the time; by default the attribute `time`.
        time: Option<ValueLocation>;
    }
}

section! {
    /// `source = { kind = "file" }`.
    pub struct FileSourceConfig {
        /// The file, a pattern such as `orders-*.ndjson`, or `-` for standard input, which cannot resume after a
        /// restart.
        path: FileOrStdio;
        /// Number of partitions that share the keys. The number cannot be changed while the store has data of the
        /// stream.
        partitions: u32 [1 to 1_024] = 1,
            because "one instance needs only one partition";
        /// Maximum number of events of a partition that the source reads in advance. An event counts until it is
        /// settled, or until it has moved from memory to the store.
        prefetch: usize [1 to 1_000_000] = 4_000,
            because "a source of kind `amqp` has the same default";
        /// The place of the key, or several places; by default the attribute `partitionkey` or `subject`. Ordain uses
        /// the first place that is present and not empty. `*` makes the whole stream one key. A text with places in
        /// braces combines the values of these places into one key.
        key: Option<KeyLocation>;
        /// The place of the id; by default the attribute `id`. With `content`, Ordain computes the id from key, type
        /// and data. With `none`, which is valid only in `fifo` streams, each arriving event gets an id of its own, so
        /// that an event that arrives twice takes effect twice.
        id: Option<IdLocation>;
        /// The place of the sequence; by default the attribute `sequence`.
        sequence: Option<ValueLocation>;
        /// The place of the type; by default the attribute `type`.
        kind as "type": Option<ValueLocation>;
        /// The place of the time; by default the attribute `time`.
        time: Option<ValueLocation>;
    }
}

section! {
    /// `source = { kind = "stream" }`.
    pub struct StreamSourceConfig {
        /// Number of partitions that share the keys. The number cannot be changed while the store has data of the
        /// stream.
        partitions: u32 [1 to 1_024] = 1,
            because "one instance needs only one partition";
        /// Maximum number of events of a partition that the source reads in advance. An event counts until it is
        /// settled, or until it has moved from memory to the store.
        prefetch: usize [1 to 1_000_000] = 4_000,
            because "a source of kind `amqp` has the same default";
        /// Approximate maximum number of events of a partition that wait in the store. Beyond this number, the
        /// streams and producers that feed this stream wait.
        queue: u64 [1 to 1_000_000_000] = 100_000,
            because "100,000 events arrive in a minute at 1,600 events/s; an event that waits much longer than a \
                     minute costs the embedded store a second write to disk";
    }
}

section! {
    /// An exchange that feeds a stream's exchange.
    pub struct ExchangeBinding {
        /// The feeding exchange.
        exchange: AmqpName;
        /// Routing key pattern of the messages that the feeding exchange passes on.
        routing_key: AmqpName = "#",
            because "with the pattern `#`, a topic exchange passes on every message";
    }
}

/// Maximum number of elements of `bind`. At every start, Ordain declares one binding for each element.
const BIND_LIMIT: usize = 64;

impl SettingValue for Vec<ExchangeBinding> {
    const FORM: &'static str = "an array of at most 64 tables with `exchange` and `routing_key`";
    const ROWS: &'static [ReferenceRow] = ExchangeBinding::ROWS;

    fn read(reader: &mut ConfigReader<'_>, node: &SettingNode<'_>) -> Option<Self> {
        let elements = reader.elements(node, <Self as SettingValue>::FORM)?;
        if elements.len() > BIND_LIMIT {
            reader.report_wrong_form(node, <Self as SettingValue>::FORM);
            return None;
        }
        let found: Vec<_> =
            elements.iter().map(|element| ExchangeBinding::read(reader, element)).collect();
        found.into_iter().collect()
    }
}

/// For a file: after a crash, the source rereads at most `prefetch` plus this number of events. These are the
/// acknowledged events that are in no checkpoint, and the delivered events that are not acknowledged.
///
/// For a queue in the store, this number limits the acknowledged events that the source has not yet removed from the
/// queue. While the source removes these events, the partition can acknowledge up to `prefetch` further events. After a
/// crash, the source rereads all acknowledged events that are still in the queue.
pub const CHECKPOINT_INTERVAL_EVENTS: usize = 1_024;

/// The maximum number of events in a request over HTTP. A producer rarely sends more events in one request, and the
/// store can write this number of events within the time limit of a request.
pub const REQUEST_EVENTS_LIMIT: usize = 10_000;

/// The maximum number of events in a message of the broker. Before Ordain acknowledges the message, the outcome of each
/// of its events must be durable. A slow handler takes about a second for a thousand events.
pub const MESSAGE_EVENTS_LIMIT: usize = 1_000;

impl SourceConfig {
    /// Returns how many events may arrive again after a crash or a lost response. A `fifo` stream must remember at
    /// least this number of ids. `has_ingress` states whether a stream that reads from the broker also accepts events
    /// over HTTP.
    pub fn redelivery_limit(&self, has_ingress: bool) -> usize {
        let prefetch = self.prefetch();
        prefetch
            + match self {
                Self::File(_) => CHECKPOINT_INTERVAL_EVENTS,
                Self::Stream(_) => CHECKPOINT_INTERVAL_EVENTS + prefetch,
                Self::Http(_) => CHECKPOINT_INTERVAL_EVENTS + prefetch + REQUEST_EVENTS_LIMIT,
                Self::Amqp(_) if self.has_inbox(has_ingress) => REQUEST_EVENTS_LIMIT,
                Self::Amqp(_) => 0,
            }
    }

    /// Returns the places of the values of the source's events, in the form in which the source delivers the events.
    pub fn locations(&self) -> EventLocations {
        match self {
            Self::Amqp(source) => source.locations(),
            Self::Http(source) => EventLocations {
                key: source.key.clone(),
                id: source.id.clone(),
                sequence: source.sequence.clone(),
                kind: source.kind.clone(),
                time: source.time.clone(),
            },
            Self::File(source) => EventLocations {
                key: source.key.clone(),
                id: source.id.clone(),
                sequence: source.sequence.clone(),
                kind: source.kind.clone(),
                time: source.time.clone(),
            },
            Self::Stream(_) => EventLocations::DEFAULT,
        }
    }

    /// Returns the places of the values of events that arrive as CloudEvents over HTTP, or in the input of `ordain
    /// publish`. If a stream reads from the broker, this function uses a setting only if its places also exist in a
    /// CloudEvent. It does not use the format, because a format describes only messages.
    pub fn cloudevent_locations(&self) -> EventLocations {
        match self {
            Self::Amqp(source) => source.named_locations().in_every_form(),
            source => source.locations(),
        }
    }

    /// Returns whether the stream accepts events both from the broker and over HTTP.
    pub fn has_inbox(&self, has_ingress: bool) -> bool {
        has_ingress && matches!(self, Self::Amqp(AmqpSourceConfig { exchange: Some(_), .. }))
    }
}

/// The part of a message that an exchange hashes to choose the partition of the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HashedPart {
    /// The routing key.
    RoutingKey,
    /// The header with this name.
    Header(String),
    /// A property that RabbitMQ can hash.
    Property(MessageProperty),
}

impl AmqpSourceConfig {
    /// Returns the places of the values of a message. The settings take precedence over the places of the format.
    pub fn locations(&self) -> EventLocations {
        let named = self.named_locations();
        match self.format {
            Some(format) => format.complete(named),
            None => named,
        }
    }

    /// Returns the places that the settings name, without the places of the format.
    pub(super) fn named_locations(&self) -> EventLocations {
        EventLocations {
            key: (!self.key.is_routing_key()).then(|| self.key.clone()),
            id: self.id.clone(),
            sequence: self.sequence.clone(),
            kind: self.kind.clone(),
            time: self.time.clone(),
        }
    }

    /// Returns the part of a message by which the exchange divides the messages among several partitions. Returns
    /// `None` if RabbitMQ cannot hash the place of the key.
    pub fn hashed_part(&self) -> Option<HashedPart> {
        match self.key.single()? {
            Place::RoutingKey => Some(HashedPart::RoutingKey),
            Place::Header(name) => Some(HashedPart::Header(name.clone())),
            Place::Property(
                property @ (MessageProperty::MessageId
                | MessageProperty::CorrelationId
                | MessageProperty::Timestamp),
            ) => Some(HashedPart::Property(*property)),
            Place::Property(_) | Place::Attribute(_) | Place::Data(_) => None,
        }
    }
}
