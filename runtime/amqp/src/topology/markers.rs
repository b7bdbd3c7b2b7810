//! The markers of a stream's queues, of its exchange and of the exchanges of `bind`. A marker shows whether a queue or
//! exchange is still the one that the stream has used before, or a new one with the same name.

use std::collections::BTreeSet;

use lapin::options::{ExchangeBindOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ExchangeKind};
use ordain_core::digest;

use super::{Topology, TopologyChange, check_exchange};
use crate::connect::{BrokerEndpoint, BrokerError};

/// The beginning of the names of exchanges that the broker itself has declared. RabbitMQ refuses to delete them.
const BUILT_IN_PREFIX: &str = "amq.";

impl Topology {
    /// Returns the exchanges that get a marker: the stream's exchange, and each exchange of `bind` that a program can
    /// delete.
    pub(crate) fn marked_exchanges(&self) -> BTreeSet<&str> {
        let feeding = self.bind.iter().map(|bind| bind.exchange.0.as_str());
        let deletable = feeding.filter(|exchange| !exchange.starts_with(BUILT_IN_PREFIX));
        deletable.chain(self.exchange.as_deref()).collect()
    }

    /// Returns the name of an exchange's marker. The name begins with the name of the queue, so it is unique to the
    /// stream, and a user with rights to all names with this beginning can declare the marker. A digest of the
    /// exchange's name distinguishes the markers of different exchanges. The digest is short, because AMQP limits the
    /// name of the marker to 255 bytes.
    fn exchange_marker(&self, exchange: &str) -> String {
        format!("{}.x{:06x}.marker", self.queue, digest(exchange.as_bytes()) & 0xff_ffff)
    }

    /// Returns the exchanges of `marked` that another program removed and declared again after Ordain had declared
    /// their markers. Omits exchanges that are missing now. See [`Self::declare_exchange_marker`].
    pub(crate) async fn replaced_exchanges(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
        marked: &BTreeSet<String>,
    ) -> Result<Vec<String>, BrokerError> {
        let mut replaced = Vec::new();
        if !self.declare {
            return Ok(replaced);
        }
        for exchange in marked {
            if !exchange_exists(broker, connection, &self.exchange_marker(exchange)).await?
                && exchange_exists(broker, connection, exchange).await?
            {
                replaced.push(exchange.clone());
            }
        }
        Ok(replaced)
    }

    /// Returns whether the stream's exchange is missing. Returns `false` if the stream has no exchange.
    pub(crate) async fn is_exchange_missing(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
    ) -> Result<bool, BrokerError> {
        let Some(exchange) = &self.exchange else { return Ok(false) };
        Ok(!exchange_exists(broker, connection, exchange).await?)
    }

    /// Declares the marker of an exchange, unless `marked` contains the exchange. Adds the exchange to `marked` if the
    /// exchange has its marker now. Reports a refusal, and ignores any other error. After each error, the next check of
    /// the topology repeats the declaration.
    pub(super) async fn mark_exchange(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
        exchange: &str,
        marked: &mut BTreeSet<String>,
        report: impl Fn(&TopologyChange),
    ) {
        if marked.contains(exchange) {
            return;
        }
        match self.declare_exchange_marker(broker, connection, exchange).await {
            Ok(()) => {
                marked.insert(exchange.to_owned());
            }
            Err(error) if error.is_not_found() => {}
            Err(BrokerError::Refused { reason, .. }) => {
                let exchange = exchange.to_owned();
                report(&TopologyChange::ExchangeMarkerRefused { exchange, reason });
            }
            Err(_) => {}
        }
    }

    /// Declares the marker of an exchange. The marker is another exchange, which the broker deletes when its last
    /// binding is deleted. The only binding of the marker leads to the marked exchange, so the broker deletes the
    /// marker together with that exchange. If the marker is missing later, the marked exchange was deleted, even if an
    /// exchange of the same name exists.
    async fn declare_exchange_marker(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
        exchange: &str,
    ) -> Result<(), BrokerError> {
        let failed = |error| broker.error(&error);
        let channel = connection.create_channel().await.map_err(failed)?;
        let marker = self.exchange_marker(exchange);
        declare_marker(&channel, &marker).await.map_err(failed)?;
        let options = ExchangeBindOptions::default();
        let nothing = FieldTable::default();
        let bound = channel.exchange_bind(
            exchange.into(),
            marker.as_str().into(),
            "".into(),
            options,
            nothing,
        );
        bound.await.map_err(failed)?;
        channel.close(200, "done".into()).await.map_err(failed)
    }

    fn marker(&self, partition: u32) -> String {
        format!("{}.marker", self.queue(partition))
    }

    /// Returns whether a partition's queue still has its marker. See [`Self::declare_marker`].
    pub(crate) async fn has_marker(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
        partition: u32,
    ) -> Result<bool, BrokerError> {
        exchange_exists(broker, connection, &self.marker(partition)).await
    }

    /// Declares the marker of a partition's queue. The marker is an exchange that the broker deletes when its last
    /// binding is deleted. Only the queue is bound to the marker, so the broker deletes the marker together with the
    /// queue. If the marker is missing later, the queue was deleted, even if a queue of the same name exists. AMQP
    /// offers no other way to identify a queue.
    pub(crate) async fn declare_marker(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
        partition: u32,
    ) -> Result<(), BrokerError> {
        let failed = |error| broker.error(&error);
        let channel = connection.create_channel().await.map_err(failed)?;
        let marker = self.marker(partition);
        declare_marker(&channel, &marker).await.map_err(failed)?;
        self.bind_queue(&channel, &marker, partition).await.map_err(failed)?;
        channel.close(200, "done".into()).await.map_err(failed)
    }
}

pub(super) async fn exchange_exists(
    broker: &BrokerEndpoint,
    connection: &Connection,
    name: &str,
) -> Result<bool, BrokerError> {
    match check_exchange(broker, connection, name).await {
        Ok(()) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Declares an exchange that the broker deletes when the last binding from it is deleted. Clients cannot publish to
/// this exchange.
async fn declare_marker(channel: &Channel, name: &str) -> lapin::Result<()> {
    let options = ExchangeDeclareOptions {
        durable: true,
        auto_delete: true,
        internal: true,
        ..ExchangeDeclareOptions::default()
    };
    let nothing = FieldTable::default();
    channel.exchange_declare(name.into(), ExchangeKind::Fanout, options, nothing).await
}
