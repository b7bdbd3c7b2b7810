//! A queue in a store that goes back in time, with its reader, its writers and the owner whose commits settle the read
//! entries. The queue may be an inbox: its reader publishes the entries, and commits nothing. Some writers also write to
//! another shard, in the same call. Other writers are in a process without a reader. A checker walks through all runs of
//! the model, and the simulator plays long random runs. The logic of the reader
//! ([`QueueCursor`](ordain_core::QueueCursor)) and of the process without a reader
//! ([`UnreadRuns`](ordain_core::UnreadRuns)) is the product's own; the rest is written from the protocol alone.

mod outcome;
mod store;
mod world;

use stateright::{Model, Property};

pub use outcome::{QueueBroken, QueueSeen};
pub use world::QueueWorld;

/// The steps of a run, and the limits of the rare steps.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueueScope {
    /// Calls of writers. Each call puts one entry or two.
    pub calls: u8,
    /// Calls of the reader's process that write to the queue and to another shard, in separate steps. Each write to the
    /// queue counts as one of `calls`, too.
    pub shared_calls: u8,
    /// True if writers of another process put entries, too.
    pub has_others: bool,
    /// True if all writers are in a process without a reader.
    pub has_only_others: bool,
    /// True if the queue is an inbox: its reader publishes the entries, and commits nothing.
    pub is_inbox: bool,
    /// Times that the store goes back.
    pub rewinds: u8,
    /// Times that the process ends and another process begins.
    pub restarts: u8,
    /// A rule that is broken on purpose.
    pub fault: Option<QueueFault>,
}

/// A rule that is broken on purpose, to prove that the checks find broken rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueueFault {
    /// A read names a number instead of a queue position.
    ReadsByNumber,
    /// A removal names a number instead of a queue position.
    RemovesByNumber,
    /// A removal does not name the commit that it depends on.
    RemovesWithoutCommit,
    /// A reader that begins again has forgotten its deliveries.
    ForgetsWhatItDelivered,
    /// All calls have the same history number.
    HistoriesAreAlike,
    /// A reader does not check for entries that writers of its process have put.
    ExpectsNothing,
    /// A call over two shards is answered although a shard went back during the call.
    AnswersWithoutCheck,
    /// A call over two shards compares the position of its entry, and not the record of its writer. It takes a removed
    /// entry for its own entry if the two have the same number.
    ComparesPositions,
    /// The reader of an inbox reports entries as finished before it has published them.
    RemovesBeforePublishing,
    /// The reader of an inbox publishes the newest of its entries first.
    PublishesNewestFirst,
    /// The store writes the record of a writer before the entries of the call, in a write of its own.
    RecordsApart,
    /// The store records a call that it refuses.
    RecordsRefusedCalls,
    /// The store refuses a repeated call that it has recorded.
    RefusesRepeats,
    /// A process without a reader compares its newest calls with a record that it requested before them.
    ComparesNewCalls,
    /// A process without a reader forgets calls whose entries still wait in the queue.
    ForgetsWaitingCalls,
}

impl QueueFault {
    /// All faults.
    pub const ALL: [Self; 15] = [
        Self::ReadsByNumber,
        Self::RemovesByNumber,
        Self::RemovesWithoutCommit,
        Self::ForgetsWhatItDelivered,
        Self::HistoriesAreAlike,
        Self::ExpectsNothing,
        Self::AnswersWithoutCheck,
        Self::ComparesPositions,
        Self::RemovesBeforePublishing,
        Self::PublishesNewestFirst,
        Self::RecordsApart,
        Self::RecordsRefusedCalls,
        Self::RefusesRepeats,
        Self::ComparesNewCalls,
        Self::ForgetsWaitingCalls,
    ];
}

/// A step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueStep {
    /// A writer puts entries: their number, and true if the writer belongs to the reader's process.
    Put(u8, bool),
    /// The process without a reader puts one entry, and the answer is lost.
    PutUnanswered,
    /// The process without a reader repeats the call whose answer was lost.
    PutAgain,
    /// The store refuses a call of the process without a reader, because the queue is full: the repeated call, or a new
    /// call if no answer was lost.
    Refuse,
    /// The process without a reader requests the record of its calls.
    Ask,
    /// The process without a reader compares its calls with the requested record.
    Compare,
    /// A call over two shards puts its entry into the queue, unless the queue has the entry. The call begins with the
    /// first write of its parts.
    PutPart,
    /// A call over two shards writes its part in the other shard.
    PutOtherPart,
    /// A call over two shards is answered. If a shard went back during the call, the call checks its parts instead, and
    /// the lost parts are to be written again.
    Answer,
    /// Writers report their entries to the reader.
    Tell,
    /// The reader reads at most this number of entries.
    Read(usize),
    /// The owner commits the first open entry, and repeats the commits that the store has lost. The reader of an inbox
    /// publishes the first open entry instead.
    Settle,
    /// The driver acknowledges the settled entries.
    Finish,
    /// The reader removes the finished entries.
    Remove,
    /// The reader removes the finished entries, and the reply is lost.
    RemoveUnanswered,
    /// The owner finds that the store lacks commits.
    MakeAgain,
    /// The present state of the store becomes a state that it may go back to.
    Remember,
    /// The shard of the queue goes back.
    GoBack(usize),
    /// The other shard goes back.
    OtherGoesBack(usize),
    /// The process ends; another process begins.
    Restart,
}

/// Number of states that the store may go back to at one time, including the beginning.
const REMEMBERED: usize = 2;

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
                if *own { !self.has_only_others } else { self.has_others || self.has_only_others }
            });
            steps.extend(own.flat_map(|own| [1, 2].map(|count| QueueStep::Put(count, own))));
            steps.extend(self.has_only_others.then_some(QueueStep::PutUnanswered));
        }
        if self.has_only_others {
            steps.extend([
                QueueStep::PutAgain,
                QueueStep::Refuse,
                QueueStep::Ask,
                QueueStep::Compare,
            ]);
        }
        if world.has_shared_call() || world.shared_calls() < u64::from(self.shared_calls) {
            steps.extend([QueueStep::PutPart, QueueStep::PutOtherPart, QueueStep::Answer]);
        }
        steps.extend([
            QueueStep::Tell,
            QueueStep::Read(1),
            QueueStep::Read(usize::MAX),
            QueueStep::Settle,
            QueueStep::Finish,
            QueueStep::Remove,
            QueueStep::RemoveUnanswered,
            QueueStep::MakeAgain,
        ]);
        if world.rewinds() < u64::from(self.rewinds) {
            steps.extend((world.past() < REMEMBERED).then_some(QueueStep::Remember));
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
                Property::always(QueueBroken::$broken.rule(), |_: &Self, world: &QueueWorld| {
                    world.broken() != Some(QueueBroken::$broken)
                        && world.broken_at_rest() != Some(QueueBroken::$broken)
                })
            };
        }
        vec![
            never!(DeliveredTwice),
            never!(RemovedTooEarly),
            never!(OutOfOrder),
            never!(NoEffect),
            never!(NotRemoved),
            never!(WrongCount),
            never!(NotCounted),
            never!(CountedPresent),
            never!(Stuck),
            never!(AnsweredLost),
            Property::sometimes(ENTRY_LOST, |_, world: &QueueWorld| world.lost() > 0),
            Property::sometimes(PART_WRITTEN_AGAIN, |_, world: &QueueWorld| {
                world.has_repeated_part()
            }),
            Property::sometimes(PUBLISHED_AND_LOST, |_, world: &QueueWorld| {
                world.has_published_lost_entry()
            }),
            Property::sometimes(COUNTED_ELSEWHERE, |_, world: &QueueWorld| world.counted() > 0),
            Property::sometimes(CALL_REPEATED, |_, world: &QueueWorld| world.has_repeated_call()),
        ]
    }
}

/// The property that a scope must show. Without it, the scope would be too small to test anything.
pub const ENTRY_LOST: &str = "an entry is lost unread and counted";
/// The property that a scope with calls over two shards must show, too.
pub const PART_WRITTEN_AGAIN: &str = "a call over two shards writes a lost entry again";
/// A property that a scope with an inbox must show, too.
pub const PUBLISHED_AND_LOST: &str = "the store loses an entry that the inbox has published";
/// A property that a scope with a process without a reader must show.
pub const COUNTED_ELSEWHERE: &str = "the process without a reader counts a lost event";
/// Another property that a scope with a process without a reader must show.
pub const CALL_REPEATED: &str = "the process without a reader repeats a call";
