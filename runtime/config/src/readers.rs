//! Streams that read one exchange: who numbers its keys counts them once for all of them.

use ordain_core::Ordering;

use super::{Config, Name, Source, Stream};

impl Config {
    /// The sequenced streams that read an exchange.
    pub fn readers(&self, exchange: &str) -> impl Iterator<Item = (&Name, &Stream)> {
        self.streams.iter().filter(move |(_, stream)| {
            let Source::Amqp(source) = &stream.source else { return false };
            stream.ordering == Ordering::Sequenced
                && source.exchange.as_ref().is_some_and(|it| it.0 == exchange)
        })
    }

    /// A stream that reads an exchange, and the setting by which it counts otherwise than another one that
    /// does: their keys are counted together.
    pub fn counts_otherwise(&self, exchange: &str) -> Option<(&Name, &'static str, &Name)> {
        let mut readers = self.readers(exchange);
        let (first, one) = readers.next()?;
        readers.find_map(|(name, other)| {
            let differs = [
                ("first", one.first != other.first),
                ("retain", one.retain.0 != other.retain.0),
                ("retain_events", one.retain_events != other.retain_events),
                ("complete_ttl", one.complete_ttl.0 != other.complete_ttl.0),
            ];
            let (setting, _) = differs.into_iter().find(|(_, differs)| *differs)?;
            Some((name, setting, first))
        })
    }
}
