//! The publisher of a process: takes committed batches of all its partitions, in order, writes
//! their messages and forwarded dead letters to the sinks, and tells the store and the sequencer
//! that they are done.
//!
//! It is one thread, since the length of a file that several partitions write to must be kept in
//! the same order as its content.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ordain_core::{Applied, Batch, DeadLetter};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::Sink;
use crate::cloudevents;
use crate::store::{
    Claim, Mark, OutboxEntry, OutboxMessage, Partition, Store, StoreError, insist_on,
};

/// Batches published together: one sync of the files and one write of the store for all of them.
const GROUP: usize = 64;
/// Bytes that are encoded before they are written.
const WRITE_BYTES: usize = 1 << 20;
/// Between tries to write to a sink that fails.
const RETRY: Duration = Duration::from_secs(1);

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

/// Why publishing ended for good.
#[derive(Debug, thiserror::Error)]
pub enum PublisherError {
    /// The store failed.
    #[error("the store failed while messages were marked as published")]
    Store(#[from] StoreError),
    /// A message was committed for a sink that the configuration no longer has.
    #[error(
        "stream {stream} has a committed message of key {key:?}, event {sequence}, for the sink \
         {sink:?}, which is not configured: add the sink again until the message is published"
    )]
    UnknownSink {
        /// The stream.
        stream: String,
        /// The key of the event that caused it.
        key: String,
        /// The event.
        sequence: u64,
        /// The sink.
        sink: String,
    },
    /// A dead letter was committed to be forwarded, and the configuration no longer says where.
    #[error(
        "stream {stream} has a committed dead letter of key {key:?}, event {sequence}, to be \
         forwarded, and no `dead_letter`: set it again until the letter is published"
    )]
    NoLetterSink {
        /// The stream.
        stream: String,
        /// The letter's key.
        key: String,
        /// The letter's sequence.
        sequence: u64,
    },
    /// Messages were committed for a stream that the configuration no longer has.
    #[error(
        "the store has committed messages of stream {0:?}, which is not configured: add the stream \
         again until they are published"
    )]
    UnknownStream(Arc<str>),
    /// Whoever read standard output has gone.
    #[error(
        "nobody reads standard output any more, to which the sink {0} writes; what is committed \
         and was not written is published at the next start"
    )]
    NoReader(String),
    /// The end was asked for while a sink could not be written.
    #[error(
        "the sink {sink} ({place}) could not be written until the end: {error}; what is committed \
         for it is published at the next start"
    )]
    GivenUp {
        /// The sink.
        sink: String,
        /// Where it writes.
        place: String,
        /// Why it could not be written.
        error: io::Error,
    },
    /// The thread could not be started.
    #[error("the publisher's thread cannot be started")]
    Thread(#[from] io::Error),
}

/// Writes messages to sinks.
pub struct Publisher {
    store: Arc<dyn Store>,
    sinks: BTreeMap<String, Sink>,
    /// Encoded messages that are not yet written, by sink.
    buffers: BTreeMap<String, Vec<u8>>,
}

/// Messages of one shard whose marks belong together.
struct Run {
    target: Arc<Target>,
    shard: u32,
    through: u64,
    marks: Vec<Mark>,
}

impl Publisher {
    /// A publisher for these sinks.
    pub fn new(store: Arc<dyn Store>, sinks: BTreeMap<String, Sink>) -> Self {
        Self { store, sinks, buffers: BTreeMap::new() }
    }

    /// Publishes what an earlier process committed and did not publish, before anything new of
    /// the partition. Blocks; returns before its end when `stop` says so.
    pub fn publish_left_overs(
        &mut self,
        partition: &Partition,
        claim: Claim,
        dead_letter: Option<&str>,
        runtime: &Handle,
        stop: &dyn Fn() -> bool,
    ) -> Result<u64, PublisherError> {
        let mut published = 0;
        for shard in 0..self.store.shards() {
            let mut after = 0;
            while !stop() {
                let entries =
                    runtime.block_on(self.store.outbox(partition, shard, after, GROUP))?;
                let Some(last) = entries.last() else { break };
                after = last.number;
                for OutboxEntry { messages, letters, .. } in &entries {
                    published += (messages.len() + letters.len()) as u64;
                    for message in messages {
                        self.message(&partition.stream, message)?;
                    }
                    for letter in letters {
                        self.letter(&partition.stream, dead_letter, letter)?;
                    }
                }
                let marks = self.write(stop)?;
                self.sync(stop)?;
                runtime.block_on(self.store.outbox_done(partition, claim, shard, after, &marks))?;
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
            let mut group = Vec::with_capacity(GROUP);
            let result = loop {
                if jobs.blocking_recv_many(&mut group, GROUP) == 0 {
                    break Ok(());
                }
                if let Err(error) = self.publish(&mut group, &runtime) {
                    break Err(error);
                }
            };
            // Nobody listens when the process is ending: then it does not matter.
            let _ = ended.send(result);
        })?;
        Ok(end)
    }

    fn publish(&mut self, group: &mut Vec<Job>, runtime: &Handle) -> Result<(), PublisherError> {
        let mut runs: Vec<Run> = Vec::new();
        // The end waits for what is committed, within its grace.
        let never = || false;
        let mut jobs = group.drain(..).peekable();
        while let Some(Job { target, batch, applied }) = jobs.next() {
            self.encode_batch(&target, &batch, &applied)?;
            let same = jobs.peek().is_some_and(|next| {
                Arc::ptr_eq(&next.target, &target) && next.batch.shard == batch.shard
            });
            if !same || self.encoded() >= WRITE_BYTES {
                let marks = self.write(&never)?;
                runs.push(Run { target, shard: batch.shard, through: batch.number, marks });
            }
        }
        self.sync(&never)?;
        // One after the other where files are written: each mark is of a longer one than the one
        // before. The others together, since each may be a way to a server and back.
        let (marked, unmarked): (Vec<&Run>, Vec<&Run>) =
            runs.iter().partition(|run| !run.marks.is_empty());
        for run in marked {
            runtime.block_on(self.done(run));
        }
        runtime.block_on(join_all(unmarked.into_iter().map(|run| self.done(run))));
        for run in runs {
            (run.target.done)(run.shard, run.through);
        }
        Ok(())
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
                self.message(stream, &message)?;
            }
        }
        for letter in batch.forwarded(applied) {
            self.letter(stream, target.dead_letter.as_deref(), letter)?;
        }
        Ok(())
    }

    fn message(&mut self, stream: &str, message: &OutboxMessage) -> Result<(), PublisherError> {
        let (sink, key) = (message.emitted.message.sink(), &message.key);
        let buffer = self.buffer(stream, sink, key, message.emitted.sequence)?;
        cloudevents::encode(stream, message, None, buffer);
        Ok(())
    }

    fn letter(
        &mut self,
        stream: &str,
        sink: Option<&str>,
        letter: &DeadLetter,
    ) -> Result<(), PublisherError> {
        let (key, sequence) = (&letter.id.key, letter.id.sequence);
        let Some(sink) = sink else {
            let (stream, key) = (stream.to_owned(), key.to_string());
            return Err(PublisherError::NoLetterSink { stream, key, sequence });
        };
        let buffer = self.buffer(stream, sink, key, sequence)?;
        cloudevents::encode_letter(stream, letter, buffer);
        Ok(())
    }

    /// Where something for a sink is encoded.
    fn buffer(
        &mut self,
        stream: &str,
        sink: &str,
        key: &str,
        sequence: u64,
    ) -> Result<&mut Vec<u8>, PublisherError> {
        if !self.buffers.contains_key(sink) {
            if !self.sinks.contains_key(sink) {
                return Err(PublisherError::UnknownSink {
                    stream: stream.to_owned(),
                    key: key.to_owned(),
                    sequence,
                    sink: sink.to_owned(),
                });
            }
            self.buffers.insert(sink.to_owned(), Vec::new());
        }
        Ok(self.buffers.get_mut(sink).expect("it is there or was just put"))
    }

    fn encoded(&self) -> usize {
        self.buffers.values().map(Vec::len).sum()
    }

    /// Writes what is encoded, and returns the marks that go with it.
    fn write(&mut self, stop: &dyn Fn() -> bool) -> Result<Vec<Mark>, PublisherError> {
        let mut marks = Vec::new();
        for (name, buffer) in &mut self.buffers {
            if buffer.is_empty() {
                continue;
            }
            let sink = self.sinks.get_mut(name).expect("buffers are made for known sinks");
            insist(name, sink, stop, |sink| sink.append(buffer))?;
            buffer.clear();
            // What a large batch took is not kept for the small ones.
            buffer.shrink_to(WRITE_BYTES);
            marks.extend(sink.mark());
        }
        Ok(marks)
    }

    fn sync(&mut self, stop: &dyn Fn() -> bool) -> Result<(), PublisherError> {
        for (name, sink) in &mut self.sinks {
            insist(name, sink, stop, Sink::sync)?;
        }
        Ok(())
    }
}

/// Tries until it works or `stop` says so: what is committed must be published. Meanwhile the
/// outbox fills and the streams pause.
fn insist(
    name: &str,
    sink: &mut Sink,
    stop: &dyn Fn() -> bool,
    mut action: impl FnMut(&mut Sink) -> io::Result<()>,
) -> Result<(), PublisherError> {
    let mut tries = 0_u32;
    while let Err(error) = action(sink) {
        if matches!(sink, Sink::Standard) && error.kind() == io::ErrorKind::BrokenPipe {
            return Err(PublisherError::NoReader(name.to_owned()));
        }
        if stop() {
            let (sink, place) = (name.to_owned(), sink.place());
            return Err(PublisherError::GivenUp { sink, place, error });
        }
        if tries.is_power_of_two() || tries == 0 {
            tracing::error!(
                sink = name, path = sink.place(), %error, tries,
                "the sink cannot be written; what is committed for it is kept and tried again: \
                 free space, or make the file writable"
            );
        }
        tries = tries.saturating_add(1);
        std::thread::sleep(RETRY);
    }
    Ok(())
}
