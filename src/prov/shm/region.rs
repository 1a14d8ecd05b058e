// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a region is: what a caller asks for, the pieces it is made of, and the names it goes by.

use super::table::INDEX_BITS;
use crate::error::{Error, Result};
use crate::hmem::{Allocation, Kind, Pinned, Site};
use crate::mr::{Access, PathPolicy, Paths};
use crate::prov::op::Iov;
use crate::prov::queue::Counter;
use std::borrow::Cow;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Why memory that nobody shares cannot be mapped.
pub const PRIVATE: &str = "private memory of this process, not from mem_alloc and not given as a file descriptor";

/// Iovecs that one region may have.
pub const MR_IOV_LIMIT: usize = 16;

/// What a caller wants registered.
pub enum Source<'a> {
    Iov(&'a [Iov]),
    /// A mappable file: `[offset, offset+len)` of it, whose first byte peers address as
    /// `base_addr + offset`.
    File {
        fd: BorrowedFd<'a>,
        offset: u64,
        len: usize,
        base_addr: u64,
    },
}

/// Whose memory the caller says it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    Host,
    Device(Site),
    /// The first byte decides.
    Auto,
}

pub struct Wish<'a> {
    pub source: Source<'a>,
    pub memory: Memory,
    pub access: Access,
    /// Remote address of the first byte where the domain does not address virtually.
    pub offset: u64,
    pub requested_key: u64,
    pub policy: PathPolicy,
    pub event: bool,
}

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
}

/// Host memory has no device, and needs none.
pub const NOT_DEVICE: Error = Error::fixed(crate::error::errno::ENODEV, "host memory: no device driver maps it");
/// What keeps the CPU's paths from device memory.
pub const ON_DEVICE: &str = "device memory: the CPU does not reach it";

impl Verdicts {
    pub fn host(direct: std::result::Result<(), Cow<'static, str>>) -> Verdicts {
        Verdicts { direct, cma: Ok(()), ipc: Err(NOT_DEVICE) }
    }

    pub fn paths(&self) -> Paths {
        let mut paths = Paths::STAGED;
        paths.set(Paths::DIRECT, self.direct.is_ok());
        paths.set(Paths::CMA, self.cma.is_ok());
        paths.set(Paths::IPC, self.ipc.is_ok());
        paths
    }

    /// The verdict on `path`, in words.
    pub fn words(&self, path: Paths) -> String {
        match path {
            Paths::DIRECT => self.direct.as_ref().err().map(|why| format!("ENODEV: {why}")),
            Paths::CMA => self.cma.as_ref().err().map(|why| format!("EFAULT: {why}")),
            Paths::IPC => self.ipc.as_ref().err().map(|e| e.to_string()),
            _ => None,
        }
        .map_or_else(|| "possible".into(), |why| format!("impossible, {why}"))
    }
}

/// A region's public facts.
#[derive(Clone, Debug)]
pub struct Facts {
    pub site: Site,
    pub kind: Kind,
    pub key: u64,
    pub base: u64,
    pub len: u64,
    pub access: Access,
    pub paths: Paths,
    pub iov_count: u32,
}

/// Names a region of a domain; stale after close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionId {
    pub index: u32,
    pub generation: u64,
    pub key: u64,
    pub on_device: bool,
}

/// Marks descriptors of device memory: the quick ways are not for them.
pub const DEVICE_DESC: u64 = 1;
const DESC_NUMBER: u64 = u64::MAX >> (INDEX_BITS + 1);

impl RegionId {
    /// What operations take as `desc`: index, part of the generation, and whether it is device memory.
    #[inline]
    pub fn desc(&self) -> u64 {
        let number = self.generation >> INDEX_BITS & DESC_NUMBER;
        number << (INDEX_BITS + 1) | u64::from(self.index) << 1 | u64::from(self.on_device)
    }
}

/// The index that a descriptor names, and whether `generation` is the one it was made for.
pub fn desc_index(desc: u64) -> u32 {
    (desc >> 1) as u32 & ((1 << INDEX_BITS) - 1)
}

pub fn desc_fits(desc: u64, generation: u64) -> bool {
    desc >> (INDEX_BITS + 1) == generation >> INDEX_BITS & DESC_NUMBER
}

/// A region held open while this process copies: must be given back with `unpin`.
pub struct Pin {
    pub index: u32,
    pub site: Site,
    pub pieces: Vec<Iov>,
}

pub fn check_range(iov: &Iov, i: usize) -> Result<()> {
    if iov.addr == 0 {
        return Err(Error::invalid(format!("iov[{i}]: the address is NULL")));
    }
    if iov.len == 0 {
        return Err(Error::invalid(format!("iov[{i}]: the length is 0")));
    }
    if iov.addr.checked_add(iov.len).is_none() {
        return Err(Error::invalid(format!("iov[{i}]: address plus length overflows")));
    }
    Ok(())
}

/// How a domain addresses its regions, and what this process permits.
#[derive(Clone, Copy, Debug)]
pub struct Modes {
    pub virt_addr: bool,
    pub prov_key: bool,
    pub paths: Paths,
}
