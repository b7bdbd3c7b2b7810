//! The idle WebAssembly instances of handlers that one worker keeps.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::super::handler::Handler;
use super::super::instance::HandlerInstance;

/// Idle instances by handler. A handler's most recently used instance is used next, because the memory of this instance
/// is probably still in the processor's cache.
pub(super) struct IdleInstances {
    limit: usize,
    count: usize,
    /// Number of calls of [`Self::put`] so far. Each call stores this number in `used` of the instance's handler. The
    /// handler with the lowest `used` is therefore the least recently used handler.
    uses: u64,
    handlers: HashMap<u64, IdleEntry>,
}

struct IdleEntry {
    handler: Weak<Handler>,
    instances: Vec<HandlerInstance>,
    used: u64,
}

impl IdleInstances {
    /// Creates an empty set with room for `limit` instances.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, count: 0, uses: 0, handlers: HashMap::new() }
    }

    pub(super) fn take(&mut self, handler: &Handler) -> Option<HandlerInstance> {
        let instance = self.handlers.get_mut(&handler.id())?.instances.pop()?;
        self.count -= 1;
        Some(instance)
    }

    pub(super) fn put(&mut self, handler: &Arc<Handler>, instance: HandlerInstance) {
        if self.count >= self.limit {
            self.evict();
        }
        self.uses += 1;
        let idle = self.handlers.entry(handler.id()).or_insert_with(|| IdleEntry {
            handler: Arc::downgrade(handler),
            instances: Vec::new(),
            used: 0,
        });
        idle.used = self.uses;
        idle.instances.push(instance);
        self.count += 1;
    }

    /// Drops each instance whose handler is no longer in use: nothing refers to the handler any more.
    pub(super) fn drop_retired(&mut self) {
        self.handlers.retain(|_, idle| idle.handler.strong_count() > 0);
        self.count = self.handlers.values().map(|idle| idle.instances.len()).sum();
    }

    fn evict(&mut self) {
        let with_instances =
            self.handlers.iter_mut().filter(|(_, idle)| !idle.instances.is_empty());
        if let Some((_, idle)) = with_instances.min_by_key(|(_, idle)| idle.used) {
            idle.instances.remove(0);
            self.count -= 1;
        }
    }
}
