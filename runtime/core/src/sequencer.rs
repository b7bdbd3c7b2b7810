//! The sequencer of one partition.
//!
//! Call the sequencer in this order: [`Sequencer::handle`] for each available input, then [`Sequencer::poll_effect`]
//! until it returns `None`. Only `poll_effect` forms commits and turns. Because the sequencer has handled all available
//! inputs before `poll_effect` runs, the commits and turns are as large as the inputs allow. When `poll_effect` has
//! returned `None`, sleep until the next input, but at most until the time that [`Sequencer::poll_timeout`] returns. At
//! that time, call [`Sequencer::handle_timeout`].
//!
//! Each part of the sequencer is in its own file. A lane is the in-memory queue of one active key. `arrive` decides
//! what happens to an arriving event. `repeat` decides about an event that arrives again; for this decision,
//! `settled_events` keeps digests of settled events. `dispatch` forms turns and accepts their results; `other_types`
//! settles the events that the handler does not execute because of their types. `retry` handles failures, and `gap`
//! handles missing events. `passed_letters` removes or replaces early dead letters whose sequences the key has passed.
//! `spill` moves events between memory and store. `commit` forms batches and handles the replies. `load` loads and
//! evicts lanes, and `restart` restarts them. `due` reads the due index of the store, and loads the keys that are due.
//! All parts call `reschedule` after they have changed a lane. The code of a lane (`lane`, with `held` and `chunk`)
//! must never access another lane.

/// Always `false` without the feature `faults`.
macro_rules! fault {
    ($sequencer:expr, $fault:ident) => {{
        #[cfg(feature = "faults")]
        let on = $sequencer.fault == Some($crate::fault::SequencerFault::$fault);
        #[cfg(not(feature = "faults"))]
        let on = false;
        on
    }};
}

mod arrive;
mod chunk;
mod cold_state;
mod commit;
mod delivery_window;
mod dispatch;
mod due;
mod gap;
mod gap_history;
mod held;
mod ids;
mod jitter;
mod lane;
mod lanes;
mod letters;
mod load;
mod memory;
mod other_types;
mod outstanding;
mod passed_letters;
mod repeat;
mod reschedule;
mod restart;
mod retry;
mod settled_events;
mod spill;
mod timers;

use std::collections::VecDeque;
use std::sync::Arc;

use self::commit::ShardState;
use self::delivery_window::DeliveryWindow;
use self::due::DueScan;
use self::jitter::Jitter;
use self::lanes::{LaneList, LaneTable};
use self::outstanding::OutstandingRequests;
use self::settled_events::SettledEvents;
use self::timers::LaneTimers;
use crate::effect::Effect;
use crate::event::{Event, Key};
use crate::input::Input;
use crate::settings::{OrderingMode, SequencerSettings};
use crate::stats::{LaneState, Stats};
use crate::turn::AttemptToken;

/// Maximum number of keys that [`Sequencer::take_resumed_keys`] returns.
const RESUMED_KEYS_LIMIT: usize = 32;
/// Maximum number of events that [`Sequencer::take_unverified_duplicates`] returns.
const UNVERIFIED_DUPLICATES_LIMIT: usize = 32;

/// The state machine that decides what happens to each event of one partition, and when.
#[derive(Debug)]
pub struct Sequencer {
    settings: SequencerSettings,
    /// The time when the sequencer was created, just after this owner had claimed the partition.
    claimed_at: u64,
    now: u64,
    serial: u64,
    lanes: LaneTable,
    window: DeliveryWindow,
    shards: Vec<ShardState>,
    ready: VecDeque<u32>,
    /// The lanes whose key record the sequencer has not requested yet.
    loads: VecDeque<u32>,
    outstanding_loads: OutstandingRequests,
    /// The keys of [`Input::Reload`], which are loaded when lanes become free.
    reload_requests: VecDeque<Key>,
    outstanding_pages: OutstandingRequests,
    outstanding_replays: OutstandingRequests,
    outstanding_letter_reads: OutstandingRequests,
    turns: usize,
    ahead: usize,
    /// The bytes of the events, states, outcomes, unpublished messages and kept commits in memory.
    memory: usize,
    /// The bytes of kept commits, which `memory` includes. The sequencer keeps its latest commits in case the store
    /// loses them.
    history_bytes: usize,
    /// Digests of settled events, including digests that the key records no longer have.
    settled_events: SettledEvents,
    /// The largest recent size of a turn's outcome, in bytes. While outcomes are smaller than this value, the value
    /// decreases gradually.
    outcome_bytes: usize,
    /// The newest turn that started although the memory budget was full, and its start time; `None` after the end of
    /// this turn.
    over_budget_turn: Option<(AttemptToken, u64)>,
    outbox: usize,
    /// The number of lanes that will change even if no event arrives, because of a gap with a time limit or a scheduled
    /// load.
    changing_lanes: usize,
    timers: LaneTimers,
    due: DueScan,
    jitter: Jitter,
    effects: VecDeque<Effect>,
    source_has_ended: bool,
    /// Until this time, the sequencer does not apply `gap.on_exhausted`, because the source is unavailable or was
    /// unavailable recently.
    gaps_held_until: u64,
    /// The current limit of unacknowledged deliveries.
    prefetch: usize,
    draining: bool,
    stopped: bool,
    /// See [`Sequencer::newest_rollout`].
    newest_rollout: u64,
    stats: Stats,
    /// See [`Sequencer::settled_times`].
    settled_times: Vec<Option<u64>>,
    /// See [`Sequencer::take_resumed_keys`].
    resumed_keys: Vec<(Key, u64)>,
    /// See [`Sequencer::take_unverified_duplicates`].
    unverified_duplicates: Vec<Arc<Event>>,
    #[cfg(feature = "faults")]
    fault: Option<crate::fault::SequencerFault>,
}

impl Sequencer {
    /// Creates a sequencer for a partition that has just been claimed. `commits` contains the number of the newest
    /// commit of each shard.
    pub fn new(settings: SequencerSettings, commits: &[u64], now: u64) -> Self {
        assert!(
            settings.first == 1 || settings.ordering == OrderingMode::Sequenced,
            "a fifo stream must begin at 1"
        );
        assert!(
            !settings.begins_anywhere
                || (settings.first == 0 && settings.ordering == OrderingMode::Sequenced),
            "`begins_anywhere` needs a sequenced stream with `first` = 0"
        );
        assert_eq!(commits.len(), settings.shards as usize, "one commit number for each shard");
        Self {
            claimed_at: now,
            now,
            serial: 0,
            lanes: LaneTable::new(),
            window: DeliveryWindow::new(),
            shards: commits.iter().map(|number| ShardState::new(*number)).collect(),
            ready: VecDeque::new(),
            loads: VecDeque::new(),
            outstanding_loads: OutstandingRequests::default(),
            reload_requests: VecDeque::new(),
            outstanding_pages: OutstandingRequests::default(),
            outstanding_replays: OutstandingRequests::default(),
            outstanding_letter_reads: OutstandingRequests::default(),
            turns: 0,
            ahead: 0,
            memory: 0,
            history_bytes: 0,
            settled_events: SettledEvents::default(),
            outcome_bytes: 0,
            over_budget_turn: None,
            outbox: 0,
            changing_lanes: 0,
            timers: LaneTimers::default(),
            due: DueScan::new(now),
            jitter: Jitter::new(settings.seed),
            effects: VecDeque::new(),
            source_has_ended: false,
            gaps_held_until: 0,
            draining: false,
            stopped: false,
            newest_rollout: 0,
            stats: Stats::default(),
            settled_times: Vec::new(),
            resumed_keys: Vec::new(),
            unverified_duplicates: Vec::new(),
            prefetch: settings.prefetch,
            settings,
            #[cfg(feature = "faults")]
            fault: None,
        }
    }

    // Getters.

    /// Returns how many more deliveries and early events the sequencer accepts now.
    pub fn credit(&self) -> usize {
        if self.draining || self.stopped || self.is_nearly_full() {
            return 0;
        }
        let prefetch_room = self.prefetch.saturating_sub(self.window.len());
        prefetch_room.min(self.room())
    }

    /// Returns whether no commit is in progress or waiting, and all committed messages are published.
    fn all_published(&self) -> bool {
        self.outbox == 0 && self.committed_all()
    }

    fn committed_all(&self) -> bool {
        self.shards.iter().all(ShardState::is_quiet)
    }

    /// Returns whether the sequencer is at rest: all accepted events are settled or spilled, and only another event,
    /// another handler version or a manual action can cause a change.
    pub fn quiescent(&self) -> bool {
        let resting = [LaneState::Idle, LaneState::Waiting, LaneState::Parked, LaneState::Broken];
        self.drained()
            && self.outbox == 0
            && self.window.len() == 0
            && self.ready.is_empty()
            && self.outstanding_pages.len() == 0
            && self.outstanding_replays.len() == 0
            && self.outstanding_letter_reads.len() == 0
            && self.outstanding_loads.len() == 0
            && self.loads.is_empty()
            && self.reload_requests.is_empty()
            && self.due.is_finished()
            && LaneState::ALL
                .iter()
                .filter(|state| !resting.contains(state))
                .all(|state| self.stats.lanes_by_state[*state as usize] == 0)
            && self.all_wait_forever()
    }

    /// Returns whether no turn is in progress, and no commit is in progress or waiting. After [`Input::Drain`], a
    /// result of `true` means that the sequencer has no work left except publishing, which ends when [`Stats::outbox`]
    /// is 0.
    pub fn drained(&self) -> bool {
        self.turns == 0 && self.committed_all()
    }

    /// Returns, for each event that the newest applied commit settled, the time that the producer gave the event;
    /// `None` for an event without a time.
    pub fn settled_times(&self) -> &[Option<u64>] {
        &self.settled_times
    }

    /// Returns the keys that have resumed since the last call, each with a sequence. A key resumes when the missing
    /// event with this sequence arrives. No replay round had found this event, so the key was parked or waited without
    /// a time limit. Returns at most `RESUMED_KEYS_LIMIT` keys, and leaves out the others.
    pub fn take_resumed_keys(&mut self) -> Vec<(Key, u64)> {
        std::mem::take(&mut self.resumed_keys)
    }

    /// Returns the store-numbered events that the sequencer has counted as repeats since the last call, although it no
    /// longer knew the digest of the settled event with the same sequence. Such an event is usually a repeat. But after
    /// the store has gone back in time, this event can be another event to which the store gave the number of a lost
    /// event. Returns at most `UNVERIFIED_DUPLICATES_LIMIT` events, and leaves out the others.
    pub fn take_unverified_duplicates(&mut self) -> Vec<Arc<Event>> {
        std::mem::take(&mut self.unverified_duplicates)
    }

    /// Records that a key continues because the missing event with this sequence has arrived.
    fn record_resumed_key(&mut self, index: u32, sequence: u64) {
        if self.resumed_keys.len() < RESUMED_KEYS_LIMIT {
            let key = Key::clone(&self.lanes[index].key);
            self.resumed_keys.push((key, sequence));
        }
    }

    /// Returns the key that prevents the sequencer from accepting events, and the sequence of the event at which the
    /// key stopped. A key prevents the sequencer from accepting events if three conditions hold:
    /// - The key is parked, or waits without a time limit for a missing event.
    /// - The store already holds `spill_limit` events of the key.
    /// - The setting `overflow` is `pause`.
    ///
    /// Usually, only an operator's action or another handler version can release the key. Returns `None` if there is no
    /// such key.
    pub fn stopped_by(&self) -> Option<(&Key, u64)> {
        if self.credit() > 0 || self.turns > 0 || !self.shards.iter().all(ShardState::is_quiet) {
            return None;
        }
        let lane = self.lanes.get(self.window.oldest()?.lane)?;
        let for_ever =
            lane.parked() || lane.cold.gap.as_ref().is_some_and(gap::LaneGap::waits_forever);
        (for_ever && lane.durable_but_full(&self.settings)).then_some((&lane.key, lane.done))
    }

    /// Returns whether a shard of the store may have gone back in time (lost its newest commits) since its newest
    /// answer. As long as the result is `true`, the store may have lost committed data. The owner must therefore write
    /// nothing that depends on committed data.
    pub fn in_doubt(&self) -> bool {
        self.shards.iter().any(ShardState::is_in_doubt)
    }

    /// Returns the number of keys of [`Input::Reload`] that wait for a lane. While keys wait, callers must not send
    /// more such inputs.
    pub fn pending_reloads(&self) -> usize {
        self.reload_requests.len()
    }

    /// Returns the highest rollout number that any key has needed and that the sequencer did not know at that time; 0
    /// if no key has needed an unknown rollout.
    pub fn newest_rollout(&self) -> u64 {
        self.newest_rollout
    }

    /// Returns the counters and gauges.
    pub fn stats(&self) -> Stats {
        Stats {
            lanes: self.lanes.len(),
            memory: self.memory,
            unacknowledged: self.window.len(),
            ahead: self.ahead,
            turns: self.turns,
            loads: self.outstanding_loads.len(),
            outbox: self.outbox,
            ..self.stats
        }
    }

    /// Activates a deliberate fault.
    #[cfg(feature = "faults")]
    pub fn inject(&mut self, fault: crate::fault::SequencerFault) {
        self.fault = Some(fault);
    }

    // Inputs.

    /// Handles an input that happened at `now`, in ms. If an earlier call had a higher `now`, the sequencer uses the
    /// higher time.
    pub fn handle(&mut self, now: u64, input: Input) {
        self.now = self.now.max(now);
        if self.stopped {
            return;
        }
        match input {
            Input::Arrived { delivery, event } => self.arrived(delivery, event),
            Input::Unreadable { delivery, letter } => self.unreadable(delivery, *letter),
            Input::ArrivedEarly(event) => self.arrived_early(event),
            Input::SourceUnavailable(true) => self.gaps_held_until = u64::MAX,
            Input::SourceUnavailable(false) => self.source_available(),
            Input::SourceReset => self.window.reset(),
            Input::Prefetch(deliveries) => self.prefetch = deliveries.max(1),
            Input::SourceEnded => self.source_ended(),
            Input::Loaded { token, loaded } => self.loaded(token, loaded),
            Input::TurnDone(done) => self.turn_done(done),
            Input::Committed { shard, number, reply } => self.committed(shard, number, reply),
            Input::SpillRead { token, read } => self.spill_read(token, read),
            Input::Replayed { token, found, until, failed } => {
                self.replayed(token, found, until, failed.as_deref());
            }
            Input::EarlyLettersRead { token, letters, until } => {
                self.early_letters_read(token, letters, until);
            }
            Input::StoreMayHaveRolledBack => self.doubt_all_shards(),
            Input::DueRead { entries, next_in } => self.due_read(entries, next_in),
            Input::OutboxBacklog { shard, through, messages, bytes } => {
                self.count_backlog(shard, (through, messages, bytes));
            }
            Input::Published { shard, through } => self.published(shard, through),
            Input::Reload(key) => self.reload_requests.push_back(key),
            Input::VersionChanged(version) => self.version_changed(version),
            Input::Drain => self.draining = true,
        }
    }

    /// Handles the deadlines of lanes that have passed at `now`. If the sequencer got no reply to a batch, and the
    /// delay before the repetition has passed at `now`, sends the batch again. The next [`Self::poll_effect`] handles
    /// all other timeouts.
    pub fn handle_timeout(&mut self, now: u64) {
        self.now = self.now.max(now);
        if self.stopped {
            return;
        }
        while let Some((index, serial)) = self.timers.pop(self.now) {
            if self.lanes.get(index).is_some_and(|lane| lane.serial == serial) {
                self.lane_timeout(index);
            }
        }
        self.resend();
    }

    // Outputs.

    /// Returns the next effect; `None` if the sequencer requests nothing more before the next input or timeout.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        if self.effects.is_empty() && !self.stopped {
            self.free_memory();
            self.load_requested();
            self.start_loads();
            self.close_batches();
            if self.dispatch() {
                // `dispatch` has settled events without a turn, so no result of a turn would later cause their commit.
                self.close_batches();
            }
            self.read_due();
            if let Some(through) = self.window.acknowledge() {
                self.effects.push_back(Effect::Ack { through });
            }
        }
        self.effects.pop_front()
    }

    /// Returns the time at which to call [`Self::handle_timeout`] if no input arrives before that time; `None` if there
    /// is no timeout.
    pub fn poll_timeout(&self) -> Option<u64> {
        if self.stopped {
            return None;
        }
        let resend = self.shards.iter().filter_map(|shard| shard.resend_at).min();
        let due = self.due.at().filter(|_| !self.draining && self.settings.rollout.is_some());
        [self.timers.next(), self.spill_timeout(), self.over_budget_timeout(), due, resend]
            .into_iter()
            .flatten()
            .min()
    }

    // Shared by the parts.

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Counts unused lanes, and lanes that can be evicted.
    fn room(&self) -> usize {
        let leaving = self.lanes.count(LaneList::Evictable);
        (self.settings.max_lanes + leaving).saturating_sub(self.lanes.len())
    }
}
