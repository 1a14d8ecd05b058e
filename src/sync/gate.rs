// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gate between an initiator that copies into or out of a region and its owner that closes it.
//!
//! The owner publishes a generation per region; 0 means closed. An initiator marks its *busy* word, checks the
//! generation, copies, and clears the mark. The owner closes by storing 0, and then waits until each marked busy word
//! has changed. Either the initiator sees the 0 or the owner sees the mark. This guarantee needs a full fence between
//! the store and the load on both sides. If both processes have registered for membarrier, the initiator's fence is
//! only a compiler fence, because the owner's barrier then also runs on the initiator's CPU.

use super::primitive::{AtomicU64, Ordering, fence};
use crate::error::Result;
use crate::sys::process;

/// The way in which the initiator orders its mark before its check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fences {
    /// A fence instruction on every operation.
    Full,
    /// No instruction: the side that closes or goes to sleep runs a barrier on every CPU.
    Remote,
}

/// Orders this side's earlier stores before its later loads, unless the peer's barrier does.
#[inline(always)]
pub fn light(fences: Fences) {
    match fences {
        Fences::Full => fence(Ordering::SeqCst),
        #[cfg(not(loom))]
        Fences::Remote => std::sync::atomic::compiler_fence(Ordering::SeqCst),
        #[cfg(loom)]
        Fences::Remote => fence(Ordering::SeqCst),
    }
}

/// Runs the barrier that peers with these fences omit on their fast paths.
pub fn barrier(fences: Fences) -> Result<()> {
    match fences {
        Fences::Remote => process::barrier_everywhere(),
        Fences::Full => {
            fence(Ordering::SeqCst);
            Ok(())
        }
    }
}

/// Number of bits in a mark that hold the region's index plus one, or 0 if the copy may be in any region. These bits
/// lie between the busy bit, which is the lowest, and the count of copies.
pub const PLACE_BITS: u32 = 20;
const STEP: u64 = 1 << (PLACE_BITS + 1);

/// The initiator's side of the gate. Each connection has one, and one thread at a time uses it.
#[derive(Debug)]
pub struct Initiator {
    /// Number of copies so far, in steps of `STEP`.
    seq: u64,
    fences: Fences,
}

impl Initiator {
    pub fn new(fences: Fences) -> Self {
        Initiator { seq: 0, fences }
    }

    /// Marks `busy`, and checks that `gate` of region `index` still has `generation`. False: closed, and nothing is
    /// marked.
    #[inline(always)]
    pub fn enter(&mut self, busy: &AtomicU64, gate: &AtomicU64, generation: u64, index: u32) -> bool {
        self.mark_in(busy, index);
        if shows(gate, generation) {
            return true;
        }
        self.leave(busy);
        false
    }

    /// Marks `busy` for any region: the first half of `enter` for a caller that does not know the region yet. [`shows`]
    /// is the second half, and `leave` undoes the mark.
    #[inline(always)]
    pub fn mark(&mut self, busy: &AtomicU64) {
        busy.store(self.seq | 1, Ordering::Relaxed);
        light(self.fences);
    }

    /// Like `mark`, for region `index` alone: the peer can close other regions even if this side never clears the mark.
    #[inline(always)]
    pub fn mark_in(&mut self, busy: &AtomicU64, index: u32) {
        // Release: an owner that closes the previous region and sees this mark stops waiting, so it must also see the
        // bytes copied there.
        busy.store(self.seq | (u64::from(index) + 1) << 1 | 1, Ordering::Release);
        light(self.fences);
    }

    /// Ends the copy.
    #[inline(always)]
    pub fn leave(&mut self, busy: &AtomicU64) {
        self.seq = self.seq.wrapping_add(STEP);
        // Release: the copy's loads and stores come before the mark is cleared.
        busy.store(self.seq, Ordering::Release);
    }

    /// Ends the copy. When this returns, everything that was stored is visible to all CPUs.
    #[inline(always)]
    pub fn leave_delivered(&mut self, busy: &AtomicU64) {
        self.seq = self.seq.wrapping_add(STEP);
        // An exchange is a store and a full barrier in one instruction.
        busy.swap(self.seq, Ordering::SeqCst);
    }
}

/// True if the gate is open for `generation`. Called while the busy word is marked.
#[inline(always)]
pub fn shows(gate: &AtomicU64, generation: u64) -> bool {
    gate.load(Ordering::Acquire) == generation
}

/// The owner's side: closes the gate. Before the caller looks at any busy word, it has to order this store before those
/// loads, by `fence(SeqCst)` or by the barrier on all CPUs.
pub fn close(gate: &AtomicU64) {
    gate.store(0, Ordering::SeqCst);
}

/// The mark of an initiator that may be inside region `index`; `None` if it is not.
pub fn inside(busy: &AtomicU64, index: u32) -> Option<u64> {
    let mark = busy.load(Ordering::Acquire);
    let place = (mark & (STEP - 1)) >> 1;
    (mark & 1 == 1 && (place == 0 || place == u64::from(index) + 1)).then_some(mark)
}

/// True if the initiator has left since `mark` was read.
pub fn left(busy: &AtomicU64, mark: u64) -> bool {
    busy.load(Ordering::Acquire) != mark
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_of_its_region_alone_or_of_any() {
        let (busy, gate) = (AtomicU64::new(0), AtomicU64::new(7));
        let mut me = Initiator { seq: 0u64.wrapping_sub(STEP), fences: Fences::Full };
        for index in [0, 5, (1 << (PLACE_BITS - 1)) - 1] {
            assert!(me.enter(&busy, &gate, 7, index) && !left(&busy, inside(&busy, index).unwrap()));
            assert!(inside(&busy, index ^ 1).is_none() && inside(&busy, index + 1).is_none());
            let mark = inside(&busy, index).unwrap();
            me.leave(&busy);
            assert!(left(&busy, mark) && inside(&busy, index).is_none());
            me.mark(&busy);
            assert!(left(&busy, mark) && inside(&busy, index).is_some() && inside(&busy, 9).is_some());
            me.leave_delivered(&busy);
        }
        assert!(!me.enter(&busy, &gate, 8, 5) && inside(&busy, 5).is_none());
    }
}
