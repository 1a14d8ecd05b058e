// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a queue or a counter wakes: threads that sleep in a call of the library, and the caller's own poll.

use crate::error::Result;
use crate::sync::wakeup::Sleepers;
use crate::sys::epoll::Poller;
use parking_lot::Mutex;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

#[derive(Default)]
pub struct Waiter {
    /// Threads that sleep or are about to, and the descriptor while the caller may poll on it.
    sleepers: Sleepers,
    threads: Mutex<Threads>,
    /// Made with the object, or never.
    descriptor: OnceLock<Poller>,
    /// Whether the caller may poll on it. Changed before the count of sleepers, as the list of threads is: whoever sees
    /// the count sees this.
    polled: AtomicBool,
}

/// Each thread sleeps on a poller of its own, and clears its own wake-ups.
#[derive(Default)]
struct Threads {
    asleep: Vec<Arc<Poller>>,
    /// Of those who slept before.
    spare: Vec<Arc<Poller>>,
}

/// A thread that sleeps on this poller or is about to: until it is dropped, `notify` wakes it.
pub struct Asleep<'a> {
    waiter: &'a Waiter,
    poller: Arc<Poller>,
}

impl Deref for Asleep<'_> {
    type Target = Poller;
    fn deref(&self) -> &Poller {
        &self.poller
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.waiter.sleepers.remove();
        let mut threads = self.waiter.threads.lock();
        threads.asleep.retain(|p| !Arc::ptr_eq(p, &self.poller));
        threads.spare.push(self.poller.clone());
    }
}

impl Waiter {
    /// One with a descriptor for the caller.
    pub fn with_descriptor() -> Result<Waiter> {
        Ok(Waiter { descriptor: OnceLock::from(Poller::with_timer()?), ..Waiter::default() })
    }

    pub fn descriptor(&self) -> Option<&Poller> {
        self.descriptor.get()
    }

    /// The calling thread is about to sleep; its last look comes next.
    pub fn arm(&self) -> Result<Asleep<'_>> {
        let spare = self.threads.lock().spare.pop();
        let poller = match spare {
            Some(poller) => poller,
            None => Arc::new(Poller::new()?),
        };
        // A late wake-up for the last thread that slept on it.
        poller.drain();
        self.threads.lock().asleep.push(poller.clone());
        self.sleepers.add();
        Ok(Asleep { waiter: self, poller })
    }

    /// As `arm`, for the caller's poll on the descriptor; one at a time.
    pub fn arm_descriptor(&self) -> Result<()> {
        if let Some(p) = self.descriptor.get() {
            p.drain();
            p.set_timer(None)?;
        }
        self.polled.store(true, Ordering::Relaxed);
        self.sleepers.add();
        Ok(())
    }

    /// The descriptor is no longer signalled. A thread that polls on it all the same finds it readable.
    pub fn disarm_descriptor(&self) {
        self.sleepers.remove();
        self.polled.store(false, Ordering::Relaxed);
        if let Some(p) = self.descriptor.get() {
            p.wake();
        }
    }

    #[inline(always)]
    pub fn is_armed(&self) -> bool {
        self.sleepers.any()
    }

    #[inline(always)]
    pub fn notify(&self) {
        if self.is_armed() {
            self.wake();
        }
    }

    /// Out of line, so that `notify` saves no registers for a call that is rarely made.
    #[cold]
    #[inline(never)]
    fn wake(&self) {
        // Outside of the lock, which those who wake up take.
        let (first, others) = {
            let threads = self.threads.lock();
            let (first, others) = threads.asleep.split_first().map_or((None, &[][..]), |(first, others)| (Some(first.clone()), others));
            (first, others.to_vec())
        };
        first.iter().chain(&others).for_each(|p| p.wake());
        if self.polled.load(Ordering::Relaxed)
            && let Some(p) = self.descriptor.get()
        {
            p.wake();
        }
    }
}
