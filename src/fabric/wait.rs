// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waiting: poll for a while, then mark everything asleep, run the barrier, look once more, sleep.

use super::drive::EpRef;
use super::pep::Pep;
use super::roster::Roster;
use crate::config;
use crate::error::{Error, Result, errno};
use crate::prov::queue::Waiter;
use crate::prov::rest::Rest;
use crate::reserve;
use crate::sync::gate::{Fences, barrier};
use crate::sys::epoll::{Poller, Woken};
use crate::sys::time::now_ns;
use std::os::fd::AsFd;
use std::sync::Arc;

/// The longest sleep of a wait that has nothing to do by itself.
const LONG_NAP: u64 = 1_000_000_000;

/// What a wait drives while it waits.
pub(crate) struct Driven<'a> {
    roster: &'a Roster,
    /// Those that are active, to be put to sleep one by one; the others rest.
    pub eps: Vec<EpRef>,
    pub rest: Option<Arc<Rest>>,
    peps: Vec<Arc<Pep>>,
}

impl<'a> Driven<'a> {
    pub fn new(roster: &'a Roster, peps: Vec<Arc<Pep>>) -> Driven<'a> {
        let (eps, rest) = roster.awake();
        Driven { roster, eps, rest, peps }
    }

    /// A turn whatever other threads do. True: there is another one that is active.
    pub fn progress(&self) -> bool {
        let called = self.roster.turn();
        self.finish();
        called
    }

    /// Passive endpoints last: a peer that completed one connection and asks for the next is told of in that order.
    fn finish(&self) {
        let finish_connections = || {
            self.roster.turn();
        };
        self.peps.iter().for_each(|p| p.progress(finish_connections));
    }

    /// As `progress`; a thread that is inside is turn enough.
    fn glance(&self) {
        self.roster.glance();
        self.finish();
    }

    /// Marks all asleep on `poller`; the barrier has run when this returns. `look` comes next.
    pub fn sleep(&self, poller: &Poller) -> Result<()> {
        let mut fences: Option<Fences> = None;
        let mut failed = None;
        for (i, ep) in self.eps.iter().enumerate() {
            match ep.prov().sleep(poller) {
                Ok(Some(Fences::Remote)) => fences = Some(Fences::Remote),
                Ok(Some(Fences::Full)) => fences = fences.or(Some(Fences::Full)),
                Ok(None) => {}
                Err(e) => {
                    self.eps[..=i].iter().for_each(|ep| ep.prov().awake(Some(poller)));
                    failed = Some(e);
                    break;
                }
            }
        }
        if let Some(e) = failed {
            return Err(e);
        }
        if let Err(e) = self.peps.iter().try_for_each(|pep| pep.watch(poller)) {
            self.awake(Some(poller));
            return Err(e);
        }
        let Some(f) = fences else { return Ok(()) };
        // Without it nothing would wake this thread for certain.
        barrier(f).inspect_err(|_| self.awake(Some(poller)))
    }

    /// The last look before sleeping. False: something came meanwhile, so look for it instead. What the look itself has
    /// opened, connected or still pending, is watched by nobody yet, so that counts as well.
    pub fn look(&self) -> bool {
        let before = self.watched();
        !self.progress() && self.eps.iter().all(|e| e.may_sleep()) && self.watched() == before
    }

    /// What there is to watch, as a sum.
    pub fn watched(&self) -> u64 {
        let eps = self.eps.iter().map(|e| e.prov().watched());
        let all = eps.chain(self.peps.iter().map(|p| p.watched()));
        all.fold(0, |sum, n| sum.wrapping_mul(0x100_0000_01b3).wrapping_add(n))
    }

    /// Undoes `sleep` on `poller`.
    pub fn awake(&self, poller: Option<&Poller>) {
        self.eps.iter().for_each(|e| e.prov().awake(poller));
    }

    /// The last look before a poll of the caller's own. As `look`; deadlines, and what nobody announces, end the poll too.
    pub fn look_for_caller(&self, poller: &Poller) -> Result<bool> {
        if !self.look() {
            return Ok(false);
        }
        let nap = self.nap_ns();
        if nap < u64::MAX {
            poller.set_timer(Some(nap))?;
        }
        Ok(true)
    }

    /// The longest that a sleep may last; `u64::MAX`: until something wakes it.
    pub fn nap_ns(&self) -> u64 {
        const STALLED: u64 = 50_000;
        let naps = self.eps.iter().map(|e| if e.is_stalled() { e.nap_ns().min(STALLED) } else { e.nap_ns() });
        naps.fold(self.roster.nap_ns(), u64::min)
    }
}

/// Waits until `ready` gives something or `timeout_ms` passed (-1 = for ever): `Ok(None)`. `driven`
/// is asked for anew before each sleep, because endpoints come and go; none: a thread of the library
/// drives, and only `waiter` is slept on.
pub(crate) fn wait<'a, R>(
    waiter: &Waiter,
    driven: impl Fn() -> Option<Driven<'a>>,
    timeout_ms: i32,
    mut ready: impl FnMut() -> Option<R>,
) -> Result<Option<R>> {
    let start = now_ns();
    let until = if timeout_ms < 0 { u64::MAX } else { start + timeout_ms as u64 * 1_000_000 };
    let spin = config::get().spin_us * 1000;
    let mut spin_until = start.saturating_add(spin).min(until);
    let mut set = driven();
    loop {
        if reserve::is_lowest() {
            return ready().map_or(Err(reserve::NONE_LEFT), |r| Ok(Some(r)));
        }
        if let Some(d) = &set {
            d.glance();
        }
        if let Some(r) = ready() {
            return Ok(Some(r));
        }
        let now = now_ns();
        if now >= until {
            return Ok(None);
        }
        if now < spin_until {
            std::hint::spin_loop();
            continue;
        }
        let poller = waiter.arm()?;
        // After arming: whatever is bound from now on wakes.
        set = driven();
        let mut quiet = true;
        if let Some(d) = &set {
            d.sleep(&poller)?;
            quiet = d.look();
        }
        let mut got = ready();
        let mut interrupted = false;
        if got.is_none() && quiet {
            let nap = set.as_ref().map_or(LONG_NAP, Driven::nap_ns).min(LONG_NAP).min(until - now);
            let rest = set.as_ref().and_then(|d| d.rest.as_deref());
            interrupted = poller.wait_beside(rest.map(Rest::as_fd), Some(nap)) == Woken::Interrupted;
        }
        if let Some(d) = &set {
            d.awake(Some(&poller));
            d.progress();
        }
        drop(poller);
        got = got.or_else(&mut ready);
        // What woke us is often the first of several: look for the rest before sleeping again.
        spin_until = now_ns().saturating_add(spin).min(until);
        if got.is_some() {
            return Ok(got);
        }
        if interrupted {
            return Err(Error::fixed(errno::EINTR, "a signal interrupted the wait"));
        }
    }
}
