//! The kinds of runs. Each kind has a plan with its own failures.

use std::sync::Arc;

use ordain_core::{ExhaustedPolicy, OrderingMode, OverflowPolicy, TypeFilter, TypePattern};

use crate::plan::{BlockKind, DisturbancePlan, Plan};
use crate::producer::HANDLED_TYPE;
use crate::rng::Rng;

/// A kind of run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "`apply` shows the plan of each")]
pub enum Profile {
    Calm,
    Disturbed,
    Crashy,
    Gappy,
    Failing,
    Tiny,
    TinyCrashy,
    Fifo,
    FifoCrashy,
    FifoTiny,
    FifoForgets,
    TwoPartitions,
    Late,
    Isolated,
    HotKey,
    ManyKeys,
    Once,
    Versions,
    Expiring,
    Skipping,
    Large,
    Wild,
    GoesBack,
    GoesBackTiny,
    GoesBackFifo,
    Damaged,
    Windows,
    SlowSink,
    Offered,
    OfferedFifo,
    Paged,
    Jumping,
    Anywhere,
    OtherTypes,
    OtherTypesFifo,
}

impl Profile {
    /// All profiles.
    pub const ALL: [Self; 35] = [
        Self::Calm,
        Self::Disturbed,
        Self::Crashy,
        Self::Gappy,
        Self::Failing,
        Self::Tiny,
        Self::TinyCrashy,
        Self::Fifo,
        Self::FifoCrashy,
        Self::FifoTiny,
        Self::FifoForgets,
        Self::TwoPartitions,
        Self::Late,
        Self::Isolated,
        Self::HotKey,
        Self::ManyKeys,
        Self::Once,
        Self::Versions,
        Self::Expiring,
        Self::Skipping,
        Self::Large,
        Self::Wild,
        Self::GoesBack,
        Self::GoesBackTiny,
        Self::GoesBackFifo,
        Self::Damaged,
        Self::Windows,
        Self::SlowSink,
        Self::Offered,
        Self::OfferedFifo,
        Self::Paged,
        Self::Jumping,
        Self::Anywhere,
        Self::OtherTypes,
        Self::OtherTypesFifo,
    ];

    pub(crate) fn apply(self, plan: &mut Plan, rng: &mut Rng) {
        match self {
            Self::Calm => {}
            Self::Disturbed => disturbed(plan),
            Self::Crashy => {
                disturbed(plan);
                crashes(plan, rng, 8);
            }
            Self::Gappy => {
                gappy(plan, rng);
                disturbances(plan, rng, 2);
            }
            Self::Failing => {
                failing(plan, rng);
                disturbances(plan, rng, 3);
            }
            Self::Tiny => {
                disturbed(plan);
                failing(plan, rng);
                tiny(plan, rng);
            }
            Self::TinyCrashy => {
                gappy(plan, rng);
                failing(plan, rng);
                tiny(plan, rng);
                crashes(plan, rng, 6);
            }
            Self::Fifo => fifo(plan, rng),
            Self::FifoCrashy => {
                fifo(plan, rng);
                crashes(plan, rng, 8);
            }
            Self::FifoTiny => {
                fifo(plan, rng);
                failing(plan, rng);
                tiny(plan, rng);
                crashes(plan, rng, 4);
            }
            Self::FifoForgets => fifo_forgets(plan, rng),
            Self::TwoPartitions => {
                disturbed(plan);
                two_partitions(plan, rng);
            }
            Self::Late => late(plan, rng),
            Self::Windows => windows(plan, rng),
            Self::SlowSink => slow_sink(plan, rng),
            Self::Offered => {
                wild(plan, rng);
                offers(plan, rng);
            }
            Self::OfferedFifo => offered_fifo(plan, rng),
            Self::Paged => paged(plan, rng),
            Self::OtherTypes => {
                gappy(plan, rng);
                other_types(plan, rng);
            }
            Self::OtherTypesFifo => {
                fifo(plan, rng);
                other_types(plan, rng);
            }
            Self::Isolated => isolated(plan, rng),
            Self::HotKey => hot_key(plan, rng),
            Self::ManyKeys => {
                disturbed(plan);
                plan.producer.keys = rng.between(60, 150);
                plan.producer.events = (1, 8);
                plan.settings.max_lanes = rng.pick(&[8, 20]);
                crashes(plan, rng, 3);
            }
            Self::Once => {
                gappy(plan, rng);
                failing(plan, rng);
                plan.once = true;
                plan.disturb.crashes = rng.below(3);
            }
            Self::Versions => versions(plan, rng),
            Self::Expiring => expiring(plan, rng),
            Self::Skipping => skipping(plan, rng),
            Self::Jumping => jumping(plan, rng),
            Self::Anywhere => anywhere(plan, rng),
            Self::Large => large(plan, rng),
            Self::Wild => wild(plan, rng),
            Self::GoesBack => {
                gappy(plan, rng);
                goes_back(plan, rng);
            }
            Self::GoesBackTiny => {
                disturbed(plan);
                tiny(plan, rng);
                goes_back(plan, rng);
            }
            Self::GoesBackFifo => {
                fifo(plan, rng);
                goes_back(plan, rng);
            }
            Self::Damaged => damaged(plan, rng),
        }
    }
}

/// The handlers fail until the next version.
fn versions(plan: &mut Plan, rng: &mut Rng) {
    failing(plan, rng);
    plan.handler.fails_for_ever = 40;
    plan.settings.retry.on_new_version = true;
    if rng.permille(500) {
        two_partitions(plan, rng);
    }
    plan.disturb.versions = rng.between(1, 6);
    plan.disturb.crashes = rng.below(4);
}

/// Answers of replay sources often lack room for all found events.
fn paged(plan: &mut Plan, rng: &mut Rng) {
    gappy(plan, rng);
    plan.replay.cut = 500;
    plan.producer.lost = rng.pick(&[100, 300]);
    plan.producer.found = rng.pick(&[500, 900]);
    disturbances(plan, rng, 2);
}

/// Plans events of types that the handler does not execute, and owners that crash. A guess is a turn that runs before
/// its key record is loaded. A guess may begin after events of other types, but the checker expects it at the first
/// event of its key. The version of the handler never changes, because the checker could not recognise each guess after
/// such a change.
fn other_types(plan: &mut Plan, rng: &mut Rng) {
    failing(plan, rng);
    if rng.permille(300) {
        tiny(plan, rng);
    }
    plan.producer.other_types = rng.pick(&[100, 500, 900]);
    plan.settings.types = Some(Arc::new(TypeFilter {
        patterns: vec![TypePattern::new(HANDLED_TYPE)],
        sink: rng.pick(&[None, Some("aside")]).map(Arc::from),
    }));
    crashes(plan, rng, 6);
    plan.disturb.versions = 0;
}

/// The ordinary failures: lost, repeated, reordered, conflicting and unusable events, rejected events, and commits
/// without an answer.
fn disturbed(plan: &mut Plan) {
    let producer = &mut plan.producer;
    producer.lost = 20;
    producer.found = 700;
    producer.repeated = 80;
    producer.corrupted = 20;
    producer.jitter = 300;
    producer.after_end = 3;
    producer.far = 5;
    producer.unusable = 20;
    plan.handler.rejects = 20;
    plan.handler.completes = 3;
    plan.store.lost_before = 20;
    plan.store.lost_after = 20;
}

/// Plans many missing events, and replay sources that may have them.
fn gappy(plan: &mut Plan, rng: &mut Rng) {
    disturbed(plan);
    plan.producer.lost = rng.pick(&[50, 200]);
    plan.producer.found = rng.pick(&[0, 500, 1_000]);
    plan.producer.jitter = rng.pick(&[100, 2_000]);
    plan.replay.again = rng.pick(&[0, 300, 900]);
    let sources = rng.between(1, 3);
    plan.settings.gap.sources = (0..sources).map(|at| at.to_string().into()).collect();
    plan.settings.gap.tail = rng.pick(&[None, Some(1_000)]);
}

fn failing(plan: &mut Plan, rng: &mut Rng) {
    plan.handler.rejects = 50;
    plan.handler.fails = rng.pick(&[50, 150]);
    plan.handler.fails_for_ever = rng.pick(&[0, 5, 20]);
    plan.handler.slow = 20;
    plan.handler.slowness = 3_000;
}

fn tiny(plan: &mut Plan, rng: &mut Rng) {
    let settings = &mut plan.settings;
    settings.max_lanes = 3;
    settings.lane_buffer = 2;
    settings.run_ahead = 4;
    settings.batch_events = 3;
    settings.batch_bytes = 2_000;
    settings.prefetch = 8;
    settings.quantum = rng.pick(&[1, 2, 3]);
    settings.max_turns = 2;
    settings.max_loads = 2;
    settings.max_outbox = 20;
    settings.spill_limit = rng.pick(&[3, 5, 10_000]);
    settings.overflow = rng.pick(&[OverflowPolicy::Pause, OverflowPolicy::DeadLetter]);
    settings.memory_budget = rng.pick(&[8 << 10, 4 << 20]);
    settings.spill_after = rng.pick(&[50, 500]);
    settings.gap.max_width = rng.pick(&[5, 100]);
    settings.digests = rng.pick(&[2, 64]);
    plan.producer.keys = rng.between(1, 8);
}

fn fifo(plan: &mut Plan, rng: &mut Rng) {
    disturbed(plan);
    plan.settings.ordering = OrderingMode::Fifo;
    plan.settings.first = 1;
    plan.producer.lost = 0;
    plan.producer.imported = 0;
    plan.producer.repeated = rng.pick(&[50, 300]);
    plan.handler.slow = 20;
    plan.handler.slowness = 1_000;
    disturbances(plan, rng, 2);
}

/// Event ids expire while the source can still redeliver their events. Producers do not repeat events: only the source
/// redelivers events, to a new owner or over a new connection.
fn fifo_forgets(plan: &mut Plan, rng: &mut Rng) {
    fifo(plan, rng);
    plan.producer.repeated = 0;
    plan.producer.corrupted = 0;
    // Two events with sequences far ahead may have the same id. The second event would then seem to be a repeat by the
    // producer.
    plan.producer.far = 0;
    plan.producer.keys = rng.between(1, 4);
    plan.producer.events = (50, 200);
    plan.settings.prefetch = rng.pick(&[4, 16]);
    plan.settings.id_floor = plan.settings.prefetch;
    plan.settings.id_ttl = rng.pick(&[1, 20, 500]);
    crashes(plan, rng, 8);
}

fn two_partitions(plan: &mut Plan, rng: &mut Rng) {
    plan.partitions = 2;
    plan.producer.moved = 500;
    plan.producer.astray = rng.pick(&[0, 0, 50]);
    disturbances(plan, rng, 2);
}

fn hot_key(plan: &mut Plan, rng: &mut Rng) {
    plan.producer.keys = 2;
    plan.producer.events = (200, 600);
    plan.producer.spread = rng.pick(&[50, 500]);
    plan.producer.repeated = 20;
    plan.settings.run_ahead = rng.pick(&[8, 32, 256]);
    crashes(plan, rng, 3);
}

/// Plans a slow sink, and owners that crash often. Depending on the run, the sink accepts committed messages after at
/// most 2 seconds or after at most 20 seconds.
fn slow_sink(plan: &mut Plan, rng: &mut Rng) {
    disturbed(plan);
    tiny(plan, rng);
    plan.settings.memory_budget = 4 << 20;
    plan.settings.max_outbox = rng.pick(&[3, 10, 20]);
    plan.producer.keys = rng.between(8, 20);
    plan.producer.events = (10, 30);
    plan.sink_delay = rng.pick(&[2_000, 20_000]);
    crashes(plan, rng, 8);
}

fn late(plan: &mut Plan, rng: &mut Rng) {
    disturbed(plan);
    plan.producer.late = 100;
    plan.producer.lateness = rng.pick(&[2_000, 60_000]);
    plan.producer.found = 300;
    plan.settings.gap.max_width = rng.pick(&[3, 20, 100]);
    plan.settings.gap.on_exhausted = rng.pick(&[ExhaustedPolicy::Skip, ExhaustedPolicy::Park]);
    disturbances(plan, rng, 1);
}

/// Plans skipped sequences, and events that arrive after their sequence was skipped. In most runs, commits take long.
/// Commits contain few events.
fn skipping(plan: &mut Plan, rng: &mut Rng) {
    plan.producer.keys = rng.between(1, 3);
    plan.producer.spread = 1_000;
    plan.producer.repeated = 200;
    plan.producer.late = 200;
    plan.producer.lateness = rng.pick(&[50, 500]);
    plan.store.latency = rng.pick(&[2, 50, 200]);
    plan.settings.batch_events = rng.pick(&[1, 2]);
    plan.settings.quantum = 64;
    plan.settings.gap.timeout = rng.pick(&[1, 20]);
    plan.settings.gap.attempts = 1;
    plan.settings.gap.on_exhausted = ExhaustedPolicy::Skip;
    plan.disturb.crashes = rng.between(1, 8);
}

/// Plans sequences that jump by a large number, and events in between that arrive before or after the key has skipped
/// their sequences. Some jumps are too wide to skip. In some runs, events are lost, and a remote replay source has some
/// of them.
fn jumping(plan: &mut Plan, rng: &mut Rng) {
    skipping(plan, rng);
    plan.producer.jumps = 700;
    plan.producer.lost = rng.pick(&[0, 100]);
    plan.producer.found = 500;
    plan.settings.gap.max_width = rng.pick(&[10, 100, 10_000]);
    plan.settings.gap.attempts = rng.pick(&[1, 3]);
    plan.settings.digests = rng.pick(&[2, 64]);
    if rng.permille(300) {
        plan.settings.gap.sources = vec!["store".into()];
    }
}

/// Keys begin at the first event that arrives. Events with lower sequences arrive before or after the first commit of
/// the key.
fn anywhere(plan: &mut Plan, rng: &mut Rng) {
    disturbed(plan);
    failing(plan, rng);
    plan.settings.first = 0;
    plan.settings.begins_anywhere = true;
    plan.producer.keys = rng.between(1, 20);
    plan.producer.events = (1, 10);
    plan.producer.spread = rng.pick(&[5, 50, 1_000]);
    plan.producer.jitter = rng.pick(&[5, 100]);
    plan.producer.late = 200;
    plan.producer.lateness = rng.pick(&[20, 2_000]);
    plan.store.latency = rng.pick(&[0, 20, 200]);
    if rng.permille(200) {
        tiny(plan, rng);
    }
    if rng.permille(300) {
        two_partitions(plan, rng);
    }
    crashes(plan, rng, 6);
    if rng.permille(300) {
        offers(plan, rng);
    }
}

/// Plans states and messages so large that a few dozen of them fill the memory budget.
fn large(plan: &mut Plan, rng: &mut Rng) {
    if rng.permille(300) {
        fifo(plan, rng);
    }
    plan.producer.lost = 0;
    plan.producer.repeated = 80;
    plan.producer.jitter = 100;
    plan.handler.rejects = 20;
    plan.store.lost_before = 20;
    plan.store.lost_after = 20;
    plan.producer.keys = rng.between(60, 150);
    plan.producer.events = (1, 8);
    plan.producer.spread = rng.pick(&[50, 1_000]);
    plan.handler.padding = 4 << 10;
    let settings = &mut plan.settings;
    settings.max_lanes = 200;
    settings.memory_budget = 128 << 10;
    settings.gap.timeout = 10_000;
    settings.batch_bytes = 16 << 10;
    // The memory budget does not cover the events that the workers execute, so only a few may be executed at a time.
    settings.quantum = 1;
    settings.max_turns = 2;
    settings.max_loads = 2;
    crashes(plan, rng, 3);
}

/// The source lowers and raises the prefetch.
fn windows(plan: &mut Plan, rng: &mut Rng) {
    gappy(plan, rng);
    failing(plan, rng);
    disturbances(plan, rng, 6);
    plan.windows = true;
    plan.settings.prefetch = rng.pick(&[8, 40, 200]);
}

fn isolated(plan: &mut Plan, rng: &mut Rng) {
    let blocked = rng.pick(&[BlockKind::Slow, BlockKind::Failing, BlockKind::Gap]);
    plan.handler.blocked = Some(blocked);
    plan.producer.keys = rng.between(3, 10);
    plan.producer.events = (10, 60);
    plan.producer.spread = rng.pick(&[1_000, 20_000]);
    // Some runs have so little memory that each turn fills it.
    plan.handler.padding = rng.pick(&[0, 0, 2 << 10]);
    let settings = &mut plan.settings;
    if plan.handler.padding > 0 {
        settings.memory_budget = 8 << 10;
    }
    settings.prefetch = rng.pick(&[10, 30]);
    settings.lane_buffer = rng.pick(&[4, 64]);
    // With only one turn at a time, a slow handler would delay all keys, even if the sequencer is correct.
    settings.max_turns = settings.max_turns.max(2);
    settings.spill_after = 1_000;
    settings.overflow = OverflowPolicy::DeadLetter;
    // These runs may last for days of virtual time, so frequent reads of the due index would only make the runs slow.
    settings.due_poll = 3_600_000;
    match blocked {
        BlockKind::Slow => {}
        BlockKind::Failing => {
            settings.retry.attempts = 50;
            settings.retry.backoff.min = 100_000;
            settings.retry.backoff.max = 200_000;
        }
        BlockKind::Gap => {
            settings.gap.timeout = 3_600_000;
            settings.gap.max_width = 1_000;
        }
    }
}

fn wild(plan: &mut Plan, rng: &mut Rng) {
    gappy(plan, rng);
    failing(plan, rng);
    if rng.permille(300) {
        tiny(plan, rng);
    }
    if rng.permille(300) {
        two_partitions(plan, rng);
    }
    plan.store.corrupts = rng.permille(200);
    plan.producer.late = 30;
    plan.producer.lateness = 5_000;
    crashes(plan, rng, 6);
}

/// The store loses a few commits, which the owner still has in memory.
fn goes_back(plan: &mut Plan, rng: &mut Rng) {
    failing(plan, rng);
    if rng.permille(300) {
        tiny(plan, rng);
    }
    plan.settings.memory_budget = 4 << 20;
    plan.settings.commit_history_bytes = 1 << 20;
    plan.settings.spill_after = rng.pick(&[20, 500]);
    plan.settings.lane_buffer = rng.pick(&[1, 4, 32]);
    disturbances(plan, rng, 1);
    plan.disturb.steps_back = rng.between(1, 16);
}

/// Reads of the many spilled events fail sometimes or always.
fn damaged(plan: &mut Plan, rng: &mut Rng) {
    if rng.permille(300) {
        fifo(plan, rng);
    } else {
        gappy(plan, rng);
        if rng.permille(200) {
            two_partitions(plan, rng);
        }
    }
    failing(plan, rng);
    if rng.permille(500) {
        tiny(plan, rng);
    }
    plan.settings.spill_after = rng.pick(&[20, 500]);
    plan.settings.lane_buffer = rng.pick(&[1, 4, 32]);
    plan.store.unreadable = rng.pick(&[30, 300, 1_000]);
    plan.once = rng.permille(300);
    crashes(plan, rng, 3);
}

fn expiring(plan: &mut Plan, rng: &mut Rng) {
    disturbed(plan);
    plan.settings.complete_ttl = rng.pick(&[500, 5_000]);
    plan.settings.key_ttl = rng.pick(&[None, None, Some(3_000)]);
    plan.handler.completes = 40;
    plan.producer.spread = 20_000;
    plan.producer.lateness = 15_000;
    plan.producer.late = 60;
    crashes(plan, rng, 3);
}

fn offered_fifo(plan: &mut Plan, rng: &mut Rng) {
    fifo(plan, rng);
    failing(plan, rng);
    if rng.permille(300) {
        tiny(plan, rng);
    }
    crashes(plan, rng, 4);
    offers(plan, rng);
}

/// Plans lost connections, and a source that offers its events before the new connection delivers them.
fn offers(plan: &mut Plan, rng: &mut Rng) {
    plan.disturb.resets = rng.between(1, 8);
    plan.disturb.offers = Some(rng.pick(&[200, 2_000, 10_000]));
}

/// Plans disturbances, and from 1 to `most` crashes.
fn crashes(plan: &mut Plan, rng: &mut Rng, most: u64) {
    disturbances(plan, rng, 3);
    plan.disturb.crashes = rng.between(1, most);
}

/// Replaces all earlier disturbances: at most `most` crashes, `most` take-overs and `most` lost connections, and at
/// most one rollout and one drain.
fn disturbances(plan: &mut Plan, rng: &mut Rng, most: u64) {
    plan.disturb = DisturbancePlan {
        crashes: rng.below(most + 1),
        takeovers: rng.below(most + 1),
        resets: rng.below(most + 1),
        versions: rng.below(2),
        drains: rng.below(2),
        ..DisturbancePlan::default()
    };
}
