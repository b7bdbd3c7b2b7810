//! The exchanges of a virtual host, and the bindings and dead-letter exchanges over which messages reach queues.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use super::QueueAnswer;
use crate::run::management::{BindingAnswer, ManagementApi};

/// The path of the request for all exchanges of a virtual host, before and after the name of the virtual host. The
/// request names the fields of [`ExchangeAnswer`].
const EXCHANGES_PATH: [&str; 2] = ["/api/exchanges/", "?columns=name,type,arguments,policy"];
/// The alternate exchange of an exchange receives the messages that match no binding.
const ALTERNATE_EXCHANGE_ARGUMENT: &str = "alternate-exchange";

/// An element of the answer to `GET /api/exchanges/{vhost}` (RabbitMQ, HTTP API reference).
#[derive(Debug, Deserialize)]
pub(super) struct ExchangeAnswer {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    arguments: Value,
    policy: Option<String>,
}

#[derive(Debug)]
pub(super) struct Routes {
    pub(super) exchanges: Vec<ExchangeAnswer>,
    pub(super) bindings: Vec<BindingAnswer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteCheck {
    /// A binding leads to the queue, directly, through other exchanges, through alternate exchanges, or through the
    /// dead-letter exchanges of other queues.
    Found,
    /// No binding leads to the queue, but another route may exist. The policy of an exchange may name an alternate
    /// exchange, which the list of exchanges does not show. Or the routing key of a dead-lettered message may name the
    /// queue.
    Unknown,
    Missing,
}

impl Routes {
    /// Returns an error if the management API does not answer, or refuses a request.
    pub(super) fn read(api: &ManagementApi) -> Result<Self, String> {
        let [before, after] = EXCHANGES_PATH;
        let bindings = api.all_bindings()?;
        Ok(Self { exchanges: api.read(before, after)?, bindings })
    }

    /// Checks whether messages of `exchange` reach `queue`. `queues` are the queues of the virtual host.
    pub(super) fn check(&self, exchange: &str, queue: &str, queues: &[QueueAnswer]) -> RouteCheck {
        let mut known = BTreeSet::from([RouteNode::Exchange(exchange)]);
        let mut unchecked = vec![RouteNode::Exchange(exchange)];
        let mut check = RouteCheck::Missing;
        while let Some(node) = unchecked.pop() {
            let next = match node {
                RouteNode::Queue(name) if name == queue => return RouteCheck::Found,
                RouteNode::Queue(name) => after_queue(name, queues).into_iter().collect(),
                RouteNode::Exchange(name) => {
                    if self.has_policy(name) {
                        check = RouteCheck::Unknown;
                    }
                    self.after_exchange(name)
                }
                RouteNode::AnyQueue => {
                    check = RouteCheck::Unknown;
                    Vec::new()
                }
            };
            unchecked.extend(next.into_iter().filter(|node| known.insert(*node)));
        }
        check
    }

    fn after_exchange(&self, exchange: &str) -> Vec<RouteNode<'_>> {
        let bindings = self.bindings.iter().filter(|binding| binding.source == exchange);
        let bound = bindings.map(|binding| {
            if binding.leads_to_exchange() {
                RouteNode::Exchange(&binding.destination)
            } else {
                RouteNode::Queue(&binding.destination)
            }
        });
        let answers = self.exchanges.iter().filter(|answer| answer.name == exchange);
        let alternates = answers
            .filter_map(|answer| answer.arguments.get(ALTERNATE_EXCHANGE_ARGUMENT)?.as_str());
        bound.chain(alternates.map(RouteNode::Exchange)).collect()
    }

    fn has_policy(&self, exchange: &str) -> bool {
        self.exchanges.iter().any(|answer| answer.name == exchange && answer.policy.is_some())
    }
}

/// A queue or exchange that messages can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RouteNode<'a> {
    Exchange(&'a str),
    Queue(&'a str),
    /// The queue whose name is the routing key of the message.
    AnyQueue,
}

/// Returns the exchange or queue to which a queue moves expired and rejected messages; `None` if the queue drops them.
fn after_queue<'a>(name: &str, queues: &'a [QueueAnswer]) -> Option<RouteNode<'a>> {
    let queue = queues.iter().find(|answer| answer.name == name)?;
    match queue.setting("dead-letter-exchange")? {
        // The default exchange routes a message to the queue that the routing key names.
        "" => Some(
            queue.setting("dead-letter-routing-key").map_or(RouteNode::AnyQueue, RouteNode::Queue),
        ),
        exchange => Some(RouteNode::Exchange(exchange)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn exchange(name: &str, further: &Value) -> ExchangeAnswer {
        let mut answer = json!({ "name": name, "type": "topic" });
        let fields = answer.as_object_mut().expect("an object");
        fields.extend(further.as_object().expect("an object").clone());
        serde_json::from_value(answer).expect("an exchange")
    }

    fn binding(source: &str, destination: &str, kind: &str) -> BindingAnswer {
        let answer =
            json!({ "source": source, "destination": destination, "destination_type": kind });
        serde_json::from_value(answer).expect("a binding")
    }

    #[test]
    fn binding_through_another_exchange_is_found() {
        // The exchange `orders` has the name of the queue, and the exchanges feed each other.
        let bindings = vec![
            binding("", "orders", "queue"),
            binding("shop", "orders", "exchange"),
            binding("orders", "shop", "exchange"),
            binding("shop", "other", "queue"),
        ];
        let exchanges = vec![exchange("shop", &json!({})), exchange("orders", &json!({}))];
        let mut routes = Routes { exchanges, bindings };
        assert_eq!(routes.check("shop", "orders", &[]), RouteCheck::Missing);
        routes.bindings.push(binding("orders", "orders", "queue"));
        assert_eq!(routes.check("shop", "orders", &[]), RouteCheck::Found);
    }

    #[test]
    fn alternate_exchange_leads_to_a_queue() {
        let bindings = vec![binding("rest", "orders", "queue")];
        for (further, check) in [
            (json!({}), RouteCheck::Missing),
            (json!({ "arguments": { "alternate-exchange": "rest" } }), RouteCheck::Found),
            (json!({ "arguments": { "alternate-exchange": "other" } }), RouteCheck::Missing),
            // Without entries, the map of the arguments may be an empty array.
            (json!({ "arguments": [], "policy": "rest" }), RouteCheck::Unknown),
        ] {
            let exchanges = vec![exchange("shop", &further), exchange("rest", &json!({}))];
            let routes = Routes { exchanges, bindings: bindings.clone() };
            assert_eq!(routes.check("shop", "orders", &[]), check, "{further}");
        }
    }

    #[test]
    fn dead_letter_exchange_of_a_queue_leads_to_a_queue() {
        let bindings = vec![binding("shop", "delay", "queue"), binding("late", "orders", "queue")];
        let exchanges = vec![exchange("shop", &json!({})), exchange("late", &json!({}))];
        let routes = Routes { exchanges, bindings };
        for (settings, check) in [
            (json!({}), RouteCheck::Missing),
            (json!({ "arguments": { "x-dead-letter-exchange": "late" } }), RouteCheck::Found),
            (
                json!({ "effective_policy_definition": { "dead-letter-exchange": "late" } }),
                RouteCheck::Found,
            ),
            // The arguments of a queue take precedence over its policy.
            (
                json!({
                    "arguments": { "x-dead-letter-exchange": "other" },
                    "effective_policy_definition": { "dead-letter-exchange": "late" },
                }),
                RouteCheck::Missing,
            ),
            (
                json!({ "arguments": {
                    "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders",
                } }),
                RouteCheck::Found,
            ),
            (json!({ "arguments": { "x-dead-letter-exchange": "" } }), RouteCheck::Unknown),
        ] {
            let mut answer = json!({ "name": "delay" });
            let fields = answer.as_object_mut().expect("an object");
            fields.extend(settings.as_object().expect("an object").clone());
            let queues: [QueueAnswer; 1] = [serde_json::from_value(answer).expect("a queue")];
            assert_eq!(routes.check("shop", "orders", &queues), check, "{settings}");
        }
    }
}
