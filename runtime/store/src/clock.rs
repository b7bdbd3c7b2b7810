//! A store's clock. The store's clock must never go back, even if the clock that it follows goes back. An expired entry
//! thus remains expired. The store's clock must also never stop. If the followed clock is behind, the store's clock
//! continues from its own time: an entry that expires in a second still expires after a second.
//!
//! In the embedded store, the store's clock follows the machine's clock. It starts at the newest time in the tables or
//! later. A process that ends cleanly writes the time of the store's clock. After a crash, the store's clock may go
//! back by [`CLOCK_LEAD_LIMIT_MS`], but never to a time before the last commit or assignment of messages. Therefore
//! only a read can see an expired entry again, and no commit or assignment depends on the lost time.
//!
//! In a store in Redis, the store's clock follows the clock of the Redis server, and only determines which data has
//! expired.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::StoreError;

/// The maximum number of ms by which the wall clock may be behind the newest time in the store. Above this number, the
/// store logs a warning when it is opened.
const CLOCK_WARNING_MS: u64 = 60_000;
/// The store's clock follows the wall clock immediately if the wall clock is ahead by at most this number of ms.
/// Corrections of a wall clock are usually smaller than this limit. Most periods for which a machine sleeps or a
/// process is stopped are also shorter.
pub const JUMP_LIMIT_MS: u64 = 60 * 60_000;
/// If the wall clock is ahead by more than [`JUMP_LIMIT_MS`], the store's clock follows only after the wall clock has
/// been ahead for this number of ms. Within this time, a machine that started with a wrong clock has usually corrected
/// its clock.
pub const JUMP_CONFIRMATION_MS: u64 = 10 * 60_000;
/// The maximum time between two reads of the wall clock that confirm a jump, in ms. A process may be stopped, or a
/// server may not answer, for longer than this time. The wall clock may have been right in the meantime, so the
/// confirmation then starts from the beginning. The limit is three times the interval at which the store in Redis reads
/// the clock of the server.
pub const CONFIRMING_READS_LIMIT_MS: u64 = 30_000;
/// The maximum time by which the store's clock may be ahead of the newest stored time, in ms. The limit is well below
/// [`JUMP_LIMIT_MS`]. If the wall clock is right, and the next start follows a crash within 50 minutes, the store's
/// clock therefore does not go back.
pub const CLOCK_LEAD_LIMIT_MS: u64 = 10 * 60_000;

/// Returns an error if the machine's clock shows a time before 1970: the engine writes the time into its files, and
/// panics at such a time.
pub fn check_machine_clock() -> Result<(), StoreError> {
    if SystemTime::now() >= UNIX_EPOCH {
        return Ok(());
    }
    let words = "the machine's clock shows a time before 1970: set the clock, then start again";
    Err(StoreError::Unavailable(words.to_owned()))
}

/// The source of the time, in ms.
#[derive(Clone)]
pub struct TimeSource {
    /// The name of the wall clock, for messages.
    name: Arc<str>,
    /// Returns the time since the Unix epoch, in ms. This time may go back.
    wall: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Returns the time since an arbitrary fixed moment, in ms. This time never goes back.
    steady: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl TimeSource {
    /// Creates a source that reads the machine's clocks.
    pub fn machine() -> Self {
        let wall = || {
            let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            elapsed.as_millis() as u64
        };
        let started = Instant::now();
        Self::new("the machine's clock", wall, move || started.elapsed().as_millis() as u64)
    }

    /// Creates a source from two functions. `name` is the name of the wall clock, for messages.
    pub fn new(
        name: impl Into<Arc<str>>,
        wall: impl Fn() -> u64 + Send + Sync + 'static,
        steady: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), wall: Arc::new(wall), steady: Arc::new(steady) }
    }
}

impl fmt::Debug for TimeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

#[derive(Debug)]
struct ClockJump {
    /// The time of the steady clock at the first read that saw the jump.
    first_read: u64,
    last_read: u64,
    /// The smallest difference between the wall clock and the steady clock that a read has seen since the first read.
    ahead: u64,
}

impl ClockJump {
    fn is_confirmed(&self) -> bool {
        self.last_read >= self.first_read.saturating_add(JUMP_CONFIRMATION_MS)
    }
}

/// A clock that never goes back: the steady clock plus an offset. When the wall clock is ahead of the sum, the offset
/// grows, so that the sum reaches the wall clock.
///
/// Key records, ids and dead letters expire by this clock, and the store then removes them. A wall clock that is wrong
/// must therefore not set this clock forward. If the wall clock is ahead by more than [`JUMP_LIMIT_MS`], the wall clock
/// has jumped, or the store was not used for a while. The offset then stays until reads of the wall clock have
/// confirmed the jump. The reads confirm a jump if, for [`JUMP_CONFIRMATION_MS`], each read saw a wall clock that was
/// ahead by more than [`JUMP_LIMIT_MS`]. The time between two reads must be at most [`CONFIRMING_READS_LIMIT_MS`].
/// After the confirmation, this clock advances by the smallest lead that these reads saw.
#[derive(Debug)]
pub struct MonotonicClock {
    source: TimeSource,
    offset: AtomicU64,
    /// Two threads may read the clocks in one order and return in the opposite order. Each function that returns the
    /// time therefore compares its result with this time, and returns the later of the two.
    newest: AtomicU64,
    jump: Mutex<Option<ClockJump>>,
    /// True if `jump` is not `None`. If there is no jump, no read of the clock locks `jump`.
    has_jumped: AtomicBool,
    /// The newest time of this clock in the tables.
    written: AtomicU64,
    /// False if the store is open only for reading: a jump is then neither logged nor ever confirmed, and the store
    /// does not write the time.
    may_jump: bool,
}

impl MonotonicClock {
    /// Creates a clock that is never earlier than `newest`, the newest time in the store. `seen` is the time of the
    /// wall clock at which an earlier process first saw a jump; 0 if no process saw a jump. If the wall clock is now at
    /// least [`JUMP_CONFIRMATION_MS`] later than `seen`, the jump counts as confirmed, and the clock starts at `seen`
    /// or later. If `may_jump` is `false`, no jump is ever confirmed. Also returns the time that the next process must
    /// get as `seen`; 0 if there is no jump.
    pub fn new(source: TimeSource, newest: u64, seen: u64, may_jump: bool) -> (Self, u64) {
        let wall = (source.wall)();
        let steady = (source.steady)();
        if wall.saturating_add(CLOCK_WARNING_MS) < newest {
            tracing::warn!(
                behind_ms = newest - wall,
                "{} is behind the newest time in the store, so the store continues from its own time; correct this \
                 clock if it is wrong",
                source.name
            );
        }
        let is_confirmed =
            may_jump && seen != 0 && seen.saturating_add(JUMP_CONFIRMATION_MS) <= wall;
        let mut start = if is_confirmed { newest.max(seen) } else { newest };
        let has_jumped = newest != 0 && wall > start.saturating_add(JUMP_LIMIT_MS);
        if !has_jumped {
            start = start.max(wall);
        }
        let first_seen = if seen != 0 && seen <= wall && !is_confirmed { seen } else { wall };
        // Records use 0 for "no time", so the clock starts at 1 or later.
        let start = start.max(1);
        let clock = Self {
            source,
            offset: AtomicU64::new(start.saturating_sub(steady)),
            newest: AtomicU64::new(start),
            jump: Mutex::new(None),
            has_jumped: AtomicBool::new(false),
            written: AtomicU64::new(newest),
            may_jump,
        };
        (clock, if has_jumped { first_seen } else { 0 })
    }

    /// Reads the wall clock, and returns the time of this clock. The time is never earlier than any time that this
    /// clock has returned before.
    pub fn now(&self) -> u64 {
        let steady = (self.source.steady)();
        let ahead = (self.source.wall)().saturating_sub(steady);
        if self.is_far(ahead) || self.has_jumped() {
            self.follow_jump(ahead, steady);
        } else {
            self.offset.fetch_max(ahead, Ordering::Relaxed);
        }
        self.time_at(steady)
    }

    /// Returns the time from which the life of new data counts. `now` is a result of [`Self::now`]. This clock may be
    /// behind a right wall clock, until a jump is confirmed. Data that is written in this time must not expire early
    /// after the confirmation, so its life counts from the time of the wall clock.
    pub fn life_start(&self, now: u64) -> u64 {
        if self.has_jumped() { now.max((self.source.wall)()) } else { now }
    }

    /// Returns the time without a read of the wall clock.
    pub fn time(&self) -> u64 {
        self.time_at((self.source.steady)())
    }

    /// Sets this clock to `time` if `time` is later: another process has already followed the wall clock to this time.
    pub fn advance_to(&self, time: u64) {
        let offset = time.saturating_sub((self.source.steady)());
        self.offset.fetch_max(offset, Ordering::Relaxed);
    }

    fn time_at(&self, steady: u64) -> u64 {
        let time = steady.saturating_add(self.offset.load(Ordering::Relaxed));
        self.newest.fetch_max(time, Ordering::Relaxed).max(time)
    }

    /// Returns whether the store must write the time `now` into the tables. This is so if `now` is ahead of the newest
    /// time in the tables by more than `lead` ms, and the store is open for writing.
    pub fn is_unwritten(&self, now: u64, lead: u64) -> bool {
        self.may_jump && now > self.written.load(Ordering::Relaxed).saturating_add(lead)
    }

    /// Returns whether the wall clock has jumped, and the jump is not confirmed yet. Only [`Self::now`] notices the
    /// beginning and the end of a jump.
    pub fn has_jumped(&self) -> bool {
        self.has_jumped.load(Ordering::Relaxed)
    }

    /// Records that the writer thread has written the time `now` into the tables.
    pub fn record_written(&self, now: u64) {
        self.written.fetch_max(now, Ordering::Relaxed);
    }

    /// Returns whether a wall clock with this difference to the steady clock is ahead of this clock by more than
    /// [`JUMP_LIMIT_MS`].
    fn is_far(&self, ahead: u64) -> bool {
        ahead > self.offset.load(Ordering::Relaxed).saturating_add(JUMP_LIMIT_MS)
    }

    /// Decides how far this clock follows a wall clock that has jumped, or that had jumped at the previous read.
    /// `ahead` is the difference between the wall clock and the steady clock.
    fn follow_jump(&self, ahead: u64, steady: u64) {
        if !self.may_jump {
            return;
        }
        let mut jump = self.jump.lock().unwrap_or_else(PoisonError::into_inner);
        jump.take_if(|jump| steady > jump.last_read.saturating_add(CONFIRMING_READS_LIMIT_MS));
        if let Some(jump) = &mut *jump {
            jump.last_read = jump.last_read.max(steady);
            jump.ahead = jump.ahead.min(ahead);
        }
        if self.is_far(ahead)
            && let Some(confirmed) = jump.take_if(|jump| jump.is_confirmed())
        {
            self.offset.fetch_max(confirmed.ahead, Ordering::Relaxed);
        }
        if !self.is_far(ahead) {
            *jump = None;
            self.offset.fetch_max(ahead, Ordering::Relaxed);
        } else if jump.is_none() {
            tracing::warn!(
                ahead_ms = ahead.saturating_sub(self.offset.load(Ordering::Relaxed)),
                confirmation_ms = JUMP_CONFIRMATION_MS,
                "{} is far ahead of the store's time (by `ahead_ms`): the store was not used for about this time, \
                 or this clock is wrong. The store continues from its own time and nothing expires, until the \
                 clock has been ahead for the time `confirmation_ms`; correct the clock if it is wrong",
                self.source.name
            );
            *jump = Some(ClockJump { first_read: steady, last_read: steady, ahead });
        }
        self.has_jumped.store(jump.is_some(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_MS: u64 = 1_700_000_000_000;
    const DAY_MS: u64 = 24 * 3_600_000;

    #[derive(Clone, Default)]
    struct Clocks {
        wall: Arc<AtomicU64>,
        steady: Arc<AtomicU64>,
    }

    impl Clocks {
        fn source(&self, wall: u64) -> TimeSource {
            self.wall.store(wall, Ordering::Relaxed);
            let Self { wall, steady } = self.clone();
            TimeSource::new(
                "the machine's clock",
                move || wall.load(Ordering::Relaxed),
                move || steady.load(Ordering::Relaxed),
            )
        }

        fn pass(&self, ms: u64) {
            self.wall.fetch_add(ms, Ordering::Relaxed);
            self.steady.fetch_add(ms, Ordering::Relaxed);
        }

        /// Passes this number of ms, with reads of the clock that can confirm a jump.
        fn pass_with_reads(&self, clock: &MonotonicClock, mut ms: u64) {
            while ms > 0 {
                let step = ms.min(CONFIRMING_READS_LIMIT_MS);
                self.pass(step);
                clock.now();
                ms -= step;
            }
        }
    }

    #[test]
    fn jump_within_a_run_counts_only_if_it_lasts() {
        let clocks = Clocks::default();
        let (clock, seen) = MonotonicClock::new(clocks.source(START_MS), 0, 0, true);
        assert_eq!((clock.now(), seen), (START_MS, 0));
        for wrong in [8 * DAY_MS, 400 * DAY_MS, JUMP_LIMIT_MS + 1] {
            let before = clock.now();
            clocks.wall.fetch_add(wrong, Ordering::Relaxed);
            assert_eq!(clock.now(), before);
            assert!(clock.has_jumped());
            clocks.pass_with_reads(&clock, JUMP_CONFIRMATION_MS - 1);
            assert_eq!(clock.now(), before + JUMP_CONFIRMATION_MS - 1);
            clocks.wall.fetch_sub(wrong, Ordering::Relaxed);
            assert_eq!(clock.now(), before + JUMP_CONFIRMATION_MS - 1);
            assert!(!clock.has_jumped());
        }
        // The clock follows a smaller step of the wall clock immediately, for example after the machine slept.
        let before = clock.now();
        clocks.wall.fetch_add(JUMP_LIMIT_MS, Ordering::Relaxed);
        assert_eq!(clock.now(), before + JUMP_LIMIT_MS);
        clocks.wall.fetch_add(DAY_MS, Ordering::Relaxed);
        clock.now();
        clocks.pass_with_reads(&clock, JUMP_CONFIRMATION_MS);
        assert_eq!(clock.now(), before + JUMP_LIMIT_MS + DAY_MS + JUMP_CONFIRMATION_MS);
        assert!(!clock.has_jumped());
    }

    /// A process may be stopped, or a server may not answer. The wall clock may have been right in the meantime.
    #[test]
    fn pause_between_two_reads_starts_the_confirmation_again() {
        let clocks = Clocks::default();
        let (clock, _) = MonotonicClock::new(clocks.source(START_MS), 0, 0, true);
        clocks.wall.fetch_add(40 * DAY_MS, Ordering::Relaxed);
        clock.now();
        let pause = JUMP_CONFIRMATION_MS;
        clocks.pass(pause);
        assert_eq!(clock.now(), START_MS + pause);
        clocks.pass_with_reads(&clock, JUMP_CONFIRMATION_MS - 1);
        let passed = pause + JUMP_CONFIRMATION_MS - 1;
        assert_eq!(clock.now(), START_MS + passed);
        clocks.pass(CONFIRMING_READS_LIMIT_MS + 1);
        assert_eq!(clock.now(), START_MS + passed + CONFIRMING_READS_LIMIT_MS + 1);
        clocks.pass_with_reads(&clock, JUMP_CONFIRMATION_MS);
        assert_eq!(clock.now(), clocks.wall.load(Ordering::Relaxed));
    }

    /// The clock advances only by the part of a lead that has lasted for the whole time of the confirmation.
    #[test]
    fn confirmed_jump_is_as_large_as_the_smallest_lead() {
        let clocks = Clocks::default();
        let (clock, _) = MonotonicClock::new(clocks.source(START_MS), 0, 0, true);
        let small = 2 * JUMP_LIMIT_MS;
        for lead in [3 * JUMP_LIMIT_MS, small, 400 * DAY_MS] {
            let right = START_MS + clocks.steady.load(Ordering::Relaxed);
            clocks.wall.store(right + lead, Ordering::Relaxed);
            clock.now();
            clocks.pass_with_reads(&clock, JUMP_CONFIRMATION_MS / 3);
        }
        assert_eq!(clock.now(), START_MS + small + JUMP_CONFIRMATION_MS);
        assert!(clock.has_jumped());
        clocks.pass_with_reads(&clock, JUMP_CONFIRMATION_MS - 1);
        assert_eq!(clock.now(), START_MS + small + 2 * JUMP_CONFIRMATION_MS - 1);
        clocks.pass(1);
        assert_eq!(clock.now(), clocks.wall.load(Ordering::Relaxed));
    }

    /// After a pause of the process, the wall clock may be right.
    #[test]
    fn new_data_lives_from_the_later_time() {
        let clocks = Clocks::default();
        let (clock, _) = MonotonicClock::new(clocks.source(START_MS), 0, 0, true);
        assert_eq!(clock.life_start(clock.now()), START_MS);
        clocks.wall.fetch_add(8 * DAY_MS, Ordering::Relaxed);
        let now = clock.now();
        assert_eq!((now, clock.life_start(now)), (START_MS, START_MS + 8 * DAY_MS));
        clocks.wall.fetch_sub(9 * DAY_MS, Ordering::Relaxed);
        assert_eq!(clock.life_start(now), START_MS);
        assert_eq!(clock.life_start(clock.now()), START_MS);
    }

    #[test]
    fn time_of_another_process_ends_a_jump() {
        let clocks = Clocks::default();
        let (clock, _) = MonotonicClock::new(clocks.source(START_MS), 0, 0, true);
        clocks.wall.fetch_add(DAY_MS, Ordering::Relaxed);
        clock.now();
        clocks.pass(1_000);
        assert!(clock.has_jumped());
        clock.advance_to(START_MS + DAY_MS);
        assert_eq!(clock.time(), START_MS + DAY_MS);
        assert_eq!(clock.now(), START_MS + DAY_MS + 1_000);
        assert!(!clock.has_jumped());
        clock.advance_to(START_MS);
        assert_eq!(clock.now(), START_MS + DAY_MS + 1_000);
    }

    #[test]
    fn time_is_not_changed_by_the_wall_clock_until_a_read() {
        let clocks = Clocks::default();
        let (clock, _) = MonotonicClock::new(clocks.source(START_MS), 0, 0, true);
        clocks.wall.fetch_add(JUMP_LIMIT_MS, Ordering::Relaxed);
        clocks.steady.fetch_add(1, Ordering::Relaxed);
        assert_eq!(clock.time(), START_MS + 1);
        assert_eq!(clock.now(), START_MS + JUMP_LIMIT_MS);
        assert_eq!(clock.time(), START_MS + JUMP_LIMIT_MS);
    }

    #[test]
    fn jump_between_runs_counts_only_if_it_lasts() {
        let open = |wall: u64, newest: u64, seen: u64| {
            let (clock, seen) =
                MonotonicClock::new(Clocks::default().source(wall), newest, seen, true);
            (clock.now(), seen)
        };
        assert_eq!(open(START_MS + JUMP_LIMIT_MS, START_MS, 0), (START_MS + JUMP_LIMIT_MS, 0));
        let wrong = START_MS + 8 * DAY_MS;
        assert_eq!(open(wrong, START_MS, 0), (START_MS, wrong));
        assert_eq!(
            open(wrong + 1_000, START_MS, wrong),
            (START_MS, wrong),
            "the jump is too young"
        );
        assert_eq!(
            open(START_MS + 1_000, START_MS, wrong),
            (START_MS + 1_000, 0),
            "the clock is right again"
        );
        assert_eq!(
            open(START_MS + DAY_MS, START_MS, wrong),
            (START_MS, START_MS + DAY_MS),
            "another jump"
        );
        // If a process runs only once a week, each run starts at the time of the wall clock in the previous run.
        let later = wrong + 7 * DAY_MS;
        assert_eq!(open(later, START_MS, wrong), (wrong, later));
        let soon = wrong + JUMP_CONFIRMATION_MS;
        assert_eq!(open(soon, START_MS, wrong), (soon, 0), "the jump has lasted");
    }

    #[test]
    fn reader_never_moves_the_time() {
        let clocks = Clocks::default();
        let wrong = START_MS + 8 * DAY_MS;
        let (clock, _) =
            MonotonicClock::new(clocks.source(wrong), START_MS, START_MS + DAY_MS, false);
        clocks.pass(2 * JUMP_CONFIRMATION_MS);
        assert_eq!(clock.now(), START_MS + 2 * JUMP_CONFIRMATION_MS);
    }
}
