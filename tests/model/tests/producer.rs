//! Walks through all runs of the model of a producer, in scopes with few events. The store goes back in time: it loses
//! its newest writes. `docs/internals/protocol.md` describes the scopes.

use ordain_model::{
    ProducerFault, ProducerScope, ProducerViolation, RENUMBERED, WRITTEN_AGAIN, check_faults, walk,
};

fn goes_back() -> ProducerScope {
    ProducerScope { events: 4, rollbacks: 1, ..ProducerScope::default() }
}

fn library() -> ProducerScope {
    ProducerScope { is_library: true, rollbacks: 2, ..goes_back() }
}

fn goes_back_twice() -> ProducerScope {
    ProducerScope { events: 3, rollbacks: 2, ..goes_back() }
}

fn has_others() -> ProducerScope {
    ProducerScope { events: 3, other_events: 2, ..goes_back() }
}

fn forgets() -> ProducerScope {
    ProducerScope { forgotten: 1, ..goes_back() }
}

fn restarts() -> ProducerScope {
    ProducerScope { events: 3, restarts: 1, ..goes_back() }
}

fn has_reader() -> ProducerScope {
    ProducerScope { events: 3, has_reader: true, ..goes_back() }
}

fn library_has_reader() -> ProducerScope {
    ProducerScope { is_library: true, rollbacks: 2, ..has_reader() }
}

fn has_reader_and_others() -> ProducerScope {
    ProducerScope { events: 3, other_events: 1, ..has_reader() }
}

fn has_reader_and_restarts() -> ProducerScope {
    ProducerScope { restarts: 1, ..has_reader() }
}

type FaultCase = (ProducerFault, fn() -> ProducerScope, ProducerViolation);

const FAULTS: &[FaultCase] = &[
    (ProducerFault::NoWitnessIsNamed, goes_back, ProducerViolation::NumberReused),
    (ProducerFault::NoWitnessIsNamed, goes_back, ProducerViolation::OutOfOrder),
    (ProducerFault::NothingIsWrittenAgain, goes_back, ProducerViolation::Stuck),
    (ProducerFault::NothingIsChecked, library, ProducerViolation::Missing),
    (ProducerFault::NewestIsForgotten, forgets, ProducerViolation::NumberReused),
    (ProducerFault::CheckpointNamesNoWitness, restarts, ProducerViolation::Missing),
    (ProducerFault::CheckpointComparesNothing, restarts, ProducerViolation::Missing),
    (ProducerFault::RunNumberIsNotWritten, restarts, ProducerViolation::Missing),
    (ProducerFault::NewestCheckpointCounts, restarts, ProducerViolation::Missing),
    (ProducerFault::FileIsNotReadAgain, restarts, ProducerViolation::Missing),
    (ProducerFault::NothingIsRemembered, restarts, ProducerViolation::Duplicated),
    (ProducerFault::RepeatsAreRefused, has_reader, ProducerViolation::Stuck),
    (ProducerFault::NumbersFollowReader, has_reader, ProducerViolation::Duplicated),
    (
        ProducerFault::LostEventsGetOtherNumbers,
        has_reader_and_others,
        ProducerViolation::Duplicated,
    ),
];

#[test]
fn no_run_of_a_producer_breaks_a_rule() {
    walk("goes_back", &goes_back(), &[WRITTEN_AGAIN]);
    walk("library", &library(), &[WRITTEN_AGAIN]);
    walk("goes_back_twice", &goes_back_twice(), &[WRITTEN_AGAIN]);
    walk("has_others", &has_others(), &[WRITTEN_AGAIN]);
    walk("forgets", &forgets(), &[WRITTEN_AGAIN]);
    walk("restarts", &restarts(), &[WRITTEN_AGAIN]);
    walk("has_reader", &has_reader(), &[WRITTEN_AGAIN]);
    walk("library_has_reader", &library_has_reader(), &[WRITTEN_AGAIN]);
    walk("has_reader_and_others", &has_reader_and_others(), &[WRITTEN_AGAIN]);
    walk("has_reader_and_restarts", &has_reader_and_restarts(), &[WRITTEN_AGAIN, RENUMBERED]);
}

#[test]
fn every_fault_of_a_producer_is_found() {
    let cases = FAULTS.iter().map(|(fault, scope, broken)| {
        (*fault, ProducerScope { fault: Some(*fault), ..scope() }, broken.rule())
    });
    check_faults(&ProducerFault::ALL, cases);
}
