// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a region is: what a caller asks for, the pieces it is made of, and the names it goes by.

use crate::error::Error;
use crate::hmem::{Allocation, Kind, Pinned, Site};
pub use crate::mr::key::{desc_fits, desc_index, desc_of};
use crate::mr::piece;
use crate::mr::{Access, PathPolicy, Paths};
pub use crate::mr::{Attr, Facts, RegionId, Source};
use crate::prov::fault;
use crate::prov::op::Iov;
use crate::prov::queue::Counter;
use std::borrow::Cow;
use std::sync::Arc;

/// Why memory that nobody shares cannot be mapped.
pub const PRIVATE: &str = "private memory of this process, not from mem_alloc and not given as a file descriptor";

/// A contiguous piece of a region.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub iov: Iov,
    pub file: u64,
    pub file_offset: u64,
    /// The device allocation's identity when it was registered; 0: none is known.
    pub id: u64,
}

pub enum PieceList {
    One(Piece),
    Many(Box<[Piece]>),
}

/// Memory that was found to be what the caller says.
pub struct Located {
    pub pieces: PieceList,
    /// Address that peers use for the first byte where addresses are virtual.
    pub base: u64,
    pub len: u64,
    pub site: Site,
    pub kind: Kind,
    pub verdicts: Verdicts,
}

impl piece::Piece for Piece {
    #[inline(always)]
    fn bytes(&self) -> usize {
        self.iov.len
    }
}

impl Piece {
    /// The part of `iov` that lies in `of`, from byte `at` of the address space on.
    pub fn within(iov: &Iov, at: u64, of: &Allocation, file: u64) -> Piece {
        let end = of.end().min((iov.addr + iov.len) as u64);
        Piece { iov: Iov { addr: at as usize, len: (end - at) as usize }, file, file_offset: at - of.base, id: of.id }
    }
}

impl PieceList {
    pub fn as_slice(&self) -> &[Piece] {
        match self {
            PieceList::One(p) => std::slice::from_ref(p),
            PieceList::Many(list) => list,
        }
    }
}

pub struct Region {
    pub base: u64,
    pub len: u64,
    pub access: Access,
    pub paths: Paths,
    pub policy: PathPolicy,
    pub pieces: PieceList,
    pub site: Site,
    pub kind: Kind,
    pub verdicts: Verdicts,
    /// Host memory that was pinned for a vendor's copies, and for which vendors that was tried.
    pub pins: Vec<(Site, Option<Pinned>)>,
    pub counter: Option<Arc<Counter>>,
    pub event: bool,
    pub extents: Option<(u32, u32)>,
}

#[derive(Default)]
pub struct Slot {
    pub generation: u64,
    pub key: u64,
    /// Copies of this process in or out of the region right now.
    pub users: u32,
    pub closing: bool,
    pub region: Option<Region>,
}

/// Which paths the memory itself permits, and why not the others.
#[derive(Clone, Debug)]
pub struct Verdicts {
    pub direct: std::result::Result<(), Cow<'static, str>>,
    pub cma: std::result::Result<(), Cow<'static, str>>,
    pub ipc: std::result::Result<(), Error>,
    /// Those that faults on demand refuse, whatever else speaks against them.
    pub refused: Paths,
}

/// Host memory has no device, and needs none.
pub const NOT_DEVICE: Error = Error::fixed(crate::error::errno::ENODEV, "host memory: no device driver maps it");
/// What keeps the CPU's paths from device memory.
pub const ON_DEVICE: &str = "device memory: the CPU does not reach it";

impl Verdicts {
    pub fn host(direct: std::result::Result<(), Cow<'static, str>>) -> Verdicts {
        Verdicts { direct, cma: Ok(()), ipc: Err(NOT_DEVICE), refused: Paths::empty() }
    }

    pub fn paths(&self) -> Paths {
        let mut paths = Paths::STAGED;
        paths.set(Paths::DIRECT, self.direct.is_ok());
        paths.set(Paths::CMA, self.cma.is_ok());
        paths.set(Paths::IPC, self.ipc.is_ok());
        paths - self.refused
    }

    /// The verdict on `path`, in words.
    pub fn words(&self, path: Paths) -> String {
        if self.refused.contains(path) {
            return fault::refusal(path).to_string();
        }
        match path {
            Paths::DIRECT => self.direct.as_ref().err().map(|why| format!("ENODEV: {why}")),
            Paths::CMA => self.cma.as_ref().err().map(|why| format!("EFAULT: {why}")),
            Paths::IPC => self.ipc.as_ref().err().map(|e| e.to_string()),
            _ => None,
        }
        .map_or_else(|| "possible".into(), |why| format!("impossible, {why}"))
    }
}

/// A region held open while this process copies: must be given back with `unpin`.
pub struct Pin {
    pub index: u32,
    pub site: Site,
    pub pieces: Vec<Iov>,
    /// Of each piece of device memory, its allocation's identity when it was registered.
    pub ids: Vec<u64>,
    /// The pieces are host memory in a mapping of the library's own whose pages stay: of `mem_alloc`, or a file that cannot
    /// shrink. Other pages may be gone when the CPU comes.
    pub stays: bool,
}

/// How a domain addresses its regions, and what this process permits.
#[derive(Clone, Copy, Debug)]
pub struct Modes {
    pub virt_addr: bool,
    pub prov_key: bool,
    pub paths: Paths,
    /// Nothing keeps registrations from the short way: keys and addresses are the provider's, and there are no faults
    /// on demand.
    pub plain: bool,
}
