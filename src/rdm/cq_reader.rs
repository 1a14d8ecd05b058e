// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The array that a program passes to `gdrfab_cq_read`. A read of an empty queue makes progress on the endpoint, and the
//! entries of messages that arrive meanwhile go straight into the array, not through the queue.

use crate::prov::ops::{CqFormat, put_from};
use crate::prov::queue::{Completion, Queue};
use std::ffi::c_void;

/// The read that is under way; `capacity` is 0 if there is none.
pub struct CqReader {
    queue: *const Queue,
    format: CqFormat,
    buf: *mut c_void,
    /// Entries that fit into the array, and entries written so far.
    capacity: usize,
    count: usize,
}

// SAFETY: the pointers are used only between `begin` and `end`, which one call makes on one thread.
unsafe impl Send for CqReader {}

impl CqReader {
    pub const NONE: CqReader =
        CqReader { queue: std::ptr::null(), format: CqFormat::Context, buf: std::ptr::null_mut(), capacity: 0, count: 0 };

    /// # Safety
    /// Until `end`, `buf` holds `capacity` entries of the format, and the queue is open, has no locks, and is used by nobody
    /// else.
    #[inline(always)]
    pub unsafe fn begin(&mut self, queue: *const Queue, format: CqFormat, buf: *mut c_void, capacity: usize) {
        *self = CqReader { queue, format, buf, capacity, count: 0 };
    }

    /// Ends the read. Returns how many entries were written.
    #[inline(always)]
    pub fn end(&mut self) -> usize {
        self.capacity = 0;
        self.count
    }

    /// Writes an entry of `queue` into the array. False if the entry has to go into the queue, because another queue is
    /// being read, the array is full, or older entries wait in the queue.
    #[inline(always)]
    pub fn push(&mut self, queue: &Queue, entry: &Completion, tag: u64) -> bool {
        if self.count >= self.capacity || !std::ptr::eq(queue, self.queue) {
            return false;
        }
        // SAFETY: this is the queue of `begin`, whose caller promises that it has no locks and nobody else uses it.
        if !unsafe { queue.reach::<false>() }.is_empty() {
            return false;
        }
        // SAFETY: the caller of `begin` promises that the array holds `capacity` entries, and `count` is less.
        unsafe { put_from(self.format, self.buf, self.count, entry, tag) };
        self.count += 1;
        true
    }
}
