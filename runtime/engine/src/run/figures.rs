//! What can be seen of a run while it runs: by the status line, the log, and operators.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ordain_core::Stats;

use crate::driver::Progress;
use ordain_store::{Partition, Store};
use ordain_store::{Report, Work};
use ordain_wasm::Handlers;

/// How far a run is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// Handlers are compiled.
    #[default]
    LoadsHandlers,
    /// The store is opened.
    OpensStore,
    /// The first partitions are taken.
    Claims,
    /// It has had its share of the partitions.
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
    has: usize,
    share: usize,
    /// Requests to the ingress, by the status of their answers.
    requests: BTreeMap<u16, u64>,
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

    /// The partitions that are driven, or were.
    pub fn partitions(&self) -> Vec<Arc<Progress>> {
        self.seen().partitions.clone()
    }

    /// The figures of all partitions together.
    pub fn sum(&self) -> Stats {
        let seen = self.seen();
        seen.partitions.iter().fold(Stats::default(), |sum, partition| sum.and(&partition.get()))
    }

    /// Requests to the ingress that were answered so far, by status.
    pub fn requests(&self) -> BTreeMap<u16, u64> {
        self.seen().requests.clone()
    }

    /// One was answered.
    pub fn count_request(&self, status: u16) {
        *self.seen().requests.entry(status).or_default() += 1;
    }

    /// Notes that the handlers are loaded.
    pub fn loaded(&self, handlers: &Arc<Handlers>) {
        let mut seen = self.seen();
        (seen.handlers, seen.phase) = (Some(Arc::clone(handlers)), Phase::OpensStore);
    }

    /// Notes that the store is open.
    pub fn opened(&self, store: &Arc<dyn Store>) {
        let mut seen = self.seen();
        (seen.store, seen.phase) = (Some(Arc::clone(store)), Phase::Claims);
    }

    /// Where the figures of a partition are kept, whoever drives it.
    pub(super) fn of(&self, partition: &Partition) -> Arc<Progress> {
        let mut seen = self.seen();
        if let Some(found) = seen.partitions.iter().find(|it| it.partition() == partition) {
            return Arc::clone(found);
        }
        let progress = Arc::new(Progress::new(partition.clone()));
        seen.partitions.push(Arc::clone(&progress));
        progress
    }

    /// Notes how many partitions of its share it drives, and how many they are.
    pub(super) fn drives(&self, has: usize, share: usize) {
        let mut seen = self.seen();
        (seen.has, seen.share) = (has, share);
        if has == share {
            seen.phase = Phase::Drives;
        }
    }

    /// How many partitions of its share it drives, and how many they are.
    pub fn share(&self) -> (usize, usize) {
        let seen = self.seen();
        (seen.has, seen.share)
    }

    /// What is to be done of the partitions that it drives.
    pub(super) fn report<'a>(&self, driven: impl Iterator<Item = &'a Partition>) -> Report {
        let mut report = Report::default();
        for partition in driven {
            let progress = self.of(partition);
            let work = Work::of(&progress.get(), progress.lag.get());
            report.add(&partition.stream, partition.number, work);
        }
        report
    }

    /// Lets go of the store, which is closed when nobody has it.
    pub fn closes(&self) {
        self.seen().store = None;
    }
}
