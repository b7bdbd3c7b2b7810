//! Waiting, always with a limit. It never waits for a time to pass where a state can be asked for.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long anything may take that is waited for. Only a failing test waits so long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// Waits until something is so, at most 30 seconds. `is_so` is asked again and again; its error
/// ends the waiting.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_for(what, || Ok(is_so()?.then_some(())))
}

/// Waits until there is something, and returns it.
pub(crate) fn wait_for<T>(what: &str, look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    wait_within(DEADLINE, what, look)
}

/// The same with another limit.
pub(crate) fn wait_within<T>(
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
        std::thread::sleep(LOOK);
    }
}
