// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the allocation of an address, by one driver call that needs no context and also answers for foreign addresses.
//! A driver that lacks one of the attributes refuses the whole call; then each attribute is queried alone.

use super::core::Core;
use super::driver::{self, pointer};
use crate::error::{Error, Result, errno};
use crate::hmem::{Allocation, Iface, MemoryKind};
use std::ffi::c_void;

const ATTRIBUTES: [u32; 11] = [
    pointer::MEMORY_TYPE,
    pointer::DEVICE_ORDINAL,
    pointer::IS_MANAGED,
    pointer::BUFFER_ID,
    pointer::RANGE_START_ADDR,
    pointer::RANGE_SIZE,
    pointer::MEMPOOL_HANDLE,
    pointer::MAPPING_BASE_ADDR,
    pointer::MAPPING_SIZE,
    pointer::CONTEXT,
    pointer::IS_LEGACY_IPC_CAPABLE,
];

/// The driver's answers, in the order of [`ATTRIBUTES`].
type Answers = [u64; ATTRIBUTES.len()];

impl Core {
    pub fn detect(&self, addr: u64) -> Result<Option<Allocation>> {
        let answers = match self.query_all(addr)? {
            Some(answers) => answers,
            None => match self.query_each(addr)? {
                Some(answers) => answers,
                None => return Ok(None),
            },
        };
        let Some(mut found) = classify(&answers) else { return Ok(None) };
        if found.kind != MemoryKind::Pinned && found.device as usize >= self.facts.len() {
            let words = format!("cuda: the driver says that {addr:#x} is on device {}, of {}", found.device, self.facts.len());
            return Err(Error::new(errno::EIO, words));
        }
        if found.len == 0 {
            (found.base, found.len) = self.range(addr, found.device)?;
        }
        if self.is_import(found.base) {
            found.kind = MemoryKind::Imported;
        }
        Ok(Some(found))
    }

    /// Queries all attributes in one call. `None`: this driver refuses the call, and each attribute has to be queried
    /// alone.
    fn query_all(&self, addr: u64) -> Result<Option<Answers>> {
        let mut asked = ATTRIBUTES;
        let mut answers: Answers = [0; ATTRIBUTES.len()];
        let mut places = [std::ptr::null_mut::<c_void>(); ATTRIBUTES.len()];
        for (place, answer) in places.iter_mut().zip(&mut answers) {
            *place = (answer as *mut u64).cast();
        }
        // SAFETY: each element has eight zeroed bytes, the most that any of these attributes needs.
        let status = unsafe { self.driver.cuPointerGetAttributes(ATTRIBUTES.len() as u32, asked.as_mut_ptr(), places.as_mut_ptr(), addr) };
        match status {
            Ok(0) => Ok(Some(answers)),
            Err(_) | Ok(driver::INVALID_VALUE | driver::INVALID_CONTEXT) => Ok(None),
            Ok(status) => Err(self.driver.error("cuPointerGetAttributes", status)),
        }
    }

    /// Queries the attributes one by one. `None`: the driver does not know the address.
    fn query_each(&self, addr: u64) -> Result<Option<Answers>> {
        let mut answers: Answers = [0; ATTRIBUTES.len()];
        for (answer, attribute) in answers.iter_mut().zip(ATTRIBUTES) {
            match self.driver.pointer(attribute, addr) {
                Ok(value) => *answer = value,
                Err(_) if attribute == pointer::MEMORY_TYPE => return Ok(None),
                Err(_) => {}
            }
        }
        Ok(Some(answers))
    }

    /// The mapping that `addr` lies in, for drivers without the range attributes. Needs a context.
    pub fn range(&self, addr: u64, device: u32) -> Result<(u64, u64)> {
        let _current = self.enter_owner(addr, device)?;
        let (mut base, mut len) = (0, 0);
        // SAFETY: the driver writes an address and a size.
        let status = unsafe { self.driver.cuMemGetAddressRange_v2(&mut base, &mut len, addr) }?;
        self.driver.check("cuMemGetAddressRange", status)?;
        Ok((base, len as u64))
    }
}

/// Interprets the answers. A length of 0 means that the driver did not give one.
fn classify(answers: &Answers) -> Option<Allocation> {
    let [memory, ordinal, managed, id, start, size, pool, mapping, mapped, context, legacy] = *answers;
    // Attributes have different widths; bytes that the driver did not write are zero.
    let (memory, ordinal, managed, legacy) = (memory & 0xffff_ffff, ordinal as u32, managed & 0xff, legacy & 0xff);
    // The driver answers for any address. An unknown address has no memory type; reserved addresses without memory
    // behind them have a range, but no type either.
    if memory == 0 {
        return None;
    }
    let (kind, base, len) = if managed != 0 {
        (MemoryKind::Managed, start, size)
    } else if memory == driver::MEMORY_TYPE_HOST {
        (MemoryKind::Pinned, start, size)
    } else if pool != 0 {
        (MemoryKind::Pool, start, size)
    } else if context == 0 && legacy == 0 {
        // Mapped segments belong to no context. The range of a mapped segment is the whole reservation, parts of which
        // may be empty; the mapping attributes give the segment itself, and the identity is the segment's too.
        (MemoryKind::Segment, mapping, mapped)
    } else {
        (MemoryKind::Plain, start, size)
    };
    // Host memory can be registered without a device.
    let device = if kind == MemoryKind::Pinned && ordinal > i32::MAX as u32 { 0 } else { ordinal };
    Some(Allocation { iface: Iface::Cuda, device, kind, base, len, id })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of a real driver (13.0), in the order of `ATTRIBUTES`.
    #[test]
    fn answers_become_kinds() {
        let kind = |answers: Answers| classify(&answers).map(|a| (a.kind, a.base, a.len, a.device));
        let plain = [2, 0, 0, 0x38b, 0x7000_0000, 0x186a0, 0, 0x7000_0000, 0x20_0000, 0x55ae, 1];
        assert_eq!(kind(plain), Some((MemoryKind::Plain, 0x7000_0000, 0x186a0, 0)));
        let segment = [2, 1, 0, 0x390, 0x4480_0000, 0x100_0000, 0, 0x44a0_0000, 0x40_0000, 0, 0];
        assert_eq!(kind(segment), Some((MemoryKind::Segment, 0x44a0_0000, 0x40_0000, 1)));
        let hole = [0, 0xffff_fffe, 0, 0, 0x4480_0000, 0x100_0000, 0, 0, 0, 0, 0];
        assert_eq!(kind(hole), None);
        let managed = [2, 0, 1, 0x394, 0x2400_0000, 0x2000, 0, 0x2400_0000, 0x20_0000, 0x55ae, 0];
        assert_eq!(kind(managed).map(|k| k.0), Some(MemoryKind::Managed));
        let pinned = [1, 0, 0, 0x396, 0xf1000, 0x10000, 0, 0xf1000, 0x10000, 0x55ae, 0];
        assert_eq!(kind(pinned).map(|k| k.0), Some(MemoryKind::Pinned));
        let pool = [2, 0, 0, 0x3a2, 0x48_ea00_0000, 0x2000, 0x55ae, 0x48_ea00_0000, 0x200_0000, 0, 0];
        assert_eq!(kind(pool), Some((MemoryKind::Pool, 0x48_ea00_0000, 0x2000, 0)));
        let foreign = [0, 0xffff_fffe, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(kind(foreign), None);
    }
}
