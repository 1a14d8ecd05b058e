// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The turns of progress of one endpoint: in which turn rare matters are polled, and whether a message without a receive may
//! stay with its lane.

use crate::rdm::peers::link::Link;
use crate::sys::time;

/// Time between two polls of rare matters, in ticks of the clock counter.
const RARE_POLL_TICKS: u64 = 100_000;
/// The same time while lanes are being connected.
const CONNECTING_POLL_TICKS: u64 = 10_000;
/// Number of turns, after the turn that filled a receive, in which a message without a receive may stay with its lane. A
/// program that reads its queue until the queue is empty takes one turn without a message before it posts the next
/// receive.
const DEFER_TURNS: u32 = 2;

pub struct Turns {
    /// Turns of progress so far; wraps around.
    count: u32,
    /// The last turn in which any lane filled a receive. At first a number far from `count`, so that no message is deferred.
    last_fill: u32,
    /// Time of the last poll of rare matters, in ticks of the clock counter.
    last_rare_poll: u64,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns { count: 0, last_fill: u32::MAX / 2, last_rare_poll: 0 }
    }
}

impl Turns {
    /// Begins a turn. True if the turn polls rare matters. `connecting`: lanes are being connected. Otherwise only every
    /// 16th turn looks at the clock.
    #[inline(always)]
    pub fn begin(&mut self, connecting: bool) -> bool {
        self.count = self.count.wrapping_add(1);
        (connecting || self.count & 15 == 0)
            && time::ticks().wrapping_sub(self.last_rare_poll) > if connecting { CONNECTING_POLL_TICKS } else { RARE_POLL_TICKS }
    }

    /// A message of a lane has filled a receive.
    #[inline(always)]
    pub fn filled(&mut self, link: &Link) {
        self.last_fill = self.count;
        link.set_last_fill(self.count);
    }

    /// True if a message without a receive may stay with the lane.
    #[inline(always)]
    pub fn may_defer(&self, link: &Link) -> bool {
        link.turns_since_fill(self.count) <= DEFER_TURNS
    }

    /// True if messages may have stayed with any lane.
    pub fn any_deferred(&self) -> bool {
        self.count.wrapping_sub(self.last_fill) <= DEFER_TURNS + 1
    }

    /// True if messages may have stayed with this lane.
    pub fn has_deferred(&self, link: &Link) -> bool {
        link.turns_since_fill(self.count) <= DEFER_TURNS + 1
    }
}
