//! Plays random runs of the model of instances that share partitions ([`ordain_model::Fleet`]). The leases and members
//! in the store may go back to an earlier state.

use std::collections::BTreeSet;

use ordain_model::{Fleet, SharingFault, SharingStep, play};

use crate::Violation;
use crate::rng::{Rng, mix};

/// Maximum number of steps of a run. A run without a fault ends earlier, because at some time no step is possible any
/// more.
const STEP_LIMIT: usize = 1_000;

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
        late_heartbeats: rng.below(4) as u8,
        kills: rng.below(3) as u8,
        shutdowns: rng.below(3) as u8,
        cut_offs: rng.below(2) as u8,
        disconnects: rng.below(3) as u8,
        rollbacks: rng.below(4) as u8,
        fault,
    };
    // The weights of failures and heartbeats in this run. With rare heartbeats, an instance often uses an old table.
    // With a weight of 0, heartbeats happen only when no other step is possible.
    let failures = 1 << rng.below(6);
    let heartbeats = rng.pick(&[0, 1, 4, 16, 32]);
    let weight = |step: &SharingStep| match step {
        SharingStep::Heartbeat(_) => heartbeats,
        SharingStep::Start(_)
        | SharingStep::Suspend(_)
        | SharingStep::RemoveMember(_)
        | SharingStep::ShutDown(_)
        | SharingStep::Kill(_)
        | SharingStep::CloseChannels(_)
        | SharingStep::CutOff(_)
        | SharingStep::Disconnect(_)
        | SharingStep::Remember
        | SharingStep::GoBack => failures,
        _ => 32,
    };
    let played = play(&fleet, STEP_LIMIT, |steps| rng.pick_weighted(steps, weight));
    let is_endless = played.steps.len() == STEP_LIMIT;
    let broken = played.broken.or(is_endless.then_some("the fleet comes to rest"));
    if let Some(invariant) = broken {
        return Err(Violation { invariant, detail: format!("{fleet:?}: {:?}", played.steps) });
    }
    let mut reached = played.reached;
    reached.extend(played.steps.into_iter().filter_map(special));
    Ok(reached)
}

/// Returns the name of a notable step, or `None` for an ordinary step.
fn special(step: SharingStep) -> Option<&'static str> {
    Some(match step {
        SharingStep::GoBack => "the leases and members go back",
        SharingStep::Kill(_) => "an instance is killed",
        SharingStep::CutOff(_) => "an instance never reaches the store again",
        SharingStep::RemoveMember(_) => "the store forgets an instance",
        _ => return None,
    })
}
