//! Plays long random runs of the model of a file sink whose store goes back in time (an operator puts an older copy of
//! the store back). The model is [`ordain_model::SinkFileScope`].

use std::collections::BTreeSet;

use ordain_model::{SinkFileFault, SinkFileScope, SinkFileStep, play};

use crate::Violation;
use crate::rng::{Rng, mix};

/// Plays the random run that the seed determines. Returns the names of the notable states and steps of the run, so that
/// a test can check that its runs reach all of them.
pub fn run_sink_file(
    seed: u64,
    fault: Option<SinkFileFault>,
) -> Result<BTreeSet<&'static str>, Violation> {
    let mut rng = Rng::new(mix(&[seed, 0x73]));
    let scope = SinkFileScope {
        events: rng.between(2, 12) as u8,
        contents: rng.between(1, 3) as u8,
        kills: rng.between(1, 8) as u8,
        copies: rng.between(1, 5) as u8,
        restores: rng.between(1, 5) as u8,
        fault,
    };
    let rare = rng.between(1, 8);
    let step_limit = rng.between(20, 120) as usize;
    let played =
        play(&scope, step_limit, |steps| rng.pick_weighted(steps, |step| weight(*step, rare)));
    if let Some(invariant) = played.broken {
        return Err(Violation { invariant, detail: format!("{scope:?}: {:?}", played.steps) });
    }
    let mut reached = played.reached;
    reached.extend(played.steps.into_iter().filter_map(special));
    Ok(reached)
}

/// Unexpected ends and copies are rarer than the work of the process, and a high `rare` makes them rarer still.
fn weight(step: SinkFileStep, rare: u64) -> u64 {
    match step {
        SinkFileStep::Kill(_)
        | SinkFileStep::PowerLoss(_)
        | SinkFileStep::SyncFails(_)
        | SinkFileStep::Copy => 1,
        SinkFileStep::Restore(_) | SinkFileStep::Remove => 2 + rare,
        SinkFileStep::Start | SinkFileStep::Commit(_) => 3 + rare,
        SinkFileStep::Write => 6 + 2 * rare,
    }
}

/// Returns the name of a notable step, or `None` for an ordinary step.
fn special(step: SinkFileStep) -> Option<&'static str> {
    Some(match step {
        SinkFileStep::Kill(_) => "the process is killed",
        SinkFileStep::PowerLoss(_) => "the power fails",
        SinkFileStep::SyncFails(_) => "a sync fails",
        SinkFileStep::Restore(_) => "a copy is put back",
        _ => return None,
    })
}
