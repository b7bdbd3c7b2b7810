//! Walks through all runs of the model of a queue, in scopes with few entries. The store goes back in time: it loses
//! its newest writes. `docs/internals/protocol.md` describes the scopes.

use ordain_model::{
    CALL_REPEATED, COUNTED_WITHOUT_READER, ENTRY_LOST, PART_WRITTEN_AGAIN, PUBLISHED_AND_LOST,
    QueueFault, QueueScope, QueueViolation, check_faults, walk,
};

fn goes_back() -> QueueScope {
    QueueScope { calls: 2, rollbacks: 1, ..QueueScope::default() }
}

fn goes_back_twice() -> QueueScope {
    QueueScope { calls: 3, rollbacks: 2, ..QueueScope::default() }
}

fn has_others() -> QueueScope {
    QueueScope { has_other_writers: true, rollbacks: 2, ..goes_back() }
}

fn restarts() -> QueueScope {
    QueueScope { restarts: 1, rollbacks: 2, ..goes_back() }
}

fn two_shards() -> QueueScope {
    QueueScope { shared_calls: 1, ..goes_back() }
}

/// Returns a scope in which the queue is an inbox: the reader publishes the entries, and commits nothing.
fn inbox() -> QueueScope {
    QueueScope { is_inbox: true, restarts: 1, ..goes_back() }
}

/// Returns a scope in which all writers are in a process without a reader.
fn another_reader() -> QueueScope {
    QueueScope { has_only_other_writers: true, ..goes_back() }
}

type FaultCase = (QueueFault, fn() -> QueueScope, QueueViolation);

const FAULTS: &[FaultCase] = &[
    (QueueFault::ReadsByNumber, goes_back, QueueViolation::Stuck),
    (QueueFault::RemovesByNumber, goes_back, QueueViolation::RemovedTooEarly),
    (QueueFault::RemovesWithoutCommit, goes_back, QueueViolation::RemovedTooEarly),
    (QueueFault::ForgetsDeliveries, goes_back, QueueViolation::DeliveredTwice),
    (QueueFault::DropsLostCommits, goes_back, QueueViolation::NoEffect),
    (QueueFault::IgnoresLostRemovals, goes_back, QueueViolation::SettledNotRemoved),
    (QueueFault::HistoriesAreEqual, goes_back, QueueViolation::RemovedTooEarly),
    (QueueFault::ExpectsNothing, goes_back, QueueViolation::WrongLossCount),
    (QueueFault::ReportsLate, goes_back, QueueViolation::WrongLossCount),
    (QueueFault::AnswersWithoutCheck, two_shards, QueueViolation::AnsweredCallLost),
    (QueueFault::AnswersWithoutLastRead, two_shards, QueueViolation::AnsweredCallLost),
    (QueueFault::ComparesPositions, two_shards, QueueViolation::AnsweredCallLost),
    (QueueFault::RecordsSeparately, two_shards, QueueViolation::AnsweredCallLost),
    (QueueFault::RemovesByNumber, inbox, QueueViolation::RemovedTooEarly),
    (QueueFault::RemovesBeforePublishing, inbox, QueueViolation::RemovedTooEarly),
    (QueueFault::PublishesNewestFirst, inbox, QueueViolation::OutOfOrder),
    (QueueFault::ForgetsDeliveries, inbox, QueueViolation::DeliveredTwice),
    (QueueFault::ExpectsNothing, inbox, QueueViolation::WrongLossCount),
    (QueueFault::RecordsSeparately, another_reader, QueueViolation::LossNotCounted),
    (QueueFault::RecordsRefusedCalls, another_reader, QueueViolation::LossNotCounted),
    (QueueFault::RefusesRepeats, another_reader, QueueViolation::LossNotCounted),
    (QueueFault::ComparesNewCalls, another_reader, QueueViolation::PresentCountedAsLost),
    (QueueFault::ForgetsWaitingCalls, another_reader, QueueViolation::LossNotCounted),
];

#[test]
fn no_run_of_a_queue_breaks_a_rule() {
    walk("goes_back", &goes_back(), &[ENTRY_LOST]);
    walk("goes_back_twice", &goes_back_twice(), &[ENTRY_LOST]);
    walk("has_others", &has_others(), &[ENTRY_LOST]);
    walk("restarts", &restarts(), &[ENTRY_LOST]);
    walk("two_shards", &two_shards(), &[ENTRY_LOST, PART_WRITTEN_AGAIN]);
}

/// The reader of an inbox publishes, in order, all entries that the store has not lost. The reader counts each entry
/// that the store lost before the reader read it.
#[test]
fn no_run_of_an_inbox_breaks_a_rule() {
    walk("inbox", &inbox(), &[ENTRY_LOST, PUBLISHED_AND_LOST]);
}

/// A process without a reader counts each event that the store loses before another process has removed the event. The
/// process counts no event that the store still has.
#[test]
fn no_run_of_a_queue_with_another_reader_breaks_a_rule() {
    walk("another_reader", &another_reader(), &[COUNTED_WITHOUT_READER, CALL_REPEATED]);
}

#[test]
fn every_fault_of_a_queue_is_found() {
    let cases = FAULTS.iter().map(|(fault, scope, broken)| {
        (*fault, QueueScope { fault: Some(*fault), ..scope() }, broken.rule())
    });
    check_faults(&QueueFault::ALL, cases);
}
