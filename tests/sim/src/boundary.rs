//! Deliberate faults between a sequencer and its world, to prove that the checker finds them. Each fault changes
//! settings, inputs or effects on their way to or from the sequencer. `ordain_core::SequencerFault` has faults in the
//! sequencer's own decisions, which no such change can imitate.
//!
//! The checker sees inputs before a fault changes them, and effects after a fault has changed them.

mod early;
mod effects;
mod fault;
mod inputs;
mod writes;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::sync::Arc;

use ordain_core::{Batch, Effect, Input, Sequencer, SequencerSettings};

pub use fault::BoundaryFault;

use early::EarlyAcks;

/// A sequencer whose settings, inputs and effects pass through a deliberate fault, if there is one.
#[derive(Debug)]
pub(crate) struct FaultySequencer {
    sequencer: Sequencer,
    fault: Option<BoundaryFault>,
    /// Effects that the fault has already changed, and that the world has not received yet.
    effects: VecDeque<Effect>,
    early_acks: EarlyAcks,
    /// By shard, the number that the fault adds to each commit number on its way to the store.
    shifts: BTreeMap<u32, u64>,
    /// By shard, the unanswered batch, as the sequencer first requested it.
    unanswered: BTreeMap<u32, Arc<Batch>>,
    /// By shard, the highest number of a requested batch.
    newest: BTreeMap<u32, u64>,
}

impl FaultySequencer {
    pub(crate) fn new(
        mut settings: SequencerSettings,
        commits: &[u64],
        now: u64,
        fault: Option<BoundaryFault>,
    ) -> Self {
        change_settings(fault, &mut settings);
        Self {
            sequencer: Sequencer::new(settings, commits, now),
            fault,
            effects: VecDeque::new(),
            early_acks: EarlyAcks::default(),
            shifts: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            newest: BTreeMap::new(),
        }
    }

    /// Switches on a deliberate fault in the sequencer's own decisions.
    #[cfg(feature = "faults")]
    pub(crate) fn inject(&mut self, fault: ordain_core::SequencerFault) {
        self.sequencer.inject(fault);
    }

    pub(crate) fn handle(&mut self, now: u64, input: Input) {
        let input = match self.fault {
            Some(fault) => self.change_input(fault, input),
            None => Some(input),
        };
        if let Some(input) = input {
            self.sequencer.handle(now, input);
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: u64) {
        self.sequencer.handle_timeout(now);
    }

    pub(crate) fn poll_effect(&mut self) -> Option<Effect> {
        let Some(fault) = self.fault else { return self.sequencer.poll_effect() };
        while self.effects.is_empty() {
            let effect = self.sequencer.poll_effect()?;
            self.change_effect(fault, effect);
        }
        self.effects.pop_front()
    }
}

/// Gives callers the getters of the sequencer. A fault changes no result of a getter.
impl Deref for FaultySequencer {
    type Target = Sequencer;

    fn deref(&self) -> &Sequencer {
        &self.sequencer
    }
}

fn change_settings(fault: Option<BoundaryFault>, settings: &mut SequencerSettings) {
    match fault {
        Some(BoundaryFault::IgnoreRunAhead) => settings.run_ahead = usize::MAX,
        Some(BoundaryFault::IgnoreMaxTurns) => settings.max_turns = usize::MAX,
        Some(BoundaryFault::ForgetIdsTooSoon) => settings.id_floor = 0,
        _ => {}
    }
}
