// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a region is beyond what every provider's is: the files that its pieces lie in, and the paths that its memory permits.

use crate::error::{Error, Result};
use crate::hmem::{Pinned, Site};
use crate::mr::region::{self, Location};
use crate::mr::{Iov, Paths};
use crate::prov::fault;
use crate::prov::queue::Counter;
use std::sync::Arc;

/// Why memory that nobody shares cannot be mapped.
pub const PRIVATE: &str = "private memory of this process, not from mem_alloc and not given as a file descriptor";

/// Where a peer that maps the file finds a piece; file 0: nowhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileLocation {
    pub file: u64,
    pub offset: u64,
}

pub type Piece = region::Piece<FileLocation>;
pub type Region = region::Region<FileLocation, RegionState>;

/// Memory that was found to be what the caller says.
pub struct Located {
    pub location: Location<FileLocation>,
    pub obstacles: Obstacles,
}

/// What shm keeps of a region.
pub struct RegionState {
    pub obstacles: Obstacles,
    /// Host memory that was pinned for a vendor's copies, and for which vendors that was tried.
    pub pins: Vec<(Site, Option<Pinned>)>,
    pub counter: Option<Arc<Counter>>,
    /// Its run in the table of extents, if it has several pieces.
    pub extents: Option<(u32, u32)>,
}

impl RegionState {
    /// Nothing of it is to be dropped.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        let refused = matches!(self.obstacles.ipc, Ipc::Refused(_)) || self.obstacles.cma.is_some();
        !refused && self.pins.capacity() == 0 && self.counter.is_none()
    }
}

/// What keeps paths from the memory itself. Small, because each registration moves it into its slot.
#[derive(Debug)]
pub struct Obstacles {
    pub direct: Option<&'static str>,
    pub cma: Option<Box<str>>,
    pub ipc: Ipc,
    /// Those that faults on demand refuse, whatever else speaks against them.
    pub refused: Paths,
}

/// Whether a device's driver lets other processes map the memory.
#[derive(Debug)]
pub enum Ipc {
    Possible,
    /// Host memory has no device, and needs none.
    NoDevice,
    Refused(Box<Error>),
}

/// What keeps the CPU's paths from device memory.
const ON_DEVICE: &str = "device memory: the CPU does not reach it";

impl Obstacles {
    #[inline]
    pub fn host(direct: Option<&'static str>) -> Obstacles {
        Obstacles { direct, cma: None, ipc: Ipc::NoDevice, refused: Paths::empty() }
    }

    pub fn device(ipc: Result<()>) -> Obstacles {
        let ipc = ipc.map_or_else(|e| Ipc::Refused(Box::new(e)), |()| Ipc::Possible);
        Obstacles { direct: Some(ON_DEVICE), cma: Some(ON_DEVICE.into()), ipc, refused: Paths::empty() }
    }

    /// The paths that nothing keeps away.
    #[inline]
    pub fn paths(&self) -> Paths {
        let mut paths = Paths::STAGED;
        paths.set(Paths::DIRECT, self.direct.is_none());
        paths.set(Paths::CMA, self.cma.is_none());
        paths.set(Paths::IPC, matches!(self.ipc, Ipc::Possible));
        paths - self.refused
    }

    /// What is to be said of `path`.
    pub fn words(&self, path: Paths) -> String {
        if self.refused.contains(path) {
            return fault::refusal(path).to_string();
        }
        match path {
            Paths::DIRECT => self.direct.map(|why| format!("ENODEV: {why}")),
            Paths::CMA => self.cma.as_ref().map(|why| format!("EFAULT: {why}")),
            Paths::IPC => match &self.ipc {
                Ipc::Possible => None,
                Ipc::NoDevice => Some("ENODEV: host memory: no device driver maps it".into()),
                Ipc::Refused(e) => Some(e.to_string()),
            },
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
