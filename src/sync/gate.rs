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

/// The initiator's side: one per connection, used by one thread at a time.
#[derive(Debug)]
pub struct Initiator {
    seq: u64,
    fences: Fences,
}

impl Initiator {
    pub fn new(fences: Fences) -> Self {
        Initiator { seq: 0, fences }
    }

    /// Marks `busy` and checks that `gate` still shows `generation`. False: closed; nothing is marked.
    #[inline(always)]
    pub fn enter(&mut self, busy: &AtomicU64, gate: &AtomicU64, generation: u64) -> bool {
        self.mark(busy);
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

    /// The copy is over.
    #[inline(always)]
    pub fn leave(&mut self, busy: &AtomicU64) {
        self.seq = self.seq.wrapping_add(2);
        // Release: the copy's stores and loads come before the mark goes.
        busy.store(self.seq, Ordering::Release);
    }

    /// The copy is over, and everything stored is visible everywhere when this returns.
    #[inline(always)]
    pub fn leave_delivered(&mut self, busy: &AtomicU64) {
        self.seq = self.seq.wrapping_add(2);
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

/// The mark of an initiator that may be inside; `None` if it is not.
pub fn inside(busy: &AtomicU64) -> Option<u64> {
    let mark = busy.load(Ordering::Acquire);
    (mark & 1 == 1).then_some(mark)
}

/// Whether the initiator has left since `mark` was read.
pub fn left(busy: &AtomicU64, mark: u64) -> bool {
    busy.load(Ordering::Acquire) != mark
}
