// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A mutex that the caller may promise away.
//!
//! A domain opened with `GDRFAB_THREAD_DOMAIN` is used by one thread at a time: that is the C
//! caller's promise, and it buys the data path two atomic operations per lock.

use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// Who keeps two threads from the same value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Threading {
    /// The library locks.
    Safe,
    /// The caller promised that calls never overlap.
    Promised,
}

pub struct Serial<T> {
    threading: Threading,
    lock: RawMutex,
    value: UnsafeCell<T>,
}

// SAFETY: with Safe the value is reached only under the mutex; with Promised the caller of the C
// API serialises every call on the domain, which includes the happens-before edge between threads.
unsafe impl<T: Send> Sync for Serial<T> {}

pub struct Guard<'a, T> {
    of: &'a Serial<T>,
}

impl<T> Serial<T> {
    pub fn new(threading: Threading, value: T) -> Self {
        Serial { threading, lock: RawMutex::INIT, value: UnsafeCell::new(value) }
    }

    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        if self.threading == Threading::Safe {
            self.lock.lock();
        }
        Guard { of: self }
    }

    /// `None` if another thread is inside: it does the work then.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        // Made only if locked: a Guard that is dropped unlocks.
        if self.threading == Threading::Promised || self.lock.try_lock() { Some(Guard { of: self }) } else { None }
    }

    /// The value without a lock, where the caller promised that calls never overlap; `None` where the library
    /// locks. Unlike a [`Guard`] it has nothing to undo, so a leaf function stays one.
    #[inline(always)]
    pub fn promised(&self) -> Option<Promised<'_, T>> {
        (self.threading == Threading::Promised).then_some(Promised { value: &self.value })
    }

    /// The value, where how it is reached is known when compiling: under the lock, or by the promise alone.
    ///
    /// # Safety
    /// `LOCKED`, or `threading()` is `Promised`.
    #[inline(always)]
    pub unsafe fn reach<const LOCKED: bool>(&self) -> Reached<'_, T, LOCKED> {
        debug_assert!(LOCKED == (self.threading == Threading::Safe));
        if LOCKED {
            self.lock.lock();
        }
        Reached { of: self }
    }

    /// As `reach`; `None` if another thread is inside.
    ///
    /// # Safety
    /// As for `reach`.
    #[inline(always)]
    pub unsafe fn try_reach<const LOCKED: bool>(&self) -> Option<Reached<'_, T, LOCKED>> {
        debug_assert!(LOCKED == (self.threading == Threading::Safe));
        if !LOCKED || self.lock.try_lock() { Some(Reached { of: self }) } else { None }
    }

    pub fn threading(&self) -> Threading {
        self.threading
    }
}

/// Access by `reach`.
pub struct Reached<'a, T, const LOCKED: bool> {
    of: &'a Serial<T>,
}

impl<T, const LOCKED: bool> Deref for Reached<'_, T, LOCKED> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: made only under the lock or by the caller's promise.
        unsafe { &*self.of.value.get() }
    }
}

impl<T, const LOCKED: bool> DerefMut for Reached<'_, T, LOCKED> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { &mut *self.of.value.get() }
    }
}

impl<T, const LOCKED: bool> Drop for Reached<'_, T, LOCKED> {
    #[inline(always)]
    fn drop(&mut self) {
        if LOCKED {
            // SAFETY: it was locked when this was made, and only once.
            unsafe { self.of.lock.unlock() };
        }
    }
}

/// Access by the caller's promise.
pub struct Promised<'a, T> {
    value: &'a UnsafeCell<T>,
}

impl<T> Deref for Promised<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: made only where the caller's promise stands.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for Promised<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { &mut *self.value.get() }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: a Guard exists only while the mutex is held or the caller's promise stands.
        unsafe { &*self.of.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the Guard is borrowed exclusively.
        unsafe { &mut *self.of.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.of.threading == Threading::Safe {
            // SAFETY: this Guard locked it, and only once.
            unsafe { self.of.lock.unlock() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_promise_opens_without_the_lock() {
        assert!(Serial::new(Threading::Safe, 1).promised().is_none());
        let serial = Serial::new(Threading::Promised, 1);
        *serial.promised().expect("promised") += 1;
        assert_eq!(*serial.lock(), 2);
    }

    #[test]
    fn what_is_reached_under_the_lock_is_locked_as_long() {
        let safe = Serial::new(Threading::Safe, 1);
        // SAFETY: by the lock.
        let held = unsafe { safe.reach::<true>() };
        assert!(safe.try_lock().is_none());
        // SAFETY: as above.
        assert!(unsafe { safe.try_reach::<true>() }.is_none());
        drop(held);
        // SAFETY: as above.
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
