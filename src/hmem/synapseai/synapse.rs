// SPDX-License-Identifier: Apache-2.0 OR MIT
//! libSynapse: finds the devices that the application acquired and their memory, and copies.
//!
//! Gaudi's DMA accesses host memory only where it is mapped for the device. Copies therefore go through a host buffer
//! of this library, and the device never accesses the caller's memory, not even by a copy that ends late. The buffer is
//! not made by `synHostMalloc`, because that memory would vanish when the application releases the device.

use crate::error::{Error, Result, errno};
use crate::hmem::Dir;
use crate::sys::copy;
use crate::sys::dl::{Library, entry_points};
use crate::sys::mem::{self, Mapping, Protection};
use parking_lot::Mutex;
use std::ffi::{c_int, c_void};
use std::os::fd::AsFd;

entry_points! {
    /// Functions of libSynapse: `synStatus` is an int, `synStreamHandle` opaque.
    pub struct Lib {
        fn synDeviceGetInfoV2(device: u32, info: *mut Info) -> c_int;
        #[hold_standard]
        fn synDeviceMalloc(device: u32, size: u64, at: u64, flags: u32, addr: *mut u64) -> c_int;
        fn synDeviceFree(device: u32, addr: u64, flags: u32) -> c_int;
        #[hold_standard]
        fn synHostMap(device: u32, size: u64, addr: *const c_void) -> c_int;
        fn synHostUnmap(device: u32, addr: *const c_void) -> c_int;
        #[hold_standard]
        fn synStreamCreateGeneric(stream: *mut *mut c_void, device: u32, flags: u32) -> c_int;
        fn synStreamDestroy(stream: *mut c_void) -> c_int;
        fn synMemCopyAsync(stream: *mut c_void, src: u64, size: u64, dst: u64, direction: c_int) -> c_int;
        fn synStreamSynchronize(stream: *mut c_void) -> c_int;
    }
}

/// `synDeviceInfoV2`, with room for fields of later versions.
#[repr(C)]
pub struct Info {
    sram_base: u64,
    dram_base: u64,
    sram_size: u32,
    dram_size: u64,
    tpc_mask: u64,
    dram_enabled: u8,
    device_id: u32,
    fd: u32,
    device_type: c_int,
    device_index: u8,
    /// Older versions leave this 0.
    hbm_base: u64,
    room: [u64; 23],
}

const _: () = assert!(std::mem::offset_of!(Info, fd) == 48 && std::mem::offset_of!(Info, hbm_base) == 64 && size_of::<Info>() == 256);

/// `synDeviceGaudi`: the first generation maps no memory; its memory begins at `dram_base`.
const GAUDI: c_int = 2;
const HOST_TO_DRAM: c_int = 0;
const DRAM_TO_HOST: c_int = 1;
const DRAM_TO_DRAM: c_int = 2;
/// Number of device ids that are queried.
const IDS: u32 = 32;
/// Bytes per step of a copy from or to the host.
const BOUNCE: usize = 1 << 20;

/// The memory of a device that this process has acquired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pool {
    pub device: u32,
    /// The driver's descriptor of the device, owned by SynapseAI.
    pub fd: c_int,
    pub base: u64,
    pub len: u64,
    /// True if `base` is the beginning of the driver's mapping, which exports need.
    pub exact: bool,
}

impl Pool {
    pub fn holds(&self, addr: u64, len: u64) -> bool {
        addr.checked_sub(self.base).and_then(|at| at.checked_add(len)).is_some_and(|end| end <= self.len)
    }
}

/// Stream and host buffer for copies of one device.
struct CopyEngine {
    pool: Pool,
    /// `synStreamHandle`, used by one thread at a time.
    stream: usize,
    bounce: Mapping,
}

/// The reason why a copy failed.
enum CopyFailure {
    /// The copy was refused; nothing runs.
    Refused(Error),
    /// The copy may still run.
    Running(Error),
}

pub struct Synapse {
    lib: Lib,
    pools: Mutex<Vec<Pool>>,
    engines: Mutex<Vec<CopyEngine>>,
}

fn check(what: &str, status: c_int) -> Result<()> {
    let (errno, name) = match status {
        0 => return Ok(()),
        1 => (errno::EINVAL, "synInvalidArgument"),
        3 => (errno::ENOMEM, "synOutOfHostMemory"),
        4 => (errno::ENOMEM, "synOutOfDeviceMemory"),
        6 => (errno::ENODEV, "synObjectNotInitialized"),
        8 => (errno::ENODEV, "synNoDeviceFound"),
        14 => (errno::ENOMEM, "synFailedToAllocateDeviceMemory"),
        17 => (errno::EIO, "synDeviceReset"),
        18 => (errno::EOPNOTSUPP, "synUnsupported"),
        22 => (errno::EBUSY, "synBusy"),
        26 => (errno::EIO, "synFail"),
        27 => (errno::ENOMEM, "synOutOfResources"),
        28 => (errno::ENODEV, "synUninitialized"),
        31 => (errno::ENODEV, "synSynapseTerminated"),
        34 => (errno::EINVAL, "synMappingNotFound"),
        42 => (errno::ETIMEDOUT, "synTimeout"),
        _ => return Err(Error::new(errno::EIO, format!("{what}: {status}"))),
    };
    Err(Error::new(errno, format!("{what}: {status} ({name})")))
}

impl Synapse {
    pub fn open(adopt: bool) -> Result<Synapse> {
        let lib = Lib::load(Library::open(&["libSynapse.so", "libSynapse.so.1"], adopt)?);
        Ok(Synapse { lib, pools: Mutex::default(), engines: Mutex::default() })
    }

    fn query(&self, device: u32) -> Option<Pool> {
        let mut info = Info {
            sram_base: 0,
            dram_base: 0,
            sram_size: 0,
            dram_size: 0,
            tpc_mask: 0,
            dram_enabled: 0,
            device_id: 0,
            fd: 0,
            device_type: 0,
            device_index: 0,
            hbm_base: 0,
            room: [0; 23],
        };
        // SAFETY: the struct is at least as long as that of any version.
        let status = unsafe { self.lib.synDeviceGetInfoV2(device, &mut info) };
        if !status.is_ok_and(|status| status == 0) || info.dram_size == 0 {
            return None;
        }
        let (base, exact) = match (info.device_type, info.hbm_base) {
            (GAUDI, _) => (info.dram_base, true),
            (_, 0) => (info.dram_base, false),
            (_, base) => (base, true),
        };
        Some(Pool { device, fd: info.fd as c_int, base, len: info.dram_size, exact })
    }

    /// The devices that the process has acquired.
    pub fn pools(&self) -> Vec<Pool> {
        let now: Vec<Pool> = (0..IDS).filter_map(|id| self.query(id)).collect();
        self.pools.lock().clone_from(&now);
        now
    }

    /// The device memory that all of `[addr, addr+len)` lies in.
    pub fn pool(&self, addr: u64, len: u64) -> Option<Pool> {
        let known = self.pools.lock().clone();
        let find = |pools: &[Pool]| pools.iter().copied().find(|p| p.holds(addr, len));
        match find(&known) {
            Some(found) if self.query(found.device) == Some(found) => Some(found),
            None if !known.is_empty() => None,
            // The known pools are out of date: a device was acquired since, or released, and perhaps acquired again.
            _ => find(&self.pools()),
        }
    }

    pub fn alloc(&self, device: u32, len: u64) -> Result<u64> {
        let mut addr = 0;
        // SAFETY: the result is written on success.
        check("synDeviceMalloc", unsafe { self.lib.synDeviceMalloc(device, len, 0, 0, &mut addr)? })?;
        Ok(addr)
    }

    pub fn free(&self, device: u32, addr: u64) -> Result<()> {
        // SAFETY: the memory was made by `alloc`, and its owner gives it up.
        check("synDeviceFree", unsafe { self.lib.synDeviceFree(device, addr, 0)? })
    }

    fn new_engine(&self, pool: Pool) -> Result<CopyEngine> {
        let bounce = Mapping::new(mem::memfd("gdrfab-gaudi", BOUNCE)?.as_fd(), 0, BOUNCE, Protection::ReadWrite)?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: the buffer has BOUNCE bytes and lives as long as it is mapped for the device; the stream is written on success.
        unsafe {
            check("synHostMap", self.lib.synHostMap(pool.device, BOUNCE as u64, bounce.as_ptr().cast())?)?;
            let made = self.lib.synStreamCreateGeneric(&mut stream, pool.device, 0);
            if let Err(e) = made.and_then(|status| check("synStreamCreateGeneric", status)) {
                self.lib.synHostUnmap(pool.device, bounce.as_ptr().cast())?;
                return Err(e);
            }
        }
        Ok(CopyEngine { pool, stream: stream as usize, bounce })
    }

    /// Destroys an engine on which nothing runs.
    fn destroy_engine(&self, engine: CopyEngine) {
        // SAFETY: stream and mapping were made with the engine, and nothing else uses them.
        let undone = unsafe {
            let destroyed = self.lib.synStreamDestroy(engine.stream as *mut c_void);
            destroyed.and_then(|_| self.lib.synHostUnmap(engine.pool.device, engine.bounce.as_ptr().cast()))
        };
        if !undone.is_ok_and(|status| status == 0) {
            std::mem::forget(engine);
        }
    }

    /// Copies between the host and the memory of `pool`, or within that memory.
    ///
    /// # Safety
    /// The host side, if there is one, is readable or writable for `len` bytes; the device side lies in `pool`.
    pub unsafe fn copy(&self, pool: Pool, dir: Dir, to: u64, from: u64, len: usize) -> Result<()> {
        let mut engines = self.engines.lock();
        let known = engines.iter().position(|c| c.pool.device == pool.device).map(|i| engines.swap_remove(i));
        let (mut engine, mut is_new) = match known.filter(|c| c.pool == pool) {
            Some(engine) => (engine, false),
            None => (self.new_engine(pool)?, true),
        };
        let mut previous = None;
        loop {
            // SAFETY: the caller promises that the host side holds `len` bytes; the lock keeps other threads from this
            // engine.
            match unsafe { self.run(&engine, dir, to, from, len) } {
                Ok(()) => {
                    engines.push(engine);
                    return Ok(());
                }
                Err(CopyFailure::Running(e)) => {
                    std::mem::forget(engine);
                    return Err(e);
                }
                Err(CopyFailure::Refused(e)) if is_new => {
                    // A new engine was refused too, so the copy is at fault and not the stream.
                    match previous {
                        None => engines.push(engine),
                        Some(previous) => {
                            engines.push(previous);
                            self.destroy_engine(engine);
                        }
                    }
                    return Err(e);
                }
                // A device that was released and acquired again does not know its former streams, so a new engine is
                // tried.
                Err(CopyFailure::Refused(e)) => match self.new_engine(pool) {
                    Ok(new) => (previous, is_new) = (Some(std::mem::replace(&mut engine, new)), true),
                    Err(_) => {
                        engines.push(engine);
                        return Err(e);
                    }
                },
            }
        }
    }

    /// # Safety
    /// As for [`Synapse::copy`]; no other thread uses the engine.
    unsafe fn run(&self, engine: &CopyEngine, dir: Dir, to: u64, from: u64, len: usize) -> std::result::Result<(), CopyFailure> {
        let step = if dir == Dir::Within { len.max(1) } else { BOUNCE };
        let bounce = engine.bounce.as_ptr();
        for at in (0..len).step_by(step) {
            let (to, from, piece) = (to + at as u64, from + at as u64, (len - at).min(step));
            // SAFETY: the caller promises that the host side holds `len` bytes; piece <= BOUNCE if the buffer is used,
            // and no copy uses it between two steps.
            unsafe {
                match dir {
                    Dir::ToDevice => {
                        copy::copy(bounce, from as *const u8, piece, usize::MAX);
                        self.step(engine, bounce as u64, piece, to, HOST_TO_DRAM)?;
                    }
                    Dir::FromDevice => {
                        self.step(engine, from, piece, bounce as u64, DRAM_TO_HOST)?;
                        copy::copy(to as *mut u8, bounce, piece, usize::MAX);
                    }
                    Dir::Within => self.step(engine, from, piece, to, DRAM_TO_DRAM)?,
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// Both sides stay valid until the stream has completed the step.
    unsafe fn step(&self, engine: &CopyEngine, from: u64, len: usize, to: u64, direction: c_int) -> std::result::Result<(), CopyFailure> {
        let stream = engine.stream as *mut c_void;
        // SAFETY: the stream was made with the engine; the caller promises that both sides stay valid.
        let posted = unsafe { self.lib.synMemCopyAsync(stream, from, len as u64, to, direction) };
        posted.and_then(|status| check("synMemCopyAsync", status)).map_err(CopyFailure::Refused)?;
        // SAFETY: the stream was made with the engine.
        let done = unsafe { self.lib.synStreamSynchronize(stream) };
        done.and_then(|status| check("synStreamSynchronize", status)).map_err(CopyFailure::Running)
    }
}
