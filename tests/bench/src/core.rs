//! `core`: measures the sequencer alone. The benchmark replaces the store and the workers: it answers each request
//! immediately, and keeps only the next sequence of each key. The sides of the comparison differ in the number of keys
//! and in the order of the events. The benchmark also measures the call of a handler, and the creation of an event.

use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ordain_core::{
    AppliedCommit, CommitReply, Effect, Event, EventParts, FileDigest, HandlerOutcome, Input, Key,
    KeyRecord, KeySnapshot, Rollout, Sequencer, StateUpdate, Turn, TurnResult,
};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

use crate::report::{Report, Row};
use crate::{CommonArgs, content, crossing};

/// The number of keys of each side.
const KEYS: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// Number of measured events of a side. Before these events, the side executes one unmeasured event of each key. The
/// unmeasured events warm up the memory, and give each key a record. When a later event arrives and the key is not in
/// memory, the sequencer must load this record.
const EVENT_COUNT: u64 = 2_000_000;
/// Number of events in a run that counts instructions. Such a run is fifty times slower than a run that counts no
/// instructions.
const COUNTED_EVENTS: u64 = 200_000;
/// The data of each event.
const DATA: [u8; 256] = [b'x'; 256];
/// The state of each key.
const STATE: [u8; 128] = [b's'; 128];
/// The disturbed order: the benchmark shuffles each group of `SHUFFLE_DISTANCE` consecutive events, and delivers one in
/// `REPEAT_INTERVAL` events twice.
const SHUFFLE_DISTANCE: usize = 100;
const REPEAT_INTERVAL: usize = 20;
/// Number of events that the benchmark creates at a time. Their creation does not count towards the measured time.
const CHUNK: u64 = 512;

pub(crate) fn bench(common: &CommonArgs) -> Result<Report> {
    let counts = Command::new("valgrind").arg("--version").output().is_ok();
    let mut rows = Vec::new();
    for disturbed in [false, true] {
        for keys in KEYS {
            let side = Side { keys, events: EVENT_COUNT, disturbed };
            eprintln!("{}", side.name());
            let runs: Result<Vec<Row>> = (0..common.runs).map(|_| side.row()).collect();
            let mut row = Row::median(&runs?);
            if counts {
                row.instructions_per_event = Some(side.instructions()?);
            }
            rows.push(row);
        }
    }
    rows.extend(crossing::rows(common)?);
    rows.extend(content::rows(common));
    let report = Report::new("core", rows);
    let report = if counts {
        report
    } else {
        report.note("no instruction counts: valgrind is missing (Debian: apt install valgrind)")
    };
    Ok(report
        .ratio("1000000 keys", "1000 keys")
        .ratio("1000000 keys, disturbed", "1000 keys, disturbed"))
}

/// A side: the sequencer with a number of keys and of measured events, delivered in order or disturbed.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Side {
    /// Number of keys
    #[arg(long)]
    keys: u64,
    /// Number of measured events
    #[arg(long)]
    events: u64,
    /// Deliver the events out of order, and some events twice
    #[arg(long)]
    disturbed: bool,
}

impl Side {
    fn name(self) -> String {
        format!("{} keys{}", self.keys, if self.disturbed { ", disturbed" } else { "" })
    }

    fn row(self) -> Result<Row> {
        let took = self.measure()?;
        Ok(Row {
            side: self.name(),
            events_per_s: self.events as f64 / took.as_secs_f64(),
            ns_per_event: Some(took.as_nanos() as f64 / self.events as f64),
            ..Row::default()
        })
    }

    /// Runs the side in this process, for a tool that counts the instructions or takes samples.
    pub(crate) fn run(self) -> Result<()> {
        let row = self.row()?;
        println!("{}: {:.0} events/s", row.side, row.events_per_s);
        Ok(())
    }

    /// Returns the number of instructions per event. Valgrind counts only the instructions inside
    /// [`SequencerLoop::counted`].
    fn instructions(self) -> Result<f64> {
        let out = tempfile::NamedTempFile::new()?;
        let keys = self.keys.to_string();
        let events = COUNTED_EVENTS.to_string();
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--toggle-collect=*SequencerLoop*counted*"]);
        command.arg(format!("--callgrind-out-file={}", out.path().display()));
        command.arg(std::env::current_exe()?).args(["side", "core"]);
        command.args(["--keys", &keys, "--events", &events]);
        command.args(self.disturbed.then_some("--disturbed"));
        let output = command.stdout(Stdio::null()).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let counted = std::fs::read_to_string(out.path())?;
        let line = counted.lines().find_map(|line| line.strip_prefix("summary: "));
        let total: f64 = line.context("callgrind wrote no summary")?.trim().parse()?;
        Ok(total / COUNTED_EVENTS as f64)
    }

    fn measure(self) -> Result<Duration> {
        let mut inner = SequencerLoop::new(self.keys)?;
        let mut order = Order::new(self);
        while order.made < self.keys {
            inner.take(&mut order.next_chunk(self.keys), false);
        }
        let end = self.keys + self.events;
        let mut took = Duration::ZERO;
        while order.made < end {
            let mut events = order.next_chunk(end);
            let started = Instant::now();
            inner.counted(&mut events, order.made == end);
            took += started.elapsed();
        }
        let settled = inner.sequencer.stats().settled;
        ensure!(settled == end, "the sequencer settled {settled} of {end} events");
        Ok(took)
    }
}

/// The generator of a side's events, in the order of their delivery.
struct Order {
    side: Side,
    made: u64,
    random: ChaCha8Rng,
}

impl Order {
    fn new(side: Side) -> Self {
        Self { side, made: 0, random: ChaCha8Rng::seed_from_u64(1) }
    }

    fn next_chunk(&mut self, end: u64) -> VecDeque<Arc<Event>> {
        let to = (self.made + CHUNK).min(end);
        let mut numbers: Vec<u64> = (self.made..to).collect();
        self.made = to;
        if self.side.disturbed {
            for window in numbers.chunks_mut(SHUFFLE_DISTANCE) {
                window.shuffle(&mut self.random);
            }
            for at in (0..numbers.len()).step_by(REPEAT_INTERVAL).rev() {
                let later =
                    (at + 1 + self.random.random_range(0..SHUFFLE_DISTANCE)).min(numbers.len());
                numbers.insert(later, numbers[at]);
            }
        }
        numbers.into_iter().map(|number| Arc::new(self.event(number))).collect()
    }

    fn event(&self, number: u64) -> Event {
        Event::new(&EventParts {
            key: &format!("key-{}", number % self.side.keys),
            id: &format!("{number:x}"),
            kind: "bench",
            source: "/bench",
            content_type: "application/json",
            sequence: Some(number / self.side.keys + 1),
            data: &DATA,
            ..EventParts::default()
        })
    }
}

/// A sequencer, and the data from which the benchmark answers the sequencer's requests in place of the store and the
/// workers.
struct SequencerLoop {
    sequencer: Sequencer,
    now: u64,
    deliveries: u64,
    /// The next sequence of each key.
    next: Vec<u64>,
    answers: Vec<Input>,
    version: Arc<Rollout>,
    state: bytes::Bytes,
}

impl SequencerLoop {
    fn new(keys: u64) -> Result<Self> {
        let settings = crate::embedded::default_settings()?;
        Ok(Self {
            sequencer: Sequencer::new(settings, &[0], 0),
            now: 0,
            deliveries: 0,
            next: vec![1; keys as usize],
            answers: Vec::new(),
            version: first_rollout(),
            state: bytes::Bytes::from_static(&STATE),
        })
    }

    /// Calls [`Self::take`]. Valgrind selects this function by its name, and so counts the instructions of the measured
    /// calls only.
    #[inline(never)]
    fn counted(&mut self, events: &mut VecDeque<Arc<Event>>, last: bool) {
        self.take(events, last);
    }

    /// Passes events to the sequencer while the sequencer accepts events. Answers each request of the sequencer in
    /// place of the store and the workers, and passes these answers to the sequencer. Returns when all events are
    /// passed. With `last`, also waits until the sequencer has no work left.
    fn take(&mut self, events: &mut VecDeque<Arc<Event>>, last: bool) {
        if last {
            self.sequencer.handle(self.now, Input::SourceEnded);
        }
        loop {
            self.now += 1;
            for _ in 0..self.sequencer.credit() {
                let Some(event) = events.pop_front() else { break };
                self.deliveries += 1;
                let delivery = self.deliveries;
                self.sequencer.handle(self.now, Input::Arrived { delivery, event });
            }
            while let Some(effect) = self.sequencer.poll_effect() {
                self.answer(effect);
            }
            for answer in self.answers.drain(..) {
                self.sequencer.handle(self.now, answer);
            }
            self.sequencer.handle_timeout(self.now);
            if events.is_empty() && (!last || self.sequencer.quiescent()) {
                return;
            }
        }
    }

    fn answer(&mut self, effect: Effect) {
        match effect {
            Effect::Run(turn) => {
                let done = self.execute(&turn);
                self.answers.push(Input::TurnDone(done));
            }
            Effect::Load { token, key } => {
                let next = self.next[number(&key)];
                let loaded = (next > 1).then(|| Box::new(self.snapshot(next)));
                self.answers.push(Input::Loaded { token, loaded: Ok(loaded) });
            }
            Effect::Commit(batch) => {
                for write in &batch.writes {
                    self.next[number(&write.key)] = write.record.next;
                }
                let applied = AppliedCommit { time: 1, ..AppliedCommit::default() };
                let reply = CommitReply::Applied(applied);
                let shard = batch.shard;
                let number = batch.number;
                self.answers.push(Input::Committed { shard, number, reply });
            }
            Effect::ReadDue { .. } => {
                self.answers.push(Input::DueRead { entries: Vec::new(), next_in: None });
            }
            Effect::Ack { .. } => {}
            effect => unreachable!("this benchmark does not cause {effect:?}"),
        }
    }

    fn execute(&self, turn: &Turn) -> TurnResult {
        let effect = || HandlerOutcome::Effect { messages: Vec::new(), complete: false };
        TurnResult {
            token: turn.token,
            rollout: self.version.clone(),
            outcomes: turn.events.iter().map(|_| effect()).collect(),
            state: StateUpdate::Put(self.state.clone()),
            failure: None,
        }
    }

    fn snapshot(&self, next: u64) -> KeySnapshot {
        let record = KeyRecord { next, incarnation: 1, ..KeyRecord::new(1, 0) };
        let state = Some(self.state.clone());
        KeySnapshot {
            record,
            state,
            ids: Vec::new(),
            now: 0,
            due_in: None,
            expire_in: None,
            moved_from: None,
        }
    }
}

fn number(key: &Key) -> usize {
    key["key-".len()..].parse().expect("the name of a key ends with its number")
}

fn first_rollout() -> Arc<Rollout> {
    Rollout::first("bench@1.0.0", FileDigest([0; 32]))
}
