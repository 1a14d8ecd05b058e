// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a region is beyond what every provider's is: the files that its pieces lie in, and the paths that its memory permits.

use crate::error::Error;
use crate::hmem::{Pinned, Site};
use crate::mr::region::{self, Location};
use crate::mr::{Iov, Paths};
use crate::prov::fault;
use crate::prov::queue::Counter;
use std::borrow::Cow;
use std::sync::Arc;

/// Why memory that nobody shares cannot be mapped.
pub const PRIVATE: &str = "private memory of this process, not from mem_alloc and not given as a file descriptor";

/// Where a peer that maps the file finds a piece; file 0: nowhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    pub file: u64,
    pub offset: u64,
}

pub type Piece = region::Piece<Place>;
pub type Region = region::Region<Place, Shared>;

/// Memory that was found to be what the caller says.
pub struct Located {
    pub location: Location<Place>,
    pub verdicts: Verdicts,
}

/// What shm keeps of a region.
pub struct Shared {
    pub verdicts: Verdicts,
    /// Host memory that was pinned for a vendor's copies, and for which vendors that was tried.
    pub pins: Vec<(Site, Option<Pinned>)>,
    pub counter: Option<Arc<Counter>>,
    /// Its run in the table of extents, if it has several pieces.
    pub extents: Option<(u32, u32)>,
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
    #[inline]
    pub fn host(direct: std::result::Result<(), Cow<'static, str>>) -> Verdicts {
        Verdicts { direct, cma: Ok(()), ipc: Err(NOT_DEVICE), refused: Paths::empty() }
    }

    #[inline]
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
