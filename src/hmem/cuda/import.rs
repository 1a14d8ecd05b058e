// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Imports: memory of other processes of this host, mapped here.
//!
//! A handle that is imported twice is opened once and counted, because the driver gives one address for it, or refuses
//! the second time. Handles of the plain allocator are opened once per device: the mapping counts as memory of the
//! device that opened it, and copies by another device would go through the host. A pool's pointer has one address for
//! all devices, which are given access one by one.

use super::core::{Core, HOW_IPC, HOW_POOL, HOW_SEGMENT, HandleKey, OpenedHandle};
use super::driver::{self, pointer};
use super::vmm::{self, Physical};
use crate::error::{Error, Result, errno};
use crate::hmem::{Allocation, DeviceId, Iface, Import, MemoryKind, Offer, Undo};
use cudarc::driver::sys::{CUcontext, CUipcMemHandle, CUmemPoolPtrExportData, CUmemoryPool};
use std::os::fd::AsRawFd;
use std::sync::Arc;

impl Core {
    /// True if `base` is the first address of an import.
    pub fn is_import(&self, base: u64) -> bool {
        self.imports.read().contains(&base)
    }

    pub fn import(self: &Arc<Self>, offer: &Offer<'_>, wanted: Option<u32>) -> Result<Import> {
        let devices = self.candidates(&offer.device, wanted);
        match offer.how {
            HOW_IPC | HOW_POOL => {
                let mut refused = None;
                for device in devices {
                    match self.open_counted(offer, device) {
                        Ok(import) => return Ok(import),
                        // This error is the peer's fault, so no other device is tried.
                        Err(e) if e.errno == errno::EPROTO => return Err(e),
                        Err(e) => refused = refused.or(Some(e)),
                    }
                }
                Err(refused.unwrap_or_else(|| Error::new(errno::ENODEV, "cuda: no device to open the peer's memory on")))
            }
            HOW_SEGMENT => self.import_segment(offer, &devices),
            how => Err(Error::new(errno::EPROTO, format!("cuda: the peer offers its memory by an unknown kind of handle ({how})"))),
        }
    }

    /// The devices to map the memory for, best first: the caller's choice, then the devices that the process already
    /// uses, then the others. Among the used devices and among the others, the device that owns the memory comes first.
    ///
    /// A device that is in use is better, because a context of this process on the peer's device would share the device
    /// with the peer's kernels in time slices, so copies there would wait for milliseconds while a kernel runs.
    fn candidates(&self, id: &DeviceId, wanted: Option<u32>) -> Vec<u32> {
        let own = self.facts.iter().position(|f| f.id == *id).map(|i| i as u32);
        let mut list: Vec<u32> = Vec::with_capacity(self.facts.len());
        let all = || own.into_iter().chain(0..self.facts.len() as u32);
        let used = all().filter(|device| self.active(*device));
        for device in wanted.into_iter().chain(used).chain(all()) {
            // A device can map the memory if it owns the memory or is a peer of the owner. If this process does not see
            // the owner, only trying tells.
            let able = own.is_none_or(|own| own == device || self.facts.get(own as usize).is_some_and(|f| f.peers.contains(&device)));
            if able && (device as usize) < self.facts.len() && !list.contains(&device) {
                list.push(device);
            }
        }
        list
    }

    /// Gives a device access to memory of this process at its own address: the driver refuses to open a plain
    /// allocation's handle in the process that made it. A segment is imported like another process's, because access
    /// rights belong to a mapping, and the existing mapping is the program's.
    pub fn reach(&self, of: &Allocation, wanted: Option<u32>) -> Result<u32> {
        if !matches!(of.kind, MemoryKind::Plain | MemoryKind::Pool) {
            return Err(Error::new(errno::EOPNOTSUPP, format!("cuda: a {} needs a mapping of its own", of.kind.name())));
        }
        let facts = self.facts.get(of.device as usize);
        let id = facts.ok_or_else(|| Error::new(errno::ENODEV, format!("cuda: device {} is not a device of this process", of.device)))?.id;
        let mut refused = None;
        for device in self.candidates(&id, wanted) {
            match if device == of.device { Ok(()) } else { self.enable_peer(of, device) } {
                Ok(()) => return Ok(device),
                Err(e) => refused = refused.or(Some(e)),
            }
        }
        Err(refused.unwrap_or_else(|| Error::new(errno::ENODEV, "cuda: no device of this process can access the memory")))
    }

    /// Lets `device`, which does not own the memory, access memory of this process. The access is never taken back,
    /// because other regions may rely on it.
    fn enable_peer(&self, of: &Allocation, device: u32) -> Result<()> {
        let _current = self.enter(device)?;
        if of.kind == MemoryKind::Pool {
            return self.allow_pool(self.driver.pointer(pointer::MEMPOOL_HANDLE, of.base)? as usize as CUmemoryPool, device);
        }
        let owner = self.driver.pointer(pointer::CONTEXT, of.base)? as usize as CUcontext;
        // SAFETY: this is the context of live memory; the driver refuses an invalid one.
        match unsafe { self.driver.cuCtxEnablePeerAccess(owner, 0) }? {
            driver::PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            status => self.driver.check("cuCtxEnablePeerAccess", status),
        }
    }

    fn open_counted(self: &Arc<Self>, offer: &Offer<'_>, device: u32) -> Result<Import> {
        let key = (offer.how, (offer.how == HOW_IPC).then_some(device), offer.handle);
        // Held while the driver opens the handle, so that two threads do not open the same one.
        let mut opened = self.opened.lock();
        let (base, len) = match opened.iter_mut().find(|o| o.key == key) {
            Some(open) => {
                if open.device != device {
                    self.allow_pool(open.pool as CUmemoryPool, device)?;
                }
                open.users += 1;
                (open.base, open.len)
            }
            None => {
                let (base, pool) = if offer.how == HOW_IPC { (self.open_ipc(offer, device)?, 0) } else { self.open_pool(offer, device)? };
                // If the driver cannot tell the length, it counts as 0 and the import is refused below.
                let told = self.driver.pointer(pointer::RANGE_SIZE, base);
                let len = told.or_else(|_| self.range(base, device).map(|(_, len)| len)).unwrap_or(0);
                opened.push(OpenedHandle { key, base, len, users: 1, device, pool });
                self.imports.write().push(base);
                (base, len)
            }
        };
        drop(opened);
        let core = self.clone();
        let undo: Undo = Box::new(move || core.close_counted(key));
        let import = Import { iface: Iface::Cuda, device, base, len: offer.len, undo: Some(undo) };
        if offer.len > len {
            let words = format!("cuda: the peer says that its memory has {} bytes; the driver says {len}", offer.len);
            return Err(Error::new(errno::EPROTO, words));
        }
        Ok(import)
    }

    fn open_ipc(&self, offer: &Offer<'_>, device: u32) -> Result<u64> {
        let _current = self.enter(device)?;
        let handle = CUipcMemHandle { reserved: offer.handle.map(|b| b as _) };
        let mut base = 0;
        // SAFETY: the driver checks the handle, and writes an address.
        let status = unsafe { self.driver.cuIpcOpenMemHandle_v2(&mut base, handle, driver::IPC_LAZY_PEER_ACCESS) }?;
        self.driver.check("cuIpcOpenMemHandle", status)?;
        Ok(base)
    }

    fn open_pool(&self, offer: &Offer<'_>, device: u32) -> Result<(u64, usize)> {
        let driver = &self.driver;
        let fd = offer.fd.ok_or_else(|| Error::new(errno::EPROTO, "cuda: the peer offers pool memory without a descriptor"))?;
        let _current = self.enter(device)?;
        let mut pool: CUmemoryPool = std::ptr::null_mut();
        let number = fd.as_raw_fd() as usize as *mut _;
        // SAFETY: the driver refuses a descriptor that is not one of its own.
        let status = unsafe { driver.cuMemPoolImportFromShareableHandle(&mut pool, number, driver::HANDLE_POSIX_FD, 0) }?;
        driver.check("cuMemPoolImportFromShareableHandle", status)?;
        let mut data = CUmemPoolPtrExportData { reserved: offer.handle };
        let mut base = 0;
        let status = self.allow_pool(pool, device).and_then(|()| {
            // SAFETY: the driver checks the 64 bytes, and writes an address.
            unsafe { driver.cuMemPoolImportPointer(&mut base, pool, &mut data) }
        });
        if let Err(e) = status.and_then(|s| driver.check("cuMemPoolImportPointer", s)) {
            // SAFETY: nothing of the pool is in use.
            let _ = unsafe { driver.cuMemPoolDestroy(pool) };
            return Err(e);
        }
        Ok((base, pool as usize))
    }

    /// Lets a device access an imported pool.
    fn allow_pool(&self, pool: CUmemoryPool, device: u32) -> Result<()> {
        // SAFETY: the pool was imported and is not destroyed; one descriptor.
        let status = unsafe { self.driver.cuMemPoolSetAccess(pool, &vmm::access(device), 1) }?;
        self.driver.check("cuMemPoolSetAccess", status)
    }

    fn close_counted(&self, key: HandleKey) {
        let mut opened = self.opened.lock();
        let Some(i) = opened.iter().position(|o| o.key == key) else { return };
        let Some(open) = opened.get_mut(i) else { return };
        open.users -= 1;
        if open.users > 0 {
            return;
        }
        let closed = opened.swap_remove(i);
        self.forget_import(closed.base);
        let Ok(_current) = self.enter(closed.device) else { return };
        let status = if closed.key.0 == HOW_IPC {
            // SAFETY: the handle was opened once and is closed once; an import is dropped only when no copy is in
            // flight.
            unsafe { self.driver.cuIpcCloseMemHandle(closed.base) }
        } else {
            // SAFETY: opened once, freed once, with no copy in flight; the pool was imported for this one pointer.
            unsafe {
                let freed = self.driver.cuMemFree_v2(closed.base);
                let destroyed = self.driver.cuMemPoolDestroy(closed.pool as CUmemoryPool);
                if matches!(freed, Ok(0)) { destroyed } else { freed }
            }
        };
        if !matches!(status, Ok(0)) {
            crate::log!(Warn, "cuda: closing a peer's memory at {:#x}: {status:?}", closed.base);
        }
    }

    fn forget_import(&self, base: u64) {
        let mut imports = self.imports.write();
        if let Some(i) = imports.iter().position(|b| *b == base) {
            imports.swap_remove(i);
        }
    }

    fn import_segment(self: &Arc<Self>, offer: &Offer<'_>, devices: &[u32]) -> Result<Import> {
        let fd = offer.fd.ok_or_else(|| Error::new(errno::EPROTO, "cuda: the peer offers a segment without a descriptor"))?;
        let len = usize::try_from(offer.len).ok().filter(|len| *len > 0);
        let len = len.ok_or_else(|| Error::new(errno::EPROTO, format!("cuda: the peer offers a segment of {} bytes", offer.len)))?;
        let Some(first) = devices.first() else {
            return Err(Error::new(errno::ENODEV, "cuda: no device to map the peer's memory for"));
        };
        let _current = self.enter(*first)?;
        let memory = Physical::from_fd(&self.driver, fd)?;
        let (base, device) = self.map(&memory, len, devices)?;
        self.imports.write().push(base);
        let core = self.clone();
        let undo: Undo = Box::new(move || {
            core.forget_import(base);
            let _current = core.enter(device);
            vmm::unmap(&core.driver, base, len, true);
        });
        Ok(Import { iface: Iface::Cuda, device, base, len: offer.len, undo: Some(undo) })
    }
}
