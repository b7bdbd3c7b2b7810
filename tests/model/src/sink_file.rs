//! A model of a file sink with an embedded store. The store keeps the mark of the file, which describes the part of the
//! file whose messages are published. An operator restores older copies of the store. The state consists of the store
//! (with commits, outbox and mark), the file, and the process that writes the file. A checker explores all runs of the
//! model in small scopes (a scope limits the size of the model), and the simulator executes long random runs. The model
//! implements the protocol independently of the product. A *kept line* is a line that an earlier process wrote, and
//! whose message is still in the outbox.

mod world;

use stateright::{Model, Property};

pub use world::{SinkFileViolation, SinkFileWorld};

/// The limits of a run: the number of events, the number of rare steps, and the fault.
#[derive(Debug, Clone, Copy, Default)]
pub struct SinkFileScope {
    /// Number of events. Each execution of an event emits one message.
    pub events: u8,
    /// Number of different messages that executions of one event may emit. With more than one message, the model covers
    /// handlers that use the time or random numbers.
    pub contents: u8,
    /// Maximum number of unexpected ends of the process: by a kill, a power loss or a failed sync.
    pub kills: u8,
    /// Maximum number of copies of the store that the operator makes.
    pub copies: u8,
    /// Maximum number of times that the operator restores a copy.
    pub restores: u8,
    /// The rule that is broken on purpose; `None` in a correct model.
    pub fault: Option<SinkFileFault>,
}

/// A rule that is broken on purpose, to prove that the checks find broken rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SinkFileFault {
    /// A start removes all lines after the published part of the file (the part whose length is in the mark).
    LinesAreRemoved,
    /// If the outbox has the messages of all lines after the published part of the file, a start removes these lines.
    UnpublishedLinesAreRemoved,
    /// A start does not write a mark, so the process writes its first mark with its first removal from the outbox.
    NoMarkAtStart,
    /// A start does not sync the file before it writes the mark.
    StartDoesNotSync,
    /// After a failed sync, a start does not write the lines after the published part again, so the next sync does not
    /// write these lines to the disk.
    LinesAreNotWrittenAgain,
    /// The store records the length of the file, and removes messages from the outbox, in two separate writes.
    MarkIsSeparate,
    /// Messages leave the outbox before their lines are synced.
    RemovedBeforeSync,
    /// The process writes the messages of kept lines again.
    KeptLinesAreRepeated,
    /// The mark does not contain the range of the kept lines.
    KeptRangeIsForgotten,
    /// The process compares only the ids of lines and messages, and not their contents.
    OnlyIdsAreCompared,
    /// The process compares a message only with the last line that has the id of the message.
    OnlyLastLineIsCompared,
}

impl SinkFileFault {
    /// All faults.
    pub const ALL: [Self; 11] = [
        Self::LinesAreRemoved,
        Self::UnpublishedLinesAreRemoved,
        Self::NoMarkAtStart,
        Self::StartDoesNotSync,
        Self::LinesAreNotWrittenAgain,
        Self::MarkIsSeparate,
        Self::RemovedBeforeSync,
        Self::KeptLinesAreRepeated,
        Self::KeptRangeIsForgotten,
        Self::OnlyIdsAreCompared,
        Self::OnlyLastLineIsCompared,
    ];
}

/// A step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkFileStep {
    /// A process starts, and compares the file with the mark and the outbox.
    Start,
    /// The process executes the first event that has no commit yet, and commits it. The execution emits the message
    /// with this content.
    Commit(u8),
    /// The process writes the line of the next message of the outbox, or skips the message if its line is a kept line.
    Write,
    /// The process syncs the file, removes the written and skipped messages from the outbox, and writes a mark.
    Remove,
    /// The process is killed. The store keeps the first writes since its last sync (this number of them), and loses the
    /// later writes.
    Kill(usize),
    /// The machine loses its power. The store keeps the first writes since its last sync (this number of them), and
    /// loses the later writes. The file keeps only synced lines.
    PowerLoss(usize),
    /// The sync of the file fails, and the process ends. The store keeps the first writes since its last sync (this
    /// number of them), and loses the later writes. The system counts the unsynced lines as written, so a second sync
    /// does not write them.
    SyncFails(usize),
    /// The operator copies the store.
    Copy,
    /// The operator restores the copy with this index. This step is possible only if no process is running, and if no
    /// failed sync has left lines that are not on the disk. With such lines and an older copy, a start might not know
    /// which lines it must write again.
    Restore(usize),
}

impl Model for SinkFileScope {
    type State = SinkFileWorld;
    type Action = SinkFileStep;

    fn init_states(&self) -> Vec<SinkFileWorld> {
        vec![SinkFileWorld::new(self)]
    }

    fn actions(&self, world: &SinkFileWorld, steps: &mut Vec<SinkFileStep>) {
        if world.broken_at_end().is_some() {
            return;
        }
        if world.is_running() {
            steps.extend((0..self.contents).map(SinkFileStep::Commit));
            steps.extend([SinkFileStep::Write, SinkFileStep::Remove]);
            if world.kills() < self.kills {
                steps.extend((0..=world.unsynced_writes()).map(SinkFileStep::Kill));
                steps.extend((0..=world.unsynced_writes()).map(SinkFileStep::PowerLoss));
                steps.extend((0..=world.unsynced_writes()).map(SinkFileStep::SyncFails));
            }
        } else {
            steps.push(SinkFileStep::Start);
            if world.restores() < self.restores && !world.has_unwritten_lines() {
                steps.extend((0..world.copies()).map(SinkFileStep::Restore));
            }
        }
        steps.extend((world.copies() < usize::from(self.copies)).then_some(SinkFileStep::Copy));
    }

    fn next_state(&self, world: &SinkFileWorld, step: SinkFileStep) -> Option<SinkFileWorld> {
        let mut next = world.clone();
        next.step(step);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! never {
            ($broken:ident) => {
                Property::always(
                    SinkFileViolation::$broken.rule(),
                    |_: &Self, world: &SinkFileWorld| {
                        world.broken_at_end() != Some(SinkFileViolation::$broken)
                    },
                )
            };
        }
        vec![
            never!(Missing),
            never!(Duplicated),
            never!(Removed),
            Property::sometimes(LINE_LOST, |_, world: &SinkFileWorld| world.has_lost_lines()),
            Property::sometimes(MESSAGE_SKIPPED, |_, world: &SinkFileWorld| world.has_skipped()),
        ]
    }
}

/// A property that at least one run of each scope with restores must show. Otherwise, the scope is too small to test
/// anything.
pub const LINE_LOST: &str = "a start finds lines whose messages the store lacks";
/// A property that at least one run of each scope must show; otherwise the scope is too small to test anything.
pub const MESSAGE_SKIPPED: &str = "the process skips a message that the file already has";
