//! Checks the queues that streams consume. The checks find policies and arguments with which RabbitMQ loses or repeats
//! events. The checks also find missing bindings that another program must declare, and consumers, queues and exchanges
//! that take events from a stream. A client cannot read these facts over AMQP, so this module reads them from the
//! broker's management API.

mod dividing_exchange;
mod foreign_consumer;
mod routes;
mod topology_finding;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;

use super::management::{ConsumerAnswer, ManagementApi, WARN_INTERVAL};
use super::{RunStatus, SERVER_CHECK_INTERVAL};
use dividing_exchange::{PartitionedExchange, divides_messages, unneeded_bindings};
use foreign_consumer::{OwnConsumers, foreign_consumer};
use ordain_amqp::BrokerEndpoint;
use ordain_config::{LoadedConfig, SourceConfig, partition_queue};
use ordain_store::Partition;
use ordain_util::finding::Finding;
use ordain_util::log_throttle::LogThrottle;
use ordain_util::source_health::RoutingFault;
use ordain_util::text::{escape_invisible, truncated};
use ordain_util::wait::shortened;
use routes::{ExchangeAnswer, RouteCheck, Routes};
use topology_finding::{RoutingFaults, TopologyFinding, partition_of};

/// Interval between two checks while a stream receives no events because of a finding, and between the first incomplete
/// checks (see [`QueueFindings::is_incomplete`]).
const FAULT_CHECK_INTERVAL: Duration = Duration::from_mins(1);
/// After this number of incomplete checks in a row, the interval is as long as usual. RabbitMQ shows a new queue and
/// its policies within seconds, so the state then probably lasts, for example because the collection of metrics is
/// disabled.
const INCOMPLETE_CHECKS_LIMIT: u32 = 5;
/// Time after which a queue whose policies are unknown is reported: longer than RabbitMQ needs to show the policies of
/// a new queue.
const UNREAD_POLICIES_LIMIT: Duration = Duration::from_secs(30);
const TEXT_BYTES: usize = 100;
/// A check stops reading consumers at this number of errors. If the API does not answer, each request takes seconds.
const CONSUMER_ERRORS_LIMIT: usize = 3;
/// The path of the request for all queues of a virtual host, before and after the name of the virtual host. The request
/// names the fields of [`QueueAnswer`], so that the answer has no statistics.
const QUEUES_PATH: [&str; 2] =
    ["/api/queues/", "?columns=name,arguments,effective_policy_definition,policy,operator_policy"];

/// The settings with which RabbitMQ loses events. Each entry contains the name of the setting in a policy, and the
/// effect of the setting. The queue argument for the same setting has this name with the prefix `x-`.
const LOSSY_SETTINGS: [(&str, &str); 5] = [
    ("message-ttl", "RabbitMQ drops each event that has waited for this time (in ms)"),
    (
        "expires",
        "if no process consumes the queue for this time (in ms), RabbitMQ deletes it with its events",
    ),
    (
        "max-length",
        "when the queue has this number of events, RabbitMQ drops the oldest events or refuses new events",
    ),
    (
        "max-length-bytes",
        "when the events in the queue have this number of bytes, RabbitMQ drops the oldest events or refuses new \
         events",
    ),
    (
        "delivery-limit",
        "RabbitMQ drops an event after this number of deliveries, for example after several crashes",
    ),
];
/// Limits the time for which a consumer may keep a delivery without an acknowledgement.
const CONSUMER_TIMEOUT: &str = "consumer-timeout";

/// A reason for a loss or repetition of events, such as a setting of a queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct QueueWarning {
    effect: SettingEffect,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SettingEffect {
    Loss,
    Repetition,
    Reordering,
}

impl QueueWarning {
    /// Logs the warning. `stream` is the stream that the warning concerns; `None` if the text names a queue of the
    /// stream.
    fn log(&self, stream: Option<&str>) {
        let effect = match self.effect {
            SettingEffect::Loss => "lose",
            SettingEffect::Repetition => "repeat",
            SettingEffect::Reordering => "reorder",
        };
        tracing::warn!(stream, "broker may {effect} events: {}", self.text);
    }
}

#[derive(Debug, Default)]
struct QueueFindings {
    /// One for each setting with which RabbitMQ loses or repeats events.
    warnings: Vec<QueueWarning>,
    /// The first existing queue whose policies the management API does not show. RabbitMQ shows the policies of a queue
    /// about ten seconds after the declaration of the queue. It shows no policies if the collection of metrics is
    /// disabled.
    unread_policies: Option<String>,
    has_missing_queue: bool,
    /// The missing bindings, and the consumers, queues and exchanges that take events from a stream.
    topology: Vec<TopologyFinding>,
    /// The reason why the bindings are unknown; `None` if they were checked, or need no check.
    bindings_error: Option<String>,
    /// For each partition whose queue has unknown consumers: the error because of which the consumers are unknown.
    consumers_errors: BTreeMap<Partition, String>,
}

/// The queues, and the management API that describes their settings.
pub(super) struct QueuePolicies {
    api: Arc<ManagementApi>,
    queues: Vec<ConsumedQueue>,
    exchanges: Vec<PartitionedExchange>,
    own_consumers: OwnConsumers,
}

struct ConsumedQueue {
    partition: Partition,
    name: String,
    /// The longest time for which a delivery of this queue can stay unacknowledged while the store answers.
    longest_unacknowledged: Duration,
    /// The stream's exchange, if a program other than Ordain declares the bindings from the exchange to the queue.
    /// `None` if Ordain declares these bindings, or if the configuration names no exchange.
    foreign_exchange: Option<String>,
}

/// An element of the answer to `GET /api/queues/{vhost}` (RabbitMQ, HTTP API reference). For a map of settings without
/// entries, the API may return an empty array.
#[derive(Deserialize)]
struct QueueAnswer {
    name: String,
    #[serde(default)]
    arguments: Value,
    #[serde(default)]
    effective_policy_definition: Value,
    policy: Option<String>,
    operator_policy: Option<String>,
}

impl QueueAnswer {
    /// Returns the value of a setting. `name` is the name of the setting in a policy. An argument of the queue takes
    /// precedence over a policy.
    fn setting(&self, name: &str) -> Option<&str> {
        let argument = self.arguments.get(format!("x-{name}"));
        argument.or_else(|| self.effective_policy_definition.get(name))?.as_str()
    }
}

impl QueuePolicies {
    /// Returns `None` without `api`, or if no stream reads a queue of the broker. `consumer_tag` is the tag of the
    /// consumers of all processes with the same store, if it is known.
    pub(super) fn of(
        loaded: &LoadedConfig,
        api: Option<&Arc<ManagementApi>>,
        consumer_tag: Option<&Arc<str>>,
    ) -> Option<Self> {
        let api = Arc::clone(api?);
        let mut queues = Vec::new();
        for (name, stream) in &loaded.config.streams {
            let SourceConfig::Amqp(source) = &stream.source else { continue };
            let longest_unacknowledged = loaded.config.longest_unacknowledged(stream).duration();
            let foreign_exchange = source.exchange.as_ref().filter(|_| !source.declare);
            queues.extend((0..source.partitions).map(|partition| ConsumedQueue {
                partition: partition_of(&name.shared(), partition),
                name: partition_queue(&source.queue.0, source.partitions, partition),
                longest_unacknowledged,
                foreign_exchange: foreign_exchange.map(|exchange| exchange.0.clone()),
            }));
        }
        let exchanges = PartitionedExchange::all(loaded);
        let own_consumers = consumer_tag
            .map_or(OwnConsumers::OfOrdain, |tag| OwnConsumers::WithTag(Arc::clone(tag)));
        (!queues.is_empty()).then_some(Self { api, queues, exchanges, own_consumers })
    }

    /// Reads the bindings only if another program declares bindings of a stream, or if a stream has several partitions.
    /// Ignores queues that do not exist. Returns an error if the management API does not answer, or refuses the request
    /// for the queues.
    async fn check(self: &Arc<Self>) -> Result<QueueFindings, String> {
        let this = Arc::clone(self);
        let reading = tokio::task::spawn_blocking(move || this.read_findings());
        reading.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    fn read_findings(&self) -> Result<QueueFindings, String> {
        let [before, after] = QUEUES_PATH;
        let answers: Vec<QueueAnswer> = self.api.read(before, after)?;
        let has_foreign = self.queues.iter().any(|queue| queue.foreign_exchange.is_some());
        let needs_routes = has_foreign || !self.exchanges.is_empty();
        let routes = needs_routes.then(|| Routes::read(&self.api)).transpose();
        let mut findings =
            QueueFindings::of(&self.queues, &answers, routes.as_ref().map(Option::as_ref));
        if let Ok(Some(routes)) = &routes {
            findings.topology.extend(unneeded_bindings(&self.api, &self.exchanges, routes));
        }
        findings
            .add_consumers(&self.queues, &self.own_consumers, |queue| self.api.consumers(queue));
        Ok(findings)
    }
}

impl QueueFindings {
    /// Checks the bindings only if `routes` has them. If `routes` is an error, this error is the reason why the
    /// bindings are unknown.
    fn of(
        queues: &[ConsumedQueue],
        answers: &[QueueAnswer],
        routes: Result<Option<&Routes>, &String>,
    ) -> Self {
        let mut findings = Self::default();
        for queue in queues {
            let Some(answer) = answers.iter().find(|answer| answer.name == queue.name) else {
                findings.has_missing_queue = true;
                continue;
            };
            if answer.effective_policy_definition.is_null() {
                findings.unread_policies.get_or_insert_with(|| queue.name.clone());
            }
            findings.warnings.extend(queue.warnings(answer));
            if let Ok(Some(routes)) = routes {
                findings.topology.extend(queue.missing_binding(routes, answers));
            }
        }
        Self { bindings_error: routes.err().cloned(), ..findings }
    }

    /// Checks the consumers of each queue, which `read` returns. Ignores queues that do not exist. After
    /// [`CONSUMER_ERRORS_LIMIT`] errors, the consumers of the remaining queues count as unknown.
    fn add_consumers(
        &mut self,
        queues: &[ConsumedQueue],
        own: &OwnConsumers,
        read: impl Fn(&str) -> Result<Option<Vec<ConsumerAnswer>>, String>,
    ) {
        let mut errors = Vec::new();
        for queue in queues {
            let consumers = match errors.last() {
                Some(error) if errors.len() >= CONSUMER_ERRORS_LIMIT => Err(String::clone(error)),
                _ => read(&queue.name),
            };
            match consumers {
                Ok(consumers) => {
                    let consumers = consumers.unwrap_or_default();
                    self.topology.extend(foreign_consumer(queue, &consumers, own));
                }
                Err(error) => {
                    self.consumers_errors.insert(queue.partition.clone(), error.clone());
                    errors.push(error);
                }
            }
        }
    }

    /// Returns whether a queue does not exist, or has unknown policies.
    fn is_incomplete(&self) -> bool {
        self.has_missing_queue || self.unread_policies.is_some()
    }

    /// Returns the time until the next check. `incomplete_checks` is the number of incomplete checks in a row,
    /// including this check.
    fn next_check(&self, incomplete_checks: u32) -> Duration {
        let has_fault = self.topology.iter().any(|finding| finding.fault.is_some());
        if has_fault || (1..=INCOMPLETE_CHECKS_LIMIT).contains(&incomplete_checks) {
            FAULT_CHECK_INTERVAL
        } else {
            SERVER_CHECK_INTERVAL
        }
    }

    /// Returns whether this check could not determine if the partition has the fault.
    fn is_unchecked(&self, fault: RoutingFault, partition: &Partition) -> bool {
        match fault {
            RoutingFault::MissingBinding => self.bindings_error.is_some(),
            RoutingFault::ForeignConsumer => self.consumers_errors.contains_key(partition),
            RoutingFault::OtherExchangeType => false,
        }
    }
}

impl ConsumedQueue {
    /// Warns of each setting with which RabbitMQ loses or repeats events.
    fn warnings(&self, answer: &QueueAnswer) -> Vec<QueueWarning> {
        let policies: Vec<String> =
            [("policy", &answer.policy), ("operator policy", &answer.operator_policy)]
                .into_iter()
                .filter_map(|(kind, name)| Some(format!("{kind} {:?}", cut(name.as_ref()?))))
                .collect();
        let sources = [
            ("", &answer.effective_policy_definition, policies.join(" or ")),
            ("x-", &answer.arguments, "arguments of the queue".to_owned()),
        ];
        let mut warnings = Vec::new();
        for (prefix, settings, source) in sources {
            let value = |setting: &str| settings.get(format!("{prefix}{setting}"));
            let mut warn = |effect, setting: &str, value: &Value, words: &str| {
                let shown = cut(&value.to_string());
                let text = format!(
                    "the queue {:?} has {prefix}{setting} = {} ({source}): {words}",
                    self.name,
                    escape_invisible(&shown)
                );
                warnings.push(QueueWarning { effect, text });
            };
            for (setting, words) in LOSSY_SETTINGS {
                // A negative delivery limit is no limit.
                if let Some(value) =
                    value(setting).filter(|value| value.as_i64().is_none_or(|n| n >= 0))
                {
                    warn(SettingEffect::Loss, setting, value, words);
                }
            }
            let needed = 2 * self.longest_unacknowledged;
            if let Some(value) = value(CONSUMER_TIMEOUT)
                && value.as_u64().is_some_and(|ms| Duration::from_millis(ms) < needed)
            {
                let words = format!(
                    "RabbitMQ can end the consumer, and deliver its events again; set at least {} (in ms), which is \
                     twice the sum of spill_after and plugins.timeout",
                    needed.as_millis()
                );
                warn(SettingEffect::Repetition, CONSUMER_TIMEOUT, value, &words);
            }
        }
        warnings
    }

    /// Returns a finding if another program declares the bindings of the queue, and no route leads from the stream's
    /// exchange to the queue. A route can lead through other exchanges and queues. `answers` are the queues of the
    /// virtual host.
    fn missing_binding(&self, routes: &Routes, answers: &[QueueAnswer]) -> Option<TopologyFinding> {
        let exchange = self.foreign_exchange.as_deref()?;
        let (fault, hint) = match routes.check(exchange, &self.name, answers) {
            RouteCheck::Found => return None,
            RouteCheck::Missing => (
                Some(RoutingFault::MissingBinding),
                ". If the events reach the queue in another way, for example through a shovel, remove `exchange` from \
                 the source",
            ),
            RouteCheck::Unknown => (
                None,
                ". Ignore this warning if a policy names an alternate exchange that leads to the queue, or if another \
                 queue moves its expired messages to this queue (dead-lettering)",
            ),
        };
        let text = format!(
            "no binding leads from the exchange {exchange:?} to the queue {:?}: the queue does not receive the events \
             that are published to this exchange. Ordain does not declare the binding, because the source has declare \
             = false: bind the queue to the exchange, and publish the lost events again{hint}",
            self.name
        );
        let warning = QueueWarning { effect: SettingEffect::Loss, text };
        let divides =
            |answer: &ExchangeAnswer| answer.name == *exchange && divides_messages(answer);
        let concerns_stream = routes.exchanges.iter().any(divides);
        let partition = self.partition.clone();
        Some(TopologyFinding { partition, warning, fault, concerns_stream, is_error: false })
    }
}

fn cut(text: &str) -> String {
    truncated(text.to_owned(), TEXT_BYTES)
}

/// Checks the queues, and appends the results to `findings`. Appends nothing if `broker.management` is set, but no
/// stream reads a queue.
pub(super) async fn inspect(
    loaded: &LoadedConfig,
    broker: &Arc<BrokerEndpoint>,
    findings: &mut Vec<Finding>,
) {
    let api = ManagementApi::of(loaded, broker);
    if api.is_none() {
        findings.push(Finding::note(
            "a client cannot read the broker's policies and bindings over AMQP. Set `broker.management`, so that \
             Ordain reads them, or check three things yourself. `rabbitmqctl list_policies`: no policy may set \
             message-ttl, expires, max-length, max-length-bytes or delivery-limit on the queues of streams. \
             `rabbitmqctl list_bindings`: only the queues of a stream with several partitions may be bound to its \
             exchange. `rabbitmqctl list_consumers`: no other program may consume a queue of a stream",
        ));
        return;
    }
    // This command does not open the store, which contains the tag of this deployment's consumers.
    let policies = QueuePolicies::of(loaded, api.as_ref(), None);
    let Some(policies) = policies.map(Arc::new) else { return };
    match policies.check().await {
        Ok(QueueFindings {
            warnings,
            unread_policies,
            topology,
            bindings_error,
            mut consumers_errors,
            ..
        }) => {
            findings.extend(topology.into_iter().map(Finding::from));
            if let Some(queue) = unread_policies {
                findings.push(Finding::warning(format!(
                    "policies not checked: the management API does not show the policies of the queue {queue:?}. If \
                     the queue was declared a few seconds ago, run the command again"
                )));
            } else if warnings.is_empty() {
                findings.push(Finding::note(
                    "no policy or argument of the existing queues of streams loses or repeats events",
                ));
            }
            findings.extend(warnings.into_iter().map(|warning| Finding::warning(warning.text)));
            if let Some(error) = bindings_error {
                findings.push(Finding::warning(format!("bindings not checked: {error}")));
            }
            if let Some((_, error)) = consumers_errors.pop_first() {
                findings.push(Finding::warning(format!("consumers not checked: {error}")));
            }
        }
        Err(error) => {
            findings
                .push(Finding::warning(format!("the policies of the queues are unknown: {error}")));
        }
    }
}

/// Logs that Ordain cannot read the policies and bindings of the broker, because `broker.management` is not set. For
/// streams with `declare = false`, also logs that Ordain cannot detect a replaced exchange or queue.
pub(super) fn report_unread_settings(loaded: &LoadedConfig) {
    let UnreadStreams { all, undeclared } = UnreadStreams::of(loaded);
    if all.is_empty() {
        return;
    }
    let further = if undeclared.is_empty() {
        String::new()
    } else {
        format!(
            "With declare = false ({}), Ordain also cannot detect that another program removes an exchange or a queue \
             and declares it again between two checks. ",
            undeclared.join(", ")
        )
    };
    tracing::info!(
        streams = all.join(", "),
        "policies and bindings not checked, because broker.management is not set. Ordain therefore cannot detect three \
         causes of lost events: a policy or a missing binding with which RabbitMQ loses events, a further queue that \
         takes events from a stream with several partitions, and another program that consumes a queue with a single \
         active consumer. {further}Set broker.management to the URL of the broker's management API. Or check with \
         `rabbitmqctl list_policies`, `rabbitmqctl list_bindings` and `rabbitmqctl list_consumers`"
    );
}

/// The streams whose policies and bindings Ordain cannot read.
#[derive(Debug, Default, PartialEq, Eq)]
struct UnreadStreams<'a> {
    all: Vec<&'a str>,
    undeclared: Vec<&'a str>,
}

impl<'a> UnreadStreams<'a> {
    /// Finds the streams of a configuration. Finds none if `broker.management` is set.
    fn of(loaded: &'a LoadedConfig) -> Self {
        let mut unread = Self::default();
        if loaded.config.broker.as_ref().is_none_or(|broker| broker.management.is_some()) {
            return unread;
        }
        for (name, stream) in &loaded.config.streams {
            let SourceConfig::Amqp(source) = &stream.source else { continue };
            unread.all.push(name);
            if !source.declare && source.exchange.is_some() {
                unread.undeclared.push(name);
            }
        }
        unread
    }
}

/// Adds the warnings of a check to the `known` warnings, and returns the new warnings. If the check knows the policies
/// of all queues, forgets the known warnings that the check did not find.
fn new_warnings(
    known: &mut BTreeSet<QueueWarning>,
    found: Vec<QueueWarning>,
    has_unread_policies: bool,
) -> Vec<QueueWarning> {
    let found: BTreeSet<QueueWarning> = found.into_iter().collect();
    let new = found.difference(known).cloned().collect();
    if !has_unread_policies {
        known.clear();
    }
    known.extend(found);
    new
}

/// Logs the policies and arguments with which RabbitMQ loses or repeats events. The first check logs all these
/// settings, and each later check logs only new settings. Each check also logs and counts the missing bindings, and the
/// consumers, queues and exchanges that take events from a stream. The states of the sources record which partitions
/// receive no events. This function never returns.
pub(super) async fn watch(policies: Option<QueuePolicies>, status: &RunStatus) {
    let Some(policies) = policies.map(Arc::new) else { return std::future::pending().await };
    let mut known = BTreeSet::new();
    let mut throttle = LogThrottle::new(shortened(WARN_INTERVAL));
    let mut consumers_throttle = LogThrottle::new(shortened(WARN_INTERVAL));
    let mut interval = SERVER_CHECK_INTERVAL;
    let mut incomplete_checks = 0_u32;
    let mut faults = RoutingFaults::default();
    // The queue whose policies the last checks could not read, and the time of the first of these checks.
    let mut unread: Option<(String, Instant)> = None;
    loop {
        match policies.check().await {
            Ok(mut findings) => {
                for finding in &findings.topology {
                    finding.report(status);
                }
                faults.update(status, &findings.topology, |fault, partition| {
                    findings.is_unchecked(fault, partition)
                });
                incomplete_checks =
                    if findings.is_incomplete() { incomplete_checks.saturating_add(1) } else { 0 };
                interval = findings.next_check(incomplete_checks);
                let before = unread.take();
                unread = findings.unread_policies.map(|queue| match before {
                    Some((known, since)) if known == queue => (queue, since),
                    _ => (queue, Instant::now()),
                });
                if let Some((queue, since)) = &unread
                    && since.elapsed() >= UNREAD_POLICIES_LIMIT
                    && throttle.allow()
                {
                    tracing::warn!(
                        queue,
                        "policies of the broker's queues not checked: the management API does not show the policies of \
                         the queue. Is the collection of metrics disabled (management_agent.disable_metrics_collector)? \
                         Ordain repeats the check"
                    );
                }
                for warning in new_warnings(&mut known, findings.warnings, unread.is_some()) {
                    warning.log(None);
                }
                if let Some((_, error)) = findings.consumers_errors.pop_first()
                    && consumers_throttle.allow()
                {
                    tracing::warn!(
                        "consumers of the queues not checked: {error}; Ordain repeats the check"
                    );
                }
                if let Some(error) = findings.bindings_error {
                    policies.api.warn_unread_bindings(&error);
                }
            }
            Err(error) => {
                faults.update(status, &[], |_, _| true);
                if throttle.allow() {
                    tracing::warn!(
                        "policies of the broker's queues not checked: {error}; Ordain repeats the check"
                    );
                }
            }
        }
        tokio::time::sleep(shortened(interval)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    /// Another program binds the queue `orders` to the exchange `shop`.
    pub(super) fn foreign_queue() -> ConsumedQueue {
        ConsumedQueue {
            partition: partition_of(&"orders".into(), 0),
            name: "orders".to_owned(),
            longest_unacknowledged: Duration::ZERO,
            foreign_exchange: Some("shop".to_owned()),
        }
    }

    #[test]
    fn settings_are_checked_without_the_list_of_bindings() {
        let answer = json!({ "name": "orders", "arguments": { "x-max-length": 5 } });
        let answers: [QueueAnswer; 1] = [serde_json::from_value(answer).expect("a queue")];
        let error = "too large".to_owned();
        let routes = Routes { exchanges: Vec::new(), bindings: Vec::new() };
        let findings = |routes| QueueFindings::of(&[foreign_queue()], &answers, routes);
        let start = "the queue \"orders\" has x-max-length = 5 ";
        let unread = findings(Err(&error));
        assert_eq!((unread.warnings.len(), unread.topology.len()), (1, 0));
        assert!(unread.warnings[0].text.starts_with(start));
        assert_eq!(unread.bindings_error.as_deref(), Some("too large"));
        let read = findings(Ok(Some(&routes)));
        assert_eq!((read.warnings.len(), read.bindings_error), (1, None));
        let [missing] = &read.topology[..] else { panic!("{:?}", read.topology) };
        let start = "no binding leads from the exchange \"shop\" to the queue \"orders\": ";
        assert!(missing.warning.text.starts_with(start), "{missing:?}");
        assert_eq!(missing.fault, Some(RoutingFault::MissingBinding));
    }

    /// RabbitMQ shows the policies of a new queue only after some seconds. The next check must then follow soon. If the
    /// policies stay unknown, the interval must become as long as usual.
    #[test]
    fn queue_without_known_policies_is_checked_again_soon() {
        let next = |answers: &[Value]| {
            let parse = |answer: &Value| serde_json::from_value(answer.clone()).expect("a queue");
            let answers: Vec<QueueAnswer> = answers.iter().map(parse).collect();
            let findings = QueueFindings::of(&[foreign_queue()], &answers, Ok(None));
            let incomplete_checks = u32::from(findings.is_incomplete());
            let last = incomplete_checks * (INCOMPLETE_CHECKS_LIMIT + 1);
            assert_eq!(findings.next_check(last), SERVER_CHECK_INTERVAL);
            (findings.next_check(incomplete_checks), findings.unread_policies)
        };
        let name = "orders";
        assert_eq!(next(&[]), (FAULT_CHECK_INTERVAL, None));
        let unread = Some(name.to_owned());
        assert_eq!(next(&[json!({ "name": name })]), (FAULT_CHECK_INTERVAL, unread));
        for policies in [json!([]), json!({}), json!({ "max-length": 5 })] {
            let answer = json!({ "name": name, "effective_policy_definition": policies });
            assert_eq!(next(&[answer]), (SERVER_CHECK_INTERVAL, None));
        }
    }

    #[test]
    fn warning_is_new_only_once_while_the_policies_are_unread_for_a_while() {
        let warning = |text: &str| QueueWarning { effect: SettingEffect::Loss, text: text.into() };
        let mut known = BTreeSet::new();
        let mut check = |found: &[&str], has_unread_policies| {
            let found = found.iter().map(|text| warning(text)).collect();
            new_warnings(&mut known, found, has_unread_policies).len()
        };
        assert_eq!(check(&["policy", "argument"], false), 2);
        assert_eq!(check(&["argument"], true), 0);
        assert_eq!(check(&["policy", "argument"], false), 0, "the policies are known again");
        assert_eq!(check(&["argument"], false), 0);
        assert_eq!(check(&["policy", "argument"], false), 1, "removed and set again");
    }

    #[test]
    fn unreadable_consumers_of_a_queue_hide_no_other_consumers() {
        let queue = |number: u32| ConsumedQueue {
            partition: partition_of(&"orders".into(), number),
            name: format!("orders.{number}"),
            ..foreign_queue()
        };
        let queues: Vec<ConsumedQueue> = (0..6).map(queue).collect();
        let consumer = json!({ "consumer_tag": "x", "activity_status": "single_active" });
        let read = |name: &str| match name {
            "orders.1" => {
                let consumer = serde_json::from_value(consumer.clone());
                Ok(Some(vec![consumer.expect("a consumer")]))
            }
            "orders.5" => panic!("a request after the limit of errors"),
            name => Err(name.to_owned()),
        };
        let mut findings = QueueFindings::default();
        findings.add_consumers(&queues, &OwnConsumers::OfOrdain, read);
        let found: Vec<u32> =
            findings.topology.iter().map(|finding| finding.partition.number).collect();
        assert_eq!(found, [1]);
        let is_unchecked = |queue: &&ConsumedQueue| {
            findings.is_unchecked(RoutingFault::ForeignConsumer, &queue.partition)
        };
        let unchecked: Vec<u32> =
            queues.iter().filter(is_unchecked).map(|queue| queue.partition.number).collect();
        assert_eq!(unchecked, [0, 2, 3, 4, 5]);
    }

    #[test]
    fn settings_of_all_queues_are_unread_without_management() {
        let stream = |name: &str, settings: &str| {
            format!(
                "[streams.{name}]\nhandler = \"tally\"\n\
                 source = {{ kind = \"amqp\", queue = \"{name}\", {settings} }}\n"
            )
        };
        let streams = [
            stream("bound", "exchange = \"bound\", declare = false"),
            stream("direct", "declare = false"),
            stream("own", "exchange = \"own\""),
            "[streams.file]\nhandler = \"tally\"\nsource = { kind = \"file\", path = \"in\" }\n"
                .to_owned(),
        ]
        .concat();
        let load = |broker: &str| {
            let text = format!("[broker]\nurl = \"amqp://localhost\"\n{broker}{streams}");
            LoadedConfig::parse(Path::new("ordain.toml"), &text, &|_| None)
                .expect("a configuration")
        };
        let loaded = load("");
        let all = vec!["bound", "direct", "own"];
        assert_eq!(UnreadStreams::of(&loaded), UnreadStreams { all, undeclared: vec!["bound"] });
        let loaded = load("management = \"http://localhost:15672\"\n");
        assert_eq!(UnreadStreams::of(&loaded), UnreadStreams::default());
    }
}
