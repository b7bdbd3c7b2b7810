//! All sinks of a process by name: what is to be published is gathered here, and goes out together.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::{JoinSet, block_in_place};

use super::chain::{Batch, Belt, Passing};
use super::content::Content;
use super::{ChainSink, PublisherError, Sink, Target};
use crate::source::Feeds;
use ordain_amqp::{AmqpSink, Published};
use ordain_config::Passage;
use ordain_store::{Mark, Store};
use ordain_util::log_throttle::LogThrottle;

/// Bytes that are encoded before they are written.
pub(super) const WRITE_BYTES: usize = 1 << 20;
/// Between tries to write to a sink that fails.
const RETRY: Duration = Duration::from_secs(1);
/// Time between two errors of a sink in the log.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// A sink of lines.
struct Lines {
    sink: Sink,
    /// What is not yet written.
    buffer: Vec<u8>,
    /// Where its messages get their numbers, if they have any.
    numbered: Option<Numbered>,
}

/// Numbers for a sink of lines.
struct Numbered {
    belt: Belt,
    /// What is to be numbered.
    announced: Vec<Batch>,
    /// The numbers of what is about to be encoded; `None` is another owner's.
    numbers: VecDeque<Option<u64>>,
}

/// The sinks.
#[derive(Default)]
pub(crate) struct Outlets {
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
    pub(crate) fn add(&mut self, name: &str, sink: Sink) {
        self.lines.insert(name.to_owned(), Lines { sink, buffer: Vec::new(), numbered: None });
    }

    /// Has the messages of a sink of lines numbered.
    pub(crate) fn number(
        &mut self,
        name: &str,
        passage: Passage,
        store: &Arc<dyn Store>,
        feeds: &Arc<Feeds>,
    ) {
        if let Some(lines) = self.lines.get_mut(name) {
            let belt = Belt::new(passage, store, feeds);
            lines.numbered =
                Some(Numbered { belt, announced: Vec::new(), numbers: VecDeque::new() });
        }
    }

    /// Adds a sink that is an exchange.
    pub(crate) fn add_exchange(&mut self, name: &str, sink: AmqpSink) {
        self.exchanges.insert(name.to_owned(), sink);
    }

    /// Adds a sink whose messages pass through the store, to a stream or to this exchange.
    pub(crate) fn add_chain(
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

    /// Whether sinks of lines have messages numbered, which are to be announced.
    pub(super) fn number_lines(&self) -> bool {
        self.lines.values().any(|it| it.numbered.is_some())
    }

    /// Notes what is about to be taken, if it goes to a sink of lines that are numbered.
    pub(super) fn announce(
        &mut self,
        target: &Arc<Target>,
        shard: u32,
        commit: u64,
        content: Content,
    ) -> Result<(), PublisherError> {
        let numbered =
            self.lines.get_mut(content.sink(target)?).and_then(|it| it.numbered.as_mut());
        let Some(Numbered { announced, .. }) = numbered else { return Ok(()) };
        let is_same = |it: &&mut Batch| Arc::ptr_eq(&it.target, target) && it.shard == shard;
        let passing = Passing { commit, content, via: 0 };
        if let Some(batch) = announced.last_mut().filter(is_same) {
            batch.passing.push(passing);
        } else {
            let (target, passing) = (Arc::clone(target), vec![passing]);
            announced.push(Batch { run: 0, target, shard, passing });
        }
        Ok(())
    }

    /// Has what was announced numbered, all of it together.
    pub(super) async fn number_announced(&mut self) -> Result<(), PublisherError> {
        for numbered in self.lines.values_mut().filter_map(|it| it.numbered.as_mut()) {
            let announced = std::mem::take(&mut numbered.announced);
            let numbers = numbered.belt.pass(&announced).await?;
            numbered.numbers = numbers.into_iter().flatten().collect();
        }
        Ok(())
    }

    /// Takes what a commit has for a sink.
    pub(super) fn put(
        &mut self,
        target: &Target,
        commit: u64,
        content: Content,
    ) -> Result<(), PublisherError> {
        let (stream, sink) = (&*target.partition.stream, content.sink(target)?);
        if let Some(lines) = self.lines.get_mut(sink) {
            lines.put(stream, &content);
        } else if let Some(exchange) = self.exchanges.get_mut(sink) {
            content.put(exchange, stream, None);
            self.unconfirmed += 1;
        } else if let Some((chain, via)) = self.routes.get(sink).copied() {
            self.chains[chain].put(Passing { commit, content, via });
            self.unconfirmed += 1;
        } else {
            return Err(content.unknown_sink(stream, sink));
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

    /// Makes the lines durable. A sync that failed is not tried again: the system may have dropped what it
    /// could not write, and the next sync succeeds without it.
    pub(super) fn sync(&mut self) -> Result<(), PublisherError> {
        for (name, Lines { sink, .. }) in &mut self.lines {
            if sink.needs_sync() {
                block_in_place(|| sink.sync()).map_err(|error| PublisherError::NotSynced {
                    sink: name.clone(),
                    path: sink.place(),
                    error,
                })?;
            }
        }
        Ok(())
    }
}

impl Lines {
    /// Encodes what is next, under its number if it has any; not if that is another owner's.
    fn put(&mut self, stream: &str, content: &Content) {
        let mut number = None;
        if let Some(numbered) = &mut self.numbered {
            // To go on without it would lose the message.
            number = numbered.numbers.pop_front().expect("what is put was announced");
            if number.is_none() {
                return;
            }
        }
        content.encode(stream, number, &mut self.buffer);
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
    let mut throttle = LogThrottle::new(WARN_INTERVAL);
    while let Err(error) = block_in_place(|| action(sink)) {
        if matches!(sink, Sink::Standard) && error.kind() == io::ErrorKind::BrokenPipe {
            return Err(PublisherError::NoReader(name.to_owned()));
        }
        if throttle.allow() {
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
