//! Walks through all runs of the chain model. An owner sends a few messages from its outbox to a destination that
//! numbers them. The store goes back in time (loses its newest writes). `docs/internals/protocol.md` describes the
//! scopes.

use ordain_model::{
    ChainFault, ChainScope, ChainShards, ChainViolation, RESENT, check_faults, walk,
};

fn goes_back() -> ChainScope {
    let rollback_choices = vec![ChainShards::Source, ChainShards::Destination, ChainShards::Both];
    ChainScope { commits: 2, rollback_choices, rollbacks: 1, ..ChainScope::default() }
}

fn goes_back_twice() -> ChainScope {
    ChainScope { rollbacks: 2, ..goes_back() }
}

fn loses_answers() -> ChainScope {
    ChainScope { loses_answers: true, ..goes_back() }
}

fn forgets() -> ChainScope {
    ChainScope { forgotten: 1, ..goes_back() }
}

fn has_others() -> ChainScope {
    ChainScope {
        other_messages: 2,
        rollback_choices: vec![ChainShards::Destination],
        ..goes_back()
    }
}

fn restarts() -> ChainScope {
    ChainScope { restarts: 1, ..goes_back() }
}

fn has_late_calls() -> ChainScope {
    ChainScope { rollbacks: 0, restarts: 1, ..loses_answers() }
}

type FaultCase = (ChainFault, fn() -> ChainScope, ChainViolation);

const FAULTS: &[FaultCase] = &[
    (ChainFault::CommitsAreNotAwaited, goes_back, ChainViolation::SentWithoutCommit),
    (ChainFault::LostMessagesAreDropped, goes_back, ChainViolation::WrongResendCount),
    (ChainFault::LostMessagesGetNewNumbers, has_others, ChainViolation::NumberChanged),
    (ChainFault::NewestIsForgotten, goes_back, ChainViolation::Missing),
    (ChainFault::NothingIsChecked, goes_back, ChainViolation::Missing),
    (ChainFault::NoPositionIsNamed, goes_back, ChainViolation::Missing),
    (ChainFault::DestinationComparesNothing, goes_back, ChainViolation::Missing),
    (ChainFault::TakenNumbersAreAssigned, has_others, ChainViolation::NumberReused),
    (ChainFault::NumbersGoBack, has_others, ChainViolation::OutOfOrder),
    (ChainFault::LaterNumbersGoBack, has_others, ChainViolation::OutOfOrder),
    (ChainFault::NothingIsRemembered, restarts, ChainViolation::Duplicated),
    (ChainFault::DoneBeforeDurable, goes_back, ChainViolation::DoneButInOutbox),
    (ChainFault::LostMessagesAreDone, loses_answers, ChainViolation::Stuck),
    (ChainFault::RepeatedMessagesAreNotRemoved, goes_back, ChainViolation::DoneButInOutbox),
    (ChainFault::LostCommitsAreRemembered, restarts, ChainViolation::MessageMistaken),
    (ChainFault::LostCommitsStayInMixedBlocks, restarts, ChainViolation::MessageMistaken),
    (ChainFault::LateCallsAreNew, loses_answers, ChainViolation::Duplicated),
    (ChainFault::OlderOwnerIsAccepted, has_late_calls, ChainViolation::Duplicated),
];

#[test]
fn no_run_of_a_chain_breaks_a_rule() {
    walk("goes_back", &goes_back(), &[RESENT]);
    walk("goes_back_twice", &goes_back_twice(), &[RESENT]);
    walk("loses_answers", &loses_answers(), &[RESENT]);
    walk("forgets", &forgets(), &[RESENT]);
    walk("has_others", &has_others(), &[RESENT]);
    walk("restarts", &restarts(), &[RESENT]);
    walk("has_late_calls", &has_late_calls(), &[]);
}

#[test]
fn every_fault_of_a_chain_is_found() {
    let cases = FAULTS.iter().map(|(fault, scope, broken)| {
        (*fault, ChainScope { fault: Some(*fault), ..scope() }, broken.rule())
    });
    check_faults(&ChainFault::ALL, cases);
}
