// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sockets that a child of fork() must not keep alive: as long as it has them, no peer hears of its parent's death. A child
//! may not use its parent's handles, so it loses them at once. Each becomes /dev/null, which leaves a number that can be
//! closed again without harm, where a closed one might be somebody else's by then.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Descriptors of one shelf, and shelves: for every descriptor that the kernel gives.
const TABLE_LEN: usize = 1 << 16;
const TABLES: usize = 1 << 15;
/// The inode of the socket that was given each descriptor; 0: none. A number that is another file's by now has another.
type InodeTable = [AtomicU64; TABLE_LEN];
/// Made when their first descriptor comes, and kept: a child reads them without a lock. NULL: not made.
static SOCKETS: [AtomicPtr<InodeTable>; TABLES] = [const { AtomicPtr::new(null_mut()) }; TABLES];
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
static ONCE: Once = Once::new();

/// Children do not inherit this socket.
pub fn keep_from_children(fd: BorrowedFd<'_>) {
    ONCE.call_once(|| {
        // SAFETY: the handler calls nothing that a child of a process with threads may not call.
        let rc = unsafe { libc::pthread_atfork(None, None, Some(drop_sockets_in_child)) };
        if rc != 0 {
            crate::log!(Warn, "children will inherit sockets: pthread_atfork is {rc}");
        }
    });
    let number = fd.as_raw_fd() as usize;
    let Some(table) = SOCKETS.get(number / TABLE_LEN).and_then(table_for) else {
        return crate::log!(Warn, "children will inherit a socket: no memory to note descriptor {number}");
    };
    if let (Some(slot), Ok(facts)) = (table.get(number % TABLE_LEN), rustix::fs::fstat(fd)) {
        slot.store(facts.st_ino, Ordering::Relaxed);
        HIGHEST.fetch_max(number, Ordering::Relaxed);
    }
}

fn existing_table(slot: &AtomicPtr<InodeTable>) -> Option<&'static InodeTable> {
    // SAFETY: `table_for` put it there, and it is never undone.
    unsafe { slot.load(Ordering::Acquire).as_ref() }
}

/// The shelf's memory, of which only pages that are used are there.
fn table_for(slot: &AtomicPtr<InodeTable>) -> Option<&'static InodeTable> {
    if let Some(table) = existing_table(slot) {
        return Some(table);
    }
    let (rights, how) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a fresh mapping that is never undone; zeros are numbers. One more of a thread that was later is never used.
    let fresh = unsafe { mmap_anonymous(null_mut(), size_of::<InodeTable>(), rights, how) }.ok()?;
    let _ = slot.compare_exchange(null_mut(), fresh.cast(), Ordering::AcqRel, Ordering::Acquire);
    existing_table(slot)
}

fn is_same_socket(fd: i32, inode: u64) -> bool {
    // SAFETY: all zeros are a stat, and fstat writes no more than one.
    unsafe {
        let mut facts: libc::stat = std::mem::zeroed();
        libc::fstat(fd, &mut facts) == 0 && facts.st_ino == inode && facts.st_mode & libc::S_IFMT == libc::S_IFSOCK
    }
}

/// In a child, before fork() returns: only calls that are safe in a signal handler.
extern "C" fn drop_sockets_in_child() {
    let mut null = -1;
    for number in 0..=HIGHEST.load(Ordering::Relaxed) {
        let table = SOCKETS.get(number / TABLE_LEN).and_then(existing_table);
        let Some(slot) = table.and_then(|table| table.get(number % TABLE_LEN)) else { continue };
        let (fd, inode) = (number as i32, slot.load(Ordering::Relaxed));
        if inode == 0 {
            continue;
        }
        slot.store(0, Ordering::Relaxed);
        if !is_same_socket(fd, inode) {
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
