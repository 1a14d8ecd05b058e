// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations that the library needs from a vendor's driver, as one trait.

use super::memory::{Allocation, DeviceFacts, Dir, DmaBuf, Export, Iface, Import, Offer, Pinned};
use super::stream::Stream;
use crate::error::{Error, Result, errno};

/// One vendor. Implementations call only the vendor's driver, leave the caller's current context as it was, and keep
/// driver result codes as integers.
pub trait Interface: Send + Sync {
    fn iface(&self) -> Iface;

    fn devices(&self) -> &[DeviceFacts];

    /// True if this process uses the device already. The query itself must not begin a use of the device. False if the
    /// driver cannot tell.
    fn active(&self, _device: u32) -> bool {
        false
    }

    /// The allocation that `addr` lies in; `None` if the address is not this vendor's memory.
    fn detect(&self, addr: u64) -> Result<Option<Allocation>>;

    /// The identity of the allocation that `addr` lies in now, by the driver's cheapest query. 0 if the vendor has no
    /// identities; `None` if `addr` is not the vendor's memory any more.
    fn identity(&self, addr: u64) -> Option<u64> {
        self.detect(addr).ok().flatten().map(|a| a.id)
    }

    /// A dma-buf that covers `[addr, addr+len)`. The range may span several allocations if the vendor supports that.
    /// `pcie` asks for the mapping that goes through the PCIe BAR.
    fn export_dmabuf(&self, addr: u64, len: u64, pcie: bool) -> Result<DmaBuf>;

    /// Exports an allocation: the result is all that another process of this host needs to map it.
    fn export(&self, of: &Allocation) -> Result<Export>;

    /// Maps memory that a peer exported. `device` is the device that shall reach the mapping, if the caller has a
    /// preference.
    fn import(&self, offer: &Offer<'_>, device: Option<u32>) -> Result<Import>;

    /// Like `import`, for an allocation that another domain of this same process exported: lets `device` reach the
    /// memory at its own address, and returns the device that copies. An error means that the memory has to be imported
    /// like a peer's.
    fn reach(&self, _of: &Allocation, _device: Option<u32>) -> Result<u32> {
        Err(Error::new(errno::EOPNOTSUPP, format!("{}: memory that this process exported is imported like a peer's", self.iface().name())))
    }

    /// Copies, and returns when the bytes are in place. `device` owns the device memory.
    ///
    /// # Safety
    /// The host side, if there is one, is readable (as source) or writable (as target) for `len` bytes.
    unsafe fn copy(&self, device: u32, dir: Dir, to: u64, from: u64, len: usize) -> Result<()>;

    /// Makes bytes that a NIC wrote into the device's memory before this call visible to the device's kernels.
    fn flush(&self, _device: u32) -> Result<()> {
        let words = format!("{}: the driver has no call that makes a NIC's writes visible to a device's kernels", self.iface().name());
        Err(Error::new(errno::EOPNOTSUPP, words))
    }

    /// A sequence of copies that run while the caller goes on.
    fn stream(&'static self, device: u32) -> Result<Box<dyn Stream>>;

    /// Pins host memory so that the vendor's copies are faster. Callers go on without the pin if this fails.
    fn pin(&self, _addr: u64, _len: u64) -> Result<Pinned> {
        Err(Error::new(errno::ENOSYS, format!("{}: pinning host memory is not supported", self.iface().name())))
    }

    /// True if a kernel on the device can access `[addr, addr+len)` at these addresses.
    fn reaches(&self, _device: u32, _addr: u64, _len: u64) -> bool {
        false
    }

    /// Allocates device memory that can be exported.
    fn alloc(&self, device: u32, len: u64) -> Result<u64>;

    /// Frees memory of `alloc`.
    fn free(&self, addr: u64) -> Result<()>;
}

/// The allocations that cover `[addr, addr+len)`, in order and without a gap. If there is a gap, the error names its
/// address.
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
