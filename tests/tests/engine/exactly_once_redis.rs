//! Tests of the main scenario with the store in Redis: the host reads events from a file, and writes the messages of
//! the handler to standard output. The tests kill runs and the server. Standard output may get a message twice, so the
//! tests count each message once, by its id.

use std::collections::HashSet;
use std::fs::File;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ordain_servers::{Redis, wait_until};
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, disturb, real_or_generated, text};
use ordain_tests::seed::kill_seed;
use ordain_tests::tally;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

struct Rig {
    redis: Redis,
    home: Home,
    lines: Vec<String>,
    runs: usize,
}

impl Rig {
    fn new(lines: Vec<String>, window: usize, nth: usize, seed: u64) -> Result<Self> {
        let redis = Redis::start(&[])?;
        let config = tally::CONFIG.replace("\"out.ndjson\"", "\"-\"");
        let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
        let home = Home::new(&["tally"], &format!("{store}{config}"))?;
        home.write("events.ndjson", text(&disturb(&lines, window, nth, seed)))?;
        Ok(Self { redis, home, lines, runs: 0 })
    }

    /// Starts a run. Each run writes its output to a separate file.
    fn start(&mut self) -> Result<Child> {
        self.start_with(&["--once", "--json"])
    }

    fn start_with(&mut self, args: &[&str]) -> Result<Child> {
        self.runs += 1;
        let out = |kind: &str| File::create(self.home.path(&format!("{kind}-{}", self.runs)));
        let mut command = self.home.ordain(&[&["--log", "warn", "run"], args].concat())?;
        Ok(command.stdout(out("out")?).stderr(out("err")?).stdin(Stdio::null()).spawn()?)
    }

    fn finish(&mut self, mut run: Child) -> Result<()> {
        let status = run.wait()?;
        let log = self.home.read(&format!("err-{}", self.runs));
        ensure!(status.success(), "the run failed ({status}): {log}");
        Ok(())
    }

    /// Returns the duration of a run without kills, after the handler has been compiled. Removes the data of the run
    /// afterwards.
    fn measure_undisturbed_run(&mut self) -> Result<Duration> {
        let mut whole = Duration::ZERO;
        for _ in 0..2 {
            self.redis.command(&["FLUSHALL"])?;
            self.runs = 0;
            let started = Instant::now();
            let run = self.start()?;
            self.finish(run)?;
            whole = started.elapsed();
        }
        self.check()?;
        self.redis.command(&["FLUSHALL"])?;
        self.runs = 0;
        Ok(whole)
    }

    /// Returns each message of all runs once, in the order of the first occurrences, and the number of repeats.
    fn printed(&self) -> Result<(String, usize)> {
        let mut once = String::new();
        let mut ids = HashSet::new();
        let mut repeats = 0;
        for run in 1..=self.runs {
            let text = self.home.read(&format!("out-{run}"));
            // A kill may truncate the last line.
            for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
                let message: Value = serde_json::from_str(line).context(line.to_owned())?;
                if ids.insert(message["id"].as_str().context("an id")?.to_owned()) {
                    once.push_str(line);
                } else {
                    repeats += 1;
                }
            }
        }
        Ok((once, repeats))
    }

    /// Checks that every key has completed with its last event and has all its messages. The store must have no dead
    /// letters and no held events.
    fn check(&self) -> Result<()> {
        let keys = by_key(&self.lines)?;
        let (printed, repeats) = self.printed()?;
        println!("{repeats} messages were printed again");
        tally::check(&keys, &printed)?;
        let completed = ["keys", "list", "cases", "--status", "completed", "--json"];
        let limit = ["--limit", "1000000"];
        let completed = self.home.rows(&[&completed[..], &limit[..]].concat())?;
        ensure!(
            completed.len() == keys.len(),
            "{} of {} keys have completed",
            completed.len(),
            keys.len()
        );
        let dead = self.home.rows(&["dead", "list", "cases", "--json"])?;
        ensure!(dead.is_empty(), "dead letters: {dead:?}");
        Ok(())
    }
}

/// Returns a random time that is shorter than `whole`, the duration of a run.
fn random_kill_delay(random: &mut ChaCha8Rng, whole: Duration) -> Duration {
    Duration::from_micros(random.random_range(0..whole.as_micros() as u64))
}

#[test]
fn shuffled_and_repeated_lines_are_processed_exactly_once() -> Result<()> {
    let mut rig = Rig::new(real_or_generated()?, 100, 10, 1)?;
    let run = rig.start()?;
    rig.finish(run)?;
    rig.check()
}

#[test]
fn twenty_kills_lose_and_repeat_nothing() -> Result<()> {
    let mut rig = Rig::new(real_or_generated()?, 100, 10, 2)?;
    let whole = rig.measure_undisturbed_run()?;
    let mut random = ChaCha8Rng::seed_from_u64(kill_seed()?);
    let mut unfinished = 0;
    for _ in 0..20 {
        let mut run = rig.start()?;
        std::thread::sleep(random_kill_delay(&mut random, whole));
        unfinished += u32::from(run.try_wait()?.is_none());
        run.kill()?;
        run.wait()?;
    }
    println!("{unfinished} of 20 runs were killed before their end");
    let run = rig.start()?;
    rig.finish(run)?;
    rig.check()
}

/// The server is killed under load and restarted several times, while one run continues.
#[test]
fn repeated_server_kills_lose_and_repeat_nothing() -> Result<()> {
    let mut rig = Rig::new(real_or_generated()?, 100, 10, 3)?;
    let whole = rig.measure_undisturbed_run()?;
    let mut random = ChaCha8Rng::seed_from_u64(kill_seed()?);
    let mut kills = 0;
    while kills < 20 {
        rig.redis.command(&["FLUSHALL"])?;
        let mut run = rig.start()?;
        // Kills the server repeatedly until the run has ended. All runs together have at most 20 kills.
        while run.try_wait()?.is_none() && kills < 20 {
            std::thread::sleep(random_kill_delay(&mut random, whole / 4));
            rig.redis.kill()?;
            kills += 1;
            std::thread::sleep(random_kill_delay(&mut random, Duration::from_millis(300)));
            rig.redis.restart()?;
        }
        rig.finish(run)?;
        rig.check()?;
        rig.runs = 0;
    }
    Ok(())
}

/// The test kills the run and the server in a random order. If it kills the server first, the run continues for a
/// random time without the server.
#[test]
fn kills_of_runs_and_server_lose_and_repeat_nothing() -> Result<()> {
    let mut rig = Rig::new(real_or_generated()?, 100, 10, 4)?;
    let whole = rig.measure_undisturbed_run()?;
    let mut random = ChaCha8Rng::seed_from_u64(kill_seed()?);
    for _ in 0..8 {
        let mut run = rig.start()?;
        std::thread::sleep(random_kill_delay(&mut random, whole));
        if random.random() {
            rig.redis.kill()?;
            std::thread::sleep(random_kill_delay(&mut random, whole / 4));
            run.kill()?;
        } else {
            run.kill()?;
            rig.redis.kill()?;
        }
        run.wait()?;
        rig.redis.restart()?;
    }
    let run = rig.start()?;
    rig.finish(run)?;
    rig.check()
}

/// The server loses its newest commits while no event arrives. The host must detect the loss, and repeat the lost
/// commits from memory.
#[test]
fn idle_run_repeats_lost_commits() -> Result<()> {
    let mut rig = Rig::new(real_or_generated()?, 100, 10, 5)?;
    let mut run = rig.start_with(&["--json"])?;
    let count = |rig: &Rig| rig.home.read("out-1").lines().count();
    wait_until("some messages", || Ok(count(&rig) > 100))?;
    let snapshot = rig.redis.snapshot()?;
    wait_until("all messages", || Ok(rig.check().is_ok()))?;
    let all = count(&rig);
    rig.redis.go_back(&snapshot)?;
    wait_until("the repeated commits", || {
        let log = rig.home.read("err-1");
        ensure!(run.try_wait()?.is_none(), "the run ended: {log}");
        Ok(log.contains("repeated from memory") && rig.check().is_ok())
    })?;
    ensure!(count(&rig) == all, "messages were printed again");
    run.kill()?;
    run.wait()?;
    Ok(())
}
