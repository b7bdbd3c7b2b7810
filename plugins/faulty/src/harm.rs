//! Harmful operations that only the host can stop. The code prevents the compiler from optimizing these operations
//! away.

use std::hint::black_box;

/// Executes a trap.
pub(crate) fn trap() -> ! {
    #[cfg(target_arch = "wasm32")]
    core::arch::wasm32::unreachable();
    #[cfg(not(target_arch = "wasm32"))]
    panic!("a trap outside of WebAssembly");
}

/// Runs forever.
pub(crate) fn run_forever() -> ! {
    loop {
        black_box(());
    }
}

/// Exhausts the host's stack for WebAssembly.
pub(crate) fn recurse() -> ! {
    let end = deeper(black_box(u64::MAX));
    panic!("the stack was large enough for {end}");
}

/// Calls itself `n` times. No compiler can turn this recursion into a loop, because each call still computes something
/// after the inner call returns. The function needs no stack in linear memory, so it exhausts the host's stack.
fn deeper(n: u64) -> u64 {
    if n == 0 { 0 } else { deeper(n - 1).rotate_left(1) ^ n }
}

/// Allocates `mib` MiB of memory and writes to every page.
pub(crate) fn allocate(mib: usize) -> Vec<u8> {
    // A size beyond the address space is reduced to the largest possible size, which the allocator then rejects.
    black_box(vec![1; mib.saturating_mul(1 << 20).min(isize::MAX as usize)])
}
