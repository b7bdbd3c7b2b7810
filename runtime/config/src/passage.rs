//! Decides where messages that pass through the store go, and how they are numbered and limited there.
//! All publishers to one destination must use the same rules, so no other module may decide this.

use crate::{
    Config, ConfigError, FileOrStdio, LoadedConfig, ReplaySource, ResourceName, SinkConfig,
    SourceConfig, StreamConfig,
};
use ordain_store::{Destination, DestinationRules, NumberingSettings};
use ordain_util::whole::canonical_path;

/// The destination and the rules of messages that pass through the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumberingPolicy {
    /// The destination.
    pub destination: Destination,
    /// How the store numbers and limits the messages.
    pub rules: DestinationRules,
    /// Number of partitions of the destination stream; 1 for other destinations.
    pub partitions: u32,
}

impl NumberingPolicy {
    /// Exclusive upper bound of sequences from a producer: stores count exactly up to here, with room to
    /// continue the count.
    const SEQUENCE_LIMIT: u64 = 1 << 51;

    /// Returns an error text if a producer's sequence is out of range.
    pub fn sequence_error(first: u64, sequence: u64) -> Option<String> {
        let right = first..Self::SEQUENCE_LIMIT;
        (!right.contains(&sequence)).then(|| {
            format!(
                "sequence {sequence} is out of range: it must be from {first} (`first`) to {}",
                right.end - 1
            )
        })
    }

    /// Returns the passage of a sink; `None` if its messages do not pass through the store.
    pub fn for_sink(
        config: &Config,
        name: &ResourceName,
        sink: &SinkConfig,
        shards: u32,
    ) -> Option<Self> {
        match sink {
            SinkConfig::Amqp(sink) if sink.sequenced => {
                Some(Self::to_exchange(config, &sink.exchange.0))
            }
            SinkConfig::Stream(sink) => {
                let stream = config.streams.get(&sink.stream)?;
                Self::to_stream(&sink.stream, stream, sink.sequenced, shards)
            }
            SinkConfig::File(sink) if sink.sequenced => {
                let name = match &sink.path {
                    // Several sinks may write to standard output, each with numbers of its own.
                    FileOrStdio::Stdio => format!("-{name}").into(),
                    FileOrStdio::File(path) => canonical_path(path).display().to_string().into(),
                };
                Some(Self::numbered(Destination::File(name), NumberingSettings::default()))
            }
            SinkConfig::Amqp(_) | SinkConfig::File(_) => None,
        }
    }

    /// Returns the log in which the store keeps a stream's events for replay; `None` if the store may not
    /// keep them or is not one of the stream's replay sources.
    pub fn replay_log(name: &ResourceName, stream: &StreamConfig) -> Option<Destination> {
        if !stream.gap.replay.contains(&ReplaySource::Store) {
            return None;
        }
        match &stream.source {
            SourceConfig::Amqp(source) => {
                Some(Destination::Exchange(source.exchange.as_ref()?.0.as_str().into()))
            }
            SourceConfig::Stream(_) | SourceConfig::Http(_) => {
                Some(Destination::Stream(name.shared()))
            }
            SourceConfig::File(_) => None,
        }
    }

    /// Returns the passage to an exchange with numbers, as the streams of this configuration read it.
    pub fn to_exchange(config: &Config, exchange: &str) -> Self {
        let numbers = config.exchange_readers(exchange).next().map(|(_, stream)| numbers(stream));
        Self::numbered(Destination::Exchange(exchange.into()), numbers.unwrap_or_default())
    }

    /// Returns the passage for events that producers publish to an exchange. The streams that read the
    /// exchange must agree on the numbering.
    pub fn for_producers(loaded: &LoadedConfig, exchange: &str) -> Result<Self, ConfigError> {
        if let Some((name, setting, other)) = loaded.config.numbering_conflict(exchange) {
            let message = format!(
                "must be as in [streams.{other}] to accept events there: both streams read the exchange \
                 {exchange}, whose keys are counted once"
            );
            return Err(loaded.setting_error(&format!("streams.{name}.{setting}"), message));
        }
        Ok(Self::to_exchange(&loaded.config, exchange))
    }

    /// Returns the passage to a stream that reads its events from the store; `None` for other sources.
    pub fn to_stream(
        name: &ResourceName,
        stream: &StreamConfig,
        is_numbered: bool,
        shards: u32,
    ) -> Option<Self> {
        // The limit of the whole queue, divided among the shards.
        let queue = stream.source.queue_limit()?.div_ceil(u64::from(shards.max(1)));
        let numbers = is_numbered.then(|| numbers(stream));
        Some(Self {
            destination: Destination::Stream(name.shared()),
            rules: DestinationRules { numbering: numbers, queue_limit: Some(queue) },
            partitions: stream.source.partitions(),
        })
    }

    fn numbered(to: Destination, numbers: NumberingSettings) -> Self {
        Self {
            destination: to,
            rules: DestinationRules { numbering: Some(numbers), queue_limit: None },
            partitions: 1,
        }
    }
}

/// Returns how the keys of a stream are numbered.
fn numbers(stream: &StreamConfig) -> NumberingSettings {
    let key_ttl = stream.key_ttl.0.map_or(u64::MAX, |ttl| ttl.0);
    NumberingSettings {
        first: stream.first,
        // Events of a forgotten key must not be replayed to a new key of the same name.
        retain: stream.retain.0.min(stream.complete_ttl.0).min(key_ttl),
        retain_events: stream.retain_events,
        complete_ttl: stream.complete_ttl.0,
    }
}
