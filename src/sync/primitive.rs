// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The atomics of this folder, selected at compile time. A build uses std's. A loom model uses loom's, so that the
//! models check the shipped code. A fuzz target uses std's behind a hook, so that a simulated peer can act between any
//! two loads of shared memory.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(any(loom, fuzzing)))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(all(fuzzing, not(loom)))]
pub use std::sync::atomic::{Ordering, fence};
#[cfg(all(fuzzing, not(loom)))]
pub use watched::AtomicU64;

#[cfg(all(fuzzing, not(loom)))]
pub mod watched {
    use std::sync::OnceLock;
    use std::sync::atomic::{self, Ordering};

    static LOOKS: atomic::AtomicU64 = atomic::AtomicU64::new(0);
    static ACT: OnceLock<fn()> = OnceLock::new();

    /// Calls `act` once, just before load number `looks` from now on: 1 is the next load, and 0 means never. The `act`
    /// of the first call serves all later calls too.
    pub fn arm(looks: u64, act: fn()) {
        ACT.get_or_init(|| act);
        LOOKS.store(looks, Ordering::Relaxed);
    }

    fn look() {
        if LOOKS.load(Ordering::Relaxed) != 0
            && LOOKS.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(act) = ACT.get()
        {
            act();
        }
    }

    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct AtomicU64(atomic::AtomicU64);

    impl AtomicU64 {
        pub const fn new(value: u64) -> AtomicU64 {
            AtomicU64(atomic::AtomicU64::new(value))
        }

        pub fn load(&self, order: Ordering) -> u64 {
            look();
            self.0.load(order)
        }

        pub fn store(&self, value: u64, order: Ordering) {
            self.0.store(value, order);
        }

        pub fn swap(&self, value: u64, order: Ordering) -> u64 {
            look();
            self.0.swap(value, order)
        }

        pub fn fetch_add(&self, n: u64, order: Ordering) -> u64 {
            self.0.fetch_add(n, order)
        }

        pub fn fetch_sub(&self, n: u64, order: Ordering) -> u64 {
            self.0.fetch_sub(n, order)
        }

        pub fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
            self.0.fetch_or(bits, order)
        }

        pub fn fetch_update(&self, set: Ordering, get: Ordering, next: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
            self.0.fetch_update(set, get, next)
        }

        pub fn compare_exchange(&self, now: u64, new: u64, well: Ordering, else_: Ordering) -> Result<u64, u64> {
            look();
            self.0.compare_exchange(now, new, well, else_)
        }

        pub fn compare_exchange_weak(&self, now: u64, new: u64, well: Ordering, else_: Ordering) -> Result<u64, u64> {
            self.compare_exchange(now, new, well, else_)
        }
    }
}

/// A full fence behind an atomic read-modify-write. On x86 that instruction is already a full fence, and only the
/// compiler has to be held back.
#[inline(always)]
pub fn fence_after_swap() {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(any(not(target_arch = "x86_64"), loom))]
    fence(Ordering::SeqCst);
}
