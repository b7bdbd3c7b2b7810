//! Many seeds, each a whole run of a small world.
//!
//! `ORDAIN_SIM_SEEDS=N` plays N seeds, `ORDAIN_SIM_SEED=K` only that one, with a trace.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use ordain_sim::{Options, Outcome, run};

/// Each profile is played some hundred times; ten seconds on two cores.
const SEEDS: u64 = 20_000;
/// Failing seeds of each invariant that are told of.
const SHOWN: usize = 12;

#[test]
fn the_invariants_hold() {
    if let Some(seed) = number("ORDAIN_SIM_SEED") {
        let outcome = run(seed, &Options { trace: true, ..Options::default() });
        println!("seed {seed} ({:?}): {}", outcome.profile, outcome.summary);
        assert!(outcome.violation.is_none(), "{}", tell(seed, &outcome));
        return;
    }
    let seeds = number("ORDAIN_SIM_SEEDS").unwrap_or(SEEDS);
    let failures = play(seeds);
    assert!(failures.is_empty(), "{} of {seeds} seeds:\n{}", failures.len(), digest(&failures));
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
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let outcome = run(seed, &Options::default());
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
    format!(
        "  seed {seed} ({:?}) broke {violation}\n    replay: ORDAIN_SIM_SEED={seed} cargo test \
         --release -p ordain-sim --test seeds -- --nocapture the_invariants_hold\n",
        outcome.profile
    )
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: a number is expected")))
}
