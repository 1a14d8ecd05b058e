// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The protocol by which threads of one process go to sleep and learn of news that other threads store.
//!
//! A sleeper first counts itself, then checks for news, then sleeps. A thread with news stores the news, and then wakes
//! if any sleeper is counted. Either the check finds the news or the writer finds the sleeper, because both order their
//! store before their load: by a lock that both take for the news, or by a full fence on both sides if the news is an
//! atomic.

use super::primitive::{AtomicU64, Ordering, fence_after_swap};

/// The number of threads that sleep or are about to.
#[derive(Debug, Default)]
pub struct Sleepers(AtomicU64);

impl Sleepers {
    /// Counts one more sleeper. A check for news has to follow.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        fence_after_swap();
    }

    pub fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// True if a thread has to be woken. Called after the caller has stored its news, under a lock or by a method of
    /// [`Count`].
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// A number that sleepers wait for. A full fence follows each change; on x86 the changing instruction is itself a full
/// fence.
#[derive(Debug, Default)]
pub struct Count {
    value: AtomicU64,
    /// The value that was last returned to a reader or reported as news.
    told: AtomicU64,
}

impl Count {
    #[inline(always)]
    pub fn add(&self, n: u64) {
        // Release: stores before the change come before it.
        self.value.fetch_add(n, Ordering::Release);
        fence_after_swap();
    }

    /// An exchange instead of a store, because a later load of the sleepers could overtake a store.
    pub fn set(&self, n: u64) {
        self.value.swap(n, Ordering::AcqRel);
        fence_after_swap();
    }

    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Acquire)
    }

    /// Like `get`, for a reader that will ask for news later.
    pub fn hand_out(&self) -> u64 {
        let value = self.get();
        self.told.store(value, Ordering::Relaxed);
        value
    }

    /// True if the value differs from the one handed out last. Called after `Sleepers::add`.
    pub fn is_news(&self) -> bool {
        self.get() != self.told.load(Ordering::Relaxed)
    }

    /// Like `is_news`, but reports each value only once, because a caller may never read the value.
    pub fn take_news(&self) -> bool {
        let value = self.get();
        self.told.swap(value, Ordering::Relaxed) != value
    }
}

/// Requests that a sleeper return. Each request makes one sleeper return.
#[derive(Debug, Default)]
pub struct Signals(AtomicU64);

impl Signals {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Release);
        fence_after_swap();
    }

    /// Takes one request. False if there is none.
    pub fn take(&self) -> bool {
        let less = |n: u64| n.checked_sub(1);
        self.0.load(Ordering::Relaxed) != 0 && self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, less).is_ok()
    }
}
