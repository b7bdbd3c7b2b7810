//! What is told of a store that does not do what it is asked: now and then while that lasts, and
//! once it is over.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ordain_store::RedisAddress as Address;
use ordain_util::log_throttle::LogThrottle;

/// Time between two warnings of a store that does not answer.
pub(super) const WARN_INTERVAL: Duration = Duration::from_secs(5);

/// What is asked again and again at present.
pub(super) struct Trouble {
    address: Address,
    /// Whether there is any, so that nobody who has none waits for the others.
    any: AtomicBool,
    open: Mutex<Open>,
}

struct Open {
    questions: HashSet<String>,
    throttle: LogThrottle,
}

impl Open {
    fn new() -> Self {
        Self { questions: HashSet::new(), throttle: LogThrottle::new(WARN_INTERVAL) }
    }
}

impl Trouble {
    pub(super) fn new(address: &Address) -> Self {
        Self {
            address: address.clone(),
            any: AtomicBool::new(false),
            open: Mutex::new(Open::new()),
        }
    }

    /// This was not done, and is asked again.
    pub(super) fn tell(&self, question: String, reason: &str) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.throttle.allow() {
            tracing::warn!(
                "the store at {} has not done what it was asked ({question}), and is asked again: \
                 {reason}",
                self.address
            );
        }
        open.questions.insert(question);
        self.any.store(true, Ordering::Relaxed);
    }

    /// This was done.
    pub(super) fn over(&self, question: impl FnOnce() -> String) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.questions.remove(&question()) && open.questions.is_empty() {
            self.any.store(false, Ordering::Relaxed);
            *open = Open::new();
            tracing::info!("the store at {} does again what it is asked", self.address);
        }
    }
}
