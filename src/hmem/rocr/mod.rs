// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AMD GPUs, by the HSA runtime, which ROCm and HIP are built on.
//!
//! Two properties of the runtime shape this code. An IPC handle is served by a thread of the exporter, so attaching a
//! handle of a process that lives but does not respond takes many seconds. And the runtime does not verify the length
//! given to an attach, so this file verifies the length.
//!
//! `probe.rs` finds the GPUs, `runtime.rs` answers questions about addresses, `watch.rs` gives allocations an identity,
//! `copy.rs` copies, and `driver.rs` has the runtime's functions.

mod copy;
mod driver;
mod probe;
mod runtime;
mod watch;

use super::chain::{Chain, CopyArgs};
use super::{
    Allocation, DeviceFacts, Dir, DmaBuf, Export, HANDLE_BYTES, Iface, Import, Interface, MemoryKind, Offer, Pinned, Stream, dmabuf,
};
use crate::error::{Error, Result, errno};
use driver::*;
use parking_lot::Mutex;
use runtime::Runtime;
use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

/// `Export::how`: an `hsa_amd_ipc_memory_t`.
const HOW_IPC: u32 = 1;

struct Rocr(Arc<Runtime>);

pub fn open(adopt: bool) -> Result<Box<dyn Interface>> {
    let hsa = Hsa::open(adopt)?;
    probe::initialise(&hsa, adopt)?;
    let found = probe::look(&hsa);
    let (cpu, gpus, facts) = match found {
        Ok(found) => found,
        Err(e) => {
            // SAFETY: gives back the reference that `initialise` took.
            let _ = unsafe { hsa.hsa_shut_down() };
            return Err(e);
        }
    };
    let (allocs, imports) = (Mutex::default(), Mutex::default());
    Ok(Box::new(Rocr(Arc::new(Runtime { hsa, gpus, cpu, facts, allocs, imports }))))
}

impl Interface for Rocr {
    fn iface(&self) -> Iface {
        Iface::Rocr
    }

    fn devices(&self) -> &[DeviceFacts] {
        &self.0.facts
    }

    fn detect(&self, addr: u64) -> Result<Option<Allocation>> {
        self.0.detect(addr)
    }

    fn export_dmabuf(&self, addr: u64, len: u64, pcie: bool) -> Result<DmaBuf> {
        let hsa = &self.0.hsa;
        // Checked before the call, because the runtime crashes for memory that it has imported.
        let a = self.0.owned_device_memory(addr, len, "dma-buf")?;
        if let Some(why) = self.0.facts.get(a.device as usize).and_then(|f| f.dmabuf.clone()) {
            return Err(why);
        }
        let (mut fd, mut offset) = (-1, 0u64);
        let at = addr as *const c_void;
        // SAFETY: the range lies in one allocation; `fd` and `offset` are ours.
        let result = unsafe {
            match pcie {
                true => call!(hsa, hsa_amd_portable_export_dmabuf_v2(at, len as usize, &mut fd, &mut offset, DMABUF_MAPPING_PCIE)),
                false => call!(hsa, hsa_amd_portable_export_dmabuf(at, len as usize, &mut fd, &mut offset)),
            }
        };
        result?;
        if fd < 0 {
            return Err(Error::new(errno::EIO, "hsa_amd_portable_export_dmabuf: succeeded without a file descriptor"));
        }
        // SAFETY: the caller owns the descriptor from here on; hsa_amd_portable_close_dmabuf is close().
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        dmabuf::checked(fd, offset, len)
    }

    fn export(&self, of: &Allocation) -> Result<Export> {
        let a = self.0.owned_device_memory(of.base, of.len, "IPC handle")?;
        let mut words: IpcHandle = [0; 8];
        // SAFETY: first byte and length of an allocation; `words` is ours.
        unsafe { call!(self.0.hsa, hsa_amd_ipc_memory_create(a.base as *mut c_void, a.len as usize, &mut words))? };
        let mut handle = [0; HANDLE_BYTES];
        for (bytes, word) in handle.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        let device = self.0.facts.get(a.device as usize).map(|f| f.id).unwrap_or_default();
        Ok(Export { how: HOW_IPC, device, handle, fd: None, base: a.base, len: a.len })
    }

    fn import(&self, offer: &Offer<'_>, device: Option<u32>) -> Result<Import> {
        let runtime = &self.0;
        if offer.how != HOW_IPC || offer.len == 0 {
            return Err(Error::invalid(format!("rocr: the peer offers an invalid handle, of kind {} for {} bytes", offer.how, offer.len)));
        }
        let mut words: IpcHandle = [0; 8];
        for (bytes, word) in offer.handle.chunks_exact(4).zip(&mut words) {
            *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let home = runtime.facts.iter().position(|f| f.id == offer.device).map(|i| i as u32);
        let device = home.or(device).unwrap_or(0);
        let mut at = ptr::null_mut();
        // SAFETY: both pointers are live; an empty list of agents means that every agent of this process may access the
        // memory.
        unsafe { call!(runtime.hsa, hsa_amd_ipc_memory_attach(&words, offer.len as usize, 0, ptr::null(), &mut at))? };
        let base = at as u64;
        let found = Allocation { iface: Iface::Rocr, device, kind: MemoryKind::Imported, base, len: offer.len, id: 0 };
        // The length came from a peer: the first and the last byte must belong to the same import.
        let last = base.saturating_add(offer.len - 1);
        let same = |a: Option<Allocation>| a.is_some_and(|a| a.base == base && a.kind == MemoryKind::Imported && a.end() > last);
        let sound = runtime.query(base).map(same).and_then(|first| Ok(first && runtime.query(last).map(same)?));
        runtime.imports.lock().entry(base).or_insert((found, 0)).1 += 1;
        if !matches!(sound, Ok(true)) {
            runtime.detach(base);
            sound?;
            return Err(Error::invalid(format!("rocr: the peer's allocation is shorter than the {} bytes that it offered", offer.len)));
        }
        let runtime = runtime.clone();
        Ok(Import { iface: Iface::Rocr, device, base, len: offer.len, undo: Some(Box::new(move || runtime.detach(base))) })
    }

    unsafe fn copy(&self, _device: u32, dir: Dir, to: u64, from: u64, len: usize) -> Result<()> {
        // SAFETY: the caller says that both sides hold `len` bytes (`Interface::copy`).
        unsafe { self.0.copy_now(CopyArgs { dir, to, from, len }) }
    }

    fn stream(&'static self, device: u32) -> Result<Box<dyn Stream>> {
        self.0.gpu(device)?;
        Ok(Box::new(Chain::new(copy::Signals { runtime: self.0.clone() })))
    }

    fn pin(&self, addr: u64, len: u64) -> Result<Pinned> {
        let mut agent_ptr = ptr::null_mut();
        // SAFETY: the runtime checks the range; an empty list of agents means that every agent may access it.
        unsafe { call!(self.0.hsa, hsa_amd_memory_lock(addr as *mut c_void, len as usize, ptr::null_mut(), 0, &mut agent_ptr))? };
        let runtime = self.0.clone();
        Ok(Pinned(Some(Box::new(move || {
            // SAFETY: locked above.
            let result = unsafe { call!(runtime.hsa, hsa_amd_memory_unlock(addr as *mut c_void)) };
            if let Err(e) = result {
                crate::log!(Warn, "rocr: {e}");
            }
        }))))
    }

    fn alloc(&self, device: u32, len: u64) -> Result<u64> {
        let runtime = &self.0;
        let Some((pool, granule)) = runtime.gpu(device)?.pool else {
            return Err(Error::new(errno::EOPNOTSUPP, format!("rocr: device {device} has no coarse-grained pool to allocate from")));
        };
        let rounded = len.max(1).checked_next_multiple_of(granule).ok_or_else(|| Error::invalid("len: exceeds the address space"))?;
        let mut at = ptr::null_mut();
        // SAFETY: a pool of the runtime; `at` is ours.
        unsafe { call!(runtime.hsa, hsa_amd_memory_pool_allocate(pool, rounded as usize, 0, &mut at))? };
        // The owner and every GPU that can get access: copies between two GPUs need both.
        let peers = runtime.facts.get(device as usize).map(|f| f.peers.as_slice()).unwrap_or_default();
        let all = runtime.gpus.iter().enumerate().filter(|(i, _)| *i == device as usize || peers.contains(&(*i as u32)));
        let agents: Vec<Agent> = all.map(|(_, g)| g.agent).collect();
        // SAFETY: our allocation, and agents of the runtime.
        let allowed = unsafe { call!(runtime.hsa, hsa_amd_agents_allow_access(agents.len() as u32, agents.as_ptr(), ptr::null(), at)) };
        if let Err(e) = allowed {
            // SAFETY: allocated above, and no other code knows it.
            let _ = unsafe { runtime.hsa.hsa_amd_memory_pool_free(at) };
            return Err(e);
        }
        runtime.allocs.lock().insert(at as u64);
        Ok(at as u64)
    }

    fn free(&self, addr: u64) -> Result<()> {
        if !self.0.allocs.lock().remove(&addr) {
            return Err(Error::invalid(format!("addr: {addr:#x} is not an address that gdrfab allocated (rocr)")));
        }
        // SAFETY: allocated by `alloc`, and freed once.
        unsafe { call!(self.0.hsa, hsa_amd_memory_pool_free(addr as *mut c_void)) }
    }
}
