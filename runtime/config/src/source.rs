//! `[streams.NAME] source`: where events come from.

use super::reader::{Node, Reader, Row, Setting};
use super::scalar::Scalar;
use super::section::{kinds, section};
use super::text::{Place, Text};

kinds! {
    /// Where the events of a stream come from.
    pub enum Source {
        /// A queue of the broker, or several that share the keys.
        "amqp" => Amqp(AmqpSource),
        /// Requests to `[ingress]`.
        "http" => Http(HttpSource),
        /// Lines of a file or of standard input, each a CloudEvent in JSON.
        "file" => File(FileSource),
        /// Messages of sinks of kind `stream`, and what `ordain publish` puts there.
        "stream" => Stream(StreamSource),
    }
}

impl Source {
    /// The number of partitions.
    pub fn partitions(&self) -> u32 {
        match self {
            Self::Amqp(source) => source.partitions,
            Self::Http(source) => source.partitions,
            Self::File(source) => source.partitions,
            Self::Stream(source) => source.partitions,
        }
    }

    /// How many events of a partition may wait in the store, where they come from there.
    pub fn queue(&self) -> Option<u64> {
        match self {
            Self::Amqp(source) => Some(source.inbox),
            Self::Http(source) => Some(source.queue),
            Self::Stream(source) => Some(source.queue),
            Self::File(_) => None,
        }
    }

    /// Deliveries of a partition taken and not yet acknowledged.
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
    pub struct AmqpSource {
        /// The exchange that spreads the events over the queues. Needed with more than one
        /// partition or with `bind`.
        exchange: Option<Text>;
        /// The queue; with more than one partition `{queue}.0` and so on.
        queue: Text;
        /// Queues that share the keys. It cannot be changed while the store has anything of the
        /// stream.
        partitions: u32 [1 to 1_024] = 1,
            because "one needs no plugin in the broker";
        /// Deliveries of a partition taken and not yet acknowledged.
        prefetch: usize [1 to 65_535] = 4_000,
            because "about 50 ms of a queue's full speed, which is more than a commit takes";
        /// Events of a partition that came over HTTP and wait in the store, about; beyond, producers are sent
        /// away for a while.
        inbox: u64 [1 to 1_000_000_000] = 100_000,
            because "a broker may be away for a while, and a producer that is told so can wait";
        /// Where the key is found.
        key: KeyFrom = "routing-key",
            because "the exchange spreads by it, so all events of a key meet in one partition";
        /// Exchanges that feed this one.
        bind: Vec<Bind> = [],
            because "what feeds it may as well be bound outside";
        /// Whether to make the exchange, queues and bindings that are not there.
        declare: bool = true,
            because "a first start should need no preparation";
    }
}

section! {
    /// `source = { kind = "http" }`.
    pub struct HttpSource {
        /// Parts that share the keys. It cannot be changed while the store has anything of the
        /// stream.
        partitions: u32 [1 to 1_024] = 1,
            because "one instance needs no more";
        /// Events of a partition taken and not yet settled or held.
        prefetch: usize [1 to 1_000_000] = 4_000,
            because "the same window as with a broker";
        /// Events of a partition that wait in the store, about; beyond, producers are sent away for a while.
        queue: u64 [1 to 1_000_000_000] = 100_000,
            because "a stream may be behind for a minute, and a producer that is told so can wait";
    }
}

section! {
    /// `source = { kind = "file" }`.
    pub struct FileSource {
        /// The file, or `-` for standard input, which cannot resume after a restart.
        path: Place;
        /// Parts that share the keys. It cannot be changed while the store has anything of the
        /// stream.
        partitions: u32 [1 to 1_024] = 1,
            because "one instance needs no more";
        /// Events of a partition read and not yet settled or held.
        prefetch: usize [1 to 1_000_000] = 4_000,
            because "the same window as with a broker";
    }
}

section! {
    /// `source = { kind = "stream" }`.
    pub struct StreamSource {
        /// Parts that share the keys. It cannot be changed while the store has anything of the
        /// stream.
        partitions: u32 [1 to 1_024] = 1,
            because "one instance needs no more";
        /// Events of a partition taken and not yet settled or held.
        prefetch: usize [1 to 1_000_000] = 4_000,
            because "the same window as with a broker";
        /// Events of a partition that wait in the store, about; beyond, what feeds it waits.
        queue: u64 [1 to 1_000_000_000] = 100_000,
            because "a stage may be behind for a minute, and no more is written twice than needed";
    }
}

section! {
    /// An exchange that feeds a stream's exchange.
    pub struct Bind {
        /// The feeding exchange.
        exchange: Text;
        /// What it passes on.
        routing_key: Text = "#",
            because "everything, on a topic exchange";
    }
}

/// Feeding exchanges at most: each is a binding to make at start.
const BIND_LIMIT: usize = 64;

impl Setting for Vec<Bind> {
    const FORM: &'static str = "an array of at most 64 tables with `exchange` and `routing_key`";
    const ROWS: &'static [Row] = Bind::ROWS;

    fn read(reader: &mut Reader<'_>, node: &Node<'_>) -> Option<Self> {
        let elements = reader.elements(node, <Self as Setting>::FORM)?;
        if elements.len() > BIND_LIMIT {
            reader.refuse(node, <Self as Setting>::FORM);
            return None;
        }
        let found: Vec<_> = elements.iter().map(|it| Bind::read(reader, it)).collect();
        found.into_iter().collect()
    }
}

/// Where the key of a delivery is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyFrom {
    /// Its routing key.
    RoutingKey,
    /// The header of this name.
    Header(String),
}

impl Scalar for KeyFrom {
    const FORM: &'static str = "\"routing-key\" or \"header:NAME\"";

    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "routing-key" => Ok(Self::RoutingKey),
            Some(("header", name)) if Text::parse(name).is_ok() => {
                Ok(Self::Header(name.to_owned()))
            }
            _ => Err(String::new()),
        }
    }
}

/// A file's checkpoint is written at least after so many events: after a crash they are read
/// again, on top of the prefetch window. Of a queue in the store as many may be there again, and
/// another window of what was acknowledged while others were removed.
pub const CHECKPOINT_EVENTS: usize = 1_024;

/// Events of a request over HTTP: as many as a producer gathers in a moment, and few enough that one
/// request is done in time.
pub const REQUEST_EVENTS: usize = 10_000;

impl Source {
    /// Events that a crash or a lost answer can bring again, where a stream of the broker takes events over
    /// HTTP as well or does not. A `fifo` stream must remember as many ids.
    pub fn repeats(&self, has_ingress: bool) -> usize {
        let prefetch = self.prefetch();
        prefetch
            + match self {
                Self::File(_) => CHECKPOINT_EVENTS,
                Self::Stream(_) => CHECKPOINT_EVENTS + prefetch,
                Self::Http(_) => CHECKPOINT_EVENTS + prefetch + REQUEST_EVENTS,
                Self::Amqp(_) if self.has_inbox(has_ingress) => REQUEST_EVENTS,
                Self::Amqp(_) => 0,
            }
    }

    /// Whether the stream takes events over HTTP beside those of the broker.
    pub fn has_inbox(&self, has_ingress: bool) -> bool {
        has_ingress && matches!(self, Self::Amqp(AmqpSource { exchange: Some(_), .. }))
    }
}
