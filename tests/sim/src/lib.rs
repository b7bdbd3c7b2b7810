//! A deterministic simulation of the world around sequencers, and a checker of their behaviour. The checker implements
//! the documented rules independently, and uses no code of the sequencer. Other modules play random runs of the models
//! in `ordain_model`.
//!
//! A seed determines a run: the profile, the producers' script, the settings, and every delay and choice. The profile
//! contains the kinds and rates of failures. [`run`] plays a run, and reports the first broken invariant.

mod boundary;
mod chain;
mod checker;
mod checkpoint;
mod file_producer;
mod handler;
mod plan;
mod producer;
mod profile;
mod protocol;
mod queue;
mod rng;
mod rollout;
mod seeds;
mod sharing;
mod sink_file;
mod source;
mod store;
mod trace;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use boundary::BoundaryFault;
pub use chain::run_chain;
pub use checker::Violation;
pub use checkpoint::run_checkpoint;
pub use file_producer::run_producer;
pub use profile::Profile;
pub use protocol::{run_protocol, run_repetition};
pub use queue::run_queue;
pub use rollout::run_rollout;
pub use seeds::{find_fault, number_in, seed_count};
pub use sharing::run_sharing;
pub use sink_file::run_sink_file;

/// Options for a run.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// A profile that replaces the profile that the seed chooses.
    pub profile: Option<Profile>,
    /// True to print the plan and a trace of the run.
    pub trace: bool,
    /// A deliberate fault of the simulated store, if any.
    pub store_fault: Option<StoreFault>,
    /// A deliberate fault between the sequencer and its world, if any.
    pub boundary_fault: Option<BoundaryFault>,
    /// A deliberate fault in the sequencer's own decisions, if any.
    #[cfg(feature = "faults")]
    pub core_fault: Option<ordain_core::SequencerFault>,
}

/// A fault of the simulated store. The fault is deliberate, to prove that the checker finds faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFault {
    /// The store applies commits under any claim.
    StoreIgnoresTheClaim,
    /// The store applies a write without checking the condition of the write against the key record.
    StoreIgnoresTheCondition,
    /// The store applies a commit a second time when the owner repeats it.
    StoreForgetsItsLastReply,
    /// The store does not keep spilled events.
    StoreForgetsSpills,
}

impl StoreFault {
    /// All faults.
    pub const ALL: [Self; 4] = [
        Self::StoreIgnoresTheClaim,
        Self::StoreIgnoresTheCondition,
        Self::StoreForgetsItsLastReply,
        Self::StoreForgetsSpills,
    ];
}

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The profile of the run.
    pub profile: Profile,
    /// The number of actions that the world performed; 0 after a panic.
    pub steps: u64,
    /// A text with the size of the run: how many steps and owners it had, and its virtual time.
    pub summary: String,
    /// The first broken invariant, if any. A panic counts as a broken invariant.
    pub violation: Option<Violation>,
}

/// Plays the random run that the seed determines.
pub fn run(seed: u64, options: &Options) -> Outcome {
    let plan = plan::Plan::new(seed, options.profile);
    let profile = plan.profile;
    if options.trace {
        println!("{plan:#?}");
    }
    let played = catch_unwind(AssertUnwindSafe(|| {
        let mut world = world::World::new(plan, options);
        let result = world.run();
        (world.steps(), world.summary(), result.err())
    }));
    let (steps, summary, violation) = played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        let detail = text.unwrap_or_else(|| "a panic without a message".into());
        (0, String::new(), Some(Violation { invariant: "panic", detail }))
    });
    Outcome { profile, steps, summary, violation }
}
