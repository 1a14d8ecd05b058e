// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waiting: poll for a while, then mark everything asleep, run the barrier, look once more, sleep.

use super::drive::EpRef;
use super::pep::Pep;
use super::progress_set::ProgressSet;
use crate::config;
use crate::error::{Error, Result, errno};
use crate::prov::queue::Waiter;
use crate::prov::rest::Rest;
use crate::prov::waiter::Asleep;
use crate::reserve;
use crate::sync::gate::{Fences, barrier};
use crate::sys::cancel::{self, SleepRequest, Woken};
use crate::sys::epoll::Poller;
use crate::sys::time::now_ns;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

/// The longest sleep of a wait that has nothing to do by itself.
const LONG_NAP: u64 = 1_000_000_000;

/// What a wait drives while it waits.
pub(crate) struct Driven<'a> {
    set: &'a ProgressSet,
    /// Those that are active, to be put to sleep one by one; the others rest.
    pub eps: Vec<EpRef>,
    pub rest: Option<Arc<Rest>>,
    peps: Vec<Arc<Pep>>,
}

impl<'a> Driven<'a> {
    pub fn new(set: &'a ProgressSet, peps: Vec<Arc<Pep>>) -> Driven<'a> {
        let (eps, rest) = set.awake();
        Driven { set, eps, rest, peps }
    }

    /// A turn whatever other threads do. True: there is another one that is active.
    pub fn progress(&self) -> bool {
        let called = self.set.turn();
        self.finish();
        called
    }

    /// Passive endpoints last: a peer that completed one connection and asks for the next is told of in that order.
    fn finish(&self) {
        let finish_connections = || {
            self.set.turn();
        };
        self.peps.iter().for_each(|p| p.progress(finish_connections));
    }

    /// As `progress`; a thread that is inside is turn enough.
    fn glance(&self) {
        self.set.glance();
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
        naps.fold(self.set.nap_ns(), u64::min)
    }
}

/// What a wait does next.
pub enum Step<R> {
    /// `None`: the time is over.
    Over(Option<R>),
    /// Sleeps, by `cancel::sleep`, and says how that ended to `Wait::woke`.
    Sleep(SleepRequest),
}

/// A wait until something is ready or `timeout_ms` passed (-1 = for ever). Between its steps the caller sleeps, so that no frame
/// of the library is on the stack of a sleeping thread but one, through which the thread may be cancelled.
pub struct Wait<'a> {
    waiter: &'a Waiter,
    until: u64,
    spin: u64,
    spin_until: u64,
    /// Of a wait that is about to sleep, and what it drives.
    asleep: Option<Asleep<'a>>,
    set: Option<Driven<'a>>,
    woken: Option<Woken>,
}

impl<'a> Wait<'a> {
    pub(crate) fn new(waiter: &'a Waiter, timeout_ms: i32) -> Wait<'a> {
        let start = now_ns();
        let until = if timeout_ms < 0 { u64::MAX } else { start + timeout_ms as u64 * 1_000_000 };
        let spin = config::get().spin_us * 1000;
        Wait { waiter, until, spin, spin_until: start.saturating_add(spin).min(until), asleep: None, set: None, woken: None }
    }

    /// How the sleep of a step ended.
    pub fn woke(&mut self, woken: Woken) {
        self.woken = Some(woken);
    }

    /// Polls, and prepares for sleeping. `driven` is asked for anew before each sleep, because endpoints come and go; none: a
    /// thread of the library drives, and only the waiter is slept on.
    pub(crate) fn step<R>(&mut self, driven: impl Fn() -> Option<Driven<'a>>, mut ready: impl FnMut() -> Option<R>) -> Result<Step<R>> {
        if let Some(woken) = self.woken.take() {
            self.wake();
            if let Some(r) = ready() {
                return Ok(Step::Over(Some(r)));
            }
            if woken == Woken::Interrupted {
                return Err(Error::fixed(errno::EINTR, "a signal interrupted the wait"));
            }
        } else {
            self.set = driven();
        }
        loop {
            if reserve::is_lowest() {
                return ready().map_or(Err(reserve::NONE_LEFT), |r| Ok(Step::Over(Some(r))));
            }
            if let Some(d) = &self.set {
                d.glance();
            }
            if let Some(r) = ready() {
                return Ok(Step::Over(Some(r)));
            }
            let now = now_ns();
            if now >= self.until {
                return Ok(Step::Over(None));
            }
            if now < self.spin_until {
                std::hint::spin_loop();
                continue;
            }
            let asleep = self.asleep.insert(self.waiter.arm()?);
            // After arming: whatever is bound from now on wakes.
            self.set = driven();
            let mut quiet = true;
            if let Some(d) = &self.set {
                // It has undone its own part when it fails.
                if let Err(e) = d.sleep(asleep) {
                    self.asleep = None;
                    return Err(e);
                }
                quiet = d.look();
            }
            let got = ready();
            if got.is_none() && quiet {
                let longest = self.set.as_ref().map_or(LONG_NAP, Driven::nap_ns).min(LONG_NAP).min(self.until - now);
                let rest = self.set.as_ref().and_then(|d| d.rest.as_deref()).map_or(-1, |rest| rest.as_fd().as_raw_fd());
                return Ok(Step::Sleep(SleepRequest { fds: [asleep.raw_fd(), rest], ns: longest }));
            }
            self.wake();
            if let Some(r) = got.or_else(&mut ready) {
                return Ok(Step::Over(Some(r)));
            }
        }
    }

    /// Undoes what a sleep needed, and looks at what ended it.
    fn wake(&mut self) {
        let asleep = self.asleep.take();
        if let Some(d) = &self.set {
            d.awake(asleep.as_deref());
            d.progress();
        }
        drop(asleep);
        // What woke us is often the first of several: look for the rest before sleeping again.
        self.spin_until = now_ns().saturating_add(self.spin).min(self.until);
    }
}

/// Of a thread that ends in its sleep.
impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let (Some(asleep), Some(d)) = (&self.asleep, &self.set) {
            d.awake(Some(asleep));
        }
    }
}

/// A whole wait, for a thread that nobody cancels.
pub(crate) fn wait<'a, R>(
    waiter: &'a Waiter,
    driven: impl Fn() -> Option<Driven<'a>>,
    timeout_ms: i32,
    mut ready: impl FnMut() -> Option<R>,
) -> Result<Option<R>> {
    let mut wait = Wait::new(waiter, timeout_ms);
    loop {
        match wait.step(&driven, &mut ready)? {
            Step::Over(got) => return Ok(got),
            Step::Sleep(nap) => wait.woke(cancel::sleep(nap)),
        }
    }
}
