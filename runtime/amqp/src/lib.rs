//! RabbitMQ: consumes events from queues and publishes messages to exchanges.
//!
//! Connections: `connect` opens connections and classifies their errors. `connect_attempt` closes the sockets of
//! attempts that do not succeed. `broker_health` monitors whether the broker responds. `topology` declares or checks
//! the exchanges, queues and bindings (the topology) of a stream, and `topology_record` records the bindings. `prepare`
//! prepares and records the topology when a process starts. `topology_gate` holds back the consumers of a new stream
//! while the broker refuses its topology, and carries the reports of consumers whose subscription the broker refuses.
//! `exchange_fault` shares the fault of an exchange among the consumers of its stream. `store_timeout` limits the time
//! of the requests to the store. `inspect` reports the state of the broker and changes nothing; `sample` shows how the
//! streams would read the messages of their queues; `greeting` reads the product and version of the broker.
//!
//! Consuming: `consumer` subscribes again after each failure, with the settings of `consumer_options` and the tag of
//! `consumer_tag`. A `subscription` receives deliveries, limited by `prefetch`, and acknowledges them. `queue_monitor`
//! detects a queue that delivers nothing, and restores the topology at the times that `restore_schedule` determines.
//! `decode` converts deliveries into events. `unreadable` converts unreadable deliveries into dead letters, which
//! contain the message in the form of `raw_message`. `unreadable_run` counts consecutive unreadable deliveries, and
//! `held_messages` decides whether these deliveries become dead letters or remain in the queue. `event_counts` maps the
//! acknowledged events to deliveries, because a message can be a batch of several events. `fifo_queue` detects that the
//! queue of a `fifo` stream is lost. `header` names the headers with a meaning for Ordain. `value` converts the values
//! of headers, and `weight` estimates their memory.
//!
//! Publishing: `encode` builds messages, and `publish` sends them to an `exchange`. `original_letter` builds dead
//! letters in their original form, and reads the letters that return. `confirm_tracker` tracks unconfirmed messages,
//! and `retry_queue` keeps messages that the broker did not accept. `refusal_probe` finds out whether a channel must be
//! replaced, and `publish_warnings` logs why messages are not published. `produce` publishes a producer's events.
//!
//! This crate must never decide what happens to an event: the sequencer decides which deliveries are acknowledged, and
//! when.

mod broker_health;
mod confirm_tracker;
mod connect;
mod connect_attempt;
mod consumer;
mod consumer_options;
mod consumer_tag;
mod decode;
mod encode;
mod event_counts;
mod exchange;
mod exchange_fault;
mod fifo_queue;
mod greeting;
mod header;
mod held_messages;
mod inspect;
mod original_letter;
mod prefetch;
mod prepare;
mod produce;
mod publish;
mod publish_warnings;
mod queue_monitor;
mod raw_message;
mod refusal_probe;
mod restore_schedule;
mod retry_queue;
mod sample;
mod store_timeout;
mod subscription;
mod topology;
mod topology_gate;
mod topology_record;
mod unreadable;
mod unreadable_run;
mod value;
mod weight;

pub use broker_health::{BrokerStatus, watch_broker_health};
pub use connect::{BrokerEndpoint, BrokerError, BrokerLogin, RefusalCause};
pub use consumer::start;
pub use consumer_options::{ConsumerOptions, topology_throttle};
pub use consumer_tag::{CONSUMER_TAG_PREFIX, consumer_tag};
pub use decode::DeliveryDecoder;
pub use exchange_fault::ExchangeFault;
pub use inspect::inspect_broker;
pub use prefetch::LastPrefetch;
pub use prepare::{
    PREPARE_TIMEOUT, PreparedTopology, TopologyError, prepare_timeout, prepare_topology,
};
pub use produce::{ExchangeProducer, SequencedEvent};
pub use publish::{ExchangeSink, PublishedCount};
pub use sample::{SampledMessage, sample_queues};
pub use store_timeout::with_store_timeout;
pub use topology::{BindingList, Topology, no_delivery_limit_command};
pub use topology_gate::TopologyGate;
pub use topology_record::{Binding, BindingKind, TopologyRecord, unbind};
