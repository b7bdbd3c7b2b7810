//! What is being published and is not marked done yet, in runs.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::Target;
use ordain_store::{Mark, Partition};

/// Messages of one shard that are marked done together.
pub(super) struct Run {
    pub(super) target: Arc<Target>,
    pub(super) shard: u32,
    /// The last commit that it has messages of.
    pub(super) through: u64,
    /// Of the files that have lines of it, which are written.
    pub(super) marks: Vec<Mark>,
    /// Messages that exchanges have not confirmed.
    pub(super) unconfirmed: usize,
}

/// What runs stand in line for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Line {
    /// What is done of a shard is everything up to a commit.
    Shard(Partition, u32),
    /// A mark says that a file has everything up to a place.
    File(String),
}

/// Runs by number. One is done when all of it is published, and those before it of the same shard and
/// of the same files are done.
#[derive(Default)]
pub(super) struct Runs {
    pending: HashMap<u64, Run>,
    lines: HashMap<Line, VecDeque<u64>>,
    /// Of the run that is being gathered.
    number: u64,
    /// Those that may be done.
    look: Vec<u64>,
}

impl Run {
    /// Whether nothing of it is to be confirmed. What is not marked done stays in the outbox, and will
    /// be written again: then no mark may say that a file has it.
    fn is_done(&self) -> bool {
        self.unconfirmed == 0 && (self.marks.is_empty() || !self.target.tenure.is_over())
    }

    fn lines(&self) -> impl Iterator<Item = Line> {
        let files = self.marks.iter().map(|mark| Line::File(mark.name.clone()));
        let shard = Line::Shard(self.target.partition.clone(), self.shard);
        std::iter::once(shard).chain(files)
    }
}

impl Runs {
    /// The number of the run that is being gathered.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn are_any(&self, is: impl Fn(&Run) -> bool) -> bool {
        self.pending.values().any(is)
    }

    /// Adds the run that was gathered.
    pub(super) fn push(&mut self, run: Run) {
        for line in run.lines() {
            self.lines.entry(line).or_default().push_back(self.number);
        }
        self.pending.insert(self.number, run);
        self.look.push(self.number);
        self.number += 1;
    }

    /// Notes that so many messages of a run are confirmed.
    pub(super) fn confirmed(&mut self, number: u64, count: usize) {
        if let Some(run) = self.pending.get_mut(&number) {
            run.unconfirmed = run.unconfirmed.saturating_sub(count);
            if run.unconfirmed == 0 {
                self.look.push(number);
            }
        }
    }

    /// Takes out those that are done; of the same shard or file in order.
    pub(super) fn take_done(&mut self) -> Vec<Run> {
        let mut done = Vec::new();
        while let Some(number) = self.look.pop() {
            let Some(run) = self.pending.get(&number).filter(|run| run.is_done()) else {
                continue;
            };
            let lines: Vec<Line> = run.lines().collect();
            if lines.iter().any(|line| self.lines[line].front() != Some(&number)) {
                continue;
            }
            for line in lines {
                let others = self.lines.get_mut(&line).map(|line| {
                    line.pop_front();
                    line.front().copied()
                });
                match others.flatten() {
                    Some(next) => self.look.push(next),
                    None => drop(self.lines.remove(&line)),
                }
            }
            done.extend(self.pending.remove(&number));
        }
        done
    }
}
