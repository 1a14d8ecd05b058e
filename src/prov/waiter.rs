// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The waiting side of a queue or a counter: threads that sleep in a call of the library, and the descriptor on which the
//! caller polls by itself.

use crate::error::Result;
use crate::sync::wakeup::Sleepers;
use crate::sys::epoll::Poller;
use parking_lot::Mutex;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The threads that sleep for one object, and its descriptor.
#[derive(Default)]
pub struct Waiter {
    /// Counts the threads that sleep or are about to, and the descriptor while the caller may poll on it.
    sleepers: Sleepers,
    threads: Mutex<Threads>,
    /// The descriptor, if the object was opened with one.
    descriptor: OnceLock<Poller>,
    /// True while the caller may poll on the descriptor. Both this value and `threads` change before `sleepers` does,
    /// so that a thread that sees the new count also sees them.
    polled: AtomicBool,
}

/// The pollers of sleeping threads. Each thread sleeps on a poller of its own, and clears its own wake-ups.
#[derive(Default)]
struct Threads {
    asleep: Vec<Arc<Poller>>,
    /// Pollers of threads that are awake again, for reuse.
    spare: Vec<Arc<Poller>>,
}

/// A thread that sleeps or is about to. Until this is dropped, `notify` wakes the thread.
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
    /// A waiter with a descriptor for the caller.
    pub fn with_descriptor() -> Result<Waiter> {
        Ok(Waiter { descriptor: OnceLock::from(Poller::with_timer()?), ..Waiter::default() })
    }

    pub fn descriptor(&self) -> Option<&Poller> {
        self.descriptor.get()
    }

    /// Registers the calling thread as about to sleep. The thread looks once more before it sleeps.
    pub fn arm(&self) -> Result<Asleep<'_>> {
        let spare = self.threads.lock().spare.pop();
        let poller = match spare {
            Some(poller) => poller,
            None => Arc::new(Poller::new()?),
        };
        // Clears a late wake-up that was meant for the thread that used the poller before.
        poller.drain();
        self.threads.lock().asleep.push(poller.clone());
        self.sleepers.add();
        Ok(Asleep { waiter: self, poller })
    }

    /// As `arm`, for the caller's poll on the descriptor. Called by one thread at a time.
    pub fn arm_descriptor(&self) -> Result<()> {
        if let Some(p) = self.descriptor.get() {
            p.drain();
            p.set_timer(None)?;
        }
        self.polled.store(true, Ordering::Relaxed);
        self.sleepers.add();
        Ok(())
    }

    /// Ends the signalling of the descriptor, and makes it readable, so that a thread that still polls on it returns.
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

    /// Not inlined, so that `notify` saves no registers for a call that is rarely made.
    #[cold]
    #[inline(never)]
    fn wake(&self) {
        // Wakes the threads outside the lock, which they take when they are awake.
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
