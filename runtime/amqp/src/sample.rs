//! Shows how the streams would read the messages that wait in their queues, for `ordain check --connect --sample`. This
//! module receives messages and acknowledges none of them, so the broker returns them to their queues.

use std::fmt::{self, Write as _};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use serde::Serialize;
use tokio::time::timeout;

use super::connect::{BrokerEndpoint, BrokerError};
use super::decode::{DeliveryDecoder, describe_message, propose_settings};
use super::topology::Topology;
use super::unreadable::{decode_batch, decode_or_letter, fault};
use ordain_cloudevents::{DecodedDelivery, time_text};
use ordain_config::{LoadedConfig, SourceConfig};
use ordain_util::finding::Finding;
use ordain_util::text::escape_invisible;
use ordain_util::wait::shortened;

/// Time without a message after which a queue counts as empty.
const QUIET_TIMEOUT: Duration = Duration::from_secs(2);
const BUSY_QUEUE: &str = "its messages were not sampled. A consumer could receive later messages before the sampled \
     messages are back in the queue: stop the consumers, then repeat the command";

/// A message of a queue, or an event of a batch, as its stream would read it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SampledMessage {
    /// The stream that reads the queue.
    pub stream: String,
    /// The queue.
    pub queue: String,
    /// The position of the message among the sampled messages of the queue, from 1.
    pub position: usize,
    /// The number of the event in the message, from 1; `None` if the message is not a batch.
    pub event: Option<usize>,
    /// The key; `None` if the message cannot be read.
    pub key: Option<String>,
    /// The id; `None` if the message has no id or cannot be read.
    pub id: Option<String>,
    /// The sequence; `None` if the message has no sequence or cannot be read.
    pub sequence: Option<u64>,
    /// The type; `None` if the message has no type or cannot be read.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The time; `None` if the message has no time or cannot be read.
    pub time: Option<String>,
    /// The content type; `None` if the message has no content type or cannot be read.
    pub content_type: Option<String>,
    /// The cause of the dead letter that the message would become; `None` if the message can be read.
    pub cause: Option<&'static str>,
    /// The reason why the message cannot be read.
    pub error: Option<String>,
    /// The names of the values in a message that cannot be read, without the values themselves.
    pub values: Option<String>,
    /// Proposed settings with which the stream could read an unreadable message.
    pub proposal: Option<String>,
}

/// Formats the sample as one line of text.
impl fmt::Display for SampledMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, queue, position, .. } = self;
        let mut line = format!("stream {stream}, queue {queue:?}, message {position}");
        if let Some(event) = self.event {
            write!(line, ", event {event} of its batch")?;
        }
        line.push_str(": ");
        if let Some(cause) = self.cause {
            let part = |text: &Option<String>| text.clone().unwrap_or_default();
            write!(line, "{cause}: {}; the message has {}", part(&self.error), part(&self.values))?;
            if let Some(proposal) = &self.proposal {
                write!(line, "; with {proposal}, the stream could read the message")?;
            }
        } else {
            write!(line, "key {:?}", self.key.as_deref().unwrap_or_default())?;
            for (name, value) in [
                ("id", &self.id),
                ("type", &self.kind),
                ("time", &self.time),
                ("content type", &self.content_type),
            ] {
                match value {
                    Some(value) => write!(line, ", {name} {value:?}")?,
                    None => write!(line, ", no {name}")?,
                }
            }
            match self.sequence {
                Some(sequence) => write!(line, ", sequence {sequence}")?,
                None => line.push_str(", no sequence"),
            }
        }
        f.write_str(&escape_invisible(&line))
    }
}

enum QueueSample {
    /// The messages, which are back in the queue.
    Messages(Vec<Delivery>),
    /// The queue has this number of consumers, so no message was received.
    Busy(u32),
}

/// Receives at most `count` messages of each queue that a stream reads, and returns them to their queues. Appends the
/// messages to `samples`, and appends a finding for each queue. Receives nothing from a queue with consumers. If the
/// caller drops the future, the samples and findings made so far remain.
pub async fn sample_queues(
    broker: &BrokerEndpoint,
    loaded: &LoadedConfig,
    count: u16,
    findings: &mut Vec<Finding>,
    samples: &mut Vec<SampledMessage>,
) {
    let connection = match broker.connect("ordain check").await {
        Ok(connection) => connection,
        Err(error) => return findings.push(unsampled(&error)),
    };
    let event_size = loaded.config.runtime.event_size.bytes();
    for (name, stream) in &loaded.config.streams {
        let SourceConfig::Amqp(source) = &stream.source else { continue };
        let decoder = DeliveryDecoder::of_stream(name, stream, source, event_size);
        let topology = Topology::of(source);
        for partition in 0..topology.partitions() {
            let queue = topology.queue(partition);
            match receive(&connection, &queue, count).await.map_err(|error| broker.error(&error)) {
                Ok(QueueSample::Busy(consumers)) => findings.push(Finding::note(format!(
                    "the queue {queue:?} has consumers ({consumers}): {BUSY_QUEUE}"
                ))),
                Ok(QueueSample::Messages(messages)) => {
                    let read = read_messages(name, &decoder, &queue, &messages);
                    findings.push(summary(name, &queue, messages.len(), &read));
                    samples.extend(read);
                }
                // The inspection of the topology reports a missing queue.
                Err(error) if error.is_not_found() => {}
                Err(error) => findings.push(unsampled(&error)),
            }
        }
    }
    // All messages have been returned, so an error of the connection does not matter.
    let _ = connection.close(200, "done".into()).await;
}

fn unsampled(error: &BrokerError) -> Finding {
    let text = format!("messages not sampled: {error}");
    if error.may_pass() { Finding::unavailable(text) } else { Finding::warning(text) }
}

async fn receive(
    connection: &Connection,
    queue: &str,
    count: u16,
) -> Result<QueueSample, lapin::Error> {
    let channel = connection.create_channel().await?;
    let received = receive_on(&channel, queue, count).await;
    // The broker returns unacknowledged messages to the queue when the channel is closed. If this call fails, the end
    // of the connection has the same effect.
    let _ = channel.close(200, "done".into()).await;
    received
}

/// Consumes messages and acknowledges none of them. RabbitMQ would refuse single requests (`basic.get`) for the queues
/// that Ordain declares, because these queues allow only a single active consumer.
async fn receive_on(
    channel: &Channel,
    queue: &str,
    count: u16,
) -> Result<QueueSample, lapin::Error> {
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let found = channel.queue_declare(queue.into(), passive, FieldTable::default()).await?;
    if found.consumer_count() > 0 {
        return Ok(QueueSample::Busy(found.consumer_count()));
    }
    channel.basic_qos(count, BasicQosOptions::default()).await?;
    let defaults = BasicConsumeOptions::default();
    let nothing = FieldTable::default();
    let mut consumer = channel.basic_consume(queue.into(), "".into(), defaults, nothing).await?;
    let mut messages = Vec::new();
    while messages.len() < count.into()
        && let Ok(Some(message)) = timeout(shortened(QUIET_TIMEOUT), consumer.next()).await
    {
        messages.push(message?);
    }
    Ok(QueueSample::Messages(messages))
}

/// Reads messages as their stream would read them.
fn read_messages(
    stream: &str,
    decoder: &DeliveryDecoder,
    queue: &str,
    messages: &[Delivery],
) -> Vec<SampledMessage> {
    let mut samples = Vec::with_capacity(messages.len());
    for (position, message) in (1..).zip(messages) {
        let mut add = |event, read: &DecodedDelivery| {
            samples.push(SampledMessage {
                stream: stream.to_owned(),
                queue: queue.to_owned(),
                position,
                event,
                ..sample_values(decoder, message, read)
            });
        };
        match decode_batch(decoder, queue, message) {
            None => add(None, &decode_or_letter(decoder, queue, message)),
            Some(events) => {
                for (number, event) in (1..).zip(&events) {
                    add(Some(number), event);
                }
            }
        }
    }
    samples
}

/// Returns the values of an event, or why its message cannot be read.
fn sample_values(
    decoder: &DeliveryDecoder,
    message: &Delivery,
    read: &DecodedDelivery,
) -> SampledMessage {
    let mut sample = SampledMessage::default();
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    if let Some((cause, error)) = fault(read) {
        sample.cause = Some(cause.name());
        sample.error = Some(error.to_owned());
        sample.values = Some(describe_message(decoder, message));
        sample.proposal = propose_settings(decoder, message);
    } else if let Ok(event) = read {
        sample.key = Some(event.key().to_owned());
        sample.id = text(event.id());
        sample.sequence = event.sequence();
        sample.kind = text(event.kind());
        sample.time = event.time_us().and_then(time_text);
        sample.content_type = text(event.content_type());
    }
    sample
}

/// Returns the finding about the sampled messages of a queue, with the number of these messages. If no message can be
/// read, a start leaves the messages in the queue, so the finding is an error.
fn summary(stream: &str, queue: &str, messages: usize, samples: &[SampledMessage]) -> Finding {
    let unreadable = samples.iter().filter(|sample| sample.cause.is_some()).count();
    let start = format!("stream {stream}: {messages} messages of the queue {queue:?} sampled");
    match unreadable {
        0 if messages == 0 => {
            Finding::note(format!("stream {stream}: the queue {queue:?} is empty"))
        }
        0 => Finding::note(format!("{start}, and all can be read")),
        unreadable if unreadable == samples.len() => Finding::error(format!(
            "{start}, and none can be read: correct the settings of the source"
        )),
        unreadable => Finding::warning(format!(
            "{start}, and {unreadable} of their events cannot be read: they would become dead letters"
        )),
    }
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;
    use ordain_config::EventLocations;
    use ordain_core::OrderingMode;
    use ordain_util::finding::Severity;

    use super::*;

    fn message(id: &str) -> Delivery {
        let mut message = Delivery::mock(1, "".into(), "a".into(), false, b"{}".to_vec());
        if !id.is_empty() {
            message.properties = BasicProperties::default()
                .with_message_id(id.into())
                .with_timestamp(1)
                .with_type("t\u{1b}".into());
        }
        message
    }

    #[test]
    fn samples_show_values_or_the_reason_and_a_proposal() {
        let locations = EventLocations::DEFAULT;
        let ordering = OrderingMode::Fifo;
        let decoder =
            DeliveryDecoder::new("/ordain/s".to_owned(), ordering, 1 << 20, locations, false);
        let read = |messages: &[Delivery]| read_messages("s", &decoder, "q", messages);
        let samples = read(&[message("1"), message("")]);
        let lines: Vec<String> = samples.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines[0],
            "stream s, queue \"q\", message 1: key \"a\", id \"1\", type \"t\\u{1b}\", \
             time \"1970-01-01T00:00:01Z\", no content type, no sequence"
        );
        assert!(
            lines[1].starts_with("stream s, queue \"q\", message 2: no-id: there is no id, "),
            "{}",
            lines[1]
        );
        let end = "; with `source = { …, id = \"content\" }`, the stream could read the message";
        assert!(lines[1].ends_with(end), "{}", lines[1]);
        let severity =
            |samples: &[SampledMessage]| summary("s", "q", samples.len(), samples).severity;
        assert_eq!(severity(&samples), Severity::Warning);
        assert_eq!(severity(&samples[..1]), Severity::Note);
        assert_eq!(severity(&samples[1..]), Severity::Error);
        assert_eq!(severity(&[]), Severity::Note);
        let body = br#"[{"specversion":"1.0","id":"1","source":"/s","type":"t"},{"id":"2"}]"#;
        let mut batch = Delivery::mock(1, "".into(), "a".into(), false, body.to_vec());
        batch.properties = BasicProperties::default()
            .with_content_type("application/cloudevents-batch+json".into());
        let samples = read(&[message("1"), batch]);
        let places: Vec<_> = samples.iter().map(|found| (found.position, found.event)).collect();
        assert_eq!(places, [(1, None), (2, Some(1)), (2, Some(2))]);
        assert_eq!((samples[1].id.as_deref(), samples[1].cause), (Some("1"), None));
        let line = samples[2].to_string();
        let start = "stream s, queue \"q\", message 2, event 2 of its batch: unreadable: event 2 of the batch: ";
        assert!(line.starts_with(start), "{line}");
        assert_eq!(summary("s", "q", 2, &samples).severity, Severity::Warning);
        assert_eq!(summary("s", "q", 1, &samples[2..]).severity, Severity::Error);
    }
}
