// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a side that goes to sleep asks the other for a wake packet, over one shared word.
//!
//! The owner marks the word, runs a barrier, takes a last look (at what the other may have stored, and
//! at the packets) and sleeps on the packets only if the mark still stands. Whoever has something to
//! say stores it, orders that before a look at the word, and if the word is marked clears it and sends
//! a packet.
//!
//! The check after the last look is needed: a waker that was slow, with news that the owner has long
//! seen, may clear the mark, and the last look may swallow its packet. Then nobody would wake the
//! owner for what comes next. A mark cleared after the check is no trouble: its packet comes later.

use super::gate::{self, Fences};
use super::primitive::{AtomicU64, Ordering};

/// Marks the owner asleep. A barrier, a last look and [`is_marked`] come next.
pub fn mark(word: &AtomicU64) {
    word.store(1, Ordering::SeqCst);
}

/// After the last look: whether the owner may sleep.
pub fn is_marked(word: &AtomicU64) -> bool {
    word.load(Ordering::Relaxed) != 0
}

pub fn clear(word: &AtomicU64) {
    word.store(0, Ordering::Relaxed);
}

/// Whether the caller, who has just stored something for the owner of `word`, owes it a packet.
#[inline(always)]
pub fn must_wake(word: &AtomicU64, fences: Fences) -> bool {
    gate::light(fences);
    let marked = word.load(Ordering::Relaxed) != 0;
    if marked {
        // One packet is enough until the owner sleeps again.
        clear(word);
    }
    marked
}
