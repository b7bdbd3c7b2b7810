//! The results of the executed events of a lane, until a commit contains them.

use std::sync::Arc;

use super::lane::Lane;
use crate::event::{DeliveryNumber, Event};
use crate::key_record::{EmittedMessage, StateUpdate};
use crate::letter::{DeadLetter, LetterId};
use crate::settings::SequencerSettings;
use crate::version::Rollout;

/// The results of consecutive events of one key. One handler version executed these events, and one commit contains all
/// their results.
#[derive(Debug)]
pub(super) struct ResultChunk {
    /// The sequence after the last event of these results.
    pub(super) next: u64,
    pub(super) events: usize,
    /// The number of events that the handler executed with effect; a part of `events`.
    pub(super) effects: usize,
    /// The number of events that the handler did not execute because of their types; a part of `events`.
    pub(super) other_types: usize,
    pub(super) rollout: Option<Arc<Rollout>>,
    pub(super) state: StateUpdate,
    pub(super) messages: Vec<EmittedMessage>,
    pub(super) letters: Vec<DeadLetter>,
    pub(super) removed_letters: Vec<LetterId>,
    /// `true` if the results remove letters whose sequences the key had passed before. Until a commit has removed these
    /// letters, the sequencer reads no more passed letters of the key.
    pub(super) removes_passed: bool,
    /// The ascending ranges of sequences that these results skip because the events never arrived.
    pub(super) skipped: Vec<(u64, u64)>,
    /// The late originals that these results settle: events that arrived after their sequence had been skipped, with
    /// their deliveries. The lane does not hold these events.
    pub(super) late_originals: Vec<(DeliveryNumber, Arc<Event>)>,
    pub(super) bytes: usize,
}

impl ResultChunk {
    pub(super) fn new(next: u64, version: Option<Arc<Rollout>>) -> Self {
        Self {
            next,
            events: 0,
            effects: 0,
            other_types: 0,
            rollout: version,
            state: StateUpdate::Keep,
            messages: Vec::new(),
            letters: Vec::new(),
            removed_letters: Vec::new(),
            removes_passed: false,
            skipped: Vec::new(),
            late_originals: Vec::new(),
            bytes: 0,
        }
    }
}

impl Lane {
    /// Returns the chunk for a result of this version: the last chunk if it may take the result, otherwise a new chunk.
    /// `version` is `None` for a result that no handler produced, such as a skip or an event of another type.
    pub(super) fn chunk(
        &mut self,
        version: Option<Arc<Rollout>>,
        settings: &SequencerSettings,
    ) -> &mut ResultChunk {
        let fits = self.pending.last().is_some_and(|chunk| {
            chunk.events < settings.batch_events
                && chunk.bytes < settings.batch_bytes
                && (chunk.rollout.is_none() || version.is_none() || chunk.rollout == version)
        });
        if !fits {
            self.pending.push(Box::new(ResultChunk::new(self.done, version.clone())));
        }
        let chunk =
            self.pending.last_mut().expect("the code above pushes a chunk if there is none");
        if chunk.rollout.is_none() {
            chunk.rollout = version;
        }
        chunk
    }
}
