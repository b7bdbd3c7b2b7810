//! Tests of streams that receive their events from other streams. In most tests, the events pass through three streams
//! (stages) with the handler `plugins/ledger`.

mod damaged;
mod full_queue;
mod lost_messages;
mod one_process;
mod rollback;
mod support;
mod two_processes;
mod two_sinks;
