//! Tests of events that arrive over HTTP.

mod alone;
mod clock;
mod inbox;
mod incidents;
mod lost_commits;
mod pair;
mod support;
mod went_back;
