// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls that wait. Each is a frame that a thread which is cancelled, or which leaves by pthread_exit() in a signal handler, unwinds
//! from its sleep: it has nothing to drop, and a handler of the C library's undoes the wait.

use super::boundary::counted;
use crate::error::Result;
use crate::fabric::wait::{Step, Wait};
use crate::sys::cancel;
use libc::{c_void, ssize_t};
use std::mem::{ManuallyDrop, MaybeUninit};

unsafe extern "C" fn undo(wait: *mut c_void) {
    // SAFETY: `waiting` gives a wait that has begun and lies in its frame, which is still there.
    counted(|| unsafe {
        wait.cast::<Wait<'static>>().drop_in_place();
        Ok(0)
    });
}

/// Begins a wait, and steps until it is over: the count of the last step, or a negative errno.
///
/// # Safety
/// What the wait borrows stays until this returns or the thread ends, and `step` and `begin` have nothing to drop.
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
        // SAFETY: the wait was begun above, and nobody else has it.
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
            // SAFETY: as above; it is not used again.
            unsafe { undo(wait.cast()) };
            cancel::restore(before);
            return count;
        };
        let mut cleanup = cancel::Cleanup::new();
        // SAFETY: both places stay until the handler is taken back, or has run as the thread unwinds.
        unsafe { cancel::push(&raw mut cleanup, undo, wait.cast()) };
        cancel::restore(before);
        let woken = cancel::sleep(nap);
        cancel::hold_off();
        // SAFETY: the one that was put there last; the wait lives.
        unsafe {
            cancel::take_back(&raw mut cleanup);
            (*wait).woke(woken);
        }
    }
}
