// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sockets that a child of fork() must not keep alive: as long as it has them, no peer hears of its parent's death. A child
//! may not use its parent's handles, so it loses them at once. Each becomes /dev/null, which leaves a number that can be
//! closed again without harm, where a closed one might be somebody else's by then.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Descriptors above this stay with children.
const MOST: usize = 65_536;
/// The inode of the socket that was given each descriptor; 0: none. A number that is another file's by now has another.
static SOCKETS: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
static ONCE: Once = Once::new();

/// Children do not inherit this socket.
pub fn keep_from_children(fd: BorrowedFd<'_>) {
    ONCE.call_once(|| {
        // SAFETY: the handler calls nothing that a child of a process with threads may not call.
        let rc = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if rc != 0 {
            crate::log!(Warn, "children will inherit sockets: pthread_atfork is {rc}");
        }
    });
    let number = fd.as_raw_fd() as usize;
    if let (Some(place), Ok(facts)) = (SOCKETS.get(number), rustix::fs::fstat(fd)) {
        place.store(facts.st_ino, Ordering::Relaxed);
        HIGHEST.fetch_max(number, Ordering::Relaxed);
    }
}

fn is_still(fd: i32, inode: u64) -> bool {
    // SAFETY: all zeros are a stat, and fstat writes no more than one.
    unsafe {
        let mut facts: libc::stat = std::mem::zeroed();
        libc::fstat(fd, &mut facts) == 0 && facts.st_ino == inode && facts.st_mode & libc::S_IFMT == libc::S_IFSOCK
    }
}

/// In a child, before fork() returns: only calls that are safe in a signal handler.
extern "C" fn in_child() {
    let mut null = -1;
    for (number, place) in SOCKETS.iter().enumerate().take(HIGHEST.load(Ordering::Relaxed) + 1) {
        let (fd, inode) = (number as i32, place.swap(0, Ordering::Relaxed));
        if inode == 0 || !is_still(fd, inode) {
            continue;
        }
        // SAFETY: the path is a C string; the descriptor is a socket of this library, which nobody uses in a child.
        unsafe {
            if null < 0 {
                null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            }
            if null >= 0 {
                libc::dup3(null, fd, libc::O_CLOEXEC);
            }
        }
    }
    if null >= 0 {
        // SAFETY: it was opened above.
        unsafe { libc::close(null) };
    }
}
