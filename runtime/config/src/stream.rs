//! `[streams.NAME]`: a stream, its source and its handler.

use ordain_core::{BackoffBounds, ExhaustedPolicy, OrderingMode, OverflowPolicy, TypePattern};

use super::process::OffOrMillis;
use super::replay::ReplaySource;
use super::scalar::{Scalar, choice};
use super::section::section;
use super::source::SourceConfig;
use super::text::ResourceName;
use super::units::{Millis, Percent};

section! {
    /// `[streams.NAME]`: the settings of one stream.
    pub struct StreamConfig {
        /// Name of the handler, without its version. The files of the handler are `<handler>@<version>.wasm` or
        /// `<handler>.wasm` in the folder `plugins.dir`.
        handler: ResourceName;
        /// How the events of a key get their numbers: from the producer or the store, before they arrive (`sequenced`),
        /// or from Ordain, in the order of delivery (`fifo`).
        ordering: OrderingMode = "sequenced",
            because "only numbers that events have before they arrive can show that an event is missing";
        /// The source of the events.
        source: SourceConfig;
        /// Types of the events that the handler executes; by default all types. Each `*` in a pattern matches any
        /// characters, or none; upper and lower case differ. Ordain acknowledges an event of another type, counts the
        /// event, and does not call the handler. A change of this setting applies from the next start, to all events
        /// that are not settled by then.
        types: Option<Vec<TypePattern>>;
        /// Sink that receives the events of other types than `types`. Without this setting, Ordain keeps no copy of
        /// these events.
        other_types: Option<ResourceName>;
        /// Sequence of a key's first event, in a `sequenced` stream. With `any`, a key without a record begins at the
        /// sequence of the first event that arrives. If an event with a lower sequence arrives later, it becomes a dead
        /// letter `late`.
        first: FirstSequence = 1,
            because "most producers count from 1, and Ordain can detect a missing first event of a key only if the \
                     first sequence is known";
        /// How the stream treats a missing event.
        gap: GapConfig = {},
            because "a key waits while Ordain requests the missing event, and is parked if no request succeeds";
        /// How the stream treats a failing handler.
        retry: RetryConfig = {},
            because "an event is retried for a while, and then the key is parked";
        /// How long Ordain remembers a completed key, so that it recognises repeated events. If Ordain numbers the
        /// events of the key, Ordain also remembers the highest number of the key for this time.
        complete_ttl: Millis ["1s" to "3650d"] = "7d",
            because "repeats usually arrive within a week, and a completed key takes a few hundred bytes";
        /// Time after the last write of an idle key until Ordain forgets the key. A key is idle if it is not completed
        /// (see `complete_ttl`), is not parked, and waits for neither a retry nor a missing event. The store must also
        /// have no event of the key that may still take effect.
        key_ttl: OffOrMillis ["1m" to "3650d"] = "off",
            because "a key that Ordain has forgotten starts again, without its state, when another event of the key \
                     arrives";
        /// Number of events that a blocked key may have in memory. If the key has more events, its events move to the
        /// store.
        lane_buffer: usize [1 to 100_000] = 256,
            because "with this limit, a blocked key has only a small part of the prefetched events in memory";
        /// How long an event may wait in memory before the events of its key move to the store.
        spill_after: Millis ["1ms" to "10m"] = "5s",
            because "most gaps close within five seconds, and RabbitMQ's `consumer_timeout` is much longer";
        /// Maximum number of events of one key that may wait in the store.
        spill_limit: u64 [1 to 1_000_000_000] = 1_000_000,
            because "a million events of 1 KiB take about 1 GiB, and one key should not fill a disk unnoticed";
        /// How the stream treats an event beyond `spill_limit`. With `pause`, the event stays unacknowledged, and a
        /// partition with `prefetch` unacknowledged events reads no further events. With `dead-letter`, the event is
        /// dead-lettered.
        overflow: OverflowPolicy = "pause",
            because "an event should be dead-lettered only if the configuration requests it";
        /// Maximum number of events of a key in one turn. One worker executes the events of a turn back to back.
        quantum: usize [1 to 4_096] = 64,
            because "64 events share the fixed cost of one turn, and a turn of a fast handler delays other keys by \
                     only 1 ms";
        /// Number of ids that a `fifo` stream remembers for each key. If the configuration leaves out this setting,
        /// Ordain raises the default to the number of events that the source can deliver again after a crash.
        id_window: usize [1 to 1_000_000] = 4_000,
            because "after a crash, the source can deliver the prefetched events again";
        /// How long a key remembers the id of an event after the event is settled. The actual time can be up to a
        /// quarter longer. A repeat after that time counts as a new event.
        ///
        /// These ids never expire:
        /// - the newest 4,000 ids of a key, or the newest `id_window` ids if that is fewer;
        /// - the ids of events that the source can deliver again after a crash;
        /// - all ids within `id_window`, if the file has `[ingress]`, and the source is of kind `amqp` and has an
        ///   exchange.
        id_ttl: Millis ["1m" to "365d"] = "24h",
            because "producers usually repeat an event within a day";
        /// Number of content digests that the store keeps for each key, to distinguish a repeat from a different event
        /// with the same sequence.
        digests: usize [0 to 4_096] = 64,
            because "a digest takes four bytes, and a repeat usually arrives soon after the event";
        /// How long Ordain keeps, for replay, the events that it numbered or accepted itself. For the same time, the
        /// store recognises an event that a producer publishes again: by its sequence or, if the event has none, by its
        /// id.
        ///
        /// If `complete_ttl` or `key_ttl` is shorter than this time, the shorter time applies, because a key may begin
        /// anew after that time.
        ///
        /// Programs that number events for this stream, such as the command `publish`, apply this setting and the
        /// stream's `first`, `retain_events` and `complete_ttl`.
        retain: Millis ["1s" to "365d"] = "24h",
            because "a consumer that lost an event requests it within a day";
        /// Maximum number of events of a key that the store keeps for replay.
        retain_events: u64 [1 to 10_000_000] = 10_000,
            because "by default, an event may be at most 10,000 beyond the first missing sequence of its key \
                     (`gap.max_width`), so the store can replay all events of such a gap";
        /// Sink that receives a copy of every dead letter, with the reason in extension attributes.
        dead_letter: Option<ResourceName>;
        /// Maximum number of concurrent turns of this stream at the workers. Default: 256 for each worker.
        concurrency: Option<usize> [1 to 65_536],
            because "workers receive turns in batches, and no worker should wait for the next batch";
        /// Number of waiting events for which one instance is enough.
        ///
        /// Ordain divides the number of events that wait in the broker or in the store by this value. An autoscaler can
        /// read the result.
        lag_per_instance: u64 [1 to 1_000_000_000] = 10_000,
            because "most handlers process 10,000 events in a second, and a smaller backlog does not justify another \
                     process";
        /// Share of the keys on which Ordain tests a new version of the handler.
        canary: Option<Percent>;
        /// How long Ordain tests a new version before the version executes the events of all keys.
        bake: Option<Millis> ["1s" to "30d"];
    }
}

section! {
    /// Settings for missing events.
    pub struct GapConfig {
        /// Time from the arrival of the first event after a gap to the first round of requests for the missing events.
        timeout: Millis ["1ms" to "7d"] = "2s",
            because "an event that is only delayed, not lost, usually arrives within two seconds";
        /// Number of rounds of requests for a missing event. After the last round, `on_exhausted` applies.
        attempts: u32 [1 to 1_000] = 5,
            because "with the backoff, five rounds take one to three seconds, so the rounds also find an event that \
                     the replay source receives a little late";
        /// Delay between rounds: a random value between the lower bound and a ceiling that doubles with each
        /// round, up to the upper bound.
        backoff: BackoffBounds ["1ms..1ms" to "7d..7d"] = "200ms..5s",
            because "the first rounds are quick, and the sources are never overloaded";
        /// Sources of missing events, in this order: the store for retained events, then HTTP servers.
        replay: Vec<ReplaySource> = ["store"],
            because "the store needs no further service";
        /// How far an event may be beyond the first missing sequence. Ordain dead-letters an event that is farther
        /// ahead; the key settles this event after all earlier events.
        max_width: u64 [1 to 1_000_000_000] = 10_000,
            because "a larger jump of the sequences is usually an error of the producer, and the key would wait for \
                     all sequences in between";
        /// Action after the last round: park the key, skip the missing events, or wait for them. If a gap is wider than
        /// 100 times `max_width`, `skip` parks the key.
        on_exhausted: GapExhausted = "park",
            because "the stream promises order, so an operator must decide";
        /// If an incomplete key gets no event for this time, Ordain requests the next event of the key once.
        ///
        /// The request finds a lost event even if no later event shows the gap. If a replay server is too busy for the
        /// request, Ordain requests the event again after the same time.
        tail: OffOrMillis ["1s" to "365d"] = "off",
            because "the usual time between two events of a key depends only on the producer, so no default fits all \
                     streams";
    }
}

section! {
    /// Settings for failing handlers.
    pub struct RetryConfig {
        /// Maximum number of attempts of one event, including the first attempt. This limit applies if the handler
        /// requests a retry or exceeds the time limit. After any other failure, Ordain tries the event only once more.
        attempts: u32 [1 to 1_000_000] = 5,
            because "with the backoff, five attempts take about a second, within which a short disturbance passes";
        /// Delay between attempts: a random value between the lower bound and a ceiling that doubles with each
        /// attempt, up to the upper bound.
        backoff: BackoffBounds ["1ms..1ms" to "7d..7d"] = "100ms..30s",
            because "the first attempts are quick, and an unavailable service is never overloaded";
        /// Action after the last attempt: park the key, or dead-letter the event and continue with the next event.
        on_exhausted: RetryExhausted = "park",
            because "the stream promises order, so an operator must decide";
        /// If true, a new version of the handler resumes the keys that a failure of the handler has parked.
        on_new_version: bool = true,
            because "a new version usually contains the fix";
    }
}

/// The sequence at which each key of a `sequenced` stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstSequence {
    /// Each key begins at this sequence.
    Number(u64),
    /// A key begins at the sequence of the first event that arrives.
    Any,
}

impl FirstSequence {
    /// Returns the lowest valid sequence.
    pub fn lowest(self) -> u64 {
        match self {
            Self::Number(first) => first,
            Self::Any => 0,
        }
    }
}

impl Scalar for FirstSequence {
    const FORM: &'static str = "0, 1 or \"any\"";
    const ALLOWS_BARE: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "0" => Ok(Self::Number(0)),
            "1" => Ok(Self::Number(1)),
            "any" => Ok(Self::Any),
            _ => Err(String::new()),
        }
    }
}

/// Action after the last round of requests for a missing event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GapExhausted(pub ExhaustedPolicy);

/// Action after the last attempt of a failing event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryExhausted(pub ExhaustedPolicy);

choice!(OrderingMode { "sequenced" => OrderingMode::Sequenced, "fifo" => OrderingMode::Fifo, });
choice!(OverflowPolicy { "pause" => OverflowPolicy::Pause, "dead-letter" => OverflowPolicy::DeadLetter, });
choice!(GapExhausted {
    "park" => GapExhausted(ExhaustedPolicy::Park),
    "skip" => GapExhausted(ExhaustedPolicy::Skip),
    "wait" => GapExhausted(ExhaustedPolicy::Wait),
});
choice!(RetryExhausted {
    "park" => RetryExhausted(ExhaustedPolicy::Park),
    "skip" => RetryExhausted(ExhaustedPolicy::Skip),
});
