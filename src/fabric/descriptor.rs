// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The descriptor on which callers poll for a queue or a counter by themselves.

use super::drive::EpRef;
use super::wait::Driven;
use crate::error::{Error, Result, errno};
use crate::prov::queue::Waiter;
use crate::prov::rest::Rest;
use crate::sys::epoll::Poller;
use parking_lot::Mutex;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether an object's endpoints are asleep for the caller's poll.
pub(crate) struct Descriptor {
    /// What the object is called.
    name: &'static str,
    armed: AtomicBool,
    /// One thread at a time puts to sleep or wakes.
    asleep: Mutex<Asleep>,
}

/// What is asleep for it.
#[derive(Default)]
struct Asleep {
    eps: Vec<EpRef>,
    /// What watches those that rest: in the descriptor for good, as putting it there costs what it watches.
    rests: Vec<Arc<Rest>>,
}

impl Asleep {
    fn watch(&mut self, rest: &Option<Arc<Rest>>, poller: &Poller) -> Result<()> {
        let Some(rest) = rest.as_ref().filter(|rest| !self.rests.iter().any(|r| Arc::ptr_eq(r, rest))) else { return Ok(()) };
        poller.add(rest.as_fd())?;
        self.rests.push(rest.clone());
        Ok(())
    }
}

impl Descriptor {
    pub fn new(name: &'static str) -> Descriptor {
        Descriptor { name, armed: AtomicBool::new(false), asleep: Mutex::default() }
    }

    fn absent(&self) -> Error {
        Error::new(errno::ENOSYS, format!("{}: was not opened with wait_obj GDRFAB_WAIT_FD", self.name))
    }

    pub fn fd(&self, waiter: &Waiter) -> Result<i32> {
        waiter.descriptor().map(|p| p.raw_fd()).ok_or_else(|| self.absent())
    }

    /// Relaxed: a reader that misses what another thread armed just now is ordered before it.
    #[inline(always)]
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// Prepares for a poll: `EAGAIN` if `has_news` after the last look. `driven`: what the object drives.
    pub fn prepare<'a>(&self, waiter: &Waiter, driven: impl FnOnce() -> Option<Driven<'a>>, has_news: impl FnOnce() -> bool) -> Result<()> {
        let poller = waiter.descriptor().ok_or_else(|| self.absent())?;
        let mut asleep = self.asleep.lock();
        self.undo(&mut asleep, waiter);
        waiter.arm_descriptor()?;
        // After arming: whatever is bound from now on wakes.
        let quiet = match driven() {
            None => Ok(true),
            Some(d) => asleep.watch(&d.rest, poller).and_then(|()| d.sleep(poller)).and_then(|()| {
                let quiet = d.look_for_caller(poller);
                asleep.eps = d.eps;
                quiet
            }),
        };
        self.armed.store(true, Ordering::Relaxed);
        if quiet.as_ref().is_ok_and(|quiet| *quiet) && !has_news() {
            return Ok(());
        }
        self.undo(&mut asleep, waiter);
        quiet.and(Err(Error::AGAIN))
    }

    /// Undoes `prepare` before something is read: whoever polls meanwhile, another thread perhaps, is woken.
    #[cold]
    pub fn disarm(&self, waiter: &Waiter) {
        self.undo(&mut self.asleep.lock(), waiter);
    }

    fn undo(&self, asleep: &mut Asleep, waiter: &Waiter) {
        if !self.armed.swap(false, Ordering::Relaxed) {
            return;
        }
        for ep in asleep.eps.drain(..) {
            ep.prov().awake(waiter.descriptor());
            ep.progress(true);
        }
        waiter.disarm_descriptor();
    }
}
