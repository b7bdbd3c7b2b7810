//! Tests of events over HTTP.

mod alone;
mod inbox;
mod incidents;
mod pair;
mod support;
mod went_back;
