// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Device memory: the vendors that make it, and the ways in which the library detects, exports, imports and copies it.
//!
//! Each vendor is an [`Interface`]: CUDA, ROCr, Level Zero, Neuron, SynapseAI. Host memory is an interface too. An
//! interface is opened when its memory is first named, never before, and never on behalf of another vendor. Callers
//! pass an address or an [`Iface`], and get an [`Allocation`], an [`Export`] for a peer, an [`Import`] of a peer's
//! memory, or a [`Stream`] of copies.
//!
//! Read `interface.rs` and `memory.rs` first, then one vendor's directory. `threaded.rs` and `copier/` are two ways to
//! keep the caller's threads out of a driver; `chain.rs` and `immediate.rs` build a `Stream` for vendors that have
//! none.

pub mod chain;
pub mod copier;
pub mod cuda;
pub mod dmabuf;
pub mod immediate;
pub mod interface;
pub mod memory;
pub mod neuron;
pub mod rocr;
pub mod stream;
pub mod synapseai;
pub mod system;
mod threaded;
pub mod ze;

use crate::config;
use crate::error::{Error, Result, errno};
use crate::sys::process;
pub use interface::{Interface, span};
pub use memory::{
    Allocation, DeviceFacts, DeviceId, Dir, DmaBuf, Export, HANDLE_BYTES, Iface, Import, MemoryKind, Offer, Pinned, StreamCopy, Undo,
};
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub use stream::Stream;

/// The opened interfaces. No interface is ever closed, because streams and imports of unknown lifetime refer to it.
static OPENED: [OnceLock<&'static dyn Interface>; 6] = [const { OnceLock::new() }; 6];
/// The process that opened each interface.
static OPENERS: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];
static ANY_OPENED: AtomicBool = AtomicBool::new(false);
/// The reason why an interface cannot be used, if an attempt to open it has failed.
static ABSENT: Mutex<[Option<Error>; 6]> = Mutex::new([const { None }; 6]);

/// The interface, opened at first use, or the reason why it cannot be used. A failure to open is remembered, except
/// with `adopt`: the process may still load or initialise the driver itself.
#[inline]
pub fn get(iface: Iface) -> Result<&'static dyn Interface> {
    let i = iface as usize;
    match OPENED[i].get() {
        Some(interface) if OPENERS[i].load(Ordering::Relaxed) == process::instance().load(Ordering::Relaxed) => Ok(*interface),
        // A driver does not survive a fork, so the child gets an error.
        Some(_) => Err(Error::new(
            errno::EPERM,
            format!("{}: the driver was opened by the parent before the fork; this child process cannot use it", iface.name()),
        )),
        None => open(iface),
    }
}

#[cold]
fn open(iface: Iface) -> Result<&'static dyn Interface> {
    let (i, policy) = (iface as usize, &config::get().hmem);
    if iface != Iface::System && !policy.allowed.has(i - 1) {
        return Err(Error::new(errno::ENOSYS, format!("{}: ruled out by GDRFAB_HMEM", iface.name())));
    }
    let mut absent = ABSENT.lock();
    if let Some(interface) = OPENED[i].get() {
        return Ok(*interface);
    }
    if let Some(e) = &absent[i] {
        return Err(e.clone());
    }
    let here = || -> Result<Box<dyn Interface>> {
        match iface {
            Iface::System => Ok(Box::new(system::System)),
            Iface::Cuda => cuda::open(policy.driver.adopt),
            Iface::Rocr => rocr::open(policy.driver.adopt),
            Iface::Ze => ze::open(policy.driver.adopt),
            Iface::Neuron => neuron::open(policy.driver.adopt),
            Iface::SynapseAi => synapseai::open(policy.driver.adopt),
        }
    };
    let opened = if policy.driver.thread && iface != Iface::System { threaded::open(iface.name(), here) } else { here() };
    match opened {
        Ok(interface) => {
            OPENERS[i].store(process::instance().load(Ordering::Relaxed), Ordering::Relaxed);
            if iface != Iface::System {
                ANY_OPENED.store(true, Ordering::Relaxed);
            }
            Ok(*OPENED[i].get_or_init(|| Box::leak(interface)))
        }
        Err(e) => {
            let e = e.context(iface.name());
            if !policy.driver.adopt {
                absent[i] = Some(e.clone());
            }
            Err(e)
        }
    }
}

/// The interface if it has been opened already. For detection that must not open a driver.
pub fn opened(iface: Iface) -> Option<&'static dyn Interface> {
    OPENED[iface as usize].get().and_then(|_| get(iface).ok())
}

/// Asks every vendor that can be used for the allocation that `addr` lies in; host memory if no vendor knows the
/// address.
pub fn detect(addr: u64) -> Result<Allocation> {
    for iface in Iface::ALL.into_iter().filter(|i| *i != Iface::System) {
        match get(iface) {
            Ok(interface) => {
                if let Some(found) = interface.detect(addr)? {
                    return Ok(found);
                }
            }
            // A forked child cannot ask this driver, and the memory may be that vendor's.
            Err(e) if OPENED[iface as usize].get().is_some() => return Err(e),
            Err(_) => {}
        }
    }
    Ok(Allocation::default())
}

/// The place of memory: the vendor and device that copy it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub struct Site {
    pub iface: Iface,
    pub device: u32,
}

impl Site {
    /// Memory that the CPU reaches.
    pub const HOST: Site = Site { iface: Iface::System, device: 0 };

    #[inline]
    pub fn is_host(self) -> bool {
        self.iface == Iface::System
    }

    /// Copies `len` host bytes to address `to` of this site, and returns when they have arrived.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes. If this site is the host, `to` is writable for as many.
    #[inline]
    pub unsafe fn store(self, to: u64, from: *const u8, len: usize) -> Result<()> {
        if self.is_host() {
            // SAFETY: the caller promises that both ranges hold `len` bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, to as *mut u8, len) };
            return Ok(());
        }
        // SAFETY: the caller promises that `from` holds `len` bytes; the driver checks the device's side.
        unsafe { get(self.iface)?.copy(self.device, Dir::ToDevice, to, from as u64, len) }
    }

    /// Copies `len` bytes from address `from` of this site to the host, and returns when they have arrived.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes. If this site is the host, `from` is readable for as many.
    #[inline]
    pub unsafe fn load(self, to: *mut u8, from: u64, len: usize) -> Result<()> {
        if self.is_host() {
            // SAFETY: the caller promises that both ranges hold `len` bytes.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to, len) };
            return Ok(());
        }
        // SAFETY: the caller promises that `to` holds `len` bytes; the driver checks the device's side.
        unsafe { get(self.iface)?.copy(self.device, Dir::FromDevice, to as u64, from, len) }
    }
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_host() { f.write_str("host") } else { write!(f, "{}:{}", self.iface.name(), self.device) }
    }
}

/// True if any vendor's interface has been opened. Until then the library has no device memory to detect.
pub fn any_opened() -> bool {
    ANY_OPENED.load(Ordering::Relaxed)
}
