//! The set of outstanding requests, by token. Unlike a counter, a set stays correct if a completion arrives twice, or
//! belongs to no outstanding request.

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
