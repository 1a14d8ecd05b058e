// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shared memory of one stream: a ring of copy descriptions, the number of copies posted, and the number done. The
//! process that uses the stream posts, and the copier completes; only one side writes each word.

use crate::error::{Error, Result, errno};
use crate::sys::mem::{Mapping, Protection, memfd, page_round};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Copies that the ring holds.
pub const ENTRIES: u64 = 1024;

#[repr(C, align(64))]
struct CacheLine(AtomicU64);

#[repr(C)]
struct RingHeader {
    posted: CacheLine,
    done: CacheLine,
    /// The errno of the failure that ended the stream; 0 while it works.
    failed: CacheLine,
    /// 1 while the copier sleeps and has to be woken.
    asleep: CacheLine,
    /// 1 if no further copy may begin.
    closing: CacheLine,
    /// 1 if no copy is in flight and none will begin.
    closed: CacheLine,
}

#[repr(C)]
struct Entry {
    to: AtomicU64,
    from: AtomicU64,
    len: AtomicU64,
    _fill: u64,
}

fn bytes() -> usize {
    page_round(size_of::<RingHeader>() + ENTRIES as usize * size_of::<Entry>()).unwrap_or(usize::MAX)
}

/// One side's mapping of the ring.
pub struct CopyRing(Mapping);

impl CopyRing {
    pub fn new() -> Result<(CopyRing, OwnedFd)> {
        let fd = memfd("gdrfab-copies", bytes())?;
        let page = CopyRing::attach(std::os::fd::AsFd::as_fd(&fd))?;
        Ok((page, fd))
    }

    pub fn attach(fd: BorrowedFd<'_>) -> Result<CopyRing> {
        let (_, size) = crate::sys::mem::file_id(fd)?;
        if size < bytes() as u64 {
            return Err(Error::fixed(errno::EPROTO, "the shared page of a stream is too short"));
        }
        Mapping::new(fd, 0, bytes(), Protection::ReadWrite).map(CopyRing)
    }

    fn head(&self) -> &RingHeader {
        // SAFETY: the mapping is long enough, page-aligned, and holds atomics only.
        unsafe { &*self.0.as_ptr().cast::<RingHeader>() }
    }

    fn entry(&self, number: u64) -> &Entry {
        // SAFETY: the mapping is long enough, page-aligned, and holds atomics only; the index is below `ENTRIES`.
        unsafe { &*self.0.as_ptr().add(size_of::<RingHeader>()).cast::<Entry>().add((number % ENTRIES) as usize) }
    }

    /// Writes copy `number`, which is one more than the last. The caller has checked that there is room.
    pub fn post(&self, number: u64, to: u64, from: u64, len: u64) {
        let entry = self.entry(number);
        entry.to.store(to, Ordering::Relaxed);
        entry.from.store(from, Ordering::Relaxed);
        entry.len.store(len, Ordering::Relaxed);
        // Release: a reader that sees the count also sees the copy.
        self.head().posted.0.store(number, Ordering::Release);
    }

    /// True if the copier has to be woken for the copy that was just posted.
    pub fn must_wake(&self) -> bool {
        // Full fence: either the copier sees the count before it sleeps, or this side sees that it is about to sleep.
        fence(Ordering::SeqCst);
        self.head().asleep.0.load(Ordering::Relaxed) != 0
    }

    pub fn posted(&self) -> u64 {
        self.head().posted.0.load(Ordering::Acquire)
    }

    pub fn copy(&self, number: u64) -> (u64, u64, u64) {
        let entry = self.entry(number);
        (entry.to.load(Ordering::Relaxed), entry.from.load(Ordering::Relaxed), entry.len.load(Ordering::Relaxed))
    }

    pub fn done(&self) -> u64 {
        self.head().done.0.load(Ordering::Acquire)
    }

    pub fn set_done(&self, number: u64) {
        self.head().done.0.store(number, Ordering::Release);
    }

    pub fn failed(&self) -> i32 {
        self.head().failed.0.load(Ordering::Acquire) as i32
    }

    pub fn fail(&self, errno: i32) {
        self.head().failed.0.store(errno as u64, Ordering::Release);
    }

    pub fn set_closing(&self) {
        self.head().closing.0.store(1, Ordering::SeqCst);
    }

    pub fn is_closing(&self) -> bool {
        self.head().closing.0.load(Ordering::Acquire) != 0
    }

    pub fn set_closed(&self) {
        self.head().closed.0.store(1, Ordering::Release);
    }

    pub fn is_closed(&self) -> bool {
        self.head().closed.0.load(Ordering::Acquire) != 0
    }

    pub fn set_asleep(&self, asleep: bool) {
        self.head().asleep.0.store(u64::from(asleep), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_one_side_posts_the_other_finds() {
        let (mine, fd) = CopyRing::new().unwrap();
        let theirs = CopyRing::attach(fd.as_fd()).unwrap();
        for number in 1..=2 * ENTRIES {
            mine.post(number, number, 2 * number, 3 * number);
            assert_eq!((theirs.posted(), theirs.copy(number)), (number, (number, 2 * number, 3 * number)));
            theirs.set_done(number);
            assert_eq!(mine.done(), number);
        }
        assert!(!mine.must_wake());
        theirs.set_asleep(true);
        assert!(mine.must_wake());
        theirs.fail(errno::EIO);
        assert_eq!(mine.failed(), errno::EIO);
        assert!(CopyRing::attach(memfd("short", 4096).unwrap().as_fd()).is_err());
    }
}
