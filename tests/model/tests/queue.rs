//! Walks through all runs of a queue in a store that goes back in time, with few entries.
//! `docs/internals/protocol.md` describes the scopes.

use ordain_model::{
    ENTRY_LOST, PART_WRITTEN_AGAIN, QueueBroken, QueueFault, QueueScope, breaks, walk,
};

fn goes_back() -> QueueScope {
    QueueScope { calls: 2, rewinds: 1, ..QueueScope::default() }
}

fn goes_back_twice() -> QueueScope {
    QueueScope { calls: 3, rewinds: 2, ..QueueScope::default() }
}

fn has_others() -> QueueScope {
    QueueScope { has_others: true, rewinds: 2, ..goes_back() }
}

fn restarts() -> QueueScope {
    QueueScope { restarts: 1, rewinds: 2, ..goes_back() }
}

/// A call writes to two shards, and one of them goes back.
fn two_shards() -> QueueScope {
    QueueScope { shared_calls: 1, ..goes_back() }
}

/// A fault, a scope, and the rule that it breaks there.
type Break = (QueueFault, fn() -> QueueScope, QueueBroken);

const FAULTS: &[Break] = &[
    (QueueFault::ReadsByNumber, goes_back, QueueBroken::Stuck),
    (QueueFault::RemovesByNumber, goes_back, QueueBroken::RemovedTooEarly),
    (QueueFault::RemovesWithoutCommit, goes_back, QueueBroken::RemovedTooEarly),
    (QueueFault::ForgetsWhatItDelivered, goes_back, QueueBroken::DeliveredTwice),
    (QueueFault::HistoriesAreAlike, goes_back, QueueBroken::RemovedTooEarly),
    (QueueFault::ExpectsNothing, goes_back, QueueBroken::WrongCount),
    (QueueFault::AnswersWithoutCheck, two_shards, QueueBroken::AnsweredLost),
    (QueueFault::ComparesPositions, two_shards, QueueBroken::AnsweredLost),
];

#[test]
fn queues() {
    walk("goes_back", &goes_back(), &[ENTRY_LOST]);
    walk("goes_back_twice", &goes_back_twice(), &[ENTRY_LOST]);
    walk("has_others", &has_others(), &[ENTRY_LOST]);
    walk("restarts", &restarts(), &[ENTRY_LOST]);
    walk("two_shards", &two_shards(), &[ENTRY_LOST, PART_WRITTEN_AGAIN]);
}

#[test]
fn every_fault_of_a_queue_is_found() {
    for (fault, scope, broken) in FAULTS {
        breaks(fault, &QueueScope { fault: Some(*fault), ..scope() }, broken.rule());
    }
}
