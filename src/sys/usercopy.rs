// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies from and to memory of the caller's whose pages may be gone by now: the kernel makes them, so that a page that is
//! not there is an answer instead of a signal. They go through a file in memory that this process has mapped: one call of
//! pread or pwrite, some 220 and 290 ns for a few bytes, where process_vm_writev takes 450 and a pipe's two calls 600.

use super::iov::Iov;
use super::mem::{Mapping, Protection, memfd};
use super::stream::{Moved, outcome};
use crate::error::{Code, Error, Result, errno};
use parking_lot::Mutex;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Bytes of one turn: with their copy they fit into a first-level cache.
const CHUNK: usize = 16 << 10;

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
}

/// Makes such copies, one at a time. Its memory is there from the beginning: made later, it could lie where the caller's was.
pub struct UserCopy(Mutex<Scratch>);

/// An answer of the kernel to a copy of `len` bytes.
fn check(n: isize, len: usize) -> Result<()> {
    if n == len as isize {
        return Ok(());
    }
    Err(Error::coded(errno::EFAULT, Code::Fault, "memory of a region is not there, or may not be used so"))
}

impl UserCopy {
    pub fn new() -> Result<UserCopy> {
        Ok(UserCopy(Mutex::new(Scratch::of(CHUNK)?)))
    }

    /// Calls `turn` for each chunk of `len` bytes: with the scratch memory, the first byte of the chunk and how many.
    #[inline]
    fn each(&self, len: usize, mut turn: impl FnMut(&Scratch, usize, usize) -> Result<()>) -> Result<()> {
        let scratch = self.0.lock();
        let mut done = 0;
        while done < len {
            let n = (len - done).min(CHUNK);
            turn(&scratch, done, n)?;
            done += n;
        }
        Ok(())
    }

    /// Appends the bytes of the piece to `into`, or nothing.
    pub fn read(&self, from: Iov, into: &mut Vec<u8>) -> Result<()> {
        let len = from.len();
        let before = into.len();
        into.reserve(len);
        let read = self.each(len, |scratch, done, n| {
            let from = from.as_ptr().cast::<libc::c_void>().wrapping_byte_add(done);
            // SAFETY: the library may read the piece (`Iov::new`), of which the kernel checks every page.
            check(unsafe { libc::pwrite(scratch.file.as_raw_fd(), from, n, 0) }, n)?;
            // SAFETY: the mapping holds a chunk, of which the kernel has just written `n` bytes, and the lock keeps it ours.
            into.extend_from_slice(unsafe { std::slice::from_raw_parts(scratch.at.as_ptr(), n) });
            Ok(())
        });
        if read.is_err() {
            into.truncate(before);
        }
        read
    }

    /// Writes the bytes to the piece, as many as it has; on failure some of them may be there.
    pub fn write(&self, bytes: &[u8], to: Iov) -> Result<()> {
        self.each(bytes.len().min(to.len()), |scratch, done, n| {
            let to = to.as_ptr().cast::<libc::c_void>().wrapping_byte_add(done);
            // SAFETY: `done + n` bytes are readable and the mapping holds a chunk, which the lock keeps ours; the library may
            // write the piece (`Iov::new`), of which the kernel checks every page.
            let wrote = unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr().add(done), scratch.at.as_ptr(), n);
                libc::pread(scratch.file.as_raw_fd(), to, n, 0)
            };
            check(wrote, n)
        })
    }
}

/// Memory of our own in which the kernel gathers pieces, whose pages may be gone as well.
pub struct Landing(Scratch);

impl Landing {
    pub fn new(len: usize) -> Result<Landing> {
        Scratch::of(len).map(Landing)
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is that long and ours alone; the kernel writes to it in `gather` only, which has `self` alone.
        unsafe { std::slice::from_raw_parts(self.0.at.as_ptr(), self.0.at.len()) }
    }

    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.0.at.as_ptr(), self.0.at.len()) }
    }

    /// Copies what the pieces hold to byte `at` on, which has room for it; fewer bytes where the rest is not there.
    pub fn gather(&mut self, at: usize, pieces: &[Iov]) -> Result<Moved> {
        let room = self.0.at.len().saturating_sub(at);
        if pieces.iter().map(Iov::len).sum::<usize>() > room {
            return Err(Error::fixed(errno::EIO, "more pieces than there is room for"));
        }
        // SAFETY: the library may read the pieces (`Iov::new`), of which the kernel checks every page; they are laid out as it
        // wants them.
        outcome(unsafe { libc::pwritev(self.0.file.as_raw_fd(), pieces.as_ptr().cast(), pieces.len() as _, at as _) }, "copying")
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
    fn pieces_land_as_far_as_they_are_there() {
        let page = mem::page_size();
        let mut landing = Landing::new(3 * page).unwrap();
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
