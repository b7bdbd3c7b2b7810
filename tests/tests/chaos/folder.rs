//! A round that disturbs the folder of an embedded store, while events arrive over HTTP, through the inbox, through a
//! chain, or from RabbitMQ.
//!
//! There are four disturbances:
//!
//! - An earlier copy replaces the folder.
//! - The folder is moved away while the host runs.
//! - The folder is absent at a start.
//! - The folder lacks a file at a start.
//!
//! The test makes the copy while the host is paused, and puts it in place of the folder after the host has ended.
//! Events that were accepted between these two moments may be lost, because the copy returns the store to an earlier
//! time. All other events take effect once and in order. The host never removes a line from the file of its sink. At
//! each start, the host must log how many lines of this file contain a message that the store lacks.
//!
//! RabbitMQ does not deliver an acknowledged event again. If the events pass through RabbitMQ, all of them must
//! therefore have taken effect before the test makes the copy. In these rounds, the folder is never absent at a start.
//! Without the folder, the host would create a new store, and would execute and acknowledge the waiting events. The
//! test then discards the new store, so the events would be lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ordain_servers::wait_until;
use ordain_tests::host::copy_folder;
use ordain_tests::http;
use ordain_tests::rig::Rig;
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::effects::{Counts, Demands, taken, until_taken};
use super::event_target::{EventTarget, post};
use super::events::{Producer, RunningProducer, SentEvents, unsafe_events, while_producing};
use super::receiver::{Backlog, Kind, Receiver, explain};
use super::routes::Route;

const STORE: &str = "store";
/// The folder of the store while it is moved away.
const MOVED_STORE: &str = "aside";
/// A second copy of the store's folder. The command `ordain keys list` reads this copy.
const LISTED_STORE: &str = "listed";
/// The beginning of the log line of a host whose store lacks messages that are in the sink's file.
const LACKS_LINES: &str = "THE STORE WENT BACK IN TIME: it lacks the last messages of the file";
const SINK_FILE: &str = "out.ndjson";
/// How long a host may continue to run after the test has moved the folder of the store away. The host checks the
/// folder every 300 ms. The rest of the limit allows for a busy machine.
const NOTICED_LIMIT: Duration = Duration::from_secs(3);
/// How long a host may continue to accept events after the test has moved the folder of the store away. The host's log
/// promises at most one second. The other second allows for a busy machine.
const ACCEPT_LIMIT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

#[derive(Debug)]
struct Settings {
    route: Route,
    is_fifo: bool,
    backlog: Backlog,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// The folder is copied while the host is paused. The copy replaces the folder later, after the host has ended.
    Restored,
    /// The folder is moved away while the host runs. After the host has ended, the folder is moved back.
    Moved,
    /// The folder is absent at one start of the host, and is moved back before the next start.
    Absent,
    /// A table of the store lacks its file `current` at one start of the host.
    Incomplete,
}

const STEPS: [Step; 4] = [Step::Restored, Step::Moved, Step::Absent, Step::Incomplete];

impl Settings {
    fn draw(random: &mut ChaCha8Rng) -> Self {
        // Only one process can open an embedded store, so the routes of `ordain publish` are absent.
        let mut route = Route::draw_without_file(random);
        // Restarts may change the order in which RabbitMQ delivers events; a `sequenced` stream restores this order.
        let is_fifo = !route.uses_broker() && random.random_bool(0.6);
        if let Route::Chain { is_numbered } = &mut route {
            // If a host ends, the events of a `fifo` stream may get new numbers, and then their messages may get new
            // numbers as well (docs/guide/chains.md).
            *is_numbered &= !is_fifo;
        }
        Self { route, is_fifo, backlog: Backlog::draw(random) }
    }
}

struct Round {
    kind: Kind,
    /// The broker, if the events pass through one.
    rig: Option<Arc<Rig>>,
    host: Receiver,
    settings: Settings,
    sent: SentEvents,
    went_back: bool,
    done: Vec<String>,
}

pub(crate) fn play(random: &mut ChaCha8Rng) -> Result<String> {
    let settings = Settings::draw(random);
    let rig = settings.route.start_broker()?;
    let kind = Kind {
        route: settings.route,
        is_fifo: settings.is_fifo,
        backlog: settings.backlog,
        store: format!("kind = \"embedded\"\npath = \"{STORE}\""),
        broker: rig.as_ref().map(|rig| rig.rabbit.url()),
        file: Some(SINK_FILE),
        ..Kind::default()
    };
    let host = Receiver::start(&kind)?;
    if let Some(rig) = &rig {
        rig.until_declared()?;
    }
    let sent = SentEvents::new();
    let mut round = Round { kind, rig, host, settings, sent, went_back: false, done: Vec::new() };
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
        let step = match *STEPS.choose(random).context("a step")? {
            Step::Absent if self.settings.route.uses_broker() => Step::Restored,
            step => step,
        };
        let table = random.random_range(0..1_000);
        self.produce(seed, |round, producer, producing| {
            sleep(times[0]);
            match step {
                Step::Restored => round.restore(producer, producing, times[1], is_killed),
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

    fn produce(
        &mut self,
        seed: u64,
        meanwhile: impl FnOnce(&mut Self, &Producer, &RunningProducer<'_>) -> Result<()>,
    ) -> Result<()> {
        let producer = Producer {
            target: self.target()?,
            route: self.settings.route,
            backlog: self.settings.backlog,
            has_gaps: !self.settings.is_fifo,
            ..Producer::default()
        };
        let mut sent = std::mem::take(&mut self.sent);
        let done = while_producing(&producer, &mut sent, seed, |producing| {
            meanwhile(self, &producer, producing)
        });
        self.sent = sent;
        done
    }

    fn target(&self) -> Result<EventTarget> {
        EventTarget::new(&self.kind, self.rig.as_ref(), std::slice::from_ref(&self.host))
    }

    fn end(&mut self, is_killed: bool) -> Result<()> {
        if is_killed { self.host.service.kill() } else { self.host.service.end() }
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        fs::rename(self.host.home.path(from), self.host.home.path(to))
            .with_context(|| format!("cannot rename {from} to {to}"))
    }

    /// If the events pass through the broker, stops the producer and waits until all events have taken effect. The
    /// producer waits as long as the returned guard exists.
    fn before_copy<'a>(
        &self,
        producer: &Producer,
        producing: &RunningProducer<'a>,
    ) -> Result<Option<MutexGuard<'a, SentEvents>>> {
        let route = self.settings.route;
        if !route.uses_broker() {
            return Ok(None);
        }
        let gate = producing.stop(|| Ok(()))?;
        // If a copy has already replaced the folder, this earlier copy may lack some of the unsafe events. The producer
        // therefore sends the unsafe events again.
        producer.target.send_again(route, &unsafe_events(&gate))?;
        let demands = Demands { wants_all: true, route, ..Demands::default() };
        until_taken(std::slice::from_ref(&self.host), &gate, demands)?;
        Ok(Some(gate))
    }

    /// Copies the folder while the host is paused, lets the host continue for the time `later`, ends the host, and
    /// replaces the folder by the copy.
    fn restore(
        &mut self,
        producer: &Producer,
        producing: &RunningProducer<'_>,
        later: Duration,
        is_killed: bool,
    ) -> Result<()> {
        let gate = self.before_copy(producer, producing)?;
        producer.phase.fetch_add(1, Ordering::SeqCst);
        let [store, copy] = [STORE, "copy"].map(|name| self.host.home.path(name));
        self.host.service.pause()?;
        // Makes two copies. The first copy becomes the folder of the store, and no process opens it before the host.
        // The command `ordain keys list` opens the second copy.
        let copied = copy_folder(&store, &copy)
            .and_then(|()| copy_folder(&store, &self.host.home.path(LISTED_STORE)));
        let lines = self.host.home.lines(SINK_FILE);
        self.host.service.resume()?;
        copied?;
        drop(gate);
        sleep(later);
        self.end(is_killed)?;
        fs::remove_dir_all(&store)?;
        self.rename("copy", STORE)?;
        self.went_back = true;
        producer.phase.fetch_add(1, Ordering::SeqCst);
        let lost = self.lines_without_effect(lines)?;
        self.done.push(format!("{lost} lines lost"));
        self.keep_lines(Receiver::start_again)?;
        self.check_lost_lines(lost)
    }

    /// Moves the folder away while the host runs. The host must soon stop accepting events, and must end. The events
    /// that the host still accepts are in the folder when the test moves the folder back.
    fn move_away(&mut self, producer: &Producer) -> Result<()> {
        self.rename(STORE, MOVED_STORE)?;
        let started = Instant::now();
        while self.host.service.is_running()? {
            ensure!(
                started.elapsed() < NOTICED_LIMIT,
                "the host is still running without its folder"
            );
            sleep(POLL_INTERVAL);
        }
        self.done.push(format!("noticed after {:.1?}", started.elapsed()));
        let accepted = producer.accepted_at().map(|at| at.saturating_duration_since(started));
        // On this route, the broker accepts the events instead of the host.
        let is_by_broker = self.settings.route == Route::Exchange;
        ensure!(
            is_by_broker || accepted.is_none_or(|accepted| accepted < ACCEPT_LIMIT),
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
        self.rename(MOVED_STORE, STORE)?;
        self.keep_lines(Receiver::start_again)?;
        self.check_lost_lines(0)
    }

    /// Starts the host once without the folder. The host must create a new store, and log this.
    fn start_without(&mut self, is_killed: bool) -> Result<()> {
        self.end(is_killed)?;
        self.rename(STORE, MOVED_STORE)?;
        // The new store is discarded later, so the producer's events must not reach it. The host therefore listens on
        // another port.
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
        let rest = log.split_once("ingress listening on http://").context("a listener")?.1;
        let address = rest.split_whitespace().next().context("an address")?.parse()?;
        let lines = self.host.home.lines(SINK_FILE);
        let number = self.done.len() as u64 + 1;
        let event = self.settings.route.event(&format!("new-{number}"), 1)?;
        ensure!(post(address, &(event + "\n"))?.status == 202);
        wait_until("an effect in the new store", || Ok(self.host.home.lines(SINK_FILE) > lines))?;
        self.host.service.end()?;
        fs::remove_dir_all(&store)?;
        self.rename(MOVED_STORE, STORE)?;
        self.host.home.write("ordain.toml", &config)?;
        self.keep_lines(Receiver::start_again)?;
        // The old store lacks one line of the sink's file: the message that the host published while it used the new
        // store.
        self.check_lost_lines(1)
    }

    /// Removes the file `current` from one table of the store. The host must refuse to start. Then the test puts the
    /// file back, and the host must start.
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
            let is_reported =
                log.contains("has no file keyspaces/") && log.contains("so it is damaged");
            ensure!(!status.success() && is_reported, "the start ended with {status}: {log}");
            Ok(())
        })?;
        fs::rename(&aside, &file)?;
        self.keep_lines(Receiver::start_again)?;
        self.check_lost_lines(0)
    }

    /// Returns the number of lines whose events have no effect in the second copy of the store. Counts only lines after
    /// the first `first` lines of the sink's file. Removes the second copy.
    fn lines_without_effect(&self, first: usize) -> Result<u64> {
        let home = &self.host.home;
        let config = home.read("ordain.toml");
        let listed =
            config.replace(&format!("path = \"{STORE}\""), &format!("path = \"{LISTED_STORE}\""));
        home.write("listed.toml", &listed)?;
        let stream = self.settings.route.last_stream();
        let list = format!("keys list {stream} --json --limit 1000000 --config listed.toml");
        let rows = home.rows(&list.split(' ').collect::<Vec<_>>())?;
        fs::remove_dir_all(home.path(LISTED_STORE))?;
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

    /// Checks the log of the last start: the host must have reported that the store lacks the messages of `lost` lines.
    fn check_lost_lines(&self, lost: u64) -> Result<()> {
        let log = self.host.service.stderr();
        let warnings = log.lines().filter(|line| line.contains(LACKS_LINES));
        let number = |line: &str| {
            let (_, rest) = line.split_once("lines=")?;
            rest.split_whitespace().next()?.parse::<u64>().ok()
        };
        let logged: u64 = warnings.filter_map(number).sum();
        ensure!(
            logged == lost,
            "the store lacks {lost} lines, but the log reports {logged}: {log}"
        );
        Ok(())
    }

    /// Calls `action`, and checks that the sink's file then has all the lines that it had before. The last lines may be
    /// in another order: if the store lacks their messages, each partition publishes its messages again.
    fn keep_lines(&mut self, action: impl FnOnce(&mut Receiver) -> Result<()>) -> Result<()> {
        let before = self.host.output();
        action(&mut self.host)?;
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
        let Settings { route, is_fifo, .. } = self.settings;
        if !is_fifo && self.went_back {
            self.target()?.send_again(route, &self.sent)?;
        }
        let wants_all = !is_fifo;
        let demands = Demands { wants_all, is_exact: !self.went_back, route, ..Demands::default() };
        until_taken(host, &self.sent, demands)?;
        sleep(Duration::from_secs(1));
        let taken = taken(host, &self.sent, demands)?;
        // The store never goes back while a process runs.
        self.host.check_lost(0)?;
        ensure!(http::get(http::admin(&mut self.host.service)?, "/readyz")?.status == 200);
        Ok(Counts::of(&self.sent, &taken))
    }
}
