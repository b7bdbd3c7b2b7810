//! Tests of the embedded store: the conformance suite, and tests for this kind of store only.

mod damage;
mod expired_letters;
mod full;
mod letter_pages;
mod lost_files;
mod opening;
mod queue_records;
mod support;

use support::Rig;

ordain_tests::conformance_suite!(Rig::open());
