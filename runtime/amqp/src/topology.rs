//! The exchange, queues and bindings of a stream. This module declares them if they are missing. With
//! `declare = false`, this module only checks that the queues and exchanges exist, and refuses queues of type stream.
//!
//! All queues that Ordain declares for partitions are quorum queues with a single active consumer. If the broker drops
//! messages from these queues, for example because a policy limits their length, it moves the dropped messages to a
//! separate queue.

mod form;
mod inspect;
mod markers;
mod missing_bindings;
mod policy;
mod queue_type;
mod spread;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use lapin::options::{
    ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::protocol::{AMQPErrorKind, AMQPHardError};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ErrorKind, ExchangeKind, Queue};

use super::connect::{BrokerEndpoint, BrokerError, RefusalCause};
use super::topology_record::{Binding, BindingKind};
use form::{QueueArguments, QueueForm};
pub use missing_bindings::BindingList;
use ordain_config::{
    AmqpSourceConfig, ExchangeBinding, HashedPart, dropped_queue, partition_queue,
};
pub use policy::no_delivery_limit_command;

/// The argument that limits the deliveries of each message. After this number of deliveries, a queue drops the message.
const DELIVERY_LIMIT_ARGUMENT: &str = "x-delivery-limit";
const QUEUE_TYPE_ARGUMENT: &str = "x-queue-type";
/// An exchange type that exists only from RabbitMQ 4.0 on, and therefore reveals whether the broker has at least this
/// version.
const VERSION_4_EXCHANGE_TYPE: &str = "x-local-random";

/// A difference between the broker and the topology of a running stream, or a refusal of the broker to declare or bind
/// a part of the topology.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TopologyChange {
    /// The queue was missing. Ordain declares the queue again with its bindings. With `declare = false`, Ordain waits
    /// until another program has declared the queue.
    QueueMissing(String),
    /// Since the previous subscription, another program has deleted the queue and declared it again.
    QueueReplaced(String),
    /// The queue of a `sequenced` stream was removed while no consumer of the stream consumed it. A start of Ordain, or
    /// another program, has declared the queue again.
    QueueLost(String),
    /// The broker has ended the subscription to a queue without a marker. Another program may have deleted the queue
    /// and declared it again.
    QueueUnidentified(String),
    /// The exchange was missing. Ordain declares the exchange again with its bindings.
    ExchangeMissing(String),
    /// With `declare = false`, exchanges are missing: the stream's exchange, or exchanges of `bind`. Ordain does not
    /// declare them.
    ForeignExchangesMissing(Vec<String>),
    /// A binding was missing, although its queue and its exchange exist: another program has removed the binding.
    /// Ordain declares the binding again.
    BindingMissing(Binding),
    /// Since the previous check, another program has removed an exchange and declared it again: the stream's exchange,
    /// or an exchange of `bind`. Ordain then declares the bindings that the stream needs from or to this exchange.
    ExchangeReplaced(String),
    /// Ordain cannot detect a replaced exchange without its marker, which the broker refuses.
    ExchangeMarkerRefused {
        /// The exchange without a marker: the stream's exchange, or an exchange of `bind`.
        exchange: String,
        /// The broker's words.
        reason: String,
    },
    /// The stream's exchange exists with another type than the stream needs, or the broker does not support this type,
    /// so the broker refuses the declaration. The exchange then routes no events to the queues, or routes them to the
    /// wrong queues.
    OtherExchangeType(String),
    /// The broker refuses a declaration or binding. For example, the queue or exchange exists in another form, the user
    /// lacks a permission, or an exchange of `bind` does not exist.
    Refused(String),
}

/// A binding that the broker refuses, because the binding's queue or exchange is missing. A consumer of the stream, or
/// another program, may soon declare the missing queue or exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MissingBinding {
    pub(super) reason: String,
    /// True if a consumer of the stream declares the missing queue or exchange.
    pub(super) is_own: bool,
}

/// The exchange, queues and bindings that a stream needs.
#[derive(Debug, Clone)]
pub struct Topology {
    exchange: Option<String>,
    queue: String,
    partitions: u32,
    /// The part of a message by which the exchange chooses the partition.
    hashed: HashedPart,
    bind: Vec<ExchangeBinding>,
    declare: bool,
}

impl Topology {
    /// Returns the topology of a source's configuration.
    pub fn of(source: &AmqpSourceConfig) -> Self {
        Self {
            exchange: source.exchange.as_ref().map(|exchange| exchange.0.clone()),
            queue: source.queue.0.clone(),
            partitions: source.partitions,
            // The check of the configuration requires a part that RabbitMQ can hash if there are several partitions.
            hashed: source.hashed_part().unwrap_or(HashedPart::RoutingKey),
            bind: source.bind.clone(),
            declare: source.declare,
        }
    }

    pub(super) fn is_declared(&self) -> bool {
        self.declare
    }

    /// Returns the name of the exchange; `None` if the stream has none.
    pub fn exchange(&self) -> Option<&str> {
        self.exchange.as_deref()
    }

    pub(super) fn partitions(&self) -> u32 {
        self.partitions
    }

    /// Returns the name of a partition's queue.
    pub fn queue(&self, partition: u32) -> String {
        partition_queue(&self.queue, self.partitions, partition)
    }

    /// Declares the missing exchange, queues and bindings, as `declare_objects` and `bind` do. Returns
    /// the first two values of `declare_objects`.
    pub async fn prepare(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
        is_known: bool,
        queue_limit: Duration,
    ) -> Result<(Vec<String>, Option<BrokerError>), BrokerError> {
        let declared = self.declare_objects(broker, connection, is_known, queue_limit).await?;
        let (limited, other_form, channel) = declared;
        self.bind(broker, channel).await?;
        Ok((limited, other_form))
    }

    /// Declares the missing exchange and queues, but no bindings. With `declare = false`, only checks that the queues
    /// and the exchange exist. `is_known` states whether the stream has run before. If the stream has run before, one
    /// of its queues may exist in another form, and the broker then refuses the declaration of this queue. In this
    /// case, this method continues, so that the caller binds all queues and no message is lost. Any other refusal, such
    /// as a missing permission, is an error. A queue that does not answer within `queue_limit` is also an error.
    ///
    /// Returns three values. The first value contains the queues that were declared without a delivery limit under an
    /// earlier version of RabbitMQ, and that now have the default limit of the present version. The second value is the
    /// newest refusal of a queue that exists in another form. The third value is the channel for [`Self::bind`], and is
    /// `None` with `declare = false`.
    pub(super) async fn declare_objects(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
        is_known: bool,
        queue_limit: Duration,
    ) -> Result<(Vec<String>, Option<BrokerError>, Option<Channel>), BrokerError> {
        let mut limited = Vec::new();
        if !self.declare {
            for partition in 0..self.partitions {
                let checked = self.check_queue(broker, connection, partition);
                broker.within(queue_limit, checked).await?;
            }
            self.check_exchange(broker, connection).await?;
            return Ok((limited, None, None));
        }
        let failed = |error| broker.error(&error);
        let dropped = self.declare_dropped(broker, connection);
        let dropped = match broker.within(queue_limit, dropped).await.err() {
            Some(error @ BrokerError::Refused { cause: RefusalCause::OtherForm, .. })
                if is_known =>
            {
                Some(error)
            }
            Some(error) => return Err(error),
            None => None,
        };
        let channel = connection.create_channel().await.map_err(failed)?;
        let mut other_form = dropped;
        for partition in 0..self.partitions {
            let declared = self.declare_queue(broker, connection, partition);
            match broker.within(queue_limit, declared).await {
                Ok(true) => limited.push(self.queue(partition)),
                Ok(false) => {}
                Err(error @ BrokerError::Refused { cause: RefusalCause::OtherForm, .. })
                    if is_known =>
                {
                    other_form = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(exchange) = &self.exchange {
            self.declare_exchange_only(&channel, exchange)
                .await
                .map_err(|error| self.describe_exchange_error(broker.error(&error), exchange))?;
        }
        Ok((limited, other_form, Some(channel)))
    }

    /// Declares the bindings of the stream on the channel that [`Self::declare_objects`] has returned, and closes the
    /// channel.
    pub(super) async fn bind(
        &self,
        broker: &BrokerEndpoint,
        channel: Option<Channel>,
    ) -> Result<(), BrokerError> {
        let Some(channel) = channel else { return Ok(()) };
        if let Some(exchange) = &self.exchange {
            self.declare_bindings(&channel, exchange)
                .await
                .map_err(|error| self.describe_exchange_error(broker.error(&error), exchange))?;
        }
        channel.close(200, "done".into()).await.map_err(|error| broker.error(&error))
    }

    /// Binds a partition's queue to the exchange. With `may_declare`, also declares a missing queue, and checks the
    /// form of an existing queue. Without `may_declare`, a missing queue is an error, because a declaration would hide
    /// that the messages of the queue are lost. Calls `report` with each refused declaration or binding. If `list`
    /// shows that an existing queue has lost its binding, calls `report` with this binding before it declares the
    /// binding. If the exchange is missing, this method returns the binding and does not report a refusal, because the
    /// consumer of partition 0 declares the exchange. With `declare = false`, does nothing.
    pub(super) async fn restore_queue(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
        partition: u32,
        may_declare: bool,
        list: Option<&Arc<dyn BindingList>>,
        report: impl Fn(&TopologyChange),
    ) -> Result<Option<MissingBinding>, BrokerError> {
        if !self.declare {
            return Ok(None);
        }
        let found = self.check_queue(broker, connection, partition).await;
        let has_queue = found.is_ok();
        if may_declare {
            // The queue may be missing because an operator has upgraded the broker. Repeat the test of the broker's
            // default delivery limit.
            if found.is_err_and(|error| error.is_not_found()) {
                broker.forget_version();
            }
            if let Err(error) = self.declare_queue(broker, connection, partition).await {
                report(&refused(error)?);
            }
        } else {
            found?;
        }
        let Some(exchange) = &self.exchange else { return Ok(None) };
        // A queue that was missing had no binding. The caller reports the missing queue.
        if has_queue {
            let needed = BTreeSet::from([self.queue_binding(exchange, partition)]);
            for binding in self.missing_bindings(broker, connection, list, needed).await {
                report(&TopologyChange::BindingMissing(binding));
            }
        }
        let channel = connection.create_channel().await.map_err(|error| broker.error(&error))?;
        match self.bind_queue(&channel, exchange, partition).await {
            Ok(()) => Ok(None),
            Err(error) => self.missing_binding(broker.error(&error), exchange, true, report),
        }
    }

    /// Declares the exchange and the bindings again if they have disappeared since the start of the stream. If another
    /// program has removed an exchange and declared it again, the new exchange has no bindings and drops all messages.
    /// The broker does not report this change. `marked` contains the exchanges that had their marker (an exchange that
    /// the broker deletes together with the marked exchange) at the previous check. This method updates `marked`. Calls
    /// `report` with each difference before it declares a new marker. The order matters, because the caller may drop
    /// this future at any step, and with the new marker no later check could detect the difference. Also calls `report`
    /// with each binding that is missing according to `list`, before it declares the bindings. Returns a binding whose
    /// queue or exchange is missing. The refusal of this binding closes the channel, so the bindings after it may be
    /// missing too. Uses a connection of its own, because a refused exchange type closes the connection.
    pub(super) async fn restore_exchange(
        &self,
        broker: &BrokerEndpoint,
        stream: &str,
        marked: &mut BTreeSet<String>,
        list: Option<&Arc<dyn BindingList>>,
        report: impl Fn(&TopologyChange),
    ) -> Result<Option<MissingBinding>, BrokerError> {
        let Some(exchange) = self.exchange.as_ref().filter(|_| self.declare) else {
            return Ok(None);
        };
        let connection = broker.connect(&format!("ordain {stream} topology")).await?;
        let is_missing = match self.check_exchange(broker, &connection).await {
            Err(error) if error.is_not_found() => {
                report(&TopologyChange::ExchangeMissing(exchange.clone()));
                marked.remove(exchange);
                true
            }
            Ok(()) | Err(BrokerError::Refused { .. }) => false,
            Err(error) => return Err(error),
        };
        let replaced = self.replaced_exchanges(broker, &connection, marked).await?;
        // A missing or replaced exchange has lost its bindings, so only the exchange is reported. A check of each
        // binding of a missing exchange could use up the time limit before the declaration of the exchange.
        let needed = if is_missing { BTreeSet::new() } else { self.bindings_without(&replaced) };
        for name in replaced {
            marked.remove(&name);
            report(&TopologyChange::ExchangeReplaced(name));
        }
        for binding in self.missing_bindings(broker, &connection, list, needed).await {
            report(&TopologyChange::BindingMissing(binding));
        }
        if let Err(error) = self.declare_dropped(broker, &connection).await {
            report(&refused(error)?);
        }
        // An exchange of `bind` gets its marker before its binding. If another program replaces the exchange after the
        // declaration of the marker and before the binding, the marker disappears, and the next check detects the
        // replacement.
        for feeding in self.marked_exchanges() {
            if feeding != exchange.as_str() {
                self.mark_exchange(broker, &connection, feeding, marked, &report).await;
            }
        }
        let declared = async {
            let channel = connection.create_channel().await?;
            self.declare_exchange(&channel, exchange).await
        };
        let missing = match declared.await {
            Ok(()) => {
                self.mark_exchange(broker, &connection, exchange, marked, &report).await;
                None
            }
            Err(error) => {
                // The consumer of a missing queue declares the queue. Ordain never declares an exchange of `bind`.
                let is_own = error.to_string().contains("no queue ");
                self.missing_binding(broker.error(&error), exchange, is_own, &report)?
            }
        };
        // The declarations are done, so an error of the connection does not matter.
        let _ = connection.close(200, "done".into()).await;
        Ok(missing)
    }

    /// Returns the description of the fault if the stream's exchange has another type than the stream needs, or if the
    /// broker does not support this type. Returns `None` if the exchange has the right type, is missing, or cannot be
    /// compared, for example because the user lacks a permission. Uses a connection of its own, because a refused
    /// exchange type closes the connection.
    pub(super) async fn other_exchange_type(
        &self,
        broker: &BrokerEndpoint,
        stream: &str,
    ) -> Result<Option<String>, BrokerError> {
        let Some(exchange) = &self.exchange else { return Ok(None) };
        let connection = broker.connect(&format!("ordain {stream} topology")).await?;
        let compared = async {
            // Return if the exchange is missing. The comparison below would declare the exchange without its bindings.
            check_exchange(broker, &connection, exchange).await?;
            let failed = |error| broker.error(&error);
            let channel = connection.create_channel().await.map_err(failed)?;
            self.declare_exchange_only(&channel, exchange).await.map_err(failed)
        };
        let fault = match compared.await.map_err(|error| self.exchange_refusal(error, exchange)) {
            Ok(()) => None,
            Err(error) => {
                let is_other_type = error.is_other_exchange_type();
                match error {
                    BrokerError::Refused { reason, .. } => is_other_type.then_some(reason),
                    error => return Err(error),
                }
            }
        };
        // The comparison is done, so an error of the connection does not matter.
        let _ = connection.close(200, "done".into()).await;
        Ok(fault)
    }

    /// Returns which of these exchanges are missing: the stream's exchange and the exchanges of `bind`.
    pub(super) async fn missing_exchanges(
        &self,
        broker: &BrokerEndpoint,
        stream: &str,
    ) -> Result<BTreeSet<String>, BrokerError> {
        let connection = broker.connect(&format!("ordain {stream} topology")).await?;
        let mut missing = BTreeSet::new();
        let feeding = self.bind.iter().map(|bind| &bind.exchange.0);
        for exchange in self.exchange.iter().chain(feeding) {
            match check_exchange(broker, &connection, exchange).await {
                Err(error) if error.is_not_found() => {
                    missing.insert(exchange.clone());
                }
                checked => checked?,
            }
        }
        // The checks are done, so an error of the connection does not matter.
        let _ = connection.close(200, "done".into()).await;
        Ok(missing)
    }

    /// Checks that the queue of a partition exists. The error names the queue.
    pub(super) async fn check_queue(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
        partition: u32,
    ) -> Result<(), BrokerError> {
        let queue = self.queue(partition);
        let found = read_queue(broker, connection, &queue).await;
        found.map(drop).map_err(|error| self.describe_required(error, &format!("queue {queue:?}")))
    }

    /// Returns the form of a partition's queue, or an error if the queue is of type stream. A queue of type stream does
    /// not remove acknowledged messages, and delivers only new messages to a new consumer. If the user lacks the right
    /// to declare the queue, the broker does not show the form, and this method returns an incomplete form. The queue
    /// must exist.
    pub(super) async fn check_undeclared_queue(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
        partition: u32,
    ) -> Result<QueueForm, BrokerError> {
        let queue = self.queue(partition);
        match QueueForm::read(broker, connection, &queue, stream_arguments()).await {
            Ok(form) if form.is_stream() => Err(stream_queue_refusal(&queue)),
            Err(BrokerError::Refused { .. }) => Ok(QueueForm::default()),
            read => read,
        }
    }

    async fn check_exchange(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
    ) -> Result<(), BrokerError> {
        let Some(exchange) = &self.exchange else { return Ok(()) };
        let found = check_exchange(broker, connection, exchange).await;
        found.map_err(|error| self.describe_required(error, &format!("exchange {exchange:?}")))
    }

    /// Adds to a refusal that the stream needs the queue or exchange.
    fn describe_required(&self, error: BrokerError, what: &str) -> BrokerError {
        let error = if self.declare { error } else { error.into_foreign() };
        error
            .map_refusal(|_, reason| format!("the {what} is required and cannot be used: {reason}"))
    }

    /// Returns all bindings that the stream needs, whether Ordain or another program declares them.
    pub fn bindings(&self) -> BTreeSet<Binding> {
        let Some(exchange) = &self.exchange else { return BTreeSet::new() };
        let to_queues =
            (0..self.partitions).map(|partition| self.queue_binding(exchange, partition));
        let to_exchange = self.bind.iter().map(|bind| Binding {
            kind: BindingKind::Exchange,
            from: bind.exchange.0.clone(),
            to: exchange.clone(),
            routing_key: bind.routing_key.0.clone(),
        });
        to_queues.chain(to_exchange).collect()
    }

    /// Returns all bindings that the stream needs, except the bindings from or to one of `exchanges`.
    pub(super) fn bindings_without(&self, exchanges: &[String]) -> BTreeSet<Binding> {
        let mut bindings = self.bindings();
        bindings.retain(|binding| {
            let is_end =
                |name: &String| binding.from == *name || binding.leads_to_exchange(Some(name));
            !exchanges.iter().any(is_end)
        });
        bindings
    }

    /// Returns the binding that leads from the stream's exchange to the queue of a partition.
    fn queue_binding(&self, exchange: &str, partition: u32) -> Binding {
        Binding {
            kind: BindingKind::Queue,
            from: exchange.to_owned(),
            to: self.queue(partition),
            routing_key: self.queue_binding_key().to_owned(),
        }
    }

    fn dropped_name(&self) -> String {
        dropped_queue(&self.queue)
    }

    /// Returns the number of messages that the broker has dropped from the stream's queues. Returns `None` if the queue
    /// that collects these messages is missing.
    pub(super) async fn dropped_messages(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
    ) -> Result<Option<u32>, BrokerError> {
        let queue = find_queue(broker, connection, &self.dropped_name()).await?;
        Ok(queue.map(|queue| queue.message_count()))
    }

    /// Declares the queue for the messages that the broker drops from the queues of the stream, and the exchange that
    /// leads to it.
    async fn declare_dropped(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
    ) -> Result<(), BrokerError> {
        let name = self.dropped_name();
        let declared = async {
            let channel = connection.create_channel().await?;
            let durable =
                ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
            let kind = ExchangeKind::Fanout;
            let nothing = FieldTable::default;
            channel.exchange_declare(name.as_str().into(), kind, durable, nothing()).await?;
            let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            let mut arguments = FieldTable::default();
            arguments.insert(QUEUE_TYPE_ARGUMENT.into(), long_string("quorum"));
            channel.queue_declare(name.as_str().into(), durable, arguments).await?;
            let options = QueueBindOptions::default();
            let queue = name.as_str().into();
            let exchange = name.as_str().into();
            channel.queue_bind(queue, exchange, "".into(), options, nothing()).await?;
            channel.close(200, "done".into()).await
        };
        declared.await.map_err(|error| with_advice(broker.error(&error), &name, "queue"))
    }

    /// Declares the queue of a partition. Returns whether the queue was declared without the argument
    /// `x-delivery-limit` under an earlier version of RabbitMQ, and now has the default limit of the present version.
    /// Ordain uses such a queue as it is, because the arguments of a queue cannot be changed.
    async fn declare_queue(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
        partition: u32,
    ) -> Result<bool, BrokerError> {
        let queue = self.queue(partition);
        let excludes_limit = broker.has_default_delivery_limit(&self.queue).await?;
        let declare = async |excludes_limit| {
            let channel = connection.create_channel().await?;
            let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            let arguments = self.queue_arguments(excludes_limit).into();
            channel.queue_declare(queue.as_str().into(), durable, arguments).await?;
            channel.close(200, "done".into()).await
        };
        let described = |error| with_advice(broker.error(&error), &queue, "queue");
        match declare(excludes_limit).await {
            Ok(()) => Ok(false),
            Err(error) if excludes_limit && error.to_string().contains(DELIVERY_LIMIT_ARGUMENT) => {
                declare(false).await.map_err(described)?;
                Ok(true)
            }
            Err(error) => Err(described(error)),
        }
    }

    fn queue_arguments(&self, excludes_limit: bool) -> QueueArguments {
        let mut arguments = QueueArguments::default();
        arguments.insert(QUEUE_TYPE_ARGUMENT.into(), long_string("quorum"));
        arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        arguments.insert("x-dead-letter-exchange".into(), long_string(&self.dropped_name()));
        if excludes_limit {
            arguments.insert(DELIVERY_LIMIT_ARGUMENT.into(), AMQPValue::LongInt(-1));
        }
        arguments
    }

    async fn bind_queue(
        &self,
        channel: &Channel,
        exchange: &str,
        partition: u32,
    ) -> lapin::Result<()> {
        let queue = self.queue(partition);
        let options = QueueBindOptions::default();
        let nothing = FieldTable::default();
        let key = self.queue_binding_key().into();
        channel.queue_bind(queue.as_str().into(), exchange.into(), key, options, nothing).await
    }

    /// Declares the exchange and its bindings.
    async fn declare_exchange(&self, channel: &Channel, exchange: &str) -> lapin::Result<()> {
        self.declare_exchange_only(channel, exchange).await?;
        self.declare_bindings(channel, exchange).await
    }

    /// Binds the queues to the exchange, and the exchange to the exchanges of `bind`, from which messages arrive.
    async fn declare_bindings(&self, channel: &Channel, exchange: &str) -> lapin::Result<()> {
        let nothing = FieldTable::default;
        self.bind_queues(channel, exchange).await?;
        for ExchangeBinding { exchange: from, routing_key } in &self.bind {
            let from = from.0.as_str().into();
            let key = routing_key.0.as_str().into();
            let options = ExchangeBindOptions::default();
            channel.exchange_bind(exchange.into(), from, key, options, nothing()).await?;
        }
        Ok(())
    }

    async fn declare_exchange_only(&self, channel: &Channel, exchange: &str) -> lapin::Result<()> {
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let arguments = self.exchange_arguments();
        channel.exchange_declare(exchange.into(), self.exchange_kind(), durable, arguments).await
    }

    async fn bind_queues(&self, channel: &Channel, exchange: &str) -> lapin::Result<()> {
        // Bind all queues concurrently, because messages reach wrong partitions until all queues are bound: a
        // partitioned exchange divides its messages among the queues that are already bound.
        let partitions = 0..self.partitions;
        try_join_all(partitions.map(|partition| self.bind_queue(channel, exchange, partition)))
            .await?;
        Ok(())
    }

    /// Describes an error about the exchange or its bindings. If a queue or exchange does not exist, the error is
    /// always about a binding. At a start, only an exchange of `bind` can be missing, and Ordain never declares it.
    fn describe_exchange_error(&self, error: BrokerError, exchange: &str) -> BrokerError {
        if !error.is_not_found() {
            return self.exchange_refusal(error, exchange);
        }
        error.into_foreign().map_refusal(|_, reason| {
            format!(
                "a binding of the exchange {exchange:?} cannot be declared: {reason}; declare the missing queue or \
                 exchange, or remove it from the configuration"
            )
        })
    }

    /// Converts the refusal of a binding. Returns the binding if its queue or exchange is missing, and reports any
    /// other refusal. `is_own` is the field of [`MissingBinding`].
    fn missing_binding(
        &self,
        error: BrokerError,
        exchange: &str,
        is_own: bool,
        report: impl Fn(&TopologyChange),
    ) -> Result<Option<MissingBinding>, BrokerError> {
        let error = self.describe_exchange_error(error, exchange);
        let is_other_type = error.is_other_exchange_type();
        match error {
            BrokerError::Refused { cause: RefusalCause::ForeignNotFound, reason } => {
                Ok(Some(MissingBinding { reason, is_own }))
            }
            BrokerError::Refused { reason, .. } if is_other_type => {
                report(&TopologyChange::OtherExchangeType(reason));
                Ok(None)
            }
            error => {
                report(&refused(error)?);
                Ok(None)
            }
        }
    }
}

fn stream_arguments() -> QueueArguments {
    QueueArguments::from([(QUEUE_TYPE_ARGUMENT.into(), long_string("stream"))])
}

fn stream_queue_refusal(queue: &str) -> BrokerError {
    BrokerError::Refused { cause: RefusalCause::OtherForm, reason: describe_stream_queue(queue) }
}

fn describe_stream_queue(queue: &str) -> String {
    format!(
        "the queue {queue:?} is of type stream, which keeps acknowledged messages. Use a quorum queue, which Ordain \
         declares with declare = true, and move the messages to it with a shovel"
    )
}

/// Returns an existing queue, with the numbers of its messages and consumers. Fails if the queue is missing.
async fn read_queue(
    broker: &BrokerEndpoint,
    connection: &Connection,
    queue: &str,
) -> Result<Queue, BrokerError> {
    let failed = |error| broker.error(&error);
    let channel = connection.create_channel().await.map_err(failed)?;
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let found = channel.queue_declare(queue.into(), options, FieldTable::default()).await;
    let found = found.map_err(failed)?;
    channel.close(200, "done".into()).await.map_err(failed)?;
    Ok(found)
}

/// Returns a queue, with the numbers of its messages and consumers; `None` if the broker lacks the queue.
async fn find_queue(
    broker: &BrokerEndpoint,
    connection: &Connection,
    queue: &str,
) -> Result<Option<Queue>, BrokerError> {
    match read_queue(broker, connection, queue).await {
        Ok(queue) => Ok(Some(queue)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) async fn check_exchange(
    broker: &BrokerEndpoint,
    connection: &Connection,
    exchange: &str,
) -> Result<(), BrokerError> {
    let failed = |error| broker.error(&error);
    let channel = connection.create_channel().await.map_err(failed)?;
    let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    // For a passive declaration, the broker ignores the type.
    let kind = ExchangeKind::Fanout;
    let found = channel.exchange_declare(exchange.into(), kind, options, FieldTable::default());
    found.await.map_err(failed)?;
    channel.close(200, "done".into()).await.map_err(failed)
}

/// Returns a refusal of a declaration or binding as a topology change, and any other error as an error. A refused
/// connection is also an error, and not a topology change: in this case, the topology has not been checked.
fn refused(error: BrokerError) -> Result<TopologyChange, BrokerError> {
    if error.is_connection_refused() {
        return Err(error);
    }
    match error {
        BrokerError::Refused { reason, .. } => Ok(TopologyChange::Refused(reason)),
        other => Err(other),
    }
}

fn long_string(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// Adds advice to a refusal. The advice depends on the cause. `what` is `queue` or `exchange`.
fn with_advice(error: BrokerError, name: &str, what: &str) -> BrokerError {
    error.map_refusal(|cause, reason| {
        let advice = match cause {
            RefusalCause::NotFound | RefusalCause::ForeignNotFound => {
                "declare the missing queue or exchange, or remove it from the configuration"
            }
            RefusalCause::OtherForm => {
                if what == "queue" {
                    "choose another name in the configuration. Or move the messages of the queue to another queue with \
                     a shovel, delete the queue in the broker, and move the messages back. Or, if the queue is not of \
                     type stream, set declare = false to use the queue as it is"
                } else {
                    "choose another name in the configuration. Or stop the producers and delete the exchange in the \
                     broker (messages that are published while it is missing are lost). Or, if the type of the \
                     exchange suits the stream, set declare = false to use the exchange as it is"
                }
            }
            RefusalCause::Unsupported => {
                "a stream with more than one partition needs a plugin that is part of RabbitMQ: `rabbitmq-plugins \
                 enable rabbitmq_sharding`"
            }
            RefusalCause::WhileOthersRun => {
                "start this process again when the other processes have ended"
            }
            RefusalCause::Connection => {
                "allow the user of `broker.url` to open the connection and its channels"
            }
            RefusalCause::Limit => {
                "raise the limit in the broker (for a virtual host with `rabbitmqctl set_vhost_limits`), or delete \
                 queues and exchanges that no program needs"
            }
            RefusalCause::Access => {
                "give the user of `broker.url` the permission, or restore a missing virtual host; or declare the \
                 queues, exchange and bindings of the stream yourself, and set declare = false"
            }
        };
        format!("the {what} {name:?} cannot be declared or bound: {reason}; {advice}")
    })
}

/// Returns whether the broker has a default delivery limit. The broker applies this limit to a queue whose declaration
/// lacks the argument `x-delivery-limit`. RabbitMQ has a default limit from 4.0 on. There, the value -1 of this
/// argument removes the limit; but earlier versions lose the messages of a queue with this value. The client library
/// does not show the broker's version, so this function declares an exchange of a type that exists only from 4.0 on.
pub(super) async fn has_default_delivery_limit(
    broker: &BrokerEndpoint,
    queue: &str,
) -> Result<bool, BrokerError> {
    let connection = broker.connect("ordain: which version").await?;
    let channel = connection.create_channel().await.map_err(|error| broker.error(&error))?;
    let options = ExchangeDeclareOptions { auto_delete: true, ..ExchangeDeclareOptions::default() };
    let kind = ExchangeKind::Custom(VERSION_4_EXCHANGE_TYPE.to_owned());
    let name = format!("{queue}.version.{:06x}", rand::random::<u32>() & 0xff_ffff);
    let declared =
        channel.exchange_declare(name.as_str().into(), kind, options, FieldTable::default()).await;
    match declared {
        Ok(()) => {
            let options = lapin::options::ExchangeDeleteOptions::default();
            // If the deletion fails, the exchange disappears with the broker's next restart.
            let _ = channel.exchange_delete(name.as_str().into(), options).await;
            let _ = connection.close(200, "done".into()).await;
            Ok(true)
        }
        Err(error) if is_unknown_exchange_type(&error) => Ok(false),
        Err(error) => Err(broker.error(&error).map_refusal(|cause, reason| {
            let message = format!(
                "Ordain cannot declare the exchange `{queue}.version.*`, with which it checks whether the broker is \
                 RabbitMQ 4.0 or later: {reason}"
            );
            match cause {
                RefusalCause::Access => format!(
                    "{message}. To fix this, allow the user of `broker.url` to configure names that begin with \
                     {queue:?}. Or declare the stream's queues, exchange and bindings yourself, and set declare = false"
                ),
                _ => message,
            }
        })),
    }
}

fn is_unknown_exchange_type(error: &lapin::Error) -> bool {
    let ErrorKind::ProtocolError(error) = error.kind() else { return false };
    matches!(error.kind(), AMQPErrorKind::Hard(AMQPHardError::COMMANDINVALID))
}
