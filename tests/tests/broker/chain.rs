//! Tests of streams that receive their events from other streams. The events pass through three streams (stages) with
//! the handler `plugins/ledger`.

mod damaged;
mod lost_messages;
mod one_process;
mod rollback;
mod support;
mod two_processes;
mod two_sinks;
