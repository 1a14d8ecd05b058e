// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CUDA memory that a program allocates by itself, in each of the ways that programs use, to measure how gdrfab handles
//! memory that it did not allocate. The driver is called as such a program calls it, in the device's primary context.

use gdrfab::error::{Error, Result, errno};
use gdrfab::sys::dl::Library;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// The way in which a program has allocated its device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The vendor's usual allocator; gdrfab's own if only gdrfab can allocate.
    Plain,
    /// A stream-ordered pool whose memory can be shared.
    Pool,
    /// Memory of `gdrfab_mem_alloc()`.
    Vmm,
    /// Two physical segments in one range of addresses.
    Vmm2,
    /// Memory that migrates between host and device.
    Managed,
}

impl How {
    pub const ALL: [How; 5] = [How::Plain, How::Pool, How::Vmm, How::Vmm2, How::Managed];

    pub fn name(self) -> &'static str {
        match self {
            How::Plain => "plain",
            How::Pool => "pool",
            How::Vmm => "vmm",
            How::Vmm2 => "vmm2",
            How::Managed => "managed",
        }
    }
}

type Ptr = u64;

/// The part of CUmemLocation that is in every version.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    /// 1: a device.
    kind: u32,
    id: c_int,
}

/// CUmemAllocationProp.
#[repr(C)]
struct Properties {
    /// 1: pinned.
    kind: u32,
    /// 1: a file descriptor.
    handles: u32,
    location: Location,
    win32: *mut c_void,
    flags: [u8; 8],
}

/// CUmemPoolProps.
#[repr(C)]
struct PoolProperties {
    kind: u32,
    handles: u32,
    location: Location,
    win32: *mut c_void,
    max_size: usize,
    reserved: [u8; 56],
}

/// CUmemAccessDesc.
#[repr(C)]
struct Access {
    location: Location,
    /// 3: reads and writes.
    flags: u32,
}

const _: () = assert!(size_of::<Properties>() == 32 && size_of::<PoolProperties>() == 88 && size_of::<Access>() == 12);

macro_rules! driver {
    ($($name:ident($($type:ty),*);)*) => {
        #[allow(non_snake_case)]
        struct Driver { $($name: unsafe extern "C" fn($($type),*) -> c_int,)* }

        impl Driver {
            fn load() -> Result<Driver> {
                let library = Library::open(&["libcuda.so.1", "libcuda.so"], false)?;
                $(
                    // SAFETY: the types are those of cuda.h.
                    let $name = unsafe { library.symbol(concat!(stringify!($name), "\0")) }
                        .ok_or_else(|| Library::lacks(library.name, stringify!($name)))?;
                )*
                Ok(Driver { $($name,)* })
            }
        }
    };
}

#[allow(non_snake_case)]
mod table {
    use super::*;

    driver! {
        cuInit(u32);
        cuDeviceGet(*mut c_int, c_int);
        cuDevicePrimaryCtxRetain(*mut *mut c_void, c_int);
        cuCtxPushCurrent_v2(*mut c_void);
        cuCtxPopCurrent_v2(*mut *mut c_void);
        cuMemAlloc_v2(*mut Ptr, usize);
        cuMemFree_v2(Ptr);
        cuMemAllocManaged(*mut Ptr, usize, u32);
        cuMemPoolCreate(*mut *mut c_void, *const PoolProperties);
        cuMemPoolDestroy(*mut c_void);
        cuMemAllocFromPoolAsync(*mut Ptr, usize, *mut c_void, *mut c_void);
        cuMemFreeAsync(Ptr, *mut c_void);
        cuStreamSynchronize(*mut c_void);
        cuMemGetAllocationGranularity(*mut usize, *const Properties, u32);
        cuMemCreate(*mut u64, usize, *const Properties, u64);
        cuMemRelease(u64);
        cuMemAddressReserve(*mut Ptr, usize, usize, Ptr, u64);
        cuMemAddressFree(Ptr, usize);
        cuMemMap(Ptr, usize, usize, u64, u64);
        cuMemUnmap(Ptr, usize);
        cuMemSetAccess(Ptr, usize, *const Access, usize);
    }

    pub(super) struct Cuda {
        calls: Driver,
        device: c_int,
        context: *mut c_void,
    }

    fn check(what: &str, status: c_int) -> Result<()> {
        match status {
            0 => Ok(()),
            2 => Err(Error::new(errno::ENOMEM, format!("{what}: the device has no memory left (2)"))),
            n => Err(Error::new(errno::EIO, format!("{what}: the driver answered {n}"))),
        }
    }

    impl Cuda {
        pub(super) fn open(number: u32) -> Result<Cuda> {
            let calls = Driver::load()?;
            let (mut device, mut context) = (0, null_mut());
            // SAFETY: the outputs are live; the primary context is kept until the program ends.
            unsafe {
                check("cuInit", (calls.cuInit)(0))?;
                check("cuDeviceGet", (calls.cuDeviceGet)(&raw mut device, number as c_int))?;
                check("cuDevicePrimaryCtxRetain", (calls.cuDevicePrimaryCtxRetain)(&raw mut context, device))?;
            }
            Ok(Cuda { calls, device, context })
        }

        /// Runs `f` with the device's context current.
        fn within<T>(&self, f: impl FnOnce(&Driver) -> Result<T>) -> Result<T> {
            let mut popped = null_mut();
            // SAFETY: the context is retained.
            check("cuCtxPushCurrent", unsafe { (self.calls.cuCtxPushCurrent_v2)(self.context) })?;
            let result = f(&self.calls);
            // SAFETY: pops what was pushed.
            unsafe { (self.calls.cuCtxPopCurrent_v2)(&raw mut popped) };
            result
        }

        fn here(&self) -> Location {
            Location { kind: 1, id: self.device }
        }

        pub(super) fn allocate(&self, how: How, len: usize) -> Result<(Ptr, Undo)> {
            let mut at = 0;
            let freed_so = |made: Result<()>, at: Ptr| made.map(|()| (at, Undo::Free));
            self.within(|c| match how {
                How::Managed => {
                    // SAFETY: the output is live; 1: every stream may use it.
                    let made = check("cuMemAllocManaged", unsafe { (c.cuMemAllocManaged)(&raw mut at, len, 1) });
                    freed_so(made, at)
                }
                How::Pool => self.of_pool(c, len),
                How::Vmm2 => self.segments(c, len),
                How::Plain | How::Vmm => {
                    // SAFETY: the output is live.
                    let made = check("cuMemAlloc", unsafe { (c.cuMemAlloc_v2)(&raw mut at, len) });
                    freed_so(made, at)
                }
            })
        }

        fn of_pool(&self, c: &Driver, len: usize) -> Result<(Ptr, Undo)> {
            let properties =
                PoolProperties { kind: 1, handles: 1, location: self.here(), win32: null_mut(), max_size: 0, reserved: [0; 56] };
            let (mut pool, mut at) = (null_mut(), 0);
            // SAFETY: inputs and outputs are live; the memory is ready after the stream was waited for.
            unsafe {
                check("cuMemPoolCreate", (c.cuMemPoolCreate)(&raw mut pool, &raw const properties))?;
                let made = check("cuMemAllocFromPoolAsync", (c.cuMemAllocFromPoolAsync)(&raw mut at, len, pool, null_mut()));
                let made = made.and_then(|()| check("cuStreamSynchronize", (c.cuStreamSynchronize)(null_mut())));
                if made.is_err() {
                    (c.cuMemPoolDestroy)(pool);
                }
                made.map(|()| (at, Undo::Pool(pool)))
            }
        }

        fn segments(&self, c: &Driver, len: usize) -> Result<(Ptr, Undo)> {
            let properties = Properties { kind: 1, handles: 1, location: self.here(), win32: null_mut(), flags: [0; 8] };
            let access = Access { location: self.here(), flags: 3 };
            let mut grain = 0;
            // SAFETY: inputs and outputs are live.
            check("cuMemGetAllocationGranularity", unsafe { (c.cuMemGetAllocationGranularity)(&raw mut grain, &raw const properties, 0) })?;
            let half = len.div_ceil(2).next_multiple_of(grain.max(1));
            let mut undo = Segments { at: 0, half, mapped: 0 };
            // SAFETY: the output is live.
            check("cuMemAddressReserve", unsafe { (c.cuMemAddressReserve)(&raw mut undo.at, 2 * half, 0, 0, 0) })?;
            let mut build = || -> Result<()> {
                for i in 0..2 {
                    let (mut handle, to) = (0, undo.at + (i * half) as u64);
                    // SAFETY: the range was reserved; a mapping keeps its memory after the handle is released.
                    let mapped = unsafe {
                        check("cuMemCreate", (c.cuMemCreate)(&raw mut handle, half, &raw const properties, 0))?;
                        let mapped = check("cuMemMap", (c.cuMemMap)(to, half, 0, handle, 0));
                        (c.cuMemRelease)(handle);
                        mapped
                    };
                    mapped?;
                    undo.mapped += 1;
                    // SAFETY: the range is mapped.
                    check("cuMemSetAccess", unsafe { (c.cuMemSetAccess)(to, half, &raw const access, 1) })?;
                }
                Ok(())
            };
            match build() {
                Ok(()) => Ok((undo.at, Undo::Segments(undo))),
                Err(e) => {
                    let _ = undo.unmap(c);
                    Err(e)
                }
            }
        }

        pub(super) fn free(&self, at: Ptr, undo: Undo) -> Result<()> {
            self.within(|c| match undo {
                // SAFETY: the counterpart of this function allocated the memory, and it is freed once.
                Undo::Free => check("cuMemFree", unsafe { (c.cuMemFree_v2)(at) }),
                // SAFETY: the memory came from this pool, which has no other, and both are freed once.
                Undo::Pool(pool) => unsafe {
                    let freed = check("cuMemFreeAsync", (c.cuMemFreeAsync)(at, null_mut()));
                    let freed = freed.and_then(|()| check("cuStreamSynchronize", (c.cuStreamSynchronize)(null_mut())));
                    freed.and(check("cuMemPoolDestroy", (c.cuMemPoolDestroy)(pool)))
                },
                Undo::Segments(segments) => segments.unmap(c),
            })
        }
    }

    /// The call that frees an allocation.
    pub(super) enum Undo {
        Free,
        Pool(*mut c_void),
        Segments(Segments),
    }

    pub(super) struct Segments {
        at: Ptr,
        half: usize,
        mapped: usize,
    }

    impl Segments {
        fn unmap(&self, c: &Driver) -> Result<()> {
            let mut first = Ok(());
            for i in 0..self.mapped {
                // SAFETY: mapped here, and unmapped once.
                first = first.and(check("cuMemUnmap", unsafe { (c.cuMemUnmap)(self.at + (i * self.half) as u64, self.half) }));
            }
            // SAFETY: reserved here; nothing is mapped in it any more.
            first.and(check("cuMemAddressFree", unsafe { (c.cuMemAddressFree)(self.at, 2 * self.half) }))
        }
    }
}

/// An allocation that a program made by itself.
pub struct Made {
    pub addr: u64,
    cuda: table::Cuda,
    undo: Option<table::Undo>,
}

impl Made {
    pub fn new(device: u32, how: How, len: usize) -> Result<Made> {
        let cuda = table::Cuda::open(device)?;
        let (addr, undo) = cuda.allocate(how, len)?;
        Ok(Made { addr, cuda, undo: Some(undo) })
    }

    pub fn free(mut self) -> Result<()> {
        self.undo.take().map_or(Ok(()), |undo| self.cuda.free(self.addr, undo))
    }
}
