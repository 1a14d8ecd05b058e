// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How both sides divide the memory under test. They compute it alike, so one base address is all
//! that they have to tell each other.

use crate::wire::{MAIL_MAX, Plan};

const PAGE: usize = 4096;
/// Control messages that can be on their way out of the mailbox.
pub const LETTERS: usize = 8;
const MAIL_STRIDE: usize = 256;
/// Memory that receive buffers may take together before receives share them.
const RECEIVE_BUDGET: usize = 64 << 20;

/// A source, and places where operations land. Each is followed by a page that nobody may touch.
/// Control messages have host memory of their own, unless messages are under test: nobody can tell
/// beforehand which receive will take which.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    stride: usize,
    pub slots: usize,
    /// Slots of the first endpoint alone, where control messages land as well. The others have as many together.
    first: usize,
    /// Messages are under test, so control messages land in the same places.
    pub messages: bool,
    /// Receives that an endpoint has posted at any time.
    pub receives: usize,
}

impl Layout {
    pub fn of(plan: &Plan) -> Layout {
        let stride = (plan.max_size + 8).next_multiple_of(PAGE) + PAGE;
        let messages = plan.test.is_message();
        let first = if messages { (RECEIVE_BUDGET / stride).clamp(2, plan.depth.max(2)) } else { 1 };
        let slots = if messages && plan.endpoints > 1 { 2 * first } else { first };
        Layout { stride, slots, first, messages, receives: if messages { plan.depth.max(2) } else { 4 } }
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

    /// Where receive `i` of an endpoint puts its message, and how long that may be.
    pub fn inbox(&self, lane: usize, i: usize) -> (usize, usize) {
        if !self.messages {
            return (i * MAIL_STRIDE, MAIL_MAX);
        }
        let slot = i % self.first + if lane > 0 { self.slots - self.first } else { 0 };
        (self.slot(slot), self.stride - PAGE)
    }

    /// Where this side's control message of that number leaves from, if it needs a place.
    pub fn letter(&self, number: u64) -> usize {
        (self.mail_receives() + number as usize % LETTERS) * MAIL_STRIDE
    }

    fn mail_receives(&self) -> usize {
        if self.messages { 0 } else { self.receives }
    }

    /// Bytes of the memory for control messages.
    pub fn mailbox(&self) -> usize {
        (self.mail_receives() + LETTERS) * MAIL_STRIDE
    }
}
