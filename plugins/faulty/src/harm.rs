//! What only the host can stop. None of it may be optimised away.

use std::hint::black_box;

/// Traps without a word.
pub(crate) fn trap() -> ! {
    #[cfg(target_arch = "wasm32")]
    core::arch::wasm32::unreachable();
    #[cfg(not(target_arch = "wasm32"))]
    panic!("a trap, where it is not wasm");
}

/// Never ends.
pub(crate) fn run_forever() -> ! {
    loop {
        black_box(());
    }
}

/// Uses up the stack.
pub(crate) fn recurse() -> ! {
    let end = deeper(black_box(u64::MAX));
    panic!("the stack was large enough for {end}");
}

/// No compiler turns this into a loop: after the inner call it works on, in an order that
/// matters. It takes nothing of the stack that lies in memory, so it is the host's that ends.
fn deeper(n: u64) -> u64 {
    if n == 0 { 0 } else { deeper(n - 1).rotate_left(1) ^ n }
}

/// Takes so much memory and touches every page of it.
pub(crate) fn allocate(mib: usize) -> Vec<u8> {
    // Beyond the address space it is the allocator that refuses, as with any size too large.
    black_box(vec![1; mib.saturating_mul(1 << 20).min(isize::MAX as usize)])
}
