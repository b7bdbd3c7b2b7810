//! Walks through all runs of a queue in a store that goes back in time, with few entries.
//! `docs/internals/protocol.md` describes the scopes.

use ordain_model::{Broken, LOST, QueueFault, QueueScope, breaks, walk};

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

/// A fault, a scope, and the rule that it breaks there.
type Break = (QueueFault, fn() -> QueueScope, Broken);

const FAULTS: &[Break] = &[
    (QueueFault::ReadsByNumber, goes_back, Broken::Stuck),
    (QueueFault::RemovesByNumber, goes_back, Broken::RemovedTooEarly),
    (QueueFault::RemovesWithoutCommit, goes_back, Broken::RemovedTooEarly),
    (QueueFault::ForgetsWhatItDelivered, goes_back, Broken::DeliveredTwice),
    (QueueFault::HistoriesAreAlike, goes_back, Broken::RemovedTooEarly),
    (QueueFault::ExpectsNothing, goes_back, Broken::WrongCount),
];

#[test]
fn queues() {
    walk("goes_back", &goes_back(), &[LOST]);
    walk("goes_back_twice", &goes_back_twice(), &[LOST]);
    walk("has_others", &has_others(), &[LOST]);
    walk("restarts", &restarts(), &[LOST]);
}

#[test]
fn every_fault_of_a_queue_is_found() {
    for (fault, scope, broken) in FAULTS {
        breaks(fault, &QueueScope { fault: Some(*fault), ..scope() }, broken.rule());
    }
}
