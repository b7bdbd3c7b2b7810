//! The store, the file, and the process that writes the file.

use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::OnceLock;

use super::{SinkFileFault, SinkFileScope, SinkFileStep};

/// A violation: the way in which a run has broken a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SinkFileViolation {
    /// The store has a commit whose message is not in the file.
    Missing,
    /// The file has the message of one commit twice.
    Duplicated,
    /// A start removed a line, and no process has written the line again.
    Removed,
}

impl SinkFileViolation {
    /// Returns the rule that is broken.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::Missing => "the message of each commit is in the file",
            Self::Duplicated => "the message of a commit is in the file once",
            Self::Removed => "a removed line is written again",
        }
    }
}

/// A message, or the line of a message in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Message {
    /// Determines the id of the message.
    event: u8,
    content: u8,
    /// Unique over all histories of the store. Only the checks know this number.
    commit: u8,
}

impl Message {
    /// Returns whether two messages have equal lines.
    fn is_same_line(self, other: Self) -> bool {
        (self.event, self.content) == (other.event, other.content)
    }
}

/// The mark of the file in the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Mark {
    /// The product stores only the length of the published part and a digest of its last bytes.
    published: Vec<Message>,
    /// The part of the file that contains the kept lines; `None` if there are no kept lines.
    kept: Option<Range<usize>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Store {
    /// The messages of all commits, in order.
    commits: Vec<Message>,
    /// Committed and not published.
    outbox: Vec<Message>,
    mark: Option<Mark>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Process {
    /// The process has written or skipped these messages of the outbox.
    written: usize,
    /// The process has not skipped the messages of these kept lines yet.
    unpublished: Vec<Message>,
    /// A part of the file that contains the lines in `unpublished`.
    kept: Range<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    scope: Limits,
    store: Store,
    /// The states of the store after the last sync and after each write since then. The last state is `store`.
    unsynced: Vec<Store>,
    copies: Vec<Store>,
    file: Vec<Message>,
    /// Number of lines at the beginning of the file that count as synced. A power loss removes all later lines, and the
    /// lines in `unwritten`.
    synced: usize,
    /// The system counts these lines as written, but they are not on the disk, because a sync failed.
    unwritten: Range<usize>,
    process: Option<Process>,
    removed: Vec<Message>,
    /// Number of commits over all histories of the store.
    commits: u8,
    kills: u8,
    restores: u8,
    /// A start found lines whose messages the store lacks.
    has_lost: bool,
    has_skipped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Limits {
    events: u8,
    fault: Option<SinkFileFault>,
}

/// The state of a run at one moment.
#[derive(Debug, Clone)]
pub struct SinkFileWorld {
    state: State,
    /// The violation that the final check would find if the run now finished all work. The first use computes this
    /// value.
    end_check: OnceLock<Option<SinkFileViolation>>,
}

impl PartialEq for SinkFileWorld {
    fn eq(&self, other: &Self) -> bool {
        self.state == other.state
    }
}

impl Hash for SinkFileWorld {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.state.hash(hasher);
    }
}

impl SinkFileWorld {
    /// Returns the first state of a run: the store and the file are empty.
    pub fn new(scope: &SinkFileScope) -> Self {
        let state = State {
            scope: Limits { events: scope.events, fault: scope.fault },
            store: Store::default(),
            unsynced: vec![Store::default()],
            copies: Vec::new(),
            file: Vec::new(),
            synced: 0,
            unwritten: 0..0,
            process: None,
            removed: Vec::new(),
            commits: 0,
            kills: 0,
            restores: 0,
            has_lost: false,
            has_skipped: false,
        };
        Self { state, end_check: OnceLock::new() }
    }

    /// Performs a step.
    pub fn step(&mut self, step: SinkFileStep) {
        self.end_check = OnceLock::new();
        let state = &mut self.state;
        match step {
            SinkFileStep::Start => state.start(),
            SinkFileStep::Commit(content) => state.commit(content),
            SinkFileStep::Write => state.write(),
            SinkFileStep::Remove => state.remove(),
            SinkFileStep::Kill(kept) => state.end(kept),
            SinkFileStep::PowerLoss(kept) => {
                state.end(kept);
                state.file.truncate(state.synced);
                let end = state.unwritten.end.min(state.synced);
                state.file.drain(state.unwritten.start.min(end)..end);
                state.unwritten = 0..0;
                state.synced = state.file.len();
            }
            SinkFileStep::SyncFails(kept) => {
                if state.file.len() > state.synced {
                    let first = if state.unwritten.is_empty() {
                        state.synced
                    } else {
                        state.unwritten.start
                    };
                    state.unwritten = first..state.file.len();
                }
                state.end(kept);
            }
            SinkFileStep::Copy => {
                if state.copies.last() != Some(&state.store) {
                    state.copies.push(state.store.clone());
                }
            }
            SinkFileStep::Restore(index) => {
                state.store = state.copies[index].clone();
                state.unsynced = vec![state.store.clone()];
                state.restores += 1;
            }
        }
    }

    /// Returns whether a process is running.
    pub fn is_running(&self) -> bool {
        self.state.process.is_some()
    }

    /// Returns the number of writes to the store since its last sync.
    pub fn unsynced_writes(&self) -> usize {
        self.state.unsynced.len() - 1
    }

    /// Returns how often the process ended: by a kill, a power loss or a failed sync.
    pub fn kills(&self) -> u8 {
        self.state.kills
    }

    /// Returns the number of copies of the store.
    pub fn copies(&self) -> usize {
        self.state.copies.len()
    }

    /// Returns whether the system counts lines as written although they are not on the disk.
    pub fn has_unwritten_lines(&self) -> bool {
        !self.state.unwritten.is_empty()
    }

    /// Returns how often the operator has restored a copy.
    pub fn restores(&self) -> u8 {
        self.state.restores
    }

    /// Returns whether a start found lines whose messages the store lacks.
    pub fn has_lost_lines(&self) -> bool {
        self.state.has_lost
    }

    /// Returns whether a process has skipped a message that the file already has.
    pub fn has_skipped(&self) -> bool {
        self.state.has_skipped
    }

    /// Returns the broken rule, if any, that the final check would find if the run now finished all work.
    pub fn broken_at_end(&self) -> Option<SinkFileViolation> {
        *self.end_check.get_or_init(|| {
            let mut state = self.state.clone();
            if state.process.is_none() {
                state.start();
            }
            for _ in 0..state.scope.events {
                state.commit(0);
            }
            for _ in 0..state.store.outbox.len() {
                state.write();
            }
            state.remove();
            state.broken_rule()
        })
    }
}

impl State {
    fn is(&self, fault: SinkFileFault) -> bool {
        self.scope.fault == Some(fault)
    }

    /// The new process finds the lines whose messages are in the outbox. Only a process with a fault removes lines.
    fn start(&mut self) {
        let mut process = Process::default();
        let mark = self.store.mark.clone();
        // A power loss may have removed lines that the mark includes.
        let known = mark.filter(|mark| self.file.starts_with(&mark.published));
        if let Some(Mark { published, kept }) = known {
            if let Some(range) = kept {
                self.keep(&mut process, range);
            }
            let rest = published.len()..self.file.len();
            let are_unpublished =
                self.file[rest.clone()].iter().all(|line| self.is_in_outbox(*line));
            self.has_lost |= !are_unpublished;
            let removes = match self.scope.fault {
                Some(SinkFileFault::LinesAreRemoved) => true,
                Some(SinkFileFault::UnpublishedLinesAreRemoved) => are_unpublished,
                _ => false,
            };
            if removes {
                self.removed.extend(self.file.drain(rest));
                self.synced = self.synced.min(self.file.len());
            } else {
                if !self.is(SinkFileFault::LinesAreNotWrittenAgain) {
                    self.unwritten.end = self.unwritten.end.min(rest.start);
                }
                self.keep(&mut process, rest);
            }
        }
        self.process = Some(process);
        if !self.is(SinkFileFault::StartDoesNotSync) {
            self.synced = self.file.len();
        }
        if !self.is(SinkFileFault::NoMarkAtStart) {
            self.write_mark();
        }
    }

    fn is_in_outbox(&self, line: Message) -> bool {
        let only_ids = self.is(SinkFileFault::OnlyIdsAreCompared);
        let mut outbox = self.store.outbox.iter();
        outbox.any(|message| message.is_same_line(line) || only_ids && message.event == line.event)
    }

    /// Only lines whose messages are in the outbox are kept.
    fn keep(&self, process: &mut Process, range: Range<usize>) {
        if self.is(SinkFileFault::KeptLinesAreRepeated) {
            return;
        }
        let only_last = self.is(SinkFileFault::OnlyLastLineIsCompared);
        let lines = &self.file[range.clone()];
        let is_compared = |(index, line): &(usize, &Message)| {
            !only_last || lines[index + 1..].iter().all(|later| later.event != line.event)
        };
        let compared = lines.iter().enumerate().filter(is_compared).map(|(_, line)| *line);
        let found: Vec<Message> = compared.filter(|line| self.is_in_outbox(*line)).collect();
        if found.is_empty() {
            return;
        }
        process.kept = if process.unpublished.is_empty() {
            range
        } else {
            process.kept.start.min(range.start)..process.kept.end.max(range.end)
        };
        process.unpublished.extend(found);
    }

    /// The mark has the present content of the file and the kept lines. The store syncs this write with the next
    /// commit.
    fn write_mark(&mut self) {
        let forgets = self.is(SinkFileFault::KeptRangeIsForgotten);
        let Some(process) = &self.process else { return };
        let kept = (!process.unpublished.is_empty() && !forgets).then(|| process.kept.clone());
        self.store.mark = Some(Mark { published: self.file.clone(), kept });
        self.unsynced.push(self.store.clone());
    }

    /// Executes the first event that has no commit yet. Syncs the store.
    fn commit(&mut self, content: u8) {
        let is_committed =
            |event: &u8| self.store.commits.iter().any(|message| message.event == *event);
        let Some(event) = (0..self.scope.events).find(|event| !is_committed(event)) else { return };
        self.commits += 1;
        let message = Message { event, content, commit: self.commits };
        self.store.commits.push(message);
        self.store.outbox.push(message);
        self.unsynced = vec![self.store.clone()];
    }

    /// Skips the message if its line is a kept line.
    fn write(&mut self) {
        let only_ids = self.is(SinkFileFault::OnlyIdsAreCompared);
        let Some(process) = &mut self.process else { return };
        let Some(message) = self.store.outbox.get(process.written) else { return };
        process.written += 1;
        let before = process.unpublished.len();
        process.unpublished.retain(|line| {
            !(line.is_same_line(*message) || only_ids && line.event == message.event)
        });
        if process.unpublished.len() < before {
            self.has_skipped = true;
        } else {
            self.file.push(*message);
        }
    }

    /// Removes the written and skipped messages from the outbox, and writes a mark in the same write.
    fn remove(&mut self) {
        let written = self.process.as_ref().map_or(0, |process| process.written);
        if written == 0 {
            return;
        }
        if !self.is(SinkFileFault::RemovedBeforeSync) {
            self.synced = self.file.len();
        }
        if self.is(SinkFileFault::MarkIsSeparate) {
            self.write_mark();
        }
        self.store.outbox.drain(..written);
        self.write_mark();
        if let Some(process) = &mut self.process {
            process.written = 0;
        }
    }

    /// The store keeps the first `kept` writes since its last sync, and loses the later writes.
    fn end(&mut self, kept: usize) {
        self.process = None;
        self.store = self.unsynced[kept].clone();
        self.unsynced = vec![self.store.clone()];
        self.kills += 1;
    }

    fn broken_rule(&self) -> Option<SinkFileViolation> {
        let is_in_file =
            |message: &Message| self.file.iter().any(|line| line.is_same_line(*message));
        let is_twice = |line: &Message| {
            self.file.iter().filter(|other| other.commit == line.commit).count() > 1
        };
        if !self.store.commits.iter().all(is_in_file) {
            Some(SinkFileViolation::Missing)
        } else if self.file.iter().any(is_twice) {
            Some(SinkFileViolation::Duplicated)
        } else if !self.removed.iter().all(is_in_file) {
            Some(SinkFileViolation::Removed)
        } else {
            None
        }
    }
}
