// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The functions and constants of the driver library. The types come from the cudarc crate. Results stay integers,
//! because a driver newer than the bindings may return codes that their enum does not have.

use crate::error::{Error, Result, errno};
use crate::sys::dl::{Library, entry_points};
use crate::sys::fd;
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUipcMemHandle, CUmemAccessDesc, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemPoolPtrExportData, CUmemcpyAttributes, CUmemoryPool, CUmodule, CUstream, CUuuid,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{FromRawFd, OwnedFd};

/// The versioned name comes first; the other one is the link that development packages install.
pub const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Result code of the driver's functions.
pub type Status = c_int;

pub const NOT_INITIALIZED: Status = 3;
pub const INVALID_VALUE: Status = 1;
pub const INVALID_CONTEXT: Status = 201;
pub const NOT_READY: Status = 600;
pub const PEER_ACCESS_ALREADY_ENABLED: Status = 704;
pub const HOST_MEMORY_ALREADY_REGISTERED: Status = 712;

/// CUpointer_attribute
pub mod pointer {
    pub const CONTEXT: u32 = 1;
    pub const MEMORY_TYPE: u32 = 2;
    pub const DEVICE_POINTER: u32 = 3;
    pub const BUFFER_ID: u32 = 7;
    pub const IS_MANAGED: u32 = 8;
    pub const DEVICE_ORDINAL: u32 = 9;
    pub const IS_LEGACY_IPC_CAPABLE: u32 = 10;
    pub const RANGE_START_ADDR: u32 = 11;
    pub const RANGE_SIZE: u32 = 12;
    pub const ALLOWED_HANDLE_TYPES: u32 = 14;
    pub const MEMPOOL_HANDLE: u32 = 17;
    pub const MAPPING_SIZE: u32 = 18;
    pub const MAPPING_BASE_ADDR: u32 = 19;
}

/// CUdevice_attribute
pub mod device {
    pub const VIRTUAL_MEMORY_MANAGEMENT: u32 = 102;
    pub const HANDLE_TYPE_POSIX_FD: u32 = 103;
    pub const GPU_DIRECT_RDMA_WITH_VMM: u32 = 110;
    pub const RDMA_FLUSH_OPTIONS: u32 = 117;
    pub const RDMA_WRITES_ORDERING: u32 = 118;
    pub const DMA_BUF_SUPPORTED: u32 = 124;
}

pub const MEMORY_TYPE_HOST: u64 = 1;
pub const HANDLE_POSIX_FD: c_uint = 1;
pub const RANGE_HANDLE_DMA_BUF: c_uint = 1;
pub const RANGE_FLAG_PCIE: c_ulonglong = 1;
pub const STREAM_NON_BLOCKING: c_uint = 1;
pub const EVENT_DISABLE_TIMING: c_uint = 2;
pub const IPC_LAZY_PEER_ACCESS: c_uint = 1;
pub const HOST_REGISTER_PORTABLE: c_uint = 1;
/// Portable, and mapped for devices.
pub const HOST_ALLOC_FOR_ALL: c_uint = 3;
pub const FLUSH_CURRENT_CONTEXT: c_uint = 0;
pub const FLUSH_TO_OWNER: c_uint = 100;

entry_points! {
    /// The functions of libcuda that this library calls, by their symbols with the version suffix.
    pub struct Driver {
        #[hold_standard]
        fn cuInit(flags: c_uint) -> Status;
        fn cuDriverGetVersion(out: *mut c_int) -> Status;
        fn cuGetErrorName(code: Status, out: *mut *const c_char) -> Status;
        fn cuDeviceGetCount(out: *mut c_int) -> Status;
        fn cuDeviceGetName(out: *mut c_char, len: c_int, device: CUdevice) -> Status;
        fn cuDeviceGetUuid(out: *mut CUuuid, device: CUdevice) -> Status;
        fn cuDeviceGetUuid_v2(out: *mut CUuuid, device: CUdevice) -> Status;
        fn cuDeviceGetPCIBusId(out: *mut c_char, len: c_int, device: CUdevice) -> Status;
        fn cuDeviceTotalMem_v2(out: *mut usize, device: CUdevice) -> Status;
        fn cuDeviceGetAttribute(out: *mut c_int, attribute: c_uint, device: CUdevice) -> Status;
        fn cuDeviceCanAccessPeer(out: *mut c_int, device: CUdevice, peer: CUdevice) -> Status;
        #[hold_standard]
        fn cuDevicePrimaryCtxRetain(out: *mut CUcontext, device: CUdevice) -> Status;
        fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int) -> Status;
        fn cuCtxGetCurrent(out: *mut CUcontext) -> Status;
        fn cuCtxPushCurrent_v2(context: CUcontext) -> Status;
        fn cuCtxPopCurrent_v2(out: *mut CUcontext) -> Status;
        #[hold_standard]
        fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) -> Status;
        fn cuPointerGetAttribute(out: *mut c_void, attribute: c_uint, addr: CUdeviceptr) -> Status;
        fn cuPointerGetAttributes(count: c_uint, attributes: *mut c_uint, out: *mut *mut c_void, addr: CUdeviceptr) -> Status;
        fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, len: *mut usize, addr: CUdeviceptr) -> Status;
        #[hold_standard]
        fn cuMemGetHandleForAddressRange(out: *mut c_void, addr: CUdeviceptr, len: usize, kind: c_uint, flags: c_ulonglong) -> Status;
        #[hold_standard]
        fn cuMemAlloc_v2(out: *mut CUdeviceptr, len: usize) -> Status;
        fn cuMemFree_v2(addr: CUdeviceptr) -> Status;
        #[hold_standard]
        fn cuMemHostRegister_v2(addr: *mut c_void, len: usize, flags: c_uint) -> Status;
        fn cuMemHostUnregister(addr: *mut c_void) -> Status;
        #[hold_standard]
        fn cuIpcGetMemHandle(out: *mut CUipcMemHandle, addr: CUdeviceptr) -> Status;
        #[hold_standard]
        fn cuIpcOpenMemHandle_v2(out: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) -> Status;
        fn cuIpcCloseMemHandle(addr: CUdeviceptr) -> Status;
        #[hold_standard]
        fn cuMemCreate(out: *mut CUmemGenericAllocationHandle, len: usize, how: *const CUmemAllocationProp, flags: c_ulonglong) -> Status;
        fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> Status;
        fn cuMemRetainAllocationHandle(out: *mut CUmemGenericAllocationHandle, addr: *mut c_void) -> Status;
        fn cuMemGetAllocationGranularity(out: *mut usize, how: *const CUmemAllocationProp, option: c_uint) -> Status;
        #[hold_standard]
        fn cuMemExportToShareableHandle(out: *mut c_void, handle: CUmemGenericAllocationHandle, kind: c_uint, flags: c_ulonglong) -> Status;
        #[hold_standard]
        fn cuMemImportFromShareableHandle(out: *mut CUmemGenericAllocationHandle, handle: *mut c_void, kind: c_uint) -> Status;
        fn cuMemAddressReserve(out: *mut CUdeviceptr, len: usize, align: usize, at: CUdeviceptr, flags: c_ulonglong) -> Status;
        fn cuMemAddressFree(addr: CUdeviceptr, len: usize) -> Status;
        #[hold_standard]
        fn cuMemMap(addr: CUdeviceptr, len: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong) -> Status;
        fn cuMemUnmap(addr: CUdeviceptr, len: usize) -> Status;
        #[hold_standard]
        fn cuMemSetAccess(addr: CUdeviceptr, len: usize, access: *const CUmemAccessDesc, count: usize) -> Status;
        #[hold_standard]
        fn cuMemPoolExportToShareableHandle(out: *mut c_void, pool: CUmemoryPool, kind: c_uint, flags: c_ulonglong) -> Status;
        #[hold_standard]
        fn cuMemPoolImportFromShareableHandle(out: *mut CUmemoryPool, handle: *mut c_void, kind: c_uint, flags: c_ulonglong) -> Status;
        fn cuMemPoolExportPointer(out: *mut CUmemPoolPtrExportData, addr: CUdeviceptr) -> Status;
        #[hold_standard]
        fn cuMemPoolImportPointer(out: *mut CUdeviceptr, pool: CUmemoryPool, data: *mut CUmemPoolPtrExportData) -> Status;
        fn cuMemPoolSetAccess(pool: CUmemoryPool, access: *const CUmemAccessDesc, count: usize) -> Status;
        fn cuMemPoolDestroy(pool: CUmemoryPool) -> Status;
        fn cuFlushGPUDirectRDMAWrites(target: c_uint, scope: c_uint) -> Status;
        fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, len: usize, stream: CUstream) -> Status;
        fn cuMemcpyBatchAsync_v2(
            to: *mut CUdeviceptr, from: *mut CUdeviceptr, lens: *mut usize, count: usize, how: *mut CUmemcpyAttributes, first: *mut usize,
            hows: usize, stream: CUstream
        ) -> Status;
        fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, len: usize, stream: CUstream) -> Status;
        fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, len: usize, stream: CUstream) -> Status;
        #[hold_standard]
        fn cuMemHostAlloc(out: *mut *mut c_void, len: usize, flags: c_uint) -> Status;
        fn cuMemFreeHost(addr: *mut c_void) -> Status;
        #[hold_standard]
        fn cuModuleLoadData(out: *mut CUmodule, image: *const c_void) -> Status;
        fn cuModuleGetFunction(out: *mut CUfunction, module: CUmodule, name: *const c_char) -> Status;
        fn cuLaunchKernel(
            function: CUfunction, x: c_uint, y: c_uint, z: c_uint, wide: c_uint, high: c_uint, deep: c_uint, shared: c_uint, stream: CUstream,
            parameters: *mut *mut c_void, extra: *mut *mut c_void
        ) -> Status;
        #[hold_standard]
        fn cuStreamCreate(out: *mut CUstream, flags: c_uint) -> Status;
        fn cuStreamDestroy_v2(stream: CUstream) -> Status;
        fn cuStreamSynchronize(stream: CUstream) -> Status;
        fn cuStreamQuery(stream: CUstream) -> Status;
        fn cuStreamGetCtx(stream: CUstream, out: *mut CUcontext) -> Status;
        fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> Status;
        #[hold_standard]
        fn cuEventCreate(out: *mut CUevent, flags: c_uint) -> Status;
        fn cuEventDestroy_v2(event: CUevent) -> Status;
        fn cuEventRecord(event: CUevent, stream: CUstream) -> Status;
        fn cuEventQuery(event: CUevent) -> Status;
    }
}

/// The errno for a driver code, and the code's name for the most important codes, in case the driver gives none.
fn errno_of(code: Status) -> (i32, &'static str) {
    match code {
        1 => (errno::EINVAL, "CUDA_ERROR_INVALID_VALUE"),
        2 => (errno::ENOMEM, "CUDA_ERROR_OUT_OF_MEMORY"),
        3 => (errno::ENODEV, "CUDA_ERROR_NOT_INITIALIZED"),
        4 => (errno::ESHUTDOWN, "CUDA_ERROR_DEINITIALIZED"),
        46 => (errno::EBUSY, "CUDA_ERROR_DEVICE_UNAVAILABLE"),
        100 => (errno::ENODEV, "CUDA_ERROR_NO_DEVICE"),
        101 => (errno::ENODEV, "CUDA_ERROR_INVALID_DEVICE"),
        201 => (errno::EINVAL, "CUDA_ERROR_INVALID_CONTEXT"),
        205 => (errno::ENOMEM, "CUDA_ERROR_MAP_FAILED"),
        208 => (errno::EBUSY, "CUDA_ERROR_ALREADY_MAPPED"),
        217 => (errno::EOPNOTSUPP, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"),
        400 => (errno::EINVAL, "CUDA_ERROR_INVALID_HANDLE"),
        401 => (errno::EINVAL, "CUDA_ERROR_ILLEGAL_STATE"),
        500 => (errno::ENOENT, "CUDA_ERROR_NOT_FOUND"),
        600 => (errno::EBUSY, "CUDA_ERROR_NOT_READY"),
        700 => (errno::EFAULT, "CUDA_ERROR_ILLEGAL_ADDRESS"),
        709 => (errno::ENODEV, "CUDA_ERROR_CONTEXT_IS_DESTROYED"),
        711 => (errno::ENOSPC, "CUDA_ERROR_TOO_MANY_PEERS"),
        712 => (errno::EEXIST, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"),
        800 => (errno::EPERM, "CUDA_ERROR_NOT_PERMITTED"),
        801 => (errno::EOPNOTSUPP, "CUDA_ERROR_NOT_SUPPORTED"),
        802 => (errno::ENODEV, "CUDA_ERROR_SYSTEM_NOT_READY"),
        _ => (errno::EIO, ""),
    }
}

impl Driver {
    pub fn open(adopt: bool) -> Result<Driver> {
        Library::open(&NAMES, adopt).map(Driver::load)
    }

    /// An error for every code but success, in words: `cuXxx: 801 (CUDA_ERROR_NOT_SUPPORTED)`.
    #[inline]
    pub fn check(&self, what: &str, status: Status) -> Result<()> {
        if status == 0 { Ok(()) } else { Err(self.error(what, status)) }
    }

    #[cold]
    pub fn error(&self, what: &str, status: Status) -> Error {
        let (errno, known) = errno_of(status);
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: the driver writes a pointer to a constant string, or NULL for a code it does not know.
        let told = unsafe { self.cuGetErrorName(status, &mut name) };
        let words = match told {
            // SAFETY: the driver's strings end with NUL and live as long as the library, which is for ever.
            Ok(0) if !name.is_null() => unsafe { CStr::from_ptr(name) }.to_string_lossy(),
            _ if known.is_empty() => "an unknown code".into(),
            _ => known.into(),
        };
        Error::new(errno, format!("{what}: {status} ({words})"))
    }

    /// Queries one attribute of an address; the value is zero-extended. Fails if the driver does not have the
    /// attribute.
    #[inline]
    pub fn pointer(&self, attribute: u32, addr: u64) -> Result<u64> {
        let mut value = 0u64;
        // SAFETY: no attribute in use is longer than eight bytes.
        let status = unsafe { self.cuPointerGetAttribute((&raw mut value).cast(), attribute, addr) }?;
        self.check("cuPointerGetAttribute", status).map(|()| value)
    }

    /// Queries an attribute of a device; 0 if the driver does not know it.
    pub fn attribute(&self, attribute: u32, device: CUdevice) -> c_int {
        let mut value = 0;
        // SAFETY: the driver writes one int.
        match unsafe { self.cuDeviceGetAttribute(&mut value, attribute, device) } {
            Ok(0) => value,
            _ => 0,
        }
    }
}

/// Takes ownership of a descriptor that the driver made, and marks it close-on-exec.
pub fn own_fd(what: &str, raw: c_int) -> Result<OwnedFd> {
    if raw < 0 {
        return Err(Error::new(errno::EIO, format!("{what}: the driver reported success without a descriptor")));
    }
    // SAFETY: the driver opened it for this call, and no other code has its number.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    // If this fails the descriptor leaks into child programs, which is no reason to fail.
    let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
    fd::own(fd).map_err(|e| Error::os(what, e))
}
