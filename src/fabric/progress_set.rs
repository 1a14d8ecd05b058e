// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The endpoints that a domain, a completion queue or an event queue drives. Of a few, all have a turn of progress each time; of
//! many, idle ones rest (`prov::rest`), so that a turn costs what is active and not what is connected.

use super::drive::EpRef;
use crate::prov::rest::Rest;
use crate::sync::serial::{Promised, Serial, Threading};
use crate::sys::time;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Up to so many all have every turn: to ask which of them are idle would cost more.
const FEW: usize = 4;

pub(crate) struct ProgressSet {
    members: Serial<Members>,
    /// Wakes who sleeps on the object: there are active endpoints now whose sockets the sleeper does not watch.
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
pub(crate) struct Members {
    active: Vec<EpRef>,
    /// By their numbers, with the time until which they may rest.
    idle: HashMap<u64, (EpRef, u64)>,
    /// The times of those that have one, and their numbers.
    dues: BTreeSet<(u64, u64)>,
    /// The numbers of all, by where they lie.
    numbers: HashMap<usize, u64>,
    last: u64,
    /// How many can rest at all.
    idle_capable: usize,
    at: Option<Arc<Rest>>,
    /// Some rest, or may, so that a turn is more than a turn of each active one.
    many: bool,
}

impl Members {
    /// Those that have their turn each time.
    #[inline(always)]
    pub fn active(&self) -> &[EpRef] {
        &self.active
    }

    #[inline(always)]
    pub fn are_many(&self) -> bool {
        self.many
    }

    /// Once there is a `Rest` it is asked for ever: a socket that it still watches keeps the descriptor which the caller polls
    /// readable until it is asked, though its endpoint rests no more.
    fn count(&mut self) {
        self.many = self.at.is_some() || (self.active.len() > FEW && self.idle_capable > 0);
    }

    /// True: some that rested are active now.
    #[inline(always)]
    fn turn(&mut self, force: bool) -> bool {
        self.active.iter().for_each(|ep| ep.progress(force));
        self.many && self.turn_with_idle(force)
    }

    /// The rest of a turn where there are many: who has something to do is active, and who has nothing rests.
    #[cold]
    #[inline(never)]
    fn turn_with_idle(&mut self, force: bool) -> bool {
        let before = self.active.len();
        let called = self.at.is_some() && self.activate();
        self.active.iter().skip(before).for_each(|ep| ep.progress(force));
        self.park_idle();
        called
    }

    /// Makes those active that have something to do, or whose time has come.
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

    /// Lets all rest that can, but for the last that became active: it is the likeliest to have more.
    fn park_idle(&mut self) {
        if self.active.len() <= FEW || self.idle_capable == 0 {
            return;
        }
        if self.at.is_none() {
            // Where there is no descriptor for it, all stay active.
            self.at = Rest::new().ok().map(Arc::new);
        }
        let Some(at) = &self.at else { return };
        let last = self.active.len() - 1;
        let mut place = 0;
        let Members { active, idle, dues, numbers, .. } = self;
        active.retain(|ep| {
            place += 1;
            let Some(number) = numbers.get(&ep.address()).copied().filter(|_| place <= last) else { return true };
            let Some(due) = ep.rest(at, number) else { return true };
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
        ProgressSet { members: Serial::new(threading, Members::default()), wake: Box::new(wake) }
    }

    /// Once for each endpoint, however often it is bound to the object.
    pub fn attach(&self, ep: &EpRef) {
        let mut members = self.members.lock();
        let number = members.last + 1;
        if members.numbers.contains_key(&ep.address()) {
            return;
        }
        members.last = number;
        members.numbers.insert(ep.address(), number);
        members.idle_capable += usize::from(ep.prov().can_rest());
        members.active.push(ep.clone());
        members.count();
        drop(members);
        (self.wake)();
    }

    pub fn detach(&self, ep: &EpRef) {
        let mut members = self.members.lock();
        let Some(number) = members.numbers.remove(&ep.address()) else { return };
        members.idle_capable -= usize::from(ep.prov().can_rest());
        match members.idle.remove(&number) {
            Some((_, due)) => drop(members.dues.remove(&(due, number))),
            None => members.active.retain(|e| e != ep),
        }
        members.count();
    }

    pub fn len(&self) -> usize {
        self.members.lock().numbers.len()
    }

    /// A turn of progress of all that are active; if another thread gives them one, that is enough.
    #[inline(always)]
    pub fn glance(&self) {
        if let Some(mut members) = self.members.try_lock()
            && members.turn(false)
        {
            drop(members);
            (self.wake)();
        }
    }

    /// The same whatever other threads do. True: some that rested are active now.
    pub fn turn(&self) -> bool {
        let called = self.members.lock().turn(true);
        if called {
            (self.wake)();
        }
        called
    }

    /// Those to be put to sleep one by one, and what watches the others.
    pub fn awake(&self) -> (Vec<EpRef>, Option<Arc<Rest>>) {
        let mut members = self.members.lock();
        members.park_idle();
        (members.active.clone(), members.at.clone())
    }

    /// How long the object may sleep before one that rests is due.
    pub fn nap_ns(&self) -> u64 {
        let due = self.members.lock().dues.first().map(|(due, _)| *due);
        due.map_or(u64::MAX, |due| due.saturating_sub(time::now_ns()).max(1))
    }

    /// The members, where the caller promised that calls never overlap.
    ///
    /// # Safety
    /// As for [`Serial::promised`].
    #[inline(always)]
    pub unsafe fn promised(&self) -> Option<Promised<'_, Members>> {
        // SAFETY: our caller promises what `Serial::promised` asks: that nothing else has the members meanwhile.
        unsafe { self.members.promised() }
    }
}

#[cfg(test)]
mod tests;
