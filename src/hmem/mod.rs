// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What memory is and how it can be reached: one [`Interface`] per vendor, opened when its memory is
//! first named, never before, and never on behalf of another vendor.

pub mod chain;
pub mod copier;
pub mod cuda;
pub mod dmabuf;
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
use parking_lot::Mutex;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub use stream::{Copy, Stream};

/// Who made the memory; the numbers are libfabric's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum Iface {
    #[default]
    System = 0,
    Cuda = 1,
    Rocr = 2,
    Ze = 3,
    Neuron = 4,
    SynapseAi = 5,
}

impl Iface {
    pub const ALL: [Iface; 6] = [Iface::System, Iface::Cuda, Iface::Rocr, Iface::Ze, Iface::Neuron, Iface::SynapseAi];

    pub fn from_raw(raw: u32) -> Option<Iface> {
        Iface::ALL.into_iter().find(|i| *i as u32 == raw)
    }

    pub fn name(self) -> &'static str {
        match self {
            Iface::System => "system",
            Iface::Cuda => "cuda",
            Iface::Rocr => "rocr",
            Iface::Ze => "ze",
            Iface::Neuron => "neuron",
            Iface::SynapseAi => "synapseai",
        }
    }
}

/// How an allocation came to be, as far as it decides what can be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Kind {
    /// Host memory that no vendor knows.
    #[default]
    Host = 0,
    /// Device memory of the vendor's plain allocator.
    Plain = 1,
    /// Device memory of a stream-ordered pool.
    Pool = 2,
    /// One physical segment of a mapped address range.
    Segment = 3,
    /// Memory that migrates between host and device.
    Managed = 4,
    /// Host memory that the vendor allocated or pinned.
    Pinned = 5,
    /// Device memory of another process, mapped here.
    Imported = 6,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Host => "host",
            Kind::Plain => "plain",
            Kind::Pool => "pool",
            Kind::Segment => "vmm segment",
            Kind::Managed => "managed",
            Kind::Pinned => "pinned host",
            Kind::Imported => "imported",
        }
    }
}

/// What a pointer points into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Allocation {
    pub iface: Iface,
    /// The vendor's number of the device in this process.
    pub device: u32,
    pub kind: Kind,
    /// First byte and length of the allocation, or of the physical segment.
    pub base: u64,
    pub len: u64,
    /// Never given to another allocation of this process; 0: the vendor has no such number.
    pub id: u64,
}

impl Allocation {
    pub fn end(&self) -> u64 {
        self.base.saturating_add(self.len)
    }
}

/// Names a device across processes, whatever their numbering: a UUID, or a PCI address in ASCII.
pub type DeviceId = [u8; 16];

/// What is known of a device.
#[derive(Clone, Debug, Default)]
pub struct DeviceFacts {
    pub id: DeviceId,
    pub name: String,
    /// "0000:4d:00.0", or empty.
    pub pci: String,
    /// Bytes of memory; 0: unknown.
    pub memory: u64,
    /// Whether dma-bufs of its memory can be exported, and if not why.
    pub dmabuf: Option<Error>,
    /// Whether its memory can be mapped by another process, and if not why.
    pub ipc: Option<Error>,
    /// Devices of this process that can copy to and from it without the host.
    pub peers: Vec<u32>,
}

/// A dma-buf and where the asked range begins in it.
#[derive(Debug)]
pub struct DmaBuf {
    pub fd: OwnedFd,
    pub offset: u64,
    /// Bytes of the whole dma-buf.
    pub len: u64,
}

/// Bytes of a vendor's handle for another process.
pub const HANDLE_BYTES: usize = 64;

/// What another process of this host needs to map an allocation.
#[derive(Debug)]
pub struct Export {
    /// The vendor's own tag for how to open it.
    pub how: u32,
    pub device: DeviceId,
    pub handle: [u8; HANDLE_BYTES],
    /// Travels beside the handle where the vendor needs one.
    pub fd: Option<OwnedFd>,
    /// First byte here, and bytes, of what is exported.
    pub base: u64,
    pub len: u64,
}

/// An [`Export`] as it arrived from a peer: nothing in it is trusted.
pub struct Offer<'a> {
    pub how: u32,
    pub device: DeviceId,
    pub handle: [u8; HANDLE_BYTES],
    pub fd: Option<BorrowedFd<'a>>,
    pub len: u64,
}

/// What dropping does; called once, from whichever thread lets go last.
pub type Undo = Box<dyn FnOnce() + Send + Sync>;

/// A peer's allocation mapped here; dropping it unmaps. No copy may be in flight then.
pub struct Import {
    pub iface: Iface,
    pub device: u32,
    pub base: u64,
    pub len: u64,
    /// Undoes the mapping.
    pub undo: Option<Undo>,
}

impl Drop for Import {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take() {
            undo();
        }
    }
}

/// Where a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dir {
    ToDevice,
    FromDevice,
    /// Between device memory and device memory, of one device or two.
    Within,
}

/// One vendor. Implementations call the vendor's driver only, leave the caller's context as it was,
/// and keep driver codes as integers.
pub trait Interface: Send + Sync {
    fn iface(&self) -> Iface;

    fn devices(&self) -> &[DeviceFacts];

    /// Whether this process uses the device already, asked without beginning to; false where that is not known.
    fn active(&self, _device: u32) -> bool {
        false
    }

    /// What `addr` is; `None`: not this vendor's.
    fn detect(&self, addr: u64) -> Result<Option<Allocation>>;

    /// The identity of the allocation that `addr` lies in now, by the cheapest question there is; 0
    /// where the vendor has no identities, `None` if `addr` is not the vendor's any more.
    fn identity(&self, addr: u64) -> Option<u64> {
        self.detect(addr).ok().flatten().map(|a| a.id)
    }

    /// A dma-buf that covers `[addr, addr+len)`, which may span allocations if the vendor can.
    /// `pcie`: ask for the mapping that goes through the PCIe BAR.
    fn export_dmabuf(&self, addr: u64, len: u64, pcie: bool) -> Result<DmaBuf>;

    /// What another process of this host needs to map `of`.
    fn export(&self, of: &Allocation) -> Result<Export>;

    /// Maps what a peer exported, reachable from `device` if the caller has one in mind.
    fn import(&self, offer: &Offer<'_>, device: Option<u32>) -> Result<Import>;

    /// As `import` for an allocation of this very process, which another domain of it has exported: lets a device reach
    /// it at the address that it has, and gives the device that copies. An error where it is to be imported like another's.
    fn reach(&self, _of: &Allocation, _device: Option<u32>) -> Result<u32> {
        Err(Error::new(errno::EOPNOTSUPP, format!("{}: opens what this process exported as well", self.iface().name())))
    }

    /// Copies and returns when the bytes are in place. `device` is that of the device memory.
    ///
    /// # Safety
    /// The host side, if there is one, is readable or writable for `len` bytes.
    unsafe fn copy(&self, device: u32, dir: Dir, to: u64, from: u64, len: usize) -> Result<()>;

    /// Makes what a NIC wrote into the device's memory before this call visible to its kernels.
    fn flush(&self, _device: u32) -> Result<()> {
        let words = format!("{}: the driver has no call that makes a NIC's writes visible to a device's kernels", self.iface().name());
        Err(Error::new(errno::EOPNOTSUPP, words))
    }

    /// An order of copies that run while the caller goes on.
    fn stream(&self, device: u32) -> Result<Box<dyn Stream>>;

    /// Makes host memory fast for the vendor's copies; a hint.
    fn pin(&self, _addr: u64, _len: u64) -> Result<Pinned> {
        Err(Error::new(errno::ENOSYS, format!("{}: pinning host memory is not offered", self.iface().name())))
    }

    /// Device memory that can be exported.
    fn alloc(&self, device: u32, len: u64) -> Result<u64>;

    /// Frees what `alloc` gave.
    fn free(&self, addr: u64) -> Result<()>;
}

/// Host memory pinned for a vendor; dropping it unpins.
pub struct Pinned(pub Option<Undo>);

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(undo) = self.0.take() {
            undo();
        }
    }
}

/// Opened interfaces, for ever: handles of them lie in streams and imports of unknown lifetime.
static UP: [OnceLock<&'static dyn Interface>; 6] = [const { OnceLock::new() }; 6];
/// The process that opened each.
static OPENERS: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];
static ANY_OPENED: AtomicBool = AtomicBool::new(false);
/// Why the others are absent, once that was found out.
static ABSENT: Mutex<[Option<Error>; 6]> = Mutex::new([const { None }; 6]);

/// The interface, opened at first use, or why it cannot be used. An answer of "absent" is kept, except
/// where the process may still load or initialise the driver itself.
#[inline]
pub fn get(iface: Iface) -> Result<&'static dyn Interface> {
    let i = iface as usize;
    match UP[i].get() {
        Some(up) if OPENERS[i].load(Ordering::Relaxed) == process::instance().load(Ordering::Relaxed) => Ok(*up),
        // Drivers do not survive a fork: the child has to live without.
        Some(_) => Err(Error::new(errno::EPERM, format!("{}: the driver was opened before this process was forked", iface.name()))),
        None => open(iface),
    }
}

#[cold]
fn open(iface: Iface) -> Result<&'static dyn Interface> {
    let (i, policy) = (iface as usize, &config::get().hmem);
    if policy.allowed & 1 << i == 0 && iface != Iface::System {
        return Err(Error::new(errno::ENOSYS, format!("{}: ruled out by GDRFAB_HMEM", iface.name())));
    }
    let mut absent = ABSENT.lock();
    if let Some(up) = UP[i].get() {
        return Ok(*up);
    }
    if let Some(e) = &absent[i] {
        return Err(e.clone());
    }
    let here = || -> Result<Box<dyn Interface>> {
        match iface {
            Iface::System => Ok(Box::new(system::System)),
            Iface::Cuda => cuda::open(policy.adopt),
            Iface::Rocr => rocr::open(policy.adopt),
            Iface::Ze => ze::open(policy.adopt),
            Iface::Neuron => neuron::open(policy.adopt),
            Iface::SynapseAi => synapseai::open(policy.adopt),
        }
    };
    let opened = if policy.threaded && iface != Iface::System { threaded::open(iface.name(), here) } else { here() };
    match opened {
        Ok(up) => {
            OPENERS[i].store(process::instance().load(Ordering::Relaxed), Ordering::Relaxed);
            if iface != Iface::System {
                ANY_OPENED.store(true, Ordering::Relaxed);
            }
            Ok(*UP[i].get_or_init(|| Box::leak(up)))
        }
        Err(e) => {
            let e = e.context(iface.name());
            if !policy.adopt {
                absent[i] = Some(e.clone());
            }
            Err(e)
        }
    }
}

/// The interface if it has been opened already: what detection may ask without opening anything.
pub fn opened(iface: Iface) -> Option<&'static dyn Interface> {
    UP[iface as usize].get().and_then(|_| get(iface).ok())
}

/// What `addr` is, asked of every vendor that is here; host memory if none knows it.
pub fn detect(addr: u64) -> Result<Allocation> {
    for iface in Iface::ALL.into_iter().filter(|i| *i != Iface::System) {
        match get(iface) {
            Ok(up) => {
                if let Some(found) = up.detect(addr)? {
                    return Ok(found);
                }
            }
            // Its memory may be this: a forked child cannot tell.
            Err(e) if UP[iface as usize].get().is_some() => return Err(e),
            Err(_) => {}
        }
    }
    Ok(Allocation::default())
}

/// The allocations that `[addr, addr+len)` lies in, in order, without a gap; an error names where one is.
pub fn span(up: &dyn Interface, addr: u64, len: u64) -> Result<Vec<Allocation>> {
    let name = up.iface().name();
    let end = addr.checked_add(len).ok_or_else(|| Error::invalid("iov: address plus length overflows"))?;
    let mut list = Vec::with_capacity(1);
    let mut at = addr;
    while at < end {
        let found = up.detect(at)?.ok_or_else(|| match list.is_empty() {
            true => Error::invalid(format!("iov: {at:#x} is not {name} memory of this process")),
            false => Error::invalid(format!("iov: {name} memory ends at {at:#x}, {} bytes before the range does", end - at)),
        })?;
        if found.end() <= at {
            return Err(Error::new(errno::EIO, format!("{name}: the driver says that {at:#x} lies outside its own allocation")));
        }
        at = found.end();
        list.push(found);
    }
    Ok(list)
}

/// Where memory lies: who copies it.
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

    /// Copies host bytes to `to` in this memory, and returns when they are there.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes; `to`, where this is the host, writable.
    #[inline]
    pub unsafe fn store(self, to: u64, from: *const u8, len: usize) -> Result<()> {
        if self.is_host() {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(from, to as *mut u8, len) };
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { get(self.iface)?.copy(self.device, Dir::ToDevice, to, from as u64, len) }
    }

    /// Copies from `from` in this memory to host bytes, and returns when they are there.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes; `from`, where this is the host, readable.
    #[inline]
    pub unsafe fn load(self, to: *mut u8, from: u64, len: usize) -> Result<()> {
        if self.is_host() {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to, len) };
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { get(self.iface)?.copy(self.device, Dir::FromDevice, to as u64, from, len) }
    }
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_host() { f.write_str("host") } else { write!(f, "{}:{}", self.iface.name(), self.device) }
    }
}

/// Whether any vendor's interface has been opened: until then no pointer of this process needs a question.
pub fn any_opened() -> bool {
    ANY_OPENED.load(Ordering::Relaxed)
}
