// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parcels of a lane: those that were kept, and messages of the ring as they lie there.

use super::layout::SegmentRef;
use crate::prov::Parcel;
use crate::sync::consumer::Message;

/// A parcel that other messages of the ring were taken with.
pub struct Held {
    pub words: Box<[u64]>,
    pub bytes: Box<[u8]>,
}

impl Parcel for Held {
    fn words(&self) -> usize {
        self.words.len()
    }

    fn word(&self, i: usize) -> u64 {
        self.words.get(i).copied().unwrap_or(0)
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    unsafe fn copy(&self, skip: usize, to: *mut u8, len: usize) {
        let there = self.bytes.get(skip..).unwrap_or_default();
        // SAFETY: `to` is writable for `len`, by the caller's promise, and what is copied lies in the slice.
        unsafe { std::ptr::copy_nonoverlapping(there.as_ptr(), to, len.min(there.len())) }
    }
}

impl Parcel for Message<'_, SegmentRef> {
    fn words(&self) -> usize {
        self.header.words.into()
    }

    fn word(&self, i: usize) -> u64 {
        Message::word(self, i)
    }

    fn len(&self) -> usize {
        self.header.bytes.into()
    }

    unsafe fn copy(&self, skip: usize, to: *mut u8, len: usize) {
        let there = usize::from(self.header.bytes).saturating_sub(skip);
        // SAFETY: `to` is writable for `len`, by the caller's promise.
        unsafe { self.copy_out(skip, to, len.min(there)) };
    }
}
