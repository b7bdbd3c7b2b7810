//! Waits for a condition by repeated checks, with a time limit. A test that can query a state waits with these
//! functions, and not for a fixed time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// A wait reaches the limit only if the condition never holds, or if the machine is very busy.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_mins(1);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The interval between two checks that run a program (a command). Such a program runs for about as long as this
/// interval.
const COMMAND_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Waits until a condition holds, at most a minute. Calls `is_so` repeatedly; an error of `is_so` ends the wait. `what`
/// names the condition in the error after a timeout.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_for(what, || Ok(is_so()?.then_some(())))
}

/// Waits as [`wait_until`] does, but with a longer interval between two checks, because each check runs a program.
pub fn wait_for_command(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_with(COMMAND_POLL_INTERVAL, WAIT_TIMEOUT, what, || Ok(is_so()?.then_some(())))
}

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
