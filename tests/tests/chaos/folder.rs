//! A round that disturbs the folder of an embedded store, while events arrive over HTTP.
//!
//! Four things may happen to the folder: a copy that was made while the host was paused replaces it later; it is moved
//! away under the running host; it is absent at a start; or it lacks a file. Events that were accepted between a copy
//! and its return may be lost, because the copy returns the store to an earlier time. All other events take effect once
//! and in order. The host never removes a line of the sink's file. Each start must log exactly the number of lines in
//! this file whose messages the store lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ordain_servers::wait_until;
use ordain_tests::host::copy_folder;
use ordain_tests::http;
use ordain_tests::log::line;
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::effects::{Counts, Demands, taken, until_taken};
use super::events::{Producer, Sent, while_producing};
use super::outlet::{Outlet, post};
use super::receiver::{Backlog, Kind, Receiver, explain};
use super::ways::Way;

/// The folder of the store.
const STORE: &str = "store";
/// The folder of the store while it is moved away.
const ASIDE: &str = "aside";
/// The second copy of the folder, from which a command lists the keys.
const LISTED: &str = "listed";
/// The words in the log of a store that lacks messages of the sink's file.
const LACKS_LINES: &str = "THE STORE WENT BACK IN TIME: it lacks the last messages of the file";
/// The file of the sink.
const OUT: &str = "out.ndjson";
/// How long a host may run without its folder. The host checks three times a second; the rest is for a busy machine.
const NOTICED_LIMIT: Duration = Duration::from_secs(3);
/// How long a host without its folder may accept events: the second that its log states, and a second for a busy
/// machine.
const ACCEPT_LIMIT: Duration = Duration::from_secs(2);
/// The interval between two checks of a host that is expected to end.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// The settings of a round.
#[derive(Debug)]
struct Settings {
    is_fifo: bool,
    backlog: Backlog,
}

/// A disturbance of the folder.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The folder is copied while the host is paused, and the copy replaces it later.
    Restored,
    /// The folder is moved away while the host runs, and comes back.
    Moved,
    /// The folder is absent at a start, and comes back.
    Absent,
    /// A table lacks its first file at a start.
    Incomplete,
}

const STEPS: [Step; 4] = [Step::Restored, Step::Moved, Step::Absent, Step::Incomplete];

struct Round {
    host: Receiver,
    settings: Settings,
    sent: Sent,
    /// True if the store has returned to an earlier time.
    went_back: bool,
    done: Vec<String>,
}

/// Plays a round.
pub(crate) fn play(random: &mut ChaCha8Rng) -> Result<String> {
    let settings = Settings { is_fifo: random.random_bool(0.6), backlog: Backlog::draw(random) };
    let host = Receiver::start(&Kind {
        is_fifo: settings.is_fifo,
        backlog: settings.backlog,
        store: format!("kind = \"embedded\"\npath = \"{STORE}\""),
        file: Some(OUT),
        ..Kind::default()
    })?;
    let mut round = Round { host, settings, sent: Sent::new(), went_back: false, done: Vec::new() };
    let played = (0..random.random_range(1..5)).try_for_each(|_| round.disturb(random));
    let counted = played.and_then(|()| round.check());
    let Round { host, settings, done, .. } = &mut round;
    let counts = counted
        .with_context(|| format!("{done:?} {}", explain(&*settings, std::slice::from_ref(host))))?;
    host.service.end()?;
    Ok(format!("{counts}; {settings:?}; {}", done.join(", ")))
}

impl Round {
    fn disturb(&mut self, random: &mut ChaCha8Rng) -> Result<()> {
        let mut time = |most: u64| Duration::from_millis(random.random_range(100..most));
        let times = [time(1_500), time(1_000), time(1_000)];
        let is_killed = random.random_bool(0.5);
        let seed = random.random();
        let step = *STEPS.choose(random).context("a step")?;
        let table = random.random_range(0..1_000);
        self.produce(seed, |round, producer| {
            sleep(times[0]);
            match step {
                Step::Restored => round.restore(&producer.phase, times[1], is_killed),
                Step::Moved => round.move_away(producer),
                Step::Absent => round.start_without(is_killed),
                Step::Incomplete => round.start_incomplete(is_killed, table),
            }?;
            sleep(times[2]);
            Ok(())
        })?;
        let how = if is_killed { "killed" } else { "stopped" };
        self.done.push(match step {
            Step::Moved => format!("{step:?}"),
            _ => format!("{step:?} ({how})"),
        });
        Ok(())
    }

    /// Sends events while `meanwhile` runs.
    fn produce(
        &mut self,
        seed: u64,
        meanwhile: impl FnOnce(&mut Self, &Producer) -> Result<()>,
    ) -> Result<()> {
        let producer = Producer {
            outlet: Outlet::Hosts(vec![self.host.address]),
            backlog: self.settings.backlog,
            has_gaps: !self.settings.is_fifo,
            ..Producer::default()
        };
        let mut sent = std::mem::take(&mut self.sent);
        let done = while_producing(&producer, &mut sent, seed, |_| meanwhile(self, &producer));
        self.sent = sent;
        done
    }

    fn end(&mut self, is_killed: bool) -> Result<()> {
        if is_killed { self.host.service.kill() } else { self.host.service.end() }
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        fs::rename(self.host.home.path(from), self.host.home.path(to))
            .with_context(|| format!("cannot rename {from} to {to}"))
    }

    /// Replaces the folder with a copy that was made while the host was paused.
    fn restore(&mut self, phase: &AtomicU32, later: Duration, is_killed: bool) -> Result<()> {
        phase.fetch_add(1, Ordering::SeqCst);
        let [store, copy] = [STORE, "copy"].map(|name| self.host.home.path(name));
        self.host.service.pause()?;
        // A command opens the second copy, so that the host is the first that opens the other one.
        let copied = copy_folder(&store, &copy)
            .and_then(|()| copy_folder(&store, &self.host.home.path(LISTED)));
        let lines = self.host.home.lines(OUT);
        self.host.service.resume()?;
        copied?;
        sleep(later);
        self.end(is_killed)?;
        fs::remove_dir_all(&store)?;
        self.rename("copy", STORE)?;
        self.went_back = true;
        phase.fetch_add(1, Ordering::SeqCst);
        let lost = self.lines_without_effect(lines)?;
        self.done.push(format!("{lost} lines lost"));
        self.keep_lines(Receiver::start_again)?;
        self.check_lost_lines(lost)
    }

    /// Moves the folder away under the running host, which must end, and must soon accept no events. The events that it
    /// accepts until then are in the folder when the folder comes back.
    fn move_away(&mut self, producer: &Producer) -> Result<()> {
        self.rename(STORE, ASIDE)?;
        let started = Instant::now();
        while self.host.service.is_running()? {
            ensure!(
                started.elapsed() < NOTICED_LIMIT,
                "the host is still running without its folder"
            );
            sleep(LOOK_INTERVAL);
        }
        self.done.push(format!("noticed after {:.1?}", started.elapsed()));
        let accepted = producer.accepted_at().map(|at| at.saturating_duration_since(started));
        ensure!(
            accepted.is_none_or(|accepted| accepted < ACCEPT_LIMIT),
            "the host accepted an event {accepted:?} after it lost its folder"
        );
        let log = self.host.service.stderr();
        for words in ["is missing or was replaced", "Events acknowledged in the last second"] {
            ensure!(log.contains(words), "the log lacks {words:?}: {log}");
        }
        ensure!(
            !self.host.home.path(STORE).exists(),
            "the host made another folder at the place of the old folder"
        );
        self.rename(ASIDE, STORE)?;
        self.keep_lines(Receiver::start_again)?;
        self.check_lost_lines(0)
    }

    /// Starts once without the folder: the host must make a new store and log that.
    fn start_without(&mut self, is_killed: bool) -> Result<()> {
        self.end(is_killed)?;
        self.rename(STORE, ASIDE)?;
        // The producer's events must not reach this store.
        let config = self.host.home.read("ordain.toml");
        let other = config.replace(&format!(":{}\"", self.host.address.port()), ":0\"");
        self.host.home.write("ordain.toml", &other)?;
        self.keep_lines(Receiver::start_again)?;
        let log = self.host.service.stderr();
        let store = self.host.home.path(STORE);
        ensure!(
            log.contains("created a new store in "),
            "the log does not mention the new store: {log}"
        );
        let said = log.split_once("ingress listening on http://").context("a listener")?.1;
        let address = said.split_whitespace().next().context("an address")?.parse()?;
        let lines = self.host.home.lines(OUT);
        let number = self.done.len() as u64 + 1;
        let event = line(&format!("new-{number}"), 1, &json!({ "n": 1 }));
        ensure!(post(address, &(event + "\n"))?.status == 202);
        wait_until("an effect in the new store", || Ok(self.host.home.lines(OUT) > lines))?;
        self.host.service.end()?;
        fs::remove_dir_all(&store)?;
        self.rename(ASIDE, STORE)?;
        self.host.home.write("ordain.toml", &config)?;
        self.keep_lines(Receiver::start_again)?;
        // The old store lacks the message that the new store has published.
        self.check_lost_lines(1)
    }

    /// Starts with a table that lacks its first file, which the host must refuse, and then with the file.
    fn start_incomplete(&mut self, is_killed: bool, table: usize) -> Result<()> {
        self.end(is_killed)?;
        let tables = fs::read_dir(self.host.home.path(STORE).join("data/keyspaces"))?;
        let mut tables: Vec<PathBuf> =
            tables.map(|table| Ok(table?.path())).collect::<Result<_>>()?;
        tables.retain(|table| table.join("current").exists());
        tables.sort_unstable();
        let file = tables[table % tables.len()].join("current");
        let aside = self.host.home.path("current");
        fs::rename(&file, &aside)?;
        self.keep_lines(|host| {
            host.begin_again()?;
            let status = host.service.wait()?;
            let log = host.service.stderr();
            let is_said =
                log.contains("has no file keyspaces/") && log.contains("so it is damaged");
            ensure!(!status.success() && is_said, "the start ended with {status}: {log}");
            Ok(())
        })?;
        fs::rename(&aside, &file)?;
        self.keep_lines(Receiver::start_again)?;
        self.check_lost_lines(0)
    }

    /// Counts the lines of the sink's file after the first ones whose events have no effect in the second copy of the
    /// store. Removes this copy.
    fn lines_without_effect(&self, first: usize) -> Result<u64> {
        let home = &self.host.home;
        let config = home.read("ordain.toml");
        let listed =
            config.replace(&format!("path = \"{STORE}\""), &format!("path = \"{LISTED}\""));
        home.write("listed.toml", &listed)?;
        let list = "keys list cases --json --limit 1000000 --config listed.toml";
        let rows = home.rows(&list.split(' ').collect::<Vec<_>>())?;
        fs::remove_dir_all(home.path(LISTED))?;
        let next: BTreeMap<&str, u64> = rows
            .iter()
            .filter_map(|row| Some((row["key"].as_str()?, row["next"].as_u64()?)))
            .collect();
        let mut count = 0;
        let out = self.host.output();
        for line in out.lines().skip(first) {
            let message: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            let data = &message["data"];
            let key = data["key"].as_str().context("a key")?;
            let sequence = data["sequence"].as_u64().context("a sequence")?;
            count += u64::from(next.get(key).is_none_or(|next| *next <= sequence));
        }
        Ok(count)
    }

    /// Checks that the last start has logged this number of lines whose messages the store lacks.
    fn check_lost_lines(&self, lost: u64) -> Result<()> {
        let log = self.host.service.stderr();
        let told = log.lines().filter(|line| line.contains(LACKS_LINES));
        let number = |line: &str| {
            let (_, rest) = line.split_once("lines=")?;
            rest.split_whitespace().next()?.parse::<u64>().ok()
        };
        let logged: u64 = told.filter_map(number).sum();
        ensure!(logged == lost, "the store lacks {lost} lines, but the log says {logged}: {log}");
        Ok(())
    }

    /// Calls `what`, which must keep the lines of the sink's file. Lines that the store does not know may follow the
    /// others in another order, because each partition publishes them again.
    fn keep_lines(&mut self, what: impl FnOnce(&mut Receiver) -> Result<()>) -> Result<()> {
        let before = self.host.output();
        what(&mut self.host)?;
        wait_until("the earlier lines of the file", || {
            let after = self.host.output();
            let same = before.bytes().zip(after.bytes()).take_while(|(one, other)| one == other);
            let from = before[..same.count()].rfind('\n').map_or(0, |at| at + 1);
            let before = before.get(from..);
            let after = after.get(from..);
            let after: BTreeSet<&str> = after.unwrap_or_default().lines().collect();
            Ok(before.unwrap_or_default().lines().all(|line| after.contains(line)))
        })
        .context("the file lacks earlier lines")
    }

    fn check(&mut self) -> Result<Counts> {
        let host = std::slice::from_ref(&self.host);
        let is_fifo = self.settings.is_fifo;
        if !is_fifo && self.went_back {
            Outlet::Hosts(vec![self.host.address]).send_again(Way::Http, &self.sent)?;
        }
        let wants_all = !is_fifo;
        let demands = Demands { wants_all, is_exact: !self.went_back, ..Demands::default() };
        until_taken(host, &self.sent, demands)?;
        sleep(Duration::from_secs(1));
        let taken = taken(host, &self.sent, demands)?;
        // The store never goes back while a process runs.
        self.host.check_lost(0)?;
        ensure!(http::get(http::admin(&mut self.host.service)?, "/readyz")?.status == 200);
        Ok(Counts::of(&self.sent, taken))
    }
}
