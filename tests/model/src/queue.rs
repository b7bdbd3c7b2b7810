//! A model of a queue in a store that goes back in time (loses its newest writes). The queue has writers, a reader, and
//! an owner whose commits settle the entries that the reader has read. The queue may be an inbox. The reader of an
//! inbox publishes the entries, and commits nothing. Some writers also write to another shard, in the same call. Other
//! writers are in a process without a reader. A checker explores all runs of the model, and the simulator plays long
//! random runs. The product's own code makes the decisions of the reader ([`QueueCursor`](ordain_core::QueueCursor))
//! and of the process without a reader ([`UnreadRuns`](ordain_core::UnreadRuns)). All other code of the model
//! implements the protocol independently of the product.

mod outcome;
mod store;
mod world;

use stateright::{Model, Property};

pub use outcome::{QueueCounts, QueueViolation};
pub use world::QueueWorld;

/// The limits of a run: the kinds of writers and readers, the number of steps, and the fault.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueueScope {
    /// Number of calls after which writers make no new calls by [`QueueStep::Put`] or [`QueueStep::PutUnanswered`].
    /// Each call puts one or two entries into the queue. Repeated calls count as well, but have no limit.
    pub calls: u8,
    /// Maximum number of calls by the reader's process that write to the queue and to another shard, in separate steps.
    /// Each write of such a call to the queue also counts towards the limit `calls`.
    pub shared_calls: u8,
    /// True if both processes have writers: the reader's process, and a process without a reader.
    pub has_other_writers: bool,
    /// True if all writers are in a process without a reader.
    pub has_only_other_writers: bool,
    /// True if the queue is an inbox: its reader publishes the entries, and commits nothing.
    pub is_inbox: bool,
    /// Maximum number of times that the store goes back.
    pub rollbacks: u8,
    /// Maximum number of times that the reader's process ends and another process starts.
    pub restarts: u8,
    /// The rule that is broken on purpose; `None` in a correct model.
    pub fault: Option<QueueFault>,
}

/// A rule that is broken on purpose, to prove that the checks find broken rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueueFault {
    /// A read names a number instead of a queue position.
    ReadsByNumber,
    /// A removal names a number instead of a queue position.
    RemovesByNumber,
    /// A removal does not name the commit that settled the removed entries.
    RemovesWithoutCommit,
    /// A reader that reads the queue again from its beginning has forgotten its deliveries.
    ForgetsDeliveries,
    /// An owner does not repeat lost commits.
    DropsLostCommits,
    /// A reader does not notice that the store has lost a removal.
    IgnoresLostRemovals,
    /// The entries of all calls have the same history digest, so a queue position distinguishes entries by their number
    /// only.
    HistoriesAreEqual,
    /// A reader does not expect the entries that the writers of its process report, so it does not notice the loss of
    /// these entries.
    ExpectsNothing,
    /// After the store went back, a reader reads the queue again before it takes the reports of its process's writers.
    ReportsLate,
    /// A call over two shards succeeds without a check of its parts, although a shard went back during the call.
    AnswersWithoutCheck,
    /// A call over two shards succeeds without a last read from both shards. Without this read, the process can fail to
    /// notice that a shard went back after the shard had accepted its part of the call.
    AnswersWithoutLastRead,
    /// A call over two shards looks for its entry by queue position, instead of in the record of its writer. If a
    /// removed entry had the same number, the call mistakes that entry for its own.
    ComparesPositions,
    /// The reader of an inbox reports entries as finished before it has published them.
    RemovesBeforePublishing,
    /// The reader of an inbox publishes the newest of its entries first.
    PublishesNewestFirst,
    /// The store writes the record of a writer and the entries of the call in two separate writes.
    RecordsSeparately,
    /// The store adds a refused call to the record of its writer.
    RecordsRefusedCalls,
    /// The store refuses a repeated call, although the record of the writer contains the call.
    RefusesRepeats,
    /// A process without a reader requests the record of its calls, and makes further calls before it receives the
    /// record. It then looks in this record for the further calls too, so that they seem to be lost.
    ComparesNewCalls,
    /// A process without a reader forgets calls whose entries still wait in the queue.
    ForgetsWaitingCalls,
}

impl QueueFault {
    /// All faults.
    pub const ALL: [Self; 19] = [
        Self::ReadsByNumber,
        Self::RemovesByNumber,
        Self::RemovesWithoutCommit,
        Self::ForgetsDeliveries,
        Self::DropsLostCommits,
        Self::IgnoresLostRemovals,
        Self::HistoriesAreEqual,
        Self::ExpectsNothing,
        Self::ReportsLate,
        Self::AnswersWithoutCheck,
        Self::AnswersWithoutLastRead,
        Self::ComparesPositions,
        Self::RemovesBeforePublishing,
        Self::PublishesNewestFirst,
        Self::RecordsSeparately,
        Self::RecordsRefusedCalls,
        Self::RefusesRepeats,
        Self::ComparesNewCalls,
        Self::ForgetsWaitingCalls,
    ];
}

/// A step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueStep {
    /// A writer makes a call that puts this number of entries into the queue. The second value is true if the writer
    /// belongs to the reader's process.
    Put(u8, bool),
    /// The process without a reader puts one entry, and the answer is lost.
    PutUnanswered,
    /// The process without a reader repeats the call whose answer was lost.
    RepeatPut,
    /// The store refuses a call of the process without a reader, because the queue is full. The refused call repeats
    /// the call whose answer was lost, or is a new call if no answer was lost. The store does not refuse a repeated
    /// call that the record of the writer contains.
    Refuse,
    /// The process without a reader requests the record of its calls.
    RequestRecord,
    /// The process without a reader compares its calls with the requested record.
    CompareRecord,
    /// If, as far as the process knows, the queue lacks the entry of a call over two shards, the call puts its entry
    /// into the queue. If no such call is in progress, a new call begins.
    PutPart,
    /// If, as far as the process knows, the other shard lacks the part of a call over two shards, the call writes its
    /// part to that shard. If no such call is in progress, a new call begins.
    PutOtherPart,
    /// The process notices that a shard went back during a call over two shards. Without this step, the process notices
    /// the rollback in the step `Answer`, by its last read.
    NoticeRollback,
    /// The process sends a last read to both shards. If no shard went back during the call over two shards, the call
    /// then succeeds. If a shard went back, the call finds its lost parts, and will write them again.
    Answer,
    /// The writers of the reader's process report their entries to the reader.
    ReportRuns,
    /// The reader reads at most this number of entries.
    Read(usize),
    /// The owner commits the first delivered entry, and repeats the commits that the store has lost. The reader of an
    /// inbox publishes the first delivered entry instead.
    Settle,
    /// The owner acknowledges the settled entries to the reader. In an inbox, the reader itself marks the published
    /// entries as finished.
    Finish,
    /// The reader removes the finished entries.
    Remove,
    /// The reader removes the finished entries, and the reply is lost.
    RemoveUnanswered,
    /// The owner repeats the commits that the store has lost.
    Recommit,
    /// The present state of the store becomes a state that it may go back to.
    Remember,
    /// The shard of the queue goes back to the remembered state with this index.
    GoBack(usize),
    /// The other shard goes back to the remembered state with this index.
    OtherGoesBack(usize),
    /// The reader's process ends, and another process starts.
    Restart,
}

/// Maximum number of remembered states that the store may go back to, including the first state of the run.
const STATE_LIMIT: usize = 2;

impl Model for QueueScope {
    type State = QueueWorld;
    type Action = QueueStep;

    fn init_states(&self) -> Vec<QueueWorld> {
        vec![QueueWorld::new(self)]
    }

    fn actions(&self, world: &QueueWorld, steps: &mut Vec<QueueStep>) {
        if world.broken().is_some() {
            return;
        }
        if world.calls() < u64::from(self.calls) {
            let own = [true, false].into_iter().filter(|own| {
                if *own {
                    !self.has_only_other_writers
                } else {
                    self.has_other_writers || self.has_only_other_writers
                }
            });
            steps.extend(own.flat_map(|own| [1, 2].map(|count| QueueStep::Put(count, own))));
            steps.extend(self.has_only_other_writers.then_some(QueueStep::PutUnanswered));
        }
        if self.has_only_other_writers {
            steps.extend([
                QueueStep::RepeatPut,
                QueueStep::Refuse,
                QueueStep::RequestRecord,
                QueueStep::CompareRecord,
            ]);
        }
        if world.has_shared_call() || world.shared_calls() < u64::from(self.shared_calls) {
            steps.extend([
                QueueStep::PutPart,
                QueueStep::PutOtherPart,
                QueueStep::NoticeRollback,
                QueueStep::Answer,
            ]);
        }
        steps.extend([
            QueueStep::ReportRuns,
            QueueStep::Read(1),
            QueueStep::Read(usize::MAX),
            QueueStep::Settle,
            QueueStep::Finish,
            QueueStep::Remove,
            QueueStep::RemoveUnanswered,
            QueueStep::Recommit,
        ]);
        if world.rollbacks() < u64::from(self.rollbacks) {
            steps.extend((world.past() < STATE_LIMIT).then_some(QueueStep::Remember));
            steps.extend((0..world.past()).map(QueueStep::GoBack));
            if self.shared_calls > 0 {
                steps.extend((0..world.past()).map(QueueStep::OtherGoesBack));
            }
        }
        steps.extend((world.restarts() < u64::from(self.restarts)).then_some(QueueStep::Restart));
    }

    fn next_state(&self, world: &QueueWorld, step: QueueStep) -> Option<QueueWorld> {
        let mut next = world.clone();
        next.step(step);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! never {
            ($broken:ident) => {
                Property::always(QueueViolation::$broken.rule(), |_: &Self, world: &QueueWorld| {
                    world.broken() != Some(QueueViolation::$broken)
                        && world.broken_at_end() != Some(QueueViolation::$broken)
                })
            };
        }
        vec![
            never!(DeliveredTwice),
            never!(RemovedTooEarly),
            never!(OutOfOrder),
            never!(NoEffect),
            never!(SettledNotRemoved),
            never!(WrongLossCount),
            never!(LossNotCounted),
            never!(PresentCountedAsLost),
            never!(Stuck),
            never!(AnsweredCallLost),
            Property::sometimes(ENTRY_LOST, |_, world: &QueueWorld| world.lost() > 0),
            Property::sometimes(PART_WRITTEN_AGAIN, |_, world: &QueueWorld| {
                world.has_repeated_part()
            }),
            Property::sometimes(PUBLISHED_AND_LOST, |_, world: &QueueWorld| {
                world.has_published_lost_entry()
            }),
            Property::sometimes(COUNTED_WITHOUT_READER, |_, world: &QueueWorld| {
                world.counted() > 0
            }),
            Property::sometimes(CALL_REPEATED, |_, world: &QueueWorld| world.has_repeated_call()),
        ]
    }
}

/// At least one run of each scope with writers in the reader's process must show this. Otherwise, the scope is too
/// small to test anything.
pub const ENTRY_LOST: &str = "an entry is lost unread and counted";
/// If a scope has calls over two shards, at least one run of the scope must show this property.
pub const PART_WRITTEN_AGAIN: &str = "a call over two shards writes a lost entry again";
/// If the queue of a scope is an inbox, at least one run of the scope must show this property.
pub const PUBLISHED_AND_LOST: &str = "the store loses an entry that the inbox has published";
/// If all writers of a scope are in a process without a reader, at least one run of the scope must show this property.
pub const COUNTED_WITHOUT_READER: &str = "the process without a reader counts a lost event";
/// If all writers of a scope are in a process without a reader, at least one run of the scope must show this property.
pub const CALL_REPEATED: &str = "the process without a reader repeats a call";
