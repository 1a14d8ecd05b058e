// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Functions, structs and constants of the Level Zero loader, from `ze_api.h`.

use crate::error::{Error, Result, errno};
use crate::sys::dl::{Library, entry_points};
use std::ffi::c_void;
use std::ptr;

/// Drivers, devices, contexts, lists, pools and events are opaque pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Handle(*mut c_void);

impl Handle {
    pub const NULL: Handle = Handle(ptr::null_mut());
}

// SAFETY: the pointer is only a name for the driver's object; callers must serialise calls as the specification
// demands.
unsafe impl Send for Handle {}
// SAFETY: the pointer is only a name for the driver's object.
unsafe impl Sync for Handle {}

pub const INIT_FLAG_GPU_ONLY: u32 = 1;

const RESULT_SUCCESS: u32 = 0;
pub const RESULT_NOT_READY: u32 = 1;
const RESULT_OUT_OF_HOST_MEMORY: u32 = 0x7000_0002;
const RESULT_OUT_OF_DEVICE_MEMORY: u32 = 0x7000_0003;
const RESULT_INVALID_NULL_HANDLE: u32 = 0x7800_0005;
const RESULT_INVALID_NULL_POINTER: u32 = 0x7800_0007;
const RESULT_INVALID_SIZE: u32 = 0x7800_0008;
const RESULT_UNSUPPORTED_SIZE: u32 = 0x7800_0009;
const RESULT_INVALID_SYNCHRONIZATION_OBJECT: u32 = 0x7800_000b;
const RESULT_INVALID_ENUMERATION: u32 = 0x7800_000c;
const RESULT_ADDRESS_NOT_FOUND: u32 = 0x7800_0021;

/// The results that are likely here, each with its errno and its name in the header.
const RESULTS: [(u32, i32, &str); 22] = [
    (0x7000_0001, errno::ENODEV, "ERROR_DEVICE_LOST"),
    (RESULT_OUT_OF_HOST_MEMORY, errno::ENOMEM, "ERROR_OUT_OF_HOST_MEMORY"),
    (RESULT_OUT_OF_DEVICE_MEMORY, errno::ENOMEM, "ERROR_OUT_OF_DEVICE_MEMORY"),
    (0x7000_0006, errno::ENODEV, "ERROR_DEVICE_REQUIRES_RESET"),
    (0x7000_0007, errno::ENODEV, "ERROR_DEVICE_IN_LOW_POWER_STATE"),
    (0x7001_0000, errno::EACCES, "ERROR_INSUFFICIENT_PERMISSIONS"),
    (0x7001_0001, errno::EBUSY, "ERROR_NOT_AVAILABLE"),
    (0x7002_0000, errno::ENODEV, "ERROR_DEPENDENCY_UNAVAILABLE"),
    (0x7800_0001, errno::ENODEV, "ERROR_UNINITIALIZED"),
    (0x7800_0002, errno::EOPNOTSUPP, "ERROR_UNSUPPORTED_VERSION"),
    (0x7800_0003, errno::EOPNOTSUPP, "ERROR_UNSUPPORTED_FEATURE"),
    (0x7800_0004, errno::EINVAL, "ERROR_INVALID_ARGUMENT"),
    (RESULT_INVALID_NULL_HANDLE, errno::EINVAL, "ERROR_INVALID_NULL_HANDLE"),
    (0x7800_0006, errno::EBUSY, "ERROR_HANDLE_OBJECT_IN_USE"),
    (RESULT_INVALID_NULL_POINTER, errno::EINVAL, "ERROR_INVALID_NULL_POINTER"),
    (RESULT_INVALID_SIZE, errno::EINVAL, "ERROR_INVALID_SIZE"),
    (RESULT_UNSUPPORTED_SIZE, errno::ENOMEM, "ERROR_UNSUPPORTED_SIZE"),
    (RESULT_INVALID_SYNCHRONIZATION_OBJECT, errno::EINVAL, "ERROR_INVALID_SYNCHRONIZATION_OBJECT"),
    (RESULT_INVALID_ENUMERATION, errno::EINVAL, "ERROR_INVALID_ENUMERATION"),
    (0x7800_000d, errno::EOPNOTSUPP, "ERROR_UNSUPPORTED_ENUMERATION"),
    (RESULT_ADDRESS_NOT_FOUND, errno::EINVAL, "ERROR_ADDRESS_NOT_FOUND"),
    (0x7fff_fffe, errno::EIO, "ERROR_UNKNOWN"),
];

/// Converts the result of the function `what`.
pub fn check(what: &str, result: u32) -> Result<()> {
    if result == RESULT_SUCCESS {
        return Ok(());
    }
    match RESULTS.iter().find(|(number, ..)| *number == result) {
        Some((_, errno, name)) => Err(Error::new(*errno, format!("{what}: {result:#x} (ZE_RESULT_{name})"))),
        None => Err(Error::new(errno::EIO, format!("{what}: {result:#x}"))),
    }
}

// Each struct begins with its type and a chain of extensions.
pub const STYPE_DRIVER_IPC_PROPERTIES: u32 = 0x2;
pub const STYPE_DEVICE_PROPERTIES: u32 = 0x3;
pub const STYPE_COMMAND_QUEUE_GROUP_PROPERTIES: u32 = 0x6;
pub const STYPE_DEVICE_MEMORY_PROPERTIES: u32 = 0x7;
pub const STYPE_DEVICE_EXTERNAL_MEMORY_PROPERTIES: u32 = 0xc;
pub const STYPE_CONTEXT_DESC: u32 = 0xd;
pub const STYPE_COMMAND_QUEUE_DESC: u32 = 0xe;
pub const STYPE_EVENT_POOL_DESC: u32 = 0x10;
pub const STYPE_EVENT_DESC: u32 = 0x11;
pub const STYPE_DEVICE_MEM_ALLOC_DESC: u32 = 0x15;
pub const STYPE_MEMORY_ALLOCATION_PROPERTIES: u32 = 0x17;
pub const STYPE_EXTERNAL_MEMORY_EXPORT_DESC: u32 = 0x18;
pub const STYPE_EXTERNAL_MEMORY_EXPORT_FD: u32 = 0x1a;
pub const STYPE_PCI_EXT_PROPERTIES: u32 = 0x1_0008;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Head {
    pub stype: u32,
    pub next: *mut c_void,
}

impl Head {
    pub const fn new(stype: u32) -> Head {
        Head { stype, next: ptr::null_mut() }
    }
}

/// `ze_context_desc_t`, `ze_driver_ipc_properties_t`, `ze_external_memory_export_desc_t`.
#[repr(C)]
pub struct Flags {
    pub head: Head,
    pub flags: u32,
}

#[repr(C)]
pub struct DeviceProperties {
    pub head: Head,
    pub kind: u32,
    pub vendor: u32,
    pub device: u32,
    pub flags: u32,
    pub subdevice: u32,
    pub core_clock_rate: u32,
    pub max_mem_alloc_size: u64,
    pub counts: [u32; 7],
    pub timer_resolution: u64,
    pub timestamp_bits: [u32; 2],
    pub uuid: [u8; 16],
    pub name: [u8; 256],
}

#[repr(C)]
pub struct DeviceMemoryProperties {
    pub head: Head,
    pub flags: u32,
    pub max_clock_rate: u32,
    pub max_bus_width: u32,
    pub total_size: u64,
    pub name: [u8; 256],
}

#[repr(C)]
pub struct ExternalMemoryProperties {
    pub head: Head,
    pub import_types: u32,
    pub export_types: u32,
    pub image_import_types: u32,
    pub image_export_types: u32,
}

#[repr(C)]
pub struct PciProperties {
    pub head: Head,
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
    pub function: u32,
    pub gen_version: i32,
    pub width: i32,
    pub max_bandwidth: i64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct QueueGroupProperties {
    pub head: Head,
    pub flags: u32,
    pub max_fill_pattern: usize,
    pub queues: u32,
}

#[repr(C)]
pub struct QueueDesc {
    pub head: Head,
    pub ordinal: u32,
    pub index: u32,
    pub flags: u32,
    pub mode: u32,
    pub priority: u32,
}

/// `ze_event_pool_desc_t`, `ze_device_mem_alloc_desc_t`.
#[repr(C)]
pub struct FlagsAndNumber {
    pub head: Head,
    pub flags: u32,
    /// Number of events of the pool, or ordinal of the memory.
    pub number: u32,
}

#[repr(C)]
pub struct EventDesc {
    pub head: Head,
    pub index: u32,
    pub signal: u32,
    pub wait: u32,
}

#[repr(C)]
pub struct AllocationProperties {
    pub head: Head,
    pub kind: u32,
    pub id: u64,
    pub page_size: u64,
}

#[repr(C)]
pub struct ExportFd {
    pub head: Head,
    pub flags: u32,
    pub fd: i32,
}

/// `ze_ipc_mem_handle_t`, passed by value. On Linux it begins with a file descriptor of the process.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IpcHandle {
    pub data: [u8; 64],
}

pub const DEVICE_TYPE_GPU: u32 = 1;
pub const QUEUE_GROUP_FLAG_COMPUTE: u32 = 1;
pub const QUEUE_GROUP_FLAG_COPY: u32 = 2;
pub const QUEUE_MODE_SYNCHRONOUS: u32 = 1;
pub const QUEUE_MODE_ASYNCHRONOUS: u32 = 2;
pub const EVENT_POOL_FLAG_HOST_VISIBLE: u32 = 1;
pub const EVENT_SCOPE_FLAG_HOST: u32 = 4;
pub const EXTERNAL_MEMORY_DMA_BUF: u32 = 2;
pub const IPC_PROPERTY_MEMORY: u32 = 1;
pub const MEMORY_HOST: u32 = 1;
pub const MEMORY_DEVICE: u32 = 2;
pub const MEMORY_SHARED: u32 = 3;
pub const MEMORY_HOST_IMPORTED: u32 = 4;

entry_points! {
    /// The loader's functions.
    pub struct Loader {
        #[hold_standard]
        fn zeInit(flags: u32) -> u32;
        #[hold_standard]
        fn zeDriverGet(count: *mut u32, drivers: *mut Handle) -> u32;
        fn zeDriverGetIpcProperties(driver: Handle, properties: *mut Flags) -> u32;
        #[hold_standard]
        fn zeDeviceGet(driver: Handle, count: *mut u32, devices: *mut Handle) -> u32;
        fn zeDeviceGetRootDevice(device: Handle, root: *mut Handle) -> u32;
        fn zeDeviceGetProperties(device: Handle, properties: *mut DeviceProperties) -> u32;
        fn zeDeviceGetMemoryProperties(device: Handle, count: *mut u32, properties: *mut DeviceMemoryProperties) -> u32;
        fn zeDeviceGetExternalMemoryProperties(device: Handle, properties: *mut ExternalMemoryProperties) -> u32;
        fn zeDeviceGetCommandQueueGroupProperties(device: Handle, count: *mut u32, groups: *mut QueueGroupProperties) -> u32;
        fn zeDevicePciGetPropertiesExt(device: Handle, properties: *mut PciProperties) -> u32;
        fn zeDeviceCanAccessPeer(device: Handle, peer: Handle, yes: *mut u8) -> u32;
        #[hold_standard]
        fn zeContextCreate(driver: Handle, desc: *const Flags, context: *mut Handle) -> u32;
        fn zeContextDestroy(context: Handle) -> u32;
        #[hold_standard]
        fn zeMemAllocDevice(context: Handle, desc: *const FlagsAndNumber, len: usize, align: usize, device: Handle, ptr: *mut *mut c_void) -> u32;
        fn zeMemFree(context: Handle, ptr: *mut c_void) -> u32;
        fn zeMemGetAllocProperties(context: Handle, ptr: *const c_void, properties: *mut AllocationProperties, device: *mut Handle) -> u32;
        fn zeMemGetAddressRange(context: Handle, ptr: *const c_void, base: *mut *mut c_void, len: *mut usize) -> u32;
        #[hold_standard]
        fn zeMemGetIpcHandle(context: Handle, ptr: *const c_void, handle: *mut IpcHandle) -> u32;
        fn zeMemPutIpcHandle(context: Handle, handle: IpcHandle) -> u32;
        #[hold_standard]
        fn zeMemOpenIpcHandle(context: Handle, device: Handle, handle: IpcHandle, flags: u32, ptr: *mut *mut c_void) -> u32;
        fn zeMemCloseIpcHandle(context: Handle, ptr: *const c_void) -> u32;
        #[hold_standard]
        fn zeCommandListCreateImmediate(context: Handle, device: Handle, desc: *const QueueDesc, list: *mut Handle) -> u32;
        fn zeCommandListDestroy(list: Handle) -> u32;
        fn zeCommandListAppendMemoryCopy(list: Handle, to: *mut c_void, from: *const c_void, len: usize, signal: Handle,
            wait_count: u32, waits: *mut Handle) -> u32;
        #[hold_standard]
        fn zeEventPoolCreate(context: Handle, desc: *const FlagsAndNumber, count: u32, devices: *mut Handle, pool: *mut Handle) -> u32;
        fn zeEventPoolDestroy(pool: Handle) -> u32;
        #[hold_standard]
        fn zeEventCreate(pool: Handle, desc: *const EventDesc, event: *mut Handle) -> u32;
        fn zeEventDestroy(event: Handle) -> u32;
        fn zeEventHostSynchronize(event: Handle, nanoseconds: u64) -> u32;
        fn zeEventQueryStatus(event: Handle) -> u32;
        fn zeEventHostReset(event: Handle) -> u32;
    }
}

impl Loader {
    /// Opens the loader; the versioned name is tried first.
    pub fn open(adopt: bool) -> Result<Loader> {
        Ok(Loader::load(Library::open(&["libze_loader.so.1", "libze_loader.so"], adopt)?))
    }
}

/// Calls `$function` of the table `$ze`, and converts its result.
macro_rules! call {
    ($ze:expr, $function:ident($($arg:expr),* $(,)?)) => {
        $ze.$function($($arg),*).and_then(|result| $crate::hmem::ze::driver::check(stringify!($function), result))
    };
}

pub(super) use call;

#[cfg(test)]
mod tests {
    use super::*;

    /// The layouts of a 64-bit `ze_api.h`.
    #[test]
    fn structs_have_the_sizes_of_the_header() {
        assert_eq!((size_of::<DeviceProperties>(), std::mem::offset_of!(DeviceProperties, uuid)), (368, 96));
        assert_eq!(size_of::<DeviceMemoryProperties>(), 296);
        assert_eq!(size_of::<QueueGroupProperties>(), 40);
        assert_eq!((size_of::<PciProperties>(), size_of::<ExternalMemoryProperties>()), (48, 32));
        assert_eq!((size_of::<QueueDesc>(), size_of::<AllocationProperties>(), size_of::<ExportFd>()), (40, 40, 24));
        assert_eq!((size_of::<Flags>(), size_of::<FlagsAndNumber>(), size_of::<EventDesc>()), (24, 24, 32));
    }

    #[test]
    fn unknown_codes_stay_numbers() {
        assert_eq!(check("zeX", 0x7abc_0001).unwrap_err().words, "zeX: 0x7abc0001");
        assert!(check("zeX", 0x7800_0003).unwrap_err().words.ends_with("(ZE_RESULT_ERROR_UNSUPPORTED_FEATURE)"));
    }
}
