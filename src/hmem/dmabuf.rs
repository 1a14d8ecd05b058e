// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The part of dma-buf handling that all vendors share: rounding to pages, checking sizes, CPU access through a
//! mapping.

use super::{Dir, DmaBuf};
use crate::error::{Error, Result, errno};
use crate::sys::{copy, mem};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Widens `[addr, addr+len)` to host pages. Returns the first page's address, the length of all pages, and the offset
/// of `addr` in the first page.
pub fn widen(addr: u64, len: u64) -> Result<(u64, u64, u64)> {
    let page = mem::page_size() as u64;
    let start = addr & !(page - 1);
    let end = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    match end {
        Some(end) if len > 0 => Ok((start, end - start, addr - start)),
        _ => Err(Error::new(errno::EINVAL, format!("len: {len} bytes from {addr:#x} are not a valid range of memory"))),
    }
}

/// Makes a [`DmaBuf`] of a driver's descriptor, in which the requested range begins at `offset`. Fails if the file is
/// shorter than the range needs.
pub fn checked(fd: OwnedFd, offset: u64, len: u64) -> Result<DmaBuf> {
    let (_, size) = mem::file_id(fd.as_fd())?;
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(DmaBuf { fd, offset, len: size }),
        _ => Err(Error::new(
            errno::EIO,
            format!("the driver exported a dma-buf of {size} bytes, too short for {len} bytes at offset {offset}"),
        )),
    }
}

/// The file offset at which a mapping that contains byte `offset` should begin, and the position of that byte in the
/// mapping. A dma-buf is mapped from its beginning: graphics drivers such as vgem, and others that share its code, map
/// their first pages whatever offset is requested.
pub fn map_from(fd: BorrowedFd<'_>, offset: u64) -> Result<(u64, usize)> {
    let within = if mem::is_dmabuf(fd) { offset } else { offset % mem::page_size() as u64 };
    let size = usize::try_from(within).map_err(|_| Error::invalid("dmabuf->offset: beyond the address space"))?;
    Ok((offset - within, size))
}

/// Constants of `linux/dma-buf.h`.
const DMA_BUF_IOCTL_SYNC: u32 = 0x4008_6200;
const SYNC_READ: u64 = 1;
const SYNC_WRITE: u64 = 2;
const SYNC_END: u64 = 4;

/// Tells the exporter that the CPU begins or ends an access.
fn sync(fd: BorrowedFd<'_>, flags: u64) -> Result<()> {
    if !mem::is_dmabuf(fd) {
        return Ok(());
    }
    loop {
        // SAFETY: the kernel reads the eight bytes of `flags`, which live until the call returns.
        if unsafe { libc::ioctl(fd.as_raw_fd(), DMA_BUF_IOCTL_SYNC as _, &flags) } == 0 {
            return Ok(());
        }
        match std::io::Error::last_os_error().raw_os_error().unwrap_or(errno::EIO) {
            errno::EINTR | errno::EAGAIN => {}
            e => return Err(Error::new(e, format!("DMA_BUF_IOCTL_SYNC: {}", errno::words(e)))),
        }
    }
}

fn sync_flags(write: bool) -> u64 {
    if write { SYNC_READ | SYNC_WRITE } else { SYNC_READ }
}

/// Call before the CPU accesses a mapping of a dma-buf. Does nothing for other files.
pub fn begin_cpu(fd: BorrowedFd<'_>, write: bool) -> Result<()> {
    sync(fd, sync_flags(write))
}

/// Call after the CPU has accessed a mapping of a dma-buf.
pub fn end_cpu(fd: BorrowedFd<'_>, write: bool) -> Result<()> {
    sync(fd, sync_flags(write) | SYNC_END)
}

/// Copies `len` bytes between `host` and the beginning of the range of `buf`. The CPU copies through a mapping made for
/// this one copy; the copy fails if the dma-buf cannot be mapped.
///
/// # Safety
/// The host side is readable (as source) or writable (as target) for `len` bytes.
pub unsafe fn copy_mapped(buf: &DmaBuf, dir: Dir, host: u64, len: usize) -> Result<()> {
    let (start, within) = map_from(buf.fd.as_fd(), buf.offset)?;
    let size = len.checked_add(within).and_then(mem::page_round).filter(|_| buf.offset.checked_add(len as u64) <= Some(buf.len));
    let size = size.ok_or_else(|| Error::invalid("the copy reaches beyond the dma-buf"))?;
    let (prot, flags) = match dir {
        Dir::FromDevice => (mem::Protection::ReadOnly, SYNC_READ),
        _ => (mem::Protection::ReadWrite, SYNC_WRITE),
    };
    let map = mem::Mapping::new(buf.fd.as_fd(), start, size, prot).map_err(|e| e.context("dma-buf"))?;
    sync(buf.fd.as_fd(), flags)?;
    // SAFETY: within + len <= size, and the file is that long; the caller promises that the host side holds `len`
    // bytes.
    unsafe {
        let device = map.as_ptr().add(within);
        match dir {
            Dir::FromDevice => copy::copy(host as *mut u8, device, len, usize::MAX),
            _ => copy::copy(device, host as *const u8, len, usize::MAX),
        }
    }
    sync(buf.fd.as_fd(), flags | SYNC_END)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_to_pages() {
        let page = mem::page_size() as u64;
        assert_eq!(widen(page * 3 + 5, 10).unwrap(), (page * 3, page, 5));
        assert_eq!(widen(page * 3, page + 1).unwrap(), (page * 3, page * 2, 0));
        assert!(widen(5, 0).is_err());
        assert!(widen(u64::MAX - 5, 10).is_err());
    }

    #[test]
    fn a_file_that_can_be_mapped_is_copied_at_its_offset() {
        let page = mem::page_size();
        let buf = checked(mem::memfd("gdrfab-test", page * 2).unwrap(), page as u64 + 3, 5).unwrap();
        let (out, mut back) = (*b"12345", [0u8; 5]);
        // SAFETY: both arrays have five bytes.
        unsafe {
            copy_mapped(&buf, Dir::ToDevice, out.as_ptr() as u64, 5).unwrap();
            copy_mapped(&buf, Dir::FromDevice, back.as_mut_ptr() as u64, 5).unwrap();
            assert!(copy_mapped(&buf, Dir::FromDevice, back.as_mut_ptr() as u64, page).is_err());
        }
        assert_eq!(out, back);
        assert!(checked(buf.fd, page as u64, page as u64 + 1).is_err());
    }
}
