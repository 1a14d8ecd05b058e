// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cancellation of threads (pthread_cancel) unwinds the stack from inside a system call, and must not unwind through
//! this library's frames. Therefore cancellation is disabled during calls that may open, close or wait for something;
//! the data path makes system calls that are no cancellation points; and a wait calls [`sleep`] from a frame that has
//! nothing to drop.

use libc::{c_int, c_void, nfds_t, pollfd, sigset_t, timespec};

/// Memory for a cleanup handler, which runs if the thread ends during a sleep. The struct is as large as the C
/// library's own, and the C library fills it in.
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

/// Registers `undo(of)` to be called if the thread ends before `take_back`.
///
/// # Safety
/// `place` lies in the caller's frame. Both `place` and `of` stay valid until `take_back`, which the same frame calls.
#[inline(always)]
pub unsafe fn push(place: *mut Cleanup, undo: unsafe extern "C" fn(*mut c_void), of: *mut c_void) {
    // SAFETY: the caller promises that `place` and `of` stay valid until `take_back`.
    unsafe { _pthread_cleanup_push(place, undo, of) };
}

/// Undoes `push`.
///
/// # Safety
/// `place` is the last one that this thread pushed.
#[inline(always)]
pub unsafe fn take_back(place: *mut Cleanup) {
    // SAFETY: the caller promises that `place` was pushed last.
    unsafe { _pthread_cleanup_pop(place, 0) };
}

unsafe extern "C-unwind" {
    fn ppoll(fds: *mut pollfd, n: nfds_t, limit: *const timespec, mask: *const sigset_t) -> c_int;
}

const DISABLE: c_int = 1;

/// A system call that is no cancellation point, unlike the C library's function of that name. For the data path, where
/// disabling cancellation would cost some ten nanoseconds.
macro_rules! raw {
    ($number:ident, $($arg:expr),*) => {
        libc::syscall(libc::$number, $($arg),*) as isize
    };
}
pub(super) use raw;

/// The calling thread's cancellation state before `hold_off`.
#[derive(Clone, Copy)]
pub struct State(c_int);

/// Disables cancellation: a request to cancel the calling thread stays pending.
#[inline]
pub fn hold_off() -> State {
    let mut before = 0;
    // SAFETY: `before` is live.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    State(before)
}

/// Undoes `hold_off`. A request that came meanwhile takes effect at the thread's next cancellation point.
#[inline]
pub fn restore(before: State) {
    // SAFETY: the state is one that `hold_off` returned; the pointer for the old state may be NULL.
    unsafe { pthread_setcancelstate(before.0, std::ptr::null_mut()) };
}

/// Cancellation is disabled until this value is dropped. For rare work inside calls that do not disable cancellation
/// themselves.
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

/// A sleep: the descriptors to wait for (-1 for none), and the time limit.
#[derive(Clone, Copy)]
pub struct SleepRequest {
    pub fds: [i32; 2],
    pub ns: u64,
}

/// The reason why a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    Ready,
    Timeout,
    Interrupted,
}

/// Shorter sleeps than this may be prolonged by 1 us only (the thread's timer slack).
const SHORT_NS: u64 = 1_000_000;

/// Sleeps until a descriptor is readable or the time is over. If the thread is cancelled here, or a signal handler
/// calls pthread_exit(), the stack unwinds from here; this frame and the caller's have nothing to drop.
#[inline(always)]
pub fn sleep(nap: SleepRequest) -> Woken {
    let mut fds = nap.fds.map(|fd| pollfd { fd, events: libc::POLLIN, revents: 0 });
    let limit = timespec { tv_sec: (nap.ns / 1_000_000_000) as _, tv_nsec: (nap.ns % 1_000_000_000) as _ };
    // SAFETY: prctl changes a setting of this thread; the descriptors and the limit are live.
    let n = unsafe {
        // By default the kernel may prolong a sleep by 50 us, which is too much for a short one.
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
