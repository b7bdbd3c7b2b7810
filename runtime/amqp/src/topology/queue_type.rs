//! Determines whether a queue is of type stream if the user lacks the right to declare the queue.

use lapin::ErrorKind;
use lapin::options::BasicGetOptions;
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};

use super::{Topology, stream_queue_refusal};
use crate::connect::{BrokerEndpoint, BrokerError};

impl Topology {
    /// Returns an error if a partition's queue is of type stream. This method sends the request `basic.get`, which
    /// needs only the right to read the queue. RabbitMQ does not support this request for a queue of type stream. If
    /// the queue has another type, the broker may deliver a message. The message returns to the queue when this method
    /// closes the channel. The caller must not consume the queue meanwhile, because it would receive later messages
    /// before this message.
    pub(crate) async fn refuse_stream_queue(
        &self,
        broker: &BrokerEndpoint,
        stream: &str,
        partition: u32,
    ) -> Result<(), BrokerError> {
        let queue = self.queue(partition);
        // The request has its own connection, because the broker closes the connection if the queue is of type stream.
        let connection = broker.connect(&format!("ordain {stream} queue type")).await?;
        let channel = connection.create_channel().await.map_err(|error| broker.error(&error))?;
        let got = channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await;
        // The broker may have closed the channel and the connection, so an error does not matter.
        let _ = channel.close(200, "done".into()).await;
        let _ = connection.close(200, "done".into()).await;
        let Err(error) = got else { return Ok(()) };
        if let ErrorKind::ProtocolError(refusal) = error.kind() {
            match refusal.kind() {
                AMQPErrorKind::Hard(AMQPHardError::NOTIMPLEMENTED) => {
                    return Err(stream_queue_refusal(&queue));
                }
                // The broker refuses this request with the code `RESOURCE_LOCKED` if the queue allows a single active
                // consumer. A queue of type stream cannot have this setting.
                AMQPErrorKind::Soft(AMQPSoftError::RESOURCELOCKED) => return Ok(()),
                _ => {}
            }
        }
        Err(broker.error(&error))
    }
}
