//! Tests of the checkpoint of a file when the store is Redis. The checkpoint must never cover events whose commits the
//! server has lost, and an owner that has lost the partition must not write the checkpoint.

use std::collections::HashSet;
use std::fs::File;
use std::process::{Child, Stdio};

use anyhow::{Result, ensure};
use ordain_servers::{Redis, send_signal, wait_until};
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::service::Service;
use serde_json::json;

/// The number of events. The number is so high that the host reads only a small part of the events again after a crash.
const EVENTS: usize = 60_000;

/// A Redis server, and the home of a host with a `fifo` stream of one key. The store keeps only the ids of the last
/// 5,024 events (`id_window`). If the host reads an older event again, the event takes effect twice.
struct Rig {
    redis: Redis,
    home: Home,
}

impl Rig {
    fn new() -> Result<Self> {
        let redis = Redis::start(&[])?;
        let config = format!(
            "[runtime]\nlease = \"2s\"\n[store]\nkind = \"redis\"\nurl = \"{}\"\n\
             [streams.cases]\nhandler = \"tally\"\nordering = \"fifo\"\nid_window = 5024\n\
             source = {{ kind = \"file\", path = \"events.ndjson\" }}\n\
             [sinks.tally]\nkind = \"file\"\npath = \"-\"\n",
            redis.url()
        );
        let home = Home::new(&["tally"], &config)?;
        let line = |number: usize| {
            format!(
                "{{\"specversion\":\"1.0\",\"source\":\"t\",\"id\":\"e{number}\",\"subject\":\"k\",\
                 \"type\":\"t\",\"data\":{{\"n\":{number}}}}}\n"
            )
        };
        home.write("events.ndjson", (1..=EVENTS).map(line).collect::<String>())?;
        Ok(Self { redis, home })
    }

    fn start(&self, name: &str, args: &[&str]) -> Result<Child> {
        let out = |kind: &str| File::create(self.home.path(&format!("{kind}-{name}")));
        let mut command =
            self.home.ordain(&[&["--log", "warn", "run", "--json"], args].concat())?;
        Ok(command.stdout(out("out")?).stderr(out("err")?).stdin(Stdio::null()).spawn()?)
    }

    /// Starts the run `first`, and waits until it has printed a part of the messages.
    fn start_first(&self) -> Result<Child> {
        let run = self.start("first", &[])?;
        self.printed("first", 10_000)?;
        Ok(run)
    }

    fn run_once(&self, name: &str) -> Result<()> {
        self.check_success(name, &mut self.start(name, &["--once"])?)
    }

    /// Waits until the run has ended, which must be successful.
    fn check_success(&self, name: &str, run: &mut Child) -> Result<()> {
        let status = run.wait()?;
        ensure!(status.success(), "{}", self.home.read(&format!("err-{name}")));
        Ok(())
    }

    /// Waits until the run `first` has printed all messages, and the checkpoint covers all events.
    fn until_all_covered(&self) -> Result<()> {
        self.printed("first", EVENTS)?;
        self.until_last_checkpoint()
    }

    fn until_last_checkpoint(&self) -> Result<()> {
        wait_until("the last checkpoint", || Ok(covers_all(&self.mark()?)))
    }

    fn printed(&self, name: &str, at_least: usize) -> Result<()> {
        wait_until("messages", || Ok(self.home.lines(&format!("out-{name}")) >= at_least))
    }

    fn expect_logged(&self, name: &str, words: &str) -> Result<()> {
        wait_until(words, || Ok(self.home.read(&format!("err-{name}")).contains(words)))
    }

    /// Returns the stored checkpoint as JSON, or an empty text if the store has no checkpoint.
    fn mark(&self) -> Result<String> {
        let mark = self.redis.command(&["HGET", "ordain:{0}:marks", "source/cases"])?;
        Ok(mark.text().unwrap_or_default().to_owned())
    }

    /// Runs the host once more and checks that no event takes effect again. If the store has not recorded messages as
    /// published, the run may print them again.
    fn expect_no_repeats(&self, runs: &[&str]) -> Result<()> {
        self.expect_all_effects_once()?;
        let printed = runs.iter().map(|run| self.home.read(&format!("out-{run}")));
        let printed = printed.collect::<String>();
        let known: HashSet<&str> = printed.lines().collect();
        let last = self.home.read("out-last");
        ensure!(last.lines().all(|line| known.contains(line)), "an event took effect again");
        Ok(())
    }

    /// Runs the host once more and checks that every event has taken effect once. If an event took effect twice, the
    /// next sequence of the key would be too high.
    fn expect_all_effects_once(&self) -> Result<()> {
        self.run_once("last")?;
        let row = &self.home.rows(&["keys", "list", "cases", "--json"])?[0];
        ensure!(row["next"] == EVENTS + 1, "{row}");
        Ok(())
    }
}

fn covers_all(mark: &str) -> bool {
    mark.contains(&format!("\"line\":{EVENTS}"))
}

#[test]
fn owner_that_lost_the_partition_writes_no_checkpoint() -> Result<()> {
    let rig = Rig::new()?;
    let mut first = rig.start_first()?;
    send_signal(first.id(), "STOP")?;
    rig.run_once("second")?;
    let mark = rig.mark()?;
    ensure!(covers_all(&mark), "{mark}");
    send_signal(first.id(), "CONT")?;
    rig.expect_logged("first", "another process owns the partition now")?;
    // The first process owns the partition again, or will own it soon. All events are already processed.
    send_signal(first.id(), "TERM")?;
    rig.check_success("first", &mut first)?;
    ensure!(rig.mark()? == mark, "{} after {mark}", rig.mark()?);
    rig.expect_no_repeats(&["first", "second"])
}

#[test]
fn checkpoint_lost_by_the_server_is_written_again() -> Result<()> {
    let rig = Rig::new()?;
    let mut run = rig.start_first()?;
    let early = rig.redis.snapshot()?;
    rig.until_all_covered()?;
    rig.redis.go_back(&early)?;
    // The process still has the lost commits in memory, and repeats them. The process must not write the checkpoint
    // before all lost commits are stored again.
    wait_until("the restored checkpoint", || {
        let mark = rig.mark()?;
        let row = &rig.home.rows(&["keys", "list", "cases", "--json"])?[0];
        ensure!(
            !covers_all(&mark) || row["next"] == EVENTS + 1,
            "the checkpoint {mark} is ahead of {row}"
        );
        Ok(covers_all(&mark))
    })?;
    run.kill()?;
    run.wait()?;
    rig.expect_no_repeats(&["first"])
}

/// Between two runs, the shard with the key loses its data. The checkpoint is in another shard, and still covers every
/// event. The next run must detect the loss, and read the file from its beginning.
#[test]
fn commits_lost_between_runs_are_repeated_from_the_file() -> Result<()> {
    let rig = Rig::new()?;
    rig.run_once("first")?;
    let shard = ordain_core::shard_of("k", 16);
    ensure!(shard != 0, "the key is in shard 0, the shard of the checkpoint");
    rig.redis.command(&["DEL", &format!("ordain:{{{shard}}}:data:cases")])?;
    let mut service = Service::start(&rig.home, &["run"])?;
    service.until_says("reading the file from its beginning")?;
    let log = service.stderr();
    ensure!(log.contains(&format!("[{shard}]")), "the warning does not name shard {shard}: {log}");
    let admin = http::admin(&mut service)?;
    let name = format!("ordain_rollbacks_total{{stream=\"cases\",shard=\"{shard}\"}}");
    wait_until("a count of the loss", || {
        Ok(http::metric(admin, &name)?.is_some_and(|count| count > 0))
    })?;
    service.end()?;
    rig.expect_all_effects_once()?;
    ensure!(
        !rig.home.read("err-last").contains("from its beginning"),
        "the file is read from its beginning again"
    );
    Ok(())
}

/// The store has data of the stream, but the checkpoint is unreadable. An older file may have unread lines, so the host
/// must read the older file too.
#[test]
fn older_files_are_read_if_the_checkpoint_is_unreadable() -> Result<()> {
    let rig = Rig::new()?;
    rig.run_once("first")?;
    rig.redis.command(&["HSET", "ordain:{0}:marks", "source/cases", "no checkpoint"])?;
    let event = json!({
        "specversion": "1.0", "source": "t", "id": "older", "subject": "older", "type": "t", "data": {},
    });
    rig.home.write("events.ndjson.1", format!("{event}\n"))?;
    let status = rig.start("last", &["--once"])?.wait()?;
    let log = rig.home.read("err-last");
    ensure!(status.success() && log.contains("from its beginning"), "{log}");
    ensure!(rig.home.read("out-last").contains("\"subject\":\"older\""));
    Ok(())
}

/// Imitates a successor that dies while it claims the partition: shard 0 has the successor's claim, but the shard of
/// the key does not. The first process must claim the partition again and continue.
#[test]
fn owner_that_lost_one_shard_starts_again() -> Result<()> {
    let rig = Rig::new()?;
    let lines = rig.home.read("events.ndjson");
    let (some, rest) = lines.split_at(lines.match_indices('\n').nth(9_999).expect("lines").0 + 1);
    rig.home.write("events.ndjson", some)?;
    let mut run = rig.start_first()?;
    wait_until("a checkpoint", || Ok(rig.mark()?.contains("\"line\":10000")))?;
    let next_epoch = "local fence = redis.call('HGET', KEYS[1], 'f0') \
        local epoch = struct.pack('<I8', struct.unpack('<I8', string.sub(fence, 2, 9)) + 1) \
        fence = string.sub(fence, 1, 1) .. epoch .. string.sub(fence, 10) \
        return redis.call('HSET', KEYS[1], 'f0', fence)";
    rig.redis.command(&["EVAL", next_epoch, "1", "ordain:{0}:data:cases"])?;
    rig.home.append("events.ndjson", rest)?;
    rig.expect_logged("first", "another process owns the partition now")?;
    rig.until_last_checkpoint()?;
    send_signal(run.id(), "TERM")?;
    rig.check_success("first", &mut run)?;
    rig.expect_all_effects_once()
}

/// The server is reset to a snapshot while the stream is idle, and the test immediately ends the host. During its
/// shutdown, the host must detect the loss and repeat the lost commits from memory.
#[test]
fn shutdown_repeats_lost_commits() -> Result<()> {
    let rig = Rig::new()?;
    let mut run = rig.start_first()?;
    let early = rig.redis.snapshot()?;
    rig.until_all_covered()?;
    rig.redis.go_back(&early)?;
    send_signal(run.id(), "TERM")?;
    rig.check_success("first", &mut run)?;
    let mark = rig.mark()?;
    ensure!(covers_all(&mark), "{mark}");
    let log = rig.home.read("err-first");
    ensure!(log.contains("all of them were repeated from memory"), "{log}");
    rig.expect_no_repeats(&["first"])
}

/// The process receives the signal to end while the server is down. The process must wait for the server. The server
/// then returns without its latest data, and the process must repeat the lost commits.
#[test]
fn shutdown_waits_for_an_unavailable_server() -> Result<()> {
    let rig = Rig::new()?;
    let mut run = rig.start_first()?;
    let early = rig.redis.snapshot()?;
    rig.printed("first", EVENTS)?;
    rig.redis.kill()?;
    send_signal(run.id(), "TERM")?;
    std::thread::sleep(std::time::Duration::from_secs(2));
    ensure!(run.try_wait()?.is_none(), "the process has ended without its store");
    rig.redis.go_back(&early)?;
    rig.check_success("first", &mut run)?;
    rig.expect_no_repeats(&["first"])
}

/// A Lua script that replaces the value of a Redis key with a foreign value. `PUT_BACK` restores the former value. Each
/// script is atomic, so no reader finds the key missing.
const OVERWRITE: &str =
    "if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('RENAME', KEYS[1], KEYS[2]) end
    redis.call('SET', KEYS[1], 'foreign')";
const PUT_BACK: &str = "redis.call('DEL', KEYS[1])
    if redis.call('EXISTS', KEYS[2]) == 1 then redis.call('RENAME', KEYS[2], KEYS[1]) end";

/// Another program overwrites data that all keys of a shard share, and later restores the data. The run must wait until
/// the data is restored, and then continue.
#[test]
fn overwritten_store_data_pauses_the_run() -> Result<()> {
    let rig = Rig::new()?;
    let mut run = rig.start("first", &[])?;
    rig.printed("first", 5_000)?;
    for kind in ["marks", "data:cases"] {
        let change = |script: &str| -> Result<()> {
            for shard in if kind == "marks" { 0..1 } else { 0..16 } {
                let name = format!("ordain:{{{shard}}}:{kind}");
                let aside = format!("{name}:aside");
                rig.redis.command(&["EVAL", script, "2", &name, &aside])?;
            }
            Ok(())
        };
        change(OVERWRITE)?;
        let warning = format!(":{kind} is a string");
        wait_until("a warning", || Ok(rig.home.read("err-first").contains(&warning)))?;
        ensure!(run.try_wait()?.is_none(), "{}", rig.home.read("err-first"));
        let printed = rig.home.lines("out-first");
        change(PUT_BACK)?;
        rig.printed("first", (printed + 1_000).min(EVENTS))?;
    }
    rig.until_all_covered()?;
    run.kill()?;
    run.wait()?;
    rig.expect_no_repeats(&["first"])
}
