//! Tests of events over HTTP.

mod alone;
mod inbox;
mod pair;
mod support;
mod went_back;
