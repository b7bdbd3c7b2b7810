//! Tests of the expiry of event ids of a `fifo` key. These tests need longer times and more events than the simulation
//! has.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use ordain_config::CHECKPOINT_INTERVAL_EVENTS;
use ordain_core::{
    AcceptedId, AppliedCommit, Batch, CommitReply, Effect, Event, EventParts, Input, KeyRecord,
    KeySnapshot, Sequencer, SequencerSettings,
};

use super::sequencer_support::{event_parts, settings, turn_without_messages};

const MINUTE_MS: u64 = 60_000;
/// The time of the store's clock at the sequencer's time 0, in milliseconds.
const STORE_EPOCH: u64 = 1_700_000_000_000;
/// The number of newest ids that do not expire: the default prefetch of a file source plus the number of events between
/// two checkpoints. After a crash, the source may deliver the events with these ids again.
const FLOOR: u64 = 4_000 + CHECKPOINT_INTERVAL_EVENTS as u64;

struct Rig {
    settings: SequencerSettings,
    sequencer: Sequencer,
    commits: u64,
    delivery: u64,
    record: Option<KeyRecord>,
    ids: BTreeMap<u64, AcceptedId>,
    /// True if the store neither applies nor answers commits, but keeps them in `unanswered`.
    is_unresponsive: bool,
    unanswered: Vec<Arc<Batch>>,
}

impl Rig {
    fn new() -> Result<Self> {
        let settings = settings("ordering = \"fifo\"\nid_window = 20_000\nid_ttl = \"1h\"")?;
        let sequencer = Sequencer::new(settings.clone(), &[0], 0);
        Ok(Self {
            settings,
            sequencer,
            commits: 0,
            delivery: 0,
            record: None,
            ids: BTreeMap::new(),
            is_unresponsive: false,
            unanswered: Vec::new(),
        })
    }

    /// Starts a new sequencer, as after a restart of the process. The clock of the new sequencer starts at 0.
    fn restart(&mut self) {
        self.sequencer = Sequencer::new(self.settings.clone(), &[self.commits], 0);
        self.delivery = 0;
    }

    /// Delivers events whose ids are the given numbers. Returns how many of the events are new.
    fn deliver(
        &mut self,
        now: u64,
        store_time: u64,
        numbers: impl IntoIterator<Item = u64>,
    ) -> u64 {
        let before = self.sequencer.stats().settled;
        for number in numbers {
            self.deliver_from("", now, store_time, number);
        }
        self.sequencer.stats().settled - before
    }

    /// Delivers an event from `source` whose id is the given number. Returns whether the event is new.
    fn deliver_from(&mut self, source: &str, now: u64, store_time: u64, number: u64) -> bool {
        let before = self.sequencer.stats().settled;
        self.delivery += 1;
        let id = number.to_string();
        let parts = EventParts { id: &id, source, ..event_parts() };
        let event = Arc::new(Event::new(&parts));
        self.sequencer.handle(now, Input::Arrived { delivery: self.delivery, event });
        self.perform(now, store_time);
        self.sequencer.stats().settled > before
    }

    /// Applies a batch to the stored record. Returns the store's reply.
    fn commit(&mut self, batch: &Batch, store_time: u64) -> Input {
        for write in &batch.writes {
            let mut record = write.record.clone();
            record.fill_times(store_time);
            self.ids.extend(write.ids.iter().map(|taken| (taken.sequence, *taken)));
            self.ids.retain(|sequence, _| *sequence >= record.ids_from);
            self.record = Some(record);
        }
        self.commits = batch.number;
        let reply =
            CommitReply::Applied(AppliedCommit { time: store_time, ..AppliedCommit::default() });
        Input::Committed { shard: batch.shard, number: batch.number, reply }
    }

    /// Makes the store answer again. The store applies the unanswered commits at its time `store_time`, and the
    /// sequencer receives the replies at its time `now`.
    fn answer(&mut self, now: u64, store_time: u64) {
        self.is_unresponsive = false;
        for batch in std::mem::take(&mut self.unanswered) {
            let answer = self.commit(&batch, store_time);
            self.sequencer.handle(now, answer);
            self.perform(now, store_time);
        }
    }

    fn perform(&mut self, now: u64, store_time: u64) {
        while let Some(effect) = self.sequencer.poll_effect() {
            let answer = match effect {
                Effect::Run(turn) => turn_without_messages(&turn),
                Effect::Commit(batch) if self.is_unresponsive => {
                    self.unanswered.push(batch);
                    continue;
                }
                Effect::Commit(batch) => self.commit(&batch, store_time),
                Effect::Load { token, .. } => {
                    let loaded = self.record.clone().map(|record| KeySnapshot {
                        record,
                        state: None,
                        ids: self.ids.values().copied().collect(),
                        now: store_time,
                        due_in: None,
                        expire_in: None,
                        moved_from: None,
                    });
                    Input::Loaded { token, loaded: Ok(loaded.map(Box::new)) }
                }
                Effect::ReadDue { .. } => Input::DueRead { entries: Vec::new(), next_in: None },
                Effect::Ack { .. } => continue,
                effect => panic!("these tests do not cause {effect:?}"),
            };
            self.sequencer.handle(now, answer);
        }
    }
}

#[test]
fn old_id_is_forgotten_unless_a_crash_can_repeat_its_event() -> Result<()> {
    let mut rig = Rig::new()?;
    let at = |minutes: u64| (minutes * MINUTE_MS, STORE_EPOCH + minutes * MINUTE_MS);
    let (now, time) = at(0);
    assert_eq!(rig.deliver(now, time, 1..=10), 10);
    let (now, time) = at(20);
    assert_eq!(rig.deliver(now, time, 11..=FLOOR + 10), FLOOR);

    let (now, time) = at(59);
    assert_eq!(rig.deliver(now, time, 1..=FLOOR + 10), 0, "no id has expired yet");
    let (now, time) = at(120);
    let repeats = 11..=FLOOR + 10;
    assert_eq!(rig.deliver(now, time, repeats), 0, "a crash can repeat these newest events");
    assert_eq!(rig.deliver(now, time, 1..=10), 10, "the ids of events 1 to 10 have expired");
    assert_eq!(rig.deliver(now, time, 1..=10), 0, "the store has these ids again");
    assert_eq!(rig.ids.len() as u64, FLOOR + 1, "the next write removes one more id");
    Ok(())
}

/// The source and the id together identify an event. But an event without a source counts as a repeat of an event with
/// the same id from any source. An event with a source counts as a repeat of an event with the same id without a
/// source.
#[test]
fn source_and_id_identify_an_event() -> Result<()> {
    let mut rig = Rig::new()?;
    for _ in 0..2 {
        let is_first = rig.ids.is_empty();
        // For both of the last two events, the source followed by the id is the text `/a11`.
        for (source, id) in [("/a", 1), ("/b", 1), ("/a1", 1), ("/a", 11)] {
            let is_new = rig.deliver_from(source, 0, STORE_EPOCH, id);
            assert_eq!(is_new, is_first, "{source} {id}");
        }
        rig.restart();
    }
    assert!(rig.deliver_from("", 0, STORE_EPOCH, 2));
    rig.restart();
    assert!(!rig.deliver_from("/a", 0, STORE_EPOCH, 2), "the id was stored without a source");
    assert!(!rig.deliver_from("", 0, STORE_EPOCH, 2));
    assert!(!rig.deliver_from("", 0, STORE_EPOCH, 11), "the id was stored with a source");
    assert_eq!(rig.ids.len(), 5);
    assert!(rig.deliver_from("/b", 0, STORE_EPOCH, 11));
    rig.restart();
    for source in ["/a", "/b", ""] {
        assert!(!rig.deliver_from(source, 0, STORE_EPOCH, 11), "{source}");
    }
    Ok(())
}

#[test]
fn ids_expire_while_no_process_runs() -> Result<()> {
    let mut rig = Rig::new()?;
    assert_eq!(rig.deliver(0, STORE_EPOCH, 1..=10), 10);
    rig.restart();
    assert_eq!(rig.deliver(0, STORE_EPOCH + 30 * MINUTE_MS, 1..=FLOOR + 10), FLOOR);
    rig.restart();
    assert_eq!(rig.deliver(0, STORE_EPOCH + 59 * MINUTE_MS, 1..=FLOOR + 10), 0);
    rig.restart();
    assert_eq!(
        rig.deliver(0, STORE_EPOCH + 75 * MINUTE_MS, [1]),
        1,
        "the id of event 1 has expired"
    );
    assert_eq!(rig.deliver(0, STORE_EPOCH + 75 * MINUTE_MS, 11..=FLOOR + 10), 0);
    Ok(())
}

#[test]
fn age_of_an_id_starts_with_its_commit() -> Result<()> {
    let mut rig = Rig::new()?;
    rig.settings.id_floor = 2;
    rig.restart();
    let at = |minutes: u64| (minutes * MINUTE_MS, STORE_EPOCH + minutes * MINUTE_MS);
    let (now, time) = at(0);
    let (later, later_time) = at(100);
    assert_eq!(rig.deliver(now, time, 1..=10), 10);
    rig.is_unresponsive = true;
    assert_eq!(rig.deliver(now, time, 11..=20), 0, "the commit has no answer yet");
    rig.answer(later, later_time);
    assert_eq!(rig.sequencer.stats().settled, 20);

    assert_eq!(rig.deliver(later, later_time, 11..=20), 0, "no id has expired yet");
    assert_eq!(rig.deliver(later, later_time, 1..=10), 10, "the ids of these events have expired");
    Ok(())
}
