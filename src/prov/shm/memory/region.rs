// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The part of a region that only shm has: the files in which its pieces lie, and the paths that its memory permits.

use crate::error::{Error, Result};
use crate::hmem::{Pinned, Site};
use crate::mr::region::{self, Location};
use crate::mr::{Iov, Paths};
use crate::prov::fault;
use crate::prov::queue::Counter;
use std::sync::Arc;

/// The reason why peers cannot map private memory.
pub const PRIVATE: &str = "private memory; peers map only memory of gdrfab_mem_alloc() or of a file descriptor";

/// The place of a piece in a file that peers can map; file 0: the piece lies in no such file.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileLocation {
    pub file: u64,
    pub offset: u64,
}

pub type Piece = region::Piece<FileLocation>;
pub type Region = region::Region<FileLocation, RegionState>;

/// Memory whose location was found, with the paths that it does not permit.
pub struct Located {
    pub location: Location<FileLocation>,
    pub obstacles: Obstacles,
}

/// The state that shm adds to a region.
pub struct RegionState {
    pub obstacles: Obstacles,
    /// The pins of host memory for the copies of a device vendor. `None` notes that pinning was tried for that vendor.
    pub pins: Vec<(Site, Option<Pinned>)>,
    /// The counter that peers' writes move.
    pub counter: Option<Arc<Counter>>,
    /// First index and count of the region's extents in the table, if the region has several pieces.
    pub extents: Option<(u32, u32)>,
}

impl RegionState {
    /// True if dropping this state runs no destructor that matters, so that the region can be closed by the fast path.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        let refused = matches!(self.obstacles.ipc, Ipc::Refused(_)) || self.obstacles.cma.is_some();
        !refused && self.pins.capacity() == 0 && self.counter.is_none()
    }
}

/// The reasons why paths do not reach the memory. The type is small, because each registration copies one into a slot.
#[derive(Debug)]
pub struct Obstacles {
    pub direct: Option<&'static str>,
    pub cma: Option<Box<str>>,
    pub ipc: Ipc,
    /// Paths that fault injection refuses, in addition to the other obstacles.
    pub refused: Paths,
}

/// The answer of a device's driver to the question whether other processes may map the memory.
#[derive(Debug)]
pub enum Ipc {
    Possible,
    /// Host memory, for which no driver is asked.
    NoDevice,
    Refused(Box<Error>),
}

/// The reason why the CPU's paths do not reach device memory.
const ON_DEVICE: &str = "device memory, which the CPU cannot access";

impl Obstacles {
    #[inline]
    pub fn host(direct: Option<&'static str>) -> Obstacles {
        Obstacles { direct, cma: None, ipc: Ipc::NoDevice, refused: Paths::empty() }
    }

    pub fn device(ipc: Result<()>) -> Obstacles {
        let ipc = ipc.map_or_else(|e| Ipc::Refused(Box::new(e)), |()| Ipc::Possible);
        Obstacles { direct: Some(ON_DEVICE), cma: Some(ON_DEVICE.into()), ipc, refused: Paths::empty() }
    }

    /// The paths that reach the memory.
    #[inline]
    pub fn paths(&self) -> Paths {
        let mut paths = Paths::STAGED;
        paths.set(Paths::DIRECT, self.direct.is_none());
        paths.set(Paths::CMA, self.cma.is_none());
        paths.set(Paths::IPC, matches!(self.ipc, Ipc::Possible));
        paths - self.refused
    }

    /// The state of `path` in words.
    pub fn words(&self, path: Paths) -> String {
        if self.refused.contains(path) {
            return fault::refusal(path).to_string();
        }
        match path {
            Paths::DIRECT => self.direct.map(|why| format!("ENODEV: {why}")),
            Paths::CMA => self.cma.as_ref().map(|why| format!("EFAULT: {why}")),
            Paths::IPC => match &self.ipc {
                Ipc::Possible => None,
                Ipc::NoDevice => Some("ENODEV: host memory, which no device driver maps".into()),
                Ipc::Refused(e) => Some(e.to_string()),
            },
            _ => None,
        }
        .map_or_else(|| "possible".into(), |why| format!("impossible, {why}"))
    }
}

/// A region held open while this process copies. The holder gives it back with `unpin`.
pub struct Pin {
    pub index: u32,
    pub site: Site,
    pub pieces: Vec<Iov>,
    /// For each piece of device memory: the identity that its allocation had at registration.
    pub ids: Vec<u64>,
    /// True if the pieces are host memory in a mapping of the library's own whose pages stay: memory of `mem_alloc`, or
    /// a file that cannot shrink. In other memory, the caller may have removed pages by the time the CPU copies.
    pub stays: bool,
}
