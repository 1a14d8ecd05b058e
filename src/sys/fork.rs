// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes the library's sockets away from children of fork(). As long as a child had them, no peer would learn of the
//! parent's death; and a child may not use its parent's handles anyway. In the child, each socket's descriptor becomes
//! /dev/null: if the descriptor were closed, its number could belong to another file by the time the program closes it.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Descriptors per table, and number of tables: enough for every descriptor that the kernel can give.
const TABLE_LEN: usize = 1 << 16;
const TABLES: usize = 1 << 15;
/// For each descriptor, the inode of the library's socket; 0 for none. If the number belongs to another file by now,
/// that file's inode differs.
type InodeTable = [AtomicU64; TABLE_LEN];
/// The tables. A table is allocated for its first descriptor and never freed, so that a child reads the tables without
/// a lock. NULL: not allocated.
static SOCKETS: [AtomicPtr<InodeTable>; TABLES] = [const { AtomicPtr::new(null_mut()) }; TABLES];
/// The highest descriptor that was registered.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
static ONCE: Once = Once::new();

/// Registers a socket that children must not inherit.
pub fn keep_from_children(fd: BorrowedFd<'_>) {
    ONCE.call_once(|| {
        // SAFETY: the handler makes only calls that are allowed in the child of a process with threads.
        let rc = unsafe { libc::pthread_atfork(None, None, Some(drop_sockets_in_child)) };
        if rc != 0 {
            crate::log!(Warn, "forked children will inherit sockets: pthread_atfork returned {rc}");
        }
    });
    let number = fd.as_raw_fd() as usize;
    let Some(table) = SOCKETS.get(number / TABLE_LEN).and_then(table_for) else {
        return crate::log!(Warn, "forked children will inherit a socket: no memory to record descriptor {number}");
    };
    if let (Some(slot), Ok(facts)) = (table.get(number % TABLE_LEN), rustix::fs::fstat(fd)) {
        slot.store(facts.st_ino, Ordering::Relaxed);
        HIGHEST.fetch_max(number, Ordering::Relaxed);
    }
}

fn existing_table(slot: &AtomicPtr<InodeTable>) -> Option<&'static InodeTable> {
    // SAFETY: the pointer was stored by `table_for`, and the table is never freed.
    unsafe { slot.load(Ordering::Acquire).as_ref() }
}

/// The table, allocated if it does not exist. Only pages of the table that are used take memory.
fn table_for(slot: &AtomicPtr<InodeTable>) -> Option<&'static InodeTable> {
    if let Some(table) = existing_table(slot) {
        return Some(table);
    }
    let (rights, how) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping that is never unmapped; zeroed bytes are valid numbers. The mapping of a thread that was
    // too late is not used.
    let fresh = unsafe { mmap_anonymous(null_mut(), size_of::<InodeTable>(), rights, how) }.ok()?;
    let _ = slot.compare_exchange(null_mut(), fresh.cast(), Ordering::AcqRel, Ordering::Acquire);
    existing_table(slot)
}

fn is_same_socket(fd: i32, inode: u64) -> bool {
    // SAFETY: zeros are a valid stat, and fstat writes no more than one.
    unsafe {
        let mut facts: libc::stat = std::mem::zeroed();
        libc::fstat(fd, &mut facts) == 0 && facts.st_ino == inode && facts.st_mode & libc::S_IFMT == libc::S_IFSOCK
    }
}

/// Runs in the child before fork() returns. Makes only calls that are safe in a signal handler.
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
        // SAFETY: the path is a C string; the descriptor is a socket of this library, which no code uses in a child.
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
