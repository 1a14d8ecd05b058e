// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Examines the memory that a caller wants to register, in the ways that all providers share: its ranges and length, the
//! device that owns it, and the allocations that it lies in.

use super::Iov;
use super::attr::Memory;
use crate::error::{Error, Result};
use crate::hmem::{self, Allocation, Iface, Interface, MemoryKind, Site};

pub fn check_range(iov: &Iov, i: usize) -> Result<()> {
    if iov.addr() == 0 {
        return Err(Error::invalid(format!("iov[{i}]: the address is NULL")));
    }
    if iov.is_empty() {
        return Err(Error::invalid(format!("iov[{i}]: the length is 0")));
    }
    if iov.addr().checked_add(iov.len()).is_none() {
        return Err(Error::invalid(format!("iov[{i}]: address plus length overflows")));
    }
    Ok(())
}

/// Checks ranges; gives the first address and the sum of the lengths.
pub fn extent(iovs: &[Iov]) -> Result<(u64, u64)> {
    let mut sum = 0u64;
    for (i, iov) in iovs.iter().enumerate() {
        check_range(iov, i)?;
        sum = sum.checked_add(iov.len() as u64).ok_or_else(|| Error::invalid("iov: the lengths sum to more than 64 bits"))?;
    }
    let base = iovs.first().map_or(0, |v| v.addr() as u64);
    base.checked_add(sum).ok_or_else(|| Error::invalid("iov: first address plus total length overflows"))?;
    Ok((base, sum))
}

/// The site of the memory. If the caller leaves it open, the first byte decides. `None`: host memory.
pub fn site_of(memory: Memory, base: u64) -> Result<Option<Site>> {
    match memory {
        Memory::Host => Ok(None),
        Memory::Device(site) => Ok(Some(site)),
        Memory::Auto => Ok(match hmem::detect(base)? {
            found if found.kind == MemoryKind::Host => None,
            found => Some(Site { iface: found.iface, device: found.device }),
        }),
    }
}

/// True if the memory is a device's, and not host memory that a vendor allocated or pinned, which the CPU can access.
/// Never fails.
pub fn is_on_device(memory: Memory, base: u64) -> bool {
    let found = match memory {
        Memory::Host => return false,
        Memory::Device(site) => hmem::get(site.iface).and_then(|up| up.detect(base)).ok().flatten(),
        Memory::Auto => hmem::detect(base).ok(),
    };
    found.is_some_and(|of| !matches!(of.kind, MemoryKind::Host | MemoryKind::Pinned))
}

/// Refuses device addresses, because the CPU would fault on them. Only open drivers are asked: this process can have no
/// device address that came through this library without an open driver.
pub fn refuse_device_memory(iovs: &[Iov]) -> Result<()> {
    if !hmem::any_opened() {
        return Ok(());
    }
    for up in Iface::ALL.into_iter().skip(1).filter_map(hmem::opened) {
        for (i, iov) in iovs.iter().enumerate() {
            if let Some(found) = up.detect(iov.addr() as u64)?
                && !matches!(found.kind, MemoryKind::Pinned | MemoryKind::Managed | MemoryKind::Host)
            {
                let name = up.iface().name();
                return Err(Error::invalid(format!(
                    "attr->iface: iov[{i}] is {} memory of {name} device {}, not host memory; set GDRFAB_HMEM_{} or GDRFAB_HMEM_AUTO",
                    found.kind.name(),
                    found.device,
                    name.to_uppercase()
                )));
            }
        }
    }
    Ok(())
}

/// Calls `each` for every allocation of `site` that the ranges lie in, with the range, and the address in the range
/// where the part inside this allocation begins. All allocations must be of one kind, which is the result.
pub fn each_allocation(up: &dyn Interface, site: Site, iovs: &[Iov], mut each: impl FnMut(&Iov, u64, &Allocation)) -> Result<MemoryKind> {
    let mut kind = None;
    for (i, iov) in iovs.iter().enumerate() {
        let mut at = iov.addr() as u64;
        for of in hmem::span(up, at, iov.len() as u64)? {
            if of.device != site.device {
                return Err(Error::invalid(format!(
                    "attr->device: {}, but iov[{i}] is memory of device {} at {at:#x}",
                    site.device, of.device
                )));
            }
            if *kind.get_or_insert(of.kind) != of.kind {
                return Err(Error::invalid(format!(
                    "iov[{i}]: {} memory at {at:#x} beside memory of another kind; use a region for each",
                    of.kind.name()
                )));
            }
            each(iov, at, &of);
            at = of.end();
        }
    }
    Ok(kind.unwrap_or_default())
}
