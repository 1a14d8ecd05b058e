// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waiting for a queue, a counter or an event queue: poll for a while, then mark the endpoints asleep, so that their peers
//! wake this thread, run the memory barrier, look once more, and sleep.

use super::drive::EpRef;
use super::pep::Pep;
use super::progress_set::ProgressSet;
use crate::config;
use crate::error::{Error, Result, errno};
use crate::prov::idle_set::IdleSet;
use crate::prov::queue::Waiter;
use crate::prov::waiter::Asleep;
use crate::reserve;
use crate::sync::gate::{Fences, barrier};
use crate::sys::cancel::{self, SleepRequest, Woken};
use crate::sys::epoll::Poller;
use crate::sys::time::now_ns;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

/// The longest sleep, if no endpoint has to act by itself before.
const LONG_SLEEP_NS: u64 = 1_000_000_000;

/// The endpoints and passive endpoints on which a wait makes progress.
pub(crate) struct Driven<'a> {
    set: &'a ProgressSet,
    /// The active endpoints, which are put to sleep one by one. The idle ones are watched by `idle_set`.
    pub eps: Vec<EpRef>,
    pub idle_set: Option<Arc<IdleSet>>,
    peps: Vec<Arc<Pep>>,
}

impl<'a> Driven<'a> {
    pub fn new(set: &'a ProgressSet, peps: Vec<Arc<Pep>>) -> Driven<'a> {
        let (eps, idle_set) = set.active_and_idle_set();
        Driven { set, eps, idle_set, peps }
    }

    /// A turn of progress, even if another thread makes one too. True: endpoints that were idle are active now.
    pub fn progress(&self) -> bool {
        let called = self.set.turn();
        self.finish();
        called
    }

    /// Makes progress on the passive endpoints, after the connected ones: if a peer completes one connection and then
    /// asks for another, the events come in that order.
    fn finish(&self) {
        let finish_connections = || {
            self.set.turn();
        };
        self.peps.iter().for_each(|p| p.progress(finish_connections));
    }

    /// As `progress`, but nothing for endpoints on which another thread makes progress.
    fn glance(&self) {
        self.set.glance();
        self.finish();
    }

    /// Marks the endpoints asleep on `poller`, and runs the barrier. The caller calls `look` next.
    pub fn sleep(&self, poller: &Poller) -> Result<()> {
        let mut fences: Option<Fences> = None;
        let mut failed = None;
        for (i, ep) in self.eps.iter().enumerate() {
            match ep.prov().sleep(poller) {
                Ok(Some(Fences::Remote)) => fences = Some(Fences::Remote),
                Ok(Some(Fences::Full)) => fences = fences.or(Some(Fences::Full)),
                Ok(None) => {}
                Err(e) => {
                    self.eps[..=i].iter().for_each(|ep| ep.prov().end_sleep(Some(poller)));
                    failed = Some(e);
                    break;
                }
            }
        }
        if let Some(e) = failed {
            return Err(e);
        }
        if let Err(e) = self.peps.iter().try_for_each(|pep| pep.watch(poller)) {
            self.end_sleep(Some(poller));
            return Err(e);
        }
        let Some(f) = fences else { return Ok(()) };
        // Without the barrier, a peer might not see that this thread has to be woken.
        barrier(f).inspect_err(|_| self.end_sleep(Some(poller)))
    }

    /// The last look before sleeping. False: the caller must not sleep, because something has arrived, or because the
    /// look itself has opened or connected a socket, which nobody watches yet.
    pub fn look(&self) -> bool {
        let before = self.watch_version();
        !self.progress() && self.eps.iter().all(|e| e.may_sleep()) && self.watch_version() == before
    }

    /// A number that changes when the set of descriptors to watch changes.
    pub fn watch_version(&self) -> u64 {
        let eps = self.eps.iter().map(|e| e.prov().watch_version());
        let all = eps.chain(self.peps.iter().map(|p| p.watch_version()));
        all.fold(0, |sum, n| sum.wrapping_mul(0x100_0000_01b3).wrapping_add(n))
    }

    /// Undoes `sleep` on `poller`.
    pub fn end_sleep(&self, poller: Option<&Poller>) {
        self.eps.iter().for_each(|e| e.prov().end_sleep(poller));
    }

    /// As `look`, before a poll of the caller's own. The descriptor's timer then ends the poll at deadlines, and soon if an
    /// endpoint waits for something that no descriptor announces.
    pub fn look_for_caller(&self, poller: &Poller) -> Result<bool> {
        if !self.look() {
            return Ok(false);
        }
        let nap = self.sleep_limit_ns();
        if nap < u64::MAX {
            poller.set_timer(Some(nap))?;
        }
        Ok(true)
    }

    /// The longest time that a thread may sleep; `u64::MAX`: until something wakes it.
    pub fn sleep_limit_ns(&self) -> u64 {
        const STALLED: u64 = 50_000;
        let limits = self.eps.iter().map(|e| if e.is_stalled() { e.sleep_limit_ns().min(STALLED) } else { e.sleep_limit_ns() });
        limits.fold(self.set.sleep_limit_ns(), u64::min)
    }
}

/// The next step of a wait.
pub enum Step<R> {
    /// The wait is over. `None`: its time has passed.
    Over(Option<R>),
    /// The caller is to sleep by `cancel::sleep`, and to pass the outcome to `Wait::woke`.
    Sleep(SleepRequest),
}

/// A wait until something is ready or `timeout_ms` have passed (-1: no limit). The caller sleeps between the steps, so that
/// the stack of a sleeping thread has only one frame of the library. A thread that is cancelled in its sleep is unwound
/// through that frame.
pub struct Wait<'a> {
    waiter: &'a Waiter,
    until: u64,
    spin: u64,
    spin_until: u64,
    /// Set while the wait is about to sleep or asleep, with the endpoints that it drives.
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

    /// Stores how the sleep of the last step ended.
    pub fn woke(&mut self, woken: Woken) {
        self.woken = Some(woken);
    }

    /// Polls, and prepares for sleeping. Calls `driven` before each sleep, because endpoints come and go. If `driven`
    /// returns `None`, a thread of the library makes progress, and this thread sleeps on the waiter alone.
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
            // After arming: endpoints that are bound from now on wake this thread.
            self.set = driven();
            let mut quiet = true;
            if let Some(d) = &self.set {
                // A `sleep` that fails has undone its own part.
                if let Err(e) = d.sleep(asleep) {
                    self.asleep = None;
                    return Err(e);
                }
                quiet = d.look();
            }
            let got = ready();
            if got.is_none() && quiet {
                let longest = self.set.as_ref().map_or(LONG_SLEEP_NS, Driven::sleep_limit_ns).min(LONG_SLEEP_NS).min(self.until - now);
                let idle_set = self.set.as_ref().and_then(|d| d.idle_set.as_deref()).map_or(-1, |idle_set| idle_set.as_fd().as_raw_fd());
                return Ok(Step::Sleep(SleepRequest { fds: [asleep.raw_fd(), idle_set], ns: longest }));
            }
            self.wake();
            if let Some(r) = got.or_else(&mut ready) {
                return Ok(Step::Over(Some(r)));
            }
        }
    }

    /// Undoes the preparations for a sleep, and makes progress.
    fn wake(&mut self) {
        let asleep = self.asleep.take();
        if let Some(d) = &self.set {
            d.end_sleep(asleep.as_deref());
            d.progress();
        }
        drop(asleep);
        // Often several things happen at once, and the first of them woke this thread. So the thread polls again before
        // it sleeps.
        self.spin_until = now_ns().saturating_add(self.spin).min(self.until);
    }
}

/// Undoes a sleep whose thread was cancelled.
impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let (Some(asleep), Some(d)) = (&self.asleep, &self.set) {
            d.end_sleep(Some(asleep));
        }
    }
}

/// A whole wait, for a thread that is not cancelled.
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
