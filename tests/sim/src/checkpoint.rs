//! Plays long random runs of the model of a file source with a store that goes back in time (loses its newest writes).
//! The model is [`ordain_model::CheckpointWorld`].

use ordain_model::{CheckpointCounts, CheckpointFault, CheckpointStep, CheckpointWorld};

use crate::Violation;
use crate::rng::{Rng, mix};

/// A rollback chooses among the newest remembered states of the shards: at most this number of states.
const STATE_LIMIT: u64 = 6;

/// Plays the random run that the seed determines.
pub fn run_checkpoint(
    seed: u64,
    fault: Option<CheckpointFault>,
) -> Result<CheckpointCounts, Violation> {
    let mut rng = Rng::new(mix(&[seed, 0x6b]));
    let file = rng.between(4, 40);
    let dead = rng.below(file / 2);
    let mut world = CheckpointWorld::new(file as u8, dead as u8, fault);
    let restarts = rng.permille(700);
    let rare = rng.between(1, 8);
    let mut steps = Vec::new();
    for _ in 0..rng.between(10, 80) {
        let step = match rng.below(20) {
            0..2 => CheckpointStep::Start,
            2..6 => CheckpointStep::Read(rng.between(1, 4) as u8),
            6..10 => CheckpointStep::Save,
            10 => CheckpointStep::Repeat,
            11 if restarts => CheckpointStep::Restart,
            12..14 if rng.below(rare) == 0 => {
                let shard = [None, Some(0), Some(1)][rng.below(3) as usize];
                let lost = rng.below((world.past() as u64).min(STATE_LIMIT)) as usize;
                CheckpointStep::GoBack(shard, world.past() - 1 - lost)
            }
            14 => CheckpointStep::TakeLetter,
            _ => CheckpointStep::Commit(rng.below(2) as u8),
        };
        steps.push(step);
        world.step(step);
        world.step(CheckpointStep::Remember);
    }
    world.finish_and_check();
    match world.broken() {
        None => Ok(world.counts()),
        Some(broken) => Err(Violation { invariant: broken.rule(), detail: format!("{steps:?}") }),
    }
}
