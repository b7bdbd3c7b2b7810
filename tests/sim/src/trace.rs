//! What happened, line by line, for whoever replays one seed.

use ordain_core::{CommitReply, Effect, Input};

/// Prints, or does nothing.
#[derive(Debug)]
pub(crate) struct Trace {
    on: bool,
}

impl Trace {
    pub(crate) fn new(on: bool) -> Self {
        Self { on }
    }

    pub(crate) fn line(&self, now: u64, text: &str) {
        if self.on {
            println!("{now:>9}        {text}");
        }
    }

    pub(crate) fn input(&self, now: u64, owner: u64, input: &Input) {
        if self.on {
            println!("{now:>9} {owner:>3} <- {input:?}");
        }
    }

    pub(crate) fn effect(&self, now: u64, owner: u64, effect: &Effect) {
        if self.on {
            println!("{now:>9} {owner:>3} -> {effect:?}");
        }
    }

    pub(crate) fn store(
        &self,
        now: u64,
        owner: u64,
        shard: u32,
        number: u64,
        reply: &CommitReply,
        applied: bool,
    ) {
        if self.on {
            let new = if applied { "" } else { " (nothing new)" };
            println!("{now:>9} {owner:>3} == commit {number} of shard {shard}: {reply:?}{new}");
        }
    }
}
