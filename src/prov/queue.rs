// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Completion queues and counters, as providers fill them.
//!
//! A queue never overruns: a call that posts an operation first reserves the entry of its completion, and arrivals wait in
//! the transport until the queue has room.

use crate::error::{Error, Result, errno};
use crate::fallible::{self, MakeRoom};
use crate::sync::serial::{Promised, Rank, Reached, Serial, Threading};
use crate::sync::wakeup::{Count, Signals};
use std::collections::VecDeque;

pub use super::waiter::Waiter;

/// The result of one operation.
#[derive(Debug, Default, Clone, Copy)]
pub struct Completion {
    pub context: usize,
    pub flags: u64,
    pub len: usize,
    pub buf: usize,
    pub data: u64,
}

/// Marks an entry that failed; its `Failure` is in `Entries::failures`.
const FAILED: u64 = 1 << 63;

/// The reason why an operation failed, and how many bytes were lost.
#[derive(Debug)]
pub struct Failure {
    pub error: Error,
    /// Bytes of a message that did not fit into the receive.
    pub olen: usize,
    /// For a list, the index of the block that failed.
    pub block: usize,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, olen: 0, block: 0 }
    }
}

/// The sending peer and the tag of an entry. Only endpoints that match messages set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    pub tag: u64,
    /// The peer's index in the address vector.
    pub peer: u64,
}

impl Origin {
    pub const NONE: Origin = Origin { tag: 0, peer: super::av::UNSPEC };
}

/// A ring of plain entries: adding and taking one are each a copy of 40 bytes. The ring grows up to the queue's size, and
/// beyond it only for entries that nothing could reserve (flushed receives). Failures are rare, and lie in a list beside the
/// ring, in the same order.
pub struct Entries {
    ring: Box<[Completion]>,
    head: usize,
    tail: usize,
    /// The number of entries of the ring, a power of two, less one.
    mask: usize,
    size: usize,
    /// The value up to which `tail` may advance without growing the ring or using reserved entries. Taking and reserving
    /// entries change it. Adding an entry does not, and so stores one word less.
    limit: usize,
    /// The value of `free` when the queue is full; negative while the ring is smaller than the queue.
    floor: isize,
    failures: VecDeque<Failure>,
    /// The number of entries that were lost: they could not be reserved, and no memory was left for them. One error entry
    /// reports them all.
    lost: usize,
    /// For each slot of the ring, the number of an entry and the entry's origin; empty until a first entry has an
    /// origin. An entry without an origin leaves its slot here unchanged, so the number shows if the origin belongs to
    /// the slot's present entry.
    origins: Box<[(usize, Origin)]>,
}

const LOST: Error =
    Error::fixed(errno::ENOMEM, "no memory for the completions of cancelled receives; olen is the number of lost completions");

impl Entries {
    fn new(size: usize) -> Result<Entries> {
        let ring: Box<[Completion]> = fallible::filled(Completion::default(), size.clamp(2, 4096).next_power_of_two())?.into();
        let mask = ring.len() - 1;
        let mut entries =
            Entries { ring, head: 0, tail: 0, mask, size, limit: 0, floor: 0, failures: VecDeque::new(), lost: 0, origins: Box::default() };
        entries.limit = entries.bound() as usize;
        entries.floor = entries.bound() - size as isize;
        Ok(entries)
    }

    /// The largest number of entries that `free` counts.
    fn bound(&self) -> isize {
        self.size.min(self.ring.len()) as isize
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head)
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.tail == self.head
    }

    /// The number of entries that can be added without growing the ring, beside the reserved ones.
    #[inline(always)]
    fn free(&self) -> isize {
        self.limit.wrapping_sub(self.tail) as isize
    }

    /// The number of entries that may still be reserved or added, if need be by growing the ring.
    #[inline(always)]
    fn room(&self) -> isize {
        self.free() - self.floor
    }

    /// True if one more entry fits without growing the ring.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.free() > 0
    }

    /// Reserves the entry of an operation about to be posted. False: the queue could overrun, or there is no memory to grow
    /// the ring.
    #[inline(always)]
    pub fn reserve(&mut self) -> bool {
        let room = self.is_open() || self.opens();
        self.limit = self.limit.wrapping_sub(usize::from(room));
        room
    }

    /// Grows the ring if one more entry then fits.
    #[cold]
    #[inline(never)]
    fn opens(&mut self) -> bool {
        self.room() > 0 && self.grow().is_ok()
    }

    /// Returns `n` reserved entries unused.
    #[inline(always)]
    pub fn release(&mut self, n: usize) {
        self.limit = self.limit.wrapping_add(n);
    }

    /// True if the queue is empty and `n` entries fit that were not reserved.
    #[inline(always)]
    pub fn has_room_for(&self, n: usize) -> bool {
        self.is_empty() && self.free() >= n as isize
    }

    /// As `Queue::push`, only after `is_open`, so the ring need not grow. The caller notifies waiters.
    #[inline(always)]
    pub fn push_open(&mut self, done: Completion) {
        debug_assert!(self.is_open() && self.mask == self.ring.len() - 1);
        // SAFETY: the ring has a power of two of entries, at least 2 (`new`, `grow`), so the mask keeps the index inside.
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

    /// Adds an entry. If the entry was reserved, the caller then releases the reservation.
    #[inline(always)]
    fn append(&mut self, done: Completion) {
        if self.len() == self.ring.len() && self.grow().is_err() {
            self.lost += 1;
            return;
        }
        let mask = self.ring.len() - 1;
        if let Some(place) = self.ring.get_mut(self.tail & mask) {
            *place = done;
            self.tail = self.tail.wrapping_add(1);
        }
    }

    /// Stores the failure of the entry that is added next. False: there is no memory for both, and the entry is lost.
    #[cold]
    fn takes(&mut self, failure: Failure) -> bool {
        let full = self.len() == self.ring.len();
        if self.failures.room(1).is_err() || (full && self.grow().is_err()) {
            self.lost += 1;
            return false;
        }
        self.failures.push_back(failure);
        true
    }

    /// Passes up to `count` successful entries to `each` and removes them, stopping before a failed one.
    #[inline(always)]
    pub fn take(&mut self, count: usize, mut each: impl FnMut(usize, &Completion)) -> Taken {
        let (there, head, mask, ring) = (self.len(), self.head, self.mask, self.ring.as_ptr());
        if there == 0 {
            return if self.lost > 0 { Taken::ErrorFirst } else { Taken::Empty };
        }
        let most = there.min(count);
        let mut n = 0;
        while n < most {
            // SAFETY: the ring has a power of two of entries, at least 2 (`new`, `grow`), so the mask keeps the index inside.
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
        // `self.head` is read again instead of kept from above, because a variable for it would cost an instruction per
        // entry.
        self.head = self.head.wrapping_add(n);
        self.limit = self.limit.wrapping_add(n);
        Taken::Some(n)
    }

    /// As `take`, with the origin of each entry.
    #[inline(always)]
    pub fn take_from(&mut self, count: usize, mut each: impl FnMut(usize, &Completion, Origin)) -> Taken {
        let head = self.head;
        let (first, len) = (self.origins.as_ptr(), self.origins.len());
        // SAFETY: `take` neither changes nor moves the origins, and this slice is not used after it.
        let origins = unsafe { std::slice::from_raw_parts(first, len) };
        let origin = |number: usize| match origins.get(number & len.wrapping_sub(1)) {
            Some((of, from)) if *of == number => *from,
            _ => Origin::NONE,
        };
        self.take(count, |i, c| each(i, c, origin(head.wrapping_add(i))))
    }

    /// As `append`, with the entry's origin.
    #[inline(always)]
    fn append_from(&mut self, done: Completion, from: Origin) {
        self.append(done);
        if self.origins.is_empty() {
            self.make_origins();
        }
        let number = self.tail.wrapping_sub(1);
        let mask = self.origins.len() - 1;
        if let Some(place) = self.origins.get_mut(number & mask) {
            *place = (number, from);
        }
    }

    #[cold]
    #[inline(never)]
    fn make_origins(&mut self) {
        self.origins = vec![(usize::MAX, Origin::NONE); self.ring.len()].into();
    }

    /// The origin of entry `number`.
    fn origin(&self, number: usize) -> Origin {
        let mask = self.origins.len().wrapping_sub(1);
        self.origins.get(number & mask).filter(|(of, _)| *of == number).map_or(Origin::NONE, |(_, from)| *from)
    }

    #[cold]
    fn grow(&mut self) -> Result<()> {
        let mut ring = fallible::with_room(self.ring.len() * 2)?;
        if !self.origins.is_empty() {
            let mut wider = fallible::with_room(self.ring.len() * 2)?;
            wider.extend((0..self.len()).map(|i| (i, self.origin(self.head.wrapping_add(i)))));
            wider.resize(self.ring.len() * 2, (usize::MAX, Origin::NONE));
            self.origins = wider.into();
        }
        let (free, bound) = (self.free(), self.bound());
        let mask = self.ring.len() - 1;
        ring.extend((0..self.len()).filter_map(|i| self.ring.get((self.head + i) & mask).copied()));
        self.tail = ring.len();
        self.head = 0;
        ring.resize(self.ring.len() * 2, Completion::default());
        self.ring = ring.into();
        self.mask = self.ring.len() - 1;
        self.limit = self.tail.wrapping_add_signed(free + self.bound() - bound);
        self.floor = self.bound() - self.size as isize;
        Ok(())
    }
}

/// A completion queue, as providers fill it.
pub struct Queue {
    size: usize,
    entries: Serial<Entries>,
    pub waiter: Waiter,
    signals: Signals,
}

impl Queue {
    pub fn new(size: usize, threading: Threading) -> Result<Queue> {
        Ok(Queue {
            size,
            entries: Serial::new(threading, Rank::Entries, Entries::new(size)?),
            waiter: Waiter::default(),
            signals: Signals::default(),
        })
    }

    /// The queue with this waiter in place of its own.
    pub fn with_waiter(self, waiter: Waiter) -> Queue {
        Queue { waiter, ..self }
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// Reserves the entry of an operation about to be posted. False: the queue could overrun.
    #[inline]
    pub fn reserve(&self) -> bool {
        self.entries.lock().reserve()
    }

    /// Returns a reserved entry unused.
    #[inline]
    pub fn release(&self) {
        self.entries.lock().release(1);
    }

    /// Adds an entry that was reserved.
    #[inline]
    pub fn fill(&self, done: Completion) {
        {
            let mut e = self.entries.lock();
            e.append(done);
            e.release(1);
        }
        self.waiter.notify();
    }

    /// Adds an entry that was not reserved: that of an arrival, after `has_room`.
    #[inline(always)]
    pub fn push(&self, done: Completion) {
        self.entries.lock().append(done);
        self.waiter.notify();
    }

    /// As `push`, with the entry's origin, and also if there is no room.
    #[inline(always)]
    pub fn push_from(&self, done: Completion, from: Origin) {
        {
            let mut e = self.entries.lock();
            e.append_from(done, from);
        }
        self.waiter.notify();
    }

    /// As `fail`, for an entry that was not reserved, with its origin.
    #[cold]
    pub fn fail_from(&self, mut done: Completion, failure: Failure, from: Origin) {
        {
            let mut e = self.entries.lock();
            done.flags |= FAILED;
            if e.takes(failure) {
                e.append_from(done, from);
            }
        }
        self.waiter.notify();
    }

    /// Adds a failed entry; `reserved` says whether it was reserved.
    #[cold]
    pub fn fail(&self, mut done: Completion, failure: Failure, reserved: bool) {
        {
            let mut e = self.entries.lock();
            done.flags |= FAILED;
            if e.takes(failure) {
                e.append(done);
            }
            e.release(usize::from(reserved));
        }
        self.waiter.notify();
    }

    #[inline(always)]
    pub fn has_room(&self) -> bool {
        let mut e = self.entries.lock();
        e.is_open() || e.opens()
    }

    /// The number of entries that fit without a reservation.
    #[inline(always)]
    pub fn free(&self) -> usize {
        self.entries.lock().room().max(0) as usize
    }

    /// The number of arrivals that may be fetched from a transport that cannot take them back. The number is at least 1
    /// while the queue is empty, even if reservations fill the queue: the completions that end those reservations come
    /// through the same transport.
    #[inline(always)]
    pub fn room_for_arrivals(&self) -> usize {
        let e = self.entries.lock();
        let free = e.room().max(0) as usize;
        if free == 0 && e.is_empty() { 1 } else { free }
    }

    /// The entries without a lock, in a domain whose caller promised that calls do not overlap.
    ///
    /// # Safety
    /// No other access to the entries exists while the result is used.
    #[inline(always)]
    pub unsafe fn promised(&self) -> Option<Promised<'_, Entries>> {
        // SAFETY: the caller promises that nothing else accesses the entries meanwhile.
        unsafe { self.entries.promised() }
    }

    /// The entries, with the lock or without, as the caller knows from an earlier look at `threading()`.
    ///
    /// # Safety
    /// `LOCKED` agrees with `threading()`. Without the lock, nothing else accesses the entries while the result is used.
    #[inline(always)]
    pub unsafe fn reach<const LOCKED: bool>(&self) -> Reached<'_, Entries, LOCKED> {
        // SAFETY: the caller promises that `LOCKED` agrees with `threading()`, and that without the lock nothing else
        // accesses the entries.
        unsafe { self.entries.reach() }
    }

    pub fn threading(&self) -> Threading {
        self.entries.threading()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.lock().is_empty()
    }

    /// Passes up to `count` successful entries to `each` and removes them, stopping before a failed one.
    #[inline(always)]
    pub fn take(&self, count: usize, each: impl FnMut(usize, &Completion)) -> Taken {
        self.entries.lock().take(count, each)
    }

    /// As `take`, with the origin of each entry.
    #[inline]
    pub fn take_from(&self, count: usize, each: impl FnMut(usize, &Completion, Origin)) -> Taken {
        self.entries.lock().take_from(count, each)
    }

    /// The failure at the head, if there is one.
    pub fn take_error(&self) -> Option<(Completion, Failure, Origin)> {
        let mut e = self.entries.lock();
        if e.lost > 0 && e.is_empty() {
            let failure = Failure { error: LOST, olen: std::mem::take(&mut e.lost), block: 0 };
            return Some((Completion::default(), failure, Origin::NONE));
        }
        let mut done = *e.front()?;
        if done.flags & FAILED == 0 {
            return None;
        }
        done.flags &= !FAILED;
        let failure = e.failures.pop_front()?;
        let from = e.origin(e.head);
        e.head = e.head.wrapping_add(1);
        e.release(1);
        Some((done, failure, from))
    }

    /// The error of the failed entry at the head, which stays there.
    pub fn peek_error(&self) -> Option<Error> {
        let e = self.entries.lock();
        if e.lost > 0 && e.is_empty() {
            return Some(LOST);
        }
        e.front().filter(|done| done.flags & FAILED != 0).and_then(|_| e.failures.front()).map(|f| f.error.clone())
    }

    /// Lets one blocked reader return without an entry.
    pub fn signal(&self) {
        self.signals.add();
        self.waiter.notify();
    }

    /// Takes a signal: true if there was one. One reader takes each signal.
    pub fn take_signal(&self) -> bool {
        self.signals.take()
    }
}

/// The result of reading a completion source.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Found {
    /// This many entries, which were handed to the caller.
    Some(usize),
    /// As `Some`, and the endpoints beside the source are due for progress.
    Due(usize),
    /// The source has no entries.
    Nothing,
    /// The source could not find out, so the queue has to be read.
    Elsewhere,
}

/// The result of taking entries from a queue.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Taken {
    Some(usize),
    Empty,
    ErrorFirst,
}

/// A counter of successes and failures (`gdrfab_cntr`).
#[derive(Default)]
pub struct Counter {
    pub value: Count,
    pub errors: Count,
    pub waiter: Waiter,
}

impl Counter {
    pub fn add(&self, n: u64) {
        self.value.add(n);
        self.waiter.notify();
    }

    pub fn add_error(&self, n: u64) {
        self.errors.add(n);
        self.waiter.notify();
    }

    pub fn set(&self, n: u64) {
        self.value.set(n);
        self.waiter.notify();
    }

    pub fn set_error(&self, n: u64) {
        self.errors.set(n);
        self.waiter.notify();
    }
}

#[cfg(test)]
mod tests;
