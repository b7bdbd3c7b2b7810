//! Walks through all runs of the chain model: an outbox sends a few numbered messages, and the store goes back in time.
//! `docs/internals/protocol.md` describes the scopes.

use ordain_model::{ChainBroken, ChainFault, ChainPlaces, ChainScope, GIVEN_AGAIN, breaks, walk};

fn goes_back() -> ChainScope {
    let places = vec![ChainPlaces::Source, ChainPlaces::Destination, ChainPlaces::Both];
    ChainScope { commits: 2, places, rewinds: 1, ..ChainScope::default() }
}

fn goes_back_twice() -> ChainScope {
    ChainScope { rewinds: 2, ..goes_back() }
}

fn loses_answers() -> ChainScope {
    ChainScope { loses_answers: true, ..goes_back() }
}

fn forgets() -> ChainScope {
    ChainScope { forgotten: 1, ..goes_back() }
}

fn has_others() -> ChainScope {
    ChainScope { others: 2, places: vec![ChainPlaces::Destination], ..goes_back() }
}

fn restarts() -> ChainScope {
    ChainScope { restarts: 1, ..goes_back() }
}

fn has_late_calls() -> ChainScope {
    ChainScope { rewinds: 0, restarts: 1, ..loses_answers() }
}

/// A fault, a scope, and the rule that the fault breaks in the runs of this scope.
type Break = (ChainFault, fn() -> ChainScope, ChainBroken);

const FAULTS: &[Break] = &[
    (ChainFault::CommitsAreNotAwaited, goes_back, ChainBroken::WithoutCommit),
    (ChainFault::LostPartsAreDropped, goes_back, ChainBroken::WrongCount),
    (ChainFault::LostPartsGetNewNumbers, has_others, ChainBroken::NumberChanged),
    (ChainFault::NewestIsForgotten, goes_back, ChainBroken::Missing),
    (ChainFault::NothingIsChecked, goes_back, ChainBroken::Missing),
    (ChainFault::NoPlaceIsNamed, goes_back, ChainBroken::Missing),
    (ChainFault::DestinationComparesNothing, goes_back, ChainBroken::Missing),
    (ChainFault::TakenNumbersAreGiven, has_others, ChainBroken::OneNumberTwice),
    (ChainFault::NumbersGoBack, has_others, ChainBroken::OutOfOrder),
    (ChainFault::LaterNumbersGoBack, has_others, ChainBroken::OutOfOrder),
    (ChainFault::NothingIsKnown, restarts, ChainBroken::Twice),
    (ChainFault::DoneBeforeDurable, goes_back, ChainBroken::DoneComesBack),
    (ChainFault::LostPartsAreDone, loses_answers, ChainBroken::Stuck),
    (ChainFault::RepeatedCommitsAreNotMarked, goes_back, ChainBroken::DoneComesBack),
    (ChainFault::LostCommitsStayKnown, restarts, ChainBroken::AnotherMessage),
    (ChainFault::LostCommitsStayInMixedBlocks, restarts, ChainBroken::AnotherMessage),
    (ChainFault::LateCallsAreNew, loses_answers, ChainBroken::Twice),
    (ChainFault::OlderOwnerIsAccepted, has_late_calls, ChainBroken::Twice),
];

#[test]
fn chains() {
    walk("goes_back", &goes_back(), &[GIVEN_AGAIN]);
    walk("goes_back_twice", &goes_back_twice(), &[GIVEN_AGAIN]);
    walk("loses_answers", &loses_answers(), &[GIVEN_AGAIN]);
    walk("forgets", &forgets(), &[GIVEN_AGAIN]);
    walk("has_others", &has_others(), &[GIVEN_AGAIN]);
    walk("restarts", &restarts(), &[GIVEN_AGAIN]);
    walk("has_late_calls", &has_late_calls(), &[]);
}

#[test]
fn every_fault_of_a_chain_is_found() {
    assert_eq!(FAULTS.len(), ChainFault::ALL.len());
    for (fault, scope, broken) in FAULTS {
        breaks(fault, &ChainScope { fault: Some(*fault), ..scope() }, broken.rule());
    }
}
