//! What the sequencer asks of the store, the workers and the publisher.
//!
//! The driver itself waits for the store's answers: a task of its own for each would be one more
//! thread to wake. Reads that fail are made again until they work, since nothing can go on without
//! them.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ordain_core::{Applied, Batch, CommitReply, Effect, Input, Key, Stop, Token};
use tokio::sync::mpsc::error::TrySendError;

use super::{Driver, DriverError, alarms};
use crate::incident::{self, CommitsRepeated, LostCommits};
use crate::replay::Found;
use crate::sink::Committed;
use ordain_store::{StoreError, insist_on};

/// Turns handed over at once.
const BUNCH: usize = 128;
/// Loads under way at one time: the more keys wait meanwhile, the more the next one takes.
const LOADS: usize = 2;
/// Reads of spilled events under way at one time. What they bring is known only afterwards.
const READS: usize = 4;

/// Shards that a line of the log names.
const SHARDS_NAMED: usize = 16;

/// An answer of the store, to come.
pub(super) type Asked = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Whether a checkpoint was written.
pub(super) type Saved = Result<bool, StoreError>;

/// An answer of the store.
pub(super) enum Answer {
    /// To one question.
    One(Input),
    /// To a commit, and how long it took.
    Committed(Input, Duration),
    /// To a load of several jobs, and those that had no room in it.
    Loads(Vec<Input>, Vec<(Token, Key)>),
    /// To a read of spilled events.
    Page(Input),
    /// To a checkpoint.
    Saved(Saved),
    /// To a mark of what is published that was repeated.
    MarkedAgain,
}

/// Spilled events to be read.
pub(super) struct Page {
    pub(super) token: Token,
    pub(super) key: Key,
    pub(super) from: u64,
    pub(super) limit: usize,
    pub(super) bytes: usize,
}

impl Driver {
    /// Performs everything that the sequencer asks for.
    pub(super) fn perform_all(&mut self) -> Result<(), DriverError> {
        while let Some(effect) = self.sequencer.poll_effect() {
            self.perform(effect);
        }
        // After a stop nothing is written any more, not even a checkpoint.
        self.check()?;
        self.watch_doubt();
        self.hand_over();
        if self.taken.is_due()
            && !self.taken.is_saving()
            && let Some(save) = self.checkpoint()
        {
            self.ask(async move { Answer::Saved(save.await) });
        }
        self.check()
    }

    /// Notes what it means that the store may be at an earlier time, and says how that ended.
    fn watch_doubt(&mut self) {
        if self.sequencer.in_doubt() {
            self.taken.may_be_lost();
            return;
        }
        let rewound = self.sequencer.stats().rewound;
        let again = rewound - std::mem::replace(&mut self.rewinds.logged, rewound);
        for waiting in self.rewinds.waiting.drain(..) {
            // Its strand may have been given up.
            let _ = waiting.send(());
        }
        let lost = std::mem::take(&mut self.rewinds.lost);
        if again > 0 {
            for shard in lost.keys() {
                self.mark_again(*shard);
            }
            let lost = lost.into_iter().take(SHARDS_NAMED);
            let shards: Vec<LostCommits> =
                lost.map(|(shard, (first, last))| LostCommits { shard, first, last }).collect();
            let ranges = shards.iter().map(LostCommits::to_string).collect::<Vec<_>>().join(", ");
            let incident = CommitsRepeated { commits: again, shards };
            tracing::warn!(
                stream = &*self.partition.stream,
                partition = self.partition.number,
                commits = again,
                shards = ranges,
                cloudevent = incident::record(&self.partition, &incident),
                "the store went back in time and had lost commits of this partition: all of them were made again \
                 from memory"
            );
        }
    }

    /// Marks again what is published of a shard whose lost commits were repeated: their messages are in the outbox
    /// again, and the next owner would publish them once more.
    fn mark_again(&mut self, shard: u32) {
        let Some(through) = self.target.done[shard as usize].mark_to_repeat() else { return };
        let (store, partition) = (Arc::clone(&self.store), self.partition.clone());
        let claim = self.claim;
        self.ask(async move {
            let mark = || store.outbox_done(&partition, claim, shard, through, &[]);
            insist_on("mark of what is published", mark).await;
            Answer::MarkedAgain
        });
    }

    fn check(&mut self) -> Result<(), DriverError> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Run(turn) => {
                self.bunch.push(turn);
                if self.bunch.len() >= BUNCH {
                    self.turns.submit(std::mem::take(&mut self.bunch));
                }
            }
            Effect::Load { token, key } => self.loads.push((token, key)),
            Effect::Commit(batch) => self.commit(batch),
            Effect::Ack { through } => self.taken.acknowledge(through),
            Effect::Publish { batch, applied } => self.publish(batch, applied),
            Effect::ReadSpill { token, key, from, limit, bytes } => {
                self.pages.push_back(Page { token, key, from, limit, bytes });
            }
            Effect::Replay { token, key, source, missing, within } => {
                let sources = Arc::clone(&self.replay);
                self.answer(async move {
                    let Found { events, until, failed } =
                        sources.ask(source, &key, &missing, within).await;
                    Input::Replayed { token, found: events, until, failed }
                });
            }
            Effect::ReadDue { after, limit, all } => self.read_due(after, limit, all),
            Effect::Stop(Stop::Fenced) => self.failed = Some(DriverError::Fenced),
            Effect::Stop(Stop::Rewound { shard, detail }) => {
                self.failed = Some(DriverError::Rewound { shard, detail });
            }
        }
    }

    /// Hands over what was gathered while effects were drained, and what had to wait.
    fn hand_over(&mut self) {
        self.turns.pause(!self.sequencer.may_run());
        if !self.bunch.is_empty() {
            self.turns.submit(std::mem::take(&mut self.bunch));
        }
        let may_read = self.sequencer.may_read();
        if may_read && !self.loads.is_empty() && self.loading < LOADS {
            self.loading += 1;
            let loads = std::mem::take(&mut self.loads);
            self.load(loads);
        }
        while may_read
            && self.reading < READS
            && let Some(page) = self.pages.pop_front()
        {
            self.reading += 1;
            self.read_page(page);
        }
    }

    fn load(&mut self, loads: Vec<(Token, Key)>) {
        let (store, partition) = (Arc::clone(&self.store), self.partition.clone());
        let bytes = self.load_bytes;
        self.ask(async move {
            let (mut tokens, mut keys): (Vec<_>, Vec<_>) = loads.into_iter().unzip();
            let loaded = insist_on("load", || store.load(&partition, &keys, bytes)).await;
            let rest = tokens.split_off(loaded.len()).into_iter().zip(keys.split_off(loaded.len()));
            let input = |(token, loaded)| Input::Loaded { token, loaded };
            Answer::Loads(tokens.into_iter().zip(loaded).map(input).collect(), rest.collect())
        });
    }

    fn commit(&mut self, batch: Arc<Batch>) {
        let (store, partition, claim) =
            (Arc::clone(&self.store), self.partition.clone(), self.claim);
        let (shard, number) = (batch.shard, batch.number);
        let telling = alarms::of(&batch);
        let asked_at = Instant::now();
        self.ask(async move {
            let reply = store.commit(&partition, claim, batch).await;
            match (telling, &reply) {
                (Some(batch), CommitReply::Applied(applied)) => {
                    alarms::tell(&partition.stream, &batch, applied);
                }
                (_, CommitReply::Rewound { found, .. }) => tracing::error!(
                    stream = &*partition.stream,
                    partition = partition.number,
                    shard,
                    number,
                    "THE STORE WENT BACK IN TIME: {found}"
                ),
                _ => {}
            }
            Answer::Committed(Input::Committed { shard, number, reply }, asked_at.elapsed())
        });
    }

    fn publish(&mut self, batch: Arc<Batch>, applied: Applied) {
        let committed = Committed { target: Arc::clone(&self.target), batch, applied };
        match self.publisher.try_send(committed) {
            // If the publisher has ended, the process is about to, and the outbox keeps the
            // messages.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            // Going on would publish what comes after before it.
            Err(TrySendError::Full(_)) => self.failed = Some(DriverError::PublisherFull),
        }
    }

    fn read_page(&mut self, page: Page) {
        let (store, partition) = (Arc::clone(&self.store), self.partition.clone());
        self.ask(async move {
            let Page { token, key, from, limit, bytes } = page;
            let read = || store.read_spill(&partition, &key, from, limit, bytes);
            let read = insist_on("read of spilled events", read).await;
            let read = read.inspect_err(|words| alarms::unread(&partition.stream, &key, words));
            Answer::Page(Input::SpillRead { token, read })
        });
    }

    fn read_due(&mut self, after: Option<(u64, Key)>, limit: usize, all: bool) {
        let (store, partition) = (Arc::clone(&self.store), self.partition.clone());
        self.answer(async move {
            let read = || store.due(&partition, after.as_ref(), limit, all);
            let (entries, next_in) = insist_on("read of the due index", read).await;
            Input::DueRead { entries, next_in }
        });
    }

    /// Writes a checkpoint, unless the store may have lost what that rests on.
    fn checkpoint(&mut self) -> Option<impl Future<Output = Saved> + Send + use<>> {
        if self.sequencer.in_doubt() {
            return None;
        }
        let mark = self.taken.begin_save(|| self.target.last_commits())?;
        let (store, partition) = (Arc::clone(&self.store), self.partition.clone());
        let (claim, breaks) = (self.claim, self.breaks);
        Some(async move { store.put_checkpoint(&partition, claim, breaks, &mark).await })
    }

    fn answer(&mut self, input: impl Future<Output = Input> + Send + 'static) {
        self.ask(async move { Answer::One(input.await) });
    }

    fn ask(&mut self, answer: impl Future<Output = Answer> + Send + 'static) {
        let mut asked: Asked = Box::pin(answer);
        // The question goes off here and now, not when the driver next waits.
        if let Poll::Ready(answer) = asked.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            asked = Box::pin(ready(answer));
        }
        self.asked.push(asked);
    }
}
