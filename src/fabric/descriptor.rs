// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The descriptor of a queue or a counter, on which a caller polls by itself (`GDRFAB_WAIT_FD`). Before such a poll `prepare`
//! arms the descriptor: the endpoints are told to wake it. The next read disarms it.

use super::drive::EpRef;
use super::wait::Driven;
use crate::error::{Error, Result, errno};
use crate::prov::idle_set::IdleSet;
use crate::prov::queue::Waiter;
use crate::sys::epoll::Poller;
use parking_lot::Mutex;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The state of a descriptor: armed or not, and the endpoints that were put to sleep for it.
pub(crate) struct Descriptor {
    /// The kind of the object, for error texts.
    name: &'static str,
    armed: AtomicBool,
    /// The lock lets one thread at a time arm or disarm.
    asleep: Mutex<Asleep>,
}

/// The endpoints that are asleep while the caller polls on the descriptor.
#[derive(Default)]
struct Asleep {
    eps: Vec<EpRef>,
    /// The idle sets of endpoints that the descriptor watches. An idle set is never removed, because adding it again
    /// would cost as much as it has sockets.
    idle_sets: Vec<Arc<IdleSet>>,
}

impl Asleep {
    fn watch(&mut self, idle_set: &Option<Arc<IdleSet>>, poller: &Poller) -> Result<()> {
        let Some(idle_set) = idle_set.as_ref().filter(|idle_set| !self.idle_sets.iter().any(|r| Arc::ptr_eq(r, idle_set))) else {
            return Ok(());
        };
        poller.add(idle_set.as_fd())?;
        self.idle_sets.push(idle_set.clone());
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

    /// True if the descriptor is armed. Relaxed: a read that does not see that another thread has armed counts as
    /// earlier.
    #[inline(always)]
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// Arms the descriptor for a poll. `EAGAIN`: the last look, or `has_news` after it, found something to read, and
    /// the descriptor is not armed. `driven` gives the endpoints that the object drives.
    pub fn prepare<'a>(&self, waiter: &Waiter, driven: impl FnOnce() -> Option<Driven<'a>>, has_news: impl FnOnce() -> bool) -> Result<()> {
        let poller = waiter.descriptor().ok_or_else(|| self.absent())?;
        let mut asleep = self.asleep.lock();
        self.undo(&mut asleep, waiter);
        waiter.arm_descriptor()?;
        // After arming: endpoints that are bound from now on wake the descriptor.
        let quiet = match driven() {
            None => Ok(true),
            Some(d) => asleep.watch(&d.idle_set, poller).and_then(|()| d.sleep(poller)).and_then(|()| {
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

    /// Disarms the descriptor, before a read. Wakes any thread that polls on the descriptor meanwhile.
    #[cold]
    pub fn disarm(&self, waiter: &Waiter) {
        self.undo(&mut self.asleep.lock(), waiter);
    }

    fn undo(&self, asleep: &mut Asleep, waiter: &Waiter) {
        if !self.armed.swap(false, Ordering::Relaxed) {
            return;
        }
        for ep in asleep.eps.drain(..) {
            ep.prov().end_sleep(waiter.descriptor());
            ep.progress(true);
        }
        waiter.disarm_descriptor();
    }
}
