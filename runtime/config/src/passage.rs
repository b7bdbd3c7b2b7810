//! How messages pass through the store before they go on: where they go, and what is done with them. All
//! who give messages to the same destination must do the same with them, so this is said here only.

use crate::{Config, ConfigError, Loaded, Name, Place, Replay, Sink, Source, Stream};
use ordain_store::{Destination, Numbers, Rules};
use ordain_util::whole::whole;

/// Where messages go that pass through the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    /// What they are numbered for.
    pub to: Destination,
    /// What is done with them.
    pub rules: Rules,
    /// Parts of the stream that share its keys; 1 where it is none.
    pub partitions: u32,
}

impl Passage {
    /// Sequences that a producer may give end before this: stores count exactly so far, and then there is
    /// room.
    const SEQUENCE_LIMIT: u64 = 1 << 51;

    /// What is wrong with a sequence that a producer gives.
    pub fn wrong(first: u64, sequence: u64) -> Option<String> {
        let right = first..Self::SEQUENCE_LIMIT;
        (!right.contains(&sequence)).then(|| {
            format!("sequence {sequence}: {first} to {} are right (`first`)", right.end - 1)
        })
    }

    /// Of a sink, if its messages pass through the store.
    pub fn of_sink(config: &Config, name: &Name, sink: &Sink, shards: u32) -> Option<Self> {
        match sink {
            Sink::Amqp(sink) if sink.sequenced => Some(Self::to_exchange(config, &sink.exchange.0)),
            Sink::Stream(sink) => {
                let stream = config.streams.get(&sink.stream)?;
                Self::to_stream(&sink.stream, stream, sink.sequenced, shards)
            }
            Sink::File(sink) if sink.sequenced => {
                let name = match &sink.path {
                    // Several may write there, each with numbers of its own.
                    Place::Standard => format!("-{name}").into(),
                    Place::File(path) => whole(path).display().to_string().into(),
                };
                Some(Self::numbered(Destination::File(name), Numbers::default()))
            }
            Sink::Amqp(_) | Sink::File(_) => None,
        }
    }

    /// The log in which the store keeps a stream's events for replay, if it may keep them and is to be
    /// asked for them.
    pub fn log_of(name: &Name, stream: &Stream) -> Option<Destination> {
        if !stream.gap.replay.contains(&Replay::Store) {
            return None;
        }
        match &stream.source {
            Source::Amqp(source) => {
                Some(Destination::Exchange(source.exchange.as_ref()?.0.as_str().into()))
            }
            Source::Stream(_) | Source::Http(_) => Some(Destination::Stream(name.shared())),
            Source::File(_) => None,
        }
    }

    /// To an exchange, with numbers: as the streams say that read it here.
    pub fn to_exchange(config: &Config, exchange: &str) -> Self {
        let numbers = config.readers(exchange).next().map(|(_, stream)| numbers(stream));
        Self::numbered(Destination::Exchange(exchange.into()), numbers.unwrap_or_default())
    }

    /// What producers give an exchange. The streams that read it here must agree how.
    pub fn of_producers(loaded: &Loaded, exchange: &str) -> Result<Self, ConfigError> {
        if let Some((name, setting, other)) = loaded.config.counts_otherwise(exchange) {
            let message = format!(
                "must be as in [streams.{other}] to take events there: both read the exchange {exchange}, \
                 whose keys are counted once"
            );
            return Err(loaded.error(&format!("streams.{name}.{setting}"), message));
        }
        Ok(Self::to_exchange(&loaded.config, exchange))
    }

    /// To a stream that takes its events from the store; `None` where it has another source.
    pub fn to_stream(name: &Name, stream: &Stream, is_numbered: bool, shards: u32) -> Option<Self> {
        // As many as may wait in one shard, where so many may in all.
        let queue = stream.source.queue()?.div_ceil(u64::from(shards.max(1)));
        let numbers = is_numbered.then(|| numbers(stream));
        Some(Self {
            to: Destination::Stream(name.shared()),
            rules: Rules { numbers, queue: Some(queue) },
            partitions: stream.source.partitions(),
        })
    }

    fn numbered(to: Destination, numbers: Numbers) -> Self {
        Self { to, rules: Rules { numbers: Some(numbers), queue: None }, partitions: 1 }
    }
}

/// How a stream's keys are numbered.
fn numbers(stream: &Stream) -> Numbers {
    let key_ttl = stream.key_ttl.0.map_or(u64::MAX, |it| it.0);
    Numbers {
        first: stream.first,
        // What a key had in an earlier life is nothing of a new one.
        retain: stream.retain.0.min(stream.complete_ttl.0).min(key_ttl),
        retain_events: stream.retain_events,
        complete_ttl: stream.complete_ttl.0,
    }
}
