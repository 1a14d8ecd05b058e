// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that the RDMA device does not reach, as this process reaches it: by a vendor's copies, or by the CPU
//! through a mapping of the caller's file.

use crate::error::{Error, Result, errno};
use crate::hmem::Site;
use crate::mr::file::MappedFile;
use crate::prov::op::{Iov, parts};
use std::os::fd::BorrowedFd;

enum Bytes {
    /// Ranges of this process's address space, in order.
    Memory {
        site: Site,
        ranges: Box<[Iov]>,
    },
    File(MappedFile),
}

pub struct Backing {
    bytes: Bytes,
    /// What operations call the first byte.
    base: u64,
}

impl Backing {
    pub fn memory(site: Site, ranges: &[Iov], base: u64) -> Backing {
        Backing { bytes: Bytes::Memory { site, ranges: ranges.into() }, base }
    }

    /// Maps `[offset, offset+len)` of a file.
    pub fn file(fd: BorrowedFd<'_>, offset: u64, len: usize, writable: bool, base: u64) -> Result<Backing> {
        Ok(Backing { bytes: Bytes::File(MappedFile::new(fd, offset, len, writable)?), base })
    }

    /// Where the CPU finds the first byte, of a file.
    pub fn address(&self) -> usize {
        match &self.bytes {
            Bytes::File(file) => file.address(),
            Bytes::Memory { ranges, .. } => ranges.first().map_or(0, |r| r.addr),
        }
    }

    /// Copies out of the bytes that operations call `addr`.
    pub fn load(&self, addr: u64, into: &mut [u8]) -> Result<()> {
        let mut done = 0;
        self.parts(addr, into.len(), false, |site, at, n| {
            // SAFETY: `into` holds the run; what lies at `at` was registered by the C caller, who keeps it mapped.
            unsafe { site.load(into[done..done + n].as_mut_ptr(), at as u64, n)? };
            done += n;
            Ok(())
        })
    }

    /// Copies into the bytes that operations call `addr`.
    pub fn store(&self, addr: u64, from: &[u8]) -> Result<()> {
        let mut done = 0;
        self.parts(addr, from.len(), true, |site, at, n| {
            // SAFETY: `parts` gives pieces that lie in the region, whose owner keeps them; `from` has as many bytes.
            unsafe { site.store(at as u64, from[done..done + n].as_ptr(), n)? };
            done += n;
            Ok(())
        })
    }

    /// Walks the run of `len` bytes at `addr` in pieces that lie together here.
    fn parts(&self, addr: u64, len: usize, write: bool, mut each: impl FnMut(Site, usize, usize) -> Result<()>) -> Result<()> {
        let outside = || Error::fixed(errno::EFAULT, "the range leaves the region");
        let skip = usize::try_from(addr.checked_sub(self.base).ok_or_else(outside)?).map_err(|_| outside())?;
        match &self.bytes {
            Bytes::File(file) => {
                if !file.holds(skip, len) {
                    return Err(outside());
                }
                file.begin_cpu(write)?;
                let copied = each(Site::HOST, file.address() + skip, len);
                copied.and(file.end_cpu(write))
            }
            Bytes::Memory { site, ranges } => {
                let mut left = len;
                for (at, n) in parts(ranges, skip, len) {
                    each(*site, at, n)?;
                    left -= n;
                }
                if left > 0 { Err(outside()) } else { Ok(()) }
            }
        }
    }
}
