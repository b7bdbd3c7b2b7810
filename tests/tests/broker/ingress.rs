//! Tests of events that arrive over HTTP.

mod clock;
mod http_source;
mod inbox;
mod incidents;
mod lost_commits;
mod pair;
mod rollback;
mod stopped;
mod support;
