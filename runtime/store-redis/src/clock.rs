//! The clock by which the data of the store expires.
//!
//! A Redis server may have a wrong clock for a while, and expired data is removed for good. Each process therefore has
//! a [`StoreClock`], which follows the clock of the server. In a Cluster, the clock of the server is the lowest of the
//! clocks of all masters, so that a single clock that is far ahead does not make data expire. The process regularly
//! reads the clock of the server. Between two reads, the [`StoreClock`] advances only by the time that the process
//! measures itself. If the server's clock jumps forward, the [`StoreClock`] follows only after later reads have
//! confirmed the jump ([`MonotonicClock`]). Each call of a script contains the time of this clock. The scripts compare
//! it with the time of their own server (`expiry_times` in `scripts/common.lua`).
//!
//! The Redis key `store` has a record of the clock, so that the clock of the next process continues from it. The record
//! is a field that other versions of Ordain ignore. If the store goes back in time, the record goes back too, and the
//! next process then keeps data longer. A running process also takes the time in the record if this time is later than
//! its own. Therefore, if one process has followed a jump, all other processes follow it at their next read, even if
//! the jump has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::try_join;
use ordain_store::RedisUrl;
use ordain_store::clock::{CLOCK_LEAD_LIMIT_MS, MonotonicClock, TimeSource};
use redis::{RedisResult, Value, cmd};
use tokio::task::JoinHandle;

use super::call::run_script_on;
use super::connection::RedisConnection;
use super::script::LuaScript;
use super::value::{array, number, text};

/// The interval between two reads of the server's clock. Between two reads, the process measures the time itself.
const READ_INTERVAL: Duration = Duration::from_secs(10);

/// The upper limit of the times in the record of the clock, in ms since the Unix epoch. A record with a higher time is
/// damaged. The scripts have the same limit (`EXACT` in `scripts/common.lua`).
const RECORD_TIME_LIMIT: u64 = 1 << 52;

/// The first argument of a script call before the process has its [`StoreClock`]. With this argument, no data counts as
/// expired.
pub(super) const NO_TIMES: &str = "0 0";

/// The record of the clock in the Redis key `store`. Both times are in ms since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ClockRecord {
    /// The latest time that the clock of any process has recorded; 0 if the store has no record yet.
    time: u64,
    /// The server's time at which a process first saw a jump that is not confirmed yet; 0 if there is no such jump.
    jump: u64,
}

impl ClockRecord {
    /// Parses a stored record. A missing or damaged record counts as a record without times: the clock then starts at
    /// the time of the server.
    pub(super) fn parse(stored: Value) -> Self {
        let stored = text(stored).unwrap_or_default();
        let parse = |time: &str| time.parse::<u64>().ok().filter(|time| *time < RECORD_TIME_LIMIT);
        let times = stored
            .split_once(' ')
            .and_then(|(time, jump)| Some(Self { time: parse(time)?, jump: parse(jump)? }));
        times.unwrap_or_default()
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ClockReading {
    /// The time of the server, in ms since the Unix epoch.
    time: u64,
    stored: ClockRecord,
}

/// The clock of a process: the time up to which the data of the store may expire.
#[derive(Debug)]
pub(super) struct StoreClock {
    /// The time of the server at the newest read of its clock.
    server_time: Arc<AtomicU64>,
    /// True if, at the newest read, the clock of the server was behind the time in the record.
    is_behind: AtomicBool,
    clock: MonotonicClock,
}

impl StoreClock {
    /// Creates a clock from a read of the server's clock. `steady` returns the time since a fixed moment, in ms. If
    /// `reads_only` is `true`, the clock never follows a jump. Also returns the new record; `None` if the store must
    /// not change its record.
    pub(super) fn new(
        address: &RedisUrl,
        steady: impl Fn() -> u64 + Send + Sync + 'static,
        reading: ClockReading,
        reads_only: bool,
    ) -> (Self, Option<ClockRecord>) {
        let ClockReading { time, stored } = reading;
        let server_time = Arc::new(AtomicU64::new(time));
        let read_time = Arc::clone(&server_time);
        let name = format!("the clock of the Redis server ({address})");
        let source = TimeSource::new(name, move || read_time.load(Ordering::Relaxed), steady);
        let (clock, jump) = MonotonicClock::new(source, stored.time, stored.jump, !reads_only);
        // If there is a jump, log it.
        clock.now();
        let is_behind = AtomicBool::new(time < stored.time);
        let clock = Self { server_time, is_behind, clock };
        let record = clock.record_with(jump, stored);
        (clock, record.filter(|_| !reads_only))
    }

    /// Returns the time of this clock, in ms since the Unix epoch.
    pub(super) fn now(&self) -> u64 {
        self.clock.time()
    }

    /// Updates the clock after a read of the server's clock. Only this function advances the clock by more than the
    /// time since the previous call. Returns the new record; `None` if the store must not change its record.
    fn update(&self, reading: ClockReading) -> Option<ClockRecord> {
        let ClockReading { time, stored } = reading;
        self.server_time.store(time, Ordering::Relaxed);
        self.is_behind.store(time < stored.time, Ordering::Relaxed);
        self.clock.advance_to(stored.time);
        self.clock.now();
        self.record_with(if self.clock.has_jumped() { stored.jump } else { 0 }, stored)
    }

    pub(super) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// Returns a new record with the present time, and with `jump`. Returns `None` if the stored record has the same
    /// jump and is recent enough. While the clock of the server is behind, the record must have the present time,
    /// because the clock of the next process continues from the record.
    fn record_with(&self, jump: u64, stored: ClockRecord) -> Option<ClockRecord> {
        let now = self.now();
        let lead = if self.is_behind() { 0 } else { CLOCK_LEAD_LIMIT_MS };
        let is_old = now > stored.time.saturating_add(lead);
        let record = ClockRecord { time: now.max(stored.time), jump };
        (is_old || jump != stored.jump).then_some(record)
    }
}

/// Returns a function that measures the time since this call, in ms.
pub(super) fn steady_clock() -> impl Fn() -> u64 + Send + Sync + 'static {
    let started = Instant::now();
    move || started.elapsed().as_millis() as u64
}

/// Reads the time of the server (in a Cluster, the lowest time of all masters), and the record of the clock. `key` is
/// the Redis key `store`. This function calls no script, because a server that refuses writes also refuses the scripts
/// that may write. Returns `None` if a reply has an unexpected form.
pub(super) async fn read(
    connection: &RedisConnection,
    key: &str,
) -> RedisResult<Option<ClockReading>> {
    let get_time = cmd("TIME");
    let mut get_record = cmd("HGET");
    get_record.arg(key).arg("clock");
    let reads = try_join(connection.call_all_masters(&get_time), connection.call(&get_record));
    let (times, stored) = reads.await?;
    let time = lowest_time(times);
    Ok(time.map(|time| ClockReading { time, stored: ClockRecord::parse(stored) }))
}

/// Returns the lowest time in the replies of the masters to `TIME`; `None` if a reply has an unexpected form.
fn lowest_time(replies: Vec<Value>) -> Option<u64> {
    let times: Option<Vec<u64>> = replies.into_iter().map(server_time).collect();
    times?.into_iter().min()
}

/// Returns the time in a reply to `TIME`, in ms since the Unix epoch; `None` if the reply has another form.
fn server_time(reply: Value) -> Option<u64> {
    let parts = array(reply, "TIME").ok()?;
    let [seconds, micros] = &parts[..] else { return None };
    Some(number(seconds)?.checked_mul(1_000)?.saturating_add(number(micros)? / 1_000))
}

/// Writes the record of the clock, but keeps the stored time if it is later. `key` is the Redis key `store`.
pub(super) async fn write(
    connection: &RedisConnection,
    script: &LuaScript,
    key: &str,
    record: ClockRecord,
) -> RedisResult<()> {
    let mut call = script.call(&[key.to_owned()]);
    call.arg(NO_TIMES).arg(record.time).arg(record.jump);
    run_script_on(connection, script, &call).await.map(drop)
}

/// Reads the server's clock for a [`StoreClock`], and updates the stored record if the record is too old.
pub(super) async fn follow(
    connection: &RedisConnection,
    script: &LuaScript,
    key: &str,
    clock: &StoreClock,
) -> RedisResult<()> {
    let Some(reading) = read(connection, key).await? else { return Ok(()) };
    match clock.update(reading) {
        Some(record) => write(connection, script, key, record).await,
        None => Ok(()),
    }
}

/// A task that regularly reads the server's clock for a [`StoreClock`], and updates the stored record if the record is
/// too old.
pub(super) struct ClockTask(JoinHandle<()>);

impl ClockTask {
    pub(super) fn start(
        connection: Arc<RedisConnection>,
        script: LuaScript,
        key: String,
        clock: Arc<StoreClock>,
    ) -> Self {
        Self(tokio::spawn(async move {
            loop {
                tokio::time::sleep(READ_INTERVAL).await;
                // Ignore errors: without a reply, the clock continues by the time that the process measures itself.
                drop(follow(&connection, &script, &key, &clock).await);
            }
        }))
    }
}

impl Drop for ClockTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use ordain_store::RedisAddress;
    use ordain_store::clock::JUMP_CONFIRMATION_MS;

    use super::*;

    const START_MS: u64 = 1_700_000_000_000;
    const MINUTE_MS: u64 = 60_000;
    const DAY_MS: u64 = 24 * 60 * MINUTE_MS;

    struct Rig {
        clock: StoreClock,
        steady: Arc<AtomicU64>,
    }

    impl Rig {
        fn read_after(&self, ms: u64, time: u64, stored: ClockRecord) -> Option<ClockRecord> {
            self.steady.fetch_add(ms, Ordering::Relaxed);
            self.clock.update(ClockReading { time, stored })
        }

        /// Reads the clock of a server every ten seconds. The first read finds the time `time`, and the last read is
        /// `ms` ms later. Returns the last result.
        fn read_for(&self, ms: u64, time: u64, stored: ClockRecord) -> Option<ClockRecord> {
            let interval = READ_INTERVAL.as_millis() as u64;
            let mut last = self.read_after(interval, time, stored);
            for passed in (interval..=ms).step_by(READ_INTERVAL.as_millis() as usize) {
                last = self.read_after(interval, time + passed, stored);
            }
            last
        }

        #[track_caller]
        fn assert_time(&self, expected: u64) {
            assert_eq!(self.clock.now(), expected);
        }
    }

    fn open(time: u64, stored: ClockRecord, reads_only: bool) -> (Rig, Option<ClockRecord>) {
        let address = RedisAddress::parse("redis://localhost").expect("a URL");
        let steady = Arc::new(AtomicU64::new(0));
        let measured = Arc::clone(&steady);
        let reading = ClockReading { time, stored };
        let measure = move || measured.load(Ordering::Relaxed);
        let (clock, changed) = StoreClock::new(&address, measure, reading, reads_only);
        (Rig { clock, steady }, changed)
    }

    fn record(time: u64, jump: u64) -> ClockRecord {
        ClockRecord { time, jump }
    }

    #[test]
    fn damaged_record_counts_as_missing() {
        let parse = |text: &str| ClockRecord::parse(Value::BulkString(text.into()));
        assert_eq!(parse("1700000000000 7"), record(START_MS, 7));
        let newest = RECORD_TIME_LIMIT - 1;
        assert_eq!(parse(&format!("{newest} {newest}")), record(newest, newest));
        let too_late = [format!("{RECORD_TIME_LIMIT} 0"), format!("0 {}", u64::MAX)];
        let damaged = ["", "5", "5 x", "5 6 7", "-1 0"].map(str::to_owned);
        for damaged in damaged.into_iter().chain(too_late) {
            assert_eq!(parse(&damaged), ClockRecord::default(), "{damaged}");
        }
        assert_eq!(ClockRecord::parse(Value::Nil), ClockRecord::default());
    }

    #[test]
    fn lowest_time_of_all_masters_counts() {
        let reply = |seconds: &str, micros: &str| {
            Value::Array([seconds, micros].map(|part| Value::BulkString(part.into())).into())
        };
        let right = reply("1700000000", "123999");
        assert_eq!(lowest_time(vec![right.clone()]), Some(START_MS + 123));
        let wrong = reply("1703456000", "0");
        assert_eq!(lowest_time(vec![wrong, right.clone()]), Some(START_MS + 123));
        for damaged in [Value::Nil, Value::Array(Vec::new()), reply("x", "0")] {
            assert_eq!(lowest_time(vec![right.clone(), damaged]), None);
        }
        assert_eq!(lowest_time(Vec::new()), None);
    }

    #[test]
    fn clock_of_a_new_store_starts_at_the_time_of_the_server() {
        let (rig, changed) = open(START_MS, ClockRecord::default(), false);
        rig.assert_time(START_MS);
        assert_eq!(changed, Some(record(START_MS, 0)));
        let (rig, changed) = open(START_MS, ClockRecord::default(), true);
        rig.assert_time(START_MS);
        assert_eq!(changed, None);
    }

    #[test]
    fn jump_between_two_processes_is_recorded_until_it_has_lasted() {
        let stored = record(START_MS, 0);
        let wrong = START_MS + 8 * DAY_MS;
        let (rig, changed) = open(wrong, stored, false);
        rig.assert_time(START_MS);
        let noted = record(START_MS, wrong);
        assert_eq!(changed, Some(noted));
        for reads_only in [true, false] {
            let (rig, changed) = open(wrong + 1, noted, reads_only);
            rig.assert_time(START_MS);
            assert_eq!(changed, None);
        }
        let lasted = wrong + JUMP_CONFIRMATION_MS;
        open(lasted, noted, true).0.assert_time(START_MS);
        let (rig, changed) = open(lasted, noted, false);
        rig.assert_time(lasted);
        assert_eq!(changed, Some(record(lasted, 0)));
        let right = START_MS + MINUTE_MS;
        let (rig, changed) = open(right, noted, false);
        rig.assert_time(right);
        assert_eq!(changed, Some(record(right, 0)));
    }

    #[test]
    fn jump_during_a_process_changes_neither_clock_nor_record() {
        let stored = record(START_MS, 0);
        let (rig, _) = open(START_MS, stored, false);
        assert_eq!(rig.read_after(0, START_MS + 40 * DAY_MS, stored), None);
        rig.assert_time(START_MS);
        assert_eq!(rig.read_after(0, START_MS, stored), None);
        rig.assert_time(START_MS);
        // The clock follows a smaller step immediately.
        let step = START_MS + 30 * MINUTE_MS;
        assert_eq!(rig.read_after(0, step, stored), Some(record(step, 0)));
        rig.assert_time(step);
        // The server's clock goes back.
        assert_eq!(rig.read_after(0, START_MS, record(step, 0)), None);
        rig.assert_time(step);
    }

    /// A process that runs only for seconds must not lose the time that has passed.
    #[test]
    fn time_is_recorded_at_each_read_while_the_server_is_behind() {
        let stored = record(START_MS, 0);
        let behind = START_MS - DAY_MS;
        let (rig, changed) = open(behind, stored, false);
        assert_eq!(changed, None);
        assert!(rig.clock.is_behind());
        assert_eq!(rig.read_after(5, behind + 5, stored), Some(record(START_MS + 5, 0)));
        let newer = record(START_MS + 5, 0);
        assert_eq!(rig.read_after(3, behind + 8, newer), Some(record(START_MS + 8, 0)));
        assert_eq!(rig.read_after(1, START_MS + 9, newer), None);
        assert!(!rig.clock.is_behind());
    }

    /// One process starts before the clock of the server becomes wrong, and the other process starts shortly before the
    /// clock is corrected. The first process confirms the jump, and the second process must follow it.
    #[test]
    fn processes_agree_about_a_jump() {
        let wrong = START_MS + 8 * DAY_MS;
        let stored = record(START_MS, 0);
        let (first, _) = open(START_MS, stored, false);
        let changed = first.read_for(JUMP_CONFIRMATION_MS, wrong, stored);
        let confirmed = record(wrong + JUMP_CONFIRMATION_MS, 0);
        assert_eq!(changed, Some(confirmed));
        let (second, _) = open(confirmed.time - MINUTE_MS, stored, false);
        second.assert_time(START_MS);
        assert_eq!(second.read_after(0, START_MS, confirmed), None);
        second.assert_time(confirmed.time);
        first.read_after(0, START_MS, confirmed);
        first.assert_time(confirmed.time);
    }

    /// After the read that finds a wrong clock, the server does not answer for a while, and the clock is corrected.
    #[test]
    fn jump_is_confirmed_only_by_reads() {
        let stored = record(START_MS, 0);
        let (rig, _) = open(START_MS, stored, false);
        let wrong = START_MS + 40 * DAY_MS;
        assert_eq!(rig.read_after(0, wrong, stored), None);
        let pause = 2 * JUMP_CONFIRMATION_MS;
        rig.steady.fetch_add(pause, Ordering::Relaxed);
        rig.assert_time(START_MS + pause);
        rig.read_after(0, wrong + pause, stored);
        rig.assert_time(START_MS + pause);
        rig.read_after(0, START_MS + pause, stored);
        rig.assert_time(START_MS + pause);
        // With regular reads, a jump that lasts is confirmed.
        let now = wrong + pause;
        let changed = rig.read_for(JUMP_CONFIRMATION_MS, now, stored);
        let confirmed = now + JUMP_CONFIRMATION_MS;
        assert_eq!(changed, Some(record(confirmed, 0)));
        rig.assert_time(confirmed);
    }
}
