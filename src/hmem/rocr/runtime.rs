// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The HSA runtime and everything that the library remembers about it. This file tells to whom the memory at an address
//! belongs, and which agents can access it.

use super::driver::*;
use super::probe::{self, Gpu};
use super::watch;
use crate::error::{Error, Result, errno};
use crate::hmem::{Allocation, DeviceFacts, Iface, MemoryKind};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::{mem as memory, ptr};

pub struct Runtime {
    pub(super) hsa: Hsa,
    pub(super) gpus: Vec<Gpu>,
    /// The CPU agent, which stands for host memory.
    pub(super) cpu: Agent,
    pub(super) facts: Vec<DeviceFacts>,
    /// Allocations of `alloc`, by first address.
    pub(super) allocs: Mutex<BTreeSet<u64>>,
    /// Imports by first address, each with a count: one handle may give the same address twice.
    pub(super) imports: Mutex<BTreeMap<u64, (Allocation, u32)>>,
}

impl Runtime {
    pub(super) fn gpu(&self, device: u32) -> Result<&Gpu> {
        self.gpus
            .get(device as usize)
            .ok_or_else(|| Error::invalid(format!("device: {device} does not exist; rocr has {}", self.gpus.len())))
    }

    pub(super) fn pointer_info(&self, addr: u64) -> Result<PointerInfo> {
        // SAFETY: all zeros is a valid value of this plain struct.
        let mut info: PointerInfo = unsafe { memory::zeroed() };
        info.size = size_of::<PointerInfo>() as u32;
        if addr == 0 {
            return Ok(info); // an error for the runtime, unknown memory for us
        }
        // SAFETY: `info` holds its size; the list of agents is not requested.
        unsafe { call!(self.hsa, hsa_amd_pointer_info(addr as *const c_void, &mut info, None, ptr::null_mut(), ptr::null_mut()))? };
        Ok(info)
    }

    /// True if `agent` may access the memory at `addr` directly.
    pub(super) fn reaches(&self, agent: Agent, addr: u64) -> bool {
        // SAFETY: all zeros is a valid value of this plain struct.
        let mut info: PointerInfo = unsafe { memory::zeroed() };
        info.size = size_of::<PointerInfo>() as u32;
        let (mut count, mut list) = (0u32, ptr::null_mut::<Agent>());
        let at = addr as *const c_void;
        // SAFETY: `info` holds its size; the runtime allocates the list with `malloc`, and it is freed below.
        let status = unsafe { call!(self.hsa, hsa_amd_pointer_info(at, &mut info, Some(libc::malloc), &mut count, &mut list)) };
        if list.is_null() {
            return false;
        }
        // SAFETY: the runtime put `count` agents there.
        let found = status.is_ok() && unsafe { std::slice::from_raw_parts(list, count as usize) }.contains(&agent);
        // SAFETY: allocated with `malloc` for this call.
        unsafe { libc::free(list.cast()) };
        found
    }

    pub(super) fn detect(&self, addr: u64) -> Result<Option<Allocation>> {
        if let Some((_, (known, _))) = self.imports.lock().range(..=addr).next_back().filter(|(_, (a, _))| addr < a.end()) {
            return Ok(Some(*known));
        }
        if let Some(known) = watch::find(addr) {
            return Ok(Some(known));
        }
        match self.query(addr)? {
            Some(a) if a.kind == MemoryKind::Plain => watch::identify(&self.hsa, addr, || self.query(addr)),
            other => Ok(other),
        }
    }

    /// The runtime's answer for `addr`.
    pub(super) fn query(&self, addr: u64) -> Result<Option<Allocation>> {
        let info = self.pointer_info(addr)?;
        let owner = self.gpus.iter().position(|g| g.agent == info.owner);
        let (kind, device) = match (info.kind, owner) {
            (POINTER_UNKNOWN, _) => return Ok(None),
            (POINTER_LOCKED, _) => (MemoryKind::Pinned, 0),
            (POINTER_HSA, Some(device)) => (MemoryKind::Plain, device),
            (POINTER_HSA, None) if info.owner == self.cpu || self.is_cpu(info.owner) => (MemoryKind::Pinned, 0),
            (POINTER_HSA, None) => {
                let words = format!("rocr: {addr:#x} is memory of a GPU that this process cannot use (ROCR_VISIBLE_DEVICES)");
                return Err(Error::new(errno::ENODEV, words));
            }
            // The runtime finds the owner of such memory itself when it copies.
            (POINTER_GRAPHICS | POINTER_IPC, owner) => (MemoryKind::Imported, owner.unwrap_or(0)),
            // A kind that only later runtimes have, such as a reserved address. Such an address does not count as
            // memory.
            _ => return Ok(None),
        };
        let len = info.len as u64;
        let base = [info.agent_base, info.host_base].into_iter().find(|base| addr >= *base && addr - base < len);
        Ok(base.map(|base| Allocation { iface: Iface::Rocr, device: device as u32, kind, base, len, id: 0 }))
    }

    pub(super) fn is_cpu(&self, agent: Agent) -> bool {
        agent.handle != 0 && probe::number(&self.hsa, agent, AGENT_INFO_DEVICE).is_ok_and(|kind| kind == DEVICE_TYPE_CPU)
    }

    /// The allocation of this process, neither imported nor pinned, that `[addr, addr+len)` lies in.
    pub(super) fn owned_device_memory(&self, addr: u64, len: u64, what: &str) -> Result<Allocation> {
        let a = self.detect(addr)?.ok_or_else(|| Error::invalid(format!("{addr:#x} is not rocr memory of this process")))?;
        if a.kind != MemoryKind::Plain {
            return Err(Error::new(errno::EOPNOTSUPP, format!("{} memory at {addr:#x} has no {what}", a.kind.name())));
        }
        match addr.checked_add(len) {
            Some(end) if len > 0 && end <= a.end() => Ok(a),
            _ => {
                let words = format!("no {what}: {len} bytes from {addr:#x} reach beyond their allocation, which ends at {:#x}", a.end());
                Err(Error::invalid(words))
            }
        }
    }

    pub(super) fn detach(&self, base: u64) {
        // The entry is removed before the call, because a detached address may be given to another import at once.
        let mut imports = self.imports.lock();
        if let Some((_, times)) = imports.get_mut(&base) {
            *times -= 1;
            if *times == 0 {
                imports.remove(&base);
            }
        }
        drop(imports);
        // SAFETY: the address is that of an attach; the importer has ended all copies.
        let result = unsafe { call!(self.hsa, hsa_amd_ipc_memory_detach(base as *mut c_void)) };
        if let Err(e) = result {
            crate::log!(Warn, "rocr: {e}");
        }
    }
}
