//! The publisher of a process: takes committed batches of all its partitions, in order, gives
//! their messages and forwarded dead letters to the sinks, and tells the store and the sequencer
//! that they are done.
//!
//! It is one task, since the length of a file that several partitions write to must be kept in the
//! same order as its content. Exchanges are tasks of their own: what one does not take holds up its
//! own shard, until the outbox is full, and no other, except that marks of a file are noted in order.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ordain_core::{Applied, Batch, Input};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::PublisherError;
use super::outlets::{Outlets, Stop, WRITE_BYTES};
use super::runs::{Run, Runs};
use crate::broker::Published;
use crate::driver::Note;
use crate::store::{Claim, Claimed, OutboxEntry, OutboxMessage, Partition, Store, insist_on};
use crate::told::Told;

/// Batches published together: one sync of the files and one write of the store for all of them.
const GROUP: usize = 64;
/// Confirmations that are looked at together.
const CONFIRMED: usize = 256;
/// Between two looks whether a start that waits is to end.
const LOOK: Duration = Duration::from_millis(200);
/// Between two warnings that a start waits.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// A partition as the publisher needs it.
pub struct Target {
    /// The partition.
    pub partition: Partition,
    /// Under which its messages are committed.
    pub claim: Claim,
    /// The sink of its stream's dead letters, if they are forwarded.
    pub dead_letter: Option<Arc<str>>,
    /// Who is told when everything of a shard up to a commit is published and marked done.
    pub inbox: mpsc::Sender<Note>,
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

/// Gives messages to sinks.
pub struct Publisher {
    store: Arc<dyn Store>,
    outlets: Outlets,
    runs: Runs,
    /// Of partitions that nobody drives yet.
    left_overs: Vec<LeftOver>,
    exchanges: JoinSet<()>,
    published: UnboundedReceiver<Published>,
    /// Of those that were received.
    confirmed: Vec<Published>,
}

/// Messages that an earlier process committed and that are not marked done.
struct LeftOver {
    target: Arc<Target>,
    shard: u32,
    /// The last commit that they are of.
    through: u64,
    messages: usize,
    bytes: usize,
}

impl Publisher {
    /// A publisher for these sinks.
    pub fn new(store: Arc<dyn Store>, mut outlets: Outlets) -> Self {
        // What is told there is of the outbox, which has a limit.
        let (tell, published) = mpsc::unbounded_channel();
        let exchanges = outlets.start(&tell);
        let (runs, left_overs, confirmed) = (Runs::default(), Vec::new(), Vec::new());
        Self { store, outlets, runs, left_overs, exchanges, published, confirmed }
    }

    /// Publishes what an earlier process committed in a partition and did not publish, before
    /// anything new of the same shards; how many messages. It gives up when `stop` says so. What an
    /// exchange has not confirmed goes on later, up to about so many bytes of all partitions.
    pub async fn publish_left_overs(
        &mut self,
        target: &Arc<Target>,
        claimed: &Claimed,
        room: usize,
        stop: Stop<'_>,
    ) -> Result<u64, PublisherError> {
        let mut read = 0;
        for (shard, last) in (0..).zip(&claimed.commits) {
            let mut after = 0;
            while !stop() {
                let mut found = self.store.outbox(&target.partition, shard, after, GROUP).await?;
                found.retain(|entry| entry.number <= *last);
                if found.is_empty() {
                    break;
                }
                self.wait_for_room(room, stop).await;
                let left = self.encode_left_over(target, shard, &found)?;
                after = left.through;
                read += left.messages as u64;
                self.left_overs.push(left);
                self.end_run(Arc::clone(target), shard, after, stop).await?;
                self.outlets.sync(stop).await?;
                self.settle_left_overs().await;
            }
        }
        Ok(read)
    }

    /// Waits until less waits for exchanges, of all partitions.
    async fn wait_for_room(&mut self, room: usize, stop: Stop<'_>) {
        let mut told = Told::every(TELL_EVERY);
        loop {
            let bytes: usize = self.left_overs.iter().map(|it| it.bytes).sum();
            if bytes < room || stop() {
                return;
            }
            if told.is_due() {
                tracing::warn!(
                    bytes,
                    "much more than `memory_budget` was committed and not published; the start \
                     waits until some of it is"
                );
            }
            // From time to time it looks whether the end was asked for.
            if timeout(LOOK, self.news()).await.is_ok() {
                self.settle_left_overs().await;
            }
        }
    }

    fn encode_left_over(
        &mut self,
        target: &Arc<Target>,
        shard: u32,
        entries: &[OutboxEntry],
    ) -> Result<LeftOver, PublisherError> {
        let (run, stream) = (self.runs.number(), &target.partition.stream);
        let mut left =
            LeftOver { target: Arc::clone(target), shard, through: 0, messages: 0, bytes: 0 };
        for OutboxEntry { number, messages, letters } in entries {
            left.through = *number;
            left.messages += messages.len() + letters.len();
            for message in messages {
                left.bytes += message.emitted.message.memory();
                self.outlets.message(run, stream, message)?;
            }
            for letter in letters {
                left.bytes += letter.memory();
                self.outlets.letter(run, stream, target.dead_letter.as_deref(), letter)?;
            }
        }
        Ok(left)
    }

    /// Marks done what is, before anybody drives the partitions.
    async fn settle_left_overs(&mut self) {
        for run in self.take_done().await {
            let is_done = |it: &LeftOver| {
                Arc::ptr_eq(&it.target, &run.target)
                    && it.shard == run.shard
                    && it.through <= run.through
            };
            self.left_overs.retain(|it| !is_done(it));
        }
    }

    /// What is left over of a partition, for whoever drives it. From then on [`Publisher::run`] tells
    /// when it is published.
    pub fn take_left_over(&mut self, target: &Arc<Target>) -> Vec<Input> {
        let of = self.left_overs.extract_if(.., |it| Arc::ptr_eq(&it.target, target));
        let input = |it: LeftOver| Input::LeftOver {
            shard: it.shard,
            through: it.through,
            messages: it.messages,
            bytes: it.bytes,
        };
        of.map(input).collect()
    }

    /// Publishes until all who give batches have gone, and everything is published.
    pub async fn run(
        mut self,
        mut committed: mpsc::Receiver<Committed>,
    ) -> Result<(), PublisherError> {
        let mut group = Vec::with_capacity(GROUP);
        let mut is_open = true;
        while is_open || !self.runs.is_empty() {
            tokio::select! {
                taken = committed.recv_many(&mut group, GROUP), if is_open => {
                    is_open = taken > 0;
                    self.publish(&mut group).await?;
                }
                () = self.news() => self.settle().await,
            }
        }
        Ok(())
    }

    /// Waits until exchanges have confirmed something, and notes it.
    async fn news(&mut self) {
        tokio::select! {
            _ = self.published.recv_many(&mut self.confirmed, CONFIRMED),
                if !self.exchanges.is_empty() =>
            {
                for (run, count) in self.confirmed.drain(..) {
                    self.runs.confirmed(run, count);
                }
            }
            Some(Err(panic)) = self.exchanges.join_next() => resume_unwind(panic.into_panic()),
            else => std::future::pending().await,
        }
    }

    async fn publish(&mut self, committed: &mut Vec<Committed>) -> Result<(), PublisherError> {
        // The end waits for what is committed, within its grace.
        let never = &|| false;
        let mut committed = committed.drain(..).peekable();
        while let Some(Committed { target, batch, applied }) = committed.next() {
            self.encode_batch(&target, &batch, &applied)?;
            let same = committed.peek().is_some_and(|next| {
                Arc::ptr_eq(&next.target, &target) && next.batch.shard == batch.shard
            });
            if !same || self.outlets.encoded() >= WRITE_BYTES {
                self.end_run(target, batch.shard, batch.number, never).await?;
            }
        }
        self.outlets.sync(never).await?;
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
        for Run { target, shard, through, .. } in self.take_done().await {
            // A driver always takes what is there. If it is gone, nobody needs it.
            let _ = target.inbox.send(Note::Input(Input::Published { shard, through })).await;
        }
    }

    async fn take_done(&mut self) -> Vec<Run> {
        let done = self.runs.take_done();
        self.mark_done(&done).await;
        done
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
