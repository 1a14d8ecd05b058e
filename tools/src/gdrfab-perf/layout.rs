// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The layout of the memory under test. Both sides compute it in the same way, so one base address is all that they have to
//! tell each other.

use crate::wire::{MAIL_MAX, Plan};

const PAGE: usize = 4096;
/// The most control messages that can be outstanding from the mailbox.
pub const LETTERS: usize = 8;
const MAIL_STRIDE: usize = 256;
/// The most memory that receive buffers may take before several receives share a buffer.
const RECEIVE_BUDGET: usize = 64 << 20;

/// A source range, and ranges where operations arrive. Each is followed by a page that no operation may touch. Control
/// messages have host memory of their own, unless messages are under test: then it cannot be known which receive a message
/// will take.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    stride: usize,
    pub slots: usize,
    /// The slots of the first endpoint, into which control messages arrive as well. The other endpoints have as many
    /// together.
    first: usize,
    /// Messages are under test, so control messages arrive in the same slots.
    pub messages: bool,
    /// The number of receives that an endpoint has posted at any time.
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

    /// The start of an operation of `size` bytes, chosen so that it ends with a whole word, which is written last and in one
    /// step.
    pub fn source(&self, size: usize) -> usize {
        size.wrapping_neg() % 8
    }

    pub fn target(&self, size: usize) -> usize {
        self.stride + self.source(size)
    }

    /// The start of the range where messages arrive.
    pub fn slot(&self, i: usize) -> usize {
        self.stride * (1 + i % self.slots)
    }

    /// The buffer of receive `i` of an endpoint, and its length.
    pub fn inbox(&self, lane: usize, i: usize) -> (usize, usize) {
        if !self.messages {
            return (i * MAIL_STRIDE, MAIL_MAX);
        }
        let slot = i % self.first + if lane > 0 { self.slots - self.first } else { 0 };
        (self.slot(slot), self.stride - PAGE)
    }

    /// The place from which this side sends the control message of that number, if it needs one.
    pub fn letter(&self, number: u64) -> usize {
        (self.mail_receives() + number as usize % LETTERS) * MAIL_STRIDE
    }

    fn mail_receives(&self) -> usize {
        if self.messages { 0 } else { self.receives }
    }

    /// The length of the memory for control messages.
    pub fn mailbox(&self) -> usize {
        (self.mail_receives() + LETTERS) * MAIL_STRIDE
    }
}
