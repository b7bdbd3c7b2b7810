//! Tests of events from a broker and messages to a broker. The brokers are real; tests kill, pause and
//! change them.

mod basic;
mod bind;
mod connect;
mod forms;
mod hostile;
mod letters;
mod links;
mod lost;
mod messages;
mod publish;
mod refused;
mod stopped;
mod timeouts;
mod topology;
