//! The routes on which events reach the handler whose effects a round checks.

use std::sync::Arc;

use anyhow::Result;
use ordain_tests::log::{self, Line};
use ordain_tests::rig::Rig;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

/// The number of partitions of each stream, in rounds that choose no other number. `Rig::until_declared` waits for the
/// queues of one partition or of exactly four.
pub(crate) const PARTITIONS: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Route {
    /// The events arrive over HTTP, and wait in the queues of the store.
    #[default]
    Http,
    /// The events arrive over HTTP, and the inbox publishes them to the exchange of the stream.
    Inbox,
    /// The events arrive over HTTP at a first stream. The messages of this stream's handler are the events of a second
    /// stream. If `is_numbered` is true, the sink between the two streams numbers the messages.
    Chain { is_numbered: bool },
    /// `ordain publish` publishes the lines of a file into the queue of the stream.
    File,
    /// `ordain publish` publishes the lines of a file to the exchange of the stream.
    FileToExchange,
    /// A client of the broker publishes the events to the exchange of the stream.
    Exchange,
}

impl Route {
    pub(crate) fn draw(random: &mut ChaCha8Rng) -> Self {
        match random.random_range(0..6) {
            0 => Self::Http,
            1 => Self::Inbox,
            2 => Self::Chain { is_numbered: random.random() },
            3 => Self::File,
            4 => Self::FileToExchange,
            _ => Self::Exchange,
        }
    }

    /// Draws at random one of the routes on which `ordain publish` does not publish the events.
    pub(crate) fn draw_without_file(random: &mut ChaCha8Rng) -> Self {
        match random.random_range(0..4) {
            0 => Self::Http,
            1 => Self::Inbox,
            2 => Self::Chain { is_numbered: random.random() },
            _ => Self::Exchange,
        }
    }

    /// Starts the broker of the route. Returns `None` if the events do not pass through a broker.
    pub(crate) fn start_broker(self) -> Result<Option<Arc<Rig>>> {
        if self.uses_broker() { Ok(Some(Arc::new(Rig::new()?))) } else { Ok(None) }
    }

    pub(crate) fn uses_broker(self) -> bool {
        matches!(self, Self::Inbox | Self::FileToExchange | Self::Exchange)
    }

    pub(crate) fn is_file(self) -> bool {
        matches!(self, Self::File | Self::FileToExchange)
    }

    /// Returns the stream that executes the events with the handler `tally`.
    pub(crate) fn last_stream(self) -> &'static str {
        if matches!(self, Self::Chain { .. }) { "second" } else { "cases" }
    }

    /// Returns a prefetch that makes many events wait. With a lower prefetch, the waiting events would take effect too
    /// late for the round.
    pub(crate) fn low_prefetch(self) -> u32 {
        match self {
            Self::Http | Self::File => 4,
            Self::Chain { .. } => 16,
            Self::Inbox | Self::FileToExchange | Self::Exchange => 40,
        }
    }

    /// Returns an event as a line of JSON. On the routes of `ordain publish`, the line has no sequence, because the
    /// store numbers the events of a file. On all other routes, `number` is the event's sequence.
    pub(crate) fn event(self, key: &str, number: u64) -> Result<String> {
        let event = log::line(key, number, &self.data(number));
        if self.is_file() { Ok(log::unnumbered(&[event])?.concat()) } else { Ok(event) }
    }

    fn data(self, number: u64) -> Value {
        match self {
            Self::Chain { .. } => json!({ "do": "emit", "type": number.to_string() }),
            _ => json!({ "n": number }),
        }
    }

    /// Returns the event as the handler `tally` receives it. The sequence is left at 0, and the caller sets it.
    pub(crate) fn received(self, key: &str, number: u64) -> Line {
        let (kind, data) = match self {
            Self::Chain { .. } => (number.to_string(), String::new()),
            _ => ("test".to_owned(), self.data(number).to_string()),
        };
        Line { key: key.to_owned(), sequence: 0, kind, data, end: false }
    }

    pub(crate) fn config(
        self,
        ordering: &str,
        stream: &str,
        partitions: u32,
        prefetch: u32,
        port: u16,
    ) -> String {
        let size = format!("partitions = {partitions}, prefetch = {prefetch}");
        let (handler, source) = match self {
            Self::Http => ("tally", "kind = \"http\""),
            Self::Chain { .. } => ("faulty", "kind = \"http\""),
            Self::File => ("tally", "kind = \"stream\""),
            Self::Inbox | Self::FileToExchange | Self::Exchange => {
                ("tally", "kind = \"amqp\", exchange = \"cases\", queue = \"cases\"")
            }
        };
        // `ordain publish` gives a lost number only to an event whose content the stream still knows.
        let digests = if self.is_file() { "digests = 4096\n" } else { "" };
        let mut text = format!(
            "[streams.cases]\nhandler = \"{handler}\"\nordering = \"{ordering}\"\n{digests}{stream}\n\
             source = {{ {source}, {size} }}\n"
        );
        if let Self::Chain { is_numbered } = self {
            let second = if is_numbered { "sequenced" } else { "fifo" };
            text += &format!(
                "[streams.second]\nhandler = \"tally\"\nordering = \"{second}\"\n\
                 source = {{ kind = \"stream\", {size} }}\n\
                 [sinks.faulty]\nkind = \"stream\"\nstream = \"second\"\nsequenced = {is_numbered}\n"
            );
        }
        if matches!(self, Self::Http | Self::Inbox | Self::Chain { .. }) {
            text += &format!("[ingress]\nlisten = \"127.0.0.1:{port}\"\n");
        }
        text
    }
}
