// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps the library's signals from the program, and the program's from the library: a signal that the kernel sends
//! along with a failed system call is taken back, and no thread of the library takes a signal of the program.

use libc::{c_int, sigset_t};
use std::mem::MaybeUninit;

/// Signals that an instruction causes. Blocking them would end the process, although the program may have a handler.
const SYNCHRONOUS: [c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

fn empty_set() -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset writes the whole set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

fn all_asynchronous() -> sigset_t {
    let mut set = empty_set();
    // SAFETY: `set` is live, and the signals exist.
    unsafe {
        libc::sigfillset(&mut set);
        for signal in SYNCHRONOUS {
            libc::sigdelset(&mut set, signal);
        }
    }
    set
}

/// Blocks more signals in the calling thread. Dropping this value restores the thread's former mask.
struct BlockedSignals(sigset_t);

impl BlockedSignals {
    fn block(set: &sigset_t) -> BlockedSignals {
        let mut before = empty_set();
        // SAFETY: both sets are live. pthread_sigmask fails only for an unknown command.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set, &mut before) };
        BlockedSignals(before)
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is live.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// Runs `f`, which starts a thread or process. The new thread or process inherits the mask, and thus takes no signal of
/// the program.
pub fn blocked<R>(f: impl FnOnce() -> R) -> R {
    let _blocked = BlockedSignals::block(&all_asynchronous());
    f()
}

/// The signal that the kernel sends to the calling thread along with this errno.
fn signal_of(errno: Option<c_int>) -> Option<c_int> {
    match errno? {
        libc::EPIPE => Some(libc::SIGPIPE),
        libc::EFBIG => Some(libc::SIGXFSZ),
        _ => None,
    }
}

/// Makes a system call that may cause SIGPIPE or SIGXFSZ, and takes the signal back, so that only the errno remains.
pub fn without_signal(call: impl FnOnce() -> isize) -> std::io::Result<usize> {
    let (mut both, mut pending) = (empty_set(), empty_set());
    // SAFETY: the sets are live, and the signals exist.
    unsafe {
        libc::sigaddset(&mut both, libc::SIGPIPE);
        libc::sigaddset(&mut both, libc::SIGXFSZ);
    }
    let _blocked = BlockedSignals::block(&both);
    // SAFETY: the set is live.
    unsafe { libc::sigpending(&mut pending) };
    let result = usize::try_from(call()).map_err(|_| std::io::Error::last_os_error());
    let error = result.as_ref().err().and_then(std::io::Error::raw_os_error);
    // SAFETY: the set is live.
    if let Some(signal) = signal_of(error).filter(|signal| unsafe { libc::sigismember(&pending, *signal) } == 0) {
        take_pending(signal);
    }
    result
}

/// Takes one pending signal. The kernel delivers a signal of the thread before a signal of the process, so a signal
/// that the program was sent stays pending.
fn take_pending(signal: c_int) {
    let mut one = empty_set();
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the set and the time are live.
    unsafe {
        libc::sigaddset(&mut one, signal);
        while libc::sigtimedwait(&one, std::ptr::null_mut(), &at_once) < 0
            && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
        {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn is_pending(signal: c_int) -> bool {
        let mut pending = empty_set();
        // SAFETY: the set is live.
        unsafe {
            libc::sigpending(&mut pending);
            libc::sigismember(&pending, signal) == 1
        }
    }

    fn write_where_nobody_reads() -> std::io::Result<usize> {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        // SAFETY: the byte is live.
        without_signal(|| unsafe { libc::write(writer.as_raw_fd(), b"x".as_ptr().cast(), 1) })
    }

    #[test]
    fn a_write_into_a_closed_pipe_is_an_errno_and_leaves_no_signal() {
        let mut one = empty_set();
        // SAFETY: the set is live.
        unsafe { libc::sigaddset(&mut one, libc::SIGPIPE) };
        let outer = BlockedSignals::block(&one);
        assert_eq!(write_where_nobody_reads().unwrap_err().raw_os_error(), Some(libc::EPIPE));
        assert!(!is_pending(libc::SIGPIPE));
        // A pending signal of the program stays pending.
        // SAFETY: the thread lives, and the signal is blocked.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
        assert_eq!(write_where_nobody_reads().unwrap_err().raw_os_error(), Some(libc::EPIPE));
        assert!(is_pending(libc::SIGPIPE));
        take_pending(libc::SIGPIPE);
        drop(outer);
    }

    #[test]
    fn a_thread_that_is_started_takes_no_signal() {
        let mask = || BlockedSignals::block(&empty_set()).0;
        let of_thread = blocked(|| std::thread::spawn(mask)).join().unwrap();
        // SAFETY: the set is live.
        let blocks = |signal| unsafe { libc::sigismember(&of_thread, signal) == 1 };
        assert!([libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGPROF, libc::SIGCHLD].into_iter().all(blocks));
        assert!(!SYNCHRONOUS.into_iter().any(blocks));
    }
}
