//! The clock by which the data of the store expires.
//!
//! A Redis server may have a wrong clock for a while, and expired data is removed for good. Each process therefore has
//! a [`StoreClock`], which follows the clock of the server with the common shard. The [`StoreClock`] follows a jump
//! forward only after the jump has lasted ([`MonotonicClock`]). Each call of a script contains the time of this clock.
//! The scripts compare it with the time of their own server (`expiry_times` in `scripts/common.lua`).
//!
//! The Redis key `store` has a record of the clock, so that the clock of the next process continues from it. The record
//! is a field that other versions of Ordain ignore. If the store goes back in time, the record goes back too, and the
//! next process then keeps data longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ordain_store::RedisUrl;
use ordain_store::clock::{CLOCK_LEAD_LIMIT_MS, MonotonicClock, TimeSource};
use redis::{RedisResult, Value};
use tokio::task::JoinHandle;

use super::call::run_script_on;
use super::connection::RedisConnection;
use super::script::LuaScript;
use super::value::{array, number, text};

/// The interval between two reads of the server's clock. Between two reads, the process measures the time itself.
const READ_INTERVAL: Duration = Duration::from_secs(10);

/// The first argument of a call of a script before the process has its [`StoreClock`]: nothing has expired.
pub(super) const NO_TIMES: &str = "0 0";

/// The record of the clock in the Redis key `store`. Both times are in ms since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ClockRecord {
    /// The newest time of the clock of a process; 0 if the store has no record yet.
    time: u64,
    /// The server's time at which a process first saw a jump that is not confirmed yet; 0 if there is no jump.
    jump: u64,
}

impl ClockRecord {
    /// Parses a stored record. A missing or damaged record counts as a record without times: the clock then starts at
    /// the time of the server.
    pub(super) fn parse(stored: Value) -> Self {
        let stored = text(stored).unwrap_or_default();
        let times = stored.split_once(' ').and_then(|(time, jump)| {
            Some(Self { time: time.parse().ok()?, jump: jump.parse().ok()? })
        });
        times.unwrap_or_default()
    }

    fn encode(self) -> String {
        format!("{} {}", self.time, self.jump)
    }
}

/// The clock of a process: the time up to which the data of the store may expire.
#[derive(Debug)]
pub(super) struct StoreClock {
    started: Instant,
    /// The time of the server minus the time since `started`, in ms, at the last read of the server's clock.
    server_offset: Arc<AtomicU64>,
    clock: MonotonicClock,
}

impl StoreClock {
    /// Creates a clock from the time of the server and the stored record. If `reads_only` is `true`, the clock never
    /// follows a jump. Also returns the new record; `None` if the store must not change its record.
    pub(super) fn new(
        address: &RedisUrl,
        server_time: u64,
        stored: ClockRecord,
        reads_only: bool,
    ) -> (Self, Option<ClockRecord>) {
        let started = Instant::now();
        let steady = move || elapsed_ms(started);
        let server_offset = Arc::new(AtomicU64::new(server_time));
        let offset = Arc::clone(&server_offset);
        let wall = move || offset.load(Ordering::Relaxed).saturating_add(steady());
        let name = format!("the clock of the Redis server ({address})");
        let source = TimeSource::new(name, wall, steady);
        let (clock, jump) = MonotonicClock::new(source, stored.time, stored.jump, !reads_only);
        let clock = Self { started, server_offset, clock };
        // If there is a jump, this read of the clock logs it.
        let record = clock.record_with(jump, stored);
        (clock, record.filter(|_| !reads_only))
    }

    /// Returns the time of this clock, in ms since the Unix epoch.
    pub(super) fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Takes the time of the server, which the process has just read, and the stored record. Returns the new record;
    /// `None` if the store must not change its record.
    fn update(&self, server_time: u64, stored: ClockRecord) -> Option<ClockRecord> {
        let offset = server_time.saturating_sub(elapsed_ms(self.started));
        self.server_offset.store(offset, Ordering::Relaxed);
        self.now();
        self.record_with(if self.clock.has_jumped() { stored.jump } else { 0 }, stored)
    }

    /// Returns the record with the present time and this time of a jump; `None` if the stored record has the same jump
    /// and a time that is new enough.
    fn record_with(&self, jump: u64, stored: ClockRecord) -> Option<ClockRecord> {
        let now = self.now();
        let is_old = now > stored.time.saturating_add(CLOCK_LEAD_LIMIT_MS);
        let record = ClockRecord { time: now.max(stored.time), jump };
        (is_old || jump != stored.jump).then_some(record)
    }
}

fn elapsed_ms(started: Instant) -> u64 {
    started.elapsed().as_millis() as u64
}

/// Reads the time of the server with the common shard, and the record of the clock. First writes the record `new`, if
/// there is one. `key` is the Redis key `store`.
pub(super) async fn exchange(
    connection: &RedisConnection,
    script: &LuaScript,
    key: &str,
    new: Option<ClockRecord>,
) -> RedisResult<Option<(u64, ClockRecord)>> {
    let mut call = script.call(&[key.to_owned()]);
    call.arg(NO_TIMES).arg(new.map_or_else(String::new, ClockRecord::encode));
    let reply = run_script_on(connection, script, &call).await?;
    let mut parts = array(reply, script.name).unwrap_or_default().into_iter();
    let time = parts.next().as_ref().and_then(number);
    Ok(time.map(|time| (time, parts.next().map_or_else(ClockRecord::default, ClockRecord::parse))))
}

/// A task that regularly reads the server's clock for a [`StoreClock`], and keeps the stored record new enough.
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
                let Ok(Some((time, stored))) = exchange(&connection, &script, &key, None).await
                else {
                    continue;
                };
                if let Some(record) = clock.update(time, stored) {
                    drop(exchange(&connection, &script, &key, Some(record)).await);
                }
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
    /// More than any test takes.
    const SLACK_MS: u64 = MINUTE_MS;

    fn open(time: u64, stored: ClockRecord, reads_only: bool) -> (StoreClock, Option<ClockRecord>) {
        let address = RedisAddress::parse("redis://localhost").expect("a URL");
        StoreClock::new(&address, time, stored, reads_only)
    }

    fn record(time: u64, jump: u64) -> ClockRecord {
        ClockRecord { time, jump }
    }

    #[track_caller]
    fn assert_time(clock: &StoreClock, expected: u64) {
        let now = clock.now();
        assert!((expected..expected + SLACK_MS).contains(&now), "{now}");
    }

    #[test]
    fn record_is_parsed_as_encoded() {
        let parse = |text: &str| ClockRecord::parse(Value::BulkString(text.into()));
        assert_eq!(parse(&record(START_MS, 7).encode()), record(START_MS, 7));
        for damaged in ["", "5", "5 x", "5 6 7", "-1 0"] {
            assert_eq!(parse(damaged), ClockRecord::default(), "{damaged}");
        }
        assert_eq!(ClockRecord::parse(Value::Nil), ClockRecord::default());
    }

    #[test]
    fn clock_of_a_new_store_starts_at_the_time_of_the_server() {
        let (clock, changed) = open(START_MS, ClockRecord::default(), false);
        assert_time(&clock, START_MS);
        assert!(changed.is_some_and(|record| record.time >= START_MS && record.jump == 0));
        let (clock, changed) = open(START_MS, ClockRecord::default(), true);
        assert_time(&clock, START_MS);
        assert_eq!(changed, None);
    }

    #[test]
    fn jump_between_two_processes_is_recorded_until_it_has_lasted() {
        let stored = record(START_MS, 0);
        let wrong = START_MS + 8 * DAY_MS;
        let (clock, changed) = open(wrong, stored, false);
        assert_time(&clock, START_MS);
        let noted = changed.expect("a record of the jump");
        assert_eq!(noted.jump, wrong);
        for reads_only in [true, false] {
            let (clock, changed) = open(wrong + 1, noted, reads_only);
            assert_time(&clock, START_MS);
            assert_eq!(changed, None);
        }
        let lasted = wrong + JUMP_CONFIRMATION_MS;
        assert_time(&open(lasted, noted, true).0, START_MS);
        let (clock, changed) = open(lasted, noted, false);
        assert_time(&clock, lasted);
        assert!(changed.is_some_and(|record| record.time >= lasted && record.jump == 0));
        let (clock, changed) = open(START_MS + MINUTE_MS, noted, false);
        assert_time(&clock, START_MS + MINUTE_MS);
        assert!(changed.is_some_and(|record| record.time >= START_MS && record.jump == 0));
    }

    #[test]
    fn jump_during_a_process_changes_neither_clock_nor_record() {
        let (clock, _) = open(START_MS, record(START_MS, 0), false);
        let stored = record(START_MS, 0);
        assert_eq!(clock.update(START_MS + 40 * DAY_MS, stored), None);
        assert_time(&clock, START_MS);
        assert_eq!(clock.update(START_MS, stored), None);
        assert_time(&clock, START_MS);
        // A smaller step counts at once. Another process has meanwhile recorded a later time.
        let step = START_MS + 30 * MINUTE_MS;
        assert!(clock.update(step, stored).is_some_and(|record| record.time >= step));
        assert_time(&clock, step);
        assert_eq!(clock.update(step, record(START_MS + DAY_MS, 0)), None);
        // The server's clock goes back.
        assert_eq!(clock.update(START_MS, record(step, 0)), None);
        assert_time(&clock, step);
    }
}
