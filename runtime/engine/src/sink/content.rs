//! The contents that sinks publish: messages of handlers, and forwarded dead letters.

use ordain_core::{DeadLetter, Event};

use super::{PartitionHandle, PublisherError};
use ordain_amqp::ExchangeSink;
use ordain_cloudevents::{TextForm, letter_attributes, letter_event, message_event, message_id};
use ordain_store::OutboxMessage;

#[derive(Debug, Clone)]
pub(super) enum SinkContent {
    Message(OutboxMessage),
    Letter(Box<DeadLetter>),
}

impl SinkContent {
    /// Returns the name of the sink. Fails for a dead letter if its stream does not forward dead letters.
    pub(super) fn sink<'a>(
        &'a self,
        handle: &'a PartitionHandle,
    ) -> Result<&'a str, PublisherError> {
        match self {
            Self::Message(message) => Ok(message.emitted.message.sink()),
            Self::Letter(letter) => handle.dead_letter.as_deref().ok_or_else(|| {
                let stream = handle.partition.stream.to_string();
                let key = letter.id.key.to_string();
                PublisherError::NoLetterSink { stream, key, sequence: letter.id.sequence }
            }),
        }
    }

    /// Returns the id of the content, which is the same each time the content is published.
    pub(super) fn id(&self, stream: &str) -> String {
        match self {
            Self::Message(message) => message_id(stream, message),
            Self::Letter(letter) => letter_attributes(stream, letter).id,
        }
    }

    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Message(message) => message.emitted.message.memory(),
            Self::Letter(letter) => letter.memory(),
        }
    }

    /// Returns the event that the receiver of the content will get, without the number of the event.
    pub(super) fn event(&self, stream: &str) -> Event {
        match self {
            Self::Message(message) => message_event(stream, message),
            Self::Letter(letter) => letter_event(stream, letter),
        }
    }

    /// Encodes the content as a CloudEvent in one line. `sequence` is the number from the store; `None` if the messages
    /// of the sink have no numbers. `text_form` is the form of data that is text but not JSON.
    pub(super) fn encode(
        &self,
        stream: &str,
        sequence: Option<u64>,
        text_form: TextForm,
        out: &mut Vec<u8>,
    ) {
        match self {
            Self::Message(message) => {
                ordain_cloudevents::encode(stream, message, sequence, text_form, out);
            }
            Self::Letter(letter) => {
                ordain_cloudevents::encode_letter(stream, letter, sequence, text_form, out);
            }
        }
    }

    /// Adds the content to an exchange. `sequence` is the number from the store; `None` if the messages of the sink
    /// have no numbers.
    pub(super) fn put(&self, exchange: &mut ExchangeSink, stream: &str, sequence: Option<u64>) {
        match self {
            Self::Message(message) => exchange.add_message(stream, message, sequence),
            Self::Letter(letter) => exchange.add_letter(stream, letter, sequence),
        }
    }

    pub(super) fn unknown_sink(&self, stream: &str, sink: &str) -> PublisherError {
        let (key, sequence) = match self {
            Self::Message(message) => (&*message.key, message.emitted.sequence),
            Self::Letter(letter) => (&*letter.id.key, letter.id.sequence),
        };
        PublisherError::UnknownSink {
            stream: stream.to_owned(),
            key: key.to_owned(),
            sequence,
            sink: sink.to_owned(),
        }
    }
}
