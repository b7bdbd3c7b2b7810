//! Reads the arguments of an existing queue. AMQP has no request that reads these arguments. But when a broker refuses
//! a declaration, the refusal names one argument that differs, and the queue's value of this argument.

use std::collections::BTreeMap;

use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, ShortString};
use lapin::{Connection, ErrorKind};

use super::{DELIVERY_LIMIT_ARGUMENT, QUEUE_TYPE_ARGUMENT, long_string};
use crate::connect::{BrokerEndpoint, BrokerError, RefusalCause};
use ordain_util::text::escape_invisible;

/// The arguments of a queue: the value of each argument by its name.
pub(crate) type QueueArguments = BTreeMap<ShortString, AMQPValue>;

/// Maximum number of declarations for the comparison of one queue. RabbitMQ has fewer queue arguments than this number,
/// so the limit only prevents an endless comparison.
const ATTEMPTS_LIMIT: usize = 32;

/// The value of the argument `x-delivery-limit` that means no limit.
pub(super) const NO_DELIVERY_LIMIT: &str = "-1";

/// The arguments with which a queue loses events, each with the broker's action.
const LOSSY_ARGUMENTS: [(&str, &str); 5] = [
    ("x-message-ttl", "drops messages that wait for longer than this time"),
    ("x-expires", "removes the queue with its messages if no consumer uses it for this time"),
    ("x-max-length", "drops the oldest messages or refuses new messages above this number"),
    (
        "x-max-length-bytes",
        "drops the oldest messages or refuses new messages above this number of bytes",
    ),
    (DELIVERY_LIMIT_ARGUMENT, "drops messages that it has delivered this often"),
];

/// The arguments that only a queue of type stream can have.
const STREAM_ARGUMENTS: [&str; 2] = ["x-max-age", "x-stream-max-segment-size-bytes"];

/// The form of an existing queue, as far as the broker names it.
#[derive(Debug, Default)]
pub(crate) struct QueueForm {
    /// The values, as texts, of the arguments of the queue. The map contains only arguments whose values are texts,
    /// Booleans or integers. If `is_complete` is `false`, some arguments may be missing, and the map may contain
    /// expected arguments that the queue does not have.
    pub(crate) arguments: BTreeMap<String, String>,
    /// The differences between the expected form and the queue, in the order in which the broker named them.
    pub(crate) differences: Vec<FormDifference>,
    /// `true` if the broker has accepted a declaration with these arguments. `false`, for example, if the broker named
    /// a difference that concerns no argument, or a value that is unreadable or cut off.
    pub(crate) is_complete: bool,
}

#[derive(Debug)]
pub(crate) struct FormDifference {
    /// The argument, or another property such as `durable`; empty if the broker named neither an argument nor a
    /// property.
    pub(crate) argument: String,
    pub(crate) reason: String,
}

impl QueueForm {
    /// Returns whether the queue is of type stream. If the name of the queue is long, the broker's text ends before the
    /// value of an argument, but still names the argument. If only a queue of type stream can have this argument, the
    /// queue is of type stream.
    pub(crate) fn is_stream(&self) -> bool {
        let is_stream_argument =
            |difference: &FormDifference| STREAM_ARGUMENTS.contains(&difference.argument.as_str());
        self.differences.iter().any(is_stream_argument)
            || self.is_complete
                && self.arguments.get(QUEUE_TYPE_ARGUMENT).is_some_and(|kind| kind == "stream")
    }

    pub(crate) fn risks(&self, queue: &str) -> Vec<String> {
        let lossy = LOSSY_ARGUMENTS.iter().filter_map(|(argument, action)| {
            let value = self.arguments.get(*argument)?;
            let excludes_limit = *argument == DELIVERY_LIMIT_ARGUMENT && value == NO_DELIVERY_LIMIT;
            (!excludes_limit).then(|| {
                format!(
                    "the queue {queue:?} has {argument} = {}: the broker {action}, and these events are lost. The \
                     arguments of a queue cannot be changed. Declare a new queue without this argument, move the \
                     messages to the new queue with a shovel, and configure the name of the new queue",
                    escape_invisible(value)
                )
            })
        });
        lossy.collect()
    }

    /// Reads the form of an existing durable queue by repeated declarations, which begin with the arguments `expected`.
    /// The queue must exist, so that a declaration changes nothing. Each refusal names one argument that differs, and
    /// the next declaration uses the queue's own value of this argument. The comparison ends when the broker accepts a
    /// declaration, or when a refusal names no further argument.
    pub(crate) async fn read(
        broker: &BrokerEndpoint,
        connection: &Connection,
        queue: &str,
        mut expected: QueueArguments,
    ) -> Result<Self, BrokerError> {
        let failed = |error| broker.error(&error);
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let mut form = Self::default();
        for _ in 0..ATTEMPTS_LIMIT {
            // The broker closes the channel of a refused declaration.
            let channel = connection.create_channel().await.map_err(failed)?;
            let declared = channel.queue_declare(queue.into(), durable, expected.clone().into());
            let Err(error) = declared.await else {
                channel.close(200, "done".into()).await.map_err(failed)?;
                form.is_complete = true;
                break;
            };
            let reason = match broker.error(&error) {
                BrokerError::Refused { cause: RefusalCause::OtherForm, reason } => reason,
                error => return Err(error),
            };
            let difference = match error.kind() {
                ErrorKind::ProtocolError(error) => parse_difference(error.get_message().as_str()),
                _ => None,
            };
            let argument = difference.as_ref().map_or("", |difference| difference.argument);
            let is_repeated = form.differences.iter().any(|known| known.argument == argument);
            form.differences.push(FormDifference { argument: argument.to_owned(), reason });
            let Some(ArgumentDifference { current: Some(current), .. }) = difference else { break };
            // RabbitMQ has no argument with such a long name.
            let Ok(name) = ShortString::try_new(argument) else { break };
            if is_repeated {
                break;
            }
            match current {
                CurrentValue::Value(value) => expected.insert(name, value),
                CurrentValue::Missing => expected.remove(argument),
            };
        }
        let shown = expected.iter().filter_map(|(name, value)| {
            let value = match value {
                AMQPValue::LongString(text) => text.to_string(),
                AMQPValue::Boolean(flag) => flag.to_string(),
                AMQPValue::LongInt(number) => number.to_string(),
                AMQPValue::LongLongInt(number) => number.to_string(),
                _ => return None,
            };
            Some((name.to_string(), value))
        });
        form.arguments = shown.collect();
        Ok(form)
    }
}

#[derive(Debug, PartialEq)]
struct ArgumentDifference<'a> {
    argument: &'a str,
    /// The value that the queue has; `None` if this value is unreadable, or if the difference concerns no argument.
    current: Option<CurrentValue>,
}

#[derive(Debug, PartialEq)]
enum CurrentValue {
    /// The queue does not have the argument.
    Missing,
    /// The queue has the argument with this value.
    Value(AMQPValue),
}

/// Parses the text of a refusal, such as `PRECONDITION_FAILED - inequivalent arg 'x-expires' for queue 'q' in vhost
/// '/': received none but current is the value '1000' of type 'signedint'`.
fn parse_difference(text: &str) -> Option<ArgumentDifference<'_>> {
    let (_, rest) = text.split_once("inequivalent arg '")?;
    let (argument, rest) = rest.split_once('\'')?;
    let is_argument = argument.starts_with("x-");
    let current = rest.rsplit_once(" but current is ").filter(|_| is_argument);
    Some(ArgumentDifference {
        argument,
        current: current.and_then(|(_, current)| parse_current(current)),
    })
}

fn parse_current(text: &str) -> Option<CurrentValue> {
    if text.trim_end() == "none" {
        return Some(CurrentValue::Missing);
    }
    let Some(rest) = text.strip_prefix("the value '") else {
        // RabbitMQ writes the value of `x-queue-type` without the type of the value.
        let value = text.strip_prefix('\'')?.trim_end().strip_suffix('\'')?;
        return Some(CurrentValue::Value(long_string(value)));
    };
    let (value, kind) = rest.rsplit_once("' of type '")?;
    let value = match kind.trim_end().strip_suffix('\'')? {
        "longstr" => long_string(value),
        "bool" => AMQPValue::Boolean(value.parse().ok()?),
        "byte" | "short" | "signedint" | "long" | "unsignedbyte" | "unsignedshort"
        | "unsignedint" => AMQPValue::LongLongInt(value.parse().ok()?),
        _ => return None,
    };
    Some(CurrentValue::Value(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(text: &str) -> Option<(&str, Option<CurrentValue>)> {
        parse_difference(text).map(|difference| (difference.argument, difference.current))
    }

    /// The broker does not name all arguments of a queue with a long name. The form may then contain expected arguments
    /// that the queue does not have.
    #[test]
    fn queue_of_incomplete_form_is_a_stream_only_with_stream_arguments() {
        for (argument, is_stream) in [
            ("x-max-age", true),
            ("x-stream-max-segment-size-bytes", true),
            ("x-queue-type", false),
            ("x-max-length", false),
        ] {
            let arguments = [(QUEUE_TYPE_ARGUMENT.to_owned(), "stream".to_owned())];
            let difference =
                FormDifference { argument: argument.to_owned(), reason: String::new() };
            let form = QueueForm {
                arguments: arguments.into(),
                differences: vec![difference],
                is_complete: false,
            };
            assert_eq!(form.is_stream(), is_stream, "{argument}");
        }
    }

    /// The texts come from RabbitMQ 3.10.8.
    #[test]
    fn refusals_name_the_value_of_the_queue() {
        let start = "PRECONDITION_FAILED - inequivalent arg";
        let value = |value| Some(CurrentValue::Value(value));
        for (text, argument, current) in [
            (
                "'x-message-ttl' for queue 'q' in vhost '/': received none but current is the value '60000' of type \
                 'signedint'",
                "x-message-ttl",
                value(AMQPValue::LongLongInt(60_000)),
            ),
            (
                "'x-dead-letter-exchange' for queue 'q' in vhost '/': received none but current is the value 'it's' of \
                 type 'longstr'",
                "x-dead-letter-exchange",
                value(long_string("it's")),
            ),
            (
                "'x-single-active-consumer' for queue 'q' in vhost '/': received none but current is the value 'true' \
                 of type 'bool'",
                "x-single-active-consumer",
                value(AMQPValue::Boolean(true)),
            ),
            (
                "'x-queue-type' for queue 'q' in vhost '/': received 'quorum' but current is 'stream'",
                "x-queue-type",
                value(long_string("stream")),
            ),
            (
                "'x-queue-type' for queue 'q' in vhost '/': received the value 'stream' of type 'longstr' but current \
                 is none",
                "x-queue-type",
                Some(CurrentValue::Missing),
            ),
            (
                "'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'",
                "durable",
                None,
            ),
            (
                "'x-max-length' for queue 'q' in vhost '/': received none but current is the val",
                "x-max-length",
                None,
            ),
        ] {
            let whole = format!("{start} {text}");
            assert_eq!(difference(&whole), Some((argument, current)), "{text}");
        }
        assert_eq!(difference("PRECONDITION_FAILED - invalid arg 'x-max-age' for queue 'q'"), None);
    }
}
