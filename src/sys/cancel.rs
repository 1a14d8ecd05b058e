// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cancellation of threads (pthread_cancel), which unwinds the stack from inside of a system call: through this library's frames
//! it must not go. So it is held off while a call is inside that may open, close or wait for something; the data path makes its system
//! calls past the C library's cancellation points; and a wait sleeps in its outermost frame.

use libc::{c_int, c_void, nfds_t, pollfd, sigset_t, timespec};

/// What is to be done when the thread ends in its sleep: as large as a C library's own, which fills it in.
#[repr(C)]
pub struct Cleanup([usize; 8]);

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn _pthread_cleanup_push(place: *mut Cleanup, undo: unsafe extern "C" fn(*mut c_void), of: *mut c_void);
    fn _pthread_cleanup_pop(place: *mut Cleanup, run: c_int);
}

impl Cleanup {
    #[allow(clippy::new_without_default)]
    pub fn new() -> Cleanup {
        Cleanup([0; 8])
    }
}

/// Has `undo(of)` called if the thread ends before `take_back`.
///
/// # Safety
/// `place` lies in the caller's frame, and both it and `of` stay until `take_back`, which the same frame calls.
#[inline(always)]
pub unsafe fn push(place: *mut Cleanup, undo: unsafe extern "C" fn(*mut c_void), of: *mut c_void) {
    // SAFETY: the caller's word.
    unsafe { _pthread_cleanup_push(place, undo, of) };
}

/// Undoes `push`.
///
/// # Safety
/// `place` is the one that was pushed last.
#[inline(always)]
pub unsafe fn take_back(place: *mut Cleanup) {
    // SAFETY: the caller's word.
    unsafe { _pthread_cleanup_pop(place, 0) };
}

unsafe extern "C-unwind" {
    fn ppoll(fds: *mut pollfd, n: nfds_t, limit: *const timespec, mask: *const sigset_t) -> c_int;
}

const DISABLE: c_int = 1;

/// A system call that is no cancellation point, as the C library's function of that name is: for calls of the data path, where holding
/// cancellation off would cost some ten nanoseconds.
macro_rules! raw {
    ($number:ident, $($arg:expr),*) => {
        libc::syscall(libc::$number, $($arg),*) as isize
    };
}
pub(super) use raw;

/// What the calling thread's state was before.
#[derive(Clone, Copy)]
pub struct State(c_int);

/// A request to cancel the calling thread waits from now on.
#[inline]
pub fn hold_off() -> State {
    let mut before = 0;
    // SAFETY: `before` is live.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    State(before)
}

/// Undoes `hold_off`. A request that came meanwhile is heard at the thread's next cancellation point.
#[inline]
pub fn restore(before: State) {
    // SAFETY: the state is one that `hold_off` was told; where it is written to may be NULL.
    unsafe { pthread_setcancelstate(before.0, std::ptr::null_mut()) };
}

/// Cancellation held off until this is dropped, inside of a call that is not made for it.
pub struct CancelDisabled(State);

impl CancelDisabled {
    #[cold]
    pub fn off() -> CancelDisabled {
        CancelDisabled(hold_off())
    }
}

impl Drop for CancelDisabled {
    fn drop(&mut self) {
        restore(self.0);
    }
}

/// Descriptors to sleep on, of which one may be -1: none; and for how long.
#[derive(Clone, Copy)]
pub struct Nap {
    pub fds: [i32; 2],
    pub ns: u64,
}

/// How a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    Ready,
    Timeout,
    Interrupted,
}

/// Sleeps shorter than this are kept to as exactly as the kernel can.
const SHORT_NS: u64 = 1_000_000;

/// Sleeps. A thread that is cancelled here, or whose signal handler calls pthread_exit(), unwinds from here: this frame and the
/// caller's have nothing to drop.
#[inline(always)]
pub fn sleep(nap: Nap) -> Woken {
    let mut fds = nap.fds.map(|fd| pollfd { fd, events: libc::POLLIN, revents: 0 });
    let limit = timespec { tv_sec: (nap.ns / 1_000_000_000) as _, tv_nsec: (nap.ns % 1_000_000_000) as _ };
    // SAFETY: prctl changes a number of this thread's; the descriptors and the limit are live.
    let n = unsafe {
        // The kernel may let a sleep last longer, usually by 50 us: too much of a short one.
        let usual = if nap.ns < SHORT_NS { libc::prctl(libc::PR_GET_TIMERSLACK) } else { -1 };
        if usual > 0 {
            libc::prctl(libc::PR_SET_TIMERSLACK, 1000);
        }
        let n = ppoll(fds.as_mut_ptr(), fds.len() as _, &limit, std::ptr::null());
        let e = *libc::__errno_location();
        if usual > 0 {
            libc::prctl(libc::PR_SET_TIMERSLACK, usual);
        }
        if n < 0 { -e } else { n }
    };
    match n {
        0 => Woken::Timeout,
        n if n == -libc::EINTR => Woken::Interrupted,
        _ => Woken::Ready,
    }
}
