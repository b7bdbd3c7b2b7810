//! Plays long random runs of the model of a producer with a store that goes back in time (loses its newest writes). The
//! model is [`ordain_model::ProducerWorld`].

use ordain_model::{ProducerCounts, ProducerFault, ProducerStep, ProducerWorld};

use crate::Violation;
use crate::rng::{Rng, mix};

/// A rollback chooses among the newest remembered states of the shards: at most this number of states.
const STATE_LIMIT: u64 = 6;
/// Maximum number of events of the other producer in a run. Their numbers begin at 100 and must fit into a `u8`.
const OTHER_EVENT_LIMIT: u8 = 60;

/// Plays the random run that the seed determines.
pub fn run_producer(seed: u64, fault: Option<ProducerFault>) -> Result<ProducerCounts, Violation> {
    let mut rng = Rng::new(mix(&[seed, 0x70]));
    let is_library = rng.permille(300);
    let events = rng.between(4, 40) as u8;
    let restarts = !is_library && rng.permille(500);
    let has_others = rng.permille(500);
    let forgets = rng.permille(200);
    let rare = rng.between(1, 8);
    // The stream that reads the events from the broker has the lost numbers too. The store gives these numbers to the
    // same events again only if one producer has all lost events in memory. If another producer takes such a number, or
    // an earlier run published a lost event, the producer of the file may end with an error. A run that forgets its own
    // calls could give the numbers of its lost events to its new events.
    let has_reader = !forgets && (!(has_others || restarts) || events.is_multiple_of(2));
    let mut world = ProducerWorld::new(events, is_library, has_reader, fault);
    let mut steps = Vec::new();
    for _ in 0..rng.between(10, 80) {
        let step = match rng.below(20) {
            0..7 => ProducerStep::Publish(rng.between(1, 4) as u8),
            7..12 => ProducerStep::Checkpoint,
            12 => ProducerStep::Check,
            13..15 if has_others && world.other_events() < OTHER_EVENT_LIMIT => {
                ProducerStep::Other(rng.below(2) as u8)
            }
            15 if restarts && rng.permille(400) => ProducerStep::Restart,
            15 if restarts => ProducerStep::PublishUnanswered,
            16 if forgets => ProducerStep::Forget,
            17 if forgets => {
                // During the wait, the producer forgets its calls. The real producer of a file writes a checkpoint
                // right after each call, so the run writes a checkpoint before the wait.
                steps.push(ProducerStep::Checkpoint);
                world.step(ProducerStep::Checkpoint);
                ProducerStep::Wait(130_000)
            }
            18..20 if rng.below(rare) == 0 => {
                let shard = [None, Some(0), Some(1)][rng.below(3) as usize];
                let lost = rng.below((world.past() as u64).min(STATE_LIMIT)) as usize;
                ProducerStep::GoBack(shard, world.past() - 1 - lost, rng.permille(700))
            }
            _ => ProducerStep::Wait(rng.between(1, 3_000)),
        };
        steps.push(step);
        world.step(step);
        if has_reader {
            let read = ProducerStep::Read(rng.below(2) as u8);
            steps.push(read);
            world.step(read);
        }
        world.step(ProducerStep::Remember);
        if world.broken().is_some() {
            break;
        }
    }
    if world.broken().is_none() {
        world.finish_and_check();
    }
    match world.broken() {
        None => Ok(world.counts()),
        Some(broken) => Err(Violation { invariant: broken.rule(), detail: format!("{steps:?}") }),
    }
}
