//! Finds the `sequenced` streams that read one exchange. If Ordain numbers the events of the exchange, it gives each
//! event one number for all these streams, so the streams must have equal settings for numbering.

use ordain_core::OrderingMode;

use super::{Config, ResourceName, SourceConfig, StreamConfig};

impl Config {
    /// Returns the `sequenced` streams that read an exchange.
    pub fn exchange_readers(
        &self,
        exchange: &str,
    ) -> impl Iterator<Item = (&ResourceName, &StreamConfig)> {
        self.streams.iter().filter(move |(_, stream)| {
            let SourceConfig::Amqp(source) = &stream.source else { return false };
            stream.ordering == OrderingMode::Sequenced
                && source.exchange.as_ref().is_some_and(|name| name.0 == exchange)
        })
    }

    /// Compares the settings for numbering of the `sequenced` streams that read an exchange. Returns two streams whose
    /// settings differ, and the first setting that differs; `None` if the settings of all these streams are equal. A
    /// conflict is an error only if Ordain numbers the events of the exchange.
    pub fn numbering_conflict(
        &self,
        exchange: &str,
    ) -> Option<(&ResourceName, &'static str, &ResourceName)> {
        let mut readers = self.exchange_readers(exchange);
        let (reference_name, reference) = readers.next()?;
        let places = reference.source.locations();
        readers.find_map(|(name, other)| {
            let differs = [
                ("first", reference.first != other.first),
                ("retain", reference.retain.0 != other.retain.0),
                ("retain_events", reference.retain_events != other.retain_events),
                ("complete_ttl", reference.complete_ttl.0 != other.complete_ttl.0),
                ("source.key", places.key != other.source.locations().key),
                ("source.sequence", places.sequence != other.source.locations().sequence),
            ];
            let (setting, _) = differs.into_iter().find(|(_, differs)| *differs)?;
            Some((name, setting, reference_name))
        })
    }
}
