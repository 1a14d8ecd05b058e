// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exports: dma-bufs for devices, handles for other processes of this host.

use super::core::{CachedHandle, Core, HOW_IPC, HOW_POOL, HOW_SEGMENT};
use super::driver::{self, own_fd, pointer};
use super::vmm::Physical;
use crate::error::{Error, Result, errno};
use crate::hmem::{Allocation, DmaBuf, Export, HANDLE_BYTES, MemoryKind, dmabuf};
use cudarc::driver::sys::{CUipcMemHandle, CUmemPoolPtrExportData, CUmemoryPool};
use std::ffi::c_int;
use std::os::fd::OwnedFd;

/// Exported handles that are kept for the next export.
const HANDLES: usize = 64;

/// The data for the importing process: bytes, and a descriptor if the kind of memory needs one.
type Handle = ([u8; HANDLE_BYTES], Option<OwnedFd>);

fn refused(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(errno::EOPNOTSUPP, why)
}

impl Core {
    pub fn export_dmabuf(&self, addr: u64, len: u64, pcie: bool) -> Result<DmaBuf> {
        let what = "cuMemGetHandleForAddressRange";
        let (start, whole, offset) = dmabuf::widen(addr, len)?;
        let found = self.detect(addr)?.ok_or_else(|| Error::invalid(format!("addr: {addr:#x} is not cuda memory of this process")))?;
        if matches!(found.kind, MemoryKind::Managed | MemoryKind::Imported) {
            return Err(refused(format!("{} memory has no dma-buf", found.kind.name())));
        }
        if let Some(why) = self.facts.get(found.device as usize).and_then(|f| f.dmabuf.clone()) {
            return Err(why);
        }
        let _current = self.enter_owner(addr, found.device)?;
        let flags = if pcie { driver::RANGE_FLAG_PCIE } else { 0 };
        let mut fd: c_int = -1;
        // SAFETY: the driver writes one descriptor, and checks the range.
        let status = unsafe {
            self.driver.cuMemGetHandleForAddressRange((&raw mut fd).cast(), start, whole as usize, driver::RANGE_HANDLE_DMA_BUF, flags)
        }?;
        let checked = self.driver.check(what, status);
        checked.map_err(|e| e.context(format_args!("dma-buf of {whole} bytes of {} memory at {start:#x}", found.kind.name())))?;
        Ok(DmaBuf { fd: own_fd(what, fd)?, offset, len: whole })
    }

    pub fn export(&self, of: &Allocation) -> Result<Export> {
        let facts = self.facts.get(of.device as usize);
        let device = facts.ok_or_else(|| Error::invalid(format!("device {} is not a cuda device of this process", of.device)))?.id;
        let (how, (handle, fd)) = match of.kind {
            MemoryKind::Plain => (HOW_IPC, self.cached_handle(of, || Ok((self.ipc_handle(of)?, None)))?),
            MemoryKind::Segment => (HOW_SEGMENT, ([0; HANDLE_BYTES], Some(self.segment_fd(of)?))),
            MemoryKind::Pool => (HOW_POOL, self.cached_handle(of, || self.pool_handle(of))?),
            MemoryKind::Managed => {
                return Err(refused("managed memory migrates, so no other process can map it; use memory of cuMemAlloc"));
            }
            MemoryKind::Pinned | MemoryKind::Host => {
                return Err(refused("this is host memory, which has no device handle; register it as host memory"));
            }
            MemoryKind::Imported => {
                return Err(refused("memory imported from another process cannot be passed on; its owner can export it"));
            }
        };
        Ok(Export { how, device, handle, fd, base: of.base, len: of.len })
    }

    /// The handle of an earlier export of the same allocation, or a new one.
    fn cached_handle(&self, of: &Allocation, make: impl FnOnce() -> Result<Handle>) -> Result<Handle> {
        let copy = |k: &CachedHandle| -> Result<Handle> {
            let fd = k.fd.as_ref().map(OwnedFd::try_clone).transpose();
            Ok((k.handle, fd.map_err(|e| Error::new(e.raw_os_error().unwrap_or(errno::EIO), format!("duplicating a descriptor: {e}")))?))
        };
        // Without an identity, an allocation cannot be told from a later one at the same address.
        if let Some(k) = self.handles.lock().iter().find(|k| (k.base, k.id) == (of.base, of.id) && of.id != 0) {
            return copy(k);
        }
        let (handle, fd) = make()?;
        let cached = CachedHandle { base: of.base, id: of.id, handle, fd };
        let made = copy(&cached);
        let mut handles = self.handles.lock();
        handles.retain(|k| k.base != of.base);
        if handles.len() >= HANDLES {
            handles.pop_front();
        }
        handles.push_back(cached);
        made
    }

    fn ipc_handle(&self, of: &Allocation) -> Result<[u8; HANDLE_BYTES]> {
        let _current = self.enter_owner(of.base, of.device)?;
        let mut raw = CUipcMemHandle { reserved: [0; HANDLE_BYTES] };
        // SAFETY: the driver writes 64 bytes, and checks the address.
        let status = unsafe { self.driver.cuIpcGetMemHandle(&mut raw, of.base) }?;
        self.driver.check("cuIpcGetMemHandle", status)?;
        Ok(raw.reserved.map(|c| c as u8))
    }

    fn segment_fd(&self, of: &Allocation) -> Result<OwnedFd> {
        let what = "cuMemExportToShareableHandle";
        self.exportable(of, "was created")?;
        let memory = Physical::behind(&self.driver, of.base)?;
        let mut fd: c_int = -1;
        // SAFETY: the driver writes one descriptor.
        let status = unsafe { self.driver.cuMemExportToShareableHandle((&raw mut fd).cast(), memory.handle, driver::HANDLE_POSIX_FD, 0) }?;
        self.driver.check(what, status)?;
        own_fd(what, fd)
    }

    fn pool_handle(&self, of: &Allocation) -> Result<Handle> {
        let what = "cuMemPoolExportToShareableHandle";
        self.exportable(of, "comes from a pool that was created")?;
        let pool = self.driver.pointer(pointer::MEMPOOL_HANDLE, of.base)? as usize as CUmemoryPool;
        let _current = self.enter(of.device)?;
        let mut fd: c_int = -1;
        // SAFETY: the driver writes one descriptor; the pool is that of live memory.
        let status = unsafe { self.driver.cuMemPoolExportToShareableHandle((&raw mut fd).cast(), pool, driver::HANDLE_POSIX_FD, 0) }?;
        self.driver.check(what, status)?;
        let fd = own_fd(what, fd)?;
        // The driver exports a pointer only after its pool was exported.
        let mut data = CUmemPoolPtrExportData { reserved: [0; HANDLE_BYTES] };
        // SAFETY: the driver writes 64 bytes, and checks the address.
        let status = unsafe { self.driver.cuMemPoolExportPointer(&mut data, of.base) }?;
        self.driver.check("cuMemPoolExportPointer", status)?;
        Ok((data.reserved, Some(fd)))
    }

    /// Fails if the memory's creator did not ask for a shareable handle. If the driver cannot tell, this function
    /// succeeds, and the export itself shows the answer.
    fn exportable(&self, of: &Allocation, how: &str) -> Result<()> {
        match self.driver.pointer(pointer::ALLOWED_HANDLE_TYPES, of.base) {
            Ok(allowed) if allowed & driver::HANDLE_POSIX_FD as u64 == 0 => Err(refused(format!(
                "this {} memory {how} without a shareable handle type: create it with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
                of.kind.name()
            ))),
            _ => Ok(()),
        }
    }
}
