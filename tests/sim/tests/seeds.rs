//! Many seeds, each a whole run of a small world.
//!
//! `ORDAIN_SIM_SEEDS=N` plays N seeds, `ORDAIN_SIM_SEED=K` only that one, with a trace.
//! `ORDAIN_SIM_PROFILE=A,B` plays them under these profiles in turn, not those that they choose.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use ordain_sim::{Options, Outcome, Profile, run};

/// Each profile is played some hundred times; ten seconds on two cores.
const SEEDS: u64 = 20_000;
/// Failing seeds of each invariant that are told of.
const SHOWN: usize = 12;

#[test]
fn the_invariants_hold() {
    if let Some(seed) = number("ORDAIN_SIM_SEED") {
        let profile = forced(&profiles(), seed);
        let outcome = run(seed, &Options { trace: true, profile, ..Options::default() });
        println!("seed {seed} ({:?}): {}", outcome.profile, outcome.summary);
        assert!(outcome.violation.is_none(), "{}", tell(seed, &outcome));
        return;
    }
    let seeds = number("ORDAIN_SIM_SEEDS").unwrap_or(SEEDS);
    let failures = play(seeds);
    assert!(failures.is_empty(), "{} of {seeds} seeds:\n{}", failures.len(), digest(&failures));
}

/// Runs that once broke something.
const BROKEN_ONCE: [(Profile, u64); 19] = [
    // Repeats that a dead owner counted: its record seemed to have no hole.
    (Profile::GoesBack, 10_047),
    (Profile::TinyCrashy, 16_932),
    // A lane with nothing but checks was taken for full, and loaded again without end.
    (Profile::GoesBackTiny, 48_091),
    // What another partition had in memory, and what was in memory until its key was full, was
    // not asked for in each round.
    (Profile::Wild, 78_315),
    (Profile::Tiny, 962),
    // A full key was loaded again without end for what a replay had found.
    (Profile::TinyCrashy, 54_239),
    // An event that trapped was taken for the one that stood under its number before a reload.
    (Profile::GoesBackTiny, 39_627),
    // A lane that waited for a read of spilled events kept its state while memory was full.
    (Profile::Large, 45_343),
    // The checker wanted the version of a job that had expired.
    (Profile::Expiring, 53_105),
    // The checker counted a last try that ended when its version was left and the next not there.
    (Profile::Versions, 96_525),
    // A gap that had become wider was listed as it was before.
    (Profile::Tiny, 93_297),
    // An offered event that a full key dropped was overtaken by the one offered after it.
    (Profile::OfferedFifo, 17_146),
    // The checker counted what a key ran as its first life, whose job could then not be read.
    (Profile::Offered, 19_558),
    // What an owner had skipped and not committed stood in the ledger, and was executed by the next one.
    (Profile::Skipping, 19_499),
    (Profile::Skipping, 10_850),
    // Nobody was warned of a gap that ended, or a key that parked, while a commit was under way.
    (Profile::TinyCrashy, 17_293),
    (Profile::Gappy, 49_698),
    (Profile::Versions, 8_255),
    (Profile::Windows, 13_361),
];

#[test]
fn what_once_broke_holds() {
    for (profile, seed) in BROKEN_ONCE {
        let outcome = run(seed, &Options { profile: Some(profile), ..Options::default() });
        assert!(outcome.violation.is_none(), "{}", tell(seed, &outcome));
    }
}

#[test]
fn a_seed_is_always_the_same_run() {
    for seed in 0..50 {
        let (first, second) = (run(seed, &Options::default()), run(seed, &Options::default()));
        assert_eq!(first.summary, second.summary, "seed {seed}");
        assert_eq!(first.violation, second.violation, "seed {seed}");
    }
}

/// Plays the seeds on every core; those that broke something.
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

/// How often which invariant broke, each with its shortest runs.
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
        for (_, seed) in runs.iter().take(SHOWN) {
            text += &tell(*seed, &failures[seed]);
        }
    }
    text
}

fn tell(seed: u64, outcome: &Outcome) -> String {
    let violation = outcome.violation.as_ref().map(ToString::to_string).unwrap_or_default();
    let profile = outcome.profile;
    format!(
        "  seed {seed} ({profile:?}) broke {violation}\n    replay: ORDAIN_SIM_SEED={seed} \
         ORDAIN_SIM_PROFILE={profile:?} cargo test --release -p ordain-sim --test seeds -- \
         --nocapture the_invariants_hold\n"
    )
}

/// Instead of the profiles that the seeds choose.
fn profiles() -> Vec<Profile> {
    let names = env::var("ORDAIN_SIM_PROFILE").unwrap_or_default();
    let find = |name: &str| {
        let profile = Profile::ALL.into_iter().find(|profile| format!("{profile:?}") == name);
        profile.unwrap_or_else(|| panic!("ORDAIN_SIM_PROFILE: there is no profile {name:?}"))
    };
    names.split(',').filter(|name| !name.is_empty()).map(find).collect()
}

fn forced(profiles: &[Profile], seed: u64) -> Option<Profile> {
    (!profiles.is_empty()).then(|| profiles[(seed % profiles.len() as u64) as usize])
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: a number is expected")))
}
