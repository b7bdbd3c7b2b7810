//! What can be seen of a run while it runs: by the status line, the log, and operators.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ordain_core::Stats;

use super::Handlers;
use crate::driver::Progress;
use crate::store::Store;

/// How far a run is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// Handlers are compiled.
    #[default]
    LoadsHandlers,
    /// The store is opened.
    OpensStore,
    /// Partitions are claimed, and what was left over is published.
    Claims,
    /// Every partition is driven.
    Drives,
}

/// What can be seen of a run.
#[derive(Default)]
pub struct Figures(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    phase: Phase,
    handlers: Option<Arc<Handlers>>,
    store: Option<Arc<dyn Store>>,
    partitions: Vec<Arc<Progress>>,
}

impl Figures {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        self.seen().phase
    }

    /// The handlers, once they are loaded.
    pub fn handlers(&self) -> Option<Arc<Handlers>> {
        self.seen().handlers.clone()
    }

    /// The store, while it is open.
    pub fn store(&self) -> Option<Arc<dyn Store>> {
        self.seen().store.clone()
    }

    /// The partitions that are driven.
    pub fn partitions(&self) -> Vec<Arc<Progress>> {
        self.seen().partitions.clone()
    }

    /// The figures of all partitions together.
    pub fn sum(&self) -> Stats {
        let seen = self.seen();
        seen.partitions.iter().fold(Stats::default(), |sum, partition| sum.and(&partition.get()))
    }

    pub(super) fn loaded(&self, handlers: &Arc<Handlers>) {
        let mut seen = self.seen();
        (seen.handlers, seen.phase) = (Some(Arc::clone(handlers)), Phase::OpensStore);
    }

    pub(super) fn opened(&self, store: &Arc<dyn Store>) {
        let mut seen = self.seen();
        (seen.store, seen.phase) = (Some(Arc::clone(store)), Phase::Claims);
    }

    pub(super) fn drives(&self, partition: Arc<Progress>) {
        self.seen().partitions.push(partition);
    }

    pub(super) fn drives_all(&self) {
        self.seen().phase = Phase::Drives;
    }

    /// Lets go of the store, which is closed when nobody has it.
    pub(super) fn closes(&self) {
        self.seen().store = None;
    }
}
