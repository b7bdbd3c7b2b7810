//! Walks through all runs of the model of a file sink, in scopes with few events. In most scopes, the store also goes
//! back in time: an operator restores an older copy of the store. `docs/internals/protocol.md` describes the scopes.

use ordain_model::{
    LINE_LOST, MESSAGE_SKIPPED, SinkFileFault, SinkFileScope, SinkFileViolation, check_faults, walk,
};

fn is_killed() -> SinkFileScope {
    SinkFileScope { events: 2, contents: 1, kills: 3, ..SinkFileScope::default() }
}

fn goes_back() -> SinkFileScope {
    SinkFileScope { contents: 2, copies: 1, restores: 1, kills: 2, ..is_killed() }
}

fn goes_back_twice() -> SinkFileScope {
    SinkFileScope { copies: 2, restores: 2, ..goes_back() }
}

type FaultCase = (SinkFileFault, fn() -> SinkFileScope, SinkFileViolation);

const FAULTS: &[FaultCase] = &[
    (SinkFileFault::LinesAreRemoved, goes_back, SinkFileViolation::Removed),
    (SinkFileFault::UnpublishedLinesAreRemoved, goes_back, SinkFileViolation::Missing),
    (SinkFileFault::NoMarkAtStart, is_killed, SinkFileViolation::Duplicated),
    (SinkFileFault::StartDoesNotSync, goes_back, SinkFileViolation::Duplicated),
    (SinkFileFault::LinesAreNotWrittenAgain, is_killed, SinkFileViolation::Missing),
    (SinkFileFault::MarkIsSeparate, is_killed, SinkFileViolation::Duplicated),
    (SinkFileFault::RemovedBeforeSync, is_killed, SinkFileViolation::Missing),
    (SinkFileFault::KeptLinesAreRepeated, goes_back, SinkFileViolation::Duplicated),
    (SinkFileFault::KeptRangeIsForgotten, goes_back, SinkFileViolation::Duplicated),
    (SinkFileFault::OnlyIdsAreCompared, goes_back_twice, SinkFileViolation::Missing),
    (SinkFileFault::OnlyLastLineIsCompared, goes_back_twice, SinkFileViolation::Duplicated),
];

#[test]
fn no_run_of_a_file_sink_breaks_a_rule() {
    walk("is_killed", &is_killed(), &[MESSAGE_SKIPPED]);
    walk("goes_back", &goes_back(), &[LINE_LOST, MESSAGE_SKIPPED]);
    walk("goes_back_twice", &goes_back_twice(), &[LINE_LOST, MESSAGE_SKIPPED]);
}

#[test]
fn every_fault_of_a_file_sink_is_found() {
    let cases = FAULTS.iter().map(|(fault, scope, broken)| {
        (*fault, SinkFileScope { fault: Some(*fault), ..scope() }, broken.rule())
    });
    check_faults(&SinkFileFault::ALL, cases);
}
