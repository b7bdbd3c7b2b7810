//! Limits the memory of one WebAssembly instance. All memories and tables of the instance together count against one
//! limit.

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

    /// Returns the size in use after a growth by `bytes`, or an error if this size exceeds the limit. If the host
    /// refused the growth without an error, the guest (the handler's code) would abort, and the failure would look like
    /// a fault of the guest.
    fn check(&self, bytes: usize) -> wasmtime::Result<usize> {
        let used = self.used.saturating_add(bytes);
        if used > self.limit {
            return Err(limit_error(format!(
                "the handler needs {} of memory for all memories and tables of an instance together; `plugins.memory` \
                 allows {}",
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
            // The guest itself declared this maximum, so the guest expects the refusal.
            return Ok(false);
        }
        self.reserve(desired.saturating_sub(current))
    }

    /// Returns an error for a growth that exceeds the address range or the memory of the machine.
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
            // The growth exceeds a maximum of the guest or of the engine's pool, so the host refuses the growth
            // (`false`). If the growth also exceeds the memory limit, `check` returns an error instead.
            return self.check(bytes).map(|_| false);
        }
        self.reserve(bytes)
    }
}
