//! What the tests of the whole have in common.

pub mod conformance;
