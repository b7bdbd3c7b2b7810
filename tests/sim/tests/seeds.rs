//! Plays many seeds. Each seed is a whole run of a small simulated world.
//!
//! `ORDAIN_SIM_SEEDS=N` plays the first N seeds. `ORDAIN_SIM_SEED=K` plays only seed K, with a trace.
//! `ORDAIN_SIM_PROFILE=A,B` plays the profiles A and B in turn, instead of the profiles that the seeds choose.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use ordain_sim::{Options, Outcome, Profile, number_in, run, seed_count};

/// Number of seeds if `ORDAIN_SIM_SEEDS` is not set: enough to play each profile almost three hundred times, in about
/// 50 seconds on two cores. The checker finds each deliberate fault within half of this number (`faults.rs`).
const SEEDS: u64 = 10_000;
const REPORTED_RUNS: usize = 12;

#[test]
fn no_seed_breaks_an_invariant() {
    if let Some(seed) = number_in("ORDAIN_SIM_SEED") {
        let profile = forced(&profiles(), seed);
        let outcome = run(seed, &Options { trace: true, profile, ..Options::default() });
        println!("seed {seed} ({:?}): {}", outcome.profile, outcome.summary);
        assert!(outcome.violation.is_none(), "{}", describe(seed, &outcome));
        return;
    }
    let seeds = seed_count(SEEDS);
    let failures = play(seeds);
    assert!(
        failures.is_empty(),
        "{} of {seeds} seeds failed:\n{}",
        failures.len(),
        digest(&failures)
    );
}

/// Runs that once broke an invariant, because of an error in the sequencer, the driver or the checker. Each comment
/// describes the error of the runs below it.
const BROKEN_ONCE: [(Profile, u64); 35] = [
    // A dead owner had counted repeats as spilled events, so the key record seemed to have no hole.
    (Profile::GoesBack, 10_047),
    (Profile::TinyCrashy, 16_932),
    // A lane that held only possible repeats of spilled events counted as full, and was loaded repeatedly without end.
    (Profile::GoesBackTiny, 48_091),
    // The checker expected a replay round to request an event that was in the memory of another partition, or that
    // stayed in memory until its key was full.
    (Profile::Wild, 78_315),
    (Profile::Tiny, 962),
    // A full key was loaded repeatedly without end, because a replay had found events for it.
    (Profile::TinyCrashy, 54_239),
    // The handler trapped at an event. The sequencer mistook this event for the event that had the same number before a
    // reload.
    (Profile::GoesBackTiny, 39_627),
    // A lane that waited for a read of spilled events kept its state while memory was full.
    (Profile::Large, 45_343),
    // The checker expected the handler version of a key record that had expired.
    (Profile::Expiring, 53_105),
    // The checker counted an attempt that ended after its owner had left one version, but before the owner had the next
    // version.
    (Profile::Versions, 96_525),
    // After a gap had become wider, the gap history still listed the old, smaller range.
    (Profile::Tiny, 93_297),
    // A full key dropped an offered event, and the next offered event overtook it.
    (Profile::OfferedFifo, 17_146),
    // The checker also counted executions of a key under an earlier key record, although this record had become
    // unreadable.
    (Profile::Offered, 19_558),
    // The gap history listed events as skipped, but the commit with the skip was never made, and the next owner
    // executed the events.
    (Profile::Skipping, 19_499),
    (Profile::Skipping, 10_850),
    // If a gap ended or a key was parked while a commit was under way, the driver logged no warning.
    (Profile::TinyCrashy, 17_293),
    (Profile::Gappy, 49_698),
    (Profile::Versions, 8_255),
    (Profile::Windows, 13_361),
    // One batch put a dead letter of an event into the store and removed an older dead letter with the same id, because
    // the event had taken effect. The dead letter stayed in the store, and was not published.
    (Profile::Late, 16_015),
    // While the sequencer formed a batch, a lane did not find the dead letter of an event in the batch. The lane parked
    // its key as if the event were missing.
    (Profile::SlowSink, 14_103),
    (Profile::SlowSink, 2_753),
    // The checker did not know that an event after a skipped range may be spilled before the skip is durable.
    (Profile::Jumping, 9_656),
    // The source delivered more than `prefetch` unacknowledged messages.
    (Profile::FifoForgets, 8_736),
    // The checker counted searches for dead letters, which no clock delays, as replay rounds.
    (Profile::SlowSink, 2_764),
    (Profile::SlowSink, 3_909),
    // The checker did not know that a key makes new replay rounds after it has resumed at a gap that had been too wide
    // to skip.
    (Profile::Jumping, 21_162),
    // The checker did not know that the store may count too many spilled events while the earlier owner still runs.
    (Profile::SlowSink, 6_322),
    // While memory was full, a key that waited for a newer rollout was loaded and evicted in a busy loop.
    (Profile::TinyCrashy, 2_981),
    // A full parked key had only an event that the store had to compare with spilled events. The owner did not notice
    // that another partition had released the key.
    (Profile::Offered, 5_618),
    // While memory was full, a load waited for a ready lane. This ready lane waited for the results of the lane of the
    // load.
    (Profile::Damaged, 5_246),
    // The checker expected the owner to have the digest of a late original, because the owner had repeated the skip of
    // its sequence.
    (Profile::GoesBackTiny, 3_900),
    // The checker counted the events of a turn that had begun during a load, although the load restarted the lane.
    (Profile::Offered, 1_553),
    // The checker counted a failed attempt that followed the repeated first event of its key, before the key record was
    // loaded.
    (Profile::Offered, 7_748),
    // The checker expected a stale owner to know that a newer owner had cleared the number of attempts.
    (Profile::Damaged, 1_689),
];

#[test]
fn formerly_failing_seeds_pass() {
    for (profile, seed) in BROKEN_ONCE {
        let outcome = run(seed, &Options { profile: Some(profile), ..Options::default() });
        assert!(outcome.violation.is_none(), "{}", describe(seed, &outcome));
    }
}

#[test]
fn same_seed_gives_the_same_run() {
    for seed in 0..50 {
        let first = run(seed, &Options::default());
        let second = run(seed, &Options::default());
        assert_eq!(first.summary, second.summary, "seed {seed}");
        assert_eq!(first.violation, second.violation, "seed {seed}");
    }
}

/// Returns the runs that broke an invariant, by seed.
fn play(seeds: u64) -> BTreeMap<u64, Outcome> {
    let next = AtomicU64::new(0);
    let failures = Mutex::new(BTreeMap::new());
    let profiles = profiles();
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let profile = forced(&profiles, seed);
                    let outcome = run(seed, &Options { profile, ..Options::default() });
                    if outcome.violation.is_some() {
                        failures.lock().expect("no run panics").insert(seed, outcome);
                    }
                }
            });
        }
    });
    failures.into_inner().expect("no run panics")
}

/// Returns a text with the number of violations of each invariant, and the shortest runs that broke the invariant.
fn digest(failures: &BTreeMap<u64, Outcome>) -> String {
    let mut kinds: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    for (seed, outcome) in failures {
        let kind = outcome.violation.as_ref().map_or("", |violation| violation.invariant);
        kinds.entry(kind).or_default().push((outcome.steps, *seed));
    }
    let mut text = String::new();
    for (kind, mut runs) in kinds {
        runs.sort_unstable();
        let _ = writeln!(text, "{kind}: {} times", runs.len());
        for (_, seed) in runs.iter().take(REPORTED_RUNS) {
            text += &describe(*seed, &failures[seed]);
        }
    }
    text
}

fn describe(seed: u64, outcome: &Outcome) -> String {
    let violation = outcome.violation.as_ref().map(ToString::to_string).unwrap_or_default();
    let profile = outcome.profile;
    format!(
        "  seed {seed} ({profile:?}) broke {violation}\n    replay: ORDAIN_SIM_SEED={seed} \
         ORDAIN_SIM_PROFILE={profile:?} cargo test --release -p ordain-sim --test seeds -- \
         --nocapture no_seed_breaks_an_invariant\n"
    )
}

/// Returns the profiles from `ORDAIN_SIM_PROFILE`, which replace the profiles that the seeds choose.
fn profiles() -> Vec<Profile> {
    let names = env::var("ORDAIN_SIM_PROFILE").unwrap_or_default();
    let find = |name: &str| {
        let profile = Profile::ALL.into_iter().find(|profile| format!("{profile:?}") == name);
        profile.unwrap_or_else(|| panic!("ORDAIN_SIM_PROFILE: no profile has the name {name:?}"))
    };
    names.split(',').filter(|name| !name.is_empty()).map(find).collect()
}

fn forced(profiles: &[Profile], seed: u64) -> Option<Profile> {
    (!profiles.is_empty()).then(|| profiles[(seed % profiles.len() as u64) as usize])
}
