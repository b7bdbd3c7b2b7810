//! Waits for a condition, with a time limit. This module never waits for a fixed time where a test can query a state
//! instead.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The limit of a wait. Only a failing test, or a test on a busy machine, waits for the whole limit.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_mins(1);
/// The interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The interval between two checks that run a command. A command takes about as long as this interval.
const COMMAND_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Waits until a condition holds, at most a minute. Calls `is_so` repeatedly; an error of `is_so` ends the wait.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_for(what, || Ok(is_so()?.then_some(())))
}

/// Waits until a condition holds, and checks it at a longer interval, because the check runs a command.
pub fn wait_for_command(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_with(COMMAND_POLL_INTERVAL, WAIT_TIMEOUT, what, || Ok(is_so()?.then_some(())))
}

/// Waits until `poll` finds a value, and returns the value.
pub(crate) fn wait_for<T>(what: &str, poll: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    wait_within(WAIT_TIMEOUT, what, poll)
}

/// Waits until `poll` finds a value, for at most `limit`.
pub(crate) fn wait_within<T>(
    limit: Duration,
    what: &str,
    poll: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    wait_with(POLL_INTERVAL, limit, what, poll)
}

fn wait_with<T>(
    pause: Duration,
    limit: Duration,
    what: &str,
    mut poll: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = poll()? {
            return Ok(found);
        }
        if started.elapsed() > limit {
            bail!("timed out after {limit:?}: {what}");
        }
        std::thread::sleep(pause);
    }
}
