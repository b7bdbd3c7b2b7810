//! The memory of one instance: all its memories and tables against one limit.

use ordain_core::Limit;
use wasmtime::ResourceLimiter;

use super::super::failure::LimitBroken;
use super::super::settings::Size;

/// A table's element is a pointer in the host.
const TABLE_ELEMENT: usize = size_of::<usize>();

pub(super) struct MemoryBudget {
    limit: usize,
    used: usize,
}

impl MemoryBudget {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, used: 0 }
    }

    fn take(&mut self, bytes: usize) -> wasmtime::Result<bool> {
        self.used = self.check(bytes)?;
        Ok(true)
    }

    /// What would be used with so much more. Too much is an error, and not the refusal that
    /// WebAssembly knows: on a refusal a guest aborts, which would look like a fault of its own.
    fn check(&self, bytes: usize) -> wasmtime::Result<usize> {
        let used = self.used.saturating_add(bytes);
        if used > self.limit {
            return Err(broken(format!(
                "the handler needs {} of memory, all memories and tables of an instance \
                 together; `plugins.memory` allows {}",
                Size(used),
                Size(self.limit),
            )));
        }
        Ok(used)
    }
}

fn broken(words: String) -> wasmtime::Error {
    LimitBroken { limit: Some(Limit::Memory), words }.into()
}

impl ResourceLimiter for MemoryBudget {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            // The guest's own maximum: it is prepared for that.
            return Ok(false);
        }
        self.take(desired.saturating_sub(current))
    }

    /// Growth beyond what an address can name, or that the machine has no room for.
    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        Err(broken(format!(
            "the handler needs more memory than there can be ({error}); `plugins.memory` allows {}",
            Size(self.limit),
        )))
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let bytes = desired.saturating_sub(current).saturating_mul(TABLE_ELEMENT);
        if maximum.is_some_and(|maximum| desired > maximum) {
            // The guest's own maximum, or the pool's: what is beyond memory is told as that.
            return self.check(bytes).map(|_| false);
        }
        self.take(bytes)
    }
}
