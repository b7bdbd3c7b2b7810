//! The memory of one instance: counts all its memories and tables against one limit.

use ordain_core::HandlerLimit;
use wasmtime::ResourceLimiter;

use super::super::failure::LimitExceeded;
use super::super::settings::DisplaySize;

/// Size of a table element in bytes. The element is a pointer in the host.
const TABLE_ELEMENT_BYTES: usize = size_of::<usize>();

pub(super) struct MemoryBudget {
    limit: usize,
    used: usize,
}

impl MemoryBudget {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, used: 0 }
    }

    fn reserve(&mut self, bytes: usize) -> wasmtime::Result<bool> {
        self.used = self.check(bytes)?;
        Ok(true)
    }

    /// Returns the memory in use after a growth. Returns an error if the growth exceeds the limit, instead of refusing
    /// it as WebAssembly does. A guest aborts after a refusal, and the failure would look like a fault of the guest.
    fn check(&self, bytes: usize) -> wasmtime::Result<usize> {
        let used = self.used.saturating_add(bytes);
        if used > self.limit {
            return Err(limit_error(format!(
                "the handler needs {} of memory, all memories and tables of an instance \
                 together; `plugins.memory` allows {}",
                DisplaySize(used),
                DisplaySize(self.limit),
            )));
        }
        Ok(used)
    }
}

fn limit_error(words: String) -> wasmtime::Error {
    LimitExceeded { limit: Some(HandlerLimit::Memory), message: words }.into()
}

impl ResourceLimiter for MemoryBudget {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            // The guest's own maximum: the guest expects this refusal.
            return Ok(false);
        }
        self.reserve(desired.saturating_sub(current))
    }

    /// Reports growth beyond the address range or beyond what the machine can provide.
    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        Err(limit_error(format!(
            "the handler needs more memory than the machine can provide ({error}); `plugins.memory` allows {}",
            DisplaySize(self.limit),
        )))
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let bytes = desired.saturating_sub(current).saturating_mul(TABLE_ELEMENT_BYTES);
        if maximum.is_some_and(|maximum| desired > maximum) {
            // The maximum is the guest's own or the pool's; growth beyond the memory limit is reported as such.
            return self.check(bytes).map(|_| false);
        }
        self.reserve(bytes)
    }
}
