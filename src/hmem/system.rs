// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Host memory as an [`Interface`], like device memory. The CPU copies; there are no devices, exports or allocations.

use super::{Allocation, DeviceFacts, Dir, DmaBuf, Export, Iface, Import, Interface, Offer, Stream, immediate};
use crate::error::{Error, Result, errno};
use crate::sys::copy;

pub struct System;

fn not_for_host(what: &str) -> Error {
    Error::new(errno::EOPNOTSUPP, format!("system: host memory has no {what}"))
}

impl Interface for System {
    fn iface(&self) -> Iface {
        Iface::System
    }

    fn devices(&self) -> &[DeviceFacts] {
        &[]
    }

    fn detect(&self, _addr: u64) -> Result<Option<Allocation>> {
        Ok(None)
    }

    fn export_dmabuf(&self, _addr: u64, _len: u64, _pcie: bool) -> Result<DmaBuf> {
        Err(not_for_host("dma-buf"))
    }

    fn export(&self, _of: &Allocation) -> Result<Export> {
        Err(not_for_host("IPC handle"))
    }

    fn import(&self, _offer: &Offer<'_>, _device: Option<u32>) -> Result<Import> {
        Err(not_for_host("IPC handle"))
    }

    unsafe fn copy(&self, _device: u32, _dir: Dir, to: u64, from: u64, len: usize) -> Result<()> {
        // SAFETY: the caller promises that both sides hold `len` bytes (`Interface::copy`).
        unsafe { copy::copy(to as *mut u8, from as *const u8, len, usize::MAX) };
        Ok(())
    }

    fn flush(&self, _device: u32) -> Result<()> {
        // The CPU sees a NIC's writes before it sees the completion, so nothing has to be flushed.
        Ok(())
    }

    fn stream(&'static self, device: u32) -> Result<Box<dyn Stream>> {
        Ok(Box::new(immediate::ImmediateStream::new(&System, device)))
    }

    fn alloc(&self, _device: u32, _len: u64) -> Result<u64> {
        Err(not_for_host("device to allocate on; gdrfab_mem_alloc makes shareable host memory"))
    }

    fn free(&self, _addr: u64) -> Result<()> {
        Err(not_for_host("device to free on"))
    }
}
