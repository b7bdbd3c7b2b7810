//! `ordain demo`: runs the demo, and ends it early after a signal.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::anyhow;
use ordain_demo::{DemoArgs, demo};

use crate::cli::{CommandError, EXIT_FAILED};
use crate::signals::EndSignals;

/// Runs the demo. The exit code is 1 if the result is incorrect. After a signal, the demo kills its child process and
/// removes its files before this function returns.
pub(crate) fn run(args: DemoArgs) -> Result<ExitCode, CommandError> {
    crate::runtime::new()?.block_on(async {
        let mut signals = EndSignals::new()?;
        let stop = Arc::<AtomicBool>::default();
        let requested = Arc::clone(&stop);
        let mut running =
            tokio::task::spawn_blocking(move || demo(&args, &requested, &mut io::stdout()));
        let result = tokio::select! {
            result = &mut running => result,
            _ = signals.any() => {
                stop.store(true, Ordering::Relaxed);
                running.await
            }
        };
        let is_correct = result.map_err(|error| anyhow!("the demo panicked: {error}"))??;
        Ok(if is_correct { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
    })
}
