// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Completion queues and counters, as providers see them: places to put results.
//!
//! A queue never overruns: whoever posts an operation reserves the entry first, and arrivals wait in
//! the transport until there is room.

use crate::error::{Error, Result, errno};
use crate::fallible::{self, MakeRoom};
use crate::sync::serial::{Promised, Reached, Serial, Threading};
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

/// Marks an entry whose failure stands in the list beside the ring.
const FAILED: u64 = 1 << 63;

/// Why an operation failed, and what was lost.
#[derive(Debug)]
pub struct Failure {
    pub error: Error,
    /// Bytes that did not fit.
    pub olen: usize,
    /// Of a list, the block that failed.
    pub block: usize,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, olen: 0, block: 0 }
    }
}

/// Which peer an entry came from, and with which tag; only of connectionless endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    pub tag: u64,
    /// Its index in the address vector.
    pub peer: u64,
}

impl Origin {
    pub const NONE: Origin = Origin { tag: 0, peer: super::av::UNSPEC };
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
    /// What `tail` may grow to without growing the ring or using what is reserved: taking and reserving move it, pushing does
    /// not, which stores no second word.
    limit: usize,
    /// What `free` is when the queue is full: below 0 where the ring is still smaller than the queue.
    floor: isize,
    failures: VecDeque<Failure>,
    /// Entries that nobody could reserve, and for which no memory was left: one error entry stands for all of them.
    lost: usize,
    /// Beside each place of the ring, once an entry had one: its origin, and the entry's number, as those without one leave
    /// the place as it was.
    origins: Box<[(usize, Origin)]>,
}

const LOST: Error = Error::fixed(errno::ENOMEM, "no memory was left for entries of cancelled receives: olen says how many are lost");

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

    /// How many entries `free` counts at most.
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

    /// Entries that are neither taken nor reserved, of those that fit without growing.
    #[inline(always)]
    fn free(&self) -> isize {
        self.limit.wrapping_sub(self.tail) as isize
    }

    /// Entries that may still be reserved or pushed.
    #[inline(always)]
    fn room(&self) -> isize {
        self.free() - self.floor
    }

    /// Room for one entry more, at hand.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.free() > 0
    }

    /// Reserves an entry for an operation about to be posted; false if the queue could overrun, or has no memory to grow.
    #[inline(always)]
    pub fn reserve(&mut self) -> bool {
        let room = self.is_open() || self.opens();
        self.limit = self.limit.wrapping_sub(usize::from(room));
        room
    }

    /// Whether there is room for one entry more, for which the ring grows.
    #[cold]
    #[inline(never)]
    fn opens(&mut self) -> bool {
        self.room() > 0 && self.grow().is_ok()
    }

    /// Gives `n` reserved entries back unused.
    #[inline(always)]
    pub fn release(&mut self, n: usize) {
        self.limit = self.limit.wrapping_add(n);
    }

    /// Whether it is empty and takes `n` that nobody reserved.
    #[inline(always)]
    pub fn has_room_for(&self, n: usize) -> bool {
        self.is_empty() && self.free() >= n as isize
    }

    /// As `Queue::push` after `is_open`, for which the ring need not grow; the caller notifies.
    #[inline(always)]
    pub fn push_open(&mut self, done: Completion) {
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

    /// Adds an entry; one that was reserved is to be released.
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

    /// Keeps what belongs to an entry that comes next. False: there is no memory for both, and the entry is lost.
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

    /// Hands up to `count` successes to `each`, stopping before an error.
    #[inline(always)]
    pub fn take(&mut self, count: usize, mut each: impl FnMut(usize, &Completion)) -> Taken {
        let (there, head, mask, ring) = (self.len(), self.head, self.mask, self.ring.as_ptr());
        if there == 0 {
            return if self.lost > 0 { Taken::ErrorFirst } else { Taken::Empty };
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
        // Read again: what was added up for the last entry would cost each of them an instruction.
        self.head = self.head.wrapping_add(n);
        self.limit = self.limit.wrapping_add(n);
        Taken::Some(n)
    }

    /// As `take`, with where each entry came from.
    #[inline(always)]
    pub fn take_from(&mut self, count: usize, mut each: impl FnMut(usize, &Completion, Origin)) -> Taken {
        let head = self.head;
        let (first, len) = (self.origins.as_ptr(), self.origins.len());
        // SAFETY: `take` neither changes origins nor moves them, and they are borrowed no longer than it runs.
        let origins = unsafe { std::slice::from_raw_parts(first, len) };
        let origin = |number: usize| match origins.get(number & len.wrapping_sub(1)) {
            Some((of, from)) if *of == number => *from,
            _ => Origin::NONE,
        };
        self.take(count, |i, c| each(i, c, origin(head.wrapping_add(i))))
    }

    /// As `append`.
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

    /// Of entry `number`.
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

pub struct Queue {
    size: usize,
    entries: Serial<Entries>,
    pub waiter: Waiter,
    signals: Signals,
}

impl Queue {
    pub fn new(size: usize, threading: Threading) -> Result<Queue> {
        Ok(Queue { size, entries: Serial::new(threading, Entries::new(size)?), waiter: Waiter::default(), signals: Signals::default() })
    }

    /// With a waiter of the caller's making.
    pub fn with_waiter(self, waiter: Waiter) -> Queue {
        Queue { waiter, ..self }
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// Reserves an entry for an operation about to be posted; false if the queue could overrun.
    #[inline]
    pub fn reserve(&self) -> bool {
        self.entries.lock().reserve()
    }

    /// Gives a reserved entry back unused.
    #[inline]
    pub fn release(&self) {
        self.entries.lock().release(1);
    }

    /// Fills a reserved entry.
    #[inline]
    pub fn fill(&self, done: Completion) {
        {
            let mut e = self.entries.lock();
            e.append(done);
            e.release(1);
        }
        self.waiter.notify();
    }

    /// Adds an entry that nobody could reserve: an arrival (after `has_room`).
    #[inline(always)]
    pub fn push(&self, done: Completion) {
        self.entries.lock().append(done);
        self.waiter.notify();
    }

    /// As `push`, whether there is room or not.
    #[inline(always)]
    pub fn push_from(&self, done: Completion, from: Origin) {
        {
            let mut e = self.entries.lock();
            e.append_from(done, from);
        }
        self.waiter.notify();
    }

    /// As `fail` without a reservation.
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

    /// Adds a failure; `reserved` tells whether its entry was reserved.
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

    /// Entries that fit without a reservation.
    #[inline(always)]
    pub fn free(&self) -> usize {
        self.entries.lock().room().max(0) as usize
    }

    /// How many arrivals may be fetched from a transport that cannot take them back. Where reservations alone fill
    /// the queue it is 1, since what frees them comes the same way.
    #[inline(always)]
    pub fn room_for_arrivals(&self) -> usize {
        let e = self.entries.lock();
        let free = e.room().max(0) as usize;
        if free == 0 && e.is_empty() { 1 } else { free }
    }

    /// The entries, where the caller keeps calls from overlapping.
    ///
    /// # Safety
    /// No other access to the entries exists while the result is used.
    #[inline(always)]
    pub unsafe fn promised(&self) -> Option<Promised<'_, Entries>> {
        // SAFETY: the caller says so.
        unsafe { self.entries.promised() }
    }

    /// As `promised`, or with the lock, as was looked at before.
    ///
    /// # Safety
    /// `LOCKED` says what `threading()` does; without the lock, no other access to the entries exists while the result is used.
    #[inline(always)]
    pub unsafe fn reach<const LOCKED: bool>(&self) -> Reached<'_, Entries, LOCKED> {
        // SAFETY: the caller says both things that this asks for.
        unsafe { self.entries.reach() }
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

    /// As `take`, with where each entry came from.
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

    /// What the failure at the head says, which stays there.
    pub fn peek_error(&self) -> Option<Error> {
        let e = self.entries.lock();
        if e.lost > 0 && e.is_empty() {
            return Some(LOST);
        }
        e.front().filter(|done| done.flags & FAILED != 0).and_then(|_| e.failures.front()).map(|f| f.error.clone())
    }

    /// Lets a blocked reader return.
    pub fn signal(&self) {
        self.signals.add();
        self.waiter.notify();
    }

    /// Whether somebody signalled: each signal is taken by one reader.
    pub fn take_signal(&self) -> bool {
        self.signals.take()
    }
}

/// What a look at a device brought.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Found {
    /// So many entries, which are handed out.
    Some(usize),
    /// As `Some`, and it is time for what else there is to look at.
    Due(usize),
    /// It has none.
    Nothing,
    /// Whoever looks into the queue knows.
    Elsewhere,
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
