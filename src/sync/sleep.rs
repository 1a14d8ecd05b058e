// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The protocol by which a side that goes to sleep asks the other for a wake packet, over one shared word.
//!
//! The owner marks the word, runs a barrier, checks once more for news (in the memory that the other side may have
//! written, and for packets), and sleeps on the packets only if the mark is still set. The other side stores its news,
//! orders this store before a load of the word, and, if the word is marked, clears the mark and sends a packet.
//!
//! The owner has to check the mark after the last look. A slow waker, whose news the owner has long seen, may clear the
//! mark, and the owner's last look may consume the waker's packet. Without the check, nothing would then wake the owner
//! for later news. If the mark is cleared after the check, the packet arrives later and wakes the owner.

use super::gate::{self, Fences};
use super::primitive::{AtomicU64, Ordering};

/// Marks the owner as asleep. A barrier, a last look for news and [`is_marked`] have to follow.
pub fn mark(word: &AtomicU64) {
    word.store(1, Ordering::SeqCst);
}

/// True if the owner may sleep; called after the last look for news.
pub fn is_marked(word: &AtomicU64) -> bool {
    word.load(Ordering::Relaxed) != 0
}

pub fn clear(word: &AtomicU64) {
    word.store(0, Ordering::Relaxed);
}

/// True if the caller, which has just stored news for the owner of `word`, has to send a packet.
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
