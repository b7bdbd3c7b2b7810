//! Plays long random runs of the model of rollouts in a store that goes back in time (loses its newest writes). The
//! model is [`ordain_model::RolloutWorld`].

use ordain_model::{RolloutCounts, RolloutFault, RolloutStep, RolloutWorld};

use crate::Violation;
use crate::rng::{Rng, mix};

const BUILDS: u64 = 5;
/// A rollback chooses among the newest remembered tables of the store: at most this number of tables.
const STATE_LIMIT: u64 = 3;

/// Plays the random run that the seed determines.
pub fn run_rollout(seed: u64, fault: Option<RolloutFault>) -> Result<RolloutCounts, Violation> {
    let mut rng = Rng::new(mix(&[seed, 0x70]));
    let instances = rng.between(2, 4);
    let mut world = RolloutWorld::new(instances as u8, fault);
    let rare = rng.between(1, 8);
    let mut steps = Vec::new();
    for _ in 0..rng.between(10, 120) {
        let instance = rng.below(instances) as u8;
        let build = rng.between(1, BUILDS) as u8;
        let step = match rng.below(20) {
            0..2 => RolloutStep::Start(instance),
            2..6 => RolloutStep::Poll(instance),
            6..11 => RolloutStep::Decide(instance),
            11..15 => RolloutStep::Execute(instance),
            15 => RolloutStep::Add(instance, build),
            16 => RolloutStep::Remove(instance, build),
            17 if rng.below(rare) == 0 => RolloutStep::Kill(instance),
            18 if rng.below(rare) == 0 => {
                let lost = rng.below((world.past() as u64).min(STATE_LIMIT)) as usize;
                RolloutStep::GoBack(world.past() - 1 - lost)
            }
            _ => RolloutStep::Remember,
        };
        steps.push(step);
        world.step(step);
    }
    world.finish_and_check();
    match world.broken() {
        None => Ok(world.counts()),
        Some(broken) => Err(Violation { invariant: broken.rule(), detail: format!("{steps:?}") }),
    }
}
