// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How both sides divide the memory under test. They compute it alike, so one base address is all
//! that they have to tell each other.

use crate::wire::{MAIL_MAX, Plan};

const PAGE: usize = 4096;
/// Memory that receive buffers may take together before receives share them.
const RECEIVE_BUDGET: usize = 64 << 20;

/// A source, and places where operations land. Each is followed by a page that nobody may touch.
/// Control messages have host memory of their own, unless messages are under test: nobody can tell
/// beforehand which receive will take which.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    stride: usize,
    pub slots: usize,
    messages: bool,
    /// Receives that are posted at any time.
    pub receives: usize,
}

impl Layout {
    pub fn of(plan: &Plan) -> Layout {
        let stride = (plan.max_size + 8).next_multiple_of(PAGE) + PAGE;
        let messages = plan.test.is_message();
        let slots = if messages { (RECEIVE_BUDGET / stride).clamp(2, plan.depth.max(2)) } else { 1 };
        Layout { stride, slots, messages, receives: if messages { plan.depth.max(2) } else { 4 } }
    }

    pub fn bytes(&self) -> usize {
        self.stride * (1 + self.slots)
    }

    /// Where an operation of `size` bytes starts, so that it ends on a word, which is written last
    /// and at once.
    pub fn source(&self, size: usize) -> usize {
        size.wrapping_neg() % 8
    }

    pub fn target(&self, size: usize) -> usize {
        self.stride + self.source(size)
    }

    /// Where messages land.
    pub fn slot(&self, i: usize) -> usize {
        self.stride * (1 + i % self.slots)
    }

    /// Where receive `i` puts its message, and how long that may be.
    pub fn inbox(&self, i: usize) -> (usize, usize) {
        if self.messages { (self.slot(i), self.stride - PAGE) } else { (i * 256, MAIL_MAX) }
    }

    /// Bytes of the memory for control messages, which the places of `inbox` lie in; 0: they lie in
    /// the memory under test.
    pub fn mailbox(&self) -> usize {
        if self.messages { 0 } else { self.receives * 256 }
    }
}
