//! The driver of one partition: gives the sequencer what happens and performs what it asks for.
//! It decides nothing about events.

mod alarms;
mod error;
mod parked;
mod parts;
mod perform;
mod progress;
mod taken;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use ordain_core::{CommitReply, Decided, Event, Input, Key, Sequencer, Stats, Turn};
use tokio::sync::{mpsc, oneshot};

use crate::completion::Note;
use crate::replay;
use crate::sink::{Committed, Target};
use crate::source::{self, Inbox};
use ordain_cloudevents::{Delivered, Deliveries, Position, Source};
use ordain_store::Stage;
use ordain_store::{Claim, Partition, Store};
use ordain_util::log_throttle::LogThrottle;
use ordain_wasm::{Active, Turns};
use parked::Parked;
use perform::{Answer, Asked, Page};
use taken::Taken;

pub use error::DriverError;
pub use parts::Parts;
pub use progress::{Progress, Times};

/// Completions taken at one time.
const TAKE: usize = 8;
/// Time between two warnings that a stream stands still.
const WARN_INTERVAL: Duration = Duration::from_mins(1);
/// An end waits for what is being published, but no longer than that for the next of it: what waits for a
/// queue stays in the outbox.
const FAREWELL: Duration = Duration::from_secs(5);

/// Drives one partition.
pub struct Driver {
    partition: Partition,
    claim: Claim,
    store: Arc<dyn Store>,
    turns: Turns,
    publisher: mpsc::Sender<Committed>,
    target: Arc<Target>,
    sequencer: Sequencer,
    started: Instant,
    /// Turns to hand over together.
    bunch: Vec<Turn>,
    /// Loads to make together, as soon as one may be made.
    loads: Vec<(ordain_core::Token, ordain_core::Key)>,
    /// How many are under way.
    loading: usize,
    /// Reads of spilled events to make, as soon as one may be made.
    pages: VecDeque<Page>,
    /// How many are under way.
    reading: usize,
    /// Bytes of one load: as many as a commit has. What it brings is known only afterwards.
    load_bytes: usize,
    /// What the store was asked.
    asked: FuturesUnordered<Asked>,
    /// Where missing events are looked for.
    replay: Arc<replay::Sources>,
    /// Taken from the source, and not yet by the sequencer.
    waiting: VecDeque<(Delivered, Position)>,
    source_ended: bool,
    taken: Taken,
    /// Why the source ended before its end.
    source_failed: Option<DriverError>,
    full_throttle: LogThrottle,
    /// At the end, how much is not published, and since when it is so much.
    unpublished: Option<(usize, Instant)>,
    /// How often the store was out of reach, as far as the sequencer knows.
    breaks: u64,
    rewinds: Rewinds,
    /// Only the store's word is waited for that it has everything.
    ending: bool,
    failed: Option<DriverError>,
    progress: Arc<Progress>,
}

/// Commits that the store lost and that were made again.
#[derive(Default)]
struct Rewinds {
    /// How many were logged.
    logged: u64,
    /// Of each shard, the first and the last lost commit that were not logged.
    lost: BTreeMap<u32, (u64, u64)>,
    /// To be told when the store is known to have all commits.
    waiting: Vec<oneshot::Sender<()>>,
}

impl Driver {
    /// Runs until the end that was asked for, or an error.
    pub async fn run(parts: Parts) -> Result<Stats, DriverError> {
        let Parts {
            mut completions, mut source, mut inbox, mut version, mut may_end, once, ..
        } = parts;
        let tries_again = parts.settings.retry.on_new_version;
        let decided = parts.settings.version.clone();
        let (prefetch, load_bytes) = (parts.settings.prefetch, parts.settings.batch_bytes);
        let mut driver = Self {
            sequencer: Sequencer::new(parts.settings, &parts.claimed.commits, 0),
            partition: parts.partition,
            claim: parts.claimed.claim,
            breaks: parts.store.breaks(),
            store: parts.store,
            turns: parts.turns,
            publisher: parts.publisher,
            target: parts.target,
            started: Instant::now(),
            bunch: Vec::new(),
            loads: Vec::new(),
            loading: 0,
            pages: VecDeque::new(),
            reading: 0,
            load_bytes,
            asked: FuturesUnordered::new(),
            replay: Arc::new(parts.replay),
            waiting: VecDeque::new(),
            source_ended: false,
            taken: Taken::new(parts.checkpoint, source.acknowledge.take(), prefetch),
            source_failed: None,
            full_throttle: LogThrottle::new(WARN_INTERVAL),
            unpublished: None,
            rewinds: Rewinds::default(),
            ending: false,
            failed: None,
            progress: parts.progress,
        };
        driver.begin(parts.left_over, once && source.is_fed_from_here);
        let mut parked = driver.look_for_parked(decided.as_deref().filter(|_| tries_again));
        // Up to here decisions are known.
        let mut known = decided.as_ref().map_or(0, |it| it.generation);
        let mut notes = Vec::with_capacity(TAKE);
        let (mut stages, mut stage) = (driver.target.tenure.stages(), Stage::Held);
        let mut away = false;
        loop {
            driver.perform_all()?;
            driver.progress.put(&driver.sequencer.stats());
            let newest = driver.sequencer.newest_generation();
            if newest > known {
                version.needs(newest);
                known = newest;
            }
            let draining = stage == Stage::Leaving;
            let rests = once && parked.is_over() && driver.rests();
            driver.progress.set_rests(rests);
            if driver.is_over(rests && *may_end.borrow_and_update(), draining) {
                driver.begin_end()?;
                if driver.leaves_all_behind() {
                    return driver.end(source, inbox).await;
                }
            }
            if !draining && !driver.source_ended {
                let no_more = once || driver.source_failed.is_some();
                driver.watch_full(no_more && parked.is_over())?;
            }
            let wake = driver.wake();
            let reads = !draining && driver.takes_more();
            tokio::select! {
                biased;
                next = stages.past(stage) => match next {
                    Stage::Over => return Err(DriverError::Fenced),
                    next => {
                        stage = next;
                        driver.input(Input::Drain);
                    }
                },
                active = version.changed() => {
                    let decided = driver.swap(active);
                    known = known.max(decided.as_ref().map_or(0, |it| it.generation));
                    parked = driver.look_for_parked(decided.as_deref().filter(|_| tries_again));
                }
                keys = parked.next(), if driver.sequencer.looks() < parked::WAITING => {
                    driver.look(keys);
                }
                Some(answer) = driver.asked.next() => driver.take_answer(answer),
                _ = completions.recv_many(&mut notes, TAKE) => driver.take_notes(&mut notes),
                deliveries = source.deliveries.recv(), if reads => match deliveries {
                    Some(deliveries) => driver.take_deliveries(deliveries, once),
                    None => driver.source_fails(&mut source).await,
                },
                Some(event) = source::offer(&mut inbox), if reads => driver.offered(event),
                Ok(()) = may_end.changed() => {}
                () = tokio::time::sleep_until(wake.into()) => {}
            }
            driver.deliver(stage == Stage::Leaving, once);
            driver.note_reach(&mut away, inbox.as_ref());
            let now = driver.now();
            driver.sequencer.handle_timeout(now);
        }
    }

    /// What an earlier process left to be published comes first. From here, what comes has no gaps for
    /// which more would have to be waited.
    fn begin(&mut self, left_over: Vec<Input>, from_here: bool) {
        for left in left_over {
            self.input(left);
        }
        if from_here {
            self.end_of_source();
        }
    }

    /// Whether another delivery of the source is taken.
    fn takes_more(&self) -> bool {
        !self.source_ended
            && self.source_failed.is_none()
            && self.waiting.is_empty()
            && self.sequencer.credit() > 0
    }

    /// Looks for keys that other versions than this one have parked.
    fn look_for_parked(&self, decided: Option<&Decided>) -> Parked {
        Parked::start(&self.store, &self.partition, decided)
    }

    /// Lets another version execute what no worker has begun.
    fn swap(&mut self, active: Option<Arc<Active>>) -> Option<Arc<Decided>> {
        let decided = active.as_ref().map(|it| Arc::clone(&it.decided));
        let undone = self.turns.replace(active);
        self.input(Input::VersionChanged(decided.clone()));
        for turn in undone {
            self.input(Input::TurnDone(turn));
        }
        decided
    }

    /// Says that a full key holds up everything; where nobody could end that, it ends the run.
    fn watch_full(&mut self, once: bool) -> Result<(), DriverError> {
        let Some((key, event)) = self.sequencer.stopped_by() else { return Ok(()) };
        let full = DriverError::Full { key: key.to_string(), event };
        if once {
            return Err(full);
        }
        if self.full_throttle.allow() {
            tracing::warn!(stream = &*self.partition.stream, "the stream stands still: {full}");
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn input(&mut self, input: Input) {
        let now = self.now();
        self.sequencer.handle(now, input);
    }

    fn take_notes(&mut self, notes: &mut Vec<Note>) {
        let now = self.now();
        for note in notes.drain(..) {
            match note {
                Note::Input(input) => self.sequencer.handle(now, input),
                Note::StoreCheck(answer) => {
                    self.sequencer.handle(now, Input::StoreMayHaveGoneBack);
                    self.rewinds.waiting.push(answer);
                }
                Note::Turns(turns) => {
                    for turn in turns.take() {
                        self.sequencer.handle(now, Input::TurnDone(turn));
                    }
                }
            }
        }
    }

    fn take_answer(&mut self, answer: Answer) {
        let now = self.now();
        let breaks = self.store.breaks();
        if std::mem::replace(&mut self.breaks, breaks) != breaks {
            self.sequencer.handle(now, Input::StoreMayHaveGoneBack);
        }
        match answer {
            Answer::One(input) => self.sequencer.handle(now, input),
            Answer::Committed(input, took) => {
                let applied = match &input {
                    Input::Committed { shard, number, reply: CommitReply::Applied(_) } => {
                        Some((*shard, *number))
                    }
                    _ => None,
                };
                if let Input::Committed {
                    shard,
                    reply: CommitReply::Rewound { last: Some(last), .. },
                    ..
                } = &input
                {
                    let newest = self.target.last_commit(*shard);
                    let (first, _) = self.rewinds.lost.entry(*shard).or_insert((u64::MAX, newest));
                    *first = (*first).min(last + 1);
                }
                if let Some((shard, number)) = applied {
                    // Record the commit before any delivery that depends on it is acknowledged.
                    self.target.committed(shard, number);
                }
                self.sequencer.handle(now, input);
                if applied.is_some() {
                    self.progress.committed(took, self.sequencer.settled_times());
                }
            }
            Answer::Saved(Ok(true)) => self.taken.saved(),
            Answer::Saved(Ok(false)) => {
                self.taken.not_saved();
                // Another owner may be there, or none any more: the shards are asked.
                self.sequencer.handle(now, Input::StoreMayHaveGoneBack);
            }
            Answer::Saved(Err(error)) => self.failed = Some(error.into()),
            Answer::Page(read) => {
                self.reading -= 1;
                self.sequencer.handle(now, read);
            }
            Answer::Loads(inputs, rest) => {
                self.loading -= 1;
                self.loads.splice(0..0, rest);
                for input in inputs {
                    self.sequencer.handle(now, input);
                }
            }
        }
    }

    fn take_deliveries(&mut self, deliveries: Deliveries, once: bool) {
        if self.taken.is_new(deliveries.generation) {
            self.waiting.clear();
            self.input(Input::SourceReset);
        }
        if let Some(window) = deliveries.window {
            self.input(Input::Window(window));
        }
        self.waiting.extend(deliveries.items);
        self.taken.read(deliveries.print);
        self.source_ended = deliveries.end;
        if deliveries.end && !once {
            tracing::info!(
                stream = &*self.partition.stream,
                "the source is at its end; the stream goes on with what is held"
            );
        }
    }

    fn look(&mut self, keys: Vec<Key>) {
        for key in keys {
            self.input(Input::Look(key));
        }
    }

    /// The source delivers it as well, later.
    fn offered(&mut self, event: Arc<Event>) {
        self.input(Input::Offered(event));
    }

    /// Tells the sequencer where that has changed.
    fn note_reach(&mut self, before: &mut bool, inbox: Option<&Inbox>) {
        let away = inbox.is_some_and(Inbox::is_away);
        if std::mem::replace(before, away) != away {
            self.input(Input::SourceAway(away));
        }
    }

    /// Gives the sequencer as many deliveries as it takes.
    fn deliver(&mut self, draining: bool, once: bool) {
        if draining || (self.waiting.is_empty() && !self.source_ended) {
            return;
        }
        let now = self.now();
        while self.sequencer.credit() > 0 && self.taken.has_room() {
            let Some((delivered, position)) = self.waiting.pop_front() else { break };
            let delivery = self.taken.add(position);
            let input = match delivered {
                Ok(event) => Input::Arrived { delivery, event: Arc::new(event) },
                Err(letter) => Input::Unreadable { delivery, letter },
            };
            self.sequencer.handle(now, input);
        }
        if self.source_ended && self.waiting.is_empty() && once && !self.progress.ended() {
            self.end_of_source();
        }
    }

    fn end_of_source(&mut self) {
        self.progress.set_ended();
        self.input(Input::SourceEnded);
    }

    /// When to look again if nothing happens.
    fn wake(&self) -> Instant {
        let timeout =
            self.sequencer.poll_timeout().map(|at| self.started + Duration::from_millis(at));
        let never = Instant::now() + Duration::from_hours(1);
        let save_at = self.taken.save_at().filter(|_| !self.sequencer.in_doubt());
        let farewell = self.unpublished.filter(|_| self.sequencer.drained());
        let farewell = farewell.map(|(_, since)| since + FAREWELL);
        // Once it has come, only the store is waited for.
        let farewell = farewell.filter(|at| !self.ending || *at > Instant::now());
        [timeout, save_at, farewell].into_iter().flatten().min().unwrap_or(never)
    }

    /// Whether nothing is going to happen before another event comes.
    fn rests(&self) -> bool {
        self.progress.ended() && self.waiting.is_empty() && self.sequencer.quiescent()
    }

    fn is_over(&mut self, rests: bool, draining: bool) -> bool {
        if draining {
            return self.sequencer.drained() && self.needs_no_sink();
        }
        if self.source_failed.is_some() {
            return self.waiting.is_empty() && self.taken.is_empty();
        }
        rests
    }

    /// Whether all is published, or nothing more has been for long.
    fn needs_no_sink(&mut self) -> bool {
        let left = self.sequencer.stats().outbox;
        let (before, since) = self.unpublished.unwrap_or((left, Instant::now()));
        let since = if left == before { since } else { Instant::now() };
        self.unpublished = Some((left, since));
        left == 0 || since.elapsed() >= FAREWELL
    }

    /// Nothing more will come: asks the store whether it has everything. What it has lost meanwhile
    /// can only be made again now.
    fn begin_end(&mut self) -> Result<(), DriverError> {
        if std::mem::replace(&mut self.ending, true) {
            return Ok(());
        }
        if self.store.may_go_back() {
            self.input(Input::StoreMayHaveGoneBack);
        }
        self.taken.save_soon();
        self.perform_all()
    }

    /// Whether the store has everything, the last checkpoint too.
    fn leaves_all_behind(&self) -> bool {
        !self.sequencer.in_doubt() && !self.taken.is_saving() && !self.taken.is_unsaved()
    }

    async fn end(self, source: Source, inbox: Option<Inbox>) -> Result<Stats, DriverError> {
        self.store.flush().await?;
        alarms::flush();
        // What it is told last is in there.
        drop((self.taken, source.deliveries));
        if let Some(ended) = source.ended {
            // It has a limit of its own.
            let _ = ended.await;
        }
        if let Some(inbox) = inbox {
            inbox.end().await;
        }
        self.source_failed.map_or_else(|| Ok(self.sequencer.stats()), Err)
    }

    /// What was taken of a source that failed may be there no more: it is settled or held before
    /// the driver ends, which takes `spill_after` at most.
    async fn source_fails(&mut self, source: &mut Source) {
        let gone = |_| std::io::Error::other("its reader ended unexpectedly");
        let error = (&mut source.failure).await.unwrap_or_else(gone);
        tracing::error!(
            stream = &*self.partition.stream, %error,
            "the source failed; the stream ends when what was taken of it is settled or held"
        );
        self.source_failed = Some(DriverError::Source(error));
    }
}
