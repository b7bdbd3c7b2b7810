//! Runs that are being published. A run contains messages of one shard of a partition. In one write, the store marks
//! all messages of a run as published. A run is pending until this write.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::PartitionHandle;
use ordain_store::{Mark, Partition};

/// Messages of one partition in one shard (slice of the store) that the store marks as published in one write.
pub(super) struct PublishRun {
    pub(super) handle: Arc<PartitionHandle>,
    pub(super) shard: u32,
    pub(super) through: u64,
    pub(super) marks: Vec<Mark>,
    /// Number of messages that the tasks of exchanges and streams have not confirmed.
    pub(super) unconfirmed: usize,
    pub(super) messages: BTreeMap<String, u64>,
}

/// The identity of a queue of pending runs. The runs of a queue become done in the order of their numbers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum RunQueueId {
    /// A shard of a partition. In one write, the store marks as published all messages of the shard up to a commit.
    Shard(Partition, u32),
    /// A file, by the name of its mark. A mark of the file covers all data up to a length.
    File(String),
}

/// The pending runs by number. A run is done when three conditions hold:
/// - No message of the run waits for a confirm. If the run has file marks, this process also still has the ownership of
///   the partition.
/// - All earlier runs of the same partition and shard are done.
/// - For each file of the run, all earlier runs with lines for this file are done.
#[derive(Default)]
pub(super) struct PendingRuns {
    pending: HashMap<u64, PublishRun>,
    queues: HashMap<RunQueueId, VecDeque<u64>>,
    next_number: u64,
    /// The numbers of the runs to check next. Each of these runs is possibly done.
    candidates: Vec<u64>,
}

impl PublishRun {
    /// Returns whether no message of the run waits for a confirm. For a run with file marks, also requires that this
    /// process has not lost the ownership of the partition. After the loss, the outbox publisher does not mark the
    /// messages of the run as published. The messages stay in the outbox, and the next owner writes these messages to
    /// the file. No mark may therefore state that a file already contains these messages.
    fn is_done(&self) -> bool {
        self.unconfirmed == 0 && (self.marks.is_empty() || !self.handle.ownership.is_lost())
    }

    fn queue_ids(&self) -> impl Iterator<Item = RunQueueId> {
        let files = self.marks.iter().map(|mark| RunQueueId::File(mark.name.clone()));
        let shard = RunQueueId::Shard(self.handle.partition.clone(), self.shard);
        std::iter::once(shard).chain(files)
    }
}

impl PendingRuns {
    pub(super) fn number(&self) -> u64 {
        self.next_number
    }

    /// Returns the number of the oldest pending run that has lines for the file with this mark.
    pub(super) fn oldest_of_file(&self, mark_name: &str) -> Option<u64> {
        self.queues.get(&RunQueueId::File(mark_name.to_owned()))?.front().copied()
    }

    pub(super) fn any(&self, predicate: impl Fn(&PublishRun) -> bool) -> bool {
        self.pending.values().any(predicate)
    }

    pub(super) fn push(&mut self, run: PublishRun) {
        for queue_id in run.queue_ids() {
            self.queues.entry(queue_id).or_default().push_back(self.next_number);
        }
        self.pending.insert(self.next_number, run);
        self.candidates.push(self.next_number);
        self.next_number += 1;
    }

    /// Replaces the marks of pending runs by the marks in `replaced`, for each file that has a mark in `replaced`.
    pub(super) fn replace_marks(&mut self, replaced: &[Mark]) {
        let marks = self.pending.values_mut().flat_map(|run| &mut run.marks);
        for mark in marks {
            if let Some(replaced) = replaced.iter().find(|replaced| replaced.name == mark.name) {
                mark.clone_from(replaced);
            }
        }
    }

    pub(super) fn record_confirms(&mut self, number: u64, count: usize) {
        if let Some(run) = self.pending.get_mut(&number) {
            run.unconfirmed = run.unconfirmed.saturating_sub(count);
            if run.unconfirmed == 0 {
                self.candidates.push(number);
            }
        }
    }

    /// Removes and returns the runs that are done. Runs of the same queue ([`RunQueueId`]) stay in order.
    pub(super) fn take_done(&mut self) -> Vec<PublishRun> {
        let mut done = Vec::new();
        while let Some(number) = self.candidates.pop() {
            let Some(run) = self.pending.get(&number).filter(|run| run.is_done()) else {
                continue;
            };
            let queue_ids: Vec<RunQueueId> = run.queue_ids().collect();
            if queue_ids.iter().any(|queue_id| self.queues[queue_id].front() != Some(&number)) {
                continue;
            }
            for queue_id in queue_ids {
                let others = self.queues.get_mut(&queue_id).map(|queue| {
                    queue.pop_front();
                    queue.front().copied()
                });
                match others.flatten() {
                    Some(next) => self.candidates.push(next),
                    None => drop(self.queues.remove(&queue_id)),
                }
            }
            done.extend(self.pending.remove(&number));
        }
        done
    }
}
