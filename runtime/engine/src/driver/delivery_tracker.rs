//! Tracks the unacknowledged deliveries of a source, and the checkpoint of the acknowledged deliveries.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ordain_core::DeliveryNumber;
use tokio::sync::watch;

use ordain_cloudevents::{AckProgress, FilePosition, SourceProgress};
use ordain_config::CHECKPOINT_INTERVAL_EVENTS;
use ordain_store::Mark;

/// Time between the beginnings of the writes of two checkpoints. The driver writes a checkpoint only if it is needed
/// ([`DeliveryTracker::needs_checkpoint`]). After many acknowledgements, the next checkpoint is due earlier.
const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(500);

/// The deliveries of a source, from the first unacknowledged delivery on.
pub(super) struct DeliveryTracker {
    /// `None` if the source cannot resume.
    checkpoint_name: Option<String>,
    /// `None` if the source needs no acknowledgements.
    acknowledgements: Option<watch::Sender<AckProgress>>,
    /// The epoch (number) of the subscription from which deliveries arrive.
    subscription_epoch: u64,
    earlier_deliveries: DeliveryNumber,
    delivered: DeliveryNumber,
    through: DeliveryNumber,
    /// The end position of each unacknowledged delivery, if the source has a checkpoint.
    positions: VecDeque<(DeliveryNumber, FilePosition)>,
    /// The newest acknowledged delivery and its end position, if the source has a checkpoint.
    acknowledged: Option<(DeliveryNumber, FilePosition)>,
    /// The batches of deliveries, from the batch of the newest checkpoint on. Each entry has the number of the batch's
    /// final delivery, and the progress of the source at the end of the batch.
    progress: VecDeque<(DeliveryNumber, SourceProgress)>,
    /// For each file, by the index of the file: the newest progress that a checkpoint has removed from `progress`. Each
    /// checkpoint keeps only the entries of this map that have the same list of files as the first batch in `progress`.
    earlier_progress: BTreeMap<usize, SourceProgress>,
    received: DeliveryNumber,
    /// Number of acknowledged deliveries that no checkpoint covers yet, or that only a refused checkpoint covers.
    unsaved: usize,
    /// The number of newly acknowledged deliveries in the checkpoint that is being written; `None` if the store is
    /// writing no checkpoint.
    saving: Option<usize>,
    /// `true` if the store has refused the newest checkpoint, or may have lost it.
    is_checkpoint_lost: bool,
    /// After a crash, the source repeats at most this number of deliveries.
    limit: usize,
    saved_at: Instant,
}

impl DeliveryTracker {
    /// Creates the tracker of a new source. `prefetch` is the maximum number of unacknowledged deliveries.
    pub(super) fn new(
        name: Option<String>,
        acknowledgements: Option<watch::Sender<AckProgress>>,
        prefetch: usize,
    ) -> Self {
        Self {
            checkpoint_name: name,
            acknowledgements,
            subscription_epoch: 0,
            earlier_deliveries: 0,
            delivered: 0,
            through: 0,
            positions: VecDeque::new(),
            acknowledged: None,
            progress: VecDeque::new(),
            earlier_progress: BTreeMap::new(),
            received: 0,
            unsaved: 0,
            saving: None,
            is_checkpoint_lost: false,
            limit: prefetch + CHECKPOINT_INTERVAL_EVENTS,
            saved_at: Instant::now(),
        }
    }

    /// Records the progress of the source at the end of a batch. The driver calls this method before it adds the
    /// deliveries of the batch.
    pub(super) fn record_progress(&mut self, progress: Option<SourceProgress>, deliveries: usize) {
        self.received += deliveries as u64;
        if self.checkpoint_name.is_some() && deliveries > 0 {
            self.progress.extend(progress.map(|progress| (self.received, progress)));
        }
    }

    /// If `epoch` is new, begins a new subscription, and forgets the unacknowledged deliveries of the previous one,
    /// because the source repeats them. Returns whether `epoch` is new.
    pub(super) fn switch_subscription(&mut self, epoch: u64) -> bool {
        let is_new = epoch != self.subscription_epoch;
        if is_new {
            self.subscription_epoch = epoch;
            self.earlier_deliveries = self.delivered;
            self.through = self.delivered;
            self.positions.clear();
        }
        is_new
    }

    pub(super) fn add(&mut self, position: FilePosition) -> DeliveryNumber {
        self.delivered += 1;
        if self.checkpoint_name.is_some() {
            self.positions.push_back((self.delivered, position));
        }
        self.delivered
    }

    pub(super) fn acknowledge(&mut self, through: DeliveryNumber) {
        self.through = through;
        if let Some(acknowledgements) = &self.acknowledgements {
            let subscription_epoch = self.subscription_epoch;
            let through = through - self.earlier_deliveries;
            acknowledgements.send_replace(AckProgress { subscription_epoch, through });
        }
        while let Some(acknowledged) =
            self.positions.pop_front_if(|(delivery, _)| *delivery <= through)
        {
            self.acknowledged = Some(acknowledged);
            self.unsaved += 1;
        }
    }

    /// Returns whether the tracker has room for one more delivery. After a crash, the source must not repeat more
    /// deliveries than the limit. Always `true` for a source without a checkpoint.
    pub(super) fn has_room(&self) -> bool {
        let repeats = self.positions.len() + self.unsaved + self.saving.unwrap_or(0);
        self.checkpoint_name.is_none() || repeats < self.limit
    }

    pub(super) fn is_empty(&self) -> bool {
        self.through == self.delivered
    }

    /// Returns whether a new checkpoint is needed. This is the case if deliveries were acknowledged since the newest
    /// checkpoint, or if the store has refused or may have lost this checkpoint. Always `false` for a source without a
    /// checkpoint.
    pub(super) fn needs_checkpoint(&self) -> bool {
        self.checkpoint_name.is_some() && (self.unsaved > 0 || self.is_checkpoint_lost)
    }

    /// Returns the time at which the next checkpoint is due; `None` if no checkpoint is needed, or if a checkpoint is
    /// being written.
    pub(super) fn next_checkpoint_at(&self) -> Option<Instant> {
        (self.needs_checkpoint() && self.saving.is_none())
            .then(|| self.saved_at + CHECKPOINT_INTERVAL)
    }

    pub(super) fn is_checkpoint_due(&self) -> bool {
        // A checkpoint is due when the number of newly acknowledged deliveries reaches half of
        // `CHECKPOINT_INTERVAL_EVENTS`. Deliveries can therefore continue while the checkpoint is written.
        let due_at = self.next_checkpoint_at();
        due_at.is_some_and(|at| {
            self.unsaved >= CHECKPOINT_INTERVAL_EVENTS / 2 || at <= Instant::now()
        })
    }

    /// Does nothing if no checkpoint is needed.
    pub(super) fn make_checkpoint_due(&mut self) {
        let now = Instant::now();
        self.saved_at = now.checked_sub(CHECKPOINT_INTERVAL).unwrap_or(now);
    }

    /// Returns the checkpoint of all acknowledged deliveries, if there are any and the source can resume. `commits`
    /// returns the newest durable commit of each shard. The checkpoint counts as being written until the driver calls
    /// [`Self::record_checkpoint`] or [`Self::record_failed_checkpoint`].
    pub(super) fn begin_checkpoint(&mut self, commits: impl FnOnce() -> Vec<u64>) -> Option<Mark> {
        self.saved_at = Instant::now();
        let unsaved = std::mem::take(&mut self.unsaved);
        let name = self.checkpoint_name.as_ref()?;
        let (delivery, position) = self.acknowledged?;
        while let Some((_, earlier)) = self.progress.pop_front_if(|(last, _)| *last < delivery) {
            self.earlier_progress.insert(earlier.index, earlier);
        }
        let (_, progress) = self.progress.front()?;
        self.earlier_progress.retain(|_, earlier| Arc::ptr_eq(&earlier.files, &progress.files));
        let checkpoint = progress.checkpoint(self.earlier_progress.values(), position, commits());
        self.saving = Some(unsaved);
        self.is_checkpoint_lost = false;
        Some(Mark { name: name.clone(), value: checkpoint.encode().into() })
    }

    pub(super) fn record_checkpoint(&mut self) {
        self.saving = None;
    }

    /// Records that the store refused a checkpoint. The deliveries of this checkpoint count as unsaved again.
    pub(super) fn record_failed_checkpoint(&mut self) {
        self.unsaved += self.saving.take().unwrap_or(0);
        self.is_checkpoint_lost = true;
    }

    /// Makes a new checkpoint necessary, because the store may have lost the newest checkpoint. Does nothing before the
    /// first acknowledgement.
    pub(super) fn invalidate_checkpoint(&mut self) {
        self.is_checkpoint_lost = self.checkpoint_name.is_some() && self.acknowledged.is_some();
    }

    pub(super) fn is_writing_checkpoint(&self) -> bool {
        self.saving.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_cloudevents::ReadFingerprint;
    use ordain_store::checkpoint::{Checkpoint, FileProgress};
    use ordain_util::tail_fingerprint::TailFingerprint;
    use std::fs::File;
    use std::io::Write;

    fn file(text: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(text).expect("written");
        file
    }

    /// Returns the offset at which the source would resume in a file with this text; `None` if the checkpoint does not
    /// match the text.
    fn resume(tracker: &mut DeliveryTracker, text: &[u8]) -> Option<u64> {
        let mark = tracker.begin_checkpoint(Vec::new).expect("a checkpoint");
        let checkpoint = Checkpoint::decode(&mark.value).expect("decoded");
        let [progress] = checkpoint.files() else { panic!("one file") };
        let matches = progress.print.matches(&file(text)).expect("compared");
        matches.then_some(progress.position().offset)
    }

    fn progress(read: &[u8]) -> SourceProgress {
        let metadata = file(read).metadata().expect("metadata");
        let print = ReadFingerprint::new(read, &TailFingerprint::new(read.len() as u64, read));
        let offset = read.len() as u64;
        let current = FileProgress::unread("events".to_owned(), &metadata)
            .at(FilePosition { offset, line: 0 }, print);
        SourceProgress { files: [current.clone()].into(), index: 0, current, compressed: None }
    }

    #[test]
    fn checkpoint_within_a_batch_verifies_the_whole_batch() {
        let text = b"one\ntwo\nthree\nfour\n";
        let mut tracker = DeliveryTracker::new(Some("source/cases/events".to_owned()), None, 10);
        for ends in [&[4, 8, 14][..], &[19]] {
            let read = &text[..ends[ends.len() - 1]];
            tracker.record_progress(Some(progress(read)), ends.len());
            for (line, offset) in (1..).zip(ends) {
                tracker.add(FilePosition { offset: *offset as u64, line });
            }
        }
        assert!(tracker.begin_checkpoint(Vec::new).is_none(), "nothing is acknowledged");

        tracker.acknowledge(1);
        assert_eq!(resume(&mut tracker, &text[..14]), Some(4));
        assert_eq!(
            resume(&mut tracker, b"one\ntwo\nTHREE\n"),
            None,
            "a line before the end of the batch has changed"
        );
        tracker.acknowledge(3);
        assert_eq!(
            resume(&mut tracker, &text[..14]),
            Some(14),
            "nothing of the second batch is acknowledged"
        );
        tracker.acknowledge(4);
        assert_eq!(resume(&mut tracker, text), Some(19));
        assert_eq!(resume(&mut tracker, text), Some(19), "the last checkpoint can be saved again");
        assert!(tracker.is_empty() && !tracker.is_checkpoint_due());
    }

    #[test]
    fn checkpoint_has_the_last_batch_of_each_file() {
        let mut tracker = DeliveryTracker::new(Some("source/cases/events".to_owned()), None, 10);
        let unread = FileProgress::unread("e".to_owned(), &file(b"").metadata().expect("metadata"));
        let files: Arc<[FileProgress]> = vec![unread; 3].into();
        for (index, read) in [(0, "1"), (1, "12"), (0, "123"), (2, "1234")] {
            let progress =
                SourceProgress { files: Arc::clone(&files), index, ..progress(read.as_bytes()) };
            tracker.record_progress(Some(progress), 1);
            tracker.add(FilePosition { offset: read.len() as u64, line: 1 });
        }
        let mut offsets = |through| {
            tracker.acknowledge(through);
            let mark = tracker.begin_checkpoint(Vec::new).expect("a checkpoint");
            let checkpoint = Checkpoint::decode(&mark.value).expect("decoded");
            checkpoint.files().iter().map(|file| file.position().offset).collect::<Vec<_>>()
        };
        assert_eq!(offsets(2), [1, 2, 0]);
        assert_eq!(offsets(4), [3, 2, 4]);
    }

    #[test]
    fn deliveries_stop_at_the_number_that_a_crash_may_repeat() {
        let mut tracker = DeliveryTracker::new(Some("source/cases/events".to_owned()), None, 10);
        let take_all = |tracker: &mut DeliveryTracker| {
            let before = tracker.delivered;
            while tracker.has_room() {
                let line = tracker.delivered + 1;
                tracker.record_progress(Some(progress(b"")), 1);
                tracker.add(FilePosition { offset: line, line });
            }
            tracker.delivered - before
        };
        let repeats = 10 + CHECKPOINT_INTERVAL_EVENTS as u64;
        assert_eq!(take_all(&mut tracker), repeats);
        tracker.acknowledge(repeats);
        assert!(tracker.is_checkpoint_due() && !tracker.has_room());

        assert!(tracker.begin_checkpoint(Vec::new).is_some());
        assert!(
            tracker.is_writing_checkpoint() && !tracker.is_checkpoint_due() && !tracker.has_room(),
            "the checkpoint is not durable"
        );
        tracker.record_checkpoint();
        assert_eq!(take_all(&mut tracker), repeats);
    }

    #[test]
    fn checkpoint_that_may_be_lost_is_written_again() {
        let mut tracker = DeliveryTracker::new(Some("source/cases/events".to_owned()), None, 10);
        tracker.invalidate_checkpoint();
        assert!(tracker.next_checkpoint_at().is_none(), "nothing is acknowledged yet");
        tracker.record_progress(Some(progress(b"1234567890")), 1);
        tracker.add(FilePosition { offset: 1, line: 1 });
        tracker.acknowledge(1);
        let first = tracker.begin_checkpoint(Vec::new).expect("a checkpoint");
        assert!(tracker.next_checkpoint_at().is_none(), "the checkpoint is being written");
        tracker.invalidate_checkpoint();
        tracker.record_checkpoint();
        assert!(tracker.next_checkpoint_at().is_some());
        assert_eq!(tracker.begin_checkpoint(Vec::new).expect("a checkpoint").value, first.value);
        tracker.record_failed_checkpoint();
        assert!(tracker.next_checkpoint_at().is_some());
        assert_eq!(tracker.begin_checkpoint(Vec::new).expect("a checkpoint").value, first.value);
        tracker.record_checkpoint();
        assert!(tracker.next_checkpoint_at().is_none());
    }

    #[test]
    fn source_without_checkpoint_is_never_held_back() {
        let mut tracker = DeliveryTracker::new(None, None, 10);
        for line in 1..=10_000 {
            assert!(tracker.has_room());
            tracker.add(FilePosition { offset: line, line });
            tracker.acknowledge(line);
            assert!(
                tracker.begin_checkpoint(Vec::new).is_none() && !tracker.is_writing_checkpoint()
            );
        }
    }
}
