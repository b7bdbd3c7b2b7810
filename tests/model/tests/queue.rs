//! Walks through all runs of a queue in a store that goes back in time, with few entries.
//! `docs/internals/protocol.md` describes the scopes.

use ordain_model::{
    CALL_REPEATED, COUNTED_ELSEWHERE, ENTRY_LOST, PART_WRITTEN_AGAIN, PUBLISHED_AND_LOST,
    QueueBroken, QueueFault, QueueScope, breaks, walk,
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

/// Returns a scope in which a call writes to two shards, and one of the shards goes back.
fn two_shards() -> QueueScope {
    QueueScope { shared_calls: 1, ..goes_back() }
}

/// Returns a scope in which the queue is an inbox: the reader publishes the entries, and commits nothing.
fn inbox() -> QueueScope {
    QueueScope { is_inbox: true, restarts: 1, ..goes_back() }
}

/// Returns a scope in which all writers are in a process without a reader.
fn another_reader() -> QueueScope {
    QueueScope { has_only_others: true, ..goes_back() }
}

/// A fault, a scope, and the rule that the fault breaks in the runs of this scope.
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
    (QueueFault::RecordsApart, two_shards, QueueBroken::AnsweredLost),
    (QueueFault::RemovesByNumber, inbox, QueueBroken::RemovedTooEarly),
    (QueueFault::RemovesBeforePublishing, inbox, QueueBroken::RemovedTooEarly),
    (QueueFault::PublishesNewestFirst, inbox, QueueBroken::OutOfOrder),
    (QueueFault::ForgetsWhatItDelivered, inbox, QueueBroken::DeliveredTwice),
    (QueueFault::ExpectsNothing, inbox, QueueBroken::WrongCount),
    (QueueFault::RecordsApart, another_reader, QueueBroken::NotCounted),
    (QueueFault::RecordsRefusedCalls, another_reader, QueueBroken::NotCounted),
    (QueueFault::RefusesRepeats, another_reader, QueueBroken::NotCounted),
    (QueueFault::ComparesNewCalls, another_reader, QueueBroken::CountedPresent),
    (QueueFault::ForgetsWaitingCalls, another_reader, QueueBroken::NotCounted),
];

#[test]
fn queues() {
    walk("goes_back", &goes_back(), &[ENTRY_LOST]);
    walk("goes_back_twice", &goes_back_twice(), &[ENTRY_LOST]);
    walk("has_others", &has_others(), &[ENTRY_LOST]);
    walk("restarts", &restarts(), &[ENTRY_LOST]);
    walk("two_shards", &two_shards(), &[ENTRY_LOST, PART_WRITTEN_AGAIN]);
}

/// The reader of an inbox publishes, in order, all entries that the store has not lost. The reader counts each entry
/// that the store lost before the reader read it.
#[test]
fn inboxes() {
    walk("inbox", &inbox(), &[ENTRY_LOST, PUBLISHED_AND_LOST]);
}

/// A process without a reader counts each event that the store loses before another process removes it, and no event
/// that the store still has.
#[test]
fn queues_with_another_reader() {
    walk("another_reader", &another_reader(), &[COUNTED_ELSEWHERE, CALL_REPEATED]);
}

#[test]
fn every_fault_of_a_queue_is_found() {
    for (fault, scope, broken) in FAULTS {
        breaks(fault, &QueueScope { fault: Some(*fault), ..scope() }, broken.rule());
    }
}
