// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls that wait. A thread that is cancelled in such a call, or that leaves its sleep by pthread_exit() in
//! a signal handler, is unwound through the call's frame. That frame therefore has nothing to drop, and a
//! cleanup handler of the C library undoes the wait.

use super::boundary::counted;
use crate::error::Result;
use crate::fabric::wait::{Step, Wait};
use crate::sys::cancel;
use libc::{c_void, ssize_t};
use std::mem::{ManuallyDrop, MaybeUninit};

unsafe extern "C" fn undo(wait: *mut c_void) {
    // SAFETY: `waiting` passes a wait that has begun, in its own frame, which still exists.
    counted(|| unsafe {
        wait.cast::<Wait<'static>>().drop_in_place();
        Ok(0)
    });
}

/// Begins a wait, and runs its steps until it is over. Returns the count of the last step, or a negative
/// errno.
///
/// # Safety
/// The objects that the wait borrows stay until this returns or the thread ends, and `begin` and `step` have
/// nothing to drop.
#[inline(always)]
pub(super) unsafe fn waiting<'a>(
    begin: impl FnOnce() -> Result<Wait<'a>>,
    step: impl FnMut(&mut Wait<'a>) -> Result<Step<usize>>,
    too_late: impl Fn() -> Result<usize>,
) -> ssize_t {
    let mut step = ManuallyDrop::new(step);
    let before = cancel::hold_off();
    let mut room = MaybeUninit::<Wait<'a>>::uninit();
    let begun = counted(|| {
        room.write(begin()?);
        Ok(0)
    });
    if begun < 0 {
        cancel::restore(before);
        return begun;
    }
    let wait = room.as_mut_ptr();
    loop {
        let mut nap = None;
        // SAFETY: the wait was begun above, and only this function has it.
        let count = counted(|| unsafe {
            match step(&mut *wait)? {
                Step::Over(Some(count)) => Ok(count),
                Step::Over(None) => too_late(),
                Step::Sleep(of) => {
                    nap = Some(of);
                    Ok(0)
                }
            }
        });
        let Some(nap) = nap else {
            // SAFETY: the wait was begun above, only this function has it, and it is not used again.
            unsafe { undo(wait.cast()) };
            cancel::restore(before);
            return count;
        };
        let mut cleanup = cancel::Cleanup::new();
        // SAFETY: `cleanup` and the wait stay until the handler is taken back, or has run as the thread is
        // unwound.
        unsafe { cancel::push(&raw mut cleanup, undo, wait.cast()) };
        cancel::restore(before);
        let woken = cancel::sleep(nap);
        cancel::hold_off();
        // SAFETY: this handler is the one that was pushed last, and the wait still exists.
        unsafe {
            cancel::take_back(&raw mut cleanup);
            (*wait).woke(woken);
        }
    }
}
