// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The order in which progress polls an endpoint's lanes. Active lanes, which brought something lately, are polled in
//! every turn, quiet lanes only now and then. So a thousand silent peers add next to nothing to the cost of one that
//! speaks.

use super::link::Link;
use super::peer::Id;
use std::ops::Deref;
use std::sync::Arc;

/// Active lanes polled in one turn. If there are more, each turn takes the next ones.
const ACTIVE_PER_TURN: usize = 32;
/// Quiet lanes polled in one turn if the endpoint is idle: no lane is active, or the last `IDLE_TURNS` turns brought
/// nothing.
const QUIET_PER_TURN: usize = 16;
const IDLE_TURNS: u32 = 32;
/// If the endpoint is not idle, every `QUIET_INTERVAL`-th turn polls one quiet lane.
const QUIET_INTERVAL: u32 = 32;
/// Consecutive empty polls after which a lane becomes quiet.
pub const EMPTY_POLLS_MAX: u32 = 256;

/// Connected lanes, active ones in front.
#[derive(Default)]
pub struct PollSchedule {
    lanes: Vec<(Id, Arc<Link>)>,
    active: usize,
    /// Index of the active lane polled last, and of the quiet lane polled last.
    active_at: usize,
    quiet_at: usize,
    /// Consecutive turns that brought nothing.
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
    /// Adds a lane, as an active one.
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

    /// Makes a lane active, because it brought something or has to send something.
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

    /// Makes a lane quiet.
    pub fn demote(&mut self, link: &Link) {
        if let Some(slot) = self.slot_of(link).filter(|slot| *slot < self.active) {
            self.active -= 1;
            self.swap(slot, self.active);
        }
    }

    /// Begins a turn. Returns the number of active and the number of quiet lanes that the turn polls.
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

    /// Ends a turn. `brought`: some lane brought something.
    #[inline]
    pub fn end_turn(&mut self, brought: bool) {
        self.idle = if brought { 0 } else { self.idle.saturating_add(1) };
    }

    /// Index of the next active lane to poll. The index counts downwards, because a lane that is demoted in this turn
    /// changes places with the last active lane, which was polled already.
    #[inline]
    pub fn next_active(&mut self) -> usize {
        self.active_at =
            if (1..=self.active).contains(&self.active_at) { self.active_at } else { self.active } - usize::from(self.active > 0);
        self.active_at
    }

    #[inline]
    pub fn next_quiet(&mut self) -> usize {
        let next = self.quiet_at + 1;
        self.quiet_at = if next < self.lanes.len() { next.max(self.active) } else { self.active };
        self.quiet_at
    }
}
