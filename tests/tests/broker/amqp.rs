//! Tests of events from RabbitMQ and messages to RabbitMQ, with real servers that the tests kill, pause and change.

mod basic;
mod bind;
mod bindings;
mod cloudevents;
mod connect;
mod contact;
mod forms;
mod hostile;
mod letters;
mod links;
mod locations;
mod login_backend;
mod lost;
mod messages;
mod policies;
mod publish;
mod rebuilt;
mod records;
mod refused;
mod sink_connections;
mod stopped;
mod timeouts;
mod topology;
