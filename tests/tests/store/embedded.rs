//! The embedded store: the conformance suite, and what only it can go through.

mod damage;
mod full;
mod opening;
mod support;

use support::Rig;

ordain_tests::conformance_suite!(Rig::open());
