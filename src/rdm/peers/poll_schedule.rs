// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The order in which turns of progress look at an endpoint's lanes: at lively ones, which had something to do lately, in every
//! turn, at silent ones now and then. So a thousand peers that say nothing cost one that speaks next to nothing.

use super::link::Link;
use super::peer::Id;
use std::ops::Deref;
use std::sync::Arc;

/// Lively lanes that are looked at in one turn; of more, a part each time.
const ACTIVE_PER_TURN: usize = 32;
/// Silent ones in a turn while the endpoint has nothing else to do: when `IDLE` turns have brought nothing.
const QUIET_PER_TURN: usize = 16;
const IDLE_TURNS: u32 = 32;
/// Else one in so many turns.
const QUIET_INTERVAL: u32 = 32;
/// Looks in vain after which a lane is silent.
pub const EMPTY_POLLS_MAX: u32 = 256;

/// Lanes that bring parcels, lively ones in front.
#[derive(Default)]
pub struct PollSchedule {
    lanes: Vec<(Id, Arc<Link>)>,
    active: usize,
    /// Where the last look at lively ones was, and at silent ones.
    at: usize,
    silent_at: usize,
    /// Turns in a row that brought nothing.
    idle: u32,
    turns: u32,
}

impl Deref for PollSchedule {
    type Target = [(Id, Arc<Link>)];

    fn deref(&self) -> &[(Id, Arc<Link>)] {
        &self.lanes
    }
}

impl PollSchedule {
    /// A lane is there; it has something to say.
    pub fn push(&mut self, id: Id, link: Arc<Link>) {
        link.set_slot(self.lanes.len());
        self.lanes.push((id, link.clone()));
        self.promote(&link);
    }

    pub fn remove(&mut self, link: &Link) {
        self.demote(link);
        if let Some(slot) = self.slot_of(link) {
            self.swap(slot, self.lanes.len() - 1);
            self.lanes.pop();
        }
    }

    fn slot_of(&self, link: &Link) -> Option<usize> {
        self.lanes.get(link.slot()).filter(|(_, l)| l.number == link.number).map(|_| link.slot())
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.lanes.swap(a, b);
        for slot in [a, b] {
            if let Some((_, link)) = self.lanes.get(slot) {
                link.set_slot(slot);
            }
        }
    }

    /// There is something to do for this lane.
    #[inline]
    pub fn promote(&mut self, link: &Link) {
        link.set_empty_polls(0);
        if link.slot() >= self.active
            && let Some(slot) = self.slot_of(link)
        {
            self.swap(slot, self.active);
            self.active += 1;
        }
    }

    /// There is nothing, and has not been for long.
    pub fn demote(&mut self, link: &Link) {
        if let Some(slot) = self.slot_of(link).filter(|slot| *slot < self.active) {
            self.active -= 1;
            self.swap(slot, self.active);
        }
    }

    /// A turn begins: how many lively and silent lanes it looks at.
    #[inline]
    pub fn turn(&mut self) -> (usize, usize) {
        self.turns = self.turns.wrapping_add(1);
        let quiet = self.lanes.len() - self.active;
        let most = if self.active == 0 || self.idle >= IDLE_TURNS {
            QUIET_PER_TURN
        } else {
            usize::from(self.turns.is_multiple_of(QUIET_INTERVAL))
        };
        (self.active.min(ACTIVE_PER_TURN), quiet.min(most))
    }

    /// It is over.
    #[inline]
    pub fn end_turn(&mut self, brought: bool) {
        self.idle = if brought { 0 } else { self.idle.saturating_add(1) };
    }

    /// The place of the next one to look at. Downwards, so that one that is lulled changes places with one that was looked at.
    #[inline]
    pub fn next_active(&mut self) -> usize {
        self.at = if (1..=self.active).contains(&self.at) { self.at } else { self.active } - usize::from(self.active > 0);
        self.at
    }

    #[inline]
    pub fn next_quiet(&mut self) -> usize {
        let next = self.silent_at + 1;
        self.silent_at = if next < self.lanes.len() { next.max(self.active) } else { self.active };
        self.silent_at
    }
}
