// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies from and to memory of the caller's whose pages may be gone by now: the kernel makes them, so that a page that is
//! not there is an answer instead of a signal. They go through a pipe, which reaches whatever the CPU does and which every
//! sandbox permits; both calls together take some 600 ns.

use crate::error::{Code, Error, Result, errno};
use parking_lot::Mutex;
use rustix::pipe::PipeFlags;
use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes of one turn: two pages, which the kernel keeps with a pipe, so that none is allocated. An empty pipe takes them,
/// unless the user is beyond its limit of pages in pipes: then it may have only one.
const CHUNK: usize = 8192;
const LEAST: usize = 4096;

struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
    /// Bytes that it takes when empty, up to [`CHUNK`].
    chunk: usize,
}

impl Pipe {
    fn new() -> Result<Pipe> {
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (out, into) = rustix::pipe::pipe_with(flags).map_err(|e| Error::os("a pipe for copies of the caller's memory", e))?;
        let chunk = rustix::pipe::fcntl_getpipe_size(&into).unwrap_or(LEAST).clamp(LEAST, CHUNK);
        Ok(Pipe { out, into, chunk })
    }

    /// Moves up to `chunk` bytes; false: some of the memory is not there, and the pipe may hold a rest.
    ///
    /// # Safety
    /// Each side is memory of ours that is as long as `len` says, or memory that the caller of the library gave away.
    unsafe fn carry(&self, from: *const u8, to: *mut u8, len: usize) -> bool {
        let all = |n: isize| n == len as isize;
        // SAFETY: the kernel checks every page of both; what they may be used for is the caller's promise.
        unsafe { all(libc::write(self.into.as_raw_fd(), from.cast(), len)) && all(libc::read(self.out.as_raw_fd(), to.cast(), len)) }
    }
}

/// Makes such copies, one at a time. The pipe is made at need, and empty between them; one that is not is given up.
#[derive(Default)]
pub struct UserCopy(Mutex<Option<Pipe>>);

impl UserCopy {
    pub fn new() -> Result<UserCopy> {
        Ok(UserCopy(Mutex::new(Some(Pipe::new()?))))
    }

    /// # Safety
    /// As for `Pipe::carry`, for all of `len`.
    unsafe fn carry(&self, from: *const u8, to: *mut u8, len: usize) -> Result<()> {
        let mut place = self.0.lock();
        let pipe = match place.take() {
            Some(pipe) => pipe,
            None => Pipe::new()?,
        };
        let mut done = 0;
        while done < len {
            let n = (len - done).min(pipe.chunk);
            // SAFETY: inside both by the caller's promise; wrapping, because nothing says that the memory is one object.
            if !unsafe { pipe.carry(from.wrapping_add(done), to.wrapping_add(done), n) } {
                return Err(Error::coded(errno::EFAULT, Code::Fault, "memory of a region is not there, or may not be used so"));
            }
            done += n;
        }
        *place = Some(pipe);
        Ok(())
    }

    /// Appends `len` bytes at `addr` to `into`, or nothing.
    ///
    /// # Safety
    /// The memory was given away for reading.
    pub unsafe fn read(&self, addr: usize, len: usize, into: &mut Vec<u8>) -> Result<()> {
        into.reserve(len);
        // SAFETY: there is room for `len` bytes behind the end, and they are counted only once they are there.
        unsafe {
            self.carry(addr as *const u8, into.as_mut_ptr().add(into.len()), len)?;
            into.set_len(into.len() + len);
        }
        Ok(())
    }

    /// Writes the bytes to `addr`; on failure some of them may be there.
    ///
    /// # Safety
    /// The memory was given away for writing.
    pub unsafe fn write(&self, bytes: &[u8], addr: usize) -> Result<()> {
        // SAFETY: the slice is readable; the rest is the caller's promise.
        unsafe { self.carry(bytes.as_ptr(), addr as *mut u8, bytes.len()) }
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
            let addr = at as usize;
            let data: Vec<u8> = (0..3 * page).map(|i| (i % 251) as u8).collect();
            copy.write(&data, addr).unwrap();
            rustix::mm::mprotect(at.wrapping_byte_add(2 * page), page, MprotectFlags::empty()).unwrap();
            let mut back = vec![7];
            for (skip, len, there) in
                [(0, 2 * page, true), (1, 8, true), (2 * page - 4, 8, false), (0, 3 * page, false), (2 * page, 1, false)]
            {
                back.truncate(1);
                assert_eq!(copy.read(addr + skip, len, &mut back).is_ok(), there, "{skip} {len}");
                assert_eq!(&back[1..], if there { &data[skip..skip + len] } else { &[] });
                assert_eq!(copy.write(&data[skip..skip + len], addr + skip).is_ok(), there, "{skip} {len}");
            }
            rustix::mm::mprotect(at, page, MprotectFlags::READ).unwrap();
            assert!(copy.write(&[1], addr).is_err_and(|e| e.code == Code::Fault));
            back.truncate(1);
            assert!(copy.read(addr, 1, &mut back).is_ok() && back == [7, data[0]]);
            rustix::mm::munmap(at, 3 * page).unwrap();
        }
    }
}
