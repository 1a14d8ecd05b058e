// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A mutex that does not lock if the C caller has promised that its calls never overlap.
//!
//! A domain opened with `GDRFAB_THREAD_DOMAIN` is used by one thread at a time. The C caller promises this, and the
//! promise saves the data path two atomic operations per lock.
//!
//! The promise is a value that only an unsafe function makes, at the place where the C caller gives it. So the type
//! shows whether an object was opened without locks, and safe code cannot make a promise. The promise serialises
//! threads, but not two accesses of the same thread: therefore a [`Guard`] sets a plain flag while it lives, which
//! needs no atomic operation, and a second guard panics, where a mutex would wait for ever. The shortest paths, in
//! which every instruction counts, do not check the flag: `promised` and `reach` are unsafe, and their callers know
//! that nothing else accesses the value.

use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// The place of a lock in the order in which a thread takes locks: a thread that holds one waits only for locks of later
/// ranks. A debug build panics otherwise. docs/architecture.md lists the locks of each rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rank {
    /// Endpoints that a queue's reader drives.
    Progress,
    /// A connectionless endpoint.
    Connectionless,
    /// A device's completion queue.
    DeviceQueue,
    /// A connected endpoint, and a lane of a connectionless one.
    Connected,
    /// The regions of a domain of connectionless endpoints.
    ConnectionlessRegions,
    /// The regions of a domain of connected endpoints, and of a lane.
    Regions,
    /// The entries of a completion queue.
    Entries,
    /// Locks under which no other is taken.
    Leaf,
}

/// A caller's promise that its calls never overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promise(());

impl Promise {
    /// # Safety
    /// An object that is opened with the promise is used by one call at a time: each call happens before the next, on
    /// whatever thread. `GDRFAB_THREAD_DOMAIN` obliges the caller of `gdrfab_domain_open()` to make its calls so.
    pub const unsafe fn given() -> Promise {
        Promise(())
    }
}

/// The reason why two threads never access the same value at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Threading {
    /// The library locks.
    Safe,
    /// The caller promised that calls never overlap.
    Promised(Promise),
}

impl Threading {
    #[inline(always)]
    pub fn is_promised(self) -> bool {
        matches!(self, Threading::Promised(_))
    }
}

pub struct Serial<T> {
    threading: Threading,
    #[cfg(debug_assertions)]
    rank: Rank,
    lock: RawMutex,
    /// True while a `Guard` exists. Used only without the lock.
    inside: Cell<bool>,
    value: UnsafeCell<T>,
}

// SAFETY: with Safe the value is accessed only under the mutex, and the flag not at all. With Promised, the maker of
// the `Promise` promised that all uses are serialised, which includes the happens-before edge between threads.
unsafe impl<T: Send> Sync for Serial<T> {}

/// Access to the value, until dropped. A guard stays on the thread that got it.
pub struct Guard<'a, T> {
    of: &'a Serial<T>,
    _thread: PhantomData<*mut T>,
}

impl<T> Serial<T> {
    pub fn new(threading: Threading, rank: Rank, value: T) -> Self {
        #[cfg(not(debug_assertions))]
        let _ = rank;
        Serial {
            threading,
            #[cfg(debug_assertions)]
            rank,
            lock: RawMutex::INIT,
            inside: Cell::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Notes that the calling thread waits for this lock, and panics if another lock that it holds has the same or a later rank.
    #[inline(always)]
    fn wait(&self) {
        #[cfg(debug_assertions)]
        order::check(self.rank);
    }

    #[inline(always)]
    fn taken(&self) {
        #[cfg(debug_assertions)]
        order::taken(self.rank, std::ptr::from_ref(self).addr());
    }

    #[inline(always)]
    fn released(&self) {
        #[cfg(debug_assertions)]
        order::released(std::ptr::from_ref(self).addr());
    }

    /// Gets access to the value. A thread that already has access waits for ever if the library locks, and panics if
    /// the caller promised.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        self.wait();
        match self.threading {
            Threading::Safe => self.lock.lock(),
            Threading::Promised(_) => {
                if self.inside.replace(true) {
                    twice();
                }
            }
        }
        self.taken();
        Guard { of: self, _thread: PhantomData }
    }

    /// Like `lock`; `None` if somebody has access. The caller leaves its work to the thread that has access.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let free = match self.threading {
            Threading::Safe => self.lock.try_lock(),
            Threading::Promised(_) => !self.inside.replace(true),
        };
        // A Guard is made only if locked, because dropping one unlocks.
        if free {
            self.taken();
            Some(Guard { of: self, _thread: PhantomData })
        } else {
            None
        }
    }

    /// The value without locking, if the caller promised that calls never overlap; `None` if the library locks.
    /// Dropping the result does nothing, unlike dropping a [`Guard`], so a function that calls no other needs no stack
    /// frame for it.
    ///
    /// # Safety
    /// No other access to the value exists while the result is used.
    #[inline(always)]
    pub unsafe fn promised(&self) -> Option<Promised<'_, T>> {
        self.threading.is_promised().then_some(Promised { value: &self.value })
    }

    /// The value, for a caller that knows at compile time whether the library locks (`LOCKED`) or the promise alone
    /// excludes other accesses.
    ///
    /// # Safety
    /// `LOCKED` agrees with `threading()`. Without the lock, no other access to the value exists while the result is
    /// used.
    #[inline(always)]
    pub unsafe fn reach<const LOCKED: bool>(&self) -> Reached<'_, T, LOCKED> {
        debug_assert!(LOCKED != self.threading.is_promised());
        self.wait();
        if LOCKED {
            self.lock.lock();
        }
        debug_assert!(!self.inside.get());
        self.taken();
        Reached { of: self, _thread: PhantomData }
    }

    /// Like `reach`; `None` if another thread has access.
    ///
    /// # Safety
    /// As for `reach`.
    #[inline(always)]
    pub unsafe fn try_reach<const LOCKED: bool>(&self) -> Option<Reached<'_, T, LOCKED>> {
        debug_assert!(LOCKED != self.threading.is_promised());
        if !LOCKED || self.lock.try_lock() {
            self.taken();
            Some(Reached { of: self, _thread: PhantomData })
        } else {
            None
        }
    }

    pub fn threading(&self) -> Threading {
        self.threading
    }
}

/// Access that `reach` returned. Dropping it unlocks, if it locked.
pub struct Reached<'a, T, const LOCKED: bool> {
    of: &'a Serial<T>,
    _thread: PhantomData<*mut T>,
}

#[cold]
#[inline(never)]
fn twice() -> ! {
    panic!("this thread has it already")
}

impl<T, const LOCKED: bool> Deref for Reached<'_, T, LOCKED> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: `reach` made this under the lock, or its caller promised that nothing else accesses the value.
        unsafe { &*self.of.value.get() }
    }
}

impl<T, const LOCKED: bool> DerefMut for Reached<'_, T, LOCKED> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, `reach` excludes other accesses; `self` is borrowed mutably.
        unsafe { &mut *self.of.value.get() }
    }
}

impl<T, const LOCKED: bool> Drop for Reached<'_, T, LOCKED> {
    #[inline(always)]
    fn drop(&mut self) {
        self.of.released();
        if LOCKED {
            // SAFETY: the lock was taken when this was made, and only once.
            unsafe { self.of.lock.unlock() };
        }
    }
}

/// Access that `promised` returned: without a lock, by the caller's promise alone.
pub struct Promised<'a, T> {
    value: &'a UnsafeCell<T>,
}

impl<T> Deref for Promised<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the caller of `promised` promised that nothing else accesses the value, on this thread or another.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for Promised<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, the caller of `promised` excludes other accesses; `self` is borrowed mutably.
        unsafe { &mut *self.value.get() }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: one Guard exists at a time, by the mutex or by the flag, which no other thread accesses because of
        // the `Promise`.
        unsafe { &*self.of.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, only one Guard exists; it is borrowed mutably.
        unsafe { &mut *self.of.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.of.released();
        match self.of.threading {
            // SAFETY: this Guard took the lock, and only once.
            Threading::Safe => unsafe { self.of.lock.unlock() },
            Threading::Promised(_) => self.of.inside.set(false),
        }
    }
}

/// The locks that each thread holds, for the check of their order.
#[cfg(debug_assertions)]
mod order {
    use super::Rank;
    use std::cell::RefCell;

    /// More locks than a thread ever holds. The list has no memory of its own, because locks are taken where memory has run out.
    const MOST: usize = 16;

    #[derive(Clone, Copy)]
    struct Held {
        rank: Rank,
        address: usize,
    }

    thread_local! {
        static HELD: RefCell<[Option<Held>; MOST]> = const { RefCell::new([None; MOST]) };
    }

    /// Runs `f` on the list of the calling thread; a thread that ends may have lost its list, and is not checked.
    fn held<R>(f: impl FnOnce(&mut [Option<Held>; MOST]) -> R) -> Option<R> {
        HELD.try_with(|held| f(&mut held.borrow_mut())).ok()
    }

    pub(super) fn check(rank: Rank) {
        let last = held(|held| held.iter().flatten().map(|held| held.rank).max()).flatten();
        if let Some(last) = last {
            assert!(last < rank, "a thread that holds a lock of rank {last:?} waits for one of rank {rank:?}");
        }
    }

    pub(super) fn taken(rank: Rank, address: usize) {
        held(|held| {
            let free = held.iter_mut().find(|held| held.is_none()).expect("a thread holds few locks");
            *free = Some(Held { rank, address });
        });
    }

    pub(super) fn released(address: usize) {
        held(|held| {
            if let Some(gone) = held.iter_mut().find(|held| held.is_some_and(|held| held.address == address)) {
                *gone = None;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SAFETY: each of these tests uses one thread.
    const PROMISED: Threading = Threading::Promised(unsafe { Promise::given() });

    #[test]
    fn only_a_promise_opens_without_the_lock() {
        let safe = Serial::new(Threading::Safe, Rank::Leaf, 1);
        // SAFETY: nothing else accesses the value.
        assert!(unsafe { safe.promised() }.is_none());
        let serial = Serial::new(PROMISED, Rank::Leaf, 1);
        // SAFETY: nothing else accesses the value.
        *unsafe { serial.promised() }.expect("promised") += 1;
        assert_eq!(*serial.lock(), 2);
    }

    #[test]
    fn a_thread_has_it_once_by_a_promise_too() {
        let serial = Serial::new(PROMISED, Rank::Leaf, 1);
        let held = serial.lock();
        assert!(serial.try_lock().is_none());
        let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| *serial.lock()));
        assert!(again.is_err());
        drop(held);
        assert_eq!(*serial.try_lock().expect("free again"), 1);
        assert_eq!(*serial.lock(), 1);
    }

    #[test]
    fn what_is_reached_under_the_lock_is_locked_as_long() {
        let safe = Serial::new(Threading::Safe, Rank::Leaf, 1);
        // SAFETY: the lock excludes other accesses.
        let held = unsafe { safe.reach::<true>() };
        assert!(safe.try_lock().is_none());
        // SAFETY: the lock excludes other accesses.
        assert!(unsafe { safe.try_reach::<true>() }.is_none());
        drop(held);
        // SAFETY: the lock excludes other accesses.
        *unsafe { safe.try_reach::<true>() }.expect("free again") += 1;
        assert_eq!(*safe.try_lock().expect("free again"), 2);
    }

    #[test]
    #[cfg(debug_assertions)]
    fn locks_are_taken_in_the_order_of_their_ranks() {
        let waits = |lock: &Serial<i32>| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(lock.lock()))).is_ok();
        for threading in [Threading::Safe, PROMISED] {
            let [first, second, other] = [Rank::Connected, Rank::Entries, Rank::Connected].map(|rank| Serial::new(threading, rank, 1));
            let outer = first.lock();
            assert!(waits(&second), "the rank after it");
            assert!(!waits(&other), "two locks of one rank");
            let inner = second.lock();
            drop(outer);
            assert!(!waits(&first), "an earlier rank");
            assert!(first.try_lock().is_some(), "a try does not wait");
            drop(inner);
            assert!(waits(&first) && waits(&other));
        }
    }

    #[test]
    fn a_failed_try_leaves_the_lock_with_its_holder() {
        let serial = Serial::new(Threading::Safe, Rank::Leaf, 1);
        let held = serial.lock();
        assert!(serial.try_lock().is_none());
        assert!(serial.try_lock().is_none(), "the first try has unlocked it");
        drop(held);
        assert!(serial.try_lock().is_some());
    }
}
