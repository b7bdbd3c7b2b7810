//! Finds the consumers of other programs at the queues of streams. RabbitMQ delivers each message of a queue to only
//! one consumer. If a queue allows only one active consumer, AMQP does not show the other consumers to a client, and
//! does not show which consumer is active. If a foreign active consumer acknowledges its messages, the queue even stays
//! empty.

use std::sync::Arc;

use super::topology_finding::TopologyFinding;
use super::{ConsumedQueue, QueueWarning, SettingEffect, cut};
use crate::run::management::ConsumerAnswer;
use ordain_amqp::CONSUMER_TAG_PREFIX;
use ordain_util::source_health::RoutingFault;

#[derive(Debug, Clone)]
pub(super) enum OwnConsumers {
    /// The consumers with this tag: the consumers of all processes with the same store.
    WithTag(Arc<str>),
    /// The consumers of all deployments of Ordain, because the tag of this deployment is unknown.
    OfOrdain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Activity {
    /// The queue delivers all its messages to this consumer.
    Single,
    /// The queue delivers each message to one of its consumers.
    Shared,
    /// The queue delivers no message to this consumer while another consumer is active.
    Waiting,
}

impl OwnConsumers {
    fn contains(&self, consumer: &ConsumerAnswer) -> bool {
        match self {
            Self::WithTag(tag) => *consumer.consumer_tag == **tag,
            Self::OfOrdain => consumer.consumer_tag.starts_with(CONSUMER_TAG_PREFIX),
        }
    }
}

impl ConsumerAnswer {
    fn activity(&self) -> Activity {
        match self.activity_status.as_deref() {
            Some("single_active") => Activity::Single,
            Some("waiting") => Activity::Waiting,
            _ => Activity::Shared,
        }
    }

    /// Describes the program that consumes, with the address from which it has connected to the broker.
    fn describe(&self) -> String {
        let detail = |name: &str| self.channel_details.get(name)?.as_str().map(cut);
        let tag = cut(&self.consumer_tag);
        let program = if self.consumer_tag.starts_with(CONSUMER_TAG_PREFIX) {
            "a deployment of Ordain with another store"
        } else {
            "another program"
        };
        match (detail("connection_name"), detail("user")) {
            (Some(connection), Some(user)) => {
                format!(
                    "{program} (connection {connection:?}, user {user:?}, consumer tag {tag:?})"
                )
            }
            _ => format!("{program} (consumer tag {tag:?})"),
        }
    }
}

/// Returns a finding if a queue has consumers of other programs. The finding describes the foreign consumer that takes
/// most events from the stream.
pub(super) fn foreign_consumer(
    queue: &ConsumedQueue,
    consumers: &[ConsumerAnswer],
    own: &OwnConsumers,
) -> Option<TopologyFinding> {
    let foreign = || consumers.iter().filter(|consumer| !own.contains(consumer));
    let worst = foreign().min_by_key(|consumer| consumer.activity())?;
    let activity = worst.activity();
    let effect = match activity {
        Activity::Single => {
            "consumes it: RabbitMQ delivers all events to this program, and none to the stream"
        }
        Activity::Shared => {
            "consumes it too: RabbitMQ delivers each event to only one consumer, so the stream does not receive the \
             events that this program receives"
        }
        Activity::Waiting => {
            "waits to consume it: when Ordain's consumer ends, for example at a restart, RabbitMQ delivers all events \
             to this program, and none to the stream"
        }
    };
    let further = match foreign().count() {
        1 => String::new(),
        count => {
            format!(
                " Number of additional consumers of other programs at this queue: {}.",
                count - 1
            )
        }
    };
    let text = format!(
        "the queue {:?}: {} {effect}. Stop the program, or let it use another queue; then publish the events again \
         that it has received.{further}",
        queue.name,
        worst.describe()
    );
    Some(TopologyFinding {
        partition: queue.partition.clone(),
        warning: QueueWarning { effect: SettingEffect::Loss, text },
        fault: (activity == Activity::Single).then_some(RoutingFault::ForeignConsumer),
        concerns_stream: false,
        is_error: false,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::foreign_queue;
    use super::*;

    fn consumer(tag: &str, status: &str) -> ConsumerAnswer {
        let answer = json!({
            "consumer_tag": tag, "activity_status": status,
            "channel_details": { "connection_name": "10.0.0.7:41 -> 10.0.0.1:5672", "user": "shop" },
        });
        serde_json::from_value(answer).expect("a consumer")
    }

    #[test]
    fn only_consumers_of_the_same_store_are_own() {
        let with_tag = OwnConsumers::WithTag("ordain-1".into());
        let queue = foreign_queue();
        for (own, tags, program) in [
            (&with_tag, &["ordain-1", "ordain-1"][..], None),
            (
                &with_tag,
                &["ordain-1", "ordain-2"],
                Some("a deployment of Ordain with another store"),
            ),
            (&with_tag, &["amq.ctag-x"], Some("another program")),
            (&OwnConsumers::OfOrdain, &["ordain-1", "ordain-2"], None),
            (&OwnConsumers::OfOrdain, &["ordain-1", "worker"], Some("another program")),
        ] {
            let consumers: Vec<_> = tags.iter().map(|tag| consumer(tag, "up")).collect();
            let found = foreign_consumer(&queue, &consumers, own).map(|found| found.warning.text);
            let expected = program.map(|program| {
                format!("the queue \"orders\": {program} (connection \"10.0.0.7:41 -> 10.0.0.1:5672\", user \"shop\"")
            });
            let starts = |(text, start): (&String, &String)| text.starts_with(start);
            let pair = found.as_ref().zip(expected.as_ref());
            assert!(pair.map_or(found == expected, starts), "{tags:?}: {found:?}");
        }
    }

    #[test]
    fn only_an_active_consumer_is_a_fault() {
        let own = OwnConsumers::WithTag("ordain-1".into());
        for (statuses, effect, is_fault) in [
            (&["waiting"][..], "waits to consume it", false),
            (&["up"], "consumes it too", false),
            (&["waiting", "single_active", "waiting"], "and none to the stream", true),
        ] {
            let consumers: Vec<_> = statuses.iter().map(|status| consumer("x", status)).collect();
            let found = foreign_consumer(&foreign_queue(), &consumers, &own).expect("a finding");
            assert!(found.warning.text.contains(effect), "{found:?}");
            assert_eq!(found.fault.is_some(), is_fault, "{found:?}");
            assert_eq!(found.warning.text.contains("at this queue: 2."), is_fault, "{found:?}");
        }
    }

    #[test]
    fn consumer_without_a_known_connection_is_described() {
        let answer = json!({ "consumer_tag": "x", "activity_status": "single_active", "channel_details": [] });
        let consumer: ConsumerAnswer = serde_json::from_value(answer).expect("a consumer");
        let own = OwnConsumers::OfOrdain;
        let found = foreign_consumer(&foreign_queue(), &[consumer], &own).expect("a finding");
        assert!(found.warning.text.contains("another program (consumer tag \"x\") consumes it"));
    }
}
