// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters.

use super::boundary::{control, hold, object, output};
use super::objects::gdrfab_cntr;
use crate::error::{Error, errno};
use crate::fabric::Reached;
use libc::c_int;

/// The count of successes; drives the endpoints bound to the counter. 0 for NULL. Mirrors fi_cntr_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_read(cntr: *mut gdrfab_cntr) -> u64 {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| 0, || unsafe { object(cntr, "cntr") }.map_or(0, |c| c.read()))
}

/// The count of failures; drives the endpoints bound to the counter. 0 for NULL. Mirrors fi_cntr_readerr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_readerr(cntr: *mut gdrfab_cntr) -> u64 {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| 0, || unsafe { object(cntr, "cntr") }.map_or(0, |c| c.read_error()))
}

/// Adds to the count of successes. Mirrors fi_cntr_add.
///
/// @return 0, -EINVAL for NULL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_add(cntr: *mut gdrfab_cntr, value: u64) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    control(|| unsafe { object(cntr, "cntr").map(|c| c.counter.add(value)) })
}

/// Sets the count of successes. Mirrors fi_cntr_set.
///
/// @return 0, -EINVAL for NULL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_set(cntr: *mut gdrfab_cntr, value: u64) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    control(|| unsafe { object(cntr, "cntr").map(|c| c.counter.set(value)) })
}

/// Adds to the count of failures. Mirrors fi_cntr_adderr.
///
/// @return 0, -EINVAL for NULL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_adderr(cntr: *mut gdrfab_cntr, value: u64) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    control(|| unsafe { object(cntr, "cntr").map(|c| c.counter.add_error(value)) })
}

/// Sets the count of failures. Mirrors fi_cntr_seterr.
///
/// @return 0, -EINVAL for NULL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_seterr(cntr: *mut gdrfab_cntr, value: u64) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    control(|| unsafe { object(cntr, "cntr").map(|c| c.counter.set_error(value)) })
}

/// Waits until the count of successes is at least `threshold`. Mirrors fi_cntr_wait.
///
/// @param cntr       counter
/// @param threshold  count to wait for
/// @param timeout_ms milliseconds, -1 = no limit
/// @return 0, or -ETIMEDOUT; -GDRFAB_EAVAIL the count of failures changed meanwhile; -EINTR by a
///   signal; -EINVAL; -EPERM in a process that did not open it; -EMFILE, -ENFILE, -ENOMEM or -ENOSPC nothing to sleep on
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_wait(cntr: *mut gdrfab_cntr, threshold: u64, timeout_ms: c_int) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    control(|| unsafe {
        match object(cntr, "cntr")?.wait(threshold, timeout_ms)? {
            Reached::Threshold => Ok(()),
            Reached::ErrorsChanged => {
                Err(Error::fixed(errno::EAVAIL, "cntr: an operation failed while waiting; its words are in the completion queue"))
            }
        }
    })
}

/// Gives the descriptor of a counter opened with GDRFAB_WAIT_FD: readable when the count may have changed. Wait in this
/// order, and no wake-up is lost: gdrfab_cntr_read(), gdrfab_cntr_trywait(), and poll if that returned 0. One thread at a
/// time does so.
///
/// @param cntr counter
/// @param fd   gets the descriptor, which the counter owns: it is closed with the counter
/// @return 0, -EINVAL, -ENOSYS (opened without GDRFAB_WAIT_FD), -EPERM in a process that did not open the counter
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_fd(cntr: *mut gdrfab_cntr, fd: *mut c_int) -> c_int {
    // SAFETY: the C caller says that the handle is open and fd live.
    control(|| unsafe {
        let out = output(fd, "fd")?;
        out.write(object(cntr, "cntr")?.fd()?);
        Ok(())
    })
}

/// Prepares for blocking on the descriptor; before each poll. It opens no descriptor. Mirrors fi_trywait.
///
/// @return 0 the caller may poll now; -EAGAIN the count is another than gdrfab_cntr_read() gave last (0 before the first),
///   or failures came of which neither gdrfab_cntr_readerr() nor an earlier -EAGAIN told, or something may have come: read;
///   else as gdrfab_cq_trywait()
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_trywait(cntr: *mut gdrfab_cntr) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    control(|| unsafe { object(cntr, "cntr")?.trywait() })
}
