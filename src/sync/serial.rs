// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A mutex that the caller may promise away.
//!
//! A domain opened with `GDRFAB_THREAD_DOMAIN` is used by one thread at a time: that is the C
//! caller's promise, and it buys the data path two atomic operations per lock.
//!
//! The promise is a value that only an unsafe function makes, where the C caller's word is read: so what is opened without
//! locks can be told from its type, and safe code cannot have it. It serialises threads, but not two accesses of one thread:
//! a [`Guard`] therefore leaves a plain mark while it lives, which needs no atomic operation, and a second one is a panic,
//! where with a lock it would wait for ever. The shortest ways, whose every instruction counts, look at no mark: `promised` and
//! `reach` are unsafe, and their callers know that nothing else has the value.

use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// The word of a caller that its calls never overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promise(());

impl Promise {
    /// # Safety
    /// What is opened by it is used by one call at a time: each one happens before the next, and whatever thread it is on. So
    /// `GDRFAB_THREAD_DOMAIN` obliges the caller of `gdrfab_domain_open()`.
    pub const unsafe fn given() -> Promise {
        Promise(())
    }
}

/// Who keeps two threads from the same value.
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
    /// Without the lock: a `Guard` lives.
    inside: Cell<bool>,
    value: UnsafeCell<T>,
}

// SAFETY: with Safe the value is reached only under the mutex, and the mark not at all. With Promised who made the `Promise`
// serialises every use, which includes the happens-before edge between threads.
unsafe impl<T: Send> Sync for Serial<T> {}

/// Access that ends when it is dropped, on the thread that has it.
pub struct Guard<'a, T> {
    of: &'a Serial<T>,
    _thread: PhantomData<*mut T>,
}

impl<T> Serial<T> {
    pub fn new(threading: Threading, value: T) -> Self {
        Serial { threading, lock: RawMutex::INIT, inside: Cell::new(false), value: UnsafeCell::new(value) }
    }

    /// Panics where a lock would wait for ever: this thread has it already.
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

    /// `None` if another thread is inside: it does the work then.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let free = match self.threading {
            Threading::Safe => self.lock.try_lock(),
            Threading::Promised(_) => !self.inside.replace(true),
        };
        // Made only if locked: a Guard that is dropped unlocks.
        if free { Some(Guard { of: self, _thread: PhantomData }) } else { None }
    }

    /// The value without a lock, where the caller promised that calls never overlap; `None` where the library
    /// locks. Unlike a [`Guard`] it has nothing to undo, so a leaf function stays one.
    ///
    /// # Safety
    /// No other access to the value exists while the result is used.
    #[inline(always)]
    pub unsafe fn promised(&self) -> Option<Promised<'_, T>> {
        self.threading.is_promised().then_some(Promised { value: &self.value })
    }

    /// The value, where how it is reached is known when compiling: under the lock, or by the promise alone.
    ///
    /// # Safety
    /// `LOCKED` says what `threading()` does; without the lock, no other access to the value exists while the result is used.
    #[inline(always)]
    pub unsafe fn reach<const LOCKED: bool>(&self) -> Reached<'_, T, LOCKED> {
        debug_assert!(LOCKED != self.threading.is_promised());
        if LOCKED {
            self.lock.lock();
        }
        debug_assert!(!self.inside.get());
        Reached { of: self, _thread: PhantomData }
    }

    /// As `reach`; `None` if another thread is inside.
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

/// Access by `reach`.
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
        // SAFETY: `reach` made it under the lock, or its caller has said that nothing else has the value.
        unsafe { &*self.of.value.get() }
    }
}

impl<T, const LOCKED: bool> DerefMut for Reached<'_, T, LOCKED> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`, and borrowed exclusively.
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
        // SAFETY: who asked `promised` for it has said that nothing else has the value, on this thread or another.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for Promised<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`, and borrowed exclusively.
        unsafe { &mut *self.value.get() }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: one Guard at a time: by the mutex; or by the mark, which no other thread touches meanwhile, says the `Promise`.
        unsafe { &*self.of.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`, and the Guard is borrowed exclusively.
        unsafe { &mut *self.of.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        match self.of.threading {
            // SAFETY: this Guard locked it, and only once.
            Threading::Safe => unsafe { self.of.lock.unlock() },
            Threading::Promised(_) => self.of.inside.set(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SAFETY: of one thread, as each of these tests is.
    const PROMISED: Threading = Threading::Promised(unsafe { Promise::given() });

    #[test]
    fn only_a_promise_opens_without_the_lock() {
        let safe = Serial::new(Threading::Safe, 1);
        // SAFETY: nothing else has the value.
        assert!(unsafe { safe.promised() }.is_none());
        let serial = Serial::new(PROMISED, 1);
        // SAFETY: as above.
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
