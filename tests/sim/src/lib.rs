//! A deterministic simulation of the world around sequencers, and a checker that was written
//! from the design alone and knows nothing of how a sequencer works.
//!
//! A run is decided by its seed: the profile (what goes wrong, and how often), the producers'
//! script, the settings, and every delay and choice. [`run`] plays it and says what broke.

mod boundary;
mod chain;
mod checker;
mod handler;
mod plan;
mod producer;
mod profile;
mod queue;
mod rng;
mod source;
mod store;
mod trace;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use boundary::BoundaryFault;
pub use chain::run_chain;
pub use checker::Violation;
pub use profile::Profile;
pub use queue::run_queue;

/// How to play a run.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Instead of the profile that the seed chooses.
    pub profile: Option<Profile>,
    /// Print everything that happens.
    pub trace: bool,
    /// Break a simulated part on purpose.
    pub breakage: Option<Breakage>,
    /// Break what passes between the sequencer and its world on purpose.
    pub boundary_fault: Option<BoundaryFault>,
    /// Break the sequencer on purpose.
    #[cfg(feature = "faults")]
    pub core_fault: Option<ordain_core::Fault>,
}

/// A simulated part that is broken on purpose, to prove that the checker bites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breakage {
    /// The store applies commits under any claim.
    StoreIgnoresTheClaim,
    /// The store applies writes whatever the job looks like.
    StoreIgnoresTheCondition,
    /// The store applies a repeated commit again.
    StoreForgetsItsLastReply,
    /// The store forgets what is spilled.
    StoreForgetsSpills,
}

impl Breakage {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::StoreIgnoresTheClaim,
        Self::StoreIgnoresTheCondition,
        Self::StoreForgetsItsLastReply,
        Self::StoreForgetsSpills,
    ];
}

/// What a run came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its profile.
    pub profile: Profile,
    /// Its length.
    pub steps: u64,
    /// Its size, in words.
    pub summary: String,
    /// What broke first, if something did. A panic counts.
    pub violation: Option<Violation>,
}

/// Plays the run of a seed.
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
        let detail = text.unwrap_or_else(|| "without words".into());
        (0, String::new(), Some(Violation { invariant: "panic", detail }))
    });
    Outcome { profile, steps, summary, violation }
}
