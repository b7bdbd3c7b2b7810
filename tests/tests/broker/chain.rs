//! Tests of streams that receive their events from other streams: the events of `plugins/ledger` through three stages.

mod damaged;
mod lost_messages;
mod one_process;
mod support;
mod two_processes;
mod two_sinks;
mod went_back;
