//! What was taken of the source and is not acknowledged, and the checkpoint of what is.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ordain_core::Delivery;
use tokio::sync::watch;

use ordain_cloudevents::{Acknowledged, Position, Print};
use ordain_config::CHECKPOINT_EVENTS;
use ordain_store::Mark;
use ordain_store::checkpoint::Checkpoint;

/// A checkpoint is written at least this often while there is something new.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(500);

/// The deliveries of a source, from the first that is not acknowledged on.
pub(super) struct Taken {
    /// The name of the checkpoint, if the source can resume.
    name: Option<String>,
    /// Where a source that keeps that itself is told of what is acknowledged.
    tell: Option<watch::Sender<Acknowledged>>,
    /// The connection that deliveries come over, and how many came before.
    generation: u64,
    before: Delivery,
    delivered: Delivery,
    through: Delivery,
    /// Where each delivery ended, if there is a checkpoint of it.
    positions: VecDeque<(Delivery, Position)>,
    acknowledged: Option<Position>,
    /// What was read of the source with each batch that is not behind the last checkpoint.
    prints: VecDeque<Print>,
    /// Acknowledgements since the last checkpoint.
    unsaved: usize,
    /// Acknowledgements that the checkpoint covers that is being written.
    saving: Option<usize>,
    /// Whether the last checkpoint may be lost.
    lost: bool,
    /// What a crash may bring again.
    limit: usize,
    saved_at: Instant,
}

impl Taken {
    /// `prefetch` is how many are taken and not acknowledged at most.
    pub(super) fn new(
        name: Option<String>,
        tell: Option<watch::Sender<Acknowledged>>,
        prefetch: usize,
    ) -> Self {
        Self {
            name,
            tell,
            generation: 0,
            before: 0,
            delivered: 0,
            through: 0,
            positions: VecDeque::new(),
            acknowledged: None,
            prints: VecDeque::new(),
            unsaved: 0,
            saving: None,
            lost: false,
            limit: prefetch + CHECKPOINT_EVENTS,
            saved_at: Instant::now(),
        }
    }

    /// Notes what had been read up to the end of a batch, before its deliveries are added.
    pub(super) fn read(&mut self, print: Option<Print>) {
        self.prints.extend(print);
    }

    /// Whether what comes now comes over another connection than what came before, which then
    /// comes again.
    pub(super) fn is_new(&mut self, generation: u64) -> bool {
        let is_new = generation != self.generation;
        if is_new {
            self.generation = generation;
            (self.before, self.through) = (self.delivered, self.delivered);
            self.positions.clear();
        }
        is_new
    }

    /// The number of the next delivery, which ended there.
    pub(super) fn add(&mut self, position: Position) -> Delivery {
        self.delivered += 1;
        if self.name.is_some() {
            self.positions.push_back((self.delivered, position));
        }
        self.delivered
    }

    /// Notes how far the source is acknowledged.
    pub(super) fn acknowledge(&mut self, through: Delivery) {
        self.through = through;
        if let Some(tell) = &self.tell {
            let (generation, through) = (self.generation, through - self.before);
            tell.send_replace(Acknowledged { generation, through });
        }
        while let Some((_, position)) =
            self.positions.pop_front_if(|(delivery, _)| *delivery <= through)
        {
            self.acknowledged = Some(position);
            self.unsaved += 1;
        }
    }

    /// Whether another one may be taken.
    pub(super) fn has_room(&self) -> bool {
        let repeats = self.positions.len() + self.unsaved + self.saving.unwrap_or(0);
        self.name.is_none() || repeats < self.limit
    }

    /// Whether everything is acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.through == self.delivered
    }

    /// Whether the last checkpoint is not the newest that there could be.
    pub(super) fn is_unsaved(&self) -> bool {
        self.name.is_some() && (self.unsaved > 0 || self.lost)
    }

    /// When the next checkpoint is to be written, whatever comes until then.
    pub(super) fn save_at(&self) -> Option<Instant> {
        (self.is_unsaved() && self.saving.is_none()).then(|| self.saved_at + CHECKPOINT_EVERY)
    }

    /// Whether a checkpoint is to be written now.
    pub(super) fn is_due(&self) -> bool {
        // At half of them, so that events are taken on while it is written.
        let at = self.save_at();
        at.is_some_and(|at| self.unsaved >= CHECKPOINT_EVENTS / 2 || at <= Instant::now())
    }

    /// The next checkpoint is to be written as soon as it may.
    pub(super) fn save_soon(&mut self) {
        let now = Instant::now();
        self.saved_at = now.checked_sub(CHECKPOINT_EVERY).unwrap_or(now);
    }

    /// Returns the checkpoint of all acknowledged deliveries in its stored form. `commits` returns the last durable
    /// commit of each shard. The checkpoint counts as being written until [`Self::saved`].
    pub(super) fn begin_save(&mut self, commits: impl FnOnce() -> Vec<u64>) -> Option<Mark> {
        self.saved_at = Instant::now();
        let unsaved = std::mem::take(&mut self.unsaved);
        let (name, position) = (self.name.as_ref()?, self.acknowledged?);
        while self.prints.pop_front_if(|print| print.end() < position.offset).is_some() {}
        let checkpoint = Checkpoint::new(position, *self.prints.front()?, commits());
        (self.saving, self.lost) = (Some(unsaved), false);
        Some(Mark { name: name.clone(), value: checkpoint.encode().into() })
    }

    /// The checkpoint has been written.
    pub(super) fn saved(&mut self) {
        self.saving = None;
    }

    /// It has not been written.
    pub(super) fn not_saved(&mut self) {
        self.unsaved += self.saving.take().unwrap_or(0);
        self.lost = true;
    }

    /// The store may be at an earlier time: what it has of a checkpoint is too early.
    pub(super) fn may_be_lost(&mut self) {
        self.lost = self.name.is_some() && self.acknowledged.is_some();
    }

    /// Whether one is being written.
    pub(super) fn is_saving(&self) -> bool {
        self.saving.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_util::probe::Probe;
    use std::fs::File;
    use std::io::Write;

    fn file(text: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(text).expect("written");
        file
    }

    /// Where a file with this text is gone on with.
    fn resume(taken: &mut Taken, text: &[u8]) -> Option<u64> {
        let mark = taken.begin_save(Vec::new).expect("a checkpoint");
        let checkpoint = Checkpoint::decode(&mark.value).expect("decoded");
        checkpoint.resume(&file(text)).expect("compared").map(|position| position.offset)
    }

    #[test]
    fn a_checkpoint_within_a_batch_is_of_all_that_was_read_with_it() {
        let text = b"one\ntwo\nthree\nfour\n";
        let mut taken = Taken::new(Some("source/cases/events".to_owned()), None, 10);
        for ends in [&[4, 8, 14][..], &[19]] {
            let read = &text[..ends[ends.len() - 1]];
            taken.read(Some(Print::new(text, &Probe::new(read.len() as u64, read))));
            for (line, offset) in (1..).zip(ends) {
                taken.add(Position { offset: *offset as u64, line });
            }
        }
        assert!(taken.begin_save(Vec::new).is_none(), "nothing is acknowledged");

        taken.acknowledge(1);
        assert_eq!(resume(&mut taken, &text[..14]), Some(4));
        assert_eq!(resume(&mut taken, b"one\ntwo\nTHREE\n"), None, "another line was taken");
        taken.acknowledge(3);
        assert_eq!(resume(&mut taken, &text[..14]), Some(14), "of the second batch nothing is");
        taken.acknowledge(4);
        assert_eq!(resume(&mut taken, text), Some(19));
        assert_eq!(resume(&mut taken, text), Some(19), "the last one can be saved again");
        assert!(taken.is_empty() && !taken.is_due());
    }

    #[test]
    fn no_more_is_taken_than_a_crash_may_bring_again() {
        let mut taken = Taken::new(Some("source/cases/events".to_owned()), None, 10);
        let take_all = |taken: &mut Taken| {
            let before = taken.delivered;
            while taken.has_room() {
                let line = taken.delivered + 1;
                taken.add(Position { offset: line, line });
            }
            taken.delivered - before
        };
        let repeats = 10 + CHECKPOINT_EVENTS as u64;
        assert_eq!(take_all(&mut taken), repeats);
        taken.read(Some(Print::new(b"", &Probe::new(10 * repeats, b""))));
        taken.acknowledge(repeats);
        assert!(taken.is_due() && !taken.has_room());

        assert!(taken.begin_save(Vec::new).is_some());
        assert!(taken.is_saving() && !taken.is_due() && !taken.has_room(), "it is not durable");
        taken.saved();
        assert_eq!(take_all(&mut taken), repeats);
    }

    #[test]
    fn what_may_be_lost_is_saved_again_though_nothing_is_new() {
        let mut taken = Taken::new(Some("source/cases/events".to_owned()), None, 10);
        taken.may_be_lost();
        assert!(taken.save_at().is_none(), "there is nothing yet");
        taken.read(Some(Print::new(b"", &Probe::new(10, b""))));
        taken.add(Position { offset: 1, line: 1 });
        taken.acknowledge(1);
        let first = taken.begin_save(Vec::new).expect("a checkpoint");
        assert!(taken.save_at().is_none(), "it is being written");
        taken.may_be_lost();
        taken.saved();
        assert!(taken.save_at().is_some());
        assert_eq!(taken.begin_save(Vec::new).expect("a checkpoint").value, first.value);
        taken.not_saved();
        assert!(taken.save_at().is_some());
        assert_eq!(taken.begin_save(Vec::new).expect("a checkpoint").value, first.value);
        taken.saved();
        assert!(taken.save_at().is_none());
    }

    #[test]
    fn a_source_that_cannot_resume_is_never_held_back() {
        let mut taken = Taken::new(None, None, 10);
        for line in 1..=10_000 {
            assert!(taken.has_room());
            taken.add(Position { offset: line, line });
            taken.acknowledge(line);
            assert!(taken.begin_save(Vec::new).is_none() && !taken.is_saving());
        }
    }
}
