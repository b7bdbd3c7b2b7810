//! Waiting, always with a limit. It never waits for a time to pass where a state can be asked for.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long a wait may take. Only a failing test waits so long, or one on a machine that has much
/// else to do.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);
/// Between two looks that run a command, which takes as long itself.
const COMMAND_PAUSE: Duration = Duration::from_millis(100);

/// Waits until something is so, at most a minute. Calls `is_so` again and again; its error ends the
/// wait.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_for(what, || Ok(is_so()?.then_some(())))
}

/// Waits until something is so, where each look runs a command: with fewer looks.
pub fn wait_for_command(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_with(COMMAND_PAUSE, DEADLINE, what, || Ok(is_so()?.then_some(())))
}

/// Waits until there is something, and returns it.
pub(crate) fn wait_for<T>(what: &str, look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    wait_within(DEADLINE, what, look)
}

/// The same with another limit.
pub(crate) fn wait_within<T>(
    limit: Duration,
    what: &str,
    look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    wait_with(PAUSE, limit, what, look)
}

fn wait_with<T>(
    pause: Duration,
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if started.elapsed() > limit {
            bail!("not within {limit:?}: {what}");
        }
        std::thread::sleep(pause);
    }
}
