//! The publisher of a process: takes committed batches of all its partitions, in order, gives
//! their messages and forwarded dead letters to the sinks, and tells the store and the sequencer
//! that they are done.
//!
//! It is one task, since the length of a file that several partitions write to must be kept in the
//! same order as its content. Exchanges are tasks of their own: what one does not take holds up its
//! own shard, until the outbox is full, and no other, except that marks of a file are noted in order.

use std::collections::{BTreeMap, VecDeque};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Batches published together: one sync of the files and one write of the store for all of them.
const GROUP: usize = 64;
/// Confirmations that are looked at together.
const CONFIRMED: usize = 256;
/// A partition as the publisher needs it.
pub struct Target {
    /// The partition.
    pub partition: Partition,
    /// Under which its messages are committed.
    pub claim: Claim,
    /// The sink of its stream's dead letters, if they are forwarded.
    pub dead_letter: Option<Arc<str>>,
    /// Who is told when everything of a shard up to a commit is published and marked done.
    pub completions: mpsc::Sender<Note>,
    /// In which it may be published.
    pub tenure: Arc<Tenure>,
    /// Of each shard, the last commit that the claim found.
    pub found: Box<[u64]>,
    /// Of each shard, through which commit all is done for good.
    pub done: Box<[Done]>,
    /// Of each shard, the last commit that is known to be durable.
    pub commits: Box<[AtomicU64]>,
}

impl Target {
    /// Waits until the driver knows that the store has all commits of the partition. Returns false if it is given up.
    pub(super) async fn has_all_commits(&self) -> bool {
        let (answer, answered) = oneshot::channel();
        let asked = self.completions.send(Note::StoreCheck(answer)).await;
        asked.is_ok() && answered.await.is_ok()
    }

    /// Lets the driver check that the store has all commits of the partition: it may have gone back in time.
    pub fn store_may_have_gone_back(&self) {
        // If it does not take this now, it is at work, and finds out by itself.
        let _ = self.completions.try_send(Note::Input(Input::StoreMayHaveGoneBack));
    }

    /// Notes that a commit is durable.
    pub fn committed(&self, shard: u32, number: u64) {
        if let Some(last) = self.commits.get(shard as usize) {
            last.fetch_max(number, Ordering::SeqCst);
        }
    }

    /// Of each shard, the last commit that is known to be durable.
    pub fn last_commits(&self) -> Vec<u64> {
        self.commits.iter().map(|it| it.load(Ordering::SeqCst)).collect()
    }

    /// The last commit of a shard that is known to be durable; 0 if there is none.
    pub fn last_commit(&self, shard: u32) -> u64 {
        self.commits.get(shard as usize).map_or(0, |it| it.load(Ordering::SeqCst))
    }
}

/// A committed batch with something to publish.
pub struct Committed {
    /// Whose it is.
    pub target: Arc<Target>,
    /// The batch.
    pub batch: Arc<Batch>,
    /// Which of its writes applied.
    pub applied: Applied,
}

/// What an earlier process committed in a shard and did not publish, in order.
pub(crate) struct LeftOver {
    /// The partition, which nobody drives yet.
    pub target: Arc<Target>,
    /// The shard.
    pub shard: u32,
    /// Commits of it.
    pub entries: Vec<OutboxEntry>,
    /// Told how many messages there are once they are on their way, in front of anything that the
    /// partition's driver will commit.
    pub taken: oneshot::Sender<usize>,
}

/// What a publisher is asked.
pub(crate) enum Question {
    /// To publish what was left over.
    LeftOver(LeftOver),
    /// To tell what was left over of a partition and is not done, for whoever drives it from now on.
    Left(Arc<Target>, oneshot::Sender<Vec<Input>>),
}

/// Gives messages to sinks.
pub(crate) struct Publisher {
    store: Arc<dyn Store>,
    outlets: Outlets,
    runs: Runs,
    /// Of partitions that nobody drives yet.
    left: Vec<Left>,
    /// What there is no room for: of each partition one page.
    aside: VecDeque<LeftOver>,
    /// Bytes of them, about, beyond which no more is taken.
    room: usize,
    tasks: JoinSet<Result<(), PublisherError>>,
    published: UnboundedReceiver<Published>,
    /// Of those that were received.
    confirmed: Vec<Published>,
}

/// What was left over and is not marked done.
struct Left {
    target: Arc<Target>,
    shard: u32,
    /// The last commit that it is of.
    through: u64,
    messages: usize,
    bytes: usize,
}

impl Publisher {
    /// A publisher for these sinks, with room for about so many bytes of what is left over.
    pub(crate) fn new(store: Arc<dyn Store>, mut outlets: Outlets, room: usize) -> Self {
        // What is told there is of the outbox, which has a limit.
        let (tell, published) = mpsc::unbounded_channel();
        let tasks = outlets.start(&tell);
        let (runs, left, aside) = (Runs::default(), Vec::new(), VecDeque::new());
        let confirmed = Vec::new();
        Self { store, outlets, runs, left, aside, room, tasks, published, confirmed }
    }

    /// Publishes until all who give batches have gone, and everything is published.
    pub(crate) async fn run(
        mut self,
        mut committed: mpsc::Receiver<Committed>,
        mut questions: mpsc::Receiver<Question>,
    ) -> Result<(), PublisherError> {
        let mut group = Vec::with_capacity(GROUP);
        let mut is_open = true;
        // What is another's by now is not waited for.
        while is_open || self.runs.are_any(|run| !run.target.tenure.is_over()) {
            while self.left.iter().map(|it| it.bytes).sum::<usize>() < self.room
                && let Some(left) = self.aside.pop_front()
            {
                let messages = self.publish_left_over(&left).await?;
                // Whoever gave it may have given the partition up.
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
                let of = self.left.extract_if(.., |it| Arc::ptr_eq(&it.target, &target));
                let input = |Left { shard, through, messages, bytes, .. }| Input::LeftOver {
                    shard,
                    through,
                    messages,
                    bytes,
                };
                // Whoever asked may have given the partition up.
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
        let (mut messages, mut bytes) = (0, 0);
        for (commit, content) in left.contents() {
            messages += 1;
            bytes += content.memory();
            self.outlets.put(target, commit, content)?;
        }
        let Some(last) = entries.last() else { return Ok(0) };
        let (target, shard, through) = (Arc::clone(target), *shard, last.number);
        self.left.push(Left { target: Arc::clone(&target), shard, through, messages, bytes });
        self.end_run(target, shard, through).await?;
        self.outlets.sync()?;
        self.settle().await;
        Ok(messages)
    }

    /// Waits until tasks have confirmed something, and notes it.
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
        // What is another's by now it publishes.
        committed.retain(|it| !it.target.tenure.is_over());
        // Those of an outbox together: they are numbered together, and lines are in the order of their numbers.
        committed.sort_by_key(|it| (Arc::as_ptr(&it.target), it.batch.shard));
        if self.outlets.number_lines() {
            for it in &*committed {
                for content in it.contents() {
                    self.outlets.announce(&it.target, it.batch.shard, it.batch.number, content)?;
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

    /// What was gathered is one run.
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

    /// Marks done what is, and tells of it.
    async fn settle(&mut self) {
        let done = self.runs.take_done();
        self.mark_done(&done).await;
        for Run { target, shard, through, .. } in done {
            let before = self.left.len();
            self.left.retain(|it| {
                !Arc::ptr_eq(&it.target, &target) || it.shard != shard || it.through > through
            });
            if self.left.len() == before {
                // A driver always takes what is there. If it is gone, nobody needs it.
                let _ =
                    target.completions.send(Note::Input(Input::Published { shard, through })).await;
            }
        }
    }

    /// One after the other where files are written: each mark is of a longer one than the one
    /// before. The others together, since each may be a way to a server and back, and of each shard
    /// only the last.
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
        let last = insist_on("mark of what is published", || {
            self.store.outbox_done(partition, *claim, *shard, *through, marks)
        });
        // Under another claim nothing was marked.
        if let Some(last) = last.await {
            run.target.done[*shard as usize].mark(*through, last);
        }
    }
}

impl Committed {
    /// What it has for sinks, in order.
    fn contents(&self) -> impl Iterator<Item = Content> {
        let Self { batch, applied, .. } = self;
        let mut refused = applied.refused.iter().map(|(position, _)| *position).peekable();
        let writes = batch.writes.iter().enumerate();
        let writes = writes.filter(move |(position, _)| refused.next_if_eq(position).is_none());
        let messages = writes.flat_map(|(_, write)| {
            // A first commit has its own time as the incarnation; the batch was made before it.
            let incarnation = match write.job.incarnation {
                0 => applied.time,
                incarnation => incarnation,
            };
            write.messages.iter().map(move |emitted| {
                let (key, emitted) = (Arc::clone(&write.key), emitted.clone());
                Content::Message(OutboxMessage { key, incarnation, emitted })
            })
        });
        let letters =
            batch.forwarded(applied).map(|letter| Content::Letter(Box::new(letter.clone())));
        messages.chain(letters)
    }
}

impl LeftOver {
    /// What it has for sinks, in order, each with the number of its commit.
    fn contents(&self) -> impl Iterator<Item = (u64, Content)> {
        self.entries.iter().flat_map(|entry| {
            let messages = entry.messages.iter().cloned().map(Content::Message);
            let letters = entry.letters.iter().cloned().map(|it| Content::Letter(Box::new(it)));
            messages.chain(letters).map(|content| (entry.number, content))
        })
    }
}
