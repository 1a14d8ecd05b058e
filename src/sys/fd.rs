// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The library's descriptors are never 0, 1 or 2. A program that has closed one of these may still read from it or
//! print to it, and its output must not go into a socket or a memory file of the library.

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, fcntl_getfl, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::time::Duration;

/// The first descriptor that is not a standard one.
const FIRST: i32 = 3;
/// Time limit for the lock: a child of fork() may find it held by a thread that the child does not have.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns a descriptor of the same file that is not a standard one.
#[inline]
pub fn own(made: OwnedFd) -> Result<OwnedFd, Errno> {
    if made.as_raw_fd() >= FIRST { Ok(made) } else { above(made) }
}

#[cold]
fn above(made: OwnedFd) -> Result<OwnedFd, Errno> {
    fcntl_dupfd_cloexec(&made, FIRST)
}

/// Keeps other libraries from getting a standard descriptor, as long as this value lives. A descriptor of another
/// library cannot be moved to another number afterwards, so a placeholder takes each standard number that is free.
/// Reads and writes of a placeholder fail with EBADF, as those of a closed descriptor do.
#[must_use]
pub struct Standard {
    counted: bool,
}

/// The placeholders that all threads share. The last thread closes them.
struct Placeholders {
    process: i32,
    users: usize,
    taken: [bool; FIRST as usize],
}

static PLACEHOLDERS: Mutex<Placeholders> = Mutex::new(Placeholders { process: 0, users: 0, taken: [false; FIRST as usize] });

/// Takes the standard descriptors that are free. If the program has all three open, the call costs three system calls
/// and changes nothing.
pub fn hold_standard() -> Standard {
    let of_program = |number| flags(number).is_some_and(|flags| !flags.contains(OFlags::PATH));
    Standard { counted: !(0..FIRST).all(of_program) && take() }
}

/// The flags of an open descriptor; None: it is closed.
fn flags(number: i32) -> Option<OFlags> {
    // SAFETY: borrowed for this one call, which fails where the number is not open.
    fcntl_getfl(unsafe { BorrowedFd::borrow_raw(number) }).ok()
}

#[cold]
fn take() -> bool {
    let Some(mut all) = PLACEHOLDERS.try_lock_for(PATIENCE) else { return false };
    // A child of fork() has none of the threads that its parent counted.
    let process = rustix::process::getpid().as_raw_nonzero().get();
    if all.process != process {
        *all = Placeholders { process, users: 0, taken: all.taken };
    }
    all.users += 1;
    // The placeholders are descriptors of the root directory, which every process has, whatever else is mounted.
    while let Ok(made) = open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        let Some(taken) = all.taken.get_mut(made.as_raw_fd() as usize) else { break };
        *taken = true;
        let _ = made.into_raw_fd();
    }
    true
}

#[cold]
fn release() {
    let Some(mut all) = PLACEHOLDERS.try_lock_for(PATIENCE) else { return };
    all.users = all.users.saturating_sub(1);
    if all.users > 0 {
        return;
    }
    for (number, taken) in (0..).zip(&mut all.taken) {
        // By now the program may have put a file of its own there.
        if std::mem::take(taken) && flags(number).is_some_and(|flags| flags.contains(OFlags::PATH)) {
            // SAFETY: `take` opened it and left it to the number.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
}

impl Drop for Standard {
    #[inline]
    fn drop(&mut self) {
        if self.counted {
            // SAFETY: a word of this thread's. The caller wants to know what the other library left there.
            let errno = unsafe { *libc::__errno_location() };
            release();
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = errno };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test runs in a process of its own, because other tests of this process print.
    fn in_child(run: fn() -> bool) {
        // SAFETY: the child uses system calls and a lock that no thread of this test program holds for long, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let well = run();
            // SAFETY: ends the child without handlers of its parent's.
            unsafe { libc::_exit(i32::from(!well)) };
        }
        let mut status = -1;
        // SAFETY: the child above, and room for its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    fn close(numbers: &[i32]) {
        // SAFETY: the numbers are nobody's but this child's.
        numbers.iter().for_each(|number| unsafe { _ = libc::close(*number) });
    }

    fn errno_of_a_write(number: i32) -> i32 {
        // SAFETY: one byte that lives; the word is this thread's.
        unsafe { if libc::write(number, c"x".as_ptr().cast(), 1) < 0 { *libc::__errno_location() } else { 0 } }
    }

    fn another() -> i32 {
        // SAFETY: a path that ends with NUL.
        unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) }
    }

    #[test]
    fn free_numbers_are_held_until_the_last_holder_ends() {
        in_child(|| {
            close(&[0, 2]);
            let first = hold_standard();
            let second = hold_standard();
            drop(first);
            let held = another() >= FIRST && errno_of_a_write(0) == libc::EBADF && flags(1).is_some_and(|f| !f.contains(OFlags::PATH));
            drop(second);
            held && flags(0).is_none() && flags(1).is_some() && flags(2).is_none() && another() == 0
        });
    }

    #[test]
    fn a_file_that_the_program_puts_there_meanwhile_stays() {
        in_child(|| {
            close(&[1]);
            let held = hold_standard();
            // SAFETY: both numbers are open.
            let moved = unsafe { libc::dup2(another(), 1) };
            drop(held);
            moved == 1 && errno_of_a_write(1) == 0
        });
    }

    #[test]
    fn where_all_are_open_nothing_is_taken() {
        in_child(|| {
            let null = another();
            // SAFETY: open numbers.
            let open = (0..FIRST).all(|number| unsafe { libc::dup2(null, number) } == number);
            open && !hold_standard().counted && (0..FIRST).all(|number| flags(number).is_some_and(|f| !f.contains(OFlags::PATH)))
        });
    }
}
