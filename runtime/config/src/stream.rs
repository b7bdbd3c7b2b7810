//! `[streams.NAME]`: a stream, its source and its handler.

use ordain_core::{BackoffBounds, ExhaustedPolicy, OrderingMode, OverflowPolicy};

use super::process::OffOrMillis;
use super::replay::ReplaySource;
use super::scalar::choice;
use super::section::section;
use super::source::SourceConfig;
use super::text::ResourceName;
use super::units::{Millis, Percent};

section! {
    /// A stream.
    pub struct StreamConfig {
        /// Name of the handler: `<handler>@<version>.wasm` in the folder of plugins.
        handler: ResourceName;
        /// Source of the numbers within a key: the producer, or Ordain in the order of delivery.
        ordering: OrderingMode = "sequenced",
            because "only the producer's numbers show that an event is missing";
        /// Where the events come from.
        source: SourceConfig;
        /// Sequence of a key's first event, in a `sequenced` stream.
        first: u64 [0 to 1] = 1,
            because "most producers count from 1";
        /// How the stream treats a missing event.
        gap: GapConfig = {},
            because "the key waits for a missing event, requests it, and is then parked";
        /// How the stream treats a failing handler.
        retry: RetryConfig = {},
            because "an event is retried for a while, and then the key is parked";
        /// How long a completed key is remembered, so that repeated events are recognized; and how long its
        /// count is remembered if Ordain numbers its events.
        complete_ttl: Millis ["1s" to "3650d"] = "7d",
            because "it is longer than any usual redelivery, and a key takes some hundred bytes";
        /// How long after its last write a key is forgotten, complete or not.
        key_ttl: OffOrMillis ["1m" to "3650d"] = "off",
            because "a forgotten key that receives another event would start again";
        /// Number of events of a blocked key that stay in memory. Further events move to the store.
        lane_buffer: usize [1 to 100_000] = 256,
            because "a blocked key then holds a small part of the prefetch window";
        /// How long an event may wait in memory before the events of its key move to the store.
        spill_after: Millis ["1ms" to "10m"] = "5s",
            because "most gaps close earlier, and the delivery timeout of a broker is much longer";
        /// Number of events of one key that may wait in the store.
        spill_limit: u64 [1 to 1_000_000_000] = 1_000_000,
            because "events of 1 KiB take about 1 GiB, and one key should not fill a disk unnoticed";
        /// How the stream treats an event beyond `spill_limit`: reading pauses, or the event is dead-lettered.
        overflow: OverflowPolicy = "pause",
            because "an event should not be dead-lettered unless the configuration requests it";
        /// Number of events of a key in one turn, before other keys get a turn.
        quantum: usize [1 to 4_096] = 64,
            because "it spreads the cost of a turn, and other keys wait for at most a millisecond";
        /// Number of ids that a `fifo` stream remembers for each key. The default grows with the prefetch.
        id_window: usize [1 to 1_000_000] = 4_000,
            because "a crash can repeat the events of the prefetch window";
        /// How long a key remembers an id after its event has settled, or up to a quarter longer; a later repeat
        /// is a new event. Ids that a crash can redeliver, and the newest 4,000, never expire. With `[ingress]`
        /// beside a broker, no id within `id_window` expires.
        id_ttl: Millis ["1m" to "365d"] = "24h",
            because "a producer that repeats an event does so within a day";
        /// Number of content digests that the store keeps for each key, to distinguish a repeat from a different event
        /// with the same sequence.
        digests: usize [0 to 4_096] = 64,
            because "a digest takes four bytes, and repeats arrive soon";
        /// How long events that Ordain itself numbered or accepted are kept for replay, and how long a repeated
        /// publish of a producer is recognized by its id. Each process that numbers events for this stream uses
        /// this setting, `first`, `retain_events` and `complete_ttl`. The time is at most `complete_ttl`, after
        /// which a key that has ended may begin again.
        retain: Millis ["1s" to "365d"] = "24h",
            because "a consumer that lost an event requests it within a day";
        /// Number of events of a key that the store keeps for replay.
        retain_events: u64 [1 to 10_000_000] = 10_000,
            because "it is the widest gap that a key waits for";
        /// Sink that also receives every dead letter, with the reason in extension attributes.
        dead_letter: Option<ResourceName>;
        /// Number of concurrent turns of this stream at the workers. Default: 256 for each worker.
        concurrency: Option<usize> [1 to 65_536],
            because "workers receive turns in batches, and no worker should wait for the next batch";
        /// Number of events waiting in the broker for each instance. An autoscaler adds and removes instances by this
        /// value.
        lag_per_instance: u64 [1 to 1_000_000_000] = 10_000,
            because "most handlers process these in a second, and fewer events need no further process";
        /// Share of the keys on which a new version of the handler is tested.
        canary: Option<Percent>;
        /// How long a new version is tested before it serves all keys.
        bake: Option<Millis> ["1s" to "30d"];
    }
}

section! {
    /// Settings for missing events.
    pub struct GapConfig {
        /// Time from the arrival of the first later event to the first round of requests.
        timeout: Millis ["1ms" to "7d"] = "2s",
            because "an event that was only overtaken arrives by then";
        /// Number of rounds of requests.
        attempts: u32 [1 to 1_000] = 5,
            because "with the backoff, they take one to three seconds, within which a late response arrives";
        /// Delay between rounds: a random value between the lower bound and a ceiling that doubles with each
        /// round, up to the upper bound.
        backoff: BackoffBounds ["1ms..1ms" to "7d..7d"] = "200ms..5s",
            because "the first rounds are quick, and the sources are never overloaded";
        /// Sources of missing events, in this order: the store for retained events, then HTTP servers.
        replay: Vec<ReplaySource> = ["store"],
            because "it needs no other service";
        /// How far an event may be beyond the first missing sequence. Events further ahead are dead-lettered.
        max_width: u64 [1 to 1_000_000_000] = 10_000,
            because "a longer jump is an error of the producer, and all events in between would be kept";
        /// Action after the last round: park the key, skip the event, or wait for it.
        on_exhausted: GapExhausted = "park",
            because "the stream promises order, so an operator must decide";
        /// Requests the next event of an incomplete key once after this time without an event, so that a lost
        /// last event is found too.
        tail: OffOrMillis ["1s" to "365d"] = "off",
            because "only the producer's habits determine how long a key may be quiet";
    }
}

section! {
    /// Settings for failing handlers.
    pub struct RetryConfig {
        /// Number of attempts of one event whose handler requests a retry or exceeds its time limit, the first
        /// included.
        attempts: u32 [1 to 1_000_000] = 5,
            because "with the backoff, they take about a second, within which a short disturbance passes";
        /// Delay between attempts: a random value between the lower bound and a ceiling that doubles with each
        /// attempt, up to the upper bound.
        backoff: BackoffBounds ["1ms..1ms" to "7d..7d"] = "100ms..30s",
            because "the first attempts are quick, and an unavailable service is never overloaded";
        /// Action after the last attempt: park the key, or dead-letter the event and continue with the key.
        on_exhausted: RetryExhausted = "park",
            because "the stream promises order, so an operator must decide";
        /// If true, a new version of the handler resumes parked keys.
        on_new_version: bool = true,
            because "a new version usually contains the fix";
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
