// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How threads of one process that go to sleep learn of what others store meanwhile.
//!
//! Who sleeps is counted first, then takes a last look, then sleeps. Who has news stores them, and then wakes if anybody
//! is counted. Either the look finds the news or their writer finds the sleeper, as both sides order their store before
//! their load: by a lock that both take for the news, or by a full fence on both sides where they are an atomic.

use super::primitive::{AtomicU64, Ordering, fence_after_swap};

/// Who sleeps, or is about to.
#[derive(Debug, Default)]
pub struct Sleepers(AtomicU64);

impl Sleepers {
    /// One more; the last look comes next.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        fence_after_swap();
    }

    pub fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether somebody is to be woken; asked after the news were stored under a lock, or with a method of [`Count`].
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// A number that sleepers wait for: a full fence follows each change. On x86 that is the changing instruction itself.
#[derive(Debug, Default)]
pub struct Count {
    value: AtomicU64,
    /// The value that a reader was given last, or was told of.
    told: AtomicU64,
}

impl Count {
    #[inline(always)]
    pub fn add(&self, n: u64) {
        // Release: what is counted comes before.
        self.value.fetch_add(n, Ordering::Release);
        fence_after_swap();
    }

    /// An exchange and no store, which a later look for sleepers could overtake.
    pub fn set(&self, n: u64) {
        self.value.swap(n, Ordering::AcqRel);
        fence_after_swap();
    }

    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Acquire)
    }

    /// As `get`, for whoever looks for news later on.
    pub fn hand_out(&self) -> u64 {
        let value = self.get();
        self.told.store(value, Ordering::Relaxed);
        value
    }

    /// Whether it is another number than the last that was handed out: asked after `Sleepers::add`.
    pub fn is_news(&self) -> bool {
        self.get() != self.told.load(Ordering::Relaxed)
    }

    /// As `is_news`, and tells of each number once, for news that a caller may never read.
    pub fn take_news(&self) -> bool {
        let value = self.get();
        self.told.swap(value, Ordering::Relaxed) != value
    }
}

/// Requests that one sleeper return, each answered by one.
#[derive(Debug, Default)]
pub struct Signals(AtomicU64);

impl Signals {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Release);
        fence_after_swap();
    }

    pub fn take(&self) -> bool {
        let less = |n: u64| n.checked_sub(1);
        self.0.load(Ordering::Relaxed) != 0 && self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, less).is_ok()
    }
}
