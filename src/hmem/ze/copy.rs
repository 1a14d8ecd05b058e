// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies by Level Zero, on immediate command lists: one blocking list per device, and one asynchronous list per
//! stream, whose copies are ordered by events. A list is used by one thread at a time.

use super::super::chain::{CopyArgs, Engine, Started};
use super::driver::*;
use super::probe::Device;
use super::runtime::Runtime;
use crate::error::Result;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// Events per pool.
const POOL: u32 = 64;

impl Runtime {
    fn new_list(&self, device: &Device, mode: u32) -> Result<Handle> {
        let desc = QueueDesc { head: Head::new(STYPE_COMMAND_QUEUE_DESC), ordinal: device.queue, index: 0, flags: 0, mode, priority: 0 };
        let mut list = Handle::NULL;
        // SAFETY: a device and its context; both structs are ours.
        unsafe { call!(self.ze, zeCommandListCreateImmediate(self.context(device)?, device.handle, &desc, &mut list))? };
        Ok(list)
    }

    /// Copies and waits.
    ///
    /// # Safety
    /// Both sides are valid for `len` bytes.
    pub unsafe fn copy_now(&self, device: u32, copy: CopyArgs) -> Result<()> {
        if copy.len == 0 {
            return Ok(());
        }
        let device = self.device(device)?;
        let mut slot = device.list.lock();
        let list = match *slot {
            Some(list) => list,
            None => *slot.insert(self.new_list(device, QUEUE_MODE_SYNCHRONOUS)?),
        };
        let (to, from) = (copy.to as *mut c_void, copy.from as *const c_void);
        // SAFETY: the caller promises that both sides hold `len` bytes; the lock keeps other threads off the list,
        // which is synchronous.
        unsafe { call!(self.ze, zeCommandListAppendMemoryCopy(list, to, from, copy.len, Handle::NULL, 0, ptr::null_mut())) }
    }
}

/// Copies on one asynchronous list, each with an event.
pub struct Events {
    runtime: Arc<Runtime>,
    device: u32,
    list: Handle,
    pools: Vec<Handle>,
    /// Number of events made from the last pool.
    used: u32,
}

impl Events {
    pub fn new(runtime: Arc<Runtime>, device: u32) -> Result<Events> {
        let list = runtime.new_list(runtime.device(device)?, QUEUE_MODE_ASYNCHRONOUS)?;
        Ok(Events { runtime, device, list, pools: Vec::new(), used: 0 })
    }
}

impl Engine for Events {
    type Mark = Handle;

    fn new_mark(&mut self) -> Result<Handle> {
        let ze = &self.runtime.ze;
        let last = match self.pools.last() {
            Some(last) if self.used < POOL => *last,
            _ => {
                let device = self.runtime.device(self.device)?;
                let desc = FlagsAndNumber { head: Head::new(STYPE_EVENT_POOL_DESC), flags: EVENT_POOL_FLAG_HOST_VISIBLE, number: POOL };
                let (mut handle, mut pool) = (device.handle, Handle::NULL);
                // SAFETY: one device and its context; the structs are ours.
                unsafe { call!(ze, zeEventPoolCreate(self.runtime.context(device)?, &desc, 1, &mut handle, &mut pool))? };
                self.pools.push(pool);
                self.used = 0;
                pool
            }
        };
        // This scope makes the copied bytes visible to the host when the host sees the event.
        let desc = EventDesc { head: Head::new(STYPE_EVENT_DESC), index: self.used, signal: EVENT_SCOPE_FLAG_HOST, wait: 0 };
        let mut event = Handle::NULL;
        // SAFETY: a pool with room at this index.
        unsafe { call!(ze, zeEventCreate(last, &desc, &mut event))? };
        self.used += 1;
        Ok(event)
    }

    fn reset(&mut self, mark: Handle) -> Result<()> {
        // SAFETY: an event of `new_mark` that nothing waits for.
        unsafe { call!(self.runtime.ze, zeEventHostReset(mark)) }
    }

    unsafe fn start(&mut self, copy: CopyArgs, after: Option<Handle>, mark: Handle) -> Result<Started> {
        let (count, mut wait) = (after.is_some().into(), after.unwrap_or(Handle::NULL));
        let waits = if after.is_some() { ptr::from_mut(&mut wait) } else { ptr::null_mut() };
        let (to, from) = (copy.to as *mut c_void, copy.from as *const c_void);
        // SAFETY: the caller promises that both sides stay valid until the copy is done; the list belongs to this
        // stream, and the events are of `new_mark`.
        unsafe { call!(self.runtime.ze, zeCommandListAppendMemoryCopy(self.list, to, from, copy.len, mark, count, waits))? };
        Ok(Started::Flying)
    }

    fn finished(&mut self, mark: Handle) -> Result<bool> {
        // SAFETY: an event of `new_mark`.
        match unsafe { self.runtime.ze.zeEventQueryStatus(mark)? } {
            RESULT_NOT_READY => Ok(false),
            result => check("zeEventQueryStatus", result).map(|()| true),
        }
    }

    fn wait(&mut self, mark: Handle, limit: Duration) -> bool {
        let nanoseconds = limit.as_nanos().try_into().unwrap_or(u64::MAX);
        // SAFETY: an event of `new_mark`.
        match unsafe { self.runtime.ze.zeEventHostSynchronize(mark, nanoseconds) } {
            Ok(result) => result != RESULT_NOT_READY,
            Err(_) => false,
        }
    }

    fn destroy(&mut self, mark: Handle) {
        // SAFETY: an event of `new_mark` that no copy uses any more.
        let _ = unsafe { self.runtime.ze.zeEventDestroy(mark) };
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: list and pools are this stream's; no copy runs, and the events are destroyed.
        unsafe {
            let _ = self.runtime.ze.zeCommandListDestroy(self.list);
            for pool in self.pools.drain(..) {
                let _ = self.runtime.ze.zeEventPoolDestroy(pool);
            }
        }
    }
}
