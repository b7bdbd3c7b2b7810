//! Plays random runs of the model of instances that share partitions ([`ordain_model::Fleet`]). The leases and members
//! in the store go back in time.

use std::collections::BTreeSet;

use ordain_model::{Fleet, Move, SharingFault, play};

use crate::Violation;
use crate::rng::{Rng, mix};

/// Largest number of steps of a run. A run ends earlier, when the fleet comes to rest.
const STEPS: usize = 1_000;

/// Plays the random run that the seed determines. Returns the names of the notable states and steps of the run, so that
/// a test can check that its runs reach all of them.
pub fn run_sharing(
    seed: u64,
    fault: Option<SharingFault>,
) -> Result<BTreeSet<&'static str>, Violation> {
    let mut rng = Rng::new(mix(&[seed, 0x73]));
    let fleet = Fleet {
        instances: rng.between(2, 4) as u8,
        partitions: rng.between(1, 4) as u8,
        silences: rng.below(4) as u8,
        kills: rng.below(3) as u8,
        leaves: rng.below(3) as u8,
        cuts: rng.below(2) as u8,
        disconnects: rng.below(3) as u8,
        rewinds: rng.below(4) as u8,
        fault,
    };
    // The weights of failures and heartbeats in this run. With rare heartbeats, an instance often uses an old table.
    // With a weight of 0, heartbeats happen only when no other step is possible.
    let failures = 1 << rng.below(6);
    let beats = rng.pick(&[0, 1, 4, 16, 32]);
    let weight = |action: &Move| match action {
        Move::Beat(_) => beats,
        Move::Start(_)
        | Move::Suspend(_)
        | Move::Forget(_)
        | Move::Leave(_)
        | Move::Kill(_)
        | Move::Notice(_)
        | Move::CutOff(_)
        | Move::Disconnect(_)
        | Move::Keep
        | Move::GoBack => failures,
        _ => 32,
    };
    let played = play(&fleet, STEPS, |moves| rng.pick_weighted(moves, weight));
    let is_endless = played.steps.len() == STEPS;
    let broken = played.broken.or(is_endless.then_some("the fleet comes to rest"));
    if let Some(invariant) = broken {
        return Err(Violation { invariant, detail: format!("{fleet:?}: {:?}", played.steps) });
    }
    let mut shown = played.shown;
    shown.extend(played.steps.into_iter().filter_map(special));
    Ok(shown)
}

/// Returns the name of a notable step, or `None` for an ordinary step.
fn special(action: Move) -> Option<&'static str> {
    Some(match action {
        Move::GoBack => "the leases and members go back",
        Move::Kill(_) => "an instance is killed",
        Move::CutOff(_) => "an instance never reaches the store again",
        Move::Forget(_) => "the store forgets an instance",
        _ => return None,
    })
}
