// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A caller's file that the library maps in order to copy.

use super::Iov;
use crate::error::{Error, Result};
use crate::hmem::dmabuf;
use crate::sys::mem::{self, Mapping, Protection};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// `[offset, offset+len)` of a file, mapped as long as the region exists.
#[derive(Debug)]
pub struct MappedFile {
    fd: OwnedFd,
    map: Mapping,
    /// Position of the range's first byte in the mapping, which begins at a page.
    within: usize,
}

impl MappedFile {
    pub fn new(fd: BorrowedFd<'_>, offset: u64, len: usize, writable: bool) -> Result<MappedFile> {
        let (start, within) = dmabuf::map_from(fd, offset)?;
        let size = len.checked_add(within).and_then(mem::page_round).ok_or_else(|| Error::invalid("dmabuf->len: overflows"))?;
        let protection = if writable { Protection::ReadWrite } else { Protection::ReadOnly };
        let map = Mapping::new(fd, start, size, protection)?;
        Ok(MappedFile { fd: mem::duplicate(fd)?, map, within })
    }

    /// Address of the range's first byte.
    pub fn address(&self) -> usize {
        self.map.as_ptr() as usize + self.within
    }

    /// The `len` bytes from byte `skip` of the range on, if the mapping holds them.
    pub fn part(&self, skip: usize, len: usize) -> Option<Iov> {
        let end = skip.checked_add(len)?.checked_add(self.within)?;
        // SAFETY: the part lies inside the mapping, which the region keeps.
        (end <= self.map.len()).then(|| unsafe { Iov::new(self.address() + skip, len) })
    }

    /// Tells a dma-buf's exporter that the CPU is about to access the memory. Call before each such access.
    pub fn begin_cpu(&self, write: bool) -> Result<()> {
        dmabuf::begin_cpu(self.fd.as_fd(), write)
    }

    /// Tells a dma-buf's exporter that the CPU's access has ended.
    pub fn end_cpu(&self, write: bool) -> Result<()> {
        dmabuf::end_cpu(self.fd.as_fd(), write)
    }
}

/// Size of a caller's file, from the kernel or from the dma-buf's exporter.
pub fn size_of(fd: BorrowedFd<'_>) -> Result<u64> {
    mem::dmabuf_size(fd)?.map_or_else(|| mem::file_id(fd).map(|(_, size)| size), Ok)
}

/// Checks a range of a file of `size` bytes. Returns the address that peers use for the range's first byte.
pub fn base_of(offset: u64, len: usize, size: u64, base_addr: u64) -> Result<u64> {
    if offset.checked_add(len as u64).is_none_or(|end| end > size) {
        return Err(Error::invalid(format!("dmabuf->offset {offset} + len {len} reach beyond the file's {size} bytes")));
    }
    base_addr
        .checked_add(offset)
        .filter(|base| base.checked_add(len as u64).is_some())
        .ok_or_else(|| Error::invalid("dmabuf->base_addr + offset + len overflows"))
}
