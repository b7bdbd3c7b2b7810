//! Tests of events that arrive over HTTP.

mod answers;
mod clock;
mod http_source;
mod in_turn;
mod inbox;
mod incidents;
mod lost_commits;
mod names;
mod order_after_rollback;
mod pair;
mod removed;
mod repeats;
mod rollback;
mod stopped;
mod suite;
mod support;
mod takeover;
mod unavailable_store;
