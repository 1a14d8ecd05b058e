// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `mem_alloc` gives where any host memory will do for registering: whole pages, which portable programs ask for.

use crate::error::{Error, Result, errno};
use crate::sys::mem::{self, Mapping, Protection};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::AsFd;

#[derive(Default)]
pub struct Allocations(Mutex<HashMap<usize, Mapping>>);

impl Allocations {
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    pub fn allocate(&self, len: usize) -> Result<usize> {
        let size =
            mem::page_round(len).filter(|n| *n > 0).ok_or_else(|| Error::invalid(format!("len: {len} bytes cannot be allocated")))?;
        let file = mem::memfd("gdrfab-memory", size)?;
        let map = Mapping::new(file.as_fd(), 0, size, Protection::ReadWrite)?;
        let addr = map.as_ptr() as usize;
        self.0.lock().insert(addr, map);
        Ok(addr)
    }

    /// Frees what lies at `addr`; `covering` counts the open regions in a range.
    pub fn free(&self, addr: usize, covering: impl FnOnce(u64, u64) -> usize) -> Result<()> {
        let mut memory = self.0.lock();
        let Some(map) = memory.get(&addr) else {
            return Err(Error::invalid(format!("addr: {addr:#x} is not an address that mem_alloc of this domain gave")));
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
