//! All sinks of a process by name: what is to be published is gathered here, and goes out together.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use futures_util::future::join_all;
use ordain_core::DeadLetter;

use super::{PublisherError, Sink};
use crate::broker::AmqpSink;
use crate::cloudevents;
use crate::store::{Mark, OutboxMessage};

/// Bytes that are encoded before they are written.
pub(super) const WRITE_BYTES: usize = 1 << 20;
/// Between tries to write to a sink that fails.
const RETRY: Duration = Duration::from_secs(1);

/// The sinks.
#[derive(Debug, Default)]
pub struct Outlets {
    /// With the lines that are not yet written.
    lines: BTreeMap<String, (Sink, Vec<u8>)>,
    exchanges: BTreeMap<String, AmqpSink>,
}

impl Outlets {
    /// Adds a sink of lines.
    pub fn add(&mut self, name: &str, sink: Sink) {
        self.lines.insert(name.to_owned(), (sink, Vec::new()));
    }

    /// Adds a sink that is an exchange.
    pub fn add_exchange(&mut self, name: &str, sink: AmqpSink) {
        self.exchanges.insert(name.to_owned(), sink);
    }

    /// Takes a message of a run.
    pub(super) fn message(
        &mut self,
        run: u64,
        stream: &str,
        message: &OutboxMessage,
    ) -> Result<(), PublisherError> {
        let sink = message.emitted.message.sink();
        if let Some((_, buffer)) = self.lines.get_mut(sink) {
            cloudevents::encode(stream, message, None, buffer);
        } else if let Some(exchange) = self.exchanges.get_mut(sink) {
            exchange.put(run, stream, message);
        } else {
            return Err(unknown(stream, sink, &message.key, message.emitted.sequence));
        }
        Ok(())
    }

    /// Takes a dead letter of a run, for the sink of its stream's letters.
    pub(super) fn letter(
        &mut self,
        run: u64,
        stream: &str,
        sink: Option<&str>,
        letter: &DeadLetter,
    ) -> Result<(), PublisherError> {
        let (key, sequence) = (&letter.id.key, letter.id.sequence);
        let Some(sink) = sink else {
            let (stream, key) = (stream.to_owned(), key.to_string());
            return Err(PublisherError::NoLetterSink { stream, key, sequence });
        };
        if let Some((_, buffer)) = self.lines.get_mut(sink) {
            cloudevents::encode_letter(stream, letter, buffer);
        } else if let Some(exchange) = self.exchanges.get_mut(sink) {
            exchange.put_letter(run, stream, letter);
        } else {
            return Err(unknown(stream, sink, key, sequence));
        }
        Ok(())
    }

    /// Bytes of lines that are not yet written.
    pub(super) fn encoded(&self) -> usize {
        self.lines.values().map(|(_, buffer)| buffer.len()).sum()
    }

    /// Writes the lines, and returns the marks that go with them.
    pub(super) fn write(&mut self, stop: &dyn Fn() -> bool) -> Result<Vec<Mark>, PublisherError> {
        let mut marks = Vec::new();
        for (name, (sink, buffer)) in &mut self.lines {
            if buffer.is_empty() {
                continue;
            }
            insist(name, sink, stop, |sink| sink.append(buffer))?;
            buffer.clear();
            // What a large batch took is not kept for the small ones.
            buffer.shrink_to(WRITE_BYTES);
            marks.extend(sink.mark());
        }
        Ok(marks)
    }

    /// Makes the lines durable.
    pub(super) fn sync(&mut self, stop: &dyn Fn() -> bool) -> Result<(), PublisherError> {
        for (name, (sink, _)) in &mut self.lines {
            insist(name, sink, stop, Sink::sync)?;
        }
        Ok(())
    }

    /// Publishes what exchanges have, and waits until it is confirmed. What is not stays.
    pub(super) async fn flush(&mut self) {
        join_all(self.exchanges.values_mut().map(AmqpSink::flush)).await;
    }

    /// The runs that have something that no exchange has confirmed.
    pub(super) fn unpublished(&self) -> BTreeSet<u64> {
        self.exchanges.values().flat_map(AmqpSink::unpublished).collect()
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
