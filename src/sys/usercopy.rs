// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies from and to a caller's memory whose pages may be unmapped by now. The kernel makes these copies, so that a
//! missing page is an error instead of a signal. The copies go through a mapped memory file by one pread or pwrite,
//! which costs less than process_vm_writev or a pipe. Before each pwrite, the limit on file sizes is checked.

use super::cancel::raw;
use super::iov::Iov;
use super::mem::{Mapping, Protection, memfd, page_size};
use super::process;
use super::space;
use super::stream::{Moved, outcome};
use crate::error::{Code, Error, Result, errno};
use parking_lot::Mutex;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Bytes of one step. These bytes and their copy fit together into a first-level cache.
const CHUNK: usize = 16 << 10;

/// A memory file and its mapping, through which bytes are copied.
struct Scratch {
    file: OwnedFd,
    at: Mapping,
}

impl Scratch {
    fn of(len: usize) -> Result<Scratch> {
        let file = memfd("gdrfab-copy", len).map_err(|e| e.context("memory for copies of the caller's memory"))?;
        let at = Mapping::new(file.as_fd(), 0, len, Protection::ReadWrite)?;
        Ok(Scratch { file, at })
    }

    /// Has the kernel copy the pieces to byte `skip` of the file, and thereby check their pages. Returns bytes, or -1
    /// with errno set.
    #[inline]
    fn copy_in(&self, skip: usize, pieces: &[Iov]) -> isize {
        let file = self.file.as_raw_fd();
        if process::limits_files() {
            return self.copy_in_by_attach(skip, pieces);
        }
        // SAFETY: the library may read the pieces (`Iov::new`), which have the layout of `iovec`.
        unsafe {
            match pieces {
                [one] => raw!(SYS_pwrite64, file, one.as_ptr(), one.len(), skip),
                _ => raw!(SYS_pwritev, file, pieces.as_ptr(), pieces.len(), skip, 0usize),
            }
        }
    }

    /// Like `copy_in`, by process_vm_readv, which writes to no file: under a limit on file sizes, a write beyond the
    /// limit makes the kernel send SIGXFSZ.
    #[cold]
    fn copy_in_by_attach(&self, skip: usize, pieces: &[Iov]) -> isize {
        let here = libc::iovec { iov_base: self.at.as_ptr().wrapping_add(skip).cast(), iov_len: self.at.len().saturating_sub(skip) };
        // SAFETY: `here` lies in the mapping, and the caller holds it exclusively; the kernel checks the pieces.
        unsafe { libc::process_vm_readv(process::pid(), &here, 1, pieces.as_ptr().cast(), pieces.len() as _, 0) }
    }
}

/// Largest number of pages that are checked to find a missing one, which takes about a millisecond.
const MAX_PROBED_PAGES: usize = 1 << 13;

/// Copies from and to a caller's memory, one copy at a time. The library's memory for these copies is mapped from the
/// beginning, because a later mapping could get the address of the caller's missing memory.
pub struct UserCopy(Mutex<Scratch>);

/// Checks the kernel's result of a copy of `len` bytes.
fn check(n: isize, len: usize) -> Result<()> {
    if n == len as isize {
        return Ok(());
    }
    Err(missing_page())
}

fn missing_page() -> Error {
    Error::coded(errno::EFAULT, Code::Fault, "memory of a region is not mapped, or not with the access that the operation needs")
}

impl UserCopy {
    pub fn new() -> Result<UserCopy> {
        Ok(UserCopy(Mutex::new(Scratch::of(CHUNK)?)))
    }

    /// Calls `each_chunk` for each chunk of `len` bytes, with the scratch memory, the chunk's position and its length.
    #[inline]
    fn each(&self, len: usize, mut each_chunk: impl FnMut(&Scratch, usize, usize) -> Result<()>) -> Result<()> {
        let scratch = self.0.lock();
        let mut done = 0;
        while done < len {
            let n = (len - done).min(CHUNK);
            each_chunk(&scratch, done, n)?;
            done += n;
        }
        Ok(())
    }

    /// Appends the bytes of the piece to `into`. On failure `into` is unchanged.
    pub fn read(&self, from: Iov, into: &mut Vec<u8>) -> Result<()> {
        let len = from.len();
        let before = into.len();
        into.reserve(len);
        let read = self.each(len, |scratch, done, n| {
            check(scratch.copy_in(0, &[from.part(done, n)]), n)?;
            // SAFETY: the kernel has just written `n` bytes of the mapping, and the lock keeps others from it.
            into.extend_from_slice(unsafe { std::slice::from_raw_parts(scratch.at.as_ptr(), n) });
            Ok(())
        });
        if read.is_err() {
            into.truncate(before);
        }
        read
    }

    /// Writes the bytes to the piece, as many as it holds. On failure some of them may have been written.
    pub fn write(&self, bytes: &[u8], to: Iov) -> Result<()> {
        self.each(bytes.len().min(to.len()), |scratch, done, n| {
            let to = to.as_ptr().cast::<libc::c_void>().wrapping_byte_add(done);
            // SAFETY: `done + n` bytes are readable, and the mapping holds a chunk, which the lock protects. The
            // library may write the piece (`Iov::new`), and the kernel checks each of its pages.
            let wrote = unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr().add(done), scratch.at.as_ptr(), n);
                raw!(SYS_pread64, scratch.file.as_raw_fd(), to, n, 0usize)
            };
            check(wrote, n)
        })
    }

    /// The first of the pieces that has a page which is missing or not readable. The kernel is asked for one byte of
    /// each page, of a bounded number of pages, because a peer can cause this check.
    #[cold]
    pub fn unreadable(&self, pieces: &[Iov]) -> Option<usize> {
        const PAGES_PER_CALL: usize = 64;
        let (page, scratch, mut left) = (page_size(), self.0.lock(), MAX_PROBED_PAGES);
        let mut is_there = |piece: &Iov| {
            let lead = piece.addr() % page;
            let pages = (lead + piece.len()).div_ceil(page).min(left);
            left -= pages;
            (0..pages).step_by(PAGES_PER_CALL).all(|from| {
                let n = PAGES_PER_CALL.min(pages - from);
                let bytes: [Iov; PAGES_PER_CALL] = std::array::from_fn(|k| piece.part(((from + k) * page).saturating_sub(lead), 1));
                scratch.copy_in(0, &bytes[..n]) == n as isize
            })
        };
        pieces.iter().position(|piece| !piece.is_empty() && !is_there(piece))
    }

    /// Copies as many bytes as both pieces hold; the pieces may overlap. On failure some bytes may have been written.
    pub fn copy(&self, from: Iov, to: Iov) -> Result<()> {
        let len = from.len().min(to.len());
        let (from, to) = (from.part(0, len), to.part(0, len));
        if from.addr().abs_diff(to.addr()) >= len {
            // A failure of this call proves nothing: a sandbox may forbid the call, and the kernel refuses device-like
            // memory with EFAULT. The copy by the file then decides.
            if space::copy_own(from, to).is_ok() {
                return Ok(());
            }
        }
        let last_first = to.addr() > from.addr();
        self.each(len, |scratch, done, n| {
            let at = if last_first { len - done - n } else { done };
            let (from, to, file) = (from.part(at, n), to.part(at, n), scratch.file.as_raw_fd());
            check(scratch.copy_in(0, &[from]), n)?;
            // SAFETY: the library may write the piece (`Iov::new`), and the kernel checks each of its pages.
            check(unsafe { raw!(SYS_pread64, file, to.as_ptr(), n, 0usize) }, n)
        })
    }
}

/// Memory of the library into which the kernel gathers pieces whose pages may be missing.
pub struct GatherBuffer(Scratch);

impl GatherBuffer {
    pub fn new(len: usize) -> Result<GatherBuffer> {
        Scratch::of(len).map(GatherBuffer)
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has that length and belongs to this value; the kernel writes it only in `gather`, which
        // borrows `self` mutably.
        unsafe { std::slice::from_raw_parts(self.0.at.as_ptr(), self.0.at.len()) }
    }

    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has that length, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.0.at.as_ptr(), self.0.at.len()) }
    }

    /// Copies the pieces to byte `at` on. Fails if there is no room; copies fewer bytes if a page is missing.
    pub fn gather(&mut self, at: usize, pieces: &[Iov]) -> Result<Moved> {
        let room = self.0.at.len().saturating_sub(at);
        if pieces.iter().map(Iov::len).sum::<usize>() > room {
            return Err(Error::fixed(errno::EIO, "internal error: more pieces than the buffer has room for"));
        }
        outcome(self.0.copy_in(at, pieces), "copying")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mem;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

    #[test]
    fn pages_that_are_not_there_are_an_error() {
        let (copy, page) = (UserCopy::new().unwrap(), mem::page_size());
        // SAFETY: a fresh mapping, which only this test uses.
        unsafe {
            let at = rustix::mm::mmap_anonymous(std::ptr::null_mut(), 3 * page, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            let at = at.unwrap();
            let of = |skip: usize, len: usize| Iov::new(at as usize + skip, len);
            let data: Vec<u8> = (0..3 * page).map(|i| (i % 251) as u8).collect();
            copy.write(&data, of(0, data.len())).unwrap();
            rustix::mm::mprotect(at.wrapping_byte_add(2 * page), page, MprotectFlags::empty()).unwrap();
            let mut back = vec![7];
            for (skip, len, there) in
                [(0, 2 * page, true), (1, 8, true), (2 * page - 4, 8, false), (0, 3 * page, false), (2 * page, 1, false)]
            {
                back.truncate(1);
                assert_eq!(copy.read(of(skip, len), &mut back).is_ok(), there, "{skip} {len}");
                assert_eq!(&back[1..], if there { &data[skip..skip + len] } else { &[] });
                assert_eq!(copy.write(&data[skip..skip + len], of(skip, len)).is_ok(), there, "{skip} {len}");
            }
            rustix::mm::mprotect(at, page, MprotectFlags::READ).unwrap();
            assert!(copy.write(&[1], of(0, 1)).is_err_and(|e| e.code == Code::Fault));
            back.truncate(1);
            assert!(copy.read(of(0, 1), &mut back).is_ok() && back == [7, data[0]]);
            rustix::mm::munmap(at, 3 * page).unwrap();
        }
    }

    #[test]
    fn pieces_that_overlap_are_copied_as_they_were() {
        let copy = UserCopy::new().unwrap();
        let data: Vec<u8> = (0..100_000).map(|i| (i % 251) as u8).collect();
        for (from, to, len) in [(0, 50_000, 50_000), (0, 1, 99_999), (1, 0, 99_999), (7, 20_000, 70_000), (20_000, 7, 70_000), (5, 5, 9)] {
            let mut memory = data.clone();
            let at = memory.as_mut_ptr() as usize;
            // SAFETY: both lie in the vector.
            unsafe { copy.copy(Iov::new(at + from, len), Iov::new(at + to, len)).unwrap() };
            let mut expected = data.clone();
            expected.copy_within(from..from + len, to);
            assert!(memory == expected, "{len} bytes from {from} to {to}");
        }
    }

    #[test]
    fn a_page_that_is_not_there_is_found_among_many() {
        let (copy, page, pages) = (UserCopy::new().unwrap(), mem::page_size(), 130);
        // SAFETY: a fresh mapping, which only this test uses.
        unsafe {
            let flags = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            let at = rustix::mm::mmap_anonymous(std::ptr::null_mut(), pages * page, flags.0, flags.1).unwrap();
            let of = |skip: usize, len: usize| Iov::new(at as usize + skip, len);
            assert_eq!(copy.unreadable(&[of(5, pages * page - 9), of(0, 0), of(page - 1, 2)]), None);
            rustix::mm::mprotect(at.wrapping_byte_add((pages - 1) * page), page, MprotectFlags::empty()).unwrap();
            let good = of(3, (pages - 1) * page - 3);
            assert_eq!(copy.unreadable(&[good, of(7, (pages - 1) * page - 7)]), None);
            assert_eq!(copy.unreadable(&[good, of(7, (pages - 1) * page - 6)]), Some(1));
            rustix::mm::munmap(at, pages * page).unwrap();
        }
    }

    #[test]
    fn so_many_pages_are_looked_at_and_no_more() {
        let (copy, page, len) = (UserCopy::new().unwrap(), mem::page_size(), (MAX_PROBED_PAGES + 1) * mem::page_size());
        // SAFETY: a fresh mapping, which only this test uses.
        unsafe {
            let at = rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE).unwrap();
            let all = Iov::new(at as usize, len);
            rustix::mm::mprotect(at.wrapping_byte_add(len - page), page, MprotectFlags::empty()).unwrap();
            assert_eq!(copy.unreadable(&[all, all.part(len - page, page)]), None);
            assert_eq!(copy.unreadable(&[all.part(page, len - page)]), Some(0));
            rustix::mm::munmap(at, len).unwrap();
        }
    }

    #[test]
    fn memory_that_no_other_call_takes_is_copied() {
        // The kernel's own clock page: process_vm_readv refuses it, as it refuses memory of devices.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let Some(line) = maps.lines().find(|line| line.ends_with("[vvar]")) else { return };
        let from = usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        let mut to = [0u8; 64];
        // SAFETY: the mapping stays, and the array lives for the call.
        unsafe { UserCopy::new().unwrap().copy(Iov::new(from, 64), Iov::of_mut(&mut to)).unwrap() };
    }

    #[test]
    fn pieces_land_as_far_as_they_are_there() {
        let page = mem::page_size();
        let mut landing = GatherBuffer::new(3 * page).unwrap();
        // SAFETY: a fresh mapping, which only this test uses.
        unsafe {
            let at = rustix::mm::mmap_anonymous(std::ptr::null_mut(), 2 * page, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            let at = at.unwrap();
            std::slice::from_raw_parts_mut(at.cast::<u8>(), 2 * page).fill(9);
            rustix::mm::mprotect(at.wrapping_byte_add(page), page, MprotectFlags::empty()).unwrap();
            let of = |skip: usize, len: usize| Iov::new(at as usize + skip, len);
            assert_eq!(landing.gather(2, &[of(0, 10), Iov::EMPTY, of(page - 3, 3)]).unwrap(), Moved::Bytes(13));
            assert_eq!((landing.bytes()[1], &landing.bytes()[2..15], landing.bytes()[15]), (0, &[9; 13][..], 0));
            assert_eq!(landing.gather(0, &[of(0, 10), of(page, 3)]).unwrap(), Moved::Bytes(10));
            assert_eq!(landing.gather(0, &[of(page, 3)]).unwrap(), Moved::Fault);
            assert!(landing.gather(2 * page, &[of(0, page + 1)]).is_err());
            landing.bytes_mut()[3 * page - 1] = 1;
            assert_eq!(landing.bytes()[3 * page - 1], 1);
            rustix::mm::munmap(at, 2 * page).unwrap();
        }
    }
}
