// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whoever reads an empty queue, and drives the endpoint meanwhile: messages go straight into its array.

use crate::prov::ops::{CqFormat, put_from};
use crate::prov::queue::{Completion, Queue};
use std::ffi::c_void;

/// Of nobody, unless a read is under way.
pub struct CqReader {
    queue: *const Queue,
    format: CqFormat,
    buf: *mut c_void,
    /// Entries that the array holds, and how many it has got.
    capacity: usize,
    count: usize,
}

// SAFETY: the pointers are used only during the call that gave them, on its thread.
unsafe impl Send for CqReader {}

impl CqReader {
    pub const NONE: CqReader =
        CqReader { queue: std::ptr::null(), format: CqFormat::Context, buf: std::ptr::null_mut(), capacity: 0, count: 0 };

    /// # Safety
    /// Until `leave`, `buf` holds `most` entries of the format, and the queue is there, has no locks, and nobody else has it.
    #[inline(always)]
    pub unsafe fn begin(&mut self, queue: *const Queue, format: CqFormat, buf: *mut c_void, capacity: usize) {
        *self = CqReader { queue, format, buf, capacity, count: 0 };
    }

    /// Gives how many entries it got.
    #[inline(always)]
    pub fn end(&mut self) -> usize {
        self.capacity = 0;
        self.count
    }

    /// An entry of `queue`. False: it has to go there, as somebody else reads that, or older entries wait in it.
    #[inline(always)]
    pub fn push(&mut self, queue: &Queue, entry: &Completion, tag: u64) -> bool {
        if self.count >= self.capacity || !std::ptr::eq(queue, self.queue) {
            return false;
        }
        // SAFETY: it is the queue of `come`, which says that it has no locks and is nobody else's now.
        if !unsafe { queue.reach::<false>() }.is_empty() {
            return false;
        }
        // SAFETY: `come` says that the array holds more.
        unsafe { put_from(self.format, self.buf, self.count, entry, tag) };
        self.count += 1;
        true
    }
}
