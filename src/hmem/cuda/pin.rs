// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pinned host memory. The driver pins a page only once, so callers share a pin that this library already has, and the
//! last of them unpins.

use super::core::{Core, PinnedRange};
use super::driver::{self, pointer};
use crate::error::Result;
use crate::hmem::Pinned;
use crate::log;
use std::sync::Arc;

impl Core {
    /// Pins memory, and shares this library's existing pins of that memory. Memory that the application pinned itself
    /// is unpinned by the application, after its regions were closed.
    pub fn pin(self: &Arc<Self>, addr: u64, len: u64) -> Result<Pinned> {
        let end = addr.saturating_add(len);
        // Held during the driver's calls, so that no range is shared while it is being unpinned.
        let mut ranges = self.pinned.lock();
        let whole = ranges.iter().position(|r| r.addr <= addr && end <= r.addr + r.len);
        let shared = match whole {
            Some(i) => i..i + 1,
            None => {
                if let Some(device) = self.pin_now(addr, len)? {
                    ranges.push(PinnedRange { addr, len, device, users: 0 });
                    ranges.len() - 1..ranges.len()
                } else {
                    0..ranges.len()
                }
            }
        };
        let of_it = |r: &&mut PinnedRange| r.addr < end && addr < r.addr + r.len;
        let shares = ranges[shared].iter_mut().filter(of_it).map(|r| {
            r.users += 1;
            r.addr
        });
        let shares: Vec<u64> = shares.collect();
        if shares.is_empty() {
            return Ok(Pinned(None));
        }
        let core = self.clone();
        Ok(Pinned(Some(Box::new(move || shares.into_iter().for_each(|addr| core.unpin(addr))))))
    }

    /// Pins a range, and returns the device in whose context it was pinned. `None`: a part of it was pinned before.
    fn pin_now(&self, addr: u64, len: u64) -> Result<Option<u32>> {
        // Memory that the driver allocated is pinned already.
        if matches!(self.driver.pointer(pointer::MEMORY_TYPE, addr), Ok(driver::MEMORY_TYPE_HOST)) {
            return Ok(None);
        }
        // Pinning in one context works for all contexts. A device that is in use costs no new context.
        let count = self.facts.len() as u32;
        let device = (0..count).find(|d| self.active(*d)).unwrap_or(0);
        let _current = self.enter(device)?;
        // SAFETY: pinning changes no byte; the caller keeps the memory until it unpins it.
        let status = unsafe { self.driver.cuMemHostRegister_v2(addr as *mut _, len as usize, driver::HOST_REGISTER_PORTABLE) }?;
        if status == driver::HOST_MEMORY_ALREADY_REGISTERED {
            return Ok(None);
        }
        self.driver.check("cuMemHostRegister", status).map(|()| Some(device))
    }

    fn unpin(&self, addr: u64) {
        let mut ranges = self.pinned.lock();
        let Some(i) = ranges.iter().position(|r| r.addr == addr) else { return };
        ranges[i].users -= 1;
        if ranges[i].users > 0 {
            return;
        }
        let _current = self.enter(ranges.swap_remove(i).device);
        // SAFETY: registered by `pin_now`, and unregistered once because its range was removed from the list.
        let status = unsafe { self.driver.cuMemHostUnregister(addr as *mut _) };
        if !matches!(status, Ok(0)) {
            log!(Warn, "cuda: cuMemHostUnregister of {addr:#x}: {status:?}");
        }
    }
}
