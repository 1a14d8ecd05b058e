// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a vendor is to the library.

use super::memory::{Allocation, DeviceFacts, Dir, DmaBuf, Export, Iface, Import, Offer, Pinned};
use super::stream::Stream;
use crate::error::{Error, Result, errno};

/// One vendor. Implementations call the vendor's driver only, leave the caller's context as it was,
/// and keep driver codes as integers.
pub trait Interface: Send + Sync {
    fn iface(&self) -> Iface;

    fn devices(&self) -> &[DeviceFacts];

    /// Whether this process uses the device already, asked without beginning to; false where that is not known.
    fn active(&self, _device: u32) -> bool {
        false
    }

    /// What `addr` is; `None`: not this vendor's.
    fn detect(&self, addr: u64) -> Result<Option<Allocation>>;

    /// The identity of the allocation that `addr` lies in now, by the cheapest question there is; 0
    /// where the vendor has no identities, `None` if `addr` is not the vendor's any more.
    fn identity(&self, addr: u64) -> Option<u64> {
        self.detect(addr).ok().flatten().map(|a| a.id)
    }

    /// A dma-buf that covers `[addr, addr+len)`, which may span allocations if the vendor can.
    /// `pcie`: ask for the mapping that goes through the PCIe BAR.
    fn export_dmabuf(&self, addr: u64, len: u64, pcie: bool) -> Result<DmaBuf>;

    /// What another process of this host needs to map `of`.
    fn export(&self, of: &Allocation) -> Result<Export>;

    /// Maps what a peer exported, reachable from `device` if the caller has one in mind.
    fn import(&self, offer: &Offer<'_>, device: Option<u32>) -> Result<Import>;

    /// As `import` for an allocation of this very process, which another domain of it has exported: lets a device reach
    /// it at the address that it has, and gives the device that copies. An error where it is to be imported like another's.
    fn reach(&self, _of: &Allocation, _device: Option<u32>) -> Result<u32> {
        Err(Error::new(errno::EOPNOTSUPP, format!("{}: opens what this process exported as well", self.iface().name())))
    }

    /// Copies and returns when the bytes are in place. `device` is that of the device memory.
    ///
    /// # Safety
    /// The host side, if there is one, is readable or writable for `len` bytes.
    unsafe fn copy(&self, device: u32, dir: Dir, to: u64, from: u64, len: usize) -> Result<()>;

    /// Makes what a NIC wrote into the device's memory before this call visible to its kernels.
    fn flush(&self, _device: u32) -> Result<()> {
        let words = format!("{}: the driver has no call that makes a NIC's writes visible to a device's kernels", self.iface().name());
        Err(Error::new(errno::EOPNOTSUPP, words))
    }

    /// An order of copies that run while the caller goes on.
    fn stream(&'static self, device: u32) -> Result<Box<dyn Stream>>;

    /// Makes host memory fast for the vendor's copies; a hint.
    fn pin(&self, _addr: u64, _len: u64) -> Result<Pinned> {
        Err(Error::new(errno::ENOSYS, format!("{}: pinning host memory is not offered", self.iface().name())))
    }

    /// Whether a program that runs on the device can touch `[addr, addr+len)`, at that address.
    fn reaches(&self, _device: u32, _addr: u64, _len: u64) -> bool {
        false
    }

    /// Device memory that can be exported.
    fn alloc(&self, device: u32, len: u64) -> Result<u64>;

    /// Frees what `alloc` gave.
    fn free(&self, addr: u64) -> Result<()>;
}

/// The allocations that `[addr, addr+len)` lies in, in order, without a gap; an error names where one is.
pub fn span(up: &dyn Interface, addr: u64, len: u64) -> Result<Vec<Allocation>> {
    let name = up.iface().name();
    let end = addr.checked_add(len).ok_or_else(|| Error::invalid("iov: address plus length overflows"))?;
    let mut list = Vec::with_capacity(1);
    let mut at = addr;
    while at < end {
        let found = up.detect(at)?.ok_or_else(|| match list.is_empty() {
            true => Error::invalid(format!("iov: {at:#x} is not {name} memory of this process")),
            false => Error::invalid(format!("iov: {name} memory ends at {at:#x}, {} bytes before the range does", end - at)),
        })?;
        if found.end() <= at {
            return Err(Error::new(errno::EIO, format!("{name}: the driver says that {at:#x} lies outside its own allocation")));
        }
        at = found.end();
        list.push(found);
    }
    Ok(list)
}
