//! Walks through all runs of the model of a file source, in scopes with few events. The store goes back in time: it
//! loses its newest writes. `docs/internals/protocol.md` describes the scopes.

use ordain_model::{
    CheckpointFault, CheckpointScope, CheckpointViolation, READ_AGAIN, check_faults, walk,
};

fn goes_back() -> CheckpointScope {
    CheckpointScope { events: 4, rollbacks: 1, ..CheckpointScope::default() }
}

fn restarts() -> CheckpointScope {
    CheckpointScope { events: 3, restarts: 2, ..goes_back() }
}

fn goes_back_twice() -> CheckpointScope {
    CheckpointScope { events: 3, rollbacks: 2, restarts: 1, ..goes_back() }
}

fn has_letters() -> CheckpointScope {
    CheckpointScope { events: 2, dead: 1, restarts: 1, ..goes_back() }
}

type FaultCase = (CheckpointFault, fn() -> CheckpointScope, CheckpointViolation);

const FAULTS: &[FaultCase] = &[
    (CheckpointFault::NoCommitIsNamed, restarts, CheckpointViolation::Missing),
    (CheckpointFault::OneCommitIsNamed, restarts, CheckpointViolation::Missing),
    (CheckpointFault::OldCheckpointStays, restarts, CheckpointViolation::Missing),
    (CheckpointFault::OpenEventsAreCovered, restarts, CheckpointViolation::Missing),
    (CheckpointFault::LostCommitsAreDropped, goes_back, CheckpointViolation::Missing),
    (CheckpointFault::LostClaimIsKept, goes_back, CheckpointViolation::Stuck),
    (CheckpointFault::SettledEventsAreExecuted, restarts, CheckpointViolation::Duplicated),
    (CheckpointFault::LettersAreNotRepeated, has_letters, CheckpointViolation::NoLetter),
    (CheckpointFault::LettersAreRemovedEarly, has_letters, CheckpointViolation::NoLetter),
];

#[test]
fn no_run_of_a_file_source_breaks_a_rule() {
    walk("goes_back", &goes_back(), &[READ_AGAIN]);
    walk("restarts", &restarts(), &[READ_AGAIN]);
    walk("goes_back_twice", &goes_back_twice(), &[READ_AGAIN]);
    walk("has_letters", &has_letters(), &[READ_AGAIN]);
}

#[test]
fn every_fault_of_a_checkpoint_is_found() {
    let cases = FAULTS.iter().map(|(fault, scope, broken)| {
        (*fault, CheckpointScope { fault: Some(*fault), ..scope() }, broken.rule())
    });
    check_faults(&CheckpointFault::ALL, cases);
}
