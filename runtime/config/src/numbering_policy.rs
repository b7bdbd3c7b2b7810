//! Determines the numbering policy of messages that pass through the store: the destination of the messages, and
//! how the store numbers and limits them. All publishers to one destination must use the same rules, so no other
//! module may define such rules.

use std::sync::Arc;

use crate::{
    Config, ConfigError, FileOrStdio, LoadedConfig, ReplaySource, ResourceName, SinkConfig,
    SourceConfig, StreamConfig,
};
use ordain_store::{Destination, DestinationRules, NumberingSettings};
use ordain_util::canonical_path::canonical_path;

/// The numbering policy of messages that pass through the store: the destination of the messages, and the rules of the
/// destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumberingPolicy {
    /// The place to which the messages go: an exchange, a stream or a file.
    pub destination: Destination,
    /// The rules by which the store numbers and limits the messages.
    pub rules: DestinationRules,
    /// Number of partitions of the destination stream; 1 for other destinations.
    pub partitions: u32,
    /// The `sequenced` streams that read the destination; empty if the destination is a file, or if the store does not
    /// number the messages. A producer can number events itself and publish them without the store: to the exchange, or
    /// to a source that the stream had in an earlier configuration. The store finds the numbers of such events in the
    /// key records of these streams.
    pub readers: Vec<Arc<str>>,
}

impl NumberingPolicy {
    /// The exclusive upper bound of sequences from a producer. Every store can count exactly up to numbers far above
    /// this bound. After a producer's event with the highest allowed sequence, Ordain can therefore still number
    /// further events.
    const SEQUENCE_LIMIT: u64 = 1 << 51;

    /// Returns an error text if a producer's sequence is out of range. `first` is the lowest valid sequence.
    pub fn sequence_error(first: u64, sequence: u64) -> Option<String> {
        let right = first..Self::SEQUENCE_LIMIT;
        (!right.contains(&sequence)).then(|| {
            format!(
                "sequence {sequence} is out of range: it must be from {first} (`first`) to {}",
                right.end - 1
            )
        })
    }

    /// Returns the numbering policy of a sink; `None` if the messages of the sink do not pass through the store.
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
                    // Several sinks may write to standard output, and each sink has its own numbers.
                    FileOrStdio::Stdio => format!("-{name}").into(),
                    FileOrStdio::File(path) => canonical_path(path).display().to_string().into(),
                };
                Some(Self::numbered(Destination::File(name), NumberingSettings::default()))
            }
            SinkConfig::Amqp(_) | SinkConfig::File(_) => None,
        }
    }

    /// Returns the destination under which the store keeps a stream's events for replay. Returns `None` if the
    /// store keeps no events of the stream, or is not one of the stream's replay sources.
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

    /// Returns the numbering policy of an exchange, with the settings of the first `sequenced` stream that reads the
    /// exchange. If no such stream exists, returns a policy with default settings.
    pub fn to_exchange(config: &Config, exchange: &str) -> Self {
        let numbers = config.exchange_readers(exchange).next().map(|(_, stream)| numbers(stream));
        let readers = config.exchange_readers(exchange).map(|(name, _)| name.shared()).collect();
        let destination = Destination::Exchange(exchange.into());
        Self { readers, ..Self::numbered(destination, numbers.unwrap_or_default()) }
    }

    /// Returns the numbering policy of events that producers publish to an exchange. Returns an error if two
    /// `sequenced` streams that read the exchange have different settings for numbering.
    pub fn for_producers(loaded: &LoadedConfig, exchange: &str) -> Result<Self, ConfigError> {
        if let Some((name, setting, other)) = loaded.config.numbering_conflict(exchange) {
            let message = format!(
                "must have the same value as in [streams.{other}]. Both streams read the exchange {exchange}, and \
                 Ordain gives each event one number for both streams"
            );
            return Err(loaded.setting_error(&format!("streams.{name}.{setting}"), message));
        }
        Ok(Self::to_exchange(&loaded.config, exchange))
    }

    /// Returns the numbering policy of the queues that a stream has in the store; if the stream reads from the broker,
    /// these queues are the inbox. If `is_numbered` is `false`, the store does not number the events. Returns `None`
    /// for a stream that reads a file, because such a stream has no queue in the store.
    pub fn to_stream(
        name: &ResourceName,
        stream: &StreamConfig,
        is_numbered: bool,
        shards: u32,
    ) -> Option<Self> {
        // `queue_limit` applies to the whole queue of a partition, so each shard gets an equal part of the limit.
        let queue = stream.source.queue_limit()?.div_ceil(u64::from(shards.max(1)));
        let numbers = is_numbered.then(|| numbers(stream));
        Some(Self {
            destination: Destination::Stream(name.shared()),
            rules: DestinationRules { numbering: numbers, queue_limit: Some(queue) },
            partitions: stream.source.partitions(),
            readers: if is_numbered { vec![name.shared()] } else { Vec::new() },
        })
    }

    fn numbered(to: Destination, numbers: NumberingSettings) -> Self {
        Self {
            destination: to,
            rules: DestinationRules { numbering: Some(numbers), queue_limit: None },
            partitions: 1,
            readers: Vec::new(),
        }
    }
}

/// Returns the rules by which the store numbers and retains the events of each key of a stream.
fn numbers(stream: &StreamConfig) -> NumberingSettings {
    let key_ttl = stream.key_ttl.0.map_or(u64::MAX, |ttl| ttl.0);
    NumberingSettings {
        first: stream.first.lowest(),
        // The store must not replay events of a forgotten key to a new key of the same name.
        retain: stream.retain.0.min(stream.complete_ttl.0).min(key_ttl),
        retain_events: stream.retain_events,
        complete_ttl: stream.complete_ttl.0,
    }
}
