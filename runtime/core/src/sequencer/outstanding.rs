//! The set of outstanding requests, by token. A completion without an outstanding request, and a second completion of
//! one request, must not count.

use foldhash::fast::FixedState;
use hashbrown::HashSet;

use crate::turn::AttemptToken;

#[derive(Debug, Default)]
pub(super) struct OutstandingRequests(HashSet<AttemptToken, FixedState>);

impl OutstandingRequests {
    pub(super) fn insert(&mut self, token: AttemptToken) {
        self.0.insert(token);
    }

    pub(super) fn remove(&mut self, token: AttemptToken) {
        self.0.remove(&token);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
