//! Reads the broker's management API: AMQP has no requests for policies, bindings and consumers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::https;
use ordain_amqp::{Binding, BindingKind, BindingList, BrokerEndpoint};
use ordain_config::{LoadedConfig, ManagementUrl};
use ordain_util::log_throttle::LogThrottle;
use ordain_util::wait::shortened;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const WARN_INTERVAL: Duration = Duration::from_hours(1);
/// Maximum size of an answer about all queues or bindings of a virtual host, in bytes: enough for about 50,000 queues.
const ANSWER_BYTES: u64 = 16 << 20;
/// The end of the path of a request for bindings. This part names the fields of [`BindingAnswer`], so that the answer
/// has no other fields.
const BINDING_COLUMNS: &str =
    "?columns=source,destination,destination_type,routing_key,properties_key";

#[derive(Debug)]
pub(super) struct ManagementApi {
    agent: ureq::Agent,
    url: ManagementUrl,
    broker: Arc<BrokerEndpoint>,
    bindings_throttle: Mutex<LogThrottle>,
}

/// An element of the answer to `GET /api/bindings/{vhost}` (RabbitMQ, HTTP API reference).
#[derive(Debug, Clone, Deserialize)]
pub(super) struct BindingAnswer {
    pub(super) source: String,
    pub(super) destination: String,
    /// `queue` or `exchange`.
    pub(super) destination_type: String,
    #[serde(default)]
    routing_key: String,
    #[serde(default)]
    properties_key: String,
}

/// The answer to `GET /api/queues/{vhost}/{name}`.
#[derive(Deserialize)]
struct ConsumersAnswer {
    /// The consumers, as they were a few seconds ago. `None` if the broker collects no statistics.
    consumer_details: Option<Vec<ConsumerAnswer>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ConsumerAnswer {
    #[serde(default)]
    pub(super) consumer_tag: String,
    /// `single_active` or `waiting` if the queue allows only one active consumer.
    pub(super) activity_status: Option<String>,
    /// The connection of the consumer. An empty array if the broker does not know the connection.
    #[serde(default)]
    pub(super) channel_details: Value,
}

impl BindingAnswer {
    /// Returns whether the binding has neither a routing key nor arguments, like the binding of a queue that Ordain
    /// declares.
    pub(super) fn is_plain(&self) -> bool {
        self.properties_key == "~"
    }

    /// Returns whether the binding leads to an exchange, and not to a queue.
    pub(super) fn leads_to_exchange(&self) -> bool {
        self.destination_type == "exchange"
    }
}

impl From<BindingAnswer> for Binding {
    fn from(answer: BindingAnswer) -> Self {
        let kind =
            if answer.leads_to_exchange() { BindingKind::Exchange } else { BindingKind::Queue };
        Self { kind, from: answer.source, to: answer.destination, routing_key: answer.routing_key }
    }
}

impl ManagementApi {
    /// Returns the management API of the configuration; `None` if `broker.management` is missing.
    pub(super) fn of(loaded: &LoadedConfig, broker: &Arc<BrokerEndpoint>) -> Option<Arc<Self>> {
        let url = loaded.config.broker.as_ref()?.management.clone()?;
        let agent = https::agent(&url.0).timeout_global(Some(REQUEST_TIMEOUT)).build().into();
        let broker = Arc::clone(broker);
        let bindings_throttle = Mutex::new(LogThrottle::new(shortened(WARN_INTERVAL)));
        Some(Arc::new(Self { agent, url, broker, bindings_throttle }))
    }

    pub(super) fn all_bindings(&self) -> Result<Vec<BindingAnswer>, String> {
        self.read("/api/bindings/", BINDING_COLUMNS)
    }

    /// Reads an answer about the virtual host. `before` and `after` are the parts of the path around the name of the
    /// virtual host. An error names only the origin of the URL, because the path may be confidential.
    pub(super) fn read<T: DeserializeOwned>(&self, before: &str, after: &str) -> Result<T, String> {
        self.read_existing(before, after)?.ok_or_else(|| {
            format!(
                "{} answers with status 404. The URL must be the management API of this broker, without `/api`, for \
                 example \"https://rabbit-1:15671\"",
                self.url.origin()
            )
        })
    }

    /// Returns `None` for an answer with status 404, for example because a queue in the path does not exist.
    fn read_existing<T: DeserializeOwned>(
        &self,
        before: &str,
        after: &str,
    ) -> Result<Option<T>, String> {
        let origin = self.url.origin();
        let login = self.broker.login();
        let virtual_host = encoded(&login.virtual_host);
        let credentials = BASE64.encode(format!("{}:{}", login.user, login.password));
        let failed = |error: ureq::Error| format!("{origin}: {error}");
        let request = self
            .agent
            .get(format!("{}{before}{virtual_host}{after}", self.url.0))
            .header("authorization", format!("Basic {credentials}"));
        let mut response = request.call().map_err(failed)?;
        match response.status().as_u16() {
            200 => {}
            401 | 403 => {
                return Err(format!(
                    "{origin} refuses the user {:?}: check the password in `broker.url`, and give the user the tag \
                     `management` (rabbitmqctl set_user_tags)",
                    login.user
                ));
            }
            404 => return Ok(None),
            status => return Err(format!("{origin} answers with status {status}")),
        }
        let body = response.body_mut().with_config().limit(ANSWER_BYTES).read_to_vec();
        serde_json::from_slice(&body.map_err(failed)?).map(Some).map_err(|error| {
            format!(
                "the answer of {origin} describes no queues, exchanges or bindings ({error}): is this the management \
                 API?"
            )
        })
    }

    /// Reads the consumers of a queue; `None` if the queue does not exist. This answer contains the consumers of all
    /// users. If the user has only the tag `management`, the list of all consumers would lack the consumers of other
    /// users.
    pub(super) fn consumers(&self, queue: &str) -> Result<Option<Vec<ConsumerAnswer>>, String> {
        let after = format!("/{}?columns=name,consumer_details", encoded(queue));
        let answer: Option<ConsumersAnswer> = self.read_existing("/api/queues/", &after)?;
        let Some(ConsumersAnswer { consumer_details }) = answer else { return Ok(None) };
        let unknown = || {
            format!(
                "{} does not describe the consumers of queues, because the broker collects no statistics \
                 (management_agent.disable_metrics_collector)",
                self.url.origin()
            )
        };
        consumer_details.ok_or_else(unknown).map(Some)
    }

    pub(super) fn warn_unread_bindings(&self, error: &str) {
        if self.bindings_throttle.lock().unwrap_or_else(PoisonError::into_inner).allow() {
            tracing::warn!("bindings not checked: {error}; Ordain repeats the check");
        }
    }

    /// Returns the command that removes a binding. The command contains only the origin of the URL.
    pub(super) fn unbind_command(&self, binding: &BindingAnswer) -> String {
        unbind_command(&self.url.origin(), &self.broker.login().virtual_host, binding)
    }
}

impl BindingList for ManagementApi {
    fn bindings(&self, exchange: &str, kind: BindingKind) -> Option<BTreeSet<Binding>> {
        let end = match kind {
            BindingKind::Queue => "source",
            BindingKind::Exchange => "destination",
        };
        let after = format!("/{}/bindings/{end}{BINDING_COLUMNS}", encoded(exchange));
        match self.read::<Vec<BindingAnswer>>("/api/exchanges/", &after) {
            Ok(answers) => {
                let bindings = answers.into_iter().map(Binding::from);
                Some(bindings.filter(|binding| binding.kind == kind).collect())
            }
            Err(error) => {
                self.warn_unread_bindings(&error);
                None
            }
        }
    }
}

/// Returns a command of `curl`, because RabbitMQ's own commands differ from version to version, and `rabbitmqctl`
/// cannot remove a binding.
fn unbind_command(origin: &str, virtual_host: &str, binding: &BindingAnswer) -> String {
    let kind = if binding.leads_to_exchange() { "e" } else { "q" };
    format!(
        "curl -u USER -X DELETE '{origin}/api/bindings/{}/e/{}/{kind}/{}/{}'",
        encoded(virtual_host),
        encoded(&binding.source),
        encoded(&binding.destination),
        encoded(&binding.properties_key)
    )
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The management API has already encoded the field `properties_key` once.
    #[test]
    fn command_encodes_all_names() {
        let answer = json!({
            "source": "it's", "destination": "a/b", "destination_type": "queue", "routing_key": "x y",
            "properties_key": "x+y",
        });
        let answer: BindingAnswer = serde_json::from_value(answer).expect("a binding");
        assert_eq!(
            unbind_command("https://rabbit-1:15671", "/", &answer),
            "curl -u USER -X DELETE 'https://rabbit-1:15671/api/bindings/%2F/e/it%27s/q/a%2Fb/x%2By'"
        );
        let binding = Binding::from(answer);
        assert_eq!((binding.kind, &*binding.routing_key), (BindingKind::Queue, "x y"));
    }
}
