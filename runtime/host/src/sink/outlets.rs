//! All sinks of a process by name: what is to be published is gathered here, and goes out together.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ordain_core::DeadLetter;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::{JoinSet, block_in_place};

use super::chain::{Batch, Belt, Content, Passing};
use super::{ChainSink, Passage, PublisherError, Sink, Target};
use crate::broker::{AmqpSink, Published};
use crate::cloudevents;
use crate::source::Feeds;
use crate::store::{Mark, OutboxMessage, Store};

/// Bytes that are encoded before they are written.
pub(super) const WRITE_BYTES: usize = 1 << 20;
/// Between tries to write to a sink that fails.
const RETRY: Duration = Duration::from_secs(1);

/// A sink of lines.
struct Lines {
    sink: Sink,
    /// What is not yet written.
    buffer: Vec<u8>,
    /// Where its messages are numbered, with those of the run that is being gathered.
    numbered: Option<(Belt, Vec<Passing>)>,
}

/// The sinks.
#[derive(Default)]
pub struct Outlets {
    lines: BTreeMap<String, Lines>,
    exchanges: BTreeMap<String, AmqpSink>,
    /// By destination.
    chains: Vec<ChainSink>,
    /// By sink: its chain, and which exchange of that it is.
    routes: BTreeMap<String, (usize, usize)>,
    /// Messages of the run that is being gathered that tasks take.
    unconfirmed: usize,
}

impl Outlets {
    /// Adds a sink of lines.
    pub fn add(&mut self, name: &str, sink: Sink) {
        self.lines.insert(name.to_owned(), Lines { sink, buffer: Vec::new(), numbered: None });
    }

    /// Has the messages of a sink of lines numbered.
    pub fn number(
        &mut self,
        name: &str,
        passage: Passage,
        store: &Arc<dyn Store>,
        feeds: &Arc<Feeds>,
    ) {
        if let Some(lines) = self.lines.get_mut(name) {
            lines.numbered = Some((Belt::new(passage, store, feeds), Vec::new()));
        }
    }

    /// Adds a sink that is an exchange.
    pub fn add_exchange(&mut self, name: &str, sink: AmqpSink) {
        self.exchanges.insert(name.to_owned(), sink);
    }

    /// Adds a sink whose messages pass through the store, to a stream or to this exchange.
    pub fn add_chain(
        &mut self,
        name: &str,
        passage: Passage,
        exchange: Option<AmqpSink>,
        store: &Arc<dyn Store>,
        feeds: &Arc<Feeds>,
    ) {
        let found = self.chains.iter().position(|it| it.is_to(&passage.to));
        let chain = found.unwrap_or_else(|| {
            self.chains.push(ChainSink::new(passage, store, feeds));
            self.chains.len() - 1
        });
        let via = exchange.map_or(0, |exchange| self.chains[chain].add_exchange(exchange));
        self.routes.insert(name.to_owned(), (chain, via));
    }

    /// Starts the tasks of exchanges and streams, which tell what they have published.
    pub(super) fn start(
        &mut self,
        published: &UnboundedSender<Published>,
    ) -> JoinSet<Result<(), PublisherError>> {
        let mut tasks = JoinSet::new();
        for exchange in self.exchanges.values_mut() {
            if let Some(outlet) = exchange.start(published.clone()) {
                tasks.spawn(async move {
                    outlet.await;
                    Ok(())
                });
            }
        }
        for chain in &mut self.chains {
            chain.start(&mut tasks, published);
        }
        tasks
    }

    /// Takes a message of a commit.
    pub(super) fn message(
        &mut self,
        stream: &str,
        commit: u64,
        message: &OutboxMessage,
    ) -> Result<(), PublisherError> {
        let sink = message.emitted.message.sink();
        if let Some(lines) = self.lines.get_mut(sink) {
            match &mut lines.numbered {
                None => cloudevents::encode(stream, message, None, &mut lines.buffer),
                Some((_, gathered)) => {
                    let content = Content::Message(message.clone());
                    gathered.push(Passing { commit, content, via: 0 });
                }
            }
        } else if let Some(exchange) = self.exchanges.get_mut(sink) {
            exchange.put(stream, message, None);
            self.unconfirmed += 1;
        } else if let Some((chain, via)) = self.routes.get(sink).copied() {
            let content = Content::Message(message.clone());
            self.chains[chain].put(Passing { commit, content, via });
            self.unconfirmed += 1;
        } else {
            return Err(unknown(stream, sink, &message.key, message.emitted.sequence));
        }
        Ok(())
    }

    /// Takes a dead letter of a commit for the sink of its stream's letters.
    pub(super) fn letter(
        &mut self,
        stream: &str,
        commit: u64,
        sink: Option<&str>,
        letter: &DeadLetter,
    ) -> Result<(), PublisherError> {
        let (key, sequence) = (&letter.id.key, letter.id.sequence);
        let Some(sink) = sink else {
            let (stream, key) = (stream.to_owned(), key.to_string());
            return Err(PublisherError::NoLetterSink { stream, key, sequence });
        };
        if let Some(lines) = self.lines.get_mut(sink) {
            match &mut lines.numbered {
                None => cloudevents::encode_letter(stream, letter, None, &mut lines.buffer),
                Some((_, gathered)) => {
                    let content = Content::Letter(Box::new(letter.clone()));
                    gathered.push(Passing { commit, content, via: 0 });
                }
            }
        } else if let Some(exchange) = self.exchanges.get_mut(sink) {
            exchange.put_letter(stream, letter, None);
            self.unconfirmed += 1;
        } else if let Some((chain, via)) = self.routes.get(sink).copied() {
            let content = Content::Letter(Box::new(letter.clone()));
            self.chains[chain].put(Passing { commit, content, via });
            self.unconfirmed += 1;
        } else {
            return Err(unknown(stream, sink, key, sequence));
        }
        Ok(())
    }

    /// Bytes of lines that are not yet written.
    pub(super) fn encoded(&self) -> usize {
        self.lines.values().map(|lines| lines.buffer.len()).sum()
    }

    /// Ends a run: gives the tasks what they have of it, and writes its lines. Returns how many
    /// messages the tasks have to confirm, and the marks that go with the lines.
    pub(super) async fn write(
        &mut self,
        run: u64,
        target: &Arc<Target>,
        shard: u32,
    ) -> Result<(usize, Vec<Mark>), PublisherError> {
        self.exchanges.values_mut().for_each(|it| it.send(run, &target.tenure));
        self.chains.iter_mut().for_each(|it| it.send(run, target, shard));
        let mut marks = Vec::new();
        for (name, lines) in &mut self.lines {
            lines.number(run, target, shard).await?;
            let Lines { sink, buffer, .. } = lines;
            if buffer.is_empty() {
                continue;
            }
            insist(name, sink, |sink| sink.append(buffer)).await?;
            buffer.clear();
            // What a large batch took is not kept for the small ones.
            buffer.shrink_to(WRITE_BYTES);
            marks.extend(sink.mark());
        }
        Ok((std::mem::take(&mut self.unconfirmed), marks))
    }

    /// Makes the lines durable.
    pub(super) async fn sync(&mut self) -> Result<(), PublisherError> {
        for (name, lines) in &mut self.lines {
            if lines.sink.needs_sync() {
                insist(name, &mut lines.sink, Sink::sync).await?;
            }
        }
        Ok(())
    }
}

impl Lines {
    /// Encodes what waits for its numbers.
    async fn number(
        &mut self,
        run: u64,
        target: &Arc<Target>,
        shard: u32,
    ) -> Result<(), PublisherError> {
        let Some((belt, gathered)) = &mut self.numbered else { return Ok(()) };
        if gathered.is_empty() {
            return Ok(());
        }
        let (target, passing) = (Arc::clone(target), std::mem::take(gathered));
        let batch = [Batch { run, target, shard, passing }];
        let numbers = belt.pass(&batch).await?;
        let [Batch { target, passing, .. }] = &batch;
        for (Passing { content, .. }, number) in passing.iter().zip(numbers.into_iter().flatten()) {
            if number.is_some() {
                content.encode(&target.partition.stream, number, &mut self.buffer);
            }
        }
        Ok(())
    }
}

fn unknown(stream: &str, sink: &str, key: &str, sequence: u64) -> PublisherError {
    PublisherError::UnknownSink {
        stream: stream.to_owned(),
        key: key.to_owned(),
        sequence,
        sink: sink.to_owned(),
    }
}

/// Tries until it works: what is committed must be published. Meanwhile the
/// outbox fills and the streams pause.
async fn insist(
    name: &str,
    sink: &mut Sink,
    mut action: impl FnMut(&mut Sink) -> io::Result<()>,
) -> Result<(), PublisherError> {
    let mut tries = 0_u32;
    while let Err(error) = block_in_place(|| action(sink)) {
        if matches!(sink, Sink::Standard) && error.kind() == io::ErrorKind::BrokenPipe {
            return Err(PublisherError::NoReader(name.to_owned()));
        }
        if tries.is_power_of_two() || tries == 0 {
            tracing::error!(
                sink = name, path = sink.place(), %error, tries,
                "the sink cannot be written; what is committed for it is kept and tried again: \
                 free space, or make the file writable"
            );
        }
        tries = tries.saturating_add(1);
        tokio::time::sleep(RETRY).await;
    }
    Ok(())
}
