// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gate between an initiator that copies into or out of a region and its owner that closes it.
//!
//! The owner publishes a generation per region; 0 means closed. An initiator marks its *busy* word,
//! checks the generation, copies, and clears the word. The owner closes by storing 0 and then waits
//! until each initiator's word, if it was marked, has changed. Either the initiator sees the 0 or the
//! owner sees the mark: that needs a full fence between the store and the load on both sides. The
//! initiator's is a compiler fence when both processes registered for membarrier, because then the
//! owner's barrier runs on the initiator's CPU as well.

use super::primitive::{AtomicU64, Ordering, fence};
use crate::error::Result;
use crate::sys::process;

/// How the initiator orders its mark before its check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fences {
    /// A fence instruction on every operation.
    Full,
    /// None: whoever closes or goes to sleep runs a barrier on every CPU.
    Remote,
}

/// Orders our earlier stores before our later loads, as far as the peer's barrier does not.
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

/// Runs the barrier that the peers of these fences left out of their fast paths.
pub fn barrier(fences: Fences) -> Result<()> {
    match fences {
        Fences::Remote => process::barrier_everywhere(),
        Fences::Full => {
            fence(Ordering::SeqCst);
            Ok(())
        }
    }
}

/// Bits of a mark that tell which region it is in, one more than its index, or 0 for some region. They stand behind the bit that says
/// busy, and before the count.
pub const PLACE_BITS: u32 = 20;
const STEP: u64 = 1 << (PLACE_BITS + 1);

/// The initiator's side: one per connection, used by one thread at a time.
#[derive(Debug)]
pub struct Initiator {
    /// Of copies, in steps of `STEP`.
    seq: u64,
    fences: Fences,
}

impl Initiator {
    pub fn new(fences: Fences) -> Self {
        Initiator { seq: 0, fences }
    }

    /// Marks `busy` and checks that `gate`, of the region `index`, still shows `generation`. False: closed; nothing is marked.
    #[inline(always)]
    pub fn enter(&mut self, busy: &AtomicU64, gate: &AtomicU64, generation: u64, index: u32) -> bool {
        self.mark_in(busy, index);
        if shows(gate, generation) {
            return true;
        }
        self.leave(busy);
        false
    }

    /// The first half of `enter`; `shows` is the second, and `leave` undoes it.
    #[inline(always)]
    pub fn mark(&mut self, busy: &AtomicU64) {
        busy.store(self.seq | 1, Ordering::Relaxed);
        light(self.fences);
    }

    /// The same for the region `index` alone: its peer may close the others while this side does not go on.
    #[inline(always)]
    pub fn mark_in(&mut self, busy: &AtomicU64, index: u32) {
        // Release: who closes the region before and sees this mark waits no longer, and has what was copied in it.
        busy.store(self.seq | (u64::from(index) + 1) << 1 | 1, Ordering::Release);
        light(self.fences);
    }

    /// The copy is over.
    #[inline(always)]
    pub fn leave(&mut self, busy: &AtomicU64) {
        self.seq = self.seq.wrapping_add(STEP);
        // Release: the copy's stores and loads come before the mark goes.
        busy.store(self.seq, Ordering::Release);
    }

    /// The copy is over, and everything stored is visible everywhere when this returns.
    #[inline(always)]
    pub fn leave_delivered(&mut self, busy: &AtomicU64) {
        self.seq = self.seq.wrapping_add(STEP);
        // One exchange is store and full barrier in a single instruction.
        busy.swap(self.seq, Ordering::SeqCst);
    }
}

/// Whether the gate is open for `generation`; asked under the mark.
#[inline(always)]
pub fn shows(gate: &AtomicU64, generation: u64) -> bool {
    gate.load(Ordering::Acquire) == generation
}

/// The owner's side: closes the gate. The caller then orders this store before it looks at any busy
/// word: `fence(SeqCst)`, or the barrier everywhere.
pub fn close(gate: &AtomicU64) {
    gate.store(0, Ordering::SeqCst);
}

/// The mark of an initiator that may be inside the region `index`; `None` if it is not.
pub fn inside(busy: &AtomicU64, index: u32) -> Option<u64> {
    let mark = busy.load(Ordering::Acquire);
    let place = (mark & (STEP - 1)) >> 1;
    (mark & 1 == 1 && (place == 0 || place == u64::from(index) + 1)).then_some(mark)
}

/// Whether the initiator has left since `mark` was read.
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
