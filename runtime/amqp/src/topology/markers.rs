//! The markers of a stream's queues and of its exchange. A marker shows whether the queue or exchange of a name is
//! still the same queue or exchange that the stream has used before.

use lapin::options::{ExchangeBindOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ExchangeKind};
use ordain_core::digest;

use super::{Topology, check_exchange};
use crate::connect::{BrokerEndpoint, BrokerError};

impl Topology {
    /// Returns the name of the exchange's marker. The marker's name begins with the name of the queue. The marker's
    /// name is therefore unique to the stream, and the user of `broker.url` has the right to declare the marker. The
    /// digest distinguishes the markers of exchanges with different names. The digest is short, because AMQP limits the
    /// whole name to 255 bytes.
    fn exchange_marker(&self, exchange: &str) -> String {
        format!("{}.x{:06x}.marker", self.queue, digest(exchange.as_bytes()) & 0xff_ffff)
    }

    /// Returns whether the exchange was removed and declared again after its marker was declared. Returns `false` if
    /// the exchange is missing now. See [`Self::declare_exchange_marker`].
    pub(crate) async fn is_exchange_replaced(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
    ) -> Result<bool, BrokerError> {
        let Some(exchange) = self.exchange.as_ref().filter(|_| self.declare) else {
            return Ok(false);
        };
        Ok(!exchange_exists(broker, connection, &self.exchange_marker(exchange)).await?
            && exchange_exists(broker, connection, exchange).await?)
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

    /// Declares the marker of the stream's exchange: an exchange that the broker deletes when its last binding is
    /// deleted. The only binding of the marker leads to the stream's exchange. The marker therefore disappears together
    /// with the stream's exchange, and shows later whether the exchange of this name is still the same exchange.
    pub(crate) async fn declare_exchange_marker(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
    ) -> Result<(), BrokerError> {
        let Some(exchange) = &self.exchange else { return Ok(()) };
        let failed = |error| broker.error(&error);
        let channel = connection.create_channel().await.map_err(failed)?;
        let marker = self.exchange_marker(exchange);
        declare_marker(&channel, &marker).await.map_err(failed)?;
        let options = ExchangeBindOptions::default();
        let nothing = FieldTable::default();
        let bound = channel.exchange_bind(
            exchange.as_str().into(),
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

    /// Declares the marker of a partition's queue: an exchange that the broker deletes when its last binding is
    /// deleted. Only the queue is bound to the marker. The marker therefore disappears together with the queue, and
    /// shows later whether the queue of this name is still the same queue. AMQP offers no other way to identify a
    /// queue.
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

/// Returns whether an exchange exists.
async fn exchange_exists(
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
