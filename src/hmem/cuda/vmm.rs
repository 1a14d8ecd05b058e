// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CUDA's virtual memory management: maps physical memory, of this process or of another, at reserved addresses, and
//! allocates such memory.

use super::core::Core;
use super::driver::{Driver, HANDLE_POSIX_FD};
use crate::error::{Error, Result, errno};
use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Read and write for one device.
pub fn access(device: u32) -> CUmemAccessDesc {
    CUmemAccessDesc { location: location(device), flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE }
}

fn location(device: u32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device as i32 }
}

/// A counted reference to physical memory.
pub struct Physical<'a> {
    driver: &'a Driver,
    pub handle: CUmemGenericAllocationHandle,
}

impl Drop for Physical<'_> {
    fn drop(&mut self) {
        // SAFETY: this reference was counted for us and is released once. Mappings hold references of their own.
        let _ = unsafe { self.driver.cuMemRelease(self.handle) };
    }
}

impl<'a> Physical<'a> {
    /// The memory behind a mapped address.
    pub fn behind(driver: &'a Driver, addr: u64) -> Result<Self> {
        let mut handle = 0;
        // SAFETY: the driver looks the address up, and refuses what is not mapped memory.
        let status = unsafe { driver.cuMemRetainAllocationHandle(&mut handle, addr as *mut _) }?;
        driver.check("cuMemRetainAllocationHandle", status)?;
        Ok(Physical { driver, handle })
    }

    /// The memory behind a descriptor of another process. The caller keeps the descriptor.
    pub fn from_fd(driver: &'a Driver, fd: BorrowedFd<'_>) -> Result<Self> {
        let mut handle = 0;
        let number = fd.as_raw_fd() as usize as *mut _;
        // SAFETY: the driver refuses a descriptor that is not one of its own.
        let status = unsafe { driver.cuMemImportFromShareableHandle(&mut handle, number, HANDLE_POSIX_FD) }?;
        driver.check("cuMemImportFromShareableHandle", status)?;
        Ok(Physical { driver, handle })
    }
}

/// A reservation of addresses and, once `mapped`, the memory in it. Dropping unmaps the memory, and then frees the
/// addresses.
struct Reservation<'a> {
    driver: &'a Driver,
    addr: CUdeviceptr,
    len: usize,
    mapped: bool,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        unmap(self.driver, self.addr, self.len, self.mapped);
    }
}

/// Undoes a mapping and its reservation.
pub fn unmap(driver: &Driver, addr: u64, len: usize, mapped: bool) {
    if mapped {
        // SAFETY: the caller of an import's drop promises that no copy is in flight.
        let status = unsafe { driver.cuMemUnmap(addr, len) };
        if !matches!(status, Ok(0)) {
            crate::log!(Warn, "cuda: cuMemUnmap of {addr:#x}+{len:#x}: {status:?}");
        }
    }
    // SAFETY: the reservation belongs to the library, and is empty now.
    let _ = unsafe { driver.cuMemAddressFree(addr, len) };
}

impl Core {
    /// Maps `memory` at a new address for the first of `devices` that can access it, and for all others that can.
    /// Returns the address and that first device.
    pub fn map(&self, memory: &Physical<'_>, len: usize, devices: &[u32]) -> Result<(u64, u32)> {
        let driver = &self.driver;
        let mut addr = 0;
        // SAFETY: the driver chooses a free range of addresses.
        let status = unsafe { driver.cuMemAddressReserve(&mut addr, len, 0, 0, 0) }?;
        driver.check("cuMemAddressReserve", status)?;
        let mut place = Reservation { driver, addr, len, mapped: false };
        // SAFETY: the range is reserved and empty; the driver checks the length against the memory's.
        let status = unsafe { driver.cuMemMap(addr, len, 0, memory.handle, 0) }?;
        driver.check("cuMemMap", status)?;
        place.mapped = true;
        let mut refused = Error::new(errno::ENODEV, "cuda: no device to map for");
        for (i, device) in devices.iter().enumerate() {
            match self.allow(addr, len, *device) {
                Ok(()) => {
                    // Devices that have no context yet are included, because it is not known which of them will copy.
                    for other in devices.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, d)| *d) {
                        // SAFETY: the mapping is this library's; one descriptor.
                        let status = unsafe { driver.cuMemSetAccess(addr, len, &access(other), 1) };
                        if let Err(e) = status.and_then(|s| driver.check("cuMemSetAccess", s)) {
                            crate::log!(Debug, "cuda: device {other} cannot reach memory mapped for device {device}: {e}");
                        }
                    }
                    // From here on the caller undoes the mapping.
                    std::mem::forget(place);
                    return Ok((addr, *device));
                }
                Err(e) if i == 0 => refused = e,
                Err(_) => {}
            }
        }
        Err(refused)
    }

    fn allow(&self, addr: u64, len: usize, device: u32) -> Result<()> {
        let _current = self.enter(device)?;
        // SAFETY: the mapping is ours; one descriptor.
        let status = unsafe { self.driver.cuMemSetAccess(addr, len, &access(device), 1) }?;
        self.driver.check("cuMemSetAccess", status)
    }

    /// Allocates device memory that other processes can map: physical memory with a descriptor if the driver supports
    /// that, else memory of the plain allocator.
    pub fn alloc(&self, device: u32, len: u64) -> Result<u64> {
        let asked = usize::try_from(len).ok().filter(|len| *len > 0);
        let asked = asked.ok_or_else(|| Error::invalid(format!("len: {len} bytes of device memory")))?;
        let _current = self.enter(device)?;
        let (addr, len) = if self.segments(device) { self.alloc_segment(device, asked)? } else { (self.alloc_plain(asked)?, 0) };
        self.allocations.lock().insert(addr, (device, len));
        Ok(addr)
    }

    fn alloc_plain(&self, len: usize) -> Result<u64> {
        let mut addr = 0;
        // SAFETY: the driver writes an address.
        let status = unsafe { self.driver.cuMemAlloc_v2(&mut addr, len) }?;
        self.driver.check("cuMemAlloc", status).map(|()| addr)
    }

    fn alloc_segment(&self, device: u32, len: usize) -> Result<(u64, usize)> {
        let driver = &self.driver;
        let direct = driver.attribute(super::driver::device::GPU_DIRECT_RDMA_WITH_VMM, device as i32) != 0;
        let how = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            location: location(device),
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: direct as u8,
                usage: 0,
                reserved: [0; 4],
            },
        };
        let mut grain = 0;
        // SAFETY: the driver writes a size; option 0 asks for the smallest granularity.
        let status = unsafe { driver.cuMemGetAllocationGranularity(&mut grain, &how, 0) }?;
        driver.check("cuMemGetAllocationGranularity", status)?;
        let whole = len.checked_next_multiple_of(grain.max(1)).filter(|len| *len <= i64::MAX as usize);
        let whole = whole.ok_or_else(|| Error::new(errno::ENOMEM, format!("len: {len} bytes exceed the memory of any cuda device")))?;
        let mut handle = 0;
        // SAFETY: the driver writes a handle.
        let status = unsafe { driver.cuMemCreate(&mut handle, whole, &how, 0) }?;
        driver.check("cuMemCreate", status)?;
        // Released at the end of this function; the mapping keeps the memory.
        let memory = Physical { driver, handle };
        let mut devices = vec![device];
        devices.extend(self.facts.get(device as usize).map(|f| f.peers.as_slice()).unwrap_or_default());
        let (addr, mapped_for) = self.map(&memory, whole, &devices)?;
        if mapped_for != device {
            unmap(driver, addr, whole, true);
            return Err(Error::new(errno::EIO, format!("cuda: device {device} cannot map its own memory")));
        }
        Ok((addr, whole))
    }

    pub fn free(&self, addr: u64) -> Result<()> {
        let taken = self.allocations.lock().remove(&addr);
        let (device, len) =
            taken.ok_or_else(|| Error::invalid(format!("addr: {addr:#x} was not allocated by gdrfab, or is freed already")))?;
        let _current = self.enter(device)?;
        if len > 0 {
            unmap(&self.driver, addr, len, true);
            return Ok(());
        }
        // SAFETY: allocated by `alloc_plain`, and removed from the table, so it is freed once.
        let status = unsafe { self.driver.cuMemFree_v2(addr) }?;
        self.driver.check("cuMemFree", status)
    }
}
