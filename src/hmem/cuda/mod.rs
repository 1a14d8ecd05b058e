// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NVIDIA GPUs, by the CUDA driver library alone (no runtime library).
//!
//! `Cuda` implements [`Interface`] by calls to `Core`, whose methods are in one file per subject: `context.rs`,
//! `detect.rs`, `export.rs`, `import.rs`, `pin.rs`, `flush.rs`, `vmm.rs` (allocation), `copy.rs` and `list.rs`
//! (copies). `core.rs` has the data and the order of locks; `driver.rs` the driver's functions. Read `core.rs` first.

mod context;
mod copy;
mod core;
mod detect;
pub mod driver;
mod export;
mod flush;
mod import;
mod list;
mod pin;
mod vmm;

use super::{Allocation, DeviceFacts, Dir, DmaBuf, Export, Iface, Import, Interface, Offer, Pinned, Stream};
use crate::error::{Error, Result, errno};
use core::Core;
use cudarc::driver::sys::CUuuid;
use driver::{Driver, device, pointer};
use std::ffi::{CStr, c_char};
use std::sync::Arc;

struct Cuda(Arc<Core>);

/// Opens the driver and lists its devices. With `adopt`, only a driver that this process has loaded and initialised
/// itself.
pub fn open(adopt: bool) -> Result<Box<dyn Interface>> {
    let driver = Driver::open(adopt)?;
    if !adopt {
        // SAFETY: cuInit takes no pointer.
        driver.check("cuInit", unsafe { driver.cuInit(0) }?)?;
    }
    let mut count = 0;
    // SAFETY: the driver writes one int.
    match unsafe { driver.cuDeviceGetCount(&mut count) }? {
        driver::NOT_INITIALIZED if adopt => {
            return Err(Error::new(errno::ENODEV, format!("{} is loaded, but this process has not called cuInit", driver.library())));
        }
        status => driver.check("cuDeviceGetCount", status)?,
    }
    if count <= 0 {
        return Err(Error::new(errno::ENODEV, format!("{}: the driver is installed, but finds no device", driver.library())));
    }
    let facts: Vec<DeviceFacts> = (0..count).map(|number| describe(&driver, number, count)).collect();
    Ok(Box::new(Cuda(Arc::new(Core {
        primaries: facts.iter().map(|_| Default::default()).collect(),
        kernels: facts.iter().map(|_| Default::default()).collect(),
        writes: (0..count).map(|number| flush::writes(&driver, number)).collect(),
        driver,
        facts,
        handles: Default::default(),
        opened: Default::default(),
        imports: Default::default(),
        streams: Default::default(),
        allocations: Default::default(),
        pinned: Default::default(),
    }))))
}

/// A string that the driver writes; empty if the driver fails.
fn text(fill: impl FnOnce(*mut c_char, i32) -> Result<driver::Status>) -> String {
    let mut buffer = [0u8; 256];
    match fill(buffer.as_mut_ptr().cast(), buffer.len() as i32 - 1) {
        Ok(0) => CStr::from_bytes_until_nul(&buffer).map(|s| s.to_string_lossy().into_owned()).unwrap_or_default(),
        _ => String::new(),
    }
}

/// The driver's description of a device. A property that the driver does not give stays empty.
fn describe(driver: &Driver, number: i32, count: i32) -> DeviceFacts {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // The newer function distinguishes the parts of a partitioned device.
    // SAFETY: the driver writes 16 bytes.
    if !matches!(unsafe { driver.cuDeviceGetUuid_v2(&mut uuid, number) }, Ok(0)) {
        // SAFETY: the driver writes 16 bytes.
        let _ = unsafe { driver.cuDeviceGetUuid(&mut uuid, number) };
    }
    let mut memory = 0usize;
    // SAFETY: the driver writes one size.
    let _ = unsafe { driver.cuDeviceTotalMem_v2(&mut memory, number) };
    let can_reach = |peer: &i32| {
        let mut can = 0;
        // SAFETY: the driver writes one int.
        let status = unsafe { driver.cuDeviceCanAccessPeer(&mut can, number, *peer) };
        matches!(status, Ok(0)) && can != 0
    };
    let dmabuf = if !driver.has("cuMemGetHandleForAddressRange") {
        Some(Error::new(errno::ENOSYS, "dma-buf: the driver is older than 11.7 and lacks cuMemGetHandleForAddressRange"))
    } else if driver.attribute(device::DMA_BUF_SUPPORTED, number) == 0 {
        let words = "dma-buf: the device does not support them (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0)";
        Some(Error::new(errno::EOPNOTSUPP, words))
    } else {
        None
    };
    let ipc = (!driver.has("cuIpcGetMemHandle") && driver.attribute(device::HANDLE_TYPE_POSIX_FD, number) == 0)
        .then(|| Error::new(errno::ENOSYS, "the driver supports neither cuIpcGetMemHandle nor file descriptors of memory"));
    DeviceFacts {
        id: uuid.bytes.map(|b| b as u8),
        // SAFETY: the driver writes at most `len` bytes.
        name: text(|to, len| unsafe { driver.cuDeviceGetName(to, len, number) }),
        // SAFETY: the driver writes at most `len` bytes.
        pci: text(|to, len| unsafe { driver.cuDeviceGetPCIBusId(to, len, number) }).to_lowercase(),
        memory: memory as u64,
        dmabuf,
        ipc,
        peers: (0..count).filter(|peer| *peer != number).filter(can_reach).map(|peer| peer as u32).collect(),
    }
}

impl Core {
    /// True if memory can be allocated as segments that have a descriptor.
    fn segments(&self, number: u32) -> bool {
        let wanted = [device::VIRTUAL_MEMORY_MANAGEMENT, device::HANDLE_TYPE_POSIX_FD];
        self.driver.has("cuMemCreate") && wanted.iter().all(|a| self.driver.attribute(*a, number as i32) != 0)
    }
}

impl Interface for Cuda {
    fn iface(&self) -> Iface {
        Iface::Cuda
    }

    fn devices(&self) -> &[DeviceFacts] {
        &self.0.facts
    }

    fn active(&self, device: u32) -> bool {
        self.0.active(device)
    }

    fn detect(&self, addr: u64) -> Result<Option<Allocation>> {
        self.0.detect(addr)
    }

    #[inline]
    fn identity(&self, addr: u64) -> Option<u64> {
        let mut id = 0u64;
        // SAFETY: the driver writes eight bytes; it needs no context, and returns an error code for a foreign address.
        let status = unsafe { self.0.driver.cuPointerGetAttribute((&raw mut id).cast(), pointer::BUFFER_ID, addr) };
        matches!(status, Ok(0)).then_some(id)
    }

    fn export_dmabuf(&self, addr: u64, len: u64, pcie: bool) -> Result<DmaBuf> {
        self.0.export_dmabuf(addr, len, pcie)
    }

    fn export(&self, of: &Allocation) -> Result<Export> {
        self.0.export(of)
    }

    fn import(&self, offer: &Offer<'_>, device: Option<u32>) -> Result<Import> {
        self.0.import(offer, device)
    }

    fn reach(&self, of: &Allocation, device: Option<u32>) -> Result<u32> {
        self.0.reach(of, device)
    }

    unsafe fn copy(&self, device: u32, dir: Dir, to: u64, from: u64, len: usize) -> Result<()> {
        // SAFETY: the caller says that both sides hold `len` bytes (`Interface::copy`).
        unsafe { self.0.copy(device, dir, to, from, len) }
    }

    fn flush(&self, device: u32) -> Result<()> {
        self.0.flush(device)
    }

    fn stream(&'static self, device: u32) -> Result<Box<dyn Stream>> {
        self.0.stream(device)
    }

    fn pin(&self, addr: u64, len: u64) -> Result<Pinned> {
        self.0.pin(addr, len)
    }

    fn reaches(&self, device: u32, addr: u64, len: u64) -> bool {
        self.0.reaches(device, addr, len)
    }

    fn alloc(&self, device: u32, len: u64) -> Result<u64> {
        self.0.alloc(device, len)
    }

    fn free(&self, addr: u64) -> Result<()> {
        self.0.free(addr)
    }
}
