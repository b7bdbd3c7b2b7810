//! Brings the partitions of all streams up: claims them, publishes what was left over, and puts
//! together what their drivers need.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use ordain_core::Input;
use tokio::sync::{mpsc, watch};

use super::{Handlers, RunError, numbering};
use crate::broker::Broker;
use crate::config::{Config, Loaded, Name, Share, Sink, Stream};
use crate::driver::{INBOX, Note, Parts, Progress};
use crate::plugin::{Pool, StreamContext};
use crate::sink::{Committed, Publisher, PublisherError, Target};
use crate::store::{Claimed, Partition, Store};

/// What all partitions share while they are brought up.
pub(super) struct Starting<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) once: bool,
    pub(super) store: &'a Arc<dyn Store>,
    pub(super) pool: &'a Pool,
    /// The files of events, by stream, until their sources are started.
    pub(super) sources: BTreeMap<String, File>,
    pub(super) broker: Option<Arc<Broker>>,
    pub(super) committed: mpsc::Sender<Committed>,
    pub(super) shutdown: watch::Receiver<bool>,
}

/// A partition that is ours.
pub(super) struct Mine<'a> {
    name: &'a Name,
    stream: &'a Stream,
    claimed: Claimed,
    target: Arc<Target>,
    inbox: mpsc::Receiver<Note>,
    /// What an earlier process left in the outbox, and is being published.
    left_over: Vec<Input>,
}

/// Batches that may wait for the publisher: the sequencers let no more be unpublished.
pub(super) fn unpublished(config: &Config) -> usize {
    let settings = config.streams.values().map(|stream| {
        let settings = config.settings(stream, &share(config, stream, 0, None));
        stream.source.partitions() as usize * (settings.max_outbox + settings.run_ahead)
    });
    settings.sum::<usize>().max(1)
}

fn share(
    config: &Config,
    stream: &Stream,
    partition: u32,
    version: Option<ordain_core::Version>,
) -> Share {
    Share {
        partition,
        of_stream: stream.source.partitions() as usize,
        of_process: config.partitions(),
        workers: config.workers(),
        version,
        seed: u64::from(std::process::id()) << 32 | u64::from(partition),
    }
}

/// Refuses a store with committed messages of a stream that is no longer configured: nobody would
/// publish them.
pub(super) async fn check_left_overs(loaded: &Loaded, store: &dyn Store) -> Result<(), RunError> {
    for stream in store.streams().await? {
        if loaded.config.streams.keys().any(|name| **name == *stream) {
            continue;
        }
        for number in 0..numbering::partitions(store, &stream).await? {
            let partition = Partition { stream: Arc::clone(&stream), number };
            for shard in 0..store.shards() {
                if !store.outbox(&partition, shard, 0, 1).await?.is_empty() {
                    return Err(PublisherError::UnknownStream(partition.stream).into());
                }
            }
        }
    }
    Ok(())
}

impl<'a> Starting<'a> {
    /// Claims every partition and publishes what an earlier process left in its outbox; `None`
    /// if the end was asked for meanwhile.
    pub(super) async fn claim(
        &mut self,
        mut publisher: Publisher,
    ) -> Result<Option<(Vec<Mine<'a>>, Publisher)>, RunError> {
        let mut mine = Vec::new();
        for (name, stream) in &self.loaded.config.streams {
            for number in 0..stream.source.partitions() {
                let partition = Partition { stream: name.shared(), number };
                let claimed = self.store.claim(&partition).await?;
                let (tell, inbox) = mpsc::channel(INBOX);
                let target = Arc::new(Target {
                    partition,
                    claim: claimed.claim,
                    dead_letter: stream.dead_letter.as_ref().map(Name::shared),
                    inbox: tell,
                });
                self.publish_left_overs(&mut publisher, &target, &claimed).await?;
                mine.push(Mine { name, stream, claimed, target, inbox, left_over: Vec::new() });
            }
        }
        // Some of it may be published by now.
        for mine in &mut mine {
            mine.left_over = publisher.take_left_over(&mine.target);
        }
        Ok((!*self.shutdown.borrow()).then_some((mine, publisher)))
    }

    async fn publish_left_overs(
        &self,
        publisher: &mut Publisher,
        target: &Arc<Target>,
        claimed: &Claimed,
    ) -> Result<(), RunError> {
        // No process has more than that in memory when it dies, unless it had other settings.
        let room = 2 * self.loaded.config.runtime.memory_budget.bytes();
        let stop = || *self.shutdown.borrow();
        let left = publisher.publish_left_overs(target, claimed, room, &stop).await?;
        if left > 0 {
            tracing::info!(
                stream = &*target.partition.stream,
                messages = left,
                "publishing what an earlier process committed and did not publish"
            );
        }
        Ok(())
    }

    /// Everything that a partition's driver needs.
    pub(super) async fn parts(
        &mut self,
        Mine { name, stream, claimed, target, inbox, left_over }: Mine<'a>,
        handlers: &Handlers,
    ) -> Result<(Parts, Arc<Progress>), RunError> {
        let config = &self.loaded.config;
        let handler = Arc::clone(&handlers.active[&*stream.handler]);
        let version = Some(handler.version().clone());
        let (done, partition) = (target.inbox.clone(), target.partition.clone());
        let mut context = StreamContext::new(name.shared(), config.sinks.keys().map(Name::shared));
        for (sink, config) in &config.sinks {
            if let Sink::Amqp(config) = config {
                context = context.with_routing_key(sink.shared(), config.routing_key.clone());
            }
        }
        let turns = self.pool.attach(
            context,
            handler,
            // A worker's thread; the driver always takes what is there, so this waits shortly.
            // If the driver is gone, nobody needs it.
            Box::new(move |turns| drop(done.blocking_send(Note::Turns(turns)))),
        );
        let settings = config.settings(stream, &share(config, stream, partition.number, version));
        let progress = Arc::new(Progress::new(partition.clone()));
        let (source, checkpoint) = self.source(name, stream, &settings, &progress).await?;
        let parts = Parts {
            settings,
            partition,
            claimed,
            store: Arc::clone(self.store),
            turns,
            publisher: self.committed.clone(),
            target,
            left_over,
            inbox,
            source,
            checkpoint,
            once: self.once,
            shutdown: self.shutdown.clone(),
            progress: Arc::clone(&progress),
        };
        Ok((parts, progress))
    }
}
