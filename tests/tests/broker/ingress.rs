//! Tests of events over HTTP.

mod alone;
mod clock;
mod inbox;
mod incidents;
mod lost_commits;
mod pair;
mod support;
mod went_back;
