//! Events from a broker, messages to one: real brokers, that are killed, paused and changed.

mod basic;
mod bind;
mod forms;
mod hostile;
mod letters;
mod lost;
mod messages;
mod publish;
mod refused;
mod timeouts;
