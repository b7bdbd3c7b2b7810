//! Results of a lane on their way into a commit.

use std::sync::Arc;

use super::lane::Lane;
use crate::event::{Delivery, Event};
use crate::job::{Change, Emitted};
use crate::letter::{DeadLetter, LetterId};
use crate::settings::Settings;
use crate::version::Decided;

/// Results of one version, to be committed together.
#[derive(Debug)]
pub(super) struct Chunk {
    /// `done` after it.
    pub(super) next: u64,
    pub(super) events: usize,
    /// Of `events`, those with effect.
    pub(super) effects: usize,
    pub(super) version: Option<Arc<Decided>>,
    pub(super) state: Change,
    pub(super) messages: Vec<Emitted>,
    pub(super) letters: Vec<DeadLetter>,
    pub(super) consumed: Vec<LetterId>,
    /// Ranges that it skips unseen, ascending.
    pub(super) skipped: Vec<(u64, u64)>,
    /// Deliveries that are settled by it without being held: late originals.
    pub(super) joined: Vec<(Delivery, Arc<Event>)>,
    pub(super) bytes: usize,
}

impl Chunk {
    pub(super) fn new(next: u64, version: Option<Arc<Decided>>) -> Self {
        Self {
            next,
            events: 0,
            effects: 0,
            version,
            state: Change::Keep,
            messages: Vec::new(),
            letters: Vec::new(),
            consumed: Vec::new(),
            skipped: Vec::new(),
            joined: Vec::new(),
            bytes: 0,
        }
    }
}

impl Lane {
    /// The chunk that a result of this version at `done` belongs to.
    pub(super) fn chunk(
        &mut self,
        version: Option<Arc<Decided>>,
        settings: &Settings,
    ) -> &mut Chunk {
        let fits = self.pending.last().is_some_and(|chunk| {
            chunk.events < settings.batch_events
                && chunk.bytes < settings.batch_bytes
                && (chunk.version.is_none() || version.is_none() || chunk.version == version)
        });
        if !fits {
            self.pending.push(Box::new(Chunk::new(self.done, version.clone())));
        }
        let chunk = self.pending.last_mut().expect("one was just pushed if there was none");
        if chunk.version.is_none() {
            chunk.version = version;
        }
        chunk
    }
}
