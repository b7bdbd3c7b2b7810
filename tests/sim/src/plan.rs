//! The plan of one run: all choices that are made before the run. Rates are in thousandths: a rate of 20 means 20 of
//! 1,000 events, keys, turns, requests or answers. Times are in ms of virtual time.

use ordain_core::{
    BackoffBounds, ExhaustedPolicy, GapSettings, LimitValues, OrderingMode, OverflowPolicy,
    RetrySettings, SequencerSettings,
};

use crate::profile::Profile;
use crate::rng::Rng;

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) profile: Profile,
    /// The settings of all sequencers. Each owner replaces `partition` by the number of its own partition.
    pub(crate) settings: SequencerSettings,
    pub(crate) partitions: u32,
    pub(crate) producer: ProducerPlan,
    pub(crate) handler: HandlerPlan,
    pub(crate) store: StorePlan,
    pub(crate) replay: ReplayPlan,
    pub(crate) disturb: DisturbancePlan,
    /// The longest time until the sink accepts the messages of a commit.
    pub(crate) sink_delay: u64,
    /// A finite source reports its end.
    pub(crate) once: bool,
    /// The source lowers and raises the prefetch: the maximum number of deliveries that are unacknowledged at one time.
    pub(crate) windows: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ProducerPlan {
    pub(crate) keys: u64,
    /// The smallest and the largest number for a key.
    pub(crate) events: (u64, u64),
    /// All events are produced within this time.
    pub(crate) spread: u64,
    /// Rate of events that never reach the queue.
    pub(crate) lost: u32,
    /// Rate of lost events that the remote replay source has.
    pub(crate) found: u32,
    /// Rate of events that arrive a second time. The same rate applies to each further arrival.
    pub(crate) repeated: u32,
    /// Rate of events for which another event with the same id and sequence, but other content, also arrives.
    pub(crate) corrupted: u32,
    /// The longest random time that is added to an event's time.
    pub(crate) jitter: u64,
    /// Rate of delayed events. `lateness` is the longest delay.
    pub(crate) late: u32,
    pub(crate) lateness: u64,
    /// Rate of keys whose last event has the end mark. `after_end` is the largest number of events of a key after its
    /// end.
    pub(crate) ended: u32,
    pub(crate) after_end: u64,
    /// Rate of additional events whose sequence is far above the sequence of the last event of their key. Some of these
    /// events have the sequence of a later event of the key.
    pub(crate) far: u32,
    /// Rate of keys whose sequences jump once by a large number. A few of the events with sequences in between arrive
    /// late.
    pub(crate) jumps: u32,
    /// Rate of unusable deliveries: the key, the sequence or the id is missing or impossible, or the bytes are not an
    /// event.
    pub(crate) unusable: u32,
    /// Rate of events whose type the handler does not execute.
    pub(crate) other_types: u32,
    /// Rate of events with a payload of kilobytes.
    pub(crate) big: u32,
    /// Rate of keys with an imported record. The events of such a key begin above the first sequence of a new key.
    pub(crate) imported: u32,
    /// Rate of keys that move: from some point in time on, the events of such a key go to another partition. `astray`
    /// is the rate of single events that go to a wrong partition.
    pub(crate) moved: u32,
    pub(crate) astray: u32,
}

/// The seed, the rates, `blocked`, and the key and the content of an event determine whether the handler rejects it,
/// whether executions fail, and whether it ends its key. The failure of a single attempt also depends on the number of
/// the attempt and on the handler version.
#[derive(Debug, Clone, Default)]
pub(crate) struct HandlerPlan {
    pub(crate) rejects: u32,
    /// Rate of events that fail a few times.
    pub(crate) fails: u32,
    /// Rate of events that fail for ever, or until a version other than the first executes them.
    pub(crate) fails_for_ever: u32,
    /// Rate of events whose result ends their key.
    pub(crate) completes: u32,
    /// Rate of slow turns. `slowness` is the longest duration of a slow turn.
    pub(crate) slow: u32,
    pub(crate) slowness: u64,
    /// Rate of events after which the worker ends the turn early.
    pub(crate) stops_early: u32,
    /// At most this number of bytes makes states and messages larger.
    pub(crate) padding: u64,
    /// The way in which one key is blocked; `None` if no key is blocked.
    pub(crate) blocked: Option<BlockKind>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockKind {
    /// Each turn of the key takes an hour.
    Slow,
    /// Each attempt fails.
    Failing,
    /// The key's second event never arrives.
    Gap,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct StorePlan {
    pub(crate) latency: u64,
    /// Rate of commits that the store neither applies nor answers while the owner waits. The store applies half of
    /// these commits later, after the owner has stopped waiting.
    pub(crate) lost_before: u32,
    /// Rate of commits that the store applies, but does not answer.
    pub(crate) lost_after: u32,
    /// One key record becomes unreadable.
    pub(crate) corrupts: bool,
    /// Rate of reads of spilled events that fail. At the end of the run, when new owners start, all reads succeed.
    pub(crate) unreadable: u32,
}

/// Delays and failures of the remote replay source.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReplayPlan {
    /// The longest delay that is added to the delays of a store's answer.
    pub(crate) latency: u64,
    /// Rate of answers that report that the request failed. Such an answer may lack some of the requested events.
    pub(crate) again: u32,
    /// Rate at which an answer with several events has no room for the last of these events. The same rate applies to
    /// the answers of the store, because the store is also a replay source. At half of this rate, the remote source is
    /// too busy to search.
    pub(crate) cut: u32,
}

/// The number of planned disturbances of each kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct DisturbancePlan {
    /// Number of times that an owner ends without a drain.
    pub(crate) crashes: u64,
    /// Number of times that a new owner claims a partition whose owner continues.
    pub(crate) takeovers: u64,
    pub(crate) resets: u64,
    pub(crate) versions: u64,
    /// Number of drains. In a drain, the owner finishes its running events, and then a successor claims the partition.
    pub(crate) drains: u64,
    /// Number of planned rollbacks of the store while an owner lives. Not every planned rollback happens, and a second
    /// rollback may follow a planned rollback.
    pub(crate) steps_back: u64,
    /// The longest time between a lost connection and the next delivery. During this time, the source offers events:
    /// the owner receives the events early, and the source delivers the same events later. With `None`, the source
    /// offers no events.
    pub(crate) offers: Option<u64>,
}

impl Plan {
    /// Returns the plan of a seed.
    pub(crate) fn new(seed: u64, profile: Option<Profile>) -> Self {
        let mut rng = Rng::new(seed);
        let chosen = rng.pick(&Profile::ALL);
        let profile = profile.unwrap_or(chosen);
        let mut plan = Self::calm(seed, profile, &mut rng);
        profile.apply(&mut plan, &mut rng);
        plan.settings.forward_letters = seed % 2 == 1;
        plan
    }

    /// Returns a plan without failures, except that some requests to the remote replay source fail.
    fn calm(seed: u64, profile: Profile, rng: &mut Rng) -> Self {
        Self {
            seed,
            profile,
            settings: settings(rng),
            partitions: 1,
            producer: ProducerPlan {
                keys: rng.between(1, 12),
                events: (1, 30),
                spread: rng.pick(&[50, 1_000, 10_000]),
                jitter: 0,
                ended: 300,
                big: 5,
                imported: 100,
                ..ProducerPlan::default()
            },
            handler: HandlerPlan { completes: 0, stops_early: 50, ..HandlerPlan::default() },
            store: StorePlan { latency: rng.pick(&[0, 2, 20]), ..StorePlan::default() },
            replay: ReplayPlan { latency: rng.pick(&[1, 50, 400]), again: 100, cut: 0 },
            disturb: DisturbancePlan::default(),
            sink_delay: 0,
            once: false,
            windows: false,
        }
    }
}

/// A profile narrows the limits that it tests.
fn settings(rng: &mut Rng) -> SequencerSettings {
    SequencerSettings {
        ordering: OrderingMode::Sequenced,
        first: rng.pick(&[1, 1, 0]),
        begins_anywhere: false,
        types: None,
        partition: 0,
        shards: rng.between(1, 4) as u32,
        max_lanes: 64,
        memory_budget: 4 << 20,
        run_ahead: 256,
        max_turns: rng.between(1, 8) as usize,
        batch_events: 64,
        batch_bytes: 64 << 10,
        prefetch: 200,
        quantum: rng.pick(&[1, 4, 16]),
        max_loads: 16,
        max_outbox: 1_000,
        commit_history_bytes: 0,
        forward_letters: false,
        lane_buffer: 32,
        spill_after: 500,
        spill_limit: 10_000,
        overflow: OverflowPolicy::Pause,
        gap: GapSettings {
            timeout: 200,
            attempts: rng.between(1, 4) as u32,
            backoff: BackoffBounds { min: 50, max: 500 },
            sources: vec!["store".into(), "remote".into()],
            max_width: 100,
            on_exhausted: rng.pick(&[
                ExhaustedPolicy::Park,
                ExhaustedPolicy::Skip,
                ExhaustedPolicy::Wait,
            ]),
            tail: None,
        },
        retry: RetrySettings {
            attempts: rng.between(1, 4) as u32,
            backoff: BackoffBounds { min: 20, max: 300 },
            on_exhausted: rng.pick(&[ExhaustedPolicy::Park, ExhaustedPolicy::Skip]),
            on_new_version: rng.permille(500),
            limits: LimitValues::default(),
        },
        id_window: 1_000,
        id_ttl: u64::MAX,
        id_floor: 1_000,
        digests: 64,
        due_poll: 5_000,
        complete_ttl: 7 * 24 * 3_600_000,
        key_ttl: None,
        rollout: None,
        seed: rng.next(),
    }
}
