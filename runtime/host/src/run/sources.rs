//! Starts the source of a partition.

use std::sync::Arc;

use ordain_core::Settings;

use super::streams::Starting;
use super::{RunError, files};
use crate::broker::{self, ConsumerOptions, Topology};
use crate::cloudevents::Decoder;
use crate::config::{
    AmqpSource, FileSource, Name, Place, Source as SourceConfig, StoreConfig, Stream,
};
use crate::driver::Progress;
use crate::instance::Tenure;
use crate::sink::Target;
use crate::source::{self, Checkpoint, FileOptions, Position, QueueOptions, Source};

/// The part of a partition's memory for what the broker has sent and nobody has taken: the rest is
/// for events, states and outcomes.
const AHEAD: usize = 4;

impl Starting<'_> {
    /// Starts it, and tells the name of its checkpoint if it has one.
    pub(super) async fn source(
        &self,
        name: &Name,
        stream: &Stream,
        settings: &Settings,
        progress: &Arc<Progress>,
        target: &Target,
    ) -> Result<(Source, Option<String>), RunError> {
        match &stream.source {
            SourceConfig::Amqp(config) => {
                let tenure = &target.tenure;
                Ok((self.queue(name, stream, config, settings, progress, tenure), None))
            }
            SourceConfig::Stream(config) => {
                let source = source::read_queue(QueueOptions {
                    store: Arc::clone(self.store),
                    partition: target.partition.clone(),
                    claim: target.claim,
                    feed: self.feeds.of(&target.partition),
                    limit: config.queue,
                    others: matches!(self.loaded.config.store, StoreConfig::Redis(_)),
                    progress: Arc::clone(progress),
                });
                Ok((source, None))
            }
            SourceConfig::File(config) => self.file(name, stream, config).await,
            SourceConfig::Http(_) => unreachable!("`unsupported` refuses other sources"),
        }
    }

    /// A queue of the broker, which knows itself what is acknowledged.
    fn queue(
        &self,
        name: &Name,
        stream: &Stream,
        config: &AmqpSource,
        settings: &Settings,
        progress: &Arc<Progress>,
        tenure: &Arc<Tenure>,
    ) -> Source {
        let broker = self.broker.as_ref().expect("a source of a broker is checked to have one");
        broker::start(ConsumerOptions {
            broker: Arc::clone(broker),
            topology: Topology::of(config),
            partition: settings.partition,
            stream: name.shared(),
            prefetch: settings.prefetch.try_into().unwrap_or(u16::MAX),
            memory: settings.memory_budget / AHEAD,
            last_window: Arc::clone(
                self.last_windows.borrow_mut().entry(name.shared()).or_default(),
            ),
            decoder: broker::Decoder {
                ordering: stream.ordering,
                event_size: self.loaded.config.runtime.event_size.bytes(),
                key: config.key.clone(),
            },
            tenure: Arc::clone(tenure),
            progress: Arc::clone(progress),
        })
    }

    /// A file, from where its checkpoint says.
    async fn file(
        &self,
        name: &Name,
        stream: &Stream,
        config: &FileSource,
    ) -> Result<(Source, Option<String>), RunError> {
        let event_size = self.loaded.config.runtime.event_size.bytes();
        let decoder = Decoder { ordering: stream.ordering, event_size };
        let Place::File(path) = &config.path else {
            let (name, position) = ("standard input".into(), Position::default());
            let options = FileOptions { file: None, name, position, follow: false, decoder };
            return Ok((source::start(options).map_err(RunError::Thread)?, None));
        };
        let opened = self.sources.borrow_mut().remove(&**name);
        let file = match opened {
            Some(file) => file,
            // It was another's in between.
            None => files::open_source(self.loaded, name, path)?.0,
        };
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
            Some(checkpoint) => checkpoint.resume(&file).map_err(|error| {
                let message = format!("{} cannot be read: {error}", path.display());
                self.loaded.error(&format!("streams.{name}.source.path"), message)
            })?,
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
}
