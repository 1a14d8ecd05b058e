// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Intel GPUs, by Level Zero.
//!
//! This library has one context of its own per driver. Intel's driver knows the memory of all contexts, whichever
//! context is asked. The specification allows another driver to answer "unknown" for memory of the caller's contexts;
//! such memory then does not count as memory of a device here.
//!
//! Level Zero keeps ownership of the file descriptors that it returns, so this library passes on duplicates.
//!
//! `probe.rs` finds the GPUs, `runtime.rs` answers questions about addresses, `copy.rs` copies, `driver.rs` has the
//! functions.

mod copy;
mod driver;
mod probe;
mod runtime;

use super::chain::{Chain, CopyArgs};
use super::{Allocation, DeviceFacts, Dir, DmaBuf, Export, HANDLE_BYTES, Iface, Import, Interface, MemoryKind, Offer, Stream, dmabuf};
use crate::error::{Error, Result, errno};
use crate::sys::{fd, mem};
use driver::*;
use parking_lot::Mutex;
use runtime::{Runtime, no_properties};
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

/// `Export::how`: a `ze_ipc_mem_handle_t` whose descriptor travels beside it.
const HOW_IPC: u32 = 1;
/// Largest unit in which drivers allocate. A dma-buf that is longer than its allocation, rounded up to this unit, also
/// holds other allocations.
const LARGEST_PAGE: u64 = 2 << 20;
const ALLOC_ALIGN: usize = 64 << 10;

struct Ze(Arc<Runtime>);

pub fn open(adopt: bool) -> Result<Box<dyn Interface>> {
    let ze = Loader::open(adopt)?;
    probe::initialise(&ze, adopt)?;
    let (drivers, devices, facts) = probe::look(&ze)?;
    let (allocs, imports) = (Mutex::default(), Mutex::default());
    Ok(Box::new(Ze(Arc::new(Runtime { ze, drivers, devices, facts, allocs, imports }))))
}

/// A duplicate of a descriptor that the driver owns.
fn duplicate(fd: i32) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::new(errno::EOPNOTSUPP, format!("the driver returned an invalid file descriptor ({fd})")));
    }
    // SAFETY: borrowed for this one call; a number that is not open makes it fail.
    mem::duplicate(unsafe { BorrowedFd::borrow_raw(fd) })
}

impl Interface for Ze {
    fn iface(&self) -> Iface {
        Iface::Ze
    }

    fn devices(&self) -> &[DeviceFacts] {
        &self.0.facts
    }

    fn detect(&self, addr: u64) -> Result<Option<Allocation>> {
        self.0.detect(addr)
    }

    fn identity(&self, addr: u64) -> Option<u64> {
        self.0.query(addr).ok().flatten().map(|known| known.id)
    }

    fn export_dmabuf(&self, addr: u64, len: u64, _pcie: bool) -> Result<DmaBuf> {
        let (a, context) = self.0.owned_device_memory(addr, len, "dma-buf")?;
        if let Some(why) = self.0.facts.get(a.device as usize).and_then(|f| f.dmabuf.clone()) {
            return Err(why);
        }
        let mut out = ExportFd { head: Head::new(STYPE_EXTERNAL_MEMORY_EXPORT_FD), flags: EXTERNAL_MEMORY_DMA_BUF, fd: -1 };
        let mut p = no_properties();
        p.head.next = ptr::from_mut(&mut out).cast();
        // Of all calls of zeMemGetAllocProperties, only this one makes a descriptor. The others, which each operation
        // makes, need no `hold_standard`.
        let _held = fd::hold_standard();
        // SAFETY: both structs say their kind, and outlive the call; the device is not asked for.
        let asked = unsafe { call!(self.0.ze, zeMemGetAllocProperties(context, addr as *const c_void, &mut p, ptr::null_mut())) };
        let fd = asked.and_then(|()| duplicate(out.fd)).map_err(|e| {
            let hint =
                "memory can be exported if it was allocated with ze_external_memory_export_desc_t (dma-buf), or by gdrfab_mem_alloc()";
            let number = if e.errno == errno::EINVAL { errno::EOPNOTSUPP } else { e.errno };
            Error::new(number, format!("{}; {hint}", e.words))
        })?;
        let buf = dmabuf::checked(fd, addr - a.base, len)?;
        if a.len.checked_next_multiple_of(LARGEST_PAGE).is_some_and(|most| buf.len > most) {
            let words =
                format!("the driver keeps this allocation of {} bytes at an unknown place of a dma-buf of {} bytes", a.len, buf.len);
            return Err(Error::new(errno::EOPNOTSUPP, words));
        }
        Ok(buf)
    }

    fn export(&self, of: &Allocation) -> Result<Export> {
        let (a, context) = self.0.owned_device_memory(of.base, of.len, "IPC handle")?;
        let mut ipc = IpcHandle { data: [0; HANDLE_BYTES] };
        // SAFETY: `ipc` is ours.
        unsafe { call!(self.0.ze, zeMemGetIpcHandle(context, a.base as *const c_void, &mut ipc))? };
        let [b0, b1, b2, b3, ..] = ipc.data;
        let fd = duplicate(i32::from_ne_bytes([b0, b1, b2, b3]));
        if self.0.ze.has("zeMemPutIpcHandle") {
            // SAFETY: got from the driver above. The memory's file lives on through the duplicated descriptor.
            let _ = unsafe { self.0.ze.zeMemPutIpcHandle(context, ipc) };
        }
        let fd = fd.map_err(|e| e.context("zeMemGetIpcHandle: the handle does not begin with a file descriptor"))?;
        let (_, whole) = mem::file_id(fd.as_fd())?;
        if whole < a.len {
            let words = format!("zeMemGetIpcHandle: the handle names a file of {whole} bytes, but the memory has {}", a.len);
            return Err(Error::new(errno::EOPNOTSUPP, words));
        }
        let device = self.0.facts.get(a.device as usize).map(|f| f.id).unwrap_or_default();
        Ok(Export { how: HOW_IPC, device, handle: ipc.data, fd: Some(fd), base: a.base, len: a.len })
    }

    fn import(&self, offer: &Offer<'_>, device: Option<u32>) -> Result<Import> {
        let runtime = &self.0;
        let (HOW_IPC, Some(fd), 1..) = (offer.how, offer.fd, offer.len) else {
            let with = if offer.fd.is_some() { "with" } else { "without" };
            return Err(Error::invalid(format!(
                "ze: the peer offers an invalid handle, of kind {} {with} a file descriptor, for {} bytes",
                offer.how, offer.len
            )));
        };
        let (_, whole) = mem::file_id(fd)?;
        if whole < offer.len {
            return Err(Error::invalid(format!("ze: the peer offers {} bytes, but its file has {whole}", offer.len)));
        }
        // The exporter's own GPU is preferred if it is visible here, because it needs no peer access.
        let home = runtime.facts.iter().position(|f| f.id == offer.device).map(|i| i as u32);
        let on = home.or(device).ok_or_else(|| Error::new(errno::ENODEV, "ze: the peer's GPU is not visible in this process"))?;
        let target = runtime.device(on)?;
        if let Some(want) = device
            && !probe::can_reach(&runtime.ze, runtime.device(want)?.handle, target.handle)
        {
            return Err(Error::new(errno::EOPNOTSUPP, format!("zeDeviceCanAccessPeer: device {want} cannot reach device {on}")));
        }
        let mut ipc = IpcHandle { data: offer.handle };
        // The first bytes of the handle are the exporter's number of the descriptor; the rest, such as an offset, stays
        // as it is.
        ipc.data.iter_mut().zip(fd.as_raw_fd().to_ne_bytes()).for_each(|(to, from)| *to = from);
        let context = runtime.context(target)?;
        let mut at = ptr::null_mut();
        // SAFETY: a device and its context, a descriptor that is open during the call; `at` is ours.
        unsafe { call!(runtime.ze, zeMemOpenIpcHandle(context, target.handle, ipc, 0, &mut at))? };
        let base = at as u64;
        let found = Allocation { iface: Iface::Ze, device: on, kind: MemoryKind::Imported, base, len: offer.len, id: 0 };
        runtime.imports.lock().entry(base).or_insert((found, 0)).1 += 1;
        // The peer's bytes decided where `base` lies in the opened memory, so the range is checked.
        let range = runtime.range(context, base);
        let inside = |(start, len): (u64, u64)| start <= base && base.saturating_add(offer.len) <= start.saturating_add(len);
        if !range.as_ref().is_ok_and(|r| inside(*r)) {
            runtime.close(context, base);
            range?;
            return Err(Error::invalid(format!("ze: the peer's allocation is shorter than the {} bytes that it offered", offer.len)));
        }
        let runtime = runtime.clone();
        Ok(Import { iface: Iface::Ze, device: on, base, len: offer.len, undo: Some(Box::new(move || runtime.close(context, base))) })
    }

    unsafe fn copy(&self, device: u32, dir: Dir, to: u64, from: u64, len: usize) -> Result<()> {
        // SAFETY: the caller says that both sides hold `len` bytes (`Interface::copy`).
        unsafe { self.0.copy_now(device, CopyArgs { dir, to, from, len }) }
    }

    fn stream(&'static self, device: u32) -> Result<Box<dyn Stream>> {
        Ok(Box::new(Chain::new(copy::Events::new(self.0.clone(), device)?)))
    }

    fn alloc(&self, device: u32, len: u64) -> Result<u64> {
        let target = self.0.device(device)?;
        let context = self.0.context(target)?;
        let mut export = Flags { head: Head::new(STYPE_EXTERNAL_MEMORY_EXPORT_DESC), flags: EXTERNAL_MEMORY_DMA_BUF };
        let mut desc = FlagsAndNumber { head: Head::new(STYPE_DEVICE_MEM_ALLOC_DESC), flags: 0, number: 0 };
        if self.0.facts.get(device as usize).is_some_and(|f| f.dmabuf.is_none()) {
            desc.head.next = ptr::from_mut(&mut export).cast();
        }
        let mut at = ptr::null_mut();
        // SAFETY: a device and its context; the structs say their kind, and outlive the call.
        unsafe { call!(self.0.ze, zeMemAllocDevice(context, &desc, len.max(1) as usize, ALLOC_ALIGN, target.handle, &mut at))? };
        self.0.allocs.lock().insert(at as u64, context);
        Ok(at as u64)
    }

    fn free(&self, addr: u64) -> Result<()> {
        let Some(context) = self.0.allocs.lock().remove(&addr) else {
            return Err(Error::invalid(format!("addr: {addr:#x} is not an address that gdrfab allocated (ze)")));
        };
        // SAFETY: of `alloc`, and freed once.
        unsafe { call!(self.0.ze, zeMemFree(context, addr as *mut c_void)) }
    }
}
