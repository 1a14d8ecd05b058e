// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies between this process and memory that the RDMA device does not reach: by the copy functions of the
//! accelerator's vendor, or by the CPU through a mapping of the caller's file.

use crate::error::{Error, Result, errno};
use crate::hmem::Site;
use crate::mr::file::MappedFile;
use crate::mr::piece::{load, store};
use crate::prov::op::{Iov, parts};
use std::os::fd::BorrowedFd;

enum Bytes {
    /// Ranges of this process, in order.
    Memory {
        site: Site,
        ranges: Box<[Iov]>,
    },
    File(MappedFile),
}

pub struct Backing {
    bytes: Bytes,
    /// The address by which operations name the first byte.
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

    /// The CPU's address of the first byte; used for a file only.
    pub fn address(&self) -> usize {
        match &self.bytes {
            Bytes::File(file) => file.address(),
            Bytes::Memory { ranges, .. } => ranges.first().map_or(0, |r| r.addr()),
        }
    }

    /// Copies the bytes from address `addr` on, as operations name it, into `into`.
    pub fn load(&self, addr: u64, into: &mut [u8]) -> Result<()> {
        let mut done = 0;
        self.parts(addr, into.len(), false, |site, part| {
            let end = done + part.len();
            load(site, &[part], 0, &mut into[done..end])?;
            done = end;
            Ok(())
        })
    }

    /// Copies `from` to the bytes from address `addr` on, as operations name it.
    pub fn store(&self, addr: u64, from: &[u8]) -> Result<()> {
        let mut done = 0;
        self.parts(addr, from.len(), true, |site, part| {
            let end = done + part.len();
            store(site, &[part], 0, &from[done..end])?;
            done = end;
            Ok(())
        })
    }

    /// Calls `each` for every contiguous part of the `len` bytes from `addr` on.
    fn parts(&self, addr: u64, len: usize, write: bool, mut each: impl FnMut(Site, Iov) -> Result<()>) -> Result<()> {
        let outside = || Error::fixed(errno::EFAULT, "the range lies outside the region");
        let skip = usize::try_from(addr.checked_sub(self.base).ok_or_else(outside)?).map_err(|_| outside())?;
        match &self.bytes {
            Bytes::File(file) => {
                let part = file.part(skip, len).ok_or_else(outside)?;
                file.begin_cpu(write)?;
                let copied = each(Site::HOST, part);
                copied.and(file.end_cpu(write))
            }
            Bytes::Memory { site, ranges } => {
                let mut left = len;
                for part in parts(ranges, skip, len) {
                    each(*site, part)?;
                    left -= part.len();
                }
                if left > 0 { Err(outside()) } else { Ok(()) }
            }
        }
    }
}
