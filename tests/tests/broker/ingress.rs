//! Tests of events that arrive over HTTP.

mod answers;
mod clock;
mod http_source;
mod inbox;
mod incidents;
mod lost_commits;
mod pair;
mod rollback;
mod stopped;
mod support;
