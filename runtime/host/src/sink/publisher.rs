//! The publisher of a process: takes committed batches of all its partitions, in order, gives
//! their messages and forwarded dead letters to the sinks, and tells the store and the sequencer
//! that they are done.
//!
//! It is one thread, since the length of a file that several partitions write to must be kept in
//! the same order as its content. What an exchange does not take holds up its own shard, until the
//! outbox is full, and no other: except that marks of files are noted in order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ordain_core::{Applied, Batch};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::PublisherError;
use super::outlets::{Outlets, WRITE_BYTES};
use crate::store::{Claim, Mark, OutboxEntry, OutboxMessage, Partition, Store, insist_on};

/// Batches published together: one sync of the files and one write of the store for all of them.
const GROUP: usize = 64;
/// Before what an exchange did not take is published again.
const RETRY: Duration = Duration::from_millis(500);
/// Left-overs that wait for an exchange, in runs, before no more are read.
const LEFT_OVERS: usize = 16;

/// A partition as the publisher needs it.
pub struct Target {
    /// The partition.
    pub partition: Partition,
    /// Under which its messages are committed.
    pub claim: Claim,
    /// The sink of its stream's dead letters, if they are forwarded.
    pub dead_letter: Option<Arc<str>>,
    /// Called when everything of a shard up to a commit is published and marked done.
    pub done: Box<dyn Fn(u32, u64) + Send + Sync>,
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
    /// Runs that are not marked done, in order.
    pending: VecDeque<Run>,
    /// The number of the run that is being gathered.
    run: u64,
}

/// Messages of one shard whose marks belong together.
struct Run {
    number: u64,
    target: Arc<Target>,
    shard: u32,
    through: u64,
    marks: Vec<Mark>,
}

impl Publisher {
    /// A publisher for these sinks.
    pub fn new(store: Arc<dyn Store>, outlets: Outlets) -> Self {
        Self { store, outlets, pending: VecDeque::new(), run: 0 }
    }

    /// Publishes what an earlier process committed and did not publish, before anything new of
    /// the partition. Blocks; returns before its end when `stop` says so. What an exchange does not
    /// take is published later.
    pub fn publish_left_overs(
        &mut self,
        target: &Arc<Target>,
        runtime: &Handle,
        stop: &dyn Fn() -> bool,
    ) -> Result<u64, PublisherError> {
        let Target { partition, dead_letter, .. } = &**target;
        let mut published = 0;
        for shard in 0..self.store.shards() {
            let mut after = 0;
            while !stop() {
                if self.pending.len() >= LEFT_OVERS {
                    std::thread::sleep(RETRY);
                    self.settle(runtime);
                    continue;
                }
                let entries =
                    runtime.block_on(self.store.outbox(partition, shard, after, GROUP))?;
                let Some(last) = entries.last() else { break };
                after = last.number;
                for OutboxEntry { messages, letters, .. } in &entries {
                    published += (messages.len() + letters.len()) as u64;
                    for message in messages {
                        self.outlets.message(self.run, &partition.stream, message)?;
                    }
                    for letter in letters {
                        let sink = dead_letter.as_deref();
                        self.outlets.letter(self.run, &partition.stream, sink, letter)?;
                    }
                }
                self.end_run(Arc::clone(target), shard, after, stop)?;
                self.outlets.sync(stop)?;
                self.settle(runtime);
            }
        }
        Ok(published)
    }

    /// Publishes until the channel closes, in a thread of its own, since files block. The
    /// receiver tells how it ended.
    pub fn start(
        mut self,
        mut jobs: mpsc::Receiver<Job>,
        runtime: Handle,
    ) -> Result<tokio::sync::oneshot::Receiver<Result<(), PublisherError>>, PublisherError> {
        let (ended, end) = tokio::sync::oneshot::channel();
        std::thread::Builder::new().name("publisher".into()).spawn(move || {
            let result = self.run(&mut jobs, &runtime);
            // Nobody listens when the process is ending: then it does not matter.
            let _ = ended.send(result);
        })?;
        Ok(end)
    }

    fn run(
        &mut self,
        jobs: &mut mpsc::Receiver<Job>,
        runtime: &Handle,
    ) -> Result<(), PublisherError> {
        let mut group = Vec::with_capacity(GROUP);
        loop {
            let taken = if self.pending.is_empty() {
                jobs.blocking_recv_many(&mut group, GROUP)
            } else {
                let more = async { timeout(RETRY, jobs.recv_many(&mut group, GROUP)).await };
                let more = runtime.block_on(more);
                let Ok(taken) = more else {
                    self.settle(runtime);
                    continue;
                };
                taken
            };
            match (taken, self.pending.is_empty()) {
                (0, true) => return Ok(()),
                (0, false) => {
                    std::thread::sleep(RETRY);
                    self.settle(runtime);
                }
                _ => self.publish(&mut group, runtime)?,
            }
        }
    }

    fn publish(&mut self, group: &mut Vec<Job>, runtime: &Handle) -> Result<(), PublisherError> {
        // The end waits for what is committed, within its grace.
        let never = || false;
        let mut jobs = group.drain(..).peekable();
        while let Some(Job { target, batch, applied }) = jobs.next() {
            self.encode_batch(&target, &batch, &applied)?;
            let same = jobs.peek().is_some_and(|next| {
                Arc::ptr_eq(&next.target, &target) && next.batch.shard == batch.shard
            });
            if !same || self.outlets.encoded() >= WRITE_BYTES {
                self.end_run(target, batch.shard, batch.number, &never)?;
            }
        }
        self.outlets.sync(&never)?;
        self.settle(runtime);
        Ok(())
    }

    /// What was gathered is one run.
    fn end_run(
        &mut self,
        target: Arc<Target>,
        shard: u32,
        through: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), PublisherError> {
        let marks = self.outlets.write(stop)?;
        self.pending.push_back(Run { number: self.run, target, shard, through, marks });
        self.run += 1;
        Ok(())
    }

    /// Publishes what exchanges have, and marks done what is published of each shard up to the
    /// first run that is not.
    fn settle(&mut self, runtime: &Handle) {
        runtime.block_on(self.outlets.flush());
        let unpublished = self.outlets.unpublished();
        let (mut held, mut holds_marks): (Vec<(Partition, u32)>, bool) = (Vec::new(), false);
        let (mut done, mut rest): (Vec<Run>, VecDeque<Run>) = (Vec::new(), VecDeque::new());
        for run in self.pending.drain(..) {
            let has_marks = !run.marks.is_empty();
            let is_of =
                |(of, shard): &(Partition, u32)| *shard == run.shard && *of == run.target.partition;
            if unpublished.contains(&run.number)
                || held.iter().any(is_of)
                || (holds_marks && has_marks)
            {
                holds_marks |= has_marks;
                held.push((run.target.partition.clone(), run.shard));
                rest.push_back(run);
            } else {
                done.push(run);
            }
        }
        self.pending = rest;
        self.mark_done(&done, runtime);
        for run in done {
            (run.target.done)(run.shard, run.through);
        }
    }

    /// One after the other where files are written: each mark is of a longer one than the one
    /// before. The others together, since each may be a way to a server and back, and of each shard
    /// only the last.
    fn mark_done(&self, done: &[Run], runtime: &Handle) {
        let mut last = BTreeMap::new();
        for run in done {
            if run.marks.is_empty() {
                let Partition { stream, number } = &run.target.partition;
                last.insert((stream, number, run.shard), run);
            } else {
                runtime.block_on(self.done(run));
            }
        }
        runtime.block_on(join_all(last.into_values().map(|run| self.done(run))));
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
        let stream = &target.partition.stream;
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
                self.outlets.message(self.run, stream, &message)?;
            }
        }
        for letter in batch.forwarded(applied) {
            self.outlets.letter(self.run, stream, target.dead_letter.as_deref(), letter)?;
        }
        Ok(())
    }
}
