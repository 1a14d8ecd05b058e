// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The types that describe the memory of every vendor: vendors, kinds, allocations, exports, imports, copies.

use crate::error::Error;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The vendor that made the memory; the numbers are libfabric's.
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

/// The kind of an allocation, on which the possible exports and copies depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum MemoryKind {
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

impl MemoryKind {
    pub fn name(self) -> &'static str {
        match self {
            MemoryKind::Host => "host",
            MemoryKind::Plain => "plain",
            MemoryKind::Pool => "pool",
            MemoryKind::Segment => "vmm segment",
            MemoryKind::Managed => "managed",
            MemoryKind::Pinned => "pinned host",
            MemoryKind::Imported => "imported",
        }
    }
}

/// The allocation that an address lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Allocation {
    pub iface: Iface,
    /// The vendor's number of the device in this process.
    pub device: u32,
    pub kind: MemoryKind,
    /// First byte and length of the allocation; of the physical segment for [`MemoryKind::Segment`].
    pub base: u64,
    pub len: u64,
    /// Identity that no other allocation of this process ever gets; 0 if the vendor has no such number.
    pub id: u64,
}

impl Allocation {
    pub fn end(&self) -> u64 {
        self.base.saturating_add(self.len)
    }
}

/// Identifies a device across processes with different numbering: a UUID, or a PCI address in ASCII.
pub type DeviceId = [u8; 16];

/// Properties of a device.
#[derive(Clone, Debug, Default)]
pub struct DeviceFacts {
    pub id: DeviceId,
    pub name: String,
    /// "0000:4d:00.0", or empty.
    pub pci: String,
    /// Bytes of memory; 0: unknown.
    pub memory: u64,
    /// `None` if dma-bufs of the device's memory can be exported; else the reason why not.
    pub dmabuf: Option<Error>,
    /// `None` if another process can map the device's memory; else the reason why not.
    pub ipc: Option<Error>,
    /// Devices of this process that can copy to and from this one without going through the host.
    pub peers: Vec<u32>,
}

/// A dma-buf, and the offset of the requested range in it.
#[derive(Debug)]
pub struct DmaBuf {
    pub fd: OwnedFd,
    pub offset: u64,
    /// Bytes of the whole dma-buf.
    pub len: u64,
}

/// Bytes of a vendor's handle for another process.
pub const HANDLE_BYTES: usize = 64;

/// All that another process of this host needs to map an allocation.
#[derive(Debug)]
pub struct Export {
    /// The vendor's own tag that tells the importer how to open `handle`.
    pub how: u32,
    pub device: DeviceId,
    pub handle: [u8; HANDLE_BYTES],
    /// A descriptor that travels with the handle, if the vendor needs one.
    pub fd: Option<OwnedFd>,
    /// Address in this process, and length, of the exported memory.
    pub base: u64,
    pub len: u64,
}

/// An [`Export`] as it arrived from a peer. No field is trusted.
pub struct Offer<'a> {
    pub how: u32,
    pub device: DeviceId,
    pub handle: [u8; HANDLE_BYTES],
    pub fd: Option<BorrowedFd<'a>>,
    pub len: u64,
}

/// Undoes a mapping or a pin. Called once, on the thread that drops the last reference.
pub type Undo = Box<dyn FnOnce() + Send + Sync>;

/// A peer's allocation mapped in this process. Dropping it unmaps the memory, so no copy may be in flight then.
pub struct Import {
    pub iface: Iface,
    pub device: u32,
    pub base: u64,
    pub len: u64,
    /// Undoes the mapping when the import is dropped.
    pub undo: Option<Undo>,
}

impl Drop for Import {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take() {
            undo();
        }
    }
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dir {
    ToDevice,
    FromDevice,
    /// Between device memory and device memory, of one device or two.
    Within,
}

/// One copy of a list.
#[derive(Clone, Copy, Debug)]
pub struct StreamCopy {
    pub dir: Dir,
    pub to: u64,
    pub from: u64,
    pub len: usize,
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
