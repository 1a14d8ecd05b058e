// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Completion queues and counters, as providers see them: places to put results.
//!
//! A queue never overruns: whoever posts an operation reserves the entry first, and arrivals wait in
//! the transport until there is room.

use crate::error::{Error, Result};
use crate::sync::serial::{Promised, Serial, Threading};
use crate::sys::epoll::Poller;
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The result of one operation.
#[derive(Debug, Default, Clone, Copy)]
pub struct Completion {
    pub context: usize,
    pub flags: u64,
    pub len: usize,
    pub buf: usize,
    pub data: u64,
}

/// Marks an entry whose failure stands in the list beside the ring.
const FAILED: u64 = 1 << 63;

/// Why an operation failed, and what was lost.
#[derive(Debug)]
pub struct Failure {
    pub error: Error,
    /// Bytes that did not fit.
    pub olen: usize,
}

/// Something to sleep on, made at first need, with a count that tells pushers whether to wake it.
#[derive(Default)]
pub struct Waiter {
    poller: OnceLock<Poller>,
    /// Threads that sleep or are about to, and a caller's own poll.
    armed: AtomicUsize,
}

impl Waiter {
    pub fn poller(&self) -> Result<&Poller> {
        if let Some(p) = self.poller.get() {
            return Ok(p);
        }
        let fresh = Poller::new()?;
        Ok(self.poller.get_or_init(|| fresh))
    }

    /// From now on, until as many `disarm`, `notify` wakes the poller.
    pub fn arm(&self) {
        self.armed.fetch_add(1, Ordering::SeqCst);
    }

    /// Undoes one `arm`. What woke this sleeper stays for the others: only the last takes it back.
    pub fn disarm(&self) {
        if self.armed.fetch_sub(1, Ordering::Relaxed) != 1 {
            return;
        }
        if let Some(p) = self.poller.get() {
            p.drain();
            if let Err(e) = p.set_timer(None) {
                crate::log!(Warn, "{e}");
            }
        }
    }

    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != 0
    }

    #[inline(always)]
    pub fn notify(&self) {
        if self.is_armed() {
            self.wake();
        }
    }

    /// Apart, so that whoever notifies keeps nothing for a call that is hardly ever made.
    #[cold]
    #[inline(never)]
    fn wake(&self) {
        if let Some(p) = self.poller.get() {
            p.wake();
        }
    }
}

/// A ring of plain entries: pushing and taking one is a copy of 40 bytes. It grows only for entries
/// that nobody could reserve (flushed receives); failures, which are rare, stand beside it in order.
pub struct Entries {
    ring: Box<[Completion]>,
    head: usize,
    tail: usize,
    /// Entries of the ring, less one.
    mask: usize,
    size: usize,
    reserved: usize,
    /// Entries up to which one more fits without a reservation and without growing.
    open: usize,
    signalled: bool,
    failures: VecDeque<Failure>,
}

impl Entries {
    #[inline(always)]
    fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head)
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.tail == self.head
    }

    #[inline(always)]
    fn set_reserved(&mut self, reserved: usize) {
        self.reserved = reserved;
        self.mask = self.ring.len() - 1;
        self.open = self.size.saturating_sub(reserved).min(self.ring.len());
    }

    /// Room for one entry more, at hand.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.len() < self.open
    }

    /// As `Queue::reserve`, where `open` is enough to go by: it is never more than there is.
    #[inline(always)]
    pub fn reserve_open(&mut self) -> bool {
        if self.len() >= self.open {
            return false;
        }
        self.reserved = self.reserved.wrapping_add(1);
        self.open -= 1;
        true
    }

    /// Gives `n` reserved entries back, whose results went another way.
    #[inline(always)]
    pub fn unreserve(&mut self, n: usize) {
        self.reserved = self.reserved.wrapping_sub(n);
        self.open = self.open.wrapping_add(n).min(self.ring.len());
    }

    /// Whether it is empty and takes `n` that nobody reserved.
    #[inline(always)]
    pub fn has_room_for(&self, n: usize) -> bool {
        self.is_empty() && self.open >= n
    }

    /// Adds an entry after `is_open`; the caller notifies.
    #[inline(always)]
    pub fn put(&mut self, done: Completion) {
        debug_assert!(self.is_open() && self.mask == self.ring.len() - 1);
        // SAFETY: a power of two entries, at least 2 (`new`, `grow`), so the mask keeps the index inside.
        unsafe { *self.ring.get_unchecked_mut(self.tail & self.mask) = done };
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline(always)]
    fn front(&self) -> Option<&Completion> {
        if self.head == self.tail {
            return None;
        }
        self.ring.get(self.head & (self.ring.len() - 1))
    }

    #[inline(always)]
    fn push(&mut self, done: Completion) {
        if self.len() == self.ring.len() {
            self.grow();
        }
        let mask = self.ring.len() - 1;
        if let Some(place) = self.ring.get_mut(self.tail & mask) {
            *place = done;
            self.tail = self.tail.wrapping_add(1);
        }
    }

    /// Hands up to `count` successes to `each`, stopping before an error.
    #[inline(always)]
    pub fn take(&mut self, count: usize, mut each: impl FnMut(usize, &Completion)) -> Taken {
        let (there, head, mask, ring) = (self.len(), self.head, self.mask, self.ring.as_ptr());
        if there == 0 {
            return Taken::Empty;
        }
        let most = there.min(count);
        let mut n = 0;
        while n < most {
            // SAFETY: a power of two entries, at least 2 (`new`, `grow`), so the mask keeps the index inside.
            let c = unsafe { &*ring.add(head.wrapping_add(n) & mask) };
            if c.flags & FAILED != 0 {
                if n == 0 {
                    return Taken::ErrorFirst;
                }
                break;
            }
            each(n, c);
            n += 1;
        }
        self.head = head.wrapping_add(n);
        Taken::Some(n)
    }

    #[cold]
    fn grow(&mut self) {
        let mut wider = Vec::with_capacity(self.ring.len() * 2);
        let mask = self.ring.len() - 1;
        wider.extend((0..self.len()).filter_map(|i| self.ring.get((self.head + i) & mask).copied()));
        self.tail = wider.len();
        self.head = 0;
        wider.resize(self.ring.len() * 2, Completion::default());
        self.ring = wider.into();
        self.set_reserved(self.reserved);
    }
}

pub struct Queue {
    size: usize,
    entries: Serial<Entries>,
    pub waiter: Waiter,
}

impl Queue {
    pub fn new(size: usize, threading: Threading) -> Queue {
        let ring = vec![Completion::default(); size.clamp(2, 4096).next_power_of_two()].into();
        let mut entries =
            Entries { ring, head: 0, tail: 0, mask: 0, size, reserved: 0, open: 0, signalled: false, failures: VecDeque::new() };
        entries.set_reserved(0);
        Queue { size, entries: Serial::new(threading, entries), waiter: Waiter::default() }
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// Sets an entry aside for an operation about to be posted; false if the queue could overrun.
    #[inline]
    pub fn reserve(&self) -> bool {
        let mut e = self.entries.lock();
        let free = e.len() + e.reserved < self.size;
        let reserved = e.reserved + usize::from(free);
        e.set_reserved(reserved);
        free
    }

    /// Gives a reserved entry back unused.
    #[inline]
    pub fn release(&self) {
        let mut e = self.entries.lock();
        let reserved = e.reserved - 1;
        e.set_reserved(reserved);
    }

    /// Fills a reserved entry.
    #[inline]
    pub fn fill(&self, done: Completion) {
        {
            let mut e = self.entries.lock();
            let reserved = e.reserved - 1;
            e.set_reserved(reserved);
            e.push(done);
        }
        self.waiter.notify();
    }

    /// Adds an entry that nobody could reserve: an arrival (after `has_room`).
    #[inline(always)]
    pub fn push(&self, done: Completion) {
        self.entries.lock().push(done);
        self.waiter.notify();
    }

    /// Adds a failure; `reserved` tells whether its entry was set aside.
    #[cold]
    pub fn fail(&self, mut done: Completion, failure: Failure, reserved: bool) {
        {
            let mut e = self.entries.lock();
            let reserved = e.reserved - usize::from(reserved);
            e.set_reserved(reserved);
            done.flags |= FAILED;
            e.failures.push_back(failure);
            e.push(done);
        }
        self.waiter.notify();
    }

    #[inline(always)]
    pub fn has_room(&self) -> bool {
        let e = self.entries.lock();
        e.len() + e.reserved < self.size
    }

    /// How many arrivals may be fetched from a transport that cannot take them back. Where reservations alone fill
    /// the queue it is 1, since what frees them comes the same way.
    #[inline(always)]
    pub fn room_for_arrivals(&self) -> usize {
        let e = self.entries.lock();
        let free = self.size.saturating_sub(e.len() + e.reserved);
        if free == 0 && e.is_empty() { 1 } else { free }
    }

    /// The entries, where the caller keeps threads apart.
    #[inline(always)]
    pub fn promised(&self) -> Option<Promised<'_, Entries>> {
        self.entries.promised()
    }

    /// As `promised`, where that was looked at before.
    ///
    /// # Safety
    /// `threading()` is `Promised`.
    #[inline(always)]
    pub unsafe fn promised_unchecked(&self) -> Promised<'_, Entries> {
        // SAFETY: handed on.
        unsafe { self.entries.promised_unchecked() }
    }

    pub fn threading(&self) -> Threading {
        self.entries.threading()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.lock().is_empty()
    }

    /// Hands up to `count` successes to `each`, stopping before an error.
    #[inline(always)]
    pub fn take(&self, count: usize, each: impl FnMut(usize, &Completion)) -> Taken {
        self.entries.lock().take(count, each)
    }

    /// The failure at the head, if there is one.
    pub fn take_error(&self) -> Option<(Completion, Failure)> {
        let mut e = self.entries.lock();
        let mut done = *e.front()?;
        if done.flags & FAILED == 0 {
            return None;
        }
        done.flags &= !FAILED;
        let failure = e.failures.pop_front()?;
        e.head = e.head.wrapping_add(1);
        Some((done, failure))
    }

    /// Lets a blocked reader return.
    pub fn signal(&self) {
        self.entries.lock().signalled = true;
        self.waiter.notify();
    }

    pub fn take_signal(&self) -> bool {
        std::mem::take(&mut self.entries.lock().signalled)
    }
}

/// What a queue gave.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Taken {
    Some(usize),
    Empty,
    ErrorFirst,
}

/// Counts successes and failures.
#[derive(Default)]
pub struct Counter {
    value: AtomicU64,
    errors: AtomicU64,
    pub waiter: Waiter,
}

impl Counter {
    pub fn add(&self, n: u64) {
        self.value.fetch_add(n, Ordering::Release);
        self.waiter.notify();
    }

    pub fn add_error(&self, n: u64) {
        self.errors.fetch_add(n, Ordering::Release);
        self.waiter.notify();
    }

    pub fn set(&self, n: u64) {
        self.value.store(n, Ordering::Release);
        self.waiter.notify();
    }

    pub fn set_error(&self, n: u64) {
        self.errors.store(n, Ordering::Release);
        self.waiter.notify();
    }

    pub fn read(&self) -> u64 {
        self.value.load(Ordering::Acquire)
    }

    pub fn read_error(&self) -> u64 {
        self.errors.load(Ordering::Acquire)
    }
}
