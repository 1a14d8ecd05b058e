// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A progress set: the endpoints on which a domain, a completion queue, an event queue or a counter makes progress. While
//! they are few, each of them makes progress on every turn. Of many, the idle ones are put aside (`prov::idle_set`), so that a
//! turn costs as much as there are active endpoints, and not as there are connections.

use super::drive::EpRef;
use crate::prov::idle_set::IdleSet;
use crate::sync::serial::{Promised, Rank, Serial, Threading};
use crate::sys::time;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Up to `FEW` endpoints, all make progress on every turn, because it would cost more to find out which of them are
/// idle.
const FEW: usize = 4;

/// The endpoints of one object, and the way to wake the threads that sleep on it.
pub(crate) struct ProgressSet {
    members: Serial<Members>,
    /// Wakes the threads that sleep on the object: some endpoints became active, and the sleeping threads do not watch their
    /// sockets.
    wake: Box<dyn Fn() + Send + Sync>,
}

/// The endpoints of a progress set. Each is either active or idle.
#[derive(Default)]
pub(crate) struct Members {
    active: Vec<EpRef>,
    /// The idle endpoints by their numbers, each with the time until which it may stay idle (`u64::MAX`: no limit).
    idle: HashMap<u64, (EpRef, u64)>,
    /// The times of the idle endpoints that have a limit, with their numbers.
    dues: BTreeSet<(u64, u64)>,
    /// The numbers of all endpoints, by their addresses.
    numbers: HashMap<usize, u64>,
    /// The last number that was given.
    last: u64,
    /// The number of endpoints that can be idle at all.
    idle_capable: usize,
    /// The set that watches the idle endpoints; `None` until endpoints were put aside.
    at: Option<Arc<IdleSet>>,
    /// True if endpoints are idle or may become idle, so that a turn is more than progress on each active endpoint.
    many: bool,
}

impl Members {
    /// The endpoints that make progress on every turn.
    #[inline(always)]
    pub fn active(&self) -> &[EpRef] {
        &self.active
    }

    #[inline(always)]
    pub fn are_many(&self) -> bool {
        self.many
    }

    /// Sets `many`. Once there is an idle set, it is polled on every turn, even if no endpoint is idle: a socket that it
    /// still watches keeps the descriptor that the caller polls readable until the set is polled.
    fn count(&mut self) {
        self.many = self.at.is_some() || (self.active.len() > FEW && self.idle_capable > 0);
    }

    /// One turn of progress. True: endpoints that were idle are active now.
    #[inline(always)]
    fn turn(&mut self, force: bool) -> bool {
        self.active.iter().for_each(|ep| ep.progress(force));
        self.many && self.turn_with_idle(force)
    }

    /// The further steps of a turn with idle endpoints: activates those that have something to do, and puts aside those that
    /// have nothing.
    #[cold]
    #[inline(never)]
    fn turn_with_idle(&mut self, force: bool) -> bool {
        let before = self.active.len();
        let called = self.at.is_some() && self.activate();
        self.active.iter().skip(before).for_each(|ep| ep.progress(force));
        self.park_idle();
        called
    }

    /// Activates the idle endpoints that have something to do, or whose time has come. True: there were some.
    fn activate(&mut self) -> bool {
        let Members { active, idle, dues, at, .. } = self;
        let before = active.len();
        let mut rise = |number: u64| {
            if let Some((ep, due)) = idle.remove(&number) {
                dues.remove(&(due, number));
                active.push(ep);
            }
        };
        if let Some(at) = at {
            at.take(&mut rise);
        }
        if self.dues.first().is_some_and(|(due, _)| *due <= time::now_ns()) {
            let later = self.dues.split_off(&(time::now_ns() + 1, 0));
            let due = std::mem::replace(&mut self.dues, later);
            self.active.extend(due.into_iter().filter_map(|(_, number)| Some(self.idle.remove(&number)?.0)));
        }
        self.active.len() > before
    }

    /// Puts idle endpoints aside, but not the one that became active last: it is the likeliest to get more to do.
    fn park_idle(&mut self) {
        if self.active.len() <= FEW || self.idle_capable == 0 {
            return;
        }
        if self.at.is_none() {
            // Without a descriptor for the idle set, all endpoints stay active.
            self.at = IdleSet::new().ok().map(Arc::new);
        }
        let Some(at) = &self.at else { return };
        let last = self.active.len() - 1;
        let mut place = 0;
        let Members { active, idle, dues, numbers, .. } = self;
        active.retain(|ep| {
            place += 1;
            let Some(number) = numbers.get(&ep.address()).copied().filter(|_| place <= last) else { return true };
            let Some(due) = ep.join_idle_set(at, number) else { return true };
            if due < u64::MAX {
                dues.insert((due, number));
            }
            idle.insert(number, (ep.clone(), due));
            false
        });
        self.count();
    }
}

impl ProgressSet {
    pub fn new(threading: Threading, wake: impl Fn() + Send + Sync + 'static) -> ProgressSet {
        ProgressSet { members: Serial::new(threading, Rank::Progress, Members::default()), wake: Box::new(wake) }
    }

    /// Adds an endpoint, unless it is there already: it may be bound to the object several times.
    pub fn attach(&self, ep: &EpRef) {
        let mut members = self.members.lock();
        let number = members.last + 1;
        if members.numbers.contains_key(&ep.address()) {
            return;
        }
        members.last = number;
        members.numbers.insert(ep.address(), number);
        members.idle_capable += usize::from(ep.prov().can_be_idle());
        members.active.push(ep.clone());
        members.count();
        drop(members);
        (self.wake)();
    }

    pub fn detach(&self, ep: &EpRef) {
        let mut members = self.members.lock();
        let Some(number) = members.numbers.remove(&ep.address()) else { return };
        members.idle_capable -= usize::from(ep.prov().can_be_idle());
        match members.idle.remove(&number) {
            Some((_, due)) => drop(members.dues.remove(&(due, number))),
            None => members.active.retain(|e| e != ep),
        }
        members.count();
    }

    pub fn len(&self) -> usize {
        self.members.lock().numbers.len()
    }

    /// A turn of progress on the active endpoints, unless another thread is making one.
    #[inline(always)]
    pub fn glance(&self) {
        if let Some(mut members) = self.members.try_lock()
            && members.turn(false)
        {
            drop(members);
            (self.wake)();
        }
    }

    /// A turn of progress, after that of another thread if there is one. True: endpoints that were idle are active now.
    pub fn turn(&self) -> bool {
        let called = self.members.lock().turn(true);
        if called {
            (self.wake)();
        }
        called
    }

    /// The active endpoints, whose descriptors a sleeping thread watches one by one, and the set that watches the idle ones.
    pub fn active_and_idle_set(&self) -> (Vec<EpRef>, Option<Arc<IdleSet>>) {
        let mut members = self.members.lock();
        members.park_idle();
        (members.active.clone(), members.at.clone())
    }

    /// The longest time that a thread may sleep on the object before the time of an idle endpoint comes.
    pub fn sleep_limit_ns(&self) -> u64 {
        let due = self.members.lock().dues.first().map(|(due, _)| *due);
        due.map_or(u64::MAX, |due| due.saturating_sub(time::now_ns()).max(1))
    }

    /// The members without a lock, in a domain whose caller promised that calls never overlap.
    ///
    /// # Safety
    /// As for [`Serial::promised`].
    #[inline(always)]
    pub unsafe fn promised(&self) -> Option<Promised<'_, Members>> {
        // SAFETY: the caller promises that nothing else uses the members meanwhile.
        unsafe { self.members.promised() }
    }
}

#[cfg(test)]
mod tests;
