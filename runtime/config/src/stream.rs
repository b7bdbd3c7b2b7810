//! `[streams.NAME]`: one stream, its source and its handler.

use ordain_core::{Backoff, Exhausted, Ordering, Overflow};

use super::process::OrOff;
use super::replay::Replay;
use super::scalar::choice;
use super::section::section;
use super::source::Source;
use super::text::Name;
use super::units::{Millis, Percent};

section! {
    /// A stream.
    pub struct Stream {
        /// Its handler: `<handler>@<version>.wasm` in the folder of plugins.
        handler: Name;
        /// Who numbers the events of a key: the producer, or Ordain in the order of delivery.
        ordering: Ordering = "sequenced",
            because "only the producer's numbers show that an event is missing";
        /// Where its events come from.
        source: Source;
        /// Sequence of a key's first event, in a `sequenced` stream.
        first: u64 [0 to 1] = 1,
            because "most producers count from 1";
        /// What happens when an event is missing.
        gap: Gap = {},
            because "a missing event is waited for, asked for, and then the key is parked";
        /// What happens when a handler fails.
        retry: Retry = {},
            because "an event is tried again for a while, and then the key is parked";
        /// How long a completed key is remembered, so that repeats are known as such; and its count, where Ordain
        /// numbers its events.
        complete_ttl: Millis ["1s" to "3650d"] = "7d",
            because "longer than any usual redelivery, at some hundred bytes a key";
        /// After how long without a write a key is forgotten, complete or not.
        key_ttl: OrOff ["1m" to "3650d"] = "off",
            because "forgetting a key that goes on would start it anew";
        /// Events of a blocked key in memory; beyond, they go to the store.
        lane_buffer: usize [1 to 100_000] = 256,
            because "a blocked key then holds a small part of the prefetch window";
        /// How long an event may wait in memory before its key goes to the store.
        spill_after: Millis ["1ms" to "10m"] = "5s",
            because "most gaps close before, and a broker's delivery timeout is far";
        /// Events of one key waiting in the store.
        spill_limit: u64 [1 to 1_000_000_000] = 1_000_000,
            because "about 1 GiB at 1 KiB each: one key should not fill a disk unnoticed";
        /// What happens to an event beyond `spill_limit`: reading stops, or it is dead-lettered.
        overflow: Overflow = "pause",
            because "nothing should end unseen without having been asked for";
        /// Events of a key in one turn, before another key has its own.
        quantum: usize [1 to 4_096] = 64,
            because "it spreads the cost of a turn, and others wait a millisecond at most";
        /// Ids of a key that are remembered, in a `fifo` stream. Left to its default it grows with
        /// the prefetch.
        id_window: usize [1 to 1_000_000] = 4_000,
            because "everything that a crash can bring again: the prefetch window";
        /// How long a key keeps an id after its event has settled, or up to a quarter longer; a later repeat is a new
        /// event. Ids that a crash can redeliver, and the newest 4,000, never expire; with `[ingress]` beside a broker no
        /// id of `id_window` does.
        id_ttl: Millis ["1m" to "365d"] = "24h",
            because "a producer that repeats does so within a day";
        /// Content digests of a key that are remembered, to tell a repeat from another event under
        /// the same sequence.
        digests: usize [0 to 4_096] = 64,
            because "four bytes each, and repeats come soon";
        /// How long events that Ordain itself numbered or took in are kept for replay, and how long an event that a
        /// producer publishes again is known by its id. Whoever numbers events for this stream takes this, `first`,
        /// `retain_events` and `complete_ttl` from here. No longer than `complete_ttl`, after which a key that has ended
        /// may begin anew.
        retain: Millis ["1s" to "365d"] = "24h",
            because "whoever lost one asks within a day";
        /// How many of a key are kept for replay.
        retain_events: u64 [1 to 10_000_000] = 10_000,
            because "the widest gap that is waited for";
        /// A sink that gets every dead letter as well, with the reason in extension attributes.
        dead_letter: Option<Name>;
        /// Turns of this stream at the workers at one time. Left out: 256 for each worker.
        concurrency: Option<usize> [1 to 65_536],
            because "turns are handed over in bunches, and no worker should wait for the next one";
        /// Events that wait in the broker for which one more instance is wanted, where something
        /// starts and ends instances by that.
        lag_per_instance: u64 [1 to 1_000_000_000] = 10_000,
            because "a second or less of work for most handlers: less is not worth a process";
        /// Share of the keys on which a new version of the handler is tried.
        canary: Option<Percent>;
        /// How long it is tried before all keys have it.
        bake: Option<Millis> ["1s" to "30d"];
    }
}

section! {
    /// What happens when an event is missing.
    pub struct Gap {
        /// From the arrival of the first later event to the first round of asking.
        timeout: Millis ["1ms" to "7d"] = "2s",
            because "an event that was only overtaken is there by then";
        /// Rounds of asking.
        attempts: u32 [1 to 1_000] = 5,
            because "with the backoff they take one to three seconds: an answer that is late by that is there";
        /// Between rounds: anywhere between the lower bound and the doubled one, up to the upper one.
        backoff: Backoff ["1ms..1ms" to "7d..7d"] = "200ms..5s",
            because "quick at first, and never a burden for who is asked";
        /// Who is asked, in this order: the store for what it retains, then HTTP servers.
        replay: Vec<Replay> = ["store"],
            because "it needs nothing else";
        /// How far beyond the first missing number an event may be; further ones are
        /// dead-lettered.
        max_width: u64 [1 to 1_000_000_000] = 10_000,
            because "a jump so far is an error of the producer, and everything up to it would be kept";
        /// After the last round: the key stops, goes on without the event, or waits for it.
        on_exhausted: GapExhausted = "park",
            because "order is what was asked for, so a person decides";
        /// Asks once for the next event of a key that is neither complete nor heard of for this
        /// long, so that a lost last event is found too.
        tail: OrOff ["1s" to "365d"] = "off",
            because "only the producer's habits tell how long a key may be quiet";
    }
}

section! {
    /// What happens when a handler fails.
    pub struct Retry {
        /// Tries of one event that asks for another or ran too long, the first included.
        attempts: u32 [1 to 1_000_000] = 5,
            because "with the backoff they take about a second: a short disturbance passes";
        /// Between tries: anywhere between the lower bound and the doubled one, up to the upper one.
        backoff: Backoff ["1ms..1ms" to "7d..7d"] = "100ms..30s",
            because "quick at first, and never a burden for who is down";
        /// After the last try: the key stops, or the event is dead-lettered and the key goes on.
        on_exhausted: RetryExhausted = "park",
            because "order is what was asked for, so a person decides";
        /// Whether a new version of the handler lets parked keys try again.
        on_new_version: bool = true,
            because "it is most often the mend";
    }
}

/// What follows the last round for a missing event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GapExhausted(pub Exhausted);

/// What follows the last try of a failing one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryExhausted(pub Exhausted);

choice!(Ordering { "sequenced" => Ordering::Sequenced, "fifo" => Ordering::Fifo, });
choice!(Overflow { "pause" => Overflow::Pause, "dead-letter" => Overflow::DeadLetter, });
choice!(GapExhausted {
    "park" => GapExhausted(Exhausted::Park),
    "skip" => GapExhausted(Exhausted::Skip),
    "wait" => GapExhausted(Exhausted::Wait),
});
choice!(RetryExhausted {
    "park" => RetryExhausted(Exhausted::Park),
    "skip" => RetryExhausted(Exhausted::Skip),
});
