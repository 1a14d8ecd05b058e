// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds every Level Zero driver and its GPUs, and the ways in which their memory can be shared.

use super::super::DeviceFacts;
use super::driver::*;
use crate::error::{Error, Result, errno};
use parking_lot::Mutex;
use std::ptr;

/// A Level Zero driver, represented by this library's context of it.
pub struct Driver {
    pub(super) context: Handle,
}

pub struct Device {
    pub(super) handle: Handle,
    pub(super) driver: usize,
    /// Ordinal of the group of queues used for copies.
    pub(super) queue: u32,
    /// The command list for blocking copies, made when first used.
    pub(super) list: Mutex<Option<Handle>>,
}

/// Initialises the loader; with `adopt`, only checks that the process has done so.
pub fn initialise(ze: &Loader, adopt: bool) -> Result<()> {
    if adopt {
        let known = drivers(ze).map(|_| ());
        return known
            .map_err(|e| e.context("the process has not initialised Level Zero, and GDRFAB_HMEM_DRIVER=adopt forbids gdrfab to do so"));
    }
    // SAFETY: callable at any time, and more than once.
    unsafe { call!(ze, zeInit(INIT_FLAG_GPU_ONLY)) }.map_err(|e| Error::new(errno::ENODEV, format!("no usable GPU: {}", e.words)))
}

/// Every driver that has a GPU, and all their GPUs.
pub fn look(ze: &Loader) -> Result<(Vec<Driver>, Vec<Device>, Vec<DeviceFacts>)> {
    let (mut found, mut devices, mut facts) = (Vec::new(), Vec::new(), Vec::new());
    let mut why = None;
    for driver in drivers(ze)? {
        match driver_devices(ze, driver) {
            Ok((_, list)) if list.is_empty() => {}
            Ok((context, list)) => {
                facts.extend(list.iter().map(|d| facts_of(ze, driver, *d, &list, facts.len())).collect::<Vec<_>>());
                let index = found.len();
                devices.extend(list.into_iter().map(|d| Device {
                    handle: d,
                    driver: index,
                    queue: queue_group(ze, d),
                    list: Mutex::new(None),
                }));
                found.push(Driver { context });
            }
            // A driver that fails does not prevent the use of another.
            Err(e) => why = Some(e),
        }
    }
    match (devices.is_empty(), why) {
        (true, Some(e)) => Err(Error::new(errno::ENODEV, format!("no usable GPU: {}", e.words))),
        (true, None) => Err(Error::new(errno::ENODEV, "Level Zero lists no GPU")),
        _ => Ok((found, devices, facts)),
    }
}

/// Queries a list in two calls: first its length, then its elements.
fn list(ask: impl Fn(&mut u32, *mut Handle) -> Result<()>) -> Result<Vec<Handle>> {
    let mut count = 0;
    ask(&mut count, ptr::null_mut())?;
    let mut all = vec![Handle::NULL; count as usize];
    ask(&mut count, all.as_mut_ptr())?;
    all.truncate(count as usize);
    Ok(all)
}

fn drivers(ze: &Loader) -> Result<Vec<Handle>> {
    // SAFETY: the array has as many elements as the count says.
    list(|count, all| unsafe { call!(ze, zeDriverGet(count, all)) })
}

/// The driver's GPUs, and a context of the driver if it has a GPU.
fn driver_devices(ze: &Loader, driver: Handle) -> Result<(Handle, Vec<Handle>)> {
    // SAFETY: room for as many as the count says.
    let mut all = list(|count, all| unsafe { call!(ze, zeDeviceGet(driver, count, all)) })?;
    all.retain(|d| properties(ze, *d).is_ok_and(|p| p.kind == DEVICE_TYPE_GPU));
    let mut context = Handle::NULL;
    if !all.is_empty() {
        let desc = Flags { head: Head::new(STYPE_CONTEXT_DESC), flags: 0 };
        // SAFETY: both structs are ours.
        unsafe { call!(ze, zeContextCreate(driver, &desc, &mut context))? };
    }
    Ok((context, all))
}

fn properties(ze: &Loader, device: Handle) -> Result<DeviceProperties> {
    // SAFETY: all zeros is a valid value of this plain struct.
    let mut p: DeviceProperties = unsafe { std::mem::zeroed() };
    p.head = Head::new(STYPE_DEVICE_PROPERTIES);
    // SAFETY: `p` says its kind, and chains nothing.
    unsafe { call!(ze, zeDeviceGetProperties(device, &mut p))? };
    Ok(p)
}

/// The ordinal of the queue group for copies; groups that can only copy are preferred.
fn queue_group(ze: &Loader, device: Handle) -> u32 {
    let mut count = 0;
    // SAFETY: asks for the number of groups only.
    let asked = unsafe { call!(ze, zeDeviceGetCommandQueueGroupProperties(device, &mut count, ptr::null_mut())) };
    let empty = QueueGroupProperties { head: Head::new(STYPE_COMMAND_QUEUE_GROUP_PROPERTIES), flags: 0, max_fill_pattern: 0, queues: 0 };
    let mut groups = vec![empty; if asked.is_ok() { count as usize } else { 0 }];
    // SAFETY: room for as many as the count says, each with its kind.
    let asked = asked.and_then(|()| unsafe { call!(ze, zeDeviceGetCommandQueueGroupProperties(device, &mut count, groups.as_mut_ptr())) });
    let flags: Vec<u32> = groups.iter().map(|g| if g.queues > 0 && asked.is_ok() { g.flags } else { 0 }).collect();
    copy_group(&flags)
}

/// Picks a group by its flags. If no group has a flag, group 0 is picked, which by convention can do everything.
fn copy_group(flags: &[u32]) -> u32 {
    let both = QUEUE_GROUP_FLAG_COPY | QUEUE_GROUP_FLAG_COMPUTE;
    let only_copy = flags.iter().position(|f| f & both == QUEUE_GROUP_FLAG_COPY);
    only_copy.or_else(|| flags.iter().position(|f| f & both != 0)).unwrap_or(0) as u32
}

pub fn can_reach(ze: &Loader, device: Handle, peer: Handle) -> bool {
    let mut yes = 0u8;
    // SAFETY: `yes` is ours.
    device == peer || unsafe { call!(ze, zeDeviceCanAccessPeer(device, peer, &mut yes)) }.is_ok() && yes != 0
}

fn memory(ze: &Loader, device: Handle) -> Result<u64> {
    let mut count = 0;
    // SAFETY: asks for the number only.
    unsafe { call!(ze, zeDeviceGetMemoryProperties(device, &mut count, ptr::null_mut()))? };
    let empty = || DeviceMemoryProperties {
        head: Head::new(STYPE_DEVICE_MEMORY_PROPERTIES),
        flags: 0,
        max_clock_rate: 0,
        max_bus_width: 0,
        total_size: 0,
        name: [0; 256],
    };
    let mut all: Vec<_> = (0..count).map(|_| empty()).collect();
    // SAFETY: room for as many as the count says, each with its kind.
    unsafe { call!(ze, zeDeviceGetMemoryProperties(device, &mut count, all.as_mut_ptr()))? };
    Ok(all.iter().map(|m| m.total_size).fold(0, u64::saturating_add))
}

fn pci(ze: &Loader, device: Handle) -> Result<String> {
    // SAFETY: all zeros is a valid value of this plain struct.
    let mut p: PciProperties = unsafe { std::mem::zeroed() };
    p.head = Head::new(STYPE_PCI_EXT_PROPERTIES);
    // SAFETY: `p` says its kind, and chains nothing.
    unsafe { call!(ze, zeDevicePciGetPropertiesExt(device, &mut p))? };
    Ok(format!("{:04x}:{:02x}:{:02x}.{:x}", p.domain, p.bus, p.device, p.function))
}

/// `None` if the device's memory can be exported as a dma-buf; else the reason why not.
fn dmabuf(ze: &Loader, device: Handle) -> Option<Error> {
    let mut p = ExternalMemoryProperties {
        head: Head::new(STYPE_DEVICE_EXTERNAL_MEMORY_PROPERTIES),
        import_types: 0,
        export_types: 0,
        image_import_types: 0,
        image_export_types: 0,
    };
    // SAFETY: `p` says its kind, and chains nothing.
    match unsafe { call!(ze, zeDeviceGetExternalMemoryProperties(device, &mut p)) } {
        Err(e) => Some(e),
        Ok(()) if p.export_types & EXTERNAL_MEMORY_DMA_BUF == 0 => {
            Some(Error::new(errno::EOPNOTSUPP, format!("the device exports memory as {:#x}, not as dma-buf (0x2)", p.export_types)))
        }
        Ok(()) => None,
    }
}

fn ipc(ze: &Loader, driver: Handle) -> Option<Error> {
    let mut p = Flags { head: Head::new(STYPE_DRIVER_IPC_PROPERTIES), flags: 0 };
    // SAFETY: `p` says its kind, and chains nothing.
    match unsafe { call!(ze, zeDriverGetIpcProperties(driver, &mut p)) } {
        Err(e) => Some(e),
        Ok(()) if p.flags & IPC_PROPERTY_MEMORY == 0 => {
            Some(Error::new(errno::EOPNOTSUPP, format!("the driver shares {:#x} between processes, not memory (0x1)", p.flags)))
        }
        Ok(()) => None,
    }
}

/// The properties of a device. `first` is the number of its driver's first device.
fn facts_of(ze: &Loader, driver: Handle, device: Handle, all: &[Handle], first: usize) -> DeviceFacts {
    let p = properties(ze, device).ok();
    let name = p.as_ref().and_then(|p| p.name.split(|b| *b == 0).next()).unwrap_or_default();
    let peer = |(i, other): (usize, &Handle)| (*other != device && can_reach(ze, device, *other)).then_some((first + i) as u32);
    DeviceFacts {
        id: p.as_ref().map(|p| p.uuid).unwrap_or_default(),
        name: String::from_utf8_lossy(name).into_owned(),
        pci: pci(ze, device).unwrap_or_default(),
        memory: memory(ze, device).unwrap_or(0),
        dmabuf: dmabuf(ze, device),
        ipc: ipc(ze, driver),
        peers: all.iter().enumerate().filter_map(peer).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_that_only_copy_come_first() {
        assert_eq!(copy_group(&[3, 2, 2]), 1);
        assert_eq!(copy_group(&[7]), 0);
        assert_eq!(copy_group(&[0, 3]), 1);
        assert_eq!(copy_group(&[]), 0);
    }
}
