//! Plays long random runs of the model of a queue in a store that goes back in time (loses its newest writes). The
//! model is [`ordain_model::QueueWorld`].

use ordain_model::{QueueCounts, QueueFault, QueueScope, QueueStep, QueueWorld};

use crate::Violation;
use crate::rng::{Rng, mix};

/// A rollback chooses among the newest remembered states of the store: at most this number of states.
const STATE_LIMIT: u64 = 8;

/// Plays the random run that the seed determines.
pub fn run_queue(seed: u64, fault: Option<QueueFault>) -> Result<QueueCounts, Violation> {
    let mut rng = Rng::new(mix(&[seed, 0x71]));
    let is_inbox = rng.permille(300);
    let mut world = QueueWorld::new(&QueueScope { is_inbox, fault, ..QueueScope::default() });
    let restarts = rng.permille(300);
    let has_others = rng.permille(500);
    let mut steps = Vec::new();
    for _ in 0..rng.between(10, 80) {
        let step = match rng.below(29) {
            0..5 => {
                let is_own = !(has_others && rng.permille(400));
                QueueStep::Put(rng.between(1, 3) as u8, is_own)
            }
            5..9 => QueueStep::Read(rng.between(1, 4) as usize),
            9..12 => QueueStep::Settle,
            12..14 => QueueStep::Finish,
            14..16 => QueueStep::Remove,
            16 => {
                if rng.permille(500) {
                    QueueStep::Remove
                } else {
                    QueueStep::RemoveUnanswered
                }
            }
            17 => {
                if rng.permille(500) {
                    QueueStep::ReportRuns
                } else {
                    QueueStep::Recommit
                }
            }
            18 if restarts => QueueStep::Restart,
            20..22 => QueueStep::PutPart,
            22 => QueueStep::PutOtherPart,
            23 => QueueStep::Answer,
            24 if has_others => QueueStep::PutUnanswered,
            25 => QueueStep::RepeatPut,
            26 => QueueStep::Refuse,
            27 => QueueStep::RequestRecord,
            28 => QueueStep::CompareRecord,
            _ => {
                let lost = rng.below((world.past() as u64).min(STATE_LIMIT)) as usize;
                let to = world.past() - 1 - lost;
                if rng.permille(200) { QueueStep::OtherGoesBack(to) } else { QueueStep::GoBack(to) }
            }
        };
        steps.push(step);
        world.step(step);
        world.step(QueueStep::Remember);
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
