//! Sinks whose messages pass through the store: streams of this configuration, and exchanges whose
//! messages are numbered.

use std::sync::Arc;

use crate::config::{Config, Loaded, Name, Place, Sink, Source};
use crate::open::{numbers, room};
use crate::sink::{Outlets, Passage};
use crate::source::Feeds;
use crate::store::{Destination, Rules, Store};

/// Adds the sinks that are streams, and has those of lines numbered that are to be.
pub(super) fn add(
    loaded: &Loaded,
    store: &Arc<dyn Store>,
    feeds: &Arc<Feeds>,
    outlets: &mut Outlets,
) {
    for (name, sink) in &loaded.config.sinks {
        let Some(passage) = passage(&loaded.config, name, sink, store.shards()) else { continue };
        match sink {
            Sink::Stream(_) => {
                outlets.add_chain(name, passage, None, store, feeds);
            }
            Sink::File(_) => outlets.number(name, passage, store, feeds),
            Sink::Amqp(_) => {}
        }
    }
}

/// How messages of a sink pass through the store, if they do.
pub(super) fn passage(config: &Config, name: &Name, sink: &Sink, shards: u32) -> Option<Passage> {
    match sink {
        Sink::Amqp(sink) if sink.sequenced => {
            let fed = config.streams.values().find(|stream| match &stream.source {
                Source::Amqp(source) => source.exchange.as_ref() == Some(&sink.exchange),
                _ => false,
            });
            Some(Passage {
                to: Destination::Exchange((*sink.exchange.0).into()),
                rules: Rules { numbers: Some(numbers(fed)), queue: None },
                partitions: 1,
            })
        }
        Sink::Stream(sink) => {
            let stream = config.streams.get(&sink.stream)?;
            let Source::Stream(source) = &stream.source else { return None };
            Some(Passage {
                to: Destination::Stream(sink.stream.shared()),
                rules: Rules {
                    numbers: sink.sequenced.then(|| numbers(Some(stream))),
                    queue: Some(room(source.queue, shards)),
                },
                partitions: source.partitions,
            })
        }
        Sink::File(sink) if sink.sequenced => {
            let name = match &sink.path {
                // Several may write there, each with numbers of its own.
                Place::Standard => format!("-{name}").into(),
                Place::File(path) => path.display().to_string().into(),
            };
            Some(Passage {
                to: Destination::File(name),
                rules: Rules { numbers: Some(numbers(None)), queue: None },
                partitions: 1,
            })
        }
        Sink::Amqp(_) | Sink::File(_) => None,
    }
}
