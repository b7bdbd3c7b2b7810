//! Plays long random runs of the model of numbered messages in a store that goes back in time (loses its newest
//! writes). The model is [`ordain_model::ChainWorld`].

use ordain_model::{ChainCounts, ChainFault, ChainShards, ChainStep, ChainWorld};

use crate::Violation;
use crate::rng::{Rng, mix};

/// A rollback chooses among the newest remembered states of the shards: at most this number of states.
const STATE_LIMIT: u64 = 6;
/// Maximum number of commits that an owner knows. A commit has at most 3 messages, so the events of all commits have
/// numbers below 100. The event numbers of the other producer begin at 100.
const COMMIT_LIMIT: u64 = 30;
/// Maximum number of new messages of the other producer. Their event numbers begin at 100 and must fit into a `u8`.
const OTHER_MESSAGE_LIMIT: usize = 60;

/// Plays the random run that the seed determines.
pub fn run_chain(seed: u64, fault: Option<ChainFault>) -> Result<ChainCounts, Violation> {
    let mut rng = Rng::new(mix(&[seed, 0x63]));
    let mut world = ChainWorld::new(rng.between(1, 2) as u8, fault);
    let restarts = rng.permille(300);
    let has_others = rng.permille(600);
    let loses_answers = rng.permille(400);
    let forgets = rng.permille(150);
    let choices = [ChainShards::Source, ChainShards::Destination, ChainShards::Both];
    // `choice` is the index in `choices` of the shards that go back in this run. If `choice` is 3 (no such index), each
    // rollback picks its shards at random. A high `rare` makes losses rare, so that the owner has enough steps to
    // recover from each loss.
    let choice = rng.below(4) as usize;
    let rare = rng.between(1, 8);
    let mut steps = Vec::new();
    for _ in 0..rng.between(10, 80) {
        let step = match rng.below(20) {
            0..4 if world.commits() < COMMIT_LIMIT => ChainStep::Commit(rng.between(1, 3) as u8),
            4..9 => ChainStep::Send(rng.between(1, 4) as usize),
            9..12 => ChainStep::RemoveSent,
            12 => ChainStep::Check,
            13 => ChainStep::Repeat,
            14 if has_others && world.other_messages() < OTHER_MESSAGE_LIMIT => ChainStep::Other,
            15 if has_others => ChainStep::OtherResend,
            16 if loses_answers => ChainStep::SendUnanswered,
            17 if loses_answers => ChainStep::ArriveLate,
            18 if restarts && rng.permille(500) => ChainStep::Restart,
            18 if forgets => {
                if rng.permille(200) {
                    ChainStep::Wait(130_000)
                } else {
                    ChainStep::Forget
                }
            }
            19 if rng.below(rare) == 0 => {
                let choice = choices.get(choice).copied().unwrap_or_else(|| rng.pick(&choices));
                let lost = rng.below((world.past() as u64).min(STATE_LIMIT)) as usize;
                ChainStep::GoBack(choice, world.past() - 1 - lost)
            }
            _ => ChainStep::Wait(rng.between(1, 3_000)),
        };
        steps.push(step);
        world.step(step);
        world.step(ChainStep::Remember);
        if world.broken().is_some() {
            break;
        }
    }
    world.finish_and_check();
    match world.broken() {
        None => Ok(world.counts()),
        Some(broken) => Err(Violation { invariant: broken.rule(), detail: format!("{steps:?}") }),
    }
}
