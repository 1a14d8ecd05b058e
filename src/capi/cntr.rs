// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters.

use super::boundary::{control, hold, object, output, release};
use super::objects::gdrfab_cntr;
use super::waiting::waiting;
use crate::error::{Error, errno};
use crate::fabric::WaitEnd;
use crate::fabric::wait::{Step, Wait};
use libc::c_int;
use std::cell::Cell;

// == Counter ==

/// The count of successes; drives the endpoints bound to the counter. 0 for NULL. Mirrors fi_cntr_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_read(cntr: *mut gdrfab_cntr) -> u64 {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| 0, || unsafe { object(cntr, "cntr") }.map_or(0, |c| c.read()))
}

/// The count of failures; drives as gdrfab_cntr_read(). 0 for NULL. Mirrors fi_cntr_readerr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_readerr(cntr: *mut gdrfab_cntr) -> u64 {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| 0, || unsafe { object(cntr, "cntr") }.map_or(0, |c| c.read_error()))
}

/// Adds to the count of successes: 0 or -EINVAL. Mirrors fi_cntr_add.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_add(cntr: *mut gdrfab_cntr, value: u64) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    release(|| unsafe { object(cntr, "cntr").map(|c| c.counter.add(value)) })
}

/// Sets the count of successes: 0 or -EINVAL. Mirrors fi_cntr_set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_set(cntr: *mut gdrfab_cntr, value: u64) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    release(|| unsafe { object(cntr, "cntr").map(|c| c.counter.set(value)) })
}

/// Adds to the count of failures: 0 or -EINVAL. Mirrors fi_cntr_adderr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_adderr(cntr: *mut gdrfab_cntr, value: u64) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    release(|| unsafe { object(cntr, "cntr").map(|c| c.counter.add_error(value)) })
}

/// Sets the count of failures: 0 or -EINVAL. Mirrors fi_cntr_seterr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_seterr(cntr: *mut gdrfab_cntr, value: u64) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    release(|| unsafe { object(cntr, "cntr").map(|c| c.counter.set_error(value)) })
}

/// Waits until the count of successes is at least `threshold`. Mirrors fi_cntr_wait.
///
/// @return 0, -ETIMEDOUT, -GDRFAB_EAVAIL (the count of failures changed meanwhile), -EINTR (a signal),
///   -EINVAL, -EPERM; -EMFILE, -ENFILE, -ENOMEM, -ENOSPC (nothing to sleep on)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gdrfab_cntr_wait(cntr: *mut gdrfab_cntr, threshold: u64, timeout_ms: c_int) -> c_int {
    let errors = Cell::new(0);
    // SAFETY: the C caller says that the handle stays open; pointers and numbers need no dropping.
    unsafe {
        let begin = || {
            let (wait, now) = object(cntr, "cntr")?.begin_wait(timeout_ms)?;
            errors.set(now);
            Ok(wait)
        };
        let step = |wait: &mut Wait<'_>| match object(cntr, "cntr")?.step(wait, threshold, errors.get())? {
            Step::Over(Some(WaitEnd::Threshold)) => Ok(Step::Over(Some(0))),
            Step::Over(Some(WaitEnd::ErrorsChanged)) => {
                Err(Error::fixed(errno::EAVAIL, "cntr: an operation failed during the wait; gdrfab_cq_readerr() returns its error"))
            }
            Step::Over(None) => Ok(Step::Over(None)),
            Step::Sleep(nap) => Ok(Step::Sleep(nap)),
        };
        let too_late = || Err(object(cntr, "cntr")?.too_late(threshold, timeout_ms));
        waiting(begin, step, too_late) as c_int
    }
}

/// gdrfab_cq_fd() of a counter: readable when the count may have changed. One thread at a time waits, in this
/// order: gdrfab_cntr_read(), gdrfab_cntr_trywait(), poll. Mirrors fi_control with FI_GETWAIT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_fd(cntr: *mut gdrfab_cntr, fd: *mut c_int) -> c_int {
    // SAFETY: the C caller says that the handle is open and fd live.
    control(|| unsafe {
        let out = output(fd, "fd")?;
        out.write(object(cntr, "cntr")?.fd()?);
        Ok(())
    })
}

/// gdrfab_cq_trywait() of a counter. -EAGAIN: the count is not the one that gdrfab_cntr_read() gave last (0
/// before the first), there are failures that neither gdrfab_cntr_readerr() nor an earlier -EAGAIN reported,
/// or something may have come. Mirrors fi_trywait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_trywait(cntr: *mut gdrfab_cntr) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    control(|| unsafe { object(cntr, "cntr")?.trywait() })
}
