//! RabbitMQ: where events come from, and where messages go.
//!
//! `url` says where the broker is, `connect` opens connections and says what their errors mean,
//! `topology` declares queues.
//! `consumer` subscribes, again and again, as its `consumer_options` say; a `subscription` takes deliveries in, as many ahead as
//! `window` says, and acknowledges them; `watch` looks whether they come, `decode` makes events of
//! them, and `unreadable` dead letters of the others. `publish` sends messages that `encode` makes
//! by a `link`; `flight` has those that are on their way, `held` those that nobody takes, of which
//! `complaints` tell. `produce` publishes a producer's events. `reach` knows whether the broker answers. Nothing here decides what becomes of an event: that a delivery is
//! acknowledged, and which, is said by the sequencer.

mod complaints;
mod connect;
mod consumer;
mod consumer_options;
mod decode;
mod encode;
mod flight;
mod header;
mod held;
mod link;
mod produce;
mod publish;
mod reach;
mod subscription;
mod topology;
mod unreadable;
mod value;
mod watch;
mod weight;
mod window;

pub use connect::{Broker, BrokerError};
pub use consumer::start;
pub use consumer_options::ConsumerOptions;
pub use decode::Decoder;
pub use produce::{Numbered, Producer};
pub use publish::{AmqpSink, Published};
pub use reach::watch_reach;
pub use topology::Topology;
pub use window::LastWindow;
