//! Tests of streams that feed each other: the events of `plugins/ledger` through three stages.

mod damaged;
mod one_process;
mod support;
mod two_processes;
mod two_sinks;
mod went_back;
