// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Level Zero drivers and everything that the library remembers about them. This file tells to whom the memory at
//! an address belongs, and whether the memory can be exported.

use super::driver::*;
use super::probe::{Device, Driver};
use crate::error::{Error, Result, errno};
use crate::hmem::{Allocation, DeviceFacts, Iface, MemoryKind};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;

pub struct Runtime {
    pub(super) ze: Loader,
    pub(super) drivers: Vec<Driver>,
    pub(super) devices: Vec<Device>,
    pub(super) facts: Vec<DeviceFacts>,
    /// Allocations of `alloc`, each with its context.
    pub(super) allocs: Mutex<BTreeMap<u64, Handle>>,
    /// Imports by first address, each with a count: one handle may give the same address twice.
    pub(super) imports: Mutex<BTreeMap<u64, (Allocation, u32)>>,
}

/// A context's answer for an address.
pub struct AddressInfo {
    context: Handle,
    kind: u32,
    pub(super) id: u64,
    device: Handle,
}

pub fn no_properties() -> AllocationProperties {
    AllocationProperties { head: Head::new(STYPE_MEMORY_ALLOCATION_PROPERTIES), kind: 0, id: 0, page_size: 0 }
}

impl Runtime {
    pub(super) fn device(&self, device: u32) -> Result<&Device> {
        self.devices
            .get(device as usize)
            .ok_or_else(|| Error::invalid(format!("device: {device} does not exist; ze has {}", self.devices.len())))
    }

    pub(super) fn context(&self, of: &Device) -> Result<Handle> {
        self.drivers.get(of.driver).map(|d| d.context).ok_or(Error::fixed(errno::EIO, "ze: the device has no driver"))
    }

    /// The answer of the first driver that knows `addr`.
    pub(super) fn query(&self, addr: u64) -> Result<Option<AddressInfo>> {
        if addr == 0 {
            return Ok(None); // an error for the driver, foreign for us
        }
        for (index, Driver { context }) in self.drivers.iter().enumerate() {
            let (mut p, mut device) = (no_properties(), Handle::NULL);
            // SAFETY: `p` says its kind, and chains nothing.
            let asked = unsafe { call!(self.ze, zeMemGetAllocProperties(*context, addr as *const c_void, &mut p, &mut device)) };
            match asked {
                Ok(()) if matches!(p.kind, MEMORY_HOST | MEMORY_DEVICE | MEMORY_SHARED | MEMORY_HOST_IMPORTED) => {
                    // Each driver numbers allocations on its own, beginning with 0 perhaps, so the driver's index is
                    // mixed in.
                    let id = p.id.wrapping_add(1) ^ (index as u64) << 56;
                    return Ok(Some(AddressInfo { context: *context, kind: p.kind, id, device }));
                }
                Err(e) if e.errno != errno::EINVAL => return Err(e),
                _ => {}
            }
        }
        Ok(None)
    }

    pub(super) fn range(&self, context: Handle, addr: u64) -> Result<(u64, u64)> {
        let (mut base, mut len) = (ptr::null_mut(), 0usize);
        // SAFETY: both are ours.
        unsafe { call!(self.ze, zeMemGetAddressRange(context, addr as *const c_void, &mut base, &mut len))? };
        Ok((base as u64, len as u64))
    }

    /// This library's number of a device. The driver may name a tile as the device of an allocation; then the tile's
    /// root device counts.
    pub(super) fn number(&self, device: Handle, context: Handle) -> u32 {
        let find = |handle| self.devices.iter().position(|d| d.handle == handle);
        let root = || {
            let mut root = Handle::NULL;
            // SAFETY: a device of the driver; `root` is ours.
            unsafe { call!(self.ze, zeDeviceGetRootDevice(device, &mut root)).ok()? };
            find(root)
        };
        let first = || self.devices.iter().position(|d| self.context(d).is_ok_and(|c| c == context));
        // Host memory has no device; the first device of its driver copies it.
        let known = if device == Handle::NULL { None } else { find(device).or_else(root) };
        known.or_else(first).unwrap_or(0) as u32
    }

    pub(super) fn detect(&self, addr: u64) -> Result<Option<Allocation>> {
        if let Some((_, (known, _))) = self.imports.lock().range(..=addr).next_back().filter(|(_, (a, _))| addr < a.end()) {
            return Ok(Some(*known));
        }
        // Identity and range take two queries. Both answers are of the same allocation if the identity is the same
        // before and after.
        for _ in 0..4 {
            let Some(known) = self.query(addr)? else { return Ok(None) };
            let range = self.range(known.context, addr);
            if self.query(addr)?.is_none_or(|again| again.id != known.id) {
                continue;
            }
            let (base, len) = range?;
            let kind = match known.kind {
                MEMORY_DEVICE => MemoryKind::Plain,
                MEMORY_SHARED => MemoryKind::Managed,
                _ => MemoryKind::Pinned,
            };
            let device = self.number(known.device, known.context);
            return Ok(Some(Allocation { iface: Iface::Ze, device, kind, base, len, id: known.id }));
        }
        Err(Error::new(
            errno::EBUSY,
            format!("ze: the memory at {addr:#x} was freed or allocated again during the call; keep it allocated"),
        ))
    }

    /// The allocation of this process, neither imported nor pinned, that `[addr, addr+len)` lies in.
    pub(super) fn owned_device_memory(&self, addr: u64, len: u64, what: &str) -> Result<(Allocation, Handle)> {
        let a = self.detect(addr)?.ok_or_else(|| Error::invalid(format!("{addr:#x} is not ze memory of this process")))?;
        if a.kind != MemoryKind::Plain {
            return Err(Error::new(errno::EOPNOTSUPP, format!("{} memory at {addr:#x} has no {what}", a.kind.name())));
        }
        match addr.checked_add(len) {
            Some(end) if len > 0 && end <= a.end() => Ok((a, self.context(self.device(a.device)?)?)),
            _ => {
                let words = format!("no {what}: {len} bytes from {addr:#x} reach beyond their allocation, which ends at {:#x}", a.end());
                Err(Error::invalid(words))
            }
        }
    }

    pub(super) fn close(&self, context: Handle, base: u64) {
        // The entry is removed before the call, because a closed address may be given to another import at once.
        let mut imports = self.imports.lock();
        if let Some((_, times)) = imports.get_mut(&base) {
            *times -= 1;
            if *times == 0 {
                imports.remove(&base);
            }
        }
        drop(imports);
        // SAFETY: the address is that of an opened handle; the importer has ended all copies.
        let result = unsafe { call!(self.ze, zeMemCloseIpcHandle(context, base as *const c_void)) };
        if let Err(e) = result {
            crate::log!(Warn, "ze: {e}");
        }
    }
}
