//! Walks through all runs of a file source and a store that goes back in time, with few events.
//! `docs/internals/protocol.md` describes the scopes.

use ordain_model::{CheckpointBroken, CheckpointFault, CheckpointScope, READ_AGAIN, breaks, walk};

fn goes_back() -> CheckpointScope {
    CheckpointScope { events: 4, rewinds: 1, ..CheckpointScope::default() }
}

fn restarts() -> CheckpointScope {
    CheckpointScope { events: 3, restarts: 2, ..goes_back() }
}

fn goes_back_twice() -> CheckpointScope {
    CheckpointScope { events: 3, rewinds: 2, restarts: 1, ..goes_back() }
}

fn has_letters() -> CheckpointScope {
    CheckpointScope { events: 2, dead: 1, restarts: 1, ..goes_back() }
}

/// A fault, a scope, and the rule that the fault breaks in the runs of this scope.
type Break = (CheckpointFault, fn() -> CheckpointScope, CheckpointBroken);

const FAULTS: &[Break] = &[
    (CheckpointFault::NoCommitIsNamed, restarts, CheckpointBroken::Missing),
    (CheckpointFault::OneCommitIsNamed, restarts, CheckpointBroken::Missing),
    (CheckpointFault::OldCheckpointStays, restarts, CheckpointBroken::Missing),
    (CheckpointFault::OpenEventsAreCovered, restarts, CheckpointBroken::Missing),
    (CheckpointFault::LostCommitsAreDropped, goes_back, CheckpointBroken::Missing),
    (CheckpointFault::LettersAreNotRepeated, has_letters, CheckpointBroken::NoLetter),
    (CheckpointFault::LettersAreRemovedEarly, has_letters, CheckpointBroken::NoLetter),
];

#[test]
fn checkpoints() {
    walk("goes_back", &goes_back(), &[READ_AGAIN]);
    walk("restarts", &restarts(), &[READ_AGAIN]);
    walk("goes_back_twice", &goes_back_twice(), &[READ_AGAIN]);
    walk("has_letters", &has_letters(), &[READ_AGAIN]);
}

#[test]
fn every_fault_of_a_checkpoint_is_found() {
    assert_eq!(FAULTS.len(), CheckpointFault::ALL.len());
    for (fault, scope, broken) in FAULTS {
        breaks(fault, &CheckpointScope { fault: Some(*fault), ..scope() }, broken.rule());
    }
}
