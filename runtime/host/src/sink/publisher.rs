//! The publisher of a process: takes committed batches of all its partitions, in order, gives
//! their messages and forwarded dead letters to the sinks, and tells the store and the sequencer
//! that they are done.
//!
//! It is one task, since the length of a file that several partitions write to must be kept in the
//! same order as its content. Exchanges are tasks of their own: what one does not take holds up its
//! own shard, until the outbox is full, and no other, except that marks of a file are noted in order.

use std::collections::{BTreeMap, HashMap};
use std::panic::resume_unwind;
use std::sync::Arc;

use futures_util::future::join_all;
use ordain_core::{Applied, Batch, Input};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::JoinSet;

use super::PublisherError;
use super::outlets::{Outlets, Stop, WRITE_BYTES};
use super::runs::{Run, Runs};
use crate::broker::Published;
use crate::driver::Note;
use crate::store::{Claim, Claimed, OutboxEntry, OutboxMessage, Partition, Store, insist_on};

/// Batches published together: one sync of the files and one write of the store for all of them.
const GROUP: usize = 64;
/// Left-overs of a shard that wait for an exchange, in runs, before no more of it are read.
const LEFT_OVERS: usize = 16;
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
    /// Who is told when everything of a shard up to a commit is published and marked done; of what an
    /// earlier process committed, nobody.
    pub inbox: Option<mpsc::Sender<Note>>,
}

/// A committed batch with something to publish.
pub struct Job {
    /// Whose it is.
    pub target: Arc<Target>,
    /// The batch.
    pub batch: Arc<Batch>,
    /// Which of its writes applied.
    pub applied: Applied,
}

/// Gives messages to sinks.
pub struct Publisher {
    store: Arc<dyn Store>,
    outlets: Outlets,
    runs: Runs,
    /// Shards of which not all is read that an earlier process committed and did not publish.
    left_overs: HashMap<(Partition, u32), LeftOvers>,
    exchanges: JoinSet<()>,
    published: UnboundedReceiver<Published>,
}

/// What an earlier process left in a shard, up to its last commit.
struct LeftOvers {
    target: Arc<Target>,
    /// Read up to here.
    after: u64,
    last: u64,
    /// What comes behind them.
    jobs: Vec<Job>,
}

impl Publisher {
    /// A publisher for these sinks.
    pub fn new(store: Arc<dyn Store>, mut outlets: Outlets) -> Self {
        let (tell, published) = mpsc::unbounded_channel();
        let exchanges = outlets.start(&tell);
        let (runs, left_overs) = (Runs::default(), HashMap::new());
        Self { store, outlets, runs, left_overs, exchanges, published }
    }

    /// Publishes what an earlier process committed in a partition and did not publish, before
    /// anything new of the same shards; how many messages. It gives up when `stop` says so. What an
    /// exchange has not confirmed goes on later, and so does what is behind much of it.
    pub async fn publish_left_overs(
        &mut self,
        target: &Arc<Target>,
        claimed: &Claimed,
        stop: Stop<'_>,
    ) -> Result<u64, PublisherError> {
        let mut published = 0;
        for (shard, last) in (0..).zip(&claimed.commits) {
            let target = Arc::clone(target);
            let left = LeftOvers { target, after: 0, last: *last, jobs: Vec::new() };
            published += self.read_left_overs(shard, left, stop).await?;
        }
        Ok(published)
    }

    /// Reads what is left over of a shard, as far as not too much of it waits.
    async fn read_left_overs(
        &mut self,
        shard: u32,
        mut left: LeftOvers,
        stop: Stop<'_>,
    ) -> Result<u64, PublisherError> {
        let target = Arc::clone(&left.target);
        let Target { partition, dead_letter, .. } = &*target;
        let (stream, dead_letter) = (&partition.stream, dead_letter.as_deref());
        let mut read = 0;
        loop {
            if self.runs.of(partition, shard) >= LEFT_OVERS || stop() {
                self.left_overs.insert((partition.clone(), shard), left);
                return Ok(read);
            }
            let mut entries = self.store.outbox(partition, shard, left.after, GROUP).await?;
            entries.retain(|entry| entry.number <= left.last);
            let Some(last) = entries.last() else { break };
            left.after = last.number;
            let run = self.runs.number();
            for OutboxEntry { messages, letters, .. } in &entries {
                read += (messages.len() + letters.len()) as u64;
                for message in messages {
                    self.outlets.message(run, stream, message)?;
                }
                for letter in letters {
                    self.outlets.letter(run, stream, dead_letter, letter)?;
                }
            }
            self.end_run(Arc::clone(&target), shard, left.after, stop).await?;
            self.outlets.sync(stop).await?;
            self.settle().await;
        }
        self.publish(left.jobs, stop).await?;
        Ok(read)
    }

    /// Publishes until all who give jobs have gone, and everything is published.
    pub async fn run(mut self, mut jobs: mpsc::Receiver<Job>) -> Result<(), PublisherError> {
        // The end waits for what is committed, within its grace.
        let never = &|| false;
        let (mut group, mut confirmed) = (Vec::with_capacity(GROUP), Vec::new());
        let mut is_open = true;
        while is_open || !self.runs.is_empty() || !self.left_overs.is_empty() {
            tokio::select! {
                taken = jobs.recv_many(&mut group, GROUP), if is_open => {
                    is_open = taken > 0;
                    let jobs = group.drain(..).filter_map(|job| self.behind_left_overs(job));
                    let jobs: Vec<Job> = jobs.collect();
                    self.publish(jobs, never).await?;
                }
                _ = self.published.recv_many(&mut confirmed, CONFIRMED),
                    if !self.exchanges.is_empty() =>
                {
                    for (run, count) in confirmed.drain(..) {
                        self.runs.confirmed(run, count);
                    }
                    self.settle().await;
                }
                Some(ended) = self.exchanges.join_next() => {
                    if let Err(panic) = ended {
                        resume_unwind(panic.into_panic());
                    }
                }
            }
            self.go_on_with_left_overs(never).await?;
        }
        Ok(())
    }

    /// Keeps a job that comes behind left-overs of its shard.
    fn behind_left_overs(&mut self, job: Job) -> Option<Job> {
        if self.left_overs.is_empty() {
            return Some(job);
        }
        let of = (job.target.partition.clone(), job.batch.shard);
        match self.left_overs.get_mut(&of) {
            Some(left) => left.jobs.push(job),
            None => return Some(job),
        }
        None
    }

    async fn go_on_with_left_overs(&mut self, stop: Stop<'_>) -> Result<(), PublisherError> {
        let of = self.left_overs.keys();
        let has_room: Vec<_> =
            of.filter(|(of, shard)| self.runs.of(of, *shard) < LEFT_OVERS).cloned().collect();
        for of in has_room {
            if let Some(left) = self.left_overs.remove(&of) {
                self.read_left_overs(of.1, left, stop).await?;
            }
        }
        Ok(())
    }

    async fn publish(&mut self, jobs: Vec<Job>, stop: Stop<'_>) -> Result<(), PublisherError> {
        let mut jobs = jobs.into_iter().peekable();
        while let Some(Job { target, batch, applied }) = jobs.next() {
            self.encode_batch(&target, &batch, &applied)?;
            let same = jobs.peek().is_some_and(|next| {
                Arc::ptr_eq(&next.target, &target) && next.batch.shard == batch.shard
            });
            if !same || self.outlets.encoded() >= WRITE_BYTES {
                self.end_run(target, batch.shard, batch.number, stop).await?;
            }
        }
        self.outlets.sync(stop).await?;
        self.settle().await;
        Ok(())
    }

    /// What was gathered is one run.
    async fn end_run(
        &mut self,
        target: Arc<Target>,
        shard: u32,
        through: u64,
        stop: Stop<'_>,
    ) -> Result<(), PublisherError> {
        let (unconfirmed, marks) = self.outlets.write(stop).await?;
        self.runs.push(Run { target, shard, through, marks, unconfirmed });
        Ok(())
    }

    /// Marks done what is, and tells of it.
    async fn settle(&mut self) {
        let done = self.runs.take_done();
        self.mark_done(&done).await;
        for Run { target, shard, through, .. } in done {
            if let Some(inbox) = &target.inbox {
                // A driver always takes what is there. If it is gone, nobody needs it.
                let _ = inbox.send(Note::Input(Input::Published { shard, through })).await;
            }
        }
    }

    /// One after the other where files are written: each mark is of a longer one than the one
    /// before. The others together, since each may be a way to a server and back, and of each shard
    /// only the last.
    async fn mark_done(&self, done: &[Run]) {
        let mut last = BTreeMap::new();
        for run in done {
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
        insist_on("mark of what is published", || {
            self.store.outbox_done(partition, *claim, *shard, *through, marks)
        })
        .await;
    }

    fn encode_batch(
        &mut self,
        target: &Target,
        batch: &Batch,
        applied: &Applied,
    ) -> Result<(), PublisherError> {
        let (run, stream) = (self.runs.number(), &target.partition.stream);
        let mut refused = applied.refused.iter().map(|(position, _)| *position).peekable();
        for (position, write) in batch.writes.iter().enumerate() {
            if refused.next_if_eq(&position).is_some() {
                continue;
            }
            // A first commit has its own time as the incarnation; the batch was made before it.
            let incarnation = match write.job.incarnation {
                0 => applied.time,
                incarnation => incarnation,
            };
            for emitted in &write.messages {
                let (key, emitted) = (Arc::clone(&write.key), emitted.clone());
                let message = OutboxMessage { key, incarnation, emitted };
                self.outlets.message(run, stream, &message)?;
            }
        }
        for letter in batch.forwarded(applied) {
            self.outlets.letter(run, stream, target.dead_letter.as_deref(), letter)?;
        }
        Ok(())
    }
}
