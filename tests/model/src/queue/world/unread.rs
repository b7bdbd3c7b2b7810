//! A process that puts entries into the queue, but has no reader. To count lost events, the process compares its calls
//! with the record of its writer in the store. The comparison is the product's own code ([`UnreadRuns`]).

use std::collections::BTreeSet;

use ordain_core::{QueueRun, UnreadRuns, WriterCalls};

use super::super::QueueFault;
use super::super::store::{Store, Writer};
use super::{QueueWorld, State};

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct UnreadProcess {
    /// The answered calls that the process still has to check.
    runs: UnreadRuns,
    /// The highest number that the process has used for a call.
    last_call: u64,
    /// The number of a refused call. The next call gets this number.
    unused: Option<u64>,
    unanswered: Option<UnansweredCall>,
    /// The record that the store has returned, but that the process has not compared with its calls yet.
    reply: Option<Reply>,
    /// The events of answered calls, each as the ids of its entries. The event of a repeated call has two entries.
    events: BTreeSet<Vec<u64>>,
    /// The entries of this process that a reader has removed from the queue.
    removed: BTreeSet<u64>,
    pub(super) counted: u64,
}

/// A call whose answer was lost, with the ids of its entry: one id for each time that the store wrote the entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct UnansweredCall {
    number: u64,
    ids: Vec<u64>,
}

/// The store's reply to a request for the record of the calls.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Reply {
    /// The calls that the process still had to check when it sent the request.
    requested: BTreeSet<u64>,
    stored: BTreeSet<u64>,
    /// The number of the first entry in the queue.
    first: u64,
}

impl UnreadProcess {
    pub(super) fn take_number(&mut self) -> u64 {
        let number = self.unused.take().unwrap_or(self.last_call + 1);
        self.last_call = self.last_call.max(number);
        number
    }

    pub(super) fn accept(&mut self, run: QueueRun, events: impl Iterator<Item = Vec<u64>>) {
        self.runs.add(run, 0);
        self.events.extend(events);
    }

    pub(super) fn record_removal(&mut self, removed_ids: &BTreeSet<u64>) {
        let Self { events, unanswered, removed, .. } = self;
        let repeatable = unanswered.iter().flat_map(|call| &call.ids);
        removed.extend(
            events.iter().flatten().chain(repeatable).filter(|id| removed_ids.contains(*id)),
        );
    }

    /// Returns the number of events that the store has lost, and how many of them were never removed from the queue.
    pub(super) fn lost_events(&self, store: &Store) -> (u64, u64) {
        let is_lost = |ids: &&Vec<u64>| !ids.iter().any(|id| store.has_entry(*id));
        let lost: Vec<_> = self.events.iter().filter(is_lost).collect();
        let is_removed = |ids: &Vec<u64>| ids.iter().any(|id| self.removed.contains(id));
        let unread = lost.iter().filter(|ids| !is_removed(ids)).count();
        (lost.len() as u64, unread as u64)
    }

    pub(super) fn has_repeated_call(&self) -> bool {
        self.events.iter().any(|ids| ids.len() > 1)
    }
}

impl QueueWorld {
    pub(super) fn put_unanswered(&mut self) {
        if self.state.unread.unanswered.is_none() {
            let (QueueRun { call, .. }, ids) = self.write(1, Writer::Other);
            self.state.unread.unanswered = Some(UnansweredCall { number: call, ids });
        }
    }

    /// In this queue, events have no sequences. Therefore the store does not recognise the repeated event, and writes a
    /// second entry of it.
    pub(super) fn repeat_put(&mut self) {
        let Some(mut call) = self.state.unread.unanswered.take() else { return };
        let (run, ids) = self.write_call(1, Writer::Other, call.number);
        call.ids.extend(ids);
        self.state.unread.accept(run, [call.ids].into_iter());
        self.counts.repeated += 1;
    }

    /// Refuses a call because the queue is full: a repetition of the call whose answer was lost, or a new call if no
    /// answer was lost. The next call gets the number of the refused call. Does not refuse a repeated call that the
    /// record of the writer contains.
    pub(super) fn refuse(&mut self) {
        let records_refused_calls = self.is(QueueFault::RecordsRefusedCalls);
        let refuses_repeats = self.is(QueueFault::RefusesRepeats);
        let State { store, unread, .. } = &mut self.state;
        let number = match &unread.unanswered {
            None => unread.unused.unwrap_or(unread.last_call + 1),
            Some(call) => {
                let is_known = store.record(Writer::Other).contains(&call.number);
                if is_known && !refuses_repeats {
                    return;
                }
                let number = call.number;
                unread.unused = Some(number);
                unread.unanswered = None;
                number
            }
        };
        if records_refused_calls {
            store.record_call(Writer::Other, number);
        }
    }

    /// Requests the record of the calls. Drops the reply to an earlier request.
    pub(super) fn request_record(&mut self) {
        let State { store, unread, .. } = &mut self.state;
        let requested = unread.runs.calls();
        if !requested.is_empty() {
            let stored = store.record(Writer::Other).clone();
            unread.reply = Some(Reply { requested, stored, first: store.removed + 1 });
        }
    }

    pub(super) fn compare_record(&mut self) {
        let compares_new_calls = self.is(QueueFault::ComparesNewCalls);
        let forgets_waiting_calls = self.is(QueueFault::ForgetsWaitingCalls);
        let unread = &mut self.state.unread;
        let Some(Reply { requested, stored, first }) = unread.reply.take() else { return };
        let stored = WriterCalls::new(stored.into_iter().map(|call| call..=call).collect());
        let requested = if compares_new_calls { unread.runs.calls() } else { requested };
        let first = if forgets_waiting_calls { u64::MAX } else { first };
        let loss = unread.runs.check(&requested, &stored, first, 0);
        unread.counted += loss.map_or(0, |loss| loss.entries);
    }
}
