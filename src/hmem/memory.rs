// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What memory is, in the terms that all vendors share.

use crate::error::Error;
use std::os::fd::{BorrowedFd, OwnedFd};

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

/// One copy of several.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
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
