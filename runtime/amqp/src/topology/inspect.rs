//! Inspects the queues and exchanges of a stream for `ordain check --connect`. This module must not create or bind
//! anything. The module sends a declaration only for a queue or exchange that exists: the broker then only compares the
//! arguments.

use std::collections::BTreeMap;

use lapin::Connection;
use lapin::options::ExchangeDeclareOptions;
use lapin::{ExchangeKind, Queue};

use super::form::{FormDifference, NO_DELIVERY_LIMIT, QueueForm};
use super::{
    DELIVERY_LIMIT_ARGUMENT, QUEUE_TYPE_ARGUMENT, Topology, check_exchange, describe_stream_queue,
    find_queue, no_delivery_limit_command, stream_arguments, with_advice,
};
use crate::connect::{BrokerEndpoint, BrokerError, RefusalCause};
use ordain_util::finding::Finding;
use ordain_util::text::{escape_invisible, pluralized};

/// An exchange that exists in every virtual host.
const KNOWN_EXCHANGE: &str = "amq.fanout";
/// The first major version of RabbitMQ that limits the deliveries of quorum queues by default.
const DEFAULT_LIMIT_VERSION: u64 = 4;

impl Topology {
    /// Appends findings about the queues and exchanges of the stream. `version` is the version of RabbitMQ, if known.
    pub(crate) async fn inspect(
        &self,
        stream: &str,
        broker: &BrokerEndpoint,
        connection: &Connection,
        version: Option<(u64, u64)>,
        findings: &mut Vec<Finding>,
    ) -> Result<(), BrokerError> {
        let mut limited = Vec::new();
        for partition in 0..self.partitions {
            let queue = self.queue(partition);
            let Some(found) = find_queue(broker, connection, &queue).await? else {
                findings.push(self.describe_missing("queue", &queue, stream));
                continue;
            };
            if self.inspect_queue(stream, broker, connection, version, &found, findings).await? {
                limited.push(queue);
            }
        }
        if !limited.is_empty() {
            findings.push(Finding::warning(format!(
                "queues of stream {stream} have no argument {DELIVERY_LIMIT_ARGUMENT} ({}). Unless a policy sets \
                 another limit, RabbitMQ 4 delivers each message at most 20 times, and then drops it. Remove the limit \
                 with a policy: {}",
                limited.join(", "),
                no_delivery_limit_command(broker, stream, &limited)
            )));
        }
        if self.declare {
            let dropped = self.dropped_name();
            match find_queue(broker, connection, &dropped).await? {
                Some(queue) if queue.message_count() > 0 => findings.push(Finding::warning(format!(
                    "the queue {dropped:?} has {} messages that the broker has dropped from the queues of stream \
                     {stream}. Remove the cause, and move the messages back to the exchange with a shovel",
                    queue.message_count()
                ))),
                Some(_) => findings.push(Finding::note(format!(
                    "the queue {dropped:?} of stream {stream} exists, and is empty"
                ))),
                None => findings.push(self.describe_missing("queue", &dropped, stream)),
            }
        }
        self.inspect_exchanges(stream, broker, connection, findings).await
    }

    fn describe_missing(&self, what: &str, name: &str, stream: &str) -> Finding {
        if self.declare {
            Finding::note(format!(
                "the {what} {name:?} of stream {stream} does not exist: a start declares it"
            ))
        } else {
            // A start waits for the queue or exchange, because another program may declare it at any time.
            Finding::unavailable(format!(
                "the {what} {name:?} of stream {stream} does not exist, and the source has declare = false: declare it \
                 in the broker, or set declare = true"
            ))
        }
    }

    /// Appends the findings about a queue. Returns whether RabbitMQ applies its default delivery limit to the queue if
    /// no policy sets another limit.
    async fn inspect_queue(
        &self,
        stream: &str,
        broker: &BrokerEndpoint,
        connection: &Connection,
        version: Option<(u64, u64)>,
        queue: &Queue,
        findings: &mut Vec<Finding>,
    ) -> Result<bool, BrokerError> {
        let name = queue.name().as_str();
        let expected = if self.declare { self.queue_arguments(false) } else { stream_arguments() };
        let what = format!(
            "the queue {name:?} of stream {stream} exists, with {} and {}",
            pluralized(u64::from(queue.message_count()), "waiting message"),
            pluralized(u64::from(queue.consumer_count()), "consumer")
        );
        let form = match QueueForm::read(broker, connection, name, expected).await {
            Ok(form) => form,
            Err(BrokerError::Refused { reason, .. }) => {
                findings
                    .push(Finding::note(format!("{what}; its arguments are unknown: {reason}")));
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        if form.is_stream() {
            findings.push(Finding::error(describe_stream_queue(name)));
            return Ok(false);
        }
        let version_4 = version.is_some_and(|(major, _)| major >= DEFAULT_LIMIT_VERSION);
        let limit = form.arguments.get(DELIVERY_LIMIT_ARGUMENT).map(String::as_str);
        if self.declare {
            let is_expected = |difference: &FormDifference| {
                difference.argument == DELIVERY_LIMIT_ARGUMENT && limit == Some(NO_DELIVERY_LIMIT)
            };
            let differences: Vec<&FormDifference> =
                form.differences.iter().filter(|difference| !is_expected(difference)).collect();
            findings.push(Finding::note(if differences.is_empty() {
                format!("{what}, in the form that Ordain declares")
            } else {
                what
            }));
            for FormDifference { reason, .. } in differences {
                let refused =
                    BrokerError::Refused { cause: RefusalCause::OtherForm, reason: reason.clone() };
                findings.push(Finding::error(with_advice(refused, name, "queue").to_string()));
            }
        } else {
            let shown = describe_arguments(&form.arguments, form.is_complete);
            findings.push(Finding::note(format!("{what}; {shown}")));
            findings.extend(form.risks(name).into_iter().map(Finding::warning));
        }
        let is_quorum =
            form.arguments.get(QUEUE_TYPE_ARGUMENT).is_some_and(|kind| kind == "quorum");
        Ok(is_quorum && version_4 && limit.is_none() && form.is_complete)
    }

    async fn inspect_exchanges(
        &self,
        stream: &str,
        broker: &BrokerEndpoint,
        connection: &Connection,
        findings: &mut Vec<Finding>,
    ) -> Result<(), BrokerError> {
        let Some(exchange) = &self.exchange else { return Ok(()) };
        let mut is_type_known = true;
        if self.declare && self.partitions > 1 {
            // An older version of RabbitMQ closes the connection when it refuses the type, so this test has its own
            // connection.
            let connection = broker.connect("ordain check").await?;
            match self.declare_known_exchange(broker, &connection, KNOWN_EXCHANGE).await {
                Err(error @ BrokerError::Refused { cause: RefusalCause::Unsupported, .. }) => {
                    let error = self.exchange_refusal(error, exchange);
                    findings.push(Finding::error(error.to_string()));
                    is_type_known = false;
                }
                Ok(()) | Err(BrokerError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
            // The connection is no longer needed, so an error does not matter.
            let _ = connection.close(200, "done".into()).await;
        }
        match check_exchange(broker, connection, exchange).await {
            Err(error) if error.is_not_found() => {
                findings.push(self.describe_missing("exchange", exchange, stream));
            }
            Err(error) => return Err(error),
            Ok(()) => {
                let what = format!("the exchange {exchange:?} of stream {stream} exists");
                findings.push(if self.declare && is_type_known {
                    self.compare_exchange(broker, connection, exchange, what).await?
                } else {
                    Finding::note(what)
                });
            }
        }
        for bind in &self.bind {
            let from = &bind.exchange.0;
            match check_exchange(broker, connection, from).await {
                Err(error) if error.is_not_found() => findings.push(Finding::unavailable(format!(
                    "the exchange {from:?}, which `bind` of stream {stream} names, does not exist: declare it in the \
                     broker, or remove it from `bind`"
                ))),
                Err(error) => return Err(error),
                Ok(()) => findings.push(Finding::note(format!(
                    "the exchange {from:?}, which `bind` of stream {stream} names, exists"
                ))),
            }
        }
        Ok(())
    }

    async fn compare_exchange(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
        exchange: &str,
        what: String,
    ) -> Result<Finding, BrokerError> {
        match self.declare_known_exchange(broker, connection, exchange).await {
            Ok(()) => Ok(Finding::note(format!("{what}, in the form that Ordain declares"))),
            Err(BrokerError::Refused { cause: RefusalCause::Access, reason }) => {
                Ok(Finding::note(format!("{what}; its type is unknown: {reason}")))
            }
            Err(error @ BrokerError::Refused { .. }) => {
                Ok(Finding::error(self.exchange_refusal(error, exchange).to_string()))
            }
            Err(error) => Err(error),
        }
    }

    /// Declares an exchange that exists. The broker changes nothing, and only compares the types.
    async fn declare_known_exchange(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
        exchange: &str,
    ) -> Result<(), BrokerError> {
        let failed = |error| broker.error(&error);
        let channel = connection.create_channel().await.map_err(failed)?;
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let kind: ExchangeKind = self.exchange_kind();
        let arguments = self.exchange_arguments();
        channel
            .exchange_declare(exchange.into(), kind, durable, arguments)
            .await
            .map_err(failed)?;
        channel.close(200, "done".into()).await.map_err(failed)
    }
}

fn describe_arguments(arguments: &BTreeMap<String, String>, is_complete: bool) -> String {
    if !is_complete {
        return "the broker's answer does not contain all arguments of the queue".to_owned();
    }
    let kind = arguments.get(QUEUE_TYPE_ARGUMENT).map_or("classic", String::as_str);
    let others = arguments.iter().filter(|(name, _)| *name != QUEUE_TYPE_ARGUMENT);
    let others: Vec<String> =
        others.map(|(name, value)| format!("{name} = {}", escape_invisible(value))).collect();
    let kind = escape_invisible(kind);
    if others.is_empty() {
        format!("its type is {kind}, without other arguments")
    } else {
        format!("its type is {kind}, with {}", others.join(", "))
    }
}
