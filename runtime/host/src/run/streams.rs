//! Brings the partitions of all streams up: claims them, publishes what was left over, and puts
//! together what their drivers need.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use ordain_core::Input;
use tokio::sync::{mpsc, watch};

use super::{Handlers, RunError};
use crate::cloudevents::Decoder;
use crate::config::{Config, Loaded, Name, Place, Share, Source as SourceConfig, Stream};
use crate::driver::{INBOX, Note, Parts, Shared};
use crate::plugin::{Pool, StreamContext};
use crate::sink::{Job, Publisher, Target};
use crate::source::{self, Checkpoint, FileOptions, Position};
use crate::store::{Claimed, Partition, Store};

/// What all partitions share while they are brought up.
pub(super) struct Starting<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) once: bool,
    pub(super) store: &'a Arc<dyn Store>,
    pub(super) pool: &'a Pool,
    pub(super) jobs: mpsc::Sender<Job>,
    pub(super) shutdown: watch::Receiver<bool>,
}

/// A partition that is ours.
pub(super) struct Mine<'a> {
    name: &'a Name,
    stream: &'a Stream,
    partition: Partition,
    claimed: Claimed,
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

impl<'a> Starting<'a> {
    /// Claims every partition and publishes what an earlier process left in its outbox.
    pub(super) async fn claim(
        &mut self,
        publisher: &mut Publisher,
    ) -> Result<Vec<Mine<'a>>, RunError> {
        let mut mine = Vec::new();
        for (name, stream) in &self.loaded.config.streams {
            for number in 0..stream.source.partitions() {
                let partition = Partition { stream: name.shared(), number };
                let claimed = self.store.claim(&partition).await?;
                let dead_letter = stream.dead_letter.as_deref();
                let left = publisher
                    .publish_left_overs(&partition, dead_letter, self.store.shards())
                    .await?;
                if left > 0 {
                    tracing::info!(
                        stream = %name, messages = left,
                        "published what an earlier process committed and did not publish"
                    );
                }
                mine.push(Mine { name, stream, partition, claimed });
            }
        }
        Ok(mine)
    }

    /// Everything that a partition's driver needs.
    pub(super) async fn parts(
        &self,
        mine: Mine<'a>,
        handlers: &Handlers,
    ) -> Result<(Parts, Arc<Shared>), RunError> {
        let Mine { name, stream, partition, claimed } = mine;
        let config = &self.loaded.config;
        let handler = Arc::clone(&handlers.active[&*stream.handler]);
        let version = Some(handler.version().clone());
        let (notes, inbox) = mpsc::channel(INBOX);
        let (done, publish) = (notes.clone(), notes.clone());
        let context = StreamContext::new(name.shared(), config.sinks.keys().map(Name::shared));
        let turns = self.pool.attach(
            context,
            handler,
            // A worker's thread; the driver always takes what is there, so this waits shortly.
            // If the driver is gone, nobody needs it.
            Box::new(move |turns| drop(done.blocking_send(Note::Turns(turns)))),
        );
        let target = Target {
            partition: partition.clone(),
            dead_letter: stream.dead_letter.as_ref().map(Name::shared),
            done: Box::new(move |shard, through| {
                drop(publish.blocking_send(Note::Input(Input::Published { shard, through })));
            }),
        };
        let (source, checkpoint) = self.source(name, stream).await?;
        let progress = Arc::new(Shared::default());
        let parts = Parts {
            settings: config.settings(stream, &share(config, stream, partition.number, version)),
            partition,
            claimed,
            store: Arc::clone(self.store),
            turns,
            publisher: self.jobs.clone(),
            target: Arc::new(target),
            inbox,
            notes,
            source,
            checkpoint,
            once: self.once,
            shutdown: self.shutdown.clone(),
            progress: Arc::clone(&progress),
        };
        Ok((parts, progress))
    }

    /// Starts a source where its checkpoint says.
    async fn source(
        &self,
        name: &Name,
        stream: &Stream,
    ) -> Result<(source::Source, Option<String>), RunError> {
        let SourceConfig::File(config) = &stream.source else {
            unreachable!("`unsupported` refuses other sources");
        };
        let decoder = Decoder {
            ordering: stream.ordering,
            event_size: self.loaded.config.runtime.event_size.bytes(),
        };
        let Place::File(path) = &config.path else {
            let (name, position) = ("standard input".into(), Position::default());
            let options = FileOptions { file: None, name, position, follow: false, decoder };
            return Ok((source::start(options).map_err(RunError::Thread)?, None));
        };
        let file = open_source(path).map_err(|problem| self.unusable(name, path, &problem))?;
        let mark = Checkpoint::mark(name, path);
        let checkpoint = match self.store.mark(&mark).await? {
            None => None,
            Some(bytes) => match Checkpoint::decode(&bytes) {
                Ok(checkpoint) => Some(checkpoint),
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    tracing::warn!(
                        stream = %name, "{error:#}; reading the file from its beginning; {}",
                        source::read_again(stream.ordering)
                    );
                    None
                }
            },
        };
        let position = match &checkpoint {
            None => None,
            Some(checkpoint) => checkpoint
                .resume(&file)
                .map_err(|error| self.unusable(name, path, &format!("cannot be read: {error}")))?,
        };
        match (checkpoint, position) {
            (Some(_), None) => tracing::warn!(
                stream = %name, path = %path.display(),
                "not the file of the last time, or changed where it was read: reading it from its \
                 beginning; {}", source::read_again(stream.ordering)
            ),
            (_, Some(Position { line, .. })) => {
                tracing::info!(stream = %name, line, "going on where the last run was");
            }
            (None, None) => {}
        }
        let options = FileOptions {
            file: Some((file, path.clone())),
            name: path.display().to_string(),
            position: position.unwrap_or_default(),
            follow: !self.once,
            decoder,
        };
        Ok((source::start(options).map_err(RunError::Thread)?, Some(mark)))
    }

    fn unusable(&self, name: &Name, path: &Path, problem: &str) -> RunError {
        let message = format!("{} {problem}", path.display());
        self.loaded.error(&format!("streams.{name}.source.path"), message).into()
    }
}

/// Opens a file of events. Anything but a regular one has no positions to go on from, and might
/// never open at all.
fn open_source(path: &Path) -> Result<File, String> {
    let unreadable = |error| format!("cannot be read: {error}");
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err("is no regular file; events from a pipe come in with path = \"-\"".to_owned());
    }
    File::open(path).map_err(unreadable)
}
