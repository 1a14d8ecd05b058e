// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mem_alloc` for providers that can register any host memory. A program does not need the call there, but a portable
//! program makes it, so the call allocates whole pages of host memory.

use super::Iov;
use crate::error::{Error, Result, errno};
use crate::sys::mem::{self, Mapping, Protection};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::AsFd;

struct HostAllocation {
    map: Mapping,
    /// A second mapping of the same pages, which only the library uses; see [`Allocations::own`].
    own: Option<Mapping>,
}

#[derive(Default)]
pub struct Allocations {
    list: Mutex<BTreeMap<usize, HostAllocation>>,
    doubled: bool,
}

impl Allocations {
    /// Allocations with a second mapping each, which [`Allocations::own`] returns.
    pub fn doubled() -> Allocations {
        Allocations { list: Mutex::default(), doubled: true }
    }

    pub fn count(&self) -> usize {
        self.list.lock().len()
    }

    /// The library's own mapping of a piece, if the piece lies inside an allocation. The library's mapping stays until
    /// the memory is freed, whatever the caller does to the first mapping.
    pub fn own(&self, iov: &Iov) -> Option<Iov> {
        let list = self.list.lock();
        let (_, allocation) = list.range(..=iov.addr()).next_back()?;
        let offset = allocation.map.offset_of(iov.addr(), iov.len())?;
        // SAFETY: the piece is no longer than the part of the mapping; the mapping stays until `free`, which fails
        // while regions cover it.
        allocation.own.as_ref().map(|own| unsafe { Iov::new(own.as_ptr() as usize + offset, iov.len()) })
    }

    /// Allocates `len` bytes, rounded up to whole pages, and returns their address.
    pub fn allocate(&self, len: usize) -> Result<usize> {
        let size =
            mem::page_round(len).filter(|n| *n > 0).ok_or_else(|| Error::invalid(format!("len: {len} bytes cannot be allocated")))?;
        let file = mem::memfd("gdrfab-memory", size)?;
        let map = Mapping::new(file.as_fd(), 0, size, Protection::ReadWrite)?;
        let own = if self.doubled { Some(Mapping::new(file.as_fd(), 0, size, Protection::ReadWrite)?) } else { None };
        let addr = map.as_ptr() as usize;
        self.list.lock().insert(addr, HostAllocation { map, own });
        Ok(addr)
    }

    /// Frees the allocation at `addr`. `covering` counts the open regions in a range.
    pub fn free(&self, addr: usize, covering: impl FnOnce(u64, u64) -> usize) -> Result<()> {
        let mut memory = self.list.lock();
        let Some(HostAllocation { map, .. }) = memory.get(&addr) else {
            return Err(Error::invalid(format!("addr: {addr:#x} is not an address that gdrfab_mem_alloc() of this domain returned")));
        };
        match covering(addr as u64, map.len() as u64) {
            0 => {
                memory.remove(&addr);
                Ok(())
            }
            n => Err(Error::new(errno::EBUSY, format!("addr: {n} open region(s) cover this memory; close them first"))),
        }
    }
}
