// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Functions, structs and constants of the HSA runtime, from `hsa.h` and `hsa_ext_amd.h`.

use crate::error::{Error, Result, errno};
use crate::sys::dl::{Library, entry_points};
use std::ffi::{CStr, c_char, c_int, c_void};

/// A GPU or CPU. The runtime's handles are structs of one number, passed by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Agent {
    pub handle: u64,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Pool {
    pub handle: u64,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Signal {
    pub handle: u64,
}

/// `hsa_amd_ipc_memory_t`.
pub type IpcHandle = [u32; 8];

/// `hsa_amd_pointer_info_t`. The struct may grow, so the caller sets the size that it knows.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PointerInfo {
    pub size: u32,
    pub kind: u32,
    /// Address at which agents access the allocation, and address at which the host does.
    pub agent_base: u64,
    pub host_base: u64,
    pub len: usize,
    pub user_data: *mut c_void,
    pub owner: Agent,
    pub global_flags: u32,
}

pub type AgentCallback = unsafe extern "C" fn(agent: Agent, data: *mut c_void) -> u32;
pub type PoolCallback = unsafe extern "C" fn(pool: Pool, data: *mut c_void) -> u32;
pub type FreedCallback = unsafe extern "C" fn(ptr: *mut c_void, data: *mut c_void);
pub type Allocator = unsafe extern "C" fn(len: usize) -> *mut c_void;

pub const STATUS_SUCCESS: u32 = 0;
const STATUS_INVALID_ALLOCATION: u32 = 0x1003;
const STATUS_INVALID_ARGUMENT: u32 = 0x1001;
const STATUS_INVALID_AGENT: u32 = 0x1004;
const STATUS_INVALID_SIGNAL: u32 = 0x1006;
const STATUS_OUT_OF_RESOURCES: u32 = 0x1008;
const STATUS_NOT_INITIALIZED: u32 = 0x100b;
const STATUS_INCOMPATIBLE_ARGUMENTS: u32 = 0x100d;
const STATUS_INVALID_MEMORY_POOL: u32 = 40;
const STATUS_RESOURCE_BUSY: u32 = 46;

pub const SYSTEM_INFO_VERSION_MAJOR: u32 = 0;
pub const SYSTEM_INFO_DMABUF_SUPPORTED: u32 = 0x204;

pub const AGENT_INFO_NAME: u32 = 0; // char[64]
pub const AGENT_INFO_DEVICE: u32 = 17; // u32
pub const AGENT_INFO_BDFID: u32 = 0xa006; // u32
pub const AGENT_INFO_PRODUCT_NAME: u32 = 0xa009; // char[64]
pub const AGENT_INFO_DOMAIN: u32 = 0xa00f; // u32
pub const AGENT_INFO_UUID: u32 = 0xa011; // char[21]
pub const DEVICE_TYPE_CPU: u32 = 0;
pub const DEVICE_TYPE_GPU: u32 = 1;

pub const POOL_INFO_SEGMENT: u32 = 0; // u32
pub const POOL_INFO_GLOBAL_FLAGS: u32 = 1; // u32
pub const POOL_INFO_SIZE: u32 = 2; // usize
pub const POOL_INFO_ALLOC_ALLOWED: u32 = 5; // bool
pub const POOL_INFO_ALLOC_GRANULE: u32 = 6; // usize
pub const SEGMENT_GLOBAL: u32 = 0;
pub const POOL_FLAG_COARSE_GRAINED: u32 = 4;
/// `HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS`, and its value for an agent that can never access the pool.
pub const AGENT_POOL_INFO_ACCESS: u32 = 0; // u32
pub const POOL_ACCESS_NEVER: u32 = 0;

pub const POINTER_UNKNOWN: u32 = 0;
pub const POINTER_HSA: u32 = 1;
pub const POINTER_LOCKED: u32 = 2;
/// Memory of a graphics driver. IPC imports that go through dma-bufs are of this kind too.
pub const POINTER_GRAPHICS: u32 = 3;
pub const POINTER_IPC: u32 = 4;

/// `hsa_amd_portable_export_dmabuf_v2`: the mapping that goes through the PCIe BAR.
pub const DMABUF_MAPPING_PCIE: u64 = 1;

pub const SIGNAL_CONDITION_LT: u32 = 2;
pub const WAIT_STATE_BLOCKED: u32 = 0;

entry_points! {
    /// The HSA runtime's functions.
    pub struct Hsa {
        #[hold_standard]
        fn hsa_init() -> u32;
        fn hsa_shut_down() -> u32;
        fn hsa_status_string(status: u32, text: *mut *const c_char) -> u32;
        fn hsa_system_get_info(attribute: u32, value: *mut c_void) -> u32;
        fn hsa_iterate_agents(callback: AgentCallback, data: *mut c_void) -> u32;
        fn hsa_agent_get_info(agent: Agent, attribute: u32, value: *mut c_void) -> u32;
        fn hsa_memory_copy(to: *mut c_void, from: *const c_void, len: usize) -> u32;
        #[hold_standard]
        fn hsa_signal_create(initial: i64, consumer_count: u32, consumers: *const Agent, signal: *mut Signal) -> u32;
        fn hsa_signal_destroy(signal: Signal) -> u32;
        fn hsa_signal_load_scacquire(signal: Signal) -> i64;
        fn hsa_signal_store_screlease(signal: Signal, value: i64) -> ();
        fn hsa_signal_wait_scacquire(signal: Signal, condition: u32, value: i64, timeout_hint: u64, state: u32) -> i64;
        fn hsa_amd_agent_iterate_memory_pools(agent: Agent, callback: PoolCallback, data: *mut c_void) -> u32;
        fn hsa_amd_memory_pool_get_info(pool: Pool, attribute: u32, value: *mut c_void) -> u32;
        fn hsa_amd_agent_memory_pool_get_info(agent: Agent, pool: Pool, attribute: u32, value: *mut c_void) -> u32;
        #[hold_standard]
        fn hsa_amd_memory_pool_allocate(pool: Pool, len: usize, flags: u32, ptr: *mut *mut c_void) -> u32;
        fn hsa_amd_memory_pool_free(ptr: *mut c_void) -> u32;
        #[hold_standard]
        fn hsa_amd_agents_allow_access(count: u32, agents: *const Agent, flags: *const u32, ptr: *const c_void) -> u32;
        fn hsa_amd_memory_async_copy(to: *mut c_void, to_agent: Agent, from: *const c_void, from_agent: Agent, len: usize,
            dep_count: u32, deps: *const Signal, completion: Signal) -> u32;
        #[hold_standard]
        fn hsa_amd_memory_lock(host: *mut c_void, len: usize, agents: *mut Agent, count: c_int, agent_ptr: *mut *mut c_void) -> u32;
        fn hsa_amd_memory_unlock(host: *mut c_void) -> u32;
        fn hsa_amd_pointer_info(ptr: *const c_void, info: *mut PointerInfo, alloc: Option<Allocator>, count: *mut u32,
            accessible: *mut *mut Agent) -> u32;
        #[hold_standard]
        fn hsa_amd_ipc_memory_create(ptr: *mut c_void, len: usize, handle: *mut IpcHandle) -> u32;
        #[hold_standard]
        fn hsa_amd_ipc_memory_attach(handle: *const IpcHandle, len: usize, count: u32, agents: *const Agent, ptr: *mut *mut c_void) -> u32;
        fn hsa_amd_ipc_memory_detach(ptr: *mut c_void) -> u32;
        fn hsa_amd_register_deallocation_callback(ptr: *mut c_void, callback: FreedCallback, data: *mut c_void) -> u32;
        #[hold_standard]
        fn hsa_amd_portable_export_dmabuf(ptr: *const c_void, len: usize, fd: *mut c_int, offset: *mut u64) -> u32;
        #[hold_standard]
        fn hsa_amd_portable_export_dmabuf_v2(ptr: *const c_void, len: usize, fd: *mut c_int, offset: *mut u64, flags: u64) -> u32;
    }
}

impl Hsa {
    /// Opens the library; the versioned name is tried first.
    pub fn open(adopt: bool) -> Result<Hsa> {
        Ok(Hsa::load(Library::open(&["libhsa-runtime64.so.1", "libhsa-runtime64.so"], adopt)?))
    }

    /// The result of the function `what`, with the runtime's own words for an error.
    pub fn check(&self, what: &str, status: u32) -> Result<()> {
        let number = match status {
            STATUS_SUCCESS => return Ok(()),
            STATUS_INVALID_ARGUMENT
            | STATUS_INVALID_ALLOCATION
            | STATUS_INVALID_AGENT
            | STATUS_INVALID_SIGNAL
            | STATUS_INCOMPATIBLE_ARGUMENTS
            | STATUS_INVALID_MEMORY_POOL => errno::EINVAL,
            STATUS_OUT_OF_RESOURCES => errno::ENOMEM,
            STATUS_NOT_INITIALIZED => errno::ENODEV,
            STATUS_RESOURCE_BUSY => errno::EBUSY,
            _ => errno::EIO,
        };
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: `text` is live; the runtime stores a pointer to a static string there, or leaves it alone.
        let told = unsafe { self.hsa_status_string(status, &mut text) };
        let words = match told {
            // SAFETY: the runtime's strings are static and end with a NUL.
            Ok(STATUS_SUCCESS) if !text.is_null() => format!("{what}: {status:#x} ({})", unsafe { CStr::from_ptr(text) }.to_string_lossy()),
            _ => format!("{what}: {status:#x}"),
        };
        Err(Error::new(number, words))
    }
}

/// Calls `$function` of the table `$hsa`, and converts its status to a `Result`.
macro_rules! call {
    ($hsa:expr, $function:ident($($arg:expr),* $(,)?)) => {
        $hsa.$function($($arg),*).and_then(|status| $hsa.check(stringify!($function), status))
    };
}

pub(super) use call;
