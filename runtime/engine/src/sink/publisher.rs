//! The publisher of a process: receives the committed batches of all partitions in order, passes their messages and
//! forwarded dead letters to the sinks, and reports published messages to the store and the sequencer.
//!
//! The publisher is one task, because the length of a file that several partitions write to must be stored in the
//! same order as its contents. Exchanges have tasks of their own: an exchange that accepts nothing delays only its
//! own shard, until the outbox is full, except that the marks of a file are recorded in order.

use std::collections::{BTreeMap, VecDeque};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::future::join_all;
use ordain_core::{Applied, Batch, Input};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::content::Content;
use super::outlets::{Outlets, WRITE_BYTES};
use super::runs::{Run, Runs};
use super::{Done, PublisherError};
use crate::completion::Note;
use ordain_amqp::Published;
use ordain_store::Tenure;
use ordain_store::{Claim, OutboxEntry, OutboxMessage, Partition, Store, insist_on};

/// Maximum number of batches that are published together, with one sync of the files and one write to the store.
const GROUP: usize = 64;
/// Maximum number of confirms that are processed together.
const CONFIRMED: usize = 256;
/// The publisher's data of a partition.
pub struct Target {
    /// The partition.
    pub partition: Partition,
    /// The claim under which the partition's messages are committed.
    pub claim: Claim,
    /// The sink of its stream's dead letters, if they are forwarded.
    pub dead_letter: Option<Arc<str>>,
    /// The channel to the driver, which is notified when everything of a shard up to a commit is published and marked
    /// as done.
    pub completions: mpsc::Sender<Note>,
    /// The tenure in which the messages may be published.
    pub tenure: Arc<Tenure>,
    /// For each shard, the last commit that the claim found.
    pub found: Box<[u64]>,
    /// For each shard, the commit through which everything is durably done.
    pub done: Box<[Done]>,
    /// For each shard, the last commit that is known to be durable.
    pub commits: Box<[AtomicU64]>,
    /// True from the start of the driver on.
    pub driven: AtomicBool,
}

impl Target {
    /// Returns whether the partition has, or had, a driver.
    pub(super) fn is_driven(&self) -> bool {
        self.driven.load(Ordering::SeqCst)
    }

    /// Waits until the driver knows that the store has all commits of the partition. Returns `false` if the partition
    /// is given up.
    pub(super) async fn has_all_commits(&self) -> bool {
        let (answer, answered) = oneshot::channel();
        let asked = self.completions.send(Note::StoreCheck(answer)).await;
        asked.is_ok() && answered.await.is_ok()
    }

    /// Makes the driver check that the store has all commits of the partition, because the store may have gone back
    /// in time.
    pub fn store_may_have_gone_back(&self) {
        // A driver whose channel is full is active and detects the loss itself.
        let _ = self.completions.try_send(Note::Input(Input::StoreMayHaveGoneBack));
    }

    /// Records that a commit is durable.
    pub fn committed(&self, shard: u32, number: u64) {
        if let Some(last) = self.commits.get(shard as usize) {
            last.fetch_max(number, Ordering::SeqCst);
        }
    }

    /// Returns the last durable commit of each shard.
    pub fn last_commits(&self) -> Vec<u64> {
        self.commits.iter().map(|last| last.load(Ordering::SeqCst)).collect()
    }

    /// Returns the last durable commit of a shard; 0 if there is none.
    pub fn last_commit(&self, shard: u32) -> u64 {
        self.commits.get(shard as usize).map_or(0, |last| last.load(Ordering::SeqCst))
    }
}

/// A committed batch with something to publish.
pub struct Committed {
    /// The partition of the batch.
    pub target: Arc<Target>,
    /// The batch.
    pub batch: Arc<Batch>,
    /// The result of the commit: which writes it applied.
    pub applied: Applied,
}

/// Messages that an earlier process committed in a shard and did not publish, in order.
pub(crate) struct LeftOver {
    /// The partition, which has no driver yet.
    pub target: Arc<Target>,
    /// The shard.
    pub shard: u32,
    /// The commits with their messages.
    pub entries: Vec<OutboxEntry>,
    /// Receives the number of messages once they are sent to the sinks, before anything that the partition's driver
    /// will commit.
    pub taken: oneshot::Sender<usize>,
}

/// A request to the publisher.
pub(crate) enum Question {
    /// A request to publish left-over messages.
    LeftOver(LeftOver),
    /// A request for the left-over messages of a partition that are not done, for the partition's driver.
    Left(Arc<Target>, oneshot::Sender<Vec<Input>>),
}

/// A task that publishes the messages of all partitions.
pub(crate) struct Publisher {
    store: Arc<dyn Store>,
    outlets: Outlets,
    runs: Runs,
    /// Left-over messages of partitions without a driver.
    left: Vec<Left>,
    /// Left-over pages that wait for room: one page of each partition.
    aside: VecDeque<LeftOver>,
    /// Approximate limit of left-over messages, in bytes, above which no further page is accepted.
    room: usize,
    tasks: JoinSet<Result<(), PublisherError>>,
    published: UnboundedReceiver<Published>,
    /// Confirms that were received and not processed yet.
    confirmed: Vec<Published>,
}

/// Left-over messages of a shard that are not marked as done.
struct Left {
    target: Arc<Target>,
    shard: u32,
    /// The last commit of these messages.
    through: u64,
    messages: usize,
    bytes: usize,
}

impl Publisher {
    /// Creates a publisher for the sinks. `room` is the approximate limit of left-over messages, in bytes.
    pub(crate) fn new(store: Arc<dyn Store>, mut outlets: Outlets, room: usize) -> Self {
        // The channel needs no limit of its own: its messages come from the outbox, which has one.
        let (tell, published) = mpsc::unbounded_channel();
        let tasks = outlets.start(&tell);
        Self {
            store,
            outlets,
            runs: Runs::default(),
            left: Vec::new(),
            aside: VecDeque::new(),
            room,
            tasks,
            published,
            confirmed: Vec::new(),
        }
    }

    /// Publishes until all senders of batches are gone and everything is published.
    pub(crate) async fn run(
        mut self,
        mut committed: mpsc::Receiver<Committed>,
        mut questions: mpsc::Receiver<Question>,
    ) -> Result<(), PublisherError> {
        let mut group = Vec::with_capacity(GROUP);
        let mut is_open = true;
        // Runs of partitions with another owner are not waited for.
        while is_open || self.runs.are_any(|run| !run.target.tenure.is_over()) {
            while self.left.iter().map(|left| left.bytes).sum::<usize>() < self.room
                && let Some(left) = self.aside.pop_front()
            {
                let messages = self.publish_left_over(&left).await?;
                // The sender may have given the partition up.
                let _ = left.taken.send(messages);
            }
            tokio::select! {
                taken = committed.recv_many(&mut group, GROUP), if is_open => {
                    is_open = taken > 0;
                    self.publish(&mut group).await?;
                }
                Some(question) = questions.recv() => self.answer(question),
                news = self.news() => {
                    news?;
                    self.settle().await;
                }
            }
        }
        Ok(())
    }

    fn answer(&mut self, question: Question) {
        match question {
            Question::LeftOver(left) => self.aside.push_back(left),
            Question::Left(target, answer) => {
                let of = self.left.extract_if(.., |left| Arc::ptr_eq(&left.target, &target));
                let input = |Left { shard, through, messages, bytes, .. }| Input::LeftOver {
                    shard,
                    through,
                    messages,
                    bytes,
                };
                // The requester may have given the partition up.
                let _ = answer.send(of.map(input).collect());
            }
        }
    }

    async fn publish_left_over(&mut self, left: &LeftOver) -> Result<usize, PublisherError> {
        let LeftOver { target, shard, entries, .. } = left;
        if self.outlets.number_lines() {
            for (commit, content) in left.contents() {
                self.outlets.announce(target, *shard, commit, content)?;
            }
            self.outlets.number_announced().await?;
        }
        let mut messages = 0;
        let mut bytes = 0;
        for (commit, content) in left.contents() {
            messages += 1;
            bytes += content.memory();
            self.outlets.put(target, commit, content)?;
        }
        let Some(last) = entries.last() else { return Ok(0) };
        let target = Arc::clone(target);
        let shard = *shard;
        let through = last.number;
        self.left.push(Left { target: Arc::clone(&target), shard, through, messages, bytes });
        self.end_run(target, shard, through).await?;
        self.outlets.sync()?;
        self.settle().await;
        Ok(messages)
    }

    /// Waits for confirms of the tasks, and records them.
    async fn news(&mut self) -> Result<(), PublisherError> {
        tokio::select! {
            _ = self.published.recv_many(&mut self.confirmed, CONFIRMED),
                if !self.tasks.is_empty() =>
            {
                for (run, count) in self.confirmed.drain(..) {
                    self.runs.confirmed(run, count);
                }
                Ok(())
            }
            Some(ended) = self.tasks.join_next() => match ended {
                Ok(ended) => ended,
                Err(panic) => resume_unwind(panic.into_panic()),
            },
            else => std::future::pending().await,
        }
    }

    async fn publish(&mut self, committed: &mut Vec<Committed>) -> Result<(), PublisherError> {
        // The new owner of a partition publishes its messages.
        committed.retain(|committed| !committed.target.tenure.is_over());
        // Batches of the same outbox are numbered together, and lines are written in the order of their numbers.
        committed.sort_by_key(|committed| (Arc::as_ptr(&committed.target), committed.batch.shard));
        if self.outlets.number_lines() {
            for committed in &*committed {
                for content in committed.contents() {
                    let Committed { target, batch, .. } = committed;
                    self.outlets.announce(target, batch.shard, batch.number, content)?;
                }
            }
            self.outlets.number_announced().await?;
        }
        let mut committed = committed.drain(..).peekable();
        while let Some(now) = committed.next() {
            for content in now.contents() {
                self.outlets.put(&now.target, now.batch.number, content)?;
            }
            let Committed { target, batch, .. } = now;
            target.done[batch.shard as usize].committed(batch.number);
            let same = committed.peek().is_some_and(|next| {
                Arc::ptr_eq(&next.target, &target) && next.batch.shard == batch.shard
            });
            if !same || self.outlets.encoded() >= WRITE_BYTES {
                self.end_run(target, batch.shard, batch.number).await?;
            }
        }
        self.outlets.sync()?;
        self.settle().await;
        Ok(())
    }

    /// Ends the run that was collected.
    async fn end_run(
        &mut self,
        target: Arc<Target>,
        shard: u32,
        through: u64,
    ) -> Result<(), PublisherError> {
        let (unconfirmed, marks) = self.outlets.write(self.runs.number(), &target, shard).await?;
        self.runs.push(Run { target, shard, through, marks, unconfirmed });
        Ok(())
    }

    /// Marks finished runs as done, and reports them.
    async fn settle(&mut self) {
        let done = self.runs.take_done();
        self.mark_done(&done).await;
        for Run { target, shard, through, .. } in done {
            let before = self.left.len();
            self.left.retain(|left| {
                !Arc::ptr_eq(&left.target, &target) || left.shard != shard || left.through > through
            });
            if self.left.len() == before {
                // A driver always takes its completions. If the driver is gone, the report is not needed.
                let _ =
                    target.completions.send(Note::Input(Input::Published { shard, through })).await;
            }
        }
    }

    /// Marks runs with file lines one after the other, because each mark covers more of a file than the one before.
    /// Marks the others concurrently, because each may need a round trip to a server, and only the last run of each
    /// shard.
    async fn mark_done(&self, done: &[Run]) {
        let mut last = BTreeMap::new();
        for run in done.iter().filter(|run| !run.target.tenure.is_over()) {
            if run.marks.is_empty() {
                let Partition { stream, number } = &run.target.partition;
                last.insert((stream, number, run.shard), run);
            } else {
                self.done(run).await;
            }
        }
        join_all(last.into_values().map(|run| self.done(run))).await;
    }

    async fn done(&self, run: &Run) {
        let Target { partition, claim, .. } = &*run.target;
        let Run { shard, through, marks, .. } = run;
        run.target.done[*shard as usize].begin_mark(*through, !marks.is_empty());
        let last = insist_on("mark of published messages", || {
            self.store.outbox_done(partition, *claim, *shard, *through, marks)
        });
        // Under another claim nothing was marked.
        if let Some(last) = last.await {
            run.target.done[*shard as usize].mark(*through, last);
        }
    }
}

impl Committed {
    /// Returns the contents for the sinks, in order.
    fn contents(&self) -> impl Iterator<Item = Content> {
        let Self { batch, applied, .. } = self;
        let mut refused = applied.refused.iter().map(|(position, _)| *position).peekable();
        let writes = batch.writes.iter().enumerate();
        let writes = writes.filter(move |(position, _)| refused.next_if_eq(position).is_none());
        let messages = writes.flat_map(|(_, write)| {
            // The incarnation of a key's first commit is the commit's time, which the batch does not contain.
            let incarnation = match write.job.incarnation {
                0 => applied.time,
                incarnation => incarnation,
            };
            write.messages.iter().map(move |emitted| {
                let key = Arc::clone(&write.key);
                let emitted = emitted.clone();
                Content::Message(OutboxMessage { key, incarnation, emitted })
            })
        });
        let letters =
            batch.forwarded(applied).map(|letter| Content::Letter(Box::new(letter.clone())));
        messages.chain(letters)
    }
}

impl LeftOver {
    /// Returns the contents for the sinks, in order, each with the number of its commit.
    fn contents(&self) -> impl Iterator<Item = (u64, Content)> {
        self.entries.iter().flat_map(|entry| {
            let messages = entry.messages.iter().cloned().map(Content::Message);
            let letters =
                entry.letters.iter().cloned().map(|letter| Content::Letter(Box::new(letter)));
            messages.chain(letters).map(|content| (entry.number, content))
        })
    }
}
