//! Tests of several processes that share the streams of one store.

mod hand_over;
mod rebuilt;
mod split;
mod stale;
mod support;
