// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AWS Neuron, by its runtime `libnrt`.
//!
//! The application owns the runtime: this library never initialises the runtime, and before the application's
//! `nrt_init` every call fails with words that say so. The runtime cannot tell whose memory an address is, so an
//! address counts as Neuron's in three cases:
//! 1. [`Interface::alloc`] made it: a tensor, with an identity of its own;
//! 2. it lies in device memory that the runtime has mapped here (`nrt_get_hbm_mmap_va`): the allocation is then the
//!    whole mapped memory, with identity 0;
//! 3. a runtime without that call exports a dma-buf of the address's page: the allocation is then that page and
//!    everything behind it that can be exported with it, with identity 0.
//!
//! The address of foreign memory (cases 2 and 3) does not tell the core that owns the memory, so the core is reported
//! as 0; no copy needs the core.

mod runtime;

use super::immediate::ImmediateStream;
use super::{Allocation, DeviceFacts, Dir, DmaBuf, Export, Iface, Import, Interface, MemoryKind, Offer, Stream, dmabuf};
use crate::error::{Error, Result, errno};
use crate::sys::mem;
use parking_lot::RwLock;
use runtime::{PLACEMENT_DEVICE, Range, Runtime, read_by_kernel};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the host buffer for copies between two pieces of device memory.
const BOUNCE: usize = 1 << 20;

/// A tensor that this library allocated.
struct Tensor {
    range: Range,
    core: u32,
    /// `nrt_tensor_t *`, which any thread may use.
    handle: usize,
    id: u64,
}

struct Neuron {
    runtime: Runtime,
    facts: Vec<DeviceFacts>,
    /// Read-locked while a tensor is used, so that it is not freed under a copy.
    tensors: RwLock<Vec<Tensor>>,
    last_id: AtomicU64,
}

pub fn open(adopt: bool) -> Result<Box<dyn Interface>> {
    let runtime = Runtime::open(adopt)?;
    let fact = |core| DeviceFacts {
        name: format!("Neuron core {core}"),
        dmabuf: runtime.lacks_dmabuf(),
        ipc: Some(NO_IPC),
        ..DeviceFacts::default()
    };
    let facts = (0..runtime.cores).map(fact).collect();
    Ok(Box::new(Neuron { runtime, facts, tensors: RwLock::new(Vec::new()), last_id: AtomicU64::new(0) }))
}

const NO_IPC: Error = Error::fixed(
    errno::EOPNOTSUPP,
    "Neuron memory cannot be mapped by another process: the runtime has no IPC handles, and its dma-bufs are for network cards; staged copies reach it",
);

impl Neuron {
    /// Applies `f` to the tensor of this library that holds all of `[addr, addr+len)`, if there is one.
    fn with_tensor<T>(&self, addr: u64, len: u64, f: impl FnOnce(&Tensor) -> T) -> Option<T> {
        self.tensors.read().iter().find(|t| t.range.holds(addr, len)).map(f)
    }

    /// The allocations that `[addr, addr+len)` lies in: tensors of this library, or foreign memory, but not both. A
    /// range with both is refused, because the mapped memory behind a tensor may be the runtime's own.
    fn pieces(&self, addr: u64, len: u64) -> Result<Vec<Allocation>> {
        let list = super::span(self, addr, len)?;
        match list.iter().any(|a| a.id == 0) && list.iter().any(|a| a.id != 0) {
            true => Err(Error::invalid(format!("{len} bytes from {addr:#x} reach beyond the allocated tensor"))),
            false => Ok(list),
        }
    }

    /// Copies `len` host bytes at `from` to device memory at `to`.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    unsafe fn write(&self, to: u64, from: u64, len: usize) -> Result<()> {
        // SAFETY: the tensor exists while the table is locked, and holds the range.
        let write = |t: &Tensor| unsafe {
            self.runtime.nrt.nrt_tensor_write(t.handle as *mut c_void, from as *const c_void, (to - t.range.base) as usize, len)
        };
        if let Some(status) = self.with_tensor(to, len as u64, write) {
            return self.runtime.check("nrt_tensor_write", status?);
        }
        // nrt_memcpy_to_device checks nothing, and would write to host memory as well.
        self.pieces(to, len as u64)?;
        // SAFETY: the device side was just checked; the caller promises that the host side holds `len` bytes.
        let status = unsafe { self.runtime.nrt.nrt_memcpy_to_device(to as *mut c_void, from as *const c_void, len)? };
        self.runtime.check("nrt_memcpy_to_device", status)
    }

    /// Copies `len` bytes of device memory at `from` to the host at `to`.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    unsafe fn read(&self, from: u64, to: u64, len: usize) -> Result<()> {
        // SAFETY: the tensor exists while the table is locked, and holds the range.
        let read = |t: &Tensor| unsafe {
            self.runtime.nrt.nrt_tensor_read(t.handle as *const c_void, to as *mut c_void, (from - t.range.base) as usize, len)
        };
        if let Some(status) = self.with_tensor(from, len as u64, read) {
            return self.runtime.check("nrt_tensor_read", status?);
        }
        let pieces = self.pieces(from, len as u64)?;
        if let [first, _, ..] = pieces.as_slice() {
            let here = ((first.end() - from) as usize).min(len);
            // SAFETY: both parts lie in the range that the caller promises; the rest lies in fewer pieces, so the
            // recursion ends.
            return unsafe {
                self.read(from, to, here)?;
                self.read(from + here as u64, to + here as u64, len - here)
            };
        }
        let buf = self.export_dmabuf(from, len as u64, false);
        // SAFETY: the caller promises that `to` holds `len` bytes.
        let Err(first) = buf.and_then(|buf| unsafe { dmabuf::copy_mapped(&buf, Dir::FromDevice, to, len) }) else { return Ok(()) };
        // SAFETY: the caller promises that `to` holds `len` bytes.
        unsafe { read_by_kernel(from, to, len) }.map_err(|second| {
            let words =
                format!("{from:#x}: the runtime copies out of tensors that gdrfab allocated only ({}; {})", first.words, second.words);
            Error::new(errno::ENOSYS, words)
        })
    }
}

impl Interface for Neuron {
    fn iface(&self) -> Iface {
        Iface::Neuron
    }

    fn devices(&self) -> &[DeviceFacts] {
        &self.facts
    }

    fn detect(&self, addr: u64) -> Result<Option<Allocation>> {
        let found = |device, range: Range, id| Allocation {
            iface: Iface::Neuron,
            device,
            kind: MemoryKind::Plain,
            base: range.base,
            len: range.len,
            id,
        };
        if let Some(own) = self.with_tensor(addr, 1, |t| found(t.core, t.range, t.id)) {
            return Ok(Some(own));
        }
        let foreign = self.runtime.foreign(addr);
        Ok(foreign.map(|range| found(0, range, 0)))
    }

    fn export_dmabuf(&self, addr: u64, len: u64, _pcie: bool) -> Result<DmaBuf> {
        // Network cards accept only whole pages of Neuron memory.
        let (start, size, within) = dmabuf::widen(addr, len)?;
        let (fd, offset) = self.runtime.dmabuf_fd(start, size)?;
        dmabuf::checked(fd, offset.saturating_add(within), len)
    }

    fn export(&self, _of: &Allocation) -> Result<Export> {
        Err(NO_IPC)
    }

    fn import(&self, _offer: &Offer<'_>, _device: Option<u32>) -> Result<Import> {
        Err(NO_IPC)
    }

    unsafe fn copy(&self, _device: u32, dir: Dir, to: u64, from: u64, len: usize) -> Result<()> {
        match dir {
            _ if len == 0 => Ok(()),
            // SAFETY: the host side holds `len` bytes, as the caller says.
            Dir::ToDevice => unsafe { self.write(to, from, len) },
            // SAFETY: the host side holds `len` bytes, as the caller says.
            Dir::FromDevice => unsafe { self.read(from, to, len) },
            // nrt_tensor_copy needs whole tensors of one core, so the copy goes through the host.
            Dir::Within => {
                let mut bounce = vec![0u8; len.min(BOUNCE)];
                for at in (0..len).step_by(BOUNCE) {
                    let piece = (len - at).min(BOUNCE);
                    // SAFETY: the buffer has `piece` bytes.
                    unsafe {
                        self.read(from + at as u64, bounce.as_mut_ptr() as u64, piece)?;
                        self.write(to + at as u64, bounce.as_ptr() as u64, piece)?;
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
        if device as usize >= self.facts.len() {
            return Err(Error::new(errno::ENODEV, format!("Neuron core {device} of {}", self.facts.len())));
        }
        // Whole pages, so that all of the memory can be exported.
        let size = usize::try_from(len).ok().filter(|len| *len > 0).and_then(mem::page_round);
        let size = size.ok_or_else(|| Error::invalid(format!("len: {len} bytes")))?;
        let mut tensor = std::ptr::null_mut();
        // SAFETY: `tensor` is written on success; the name is a constant.
        let status =
            unsafe { self.runtime.nrt.nrt_tensor_allocate(PLACEMENT_DEVICE, device as c_int, size, c"gdrfab".as_ptr(), &mut tensor)? };
        self.runtime.check("nrt_tensor_allocate", status)?;
        // SAFETY: the tensor was made above.
        let va = unsafe { self.runtime.nrt.nrt_tensor_get_va(tensor) };
        let base = match va {
            Ok(va) if !va.is_null() => va as u64,
            other => {
                // SAFETY: made above, and no other code knows it.
                unsafe { self.runtime.nrt.nrt_tensor_free(&mut tensor)? };
                other?;
                let words = "nrt_tensor_get_va: the tensor has no address; set NEURON_RT_MAP_HBM=1 before nrt_init";
                return Err(Error::fixed(errno::EOPNOTSUPP, words));
            }
        };
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        self.tensors.write().push(Tensor { range: Range { base, len: size as u64 }, core: device, handle: tensor as usize, id });
        Ok(base)
    }

    fn free(&self, addr: u64) -> Result<()> {
        let mut tensors = self.tensors.write();
        let i = tensors.iter().position(|t| t.range.base == addr);
        let i = i.ok_or_else(|| Error::invalid(format!("addr: {addr:#x} is not an address that gdrfab allocated")))?;
        let mut handle = tensors.swap_remove(i).handle as *mut c_void;
        // SAFETY: made by `alloc` and removed from the table; no copy uses it while the table is write-locked.
        unsafe { self.runtime.nrt.nrt_tensor_free(&mut handle) }
    }
}
