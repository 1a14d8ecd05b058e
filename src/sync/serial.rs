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
    pub fn new(threading: Threading, value: T) -> Self {
        Serial { threading, lock: RawMutex::INIT, inside: Cell::new(false), value: UnsafeCell::new(value) }
    }

    /// Gets access to the value. A thread that already has access waits for ever if the library locks, and panics if
    /// the caller promised.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        match self.threading {
            Threading::Safe => self.lock.lock(),
            Threading::Promised(_) => {
                if self.inside.replace(true) {
                    twice();
                }
            }
        }
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
        if free { Some(Guard { of: self, _thread: PhantomData }) } else { None }
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
        if LOCKED {
            self.lock.lock();
        }
        debug_assert!(!self.inside.get());
        Reached { of: self, _thread: PhantomData }
    }

    /// Like `reach`; `None` if another thread has access.
    ///
    /// # Safety
    /// As for `reach`.
    #[inline(always)]
    pub unsafe fn try_reach<const LOCKED: bool>(&self) -> Option<Reached<'_, T, LOCKED>> {
        debug_assert!(LOCKED != self.threading.is_promised());
        if !LOCKED || self.lock.try_lock() { Some(Reached { of: self, _thread: PhantomData }) } else { None }
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
        match self.of.threading {
            // SAFETY: this Guard took the lock, and only once.
            Threading::Safe => unsafe { self.of.lock.unlock() },
            Threading::Promised(_) => self.of.inside.set(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SAFETY: each of these tests uses one thread.
    const PROMISED: Threading = Threading::Promised(unsafe { Promise::given() });

    #[test]
    fn only_a_promise_opens_without_the_lock() {
        let safe = Serial::new(Threading::Safe, 1);
        // SAFETY: nothing else accesses the value.
        assert!(unsafe { safe.promised() }.is_none());
        let serial = Serial::new(PROMISED, 1);
        // SAFETY: nothing else accesses the value.
        *unsafe { serial.promised() }.expect("promised") += 1;
        assert_eq!(*serial.lock(), 2);
    }

    #[test]
    fn a_thread_has_it_once_by_a_promise_too() {
        let serial = Serial::new(PROMISED, 1);
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
        let safe = Serial::new(Threading::Safe, 1);
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
    fn a_failed_try_leaves_the_lock_with_its_holder() {
        let serial = Serial::new(Threading::Safe, 1);
        let held = serial.lock();
        assert!(serial.try_lock().is_none());
        assert!(serial.try_lock().is_none(), "the first try has unlocked it");
        drop(held);
        assert!(serial.try_lock().is_some());
    }
}
