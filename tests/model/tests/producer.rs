//! Walks through all runs of a producer and a store that goes back in time, with few events.
//! `docs/internals/protocol.md` describes the scopes.

use ordain_model::{ProducerBroken, ProducerFault, ProducerScope, WRITTEN_AGAIN, breaks, walk};

fn goes_back() -> ProducerScope {
    ProducerScope { events: 4, rewinds: 1, ..ProducerScope::default() }
}

fn library() -> ProducerScope {
    ProducerScope { is_library: true, rewinds: 2, ..goes_back() }
}

fn goes_back_twice() -> ProducerScope {
    ProducerScope { events: 3, rewinds: 2, ..goes_back() }
}

fn has_others() -> ProducerScope {
    ProducerScope { events: 3, others: 2, ..goes_back() }
}

fn forgets() -> ProducerScope {
    ProducerScope { forgotten: 1, ..goes_back() }
}

fn restarts() -> ProducerScope {
    ProducerScope { events: 3, restarts: 1, ..goes_back() }
}

/// A fault, a scope, and the rule that the fault breaks in the runs of this scope.
type Break = (ProducerFault, fn() -> ProducerScope, ProducerBroken);

const FAULTS: &[Break] = &[
    (ProducerFault::NoWitnessIsNamed, goes_back, ProducerBroken::OneNumberTwice),
    (ProducerFault::NothingIsWrittenAgain, goes_back, ProducerBroken::Stuck),
    (ProducerFault::NothingIsChecked, library, ProducerBroken::Missing),
    (ProducerFault::NewestIsForgotten, forgets, ProducerBroken::OneNumberTwice),
    (ProducerFault::CheckpointNamesNoWitness, restarts, ProducerBroken::Missing),
    (ProducerFault::CheckpointComparesNothing, restarts, ProducerBroken::Missing),
    (ProducerFault::RunIsNotMarked, restarts, ProducerBroken::Missing),
    (ProducerFault::NewestCheckpointCounts, restarts, ProducerBroken::Missing),
    (ProducerFault::FileIsNotReadAgain, restarts, ProducerBroken::Missing),
    (ProducerFault::NothingIsKnown, restarts, ProducerBroken::Twice),
];

#[test]
fn producers() {
    walk("goes_back", &goes_back(), &[WRITTEN_AGAIN]);
    walk("library", &library(), &[WRITTEN_AGAIN]);
    walk("goes_back_twice", &goes_back_twice(), &[WRITTEN_AGAIN]);
    walk("has_others", &has_others(), &[WRITTEN_AGAIN]);
    walk("forgets", &forgets(), &[WRITTEN_AGAIN]);
    walk("restarts", &restarts(), &[WRITTEN_AGAIN]);
}

#[test]
fn every_fault_of_a_producer_is_found() {
    assert_eq!(FAULTS.len(), ProducerFault::ALL.len());
    for (fault, scope, broken) in FAULTS {
        breaks(fault, &ProducerScope { fault: Some(*fault), ..scope() }, broken.rule());
    }
}
