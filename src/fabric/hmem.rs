// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Device memory outside of any region: the devices of the host, the allocation that a pointer points into, and copies for
//! the caller. Each argument is checked against the driver's answer first, so that a wrong pointer is an error with words and
//! not a fault in the middle of a copy.

use crate::error::{Error, Result, errno};
use crate::hmem::{self, Allocation, DeviceFacts, Dir, DmaBuf, Iface, Interface, MemoryKind};
use std::fmt::Write;

/// The devices of an interface, or the reason why the interface cannot be used.
pub fn devices(iface: Iface) -> Result<&'static [DeviceFacts]> {
    Ok(hmem::get(iface)?.devices())
}

/// One device of an interface.
pub fn device(iface: Iface, number: u32) -> Result<&'static DeviceFacts> {
    let all = devices(iface)?;
    all.get(number as usize).ok_or_else(|| no_device(iface, number, all.len()))
}

/// True if this process uses the device already; false if there is no such device.
pub fn active(iface: Iface, number: u32) -> bool {
    hmem::get(iface).is_ok_and(|up| up.active(number))
}

fn no_device(iface: Iface, number: u32, count: usize) -> Error {
    let have = match count {
        0 => "no devices".to_string(),
        1 => "one device, number 0".to_string(),
        n => format!("{n} devices, numbers 0 to {}", n - 1),
    };
    Error::new(errno::ENODEV, format!("device: {number}; {} has {have}", iface.name()))
}

/// A number of bytes as people write it.
pub fn human(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| bytes >> shift != 0) {
        // Without floating point, whose formatting code is large.
        Some((shift, unit)) => match (bytes >> shift) * 10 + (((bytes & ((1 << shift) - 1)) * 10 + (1 << (shift - 1))) >> shift) {
            tenths if tenths % 10 == 0 => format!("{} {unit}", tenths / 10),
            tenths => format!("{}.{} {unit}", tenths / 10, tenths % 10),
        },
        None => format!("{bytes} bytes"),
    }
}

/// A text that says whether an interface can be used and what each of its devices can do.
pub fn explain(iface: Iface) -> String {
    let found = match devices(iface) {
        Ok(found) => found,
        Err(e) => return format!("{}: not usable: {}\n", iface.name(), without_name(iface, &e)),
    };
    if iface == Iface::System {
        return "system: usable: host memory, which needs no device\n".to_string();
    }
    let mut text = format!("{}: usable: {} device{}\n", iface.name(), found.len(), if found.len() == 1 { "" } else { "s" });
    for (number, facts) in found.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  device {number}: {}", describe(facts));
        let _ = writeln!(text, "    dma-buf: {}", verdict(&facts.dmabuf));
        let _ = writeln!(text, "    IPC: {}", verdict(&facts.ipc));
        let peers: Vec<String> = facts.peers.iter().map(u32::to_string).collect();
        let links = if peers.is_empty() { "no other device".to_string() } else { format!("device {}", peers.join(", ")) };
        let _ = writeln!(text, "    direct copies to and from: {links}");
    }
    text
}

/// The words of an error without the interface's name in front, for a text that has the name already.
pub fn without_name(iface: Iface, e: &Error) -> String {
    let text = e.to_string();
    text.strip_prefix(iface.name()).and_then(|t| t.strip_prefix(": ")).map_or(text.clone(), str::to_string)
}

/// Name, address and memory of a device, as far as they are known.
pub fn describe(facts: &DeviceFacts) -> String {
    let name = if facts.name.is_empty() { "of unknown name" } else { &facts.name };
    let mut text = name.to_string();
    if !facts.pci.is_empty() {
        let _ = write!(text, ", {}", facts.pci);
    }
    if facts.memory != 0 {
        let _ = write!(text, ", {}", human(facts.memory));
    }
    text
}

/// "yes", or "no" with the reason.
pub fn verdict(refused: &Option<Error>) -> String {
    refused.as_ref().map_or("yes".to_string(), |e| format!("no: {e}"))
}

/// The allocation that a pointer points into, and how far the memory reaches from there.
pub struct PointerTarget {
    pub of: Allocation,
    /// Bytes from the pointer on that lie in memory of the same interface and device without a gap:
    /// to the end of an allocation, and of further ones only until the length that was asked for is covered.
    pub covered: u64,
}

/// Finds the memory at an address by asking every vendor's driver. The extent of host memory is unknown, so the asked length
/// is taken.
pub fn detect(addr: u64, len: u64) -> Result<PointerTarget> {
    let end = addr.checked_add(len).ok_or_else(|| Error::invalid(format!("len: {addr:#x} plus {len} overflows")))?;
    let of = hmem::detect(addr)?;
    if of.iface == Iface::System {
        return Ok(PointerTarget { of, covered: len });
    }
    let up = hmem::get(of.iface)?;
    let mut at = of.end();
    while at < end {
        match up.detect(at)? {
            Some(next) if next.device == of.device && next.end() > at => at = next.end(),
            _ => break,
        }
    }
    Ok(PointerTarget { of, covered: at.saturating_sub(addr) })
}

/// A dma-buf that holds `[addr, addr+len)` of some device's memory.
pub fn export_dmabuf(addr: u64, len: u64, pcie: bool) -> Result<DmaBuf> {
    let target = detect(addr, len)?;
    let name = target.of.iface.name();
    if target.of.iface != Iface::System && target.covered < len {
        return Err(Error::invalid(format!("len: {len}; {name} memory ends {} bytes after ptr", target.covered)));
    }
    let made = hmem::get(target.of.iface)?.export_dmabuf(addr, len, pcie)?;
    match made.offset.checked_add(len) {
        Some(end) if end <= made.len && made.offset <= addr => Ok(made),
        _ => Err(Error::new(
            errno::EIO,
            format!("{name}: the driver exported {} bytes, too few for {len} bytes at offset {}", made.len, made.offset),
        )),
    }
}

/// The device of a copy: the caller's choice, or with `None` the device that the pointer belongs to.
#[derive(Clone, Copy)]
pub struct CopyDevice {
    pub iface: Option<Iface>,
    pub device: u32,
}

/// Copies host bytes into memory of a device, and returns when they are there.
///
/// # Safety
/// `from` is readable for `len` bytes; `to`, if it is host memory, is writable.
pub unsafe fn copy_to(at: CopyDevice, to: u64, from: u64, len: usize) -> Result<()> {
    match side(at, "dest", to, "src", from, len)? {
        // SAFETY: the caller promises `len` bytes on the host side; the device's side was checked.
        Some((up, device)) => unsafe { up.copy(device, Dir::ToDevice, to, from, len) },
        None => Ok(()),
    }
}

/// Copies memory of a device into host bytes, and returns when they are there.
///
/// # Safety
/// `to` is writable for `len` bytes; `from`, if it is host memory, is readable.
pub unsafe fn copy_from(at: CopyDevice, to: u64, from: u64, len: usize) -> Result<()> {
    match side(at, "src", from, "dest", to, len)? {
        // SAFETY: the caller promises `len` bytes on the host side; the device's side was checked.
        Some((up, device)) => unsafe { up.copy(device, Dir::FromDevice, to, from, len) },
        None => Ok(()),
    }
}

/// Makes bytes that a NIC wrote into a device's memory visible to the device's kernels.
pub fn flush(iface: Iface, number: u32) -> Result<()> {
    match (iface, number) {
        // Host memory has no devices; callers pass number 0 for it.
        (Iface::System, 0) => {}
        _ => drop(device(iface, number)?),
    }
    hmem::get(iface)?.flush(number)
}

/// Checks both sides of a copy, and returns the interface that copies and its device. `None`: there is nothing to copy.
fn side(
    at: CopyDevice,
    device_side: &str,
    addr: u64,
    host_side: &str,
    host: u64,
    len: usize,
) -> Result<Option<(&'static dyn Interface, u32)>> {
    let found = match at.iface {
        None if len > 0 => hmem::detect(addr)?,
        None => return Ok(None),
        Some(Iface::System) if at.device != 0 => return Err(no_device(Iface::System, at.device, 0)),
        Some(Iface::System) => Allocation::default(),
        Some(iface) => {
            device(iface, at.device)?;
            let up = hmem::get(iface)?;
            if len == 0 {
                return Ok(None);
            }
            up.detect(addr)?.ok_or_else(|| foreign(device_side, addr, iface))?
        }
    };
    if len == 0 {
        return Ok(None);
    }
    for (name, start) in [(device_side, addr), (host_side, host)] {
        start.checked_add(len as u64).ok_or_else(|| Error::invalid(format!("len: {name} plus {len} overflows")))?;
    }
    check_host(host_side, host)?;
    let up = hmem::get(found.iface)?;
    if found.iface == Iface::System {
        check_host(device_side, addr)?;
        return Ok(Some((up, 0)));
    }
    // Memory without an identity is known by its address alone, and some vendors then do not tell its device.
    if at.iface.is_some() && found.id != 0 && belongs_to_device(found.kind) && found.device != at.device {
        let (vendor, device) = (found.iface.name(), found.device);
        return Err(Error::invalid(format!("{device_side}: {addr:#x} is memory of {vendor} device {device}, not {}", at.device)));
    }
    // Only the last byte is checked: finding a gap in the middle would take a question to the driver for every allocation on
    // the way, so that is left to the driver's copy.
    let last = addr + (len as u64 - 1);
    if found.end() <= last && up.detect(last)?.is_none() {
        return Err(Error::invalid(format!("len: {len}; {device_side} is {} memory only up to {:#x}", found.iface.name(), found.end())));
    }
    Ok(Some((up, found.device)))
}

/// True if memory of this kind lies on one device.
fn belongs_to_device(kind: MemoryKind) -> bool {
    matches!(kind, MemoryKind::Plain | MemoryKind::Pool | MemoryKind::Segment)
}

fn foreign(name: &str, addr: u64, iface: Iface) -> Error {
    Error::invalid(format!("{name}: {addr:#x} is not {} memory of this process", iface.name()))
}

/// Refuses an address that the CPU cannot reach. A driver that was never opened has no memory in this process.
fn check_host(name: &str, addr: u64) -> Result<()> {
    for up in Iface::ALL.into_iter().filter(|i| *i != Iface::System).filter_map(hmem::opened) {
        if let Some(found) = up.detect(addr)?
            && (belongs_to_device(found.kind) || found.kind == MemoryKind::Imported)
        {
            let (vendor, device) = (found.iface.name(), found.device);
            return Err(Error::invalid(format!("{name}: {addr:#x} is memory of {vendor} device {device}, and must be host memory")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_no_driver_knows_is_host_memory() {
        let byte = 7u8;
        let target = detect(&raw const byte as u64, 100).unwrap();
        assert_eq!((target.of, target.covered), (Allocation::default(), 100));
        assert!(detect(u64::MAX, 2).is_err());
        assert_eq!(device(Iface::System, 0).unwrap_err().errno, errno::ENODEV);
    }

    #[test]
    fn host_to_host_is_a_copy_by_the_cpu() {
        let from = [1u8, 2, 3];
        let mut to = [0u8; 3];
        let at = CopyDevice { iface: Some(Iface::System), device: 0 };
        // SAFETY: two arrays of three bytes.
        unsafe { copy_to(at, to.as_mut_ptr() as u64, from.as_ptr() as u64, 3) }.unwrap();
        assert_eq!(to, from);
        // SAFETY: no byte is copied.
        assert!(unsafe { copy_from(at, u64::MAX, from.as_ptr() as u64, 3) }.is_err());
    }

    #[test]
    fn sizes_are_written_for_people() {
        assert_eq!((human(80 << 30), human(1536), human(7)), ("80 GiB".into(), "1.5 KiB".into(), "7 bytes".into()));
        assert_eq!((human((1 << 20) - 1), human(u64::MAX)), ("1024 KiB".into(), "16777216 TiB".into()));
    }
}
