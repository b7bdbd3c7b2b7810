//! Tests of the main scenario: the host reads events from a file, and writes the messages of the handler to another
//! file. The events are in order, or shuffled and partly repeated. The process runs without interruption, or the test
//! kills it repeatedly.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, disturb, real_or_generated};
use ordain_tests::seed::kill_seed;
use ordain_tests::tally;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn home(lines: &[String]) -> Result<Home> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", lines.join("\n") + "\n")?;
    Ok(home)
}

/// Checks that `keys` keys have completed, so each of them has executed its last event and holds no event. Also checks
/// that there are no dead letters.
fn all_complete(home: &Home, keys: usize) -> Result<()> {
    let completed = home.rows(&[
        "keys",
        "list",
        "cases",
        "--status",
        "completed",
        "--json",
        "--limit",
        "1000000",
    ])?;
    ensure!(completed.len() == keys, "{} of {keys} keys have completed", completed.len());
    let dead = home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(dead.is_empty(), "dead letters: {dead:?}");
    Ok(())
}

#[test]
fn ordered_log_is_processed_exactly_once() -> Result<()> {
    let lines = real_or_generated()?;
    let home = home(&lines)?;
    let report = home.run_once()?;
    let keys = by_key(&lines)?;
    assert_eq!(report["settled"], lines.len());
    assert_eq!(report["duplicates"], 0);
    tally::check(&keys, &home.read("out.ndjson"))?;
    all_complete(&home, keys.len())
}

#[test]
fn shuffled_and_repeated_lines_are_processed_exactly_once() -> Result<()> {
    let lines = real_or_generated()?;
    let disturbed = disturb(&lines, 100, 10, 1);
    let home = home(&disturbed)?;
    let report = home.run_once()?;
    let keys = by_key(&lines)?;
    assert_eq!(report["settled"], lines.len());
    assert_eq!(report["duplicates"], disturbed.len() - lines.len());
    assert!(report["reordered"].as_u64() > Some(0));
    tally::check(&keys, &home.read("out.ndjson"))?;
    all_complete(&home, keys.len())
}

#[test]
fn twenty_kills_lose_and_repeat_nothing() -> Result<()> {
    let lines = real_or_generated()?;
    let disturbed = disturb(&lines, 100, 10, 2);
    // Measures the duration of a run without kills. An earlier run has already compiled the handler.
    let undisturbed = home(&disturbed)?;
    undisturbed.run_once()?;
    std::fs::remove_dir_all(undisturbed.path("ordain-data"))?;
    std::fs::remove_file(undisturbed.path("out.ndjson"))?;
    let started = Instant::now();
    undisturbed.run_once()?;
    let whole = started.elapsed();

    let mut rng = ChaCha8Rng::seed_from_u64(kill_seed()?);
    let home = home(&disturbed)?;
    let mut unfinished = 0;
    for _ in 0..20 {
        let mut child = home.start()?;
        std::thread::sleep(Duration::from_micros(rng.random_range(0..whole.as_micros() as u64)));
        unfinished += u32::from(child.try_wait()?.is_none());
        child.kill()?;
        child.wait()?;
    }
    println!("{unfinished} of 20 runs were killed before their end");
    home.run_once()?;
    let keys = by_key(&lines)?;
    tally::check(&keys, &home.read("out.ndjson"))?;
    all_complete(&home, keys.len())
}
