//! The exchanges of a virtual host, and the bindings over which they route messages to queues.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use crate::run::management::{BindingAnswer, ManagementApi};

/// The path of the request for all exchanges of a virtual host, before and after the name of the virtual host. The
/// request names the fields of [`ExchangeAnswer`].
const EXCHANGES_PATH: [&str; 2] = ["/api/exchanges/", "?columns=name,type,arguments,policy"];
/// The argument with the name of the exchange to which an exchange routes the messages that match no binding.
const ALTERNATE_EXCHANGE_ARGUMENT: &str = "alternate-exchange";

/// An element of the answer to `GET /api/exchanges/{vhost}` (RabbitMQ, HTTP API reference).
#[derive(Debug, Deserialize)]
pub(super) struct ExchangeAnswer {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    arguments: Value,
    /// The name of the policy that applies to the exchange.
    policy: Option<String>,
}

/// The exchanges and bindings of a virtual host.
#[derive(Debug)]
pub(super) struct Routes {
    pub(super) exchanges: Vec<ExchangeAnswer>,
    pub(super) bindings: Vec<BindingAnswer>,
}

/// The result of a search for a route from an exchange to a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteCheck {
    /// A binding leads to the queue, directly, through other exchanges or through alternate exchanges.
    Found,
    /// No binding leads to the queue. But the policy of an exchange may name an alternate exchange, which the list of
    /// exchanges does not contain.
    Unknown,
    /// No message of the exchange reaches the queue.
    Missing,
}

impl Routes {
    /// Reads the exchanges and bindings. Returns an error if the management API does not answer, or refuses a request.
    pub(super) fn read(api: &ManagementApi) -> Result<Self, String> {
        let [before, after] = EXCHANGES_PATH;
        let bindings = api.all_bindings()?;
        Ok(Self { exchanges: api.read(before, after)?, bindings })
    }

    /// Checks whether messages of `exchange` reach `queue`.
    pub(super) fn check(&self, exchange: &str, queue: &str) -> RouteCheck {
        let mut known = BTreeSet::from([exchange]);
        let mut unchecked = vec![exchange];
        let mut has_policy = false;
        while let Some(from) = unchecked.pop() {
            for binding in self.bindings.iter().filter(|binding| binding.source == from) {
                if binding.leads_to_exchange() {
                    if known.insert(&binding.destination) {
                        unchecked.push(&binding.destination);
                    }
                } else if binding.destination == queue {
                    return RouteCheck::Found;
                }
            }
            for answer in self.exchanges.iter().filter(|answer| answer.name == from) {
                has_policy |= answer.policy.is_some();
                let alternate = answer.arguments.get(ALTERNATE_EXCHANGE_ARGUMENT);
                if let Some(alternate) = alternate.and_then(Value::as_str)
                    && known.insert(alternate)
                {
                    unchecked.push(alternate);
                }
            }
        }
        if has_policy { RouteCheck::Unknown } else { RouteCheck::Missing }
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
        assert_eq!(routes.check("shop", "orders"), RouteCheck::Missing);
        routes.bindings.push(binding("orders", "orders", "queue"));
        assert_eq!(routes.check("shop", "orders"), RouteCheck::Found);
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
            assert_eq!(routes.check("shop", "orders"), check, "{further}");
        }
    }
}
