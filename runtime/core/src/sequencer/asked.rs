//! What was asked for and not yet answered, by serial: completions that nobody asked for, or that
//! come twice, must not count.

use foldhash::fast::FixedState;
use hashbrown::HashSet;

#[derive(Debug, Default)]
pub(super) struct Asked(HashSet<u64, FixedState>);

impl Asked {
    pub(super) fn ask(&mut self, serial: u64) {
        self.0.insert(serial);
    }

    pub(super) fn answer(&mut self, serial: u64) {
        self.0.remove(&serial);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
