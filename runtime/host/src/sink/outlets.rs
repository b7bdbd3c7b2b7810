//! All sinks of a process by name: what is to be published is gathered here, and goes out together.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ordain_core::DeadLetter;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::{JoinSet, block_in_place};

use super::{PublisherError, Sink};
use crate::broker::{AmqpSink, Published};
use crate::cloudevents;
use crate::instance::Tenure;
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
    /// Messages of the run that is being gathered that go to exchanges.
    unconfirmed: usize,
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

    /// Starts the tasks of the exchanges, which tell what they have published.
    pub(super) fn start(&mut self, published: &UnboundedSender<Published>) -> JoinSet<()> {
        let exchanges = self.exchanges.values_mut();
        exchanges.filter_map(|it| it.start(published.clone())).collect()
    }

    /// Takes a message.
    pub(super) fn message(
        &mut self,
        stream: &str,
        message: &OutboxMessage,
    ) -> Result<(), PublisherError> {
        let sink = message.emitted.message.sink();
        if let Some((_, buffer)) = self.lines.get_mut(sink) {
            cloudevents::encode(stream, message, None, buffer);
        } else if let Some(exchange) = self.exchanges.get_mut(sink) {
            exchange.put(stream, message);
            self.unconfirmed += 1;
        } else {
            return Err(unknown(stream, sink, &message.key, message.emitted.sequence));
        }
        Ok(())
    }

    /// Takes a dead letter for the sink of its stream's letters.
    pub(super) fn letter(
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
        if let Some((_, buffer)) = self.lines.get_mut(sink) {
            cloudevents::encode_letter(stream, letter, buffer);
        } else if let Some(exchange) = self.exchanges.get_mut(sink) {
            exchange.put_letter(stream, letter);
            self.unconfirmed += 1;
        } else {
            return Err(unknown(stream, sink, key, sequence));
        }
        Ok(())
    }

    /// Bytes of lines that are not yet written.
    pub(super) fn encoded(&self) -> usize {
        self.lines.values().map(|(_, buffer)| buffer.len()).sum()
    }

    /// Ends a run: gives the exchanges what they have of it, and writes its lines. Returns how many
    /// messages the exchanges have to confirm, and the marks that go with the lines.
    pub(super) async fn write(
        &mut self,
        run: u64,
        tenure: &Arc<Tenure>,
    ) -> Result<(usize, Vec<Mark>), PublisherError> {
        self.exchanges.values_mut().for_each(|it| it.send(run, tenure));
        let mut marks = Vec::new();
        for (name, (sink, buffer)) in &mut self.lines {
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
        for (name, (sink, _)) in &mut self.lines {
            if sink.needs_sync() {
                insist(name, sink, Sink::sync).await?;
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
