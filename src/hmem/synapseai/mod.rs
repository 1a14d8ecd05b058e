// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Intel Gaudi: through SynapseAI if the application uses it, else through libhl-thunk alone.
//!
//! A Gaudi device serves one process, so this library acquires none on the application's behalf. The library knows the
//! memory of the devices that the application has acquired (`synDeviceAcquire...`); each device has one range of
//! addresses, any part of which can be exported and copied. Allocation through gdrfab also uses an acquired device.
//! Only if there is none does libhl-thunk open a device, for as long as such memory exists. Memory of such a device can
//! be exported but not copied, because only SynapseAI has copies.

mod synapse;
mod thunk;

use super::immediate::ImmediateStream;
use super::{Allocation, DeviceFacts, Dir, DmaBuf, Export, Iface, Import, Interface, MemoryKind, Offer, Stream, dmabuf};
use crate::error::{Error, Result, errno};
use crate::sys::mem;
use parking_lot::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};
use synapse::{Pool, Synapse};
use thunk::{Block, Thunk};

/// Bytes of the host buffer for copies between two devices.
const BOUNCE: usize = 1 << 20;

const NO_IPC: Error = Error::fixed(
    errno::EOPNOTSUPP,
    "Gaudi memory cannot be mapped by another process: a device serves one process, and its dma-bufs are for network cards; staged copies reach it",
);

#[derive(Clone, Copy)]
enum Source {
    Synapse,
    Thunk(Block),
}

/// Memory that this library allocated.
struct OwnAllocation {
    source: Source,
    device: u32,
    base: u64,
    len: u64,
    id: u64,
}

/// The place of device memory, for copies and exports.
enum MemoryPlace {
    Pool(Pool),
    /// Offset in a block that this library allocated.
    Block(Block, u64),
}

struct SynapseAi {
    synapse: Result<Synapse>,
    thunk: Result<Thunk>,
    adopt: bool,
    facts: Vec<DeviceFacts>,
    /// Read-locked while memory in it is used, so that the memory is not freed under a copy.
    own: RwLock<Vec<OwnAllocation>>,
    last_id: AtomicU64,
}

pub fn open(adopt: bool) -> Result<Box<dyn Interface>> {
    let (synapse, thunk) = (Synapse::open(adopt), Thunk::open(adopt));
    if let (Err(a), Err(b)) = (&synapse, &thunk) {
        return Err(Error::new(errno::ENOSYS, format!("{}; {}", a.words, b.words)));
    }
    let pools = synapse.as_ref().map(Synapse::pools).unwrap_or_default();
    if adopt && pools.is_empty() {
        return Err(Error::fixed(errno::ENODEV, "this process has acquired no Gaudi device by SynapseAI"));
    }
    let host = match &thunk {
        Ok(thunk) => thunk.count().unwrap_or(0),
        Err(_) => 0,
    };
    if host == 0 && thunk.is_ok() && pools.is_empty() {
        return Err(Error::fixed(errno::ENODEV, "no Gaudi device: hlthunk_get_device_count knows none"));
    }
    let count = pools.iter().map(|p| p.device + 1).fold(host.max(1), u32::max);
    let fact = |device| {
        let pool = pools.iter().find(|p| p.device == device);
        let pci = pool.and_then(|p| thunk.as_ref().ok()?.pci(p.fd)).unwrap_or_default();
        let mut id = [0; 16];
        id.iter_mut().zip(pci.bytes()).for_each(|(to, from)| *to = from);
        let dmabuf = thunk.as_ref().map_or_else(|e| Some(e.clone()), Thunk::lacks_export);
        let name = format!("Gaudi {device}");
        DeviceFacts { id, name, pci, memory: pool.map_or(0, |p| p.len), dmabuf, ipc: Some(NO_IPC), peers: Vec::new() }
    };
    let facts = (0..count.min(256)).map(fact).collect();
    let up = SynapseAi { synapse, thunk, adopt, facts, own: RwLock::new(Vec::new()), last_id: AtomicU64::new(0) };
    Ok(Box::new(up))
}

impl SynapseAi {
    fn pool(&self, addr: u64, len: u64) -> Option<Pool> {
        self.synapse.as_ref().ok()?.pool(addr, len)
    }

    fn locate(&self, own: &[OwnAllocation], addr: u64, len: u64) -> Result<MemoryPlace> {
        let block = own.iter().find_map(|o| match o.source {
            Source::Thunk(block) => {
                let at = addr.checked_sub(o.base)?;
                at.checked_add(len).filter(|end| *end <= o.len).map(|_| MemoryPlace::Block(block, at))
            }
            Source::Synapse => None,
        });
        let place = block.or_else(|| self.pool(addr, len).map(MemoryPlace::Pool));
        place.ok_or_else(|| Error::invalid(format!("{len} bytes from {addr:#x} are not Gaudi memory of this process")))
    }

    fn export_place(&self, place: &MemoryPlace, addr: u64, len: u64) -> Result<DmaBuf> {
        let thunk = self.thunk.as_ref().map_err(Error::clone)?;
        match place {
            MemoryPlace::Block(block, at) => thunk.export_block(block, *at, len),
            MemoryPlace::Pool(pool) if pool.exact => thunk.export(pool.fd, pool.base, addr - pool.base, len),
            MemoryPlace::Pool(_) => Err(Error::fixed(
                errno::EOPNOTSUPP,
                "this version of SynapseAI does not report the base address of device memory (globalHbmBaseAddress is 0), which an export \
                 needs",
            )),
        }
    }

    /// Copies between the host and the device. The caller holds the lock of `own`, so the memory stays.
    ///
    /// # Safety
    /// The host side is readable or writable for `len` bytes.
    unsafe fn with_host(&self, own: &[OwnAllocation], dir: Dir, device: u64, host: u64, len: usize) -> Result<()> {
        let place = self.locate(own, device, len as u64)?;
        match &place {
            MemoryPlace::Pool(pool) => {
                let (to, from) = if dir == Dir::ToDevice { (device, host) } else { (host, device) };
                // SAFETY: the caller promises that the host side holds `len` bytes; the device side was found in the
                // pool.
                unsafe { self.synapse.as_ref().map_err(Error::clone)?.copy(*pool, dir, to, from, len) }
            }
            MemoryPlace::Block(..) => {
                let buf = self.export_place(&place, device, len as u64);
                // SAFETY: the caller promises that the host side holds `len` bytes.
                let done = buf.and_then(|buf| unsafe { dmabuf::copy_mapped(&buf, dir, host, len) });
                done.map_err(|e| {
                    let words = "memory allocated without SynapseAI cannot be copied; acquire a device by SynapseAI before allocating";
                    Error::new(errno::ENOSYS, format!("{words} ({})", e.words))
                })
            }
        }
    }
}

impl Interface for SynapseAi {
    fn iface(&self) -> Iface {
        Iface::SynapseAi
    }

    fn devices(&self) -> &[DeviceFacts] {
        &self.facts
    }

    fn detect(&self, addr: u64) -> Result<Option<Allocation>> {
        let found = |device, base, len, id| Some(Allocation { iface: Iface::SynapseAi, device, kind: MemoryKind::Plain, base, len, id });
        let own = self.own.read();
        if let Some(o) = own.iter().find(|o| addr.checked_sub(o.base).is_some_and(|at| at < o.len)) {
            return Ok(found(o.device, o.base, o.len, o.id));
        }
        Ok(self.pool(addr, 1).and_then(|p| found(p.device, p.base, p.len, 0)))
    }

    fn export_dmabuf(&self, addr: u64, len: u64, _pcie: bool) -> Result<DmaBuf> {
        let own = self.own.read();
        self.export_place(&self.locate(&own, addr, len)?, addr, len)
    }

    fn export(&self, _of: &Allocation) -> Result<Export> {
        Err(NO_IPC)
    }

    fn import(&self, _offer: &Offer<'_>, _device: Option<u32>) -> Result<Import> {
        Err(NO_IPC)
    }

    unsafe fn copy(&self, _device: u32, dir: Dir, to: u64, from: u64, len: usize) -> Result<()> {
        let own = self.own.read();
        match dir {
            _ if len == 0 => Ok(()),
            // SAFETY: the caller promises that the host side holds `len` bytes.
            Dir::ToDevice => unsafe { self.with_host(&own, dir, to, from, len) },
            // SAFETY: the host side holds `len` bytes, as the caller says.
            Dir::FromDevice => unsafe { self.with_host(&own, dir, from, to, len) },
            Dir::Within => {
                if let (Ok(MemoryPlace::Pool(a)), Ok(MemoryPlace::Pool(b))) =
                    (self.locate(&own, to, len as u64), self.locate(&own, from, len as u64))
                    && a == b
                {
                    // SAFETY: both sides were found in the pool.
                    return unsafe { self.synapse.as_ref().map_err(Error::clone)?.copy(a, dir, to, from, len) };
                }
                let mut bounce = vec![0u8; len.min(BOUNCE)];
                for at in (0..len).step_by(BOUNCE) {
                    let piece = (len - at).min(BOUNCE);
                    // SAFETY: the buffer has `piece` bytes.
                    unsafe {
                        self.with_host(&own, Dir::FromDevice, from + at as u64, bounce.as_mut_ptr() as u64, piece)?;
                        self.with_host(&own, Dir::ToDevice, to + at as u64, bounce.as_ptr() as u64, piece)?;
                    }
                }
                Ok(())
            }
        }
    }

    fn stream(&'static self, device: u32) -> Result<Box<dyn Stream>> {
        Ok(Box::new(ImmediateStream::new(self, device)))
    }

    fn alloc(&self, device: u32, len: u64) -> Result<u64> {
        // Whole pages, so that all of the memory can be exported.
        let size = usize::try_from(len).ok().filter(|len| *len > 0).and_then(mem::page_round);
        let len = size.ok_or_else(|| Error::invalid(format!("len: {len} bytes")))? as u64;
        let pools = self.synapse.as_ref().map(Synapse::pools).unwrap_or_default();
        let (source, base) = match &self.synapse {
            Ok(synapse) if pools.iter().any(|p| p.device == device) => (Source::Synapse, synapse.alloc(device, len)?),
            _ if !pools.is_empty() || self.adopt || device != 0 => {
                let words = format!("Gaudi device {device} is not one that this process has acquired by SynapseAI");
                return Err(Error::new(errno::ENODEV, words));
            }
            _ => {
                let block = self.thunk.as_ref().map_err(Error::clone)?.alloc(len)?;
                (Source::Thunk(block), block.va)
            }
        };
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        self.own.write().push(OwnAllocation { source, device, base, len, id });
        Ok(base)
    }

    fn free(&self, addr: u64) -> Result<()> {
        let mut own = self.own.write();
        let i = own.iter().position(|o| o.base == addr);
        let i = i.ok_or_else(|| Error::invalid(format!("addr: {addr:#x} is not an address that gdrfab allocated")))?;
        let gone = own.swap_remove(i);
        match gone.source {
            Source::Synapse => self.synapse.as_ref().map_err(Error::clone)?.free(gone.device, addr),
            Source::Thunk(block) => self.thunk.as_ref().map_err(Error::clone)?.free(block),
        }
    }
}
