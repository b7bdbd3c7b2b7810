//! All sinks of a process by name. This module collects the contents (messages and forwarded dead letters) of a run,
//! and sends these contents together. A run contains messages of one shard of a partition. In one write, the store
//! marks all messages of a run as published.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::{JoinSet, block_in_place};

use super::content::SinkContent;
use super::file::is_lock_error;
use super::pending_runs::PendingRuns;
use super::sequenced::{DestinationBatch, OutboundMessage, SequenceAssigner};
use super::{LineSink, PartitionHandle, PublisherError, SequencedSink};
use crate::source::QueueNotifiers;
use ordain_amqp::{ExchangeSink, PublishedCount};
use ordain_cloudevents::TextForm;
use ordain_config::NumberingPolicy;
use ordain_store::{Mark, Store, retry_until_ok};
use ordain_util::failure_timer::FailureTimer;
use ordain_util::log_throttle::LogThrottle;
use ordain_util::sink_health::SinkHealth;

/// Size of the buffered lines, in bytes, at which the outbox publisher ends the current run early, and writes the
/// lines.
pub(super) const WRITE_BYTES: usize = 1 << 20;
/// Maximum size of lines that are not synced, in bytes. At this size, the outbox publisher syncs the files, even before
/// the end of the current group of batches. This size limits the memory for lines that the sinks may have to write a
/// second time.
pub(super) const SYNC_BYTES: usize = 8 << 20;
const RETRY_DELAY: Duration = Duration::from_secs(1);
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// A sink of lines, with the lines that it has received since its newest sync.
struct BufferedLineSink {
    sink: LineSink,
    /// If the file is removed or truncated before the next sync, the sink writes these encoded lines a second time.
    buffer: Vec<u8>,
    /// The number of bytes of `buffer` that the sink has written.
    written: usize,
    /// True if the sink has skipped a message of the current run, because the file already has the message.
    has_skipped: bool,
    /// `true` if the current run needs a mark of the file (a record of the file's length for the store).
    needs_mark: bool,
    stream: Option<Arc<str>>,
    /// `None` if the messages have no numbers.
    numbering: Option<LineNumbering>,
    /// Shows whether this process can write to the sink.
    health: Arc<SinkHealth>,
}

/// The store assigns the numbers, and this type keeps them until the sink encodes the contents.
struct LineNumbering {
    assigner: SequenceAssigner,
    /// Contents that wait for their numbers.
    announced: Vec<DestinationBatch>,
    /// The numbers of the next contents, in order. A number is `None` if the next owner of the partition publishes the
    /// content.
    numbers: VecDeque<Option<u64>>,
}

/// The sinks of a process, and the contents of the run that the outbox publisher is collecting.
#[derive(Default)]
pub(crate) struct Sinks {
    lines: BTreeMap<String, BufferedLineSink>,
    exchanges: BTreeMap<String, ExchangeSink>,
    /// One collector for each destination of messages that pass through the store.
    sequenced: Vec<SequencedSink>,
    /// The route of each sink whose messages pass through the store, by the name of the sink. A route has the index of
    /// the sink's collector in `sequenced`, and the index of the sink's exchange in that collector.
    routes: BTreeMap<String, (usize, usize)>,
    /// The number of contents of the current run that the tasks of exchanges and streams must confirm.
    unconfirmed_count: usize,
    /// The number of contents of the current run, by the name of the sink.
    message_counts: BTreeMap<String, u64>,
}

pub(super) struct WrittenRun {
    /// The number of contents that the tasks of exchanges and streams must confirm.
    pub(super) unconfirmed: usize,
    /// The number of contents of the run, by the name of the sink.
    pub(super) messages: BTreeMap<String, u64>,
    /// The marks of the files that contain messages of the run.
    pub(super) marks: Vec<Mark>,
    /// Each of these new marks replaces the mark of its file in all earlier runs whose messages the store has not
    /// marked as published.
    pub(super) replaced: Vec<Mark>,
}

impl Sinks {
    /// Returns the state of the sink.
    pub(crate) fn add_lines(&mut self, name: &str, sink: LineSink) -> Arc<SinkHealth> {
        let health = Arc::<SinkHealth>::default();
        self.lines.insert(
            name.to_owned(),
            BufferedLineSink {
                sink,
                buffer: Vec::new(),
                written: 0,
                has_skipped: false,
                needs_mark: false,
                stream: None,
                numbering: None,
                health: Arc::clone(&health),
            },
        );
        health
    }

    pub(crate) fn enable_numbering(
        &mut self,
        name: &str,
        policy: NumberingPolicy,
        store: &Arc<dyn Store>,
        notifiers: &Arc<QueueNotifiers>,
    ) {
        if let Some(lines) = self.lines.get_mut(name) {
            let assigner = SequenceAssigner::new(policy, store, notifiers);
            lines.numbering =
                Some(LineNumbering { assigner, announced: Vec::new(), numbers: VecDeque::new() });
        }
    }

    /// Adds an exchange whose messages do not pass through the store.
    pub(crate) fn add_exchange(&mut self, name: &str, sink: ExchangeSink) {
        self.exchanges.insert(name.to_owned(), sink);
    }

    /// Adds a stream or an exchange whose messages the store numbers or queues on their way.
    pub(crate) fn add_sequenced(
        &mut self,
        name: &str,
        policy: NumberingPolicy,
        exchange: Option<ExchangeSink>,
        store: &Arc<dyn Store>,
        notifiers: &Arc<QueueNotifiers>,
    ) {
        let found =
            self.sequenced.iter().position(|sink| sink.has_destination(&policy.destination));
        let sink_index = found.unwrap_or_else(|| {
            self.sequenced.push(SequencedSink::new(policy, store, notifiers));
            self.sequenced.len() - 1
        });
        let exchange_index =
            exchange.map_or(0, |exchange| self.sequenced[sink_index].add_exchange(exchange));
        self.routes.insert(name.to_owned(), (sink_index, exchange_index));
    }

    /// Starts the tasks of exchanges and streams. For each run, a task reports to `published` the number of messages
    /// that wait for no further confirm. Such a message is published, or the next owner of the partition will publish
    /// it.
    pub(super) fn start(
        &mut self,
        published: &UnboundedSender<PublishedCount>,
    ) -> JoinSet<Result<(), PublisherError>> {
        let mut tasks = JoinSet::new();
        for exchange in self.exchanges.values_mut() {
            if let Some(publisher) = exchange.start(published.clone()) {
                tasks.spawn(async move {
                    publisher.await;
                    Ok(())
                });
            }
        }
        for sink in &mut self.sequenced {
            sink.start(&mut tasks, published);
        }
        tasks
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.lines.keys().chain(self.exchanges.keys()).chain(self.routes.keys())
    }

    /// Returns whether any sink of lines has numbered messages. The outbox publisher must announce numbered messages
    /// before it adds them.
    pub(super) fn has_numbered_lines(&self) -> bool {
        self.lines.values().any(|lines| lines.numbering.is_some())
    }

    /// Announces a content before the outbox publisher adds the content. [`Self::number_announced`] then passes all
    /// announced contents of a sink to the store together. Does nothing if the content's sink is not a sink of lines,
    /// or if the messages of the sink have no numbers.
    pub(super) fn announce(
        &mut self,
        handle: &Arc<PartitionHandle>,
        shard: u32,
        commit: u64,
        content: SinkContent,
    ) -> Result<(), PublisherError> {
        let numbering =
            self.lines.get_mut(content.sink(handle)?).and_then(|lines| lines.numbering.as_mut());
        let Some(LineNumbering { announced, .. }) = numbering else { return Ok(()) };
        let is_same = |batch: &&mut DestinationBatch| {
            Arc::ptr_eq(&batch.handle, handle) && batch.shard == shard
        };
        let message = OutboundMessage { commit, content, exchange_index: 0 };
        if let Some(batch) = announced.last_mut().filter(is_same) {
            batch.messages.push(message);
        } else {
            let handle = Arc::clone(handle);
            let messages = vec![message];
            announced.push(DestinationBatch { run: 0, handle, shard, messages });
        }
        Ok(())
    }

    /// Passes the announced contents to the store, which assigns the numbers.
    pub(super) async fn number_announced(&mut self) -> Result<(), PublisherError> {
        for numbered in self.lines.values_mut().filter_map(|lines| lines.numbering.as_mut()) {
            let announced = std::mem::take(&mut numbered.announced);
            let numbers = numbered.assigner.assign(&announced).await?;
            numbered.numbers = numbers.into_iter().flatten().collect();
        }
        Ok(())
    }

    pub(super) fn put(
        &mut self,
        handle: &PartitionHandle,
        commit: u64,
        content: SinkContent,
    ) -> Result<(), PublisherError> {
        let stream = &*handle.partition.stream;
        let sink = content.sink(handle)?;
        if let Some(lines) = self.lines.get_mut(sink) {
            if lines.put(stream, &content) {
                count_message(&mut self.message_counts, sink);
            }
            return Ok(());
        }
        count_message(&mut self.message_counts, sink);
        if let Some(exchange) = self.exchanges.get_mut(sink) {
            content.put(exchange, stream, None);
            self.unconfirmed_count += 1;
        } else if let Some((sink_index, exchange_index)) = self.routes.get(sink).copied() {
            self.sequenced[sink_index].put(OutboundMessage { commit, content, exchange_index });
            self.unconfirmed_count += 1;
        } else {
            return Err(content.unknown_sink(stream, sink));
        }
        Ok(())
    }

    pub(super) fn buffered_bytes(&self) -> usize {
        self.lines.values().map(|lines| lines.buffer.len() - lines.written).sum()
    }

    pub(super) fn unsynced_bytes(&self) -> usize {
        self.lines.values().map(|lines| lines.buffer.len()).sum()
    }

    /// Sends the contents of the collected run to the tasks, and writes the lines of the run. `runs` has the number of
    /// this run, and all pending runs.
    pub(super) async fn write(
        &mut self,
        store: &dyn Store,
        runs: &PendingRuns,
        handle: &Arc<PartitionHandle>,
        shard: u32,
    ) -> Result<WrittenRun, PublisherError> {
        let run = runs.number();
        let stream = &handle.partition.stream;
        let exchanges = self.exchanges.values_mut();
        exchanges.for_each(|exchange| exchange.send(run, stream, &handle.ownership));
        self.sequenced.iter_mut().for_each(|sink| sink.send(run, handle, shard));
        let mut replaced = Vec::new();
        for index in 0..self.lines.len() {
            let (_, lines) = self.line_sink(index);
            let has_unwritten = lines.written < lines.buffer.len();
            // A run with a skipped message needs a mark too. The store receives the marks of a file in order, each
            // together with the removal of the run's messages from the outbox. A later mark possibly no longer names
            // the line of the skipped message as a kept line. Without the mark of this run, the later mark could become
            // durable while the skipped message is still in the outbox. The next start would then write the message a
            // second time.
            let has_skipped = std::mem::take(&mut lines.has_skipped);
            lines.needs_mark = has_skipped || has_unwritten;
            if !lines.needs_mark {
                continue;
            }
            lines.stream = Some(Arc::clone(stream));
            if let LineSink::File(file) = &mut lines.sink {
                file.update_unmarked(runs, has_skipped);
            }
            if !has_unwritten {
                continue;
            }
            while let Some(mark) = self
                .retry_action(index, store, &mut replaced, |lines| lines.sink.follow_path())
                .await?
            {
                store_moved_mark(store, &mut replaced, mark).await;
            }
            self.retry_action(index, store, &mut replaced, |lines| {
                lines.sink.append(&lines.buffer[lines.written..])
            })
            .await?;
            let (_, lines) = self.line_sink(index);
            lines.written = lines.buffer.len();
        }
        // While a sink waited for a locked file, an earlier sink of this run may have opened another file. Only the
        // marks after the last write therefore describe the files.
        let mut marks = Vec::new();
        for lines in self.lines.values_mut() {
            if std::mem::take(&mut lines.needs_mark) {
                marks.extend(lines.sink.mark());
            }
        }
        let unconfirmed = std::mem::take(&mut self.unconfirmed_count);
        let messages = std::mem::take(&mut self.message_counts);
        Ok(WrittenRun { unconfirmed, messages, marks, replaced })
    }

    /// Makes the written lines durable. Does not retry a failed sync, because the operating system may have dropped the
    /// data that it could not write. A second sync would then succeed without this data. Waits only while the lines of
    /// a removed file must be written to a locked file. Returns a new mark for each file whose lines this method wrote
    /// a second time, and for each file that a sink has opened meanwhile. The new mark replaces the mark of the file in
    /// all runs whose messages the store has not marked as published.
    pub(super) async fn sync(&mut self, store: &dyn Store) -> Result<Vec<Mark>, PublisherError> {
        let mut replaced = Vec::new();
        for index in 0..self.lines.len() {
            let (_, lines) = self.line_sink(index);
            if !lines.sink.needs_sync() {
                lines.remove_written();
                continue;
            }
            let synced = self
                .retry_action(index, store, &mut replaced, |lines| match lines.sync() {
                    Err(error) if is_lock_error(&error) => Err(error),
                    synced => Ok(synced),
                })
                .await?;
            let (name, lines) = self.line_sink(index);
            let mark = synced.map_err(|error| lines.not_synced(name, error))?;
            replace_mark(&mut replaced, mark);
        }
        Ok(replaced)
    }

    /// Returns the name and the sink with an index, which must be below the number of sinks of lines.
    fn line_sink(&mut self, index: usize) -> (&str, &mut BufferedLineSink) {
        let (name, lines) =
            self.lines.iter_mut().nth(index).expect("the index is below the number of sinks");
        (name.as_str(), lines)
    }

    /// Retries an action of a sink of lines until it succeeds, because committed messages must be published. While the
    /// action fails, the outboxes fill; a partition pauses when its outbox is full. Records in the health of the sink
    /// whether the action fails, and a stream whose messages wait. If the file is locked, also makes the other sinks
    /// leave the files that no longer have their paths, because one of these sinks may have the lock. Returns an error
    /// if standard output no longer has a reader, or if the file of another sink cannot be synced.
    async fn retry_action<T>(
        &mut self,
        index: usize,
        store: &dyn Store,
        replaced: &mut Vec<Mark>,
        mut action: impl FnMut(&mut BufferedLineSink) -> io::Result<T>,
    ) -> Result<T, PublisherError> {
        let mut tries = 0_u32;
        let mut throttle = LogThrottle::new(WARN_INTERVAL);
        let mut failures = FailureTimer::default();
        loop {
            let (name, lines) = self.line_sink(index);
            let error = match block_in_place(|| action(lines)) {
                Ok(done) => {
                    if let Some(seconds) = failures.recover() {
                        lines.health.set_refused(false);
                        let path = lines.sink.location();
                        tracing::info!(sink = name, path, seconds, "sink writable again");
                    }
                    return Ok(done);
                }
                Err(error) => error,
            };
            let is_standard = matches!(lines.sink, LineSink::Standard);
            if is_standard && error.kind() == io::ErrorKind::BrokenPipe {
                return Err(PublisherError::NoReader(name.to_owned()));
            }
            if throttle.allow() {
                let advice = if is_lock_error(&error) {
                    "end the program that has locked the file, or let the path lead to another file"
                } else {
                    "free disk space, or make the file writable"
                };
                tracing::error!(
                    sink = name, path = lines.sink.location(), %error, tries,
                    "sink not writable: {advice}. Until then, Ordain keeps the messages of the sink in the store, and \
                     tries again"
                );
            }
            failures.record_failure();
            if let Some(stream) = &lines.stream {
                lines.health.add_stream(stream);
            }
            lines.health.set_refused(true);
            tries = tries.saturating_add(1);
            tokio::time::sleep(RETRY_DELAY).await;
            if is_lock_error(&error) {
                self.leave_files(store, replaced).await?;
            }
        }
    }

    /// Makes each sink of lines open the file that has its path. If another program has renamed the file of a sink, the
    /// sink thereby unlocks this file, even if the sink has no messages to write. Syncs the written lines first,
    /// because a sink leaves a file only after a sync. Skips a sink whose next file is locked or cannot be opened.
    async fn leave_files(
        &mut self,
        store: &dyn Store,
        replaced: &mut Vec<Mark>,
    ) -> Result<(), PublisherError> {
        for (name, lines) in &mut self.lines {
            match block_in_place(|| lines.sync()) {
                Ok(mark) => replace_mark(replaced, mark),
                Err(error) if is_lock_error(&error) => continue,
                Err(error) => return Err(lines.not_synced(name, error)),
            }
            // The sink repeats a failed attempt before its next write, and then reports the error.
            if let Ok(Some(mark)) = block_in_place(|| lines.sink.follow_path()) {
                store_moved_mark(store, replaced, mark).await;
            }
        }
        Ok(())
    }
}

/// Stores the mark of a sink that has opened another file, and adds the mark to `replaced`.
async fn store_moved_mark(store: &dyn Store, replaced: &mut Vec<Mark>, mark: Mark) {
    let stored = std::slice::from_ref(&mark);
    retry_until_ok("mark of a sink file", || store.put_marks(stored)).await;
    replace_mark(replaced, Some(mark));
}

/// Adds a mark, in the place of an earlier mark with the same name.
fn replace_mark(replaced: &mut Vec<Mark>, mark: Option<Mark>) {
    if let Some(mark) = mark {
        replaced.retain(|earlier| earlier.name != mark.name);
        replaced.push(mark);
    }
}

/// Counts a content of a sink. Copies the name of the sink only for the first content of a run.
fn count_message(counts: &mut BTreeMap<String, u64>, sink: &str) {
    if let Some(count) = counts.get_mut(sink) {
        *count += 1;
    } else {
        counts.insert(sink.to_owned(), 1);
    }
}

impl BufferedLineSink {
    /// Encodes a content as a line. Skips a content that the next owner of the partition publishes, and a content that
    /// the file already has. Returns whether the content was encoded.
    fn put(&mut self, stream: &str, content: &SinkContent) -> bool {
        let mut number = None;
        if let Some(numbered) = &mut self.numbering {
            // If an announcement is missing, the outbox publisher must not continue, because it would lose the message.
            number = numbered
                .numbers
                .pop_front()
                .expect("each content was announced before it was put into the sink");
            if number.is_none() {
                return false;
            }
        }
        if let LineSink::File(file) = &mut self.sink
            && file.take_kept(stream, content, number)
        {
            self.has_skipped = true;
            return false;
        }
        content.encode(stream, number, TextForm::Text, &mut self.buffer);
        true
    }

    fn sync(&mut self) -> io::Result<Option<Mark>> {
        let replaced = self.sink.sync(&self.buffer[..self.written])?;
        self.remove_written();
        Ok(replaced)
    }

    fn remove_written(&mut self) {
        self.buffer.drain(..self.written);
        // Release the memory that an unusually large number of lines needed.
        self.buffer.shrink_to(WRITE_BYTES);
        self.written = 0;
    }

    fn not_synced(&self, name: &str, error: io::Error) -> PublisherError {
        PublisherError::NotSynced { sink: name.to_owned(), path: self.sink.location(), error }
    }
}
