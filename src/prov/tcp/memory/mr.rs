// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Registered regions of a domain, on top of `crate::mr`. Peers name a region by its key in each operation; while the kernel or a
//! driver touches the region's memory, the region is entered and cannot close.

use crate::error::{Code, Error, Result, errno};
use crate::hmem::Site;
use crate::mr::file::MappedFile;
use crate::mr::key::OWN_REGIONS;
use crate::mr::region::{self, Location, Modes};
use crate::mr::registry::{CHOSEN_KEY, DEVICE_KEY, KeyOf, Registry};
use crate::mr::{Access, Attr, Iov, PathPolicy, Paths, RegionId};
use crate::prov::fault;
use crate::prov::queue::Counter;
use crate::sys::usercopy::UserCopy;
use parking_lot::Mutex;
use std::ops::Deref;
use std::sync::Arc;

pub const MAX_REGIONS: usize = OWN_REGIONS;

/// True if the key names device memory. `None`: the region's owner, and not the library, chose the key, which therefore
/// does not tell.
pub fn names_device(key: u64) -> Option<bool> {
    (key & CHOSEN_KEY != 0).then_some(key & DEVICE_KEY != 0)
}

/// A piece of a region's memory, with the address at which this process reaches the piece.
pub type Piece = region::Piece<Iov>;
pub type Region = region::Region<Iov, TcpRegion>;
/// A guard that keeps a region from closing.
pub type Inside = region::RegionUse<Iov, TcpRegion>;

/// The memory of a new region, as `locate` found it.
pub struct Located {
    pub location: Location<Iov>,
    /// The mapping of a descriptor that the caller gave.
    pub file: Option<MappedFile>,
    /// The pieces lie in the library's own mappings. The pages of such mappings cannot vanish, so the CPU may copy the
    /// pieces directly.
    pub own: bool,
}

/// The part of a region that is tcp's own: the way to its bytes, and the counter of peers' writes.
pub struct TcpRegion {
    file: Option<MappedFile>,
    own: bool,
    counter: Mutex<Option<Arc<Counter>>>,
    user: Arc<UserCopy>,
}

impl Region {
    /// Checks that a peer's operation may touch the range; returns the offset in the region at which the range begins.
    pub fn check(&self, addr: u64, len: u64, need: Access, permitted: Paths) -> std::result::Result<u64, Code> {
        let offset = self.range(addr, len, need)?;
        if permitted.contains(self.paths) { Ok(offset) } else { Err(Code::Path) }
    }

    /// The contiguous parts of the `len` bytes that begin at byte `skip`, by the addresses at which this process
    /// reaches the bytes.
    #[inline]
    pub fn parts(&self, skip: u64, len: u64) -> impl Iterator<Item = Iov> + '_ {
        self.walk(skip, len as usize).map(|(piece, from, n)| piece.at.part(from, n))
    }

    /// Appends `len` bytes from byte `skip` on to `into`. The region must be in host memory, and entered.
    #[inline]
    pub fn read(&self, skip: u64, len: u64, into: &mut Vec<u8>) -> Result<()> {
        for part in self.parts(skip, len) {
            if self.own.own {
                // The library's own mapping: its pages cannot vanish.
                part.append_to(into);
            } else {
                self.own.user.read(part, into)?;
            }
        }
        Ok(())
    }

    /// Copies `bytes` into the region at byte `skip`. The region must be in host memory, and entered. On failure some bytes may
    /// have been written.
    #[inline]
    pub fn write(&self, skip: u64, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        for part in self.parts(skip, bytes.len() as u64) {
            let (now, later) = rest.split_at(part.len().min(rest.len()));
            rest = later;
            if self.own.own {
                part.put(now);
            } else {
                self.own.user.write(now, part)?;
            }
        }
        Ok(())
    }

    /// True if the memory's pages can vanish without notice, so that only the kernel may copy their bytes.
    pub fn may_be_gone(&self) -> bool {
        !self.own.own
    }

    /// True if the region is a mapping of a descriptor that the caller gave.
    pub fn is_file(&self) -> bool {
        self.own.file.is_some()
    }

    /// Begins CPU access to the mapping of a dma-buf, which `end_cpu` ends. Does nothing for other memory.
    pub fn begin_cpu(&self, write: bool) -> Result<()> {
        self.own.file.as_ref().map_or(Ok(()), |f| f.begin_cpu(write))
    }

    /// Ends the access that `begin_cpu` began.
    pub fn end_cpu(&self, write: bool) -> Result<()> {
        self.own.file.as_ref().map_or(Ok(()), |f| f.end_cpu(write))
    }

    /// Counts a completed write of a peer.
    pub fn count_write(&self) {
        if let Some(counter) = &*self.own.counter.lock() {
            counter.add(1);
        }
    }
}

/// The path by which memory at `site` is reached.
pub fn path_of(site: Site) -> Paths {
    if site.is_host() { Paths::SOCKET } else { Paths::STAGED }
}

/// Fails if the process's setting or the region's policy rules out `path`.
pub fn check_path(path: Paths, process: Paths, policy: &PathPolicy) -> Result<()> {
    let who = match () {
        () if !process.contains(path) => format!("GDRFAB_PATHS permits {}", process.words()),
        () if !policy.allowed().contains(path) => {
            format!("attr->require {}, attr->forbid {}", policy.require.words(), policy.forbid.words())
        }
        () => return Ok(()),
    };
    let memory = if path == Paths::SOCKET { "host" } else { "device" };
    let words = format!("tcp moves {memory} memory by the path {}, which is not permitted: {who}", path.words());
    Err(Error::coded(errno::EOPNOTSUPP, Code::Path, words))
}

/// The regions of a domain.
pub struct Regions {
    registry: Registry<Arc<Region>>,
    user: Arc<UserCopy>,
}

impl Deref for Regions {
    type Target = Registry<Arc<Region>>;
    fn deref(&self) -> &Self::Target {
        &self.registry
    }
}

impl Regions {
    pub fn new(user: Arc<UserCopy>) -> Result<Regions> {
        Ok(Regions { registry: Registry::new(DEVICE_KEY)?, user })
    }

    pub fn make_room(&mut self) {
        self.registry.make_room();
    }

    /// Registers a region. On failure nothing is left behind.
    pub fn register(&mut self, modes: Modes, attr: &Attr<'_>, refused: Paths, located: Located) -> Result<RegionId> {
        let Located { location, file, own } = located;
        let base = modes.base(attr, location.base, location.len)?;
        let path = path_of(location.site);
        check_path(path, modes.paths, &attr.policy)?;
        if refused.contains(path) {
            return Err(fault::refusal(path));
        }
        let key = if modes.prov_key { KeyOf::Domain } else { KeyOf::Caller(attr.requested_key) };
        let reserved = self.registry.reserve(key, !location.site.is_host())?;
        let own = TcpRegion { file, own, counter: Mutex::new(None), user: self.user.clone() };
        let region = Region::new(attr, reserved.key, base, path, location, own);
        Ok(self.registry.fill(reserved, Arc::new(region)))
    }

    /// First step of closing a region: no peer can enter the region from now on. True: no peer is inside either.
    pub fn shut(&mut self, id: RegionId) -> Result<bool> {
        Ok(self.registry.shut(id)?.users.is_empty())
    }

    /// Last step of closing a region: removes the region from the table.
    pub fn forget(&mut self, id: RegionId) {
        self.registry.drop_region(id);
    }

    /// Lets `counter` count the peers' writes into the region.
    pub fn bind_counter(&mut self, id: RegionId, counter: Arc<Counter>) -> Result<()> {
        *self.registry.get(id)?.own.counter.lock() = Some(counter);
        Ok(())
    }

    /// Text about the region's paths, for people.
    pub fn explain(&self, id: RegionId) -> Result<String> {
        let r = self.registry.get(id)?;
        let why = match r.paths {
            Paths::SOCKET => "socket: the kernel copies between this memory and the connection\n  staged: not needed",
            _ => {
                "socket: impossible, the CPU cannot access device memory\n  staged: through pinned host buffers; device copies and \
                 network transfer overlap"
            }
        };
        Ok(format!("{}{}\n  {why}\n", r.headline(""), r.paths.words()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hmem::MemoryKind;
    use crate::mr::region::Pieces;
    use crate::mr::{Iov, Memory, Source};

    const MODES: Modes = Modes { virt_addr: true, prov_key: true, paths: Paths::SOCKET.union(Paths::STAGED) };

    fn named(addr: usize, len: usize) -> Iov {
        // SAFETY: the memory is never accessed.
        unsafe { Iov::new(addr, len) }
    }

    fn attr<'a>(iov: &'a [Iov], key: u64) -> Attr<'a> {
        let access = Access::REMOTE_READ;
        Attr {
            source: Source::Iov(iov),
            memory: Memory::Host,
            access,
            offset: 0,
            requested_key: key,
            policy: PathPolicy::default(),
            rma_event: false,
        }
    }

    fn register(regions: &mut Regions, modes: Modes, iov: &[Iov], key: u64) -> Result<RegionId> {
        let attr = attr(iov, key);
        let (base, len) = (iov[0].addr() as u64, iov.iter().map(|v| v.len() as u64).sum());
        let location = Location { pieces: Pieces::of(iov, |iov| *iov), base, len, site: Site::HOST, kind: MemoryKind::Host };
        regions.register(modes, &attr, Paths::empty(), Located { location, file: None, own: false })
    }

    #[test]
    fn a_peer_gets_what_was_registered_and_no_more() {
        let mut regions = Regions::new(Arc::new(UserCopy::new().unwrap())).unwrap();
        let iov = [named(0x10000, 64), named(0x20000, 16)];
        let id = register(&mut regions, MODES, &iov, 0).unwrap();
        let region = regions.find(id.key).unwrap().clone();
        let all = Paths::SOCKET;
        assert_eq!(region.check(0x10000, 80, Access::REMOTE_READ, all), Ok(0));
        assert_eq!(region.check(0x10001, 80, Access::REMOTE_READ, all), Err(Code::Bounds));
        assert_eq!(region.check(0xffff, 2, Access::REMOTE_READ, all), Err(Code::Bounds));
        assert_eq!(region.check(0x10000, u64::MAX, Access::REMOTE_READ, all), Err(Code::Bounds));
        assert_eq!(region.check(0x10000, 1, Access::REMOTE_WRITE, all), Err(Code::Access));
        assert_eq!(region.check(0x10000, 1, Access::REMOTE_READ, Paths::STAGED), Err(Code::Path));
        assert_eq!(region.parts(60, 8).collect::<Vec<_>>(), [named(0x1003c, 4), named(0x20000, 4)]);
        assert!(regions.find(id.key ^ 1 << 20).is_none() && regions.find(0).is_none());
    }

    #[test]
    fn closing_waits_for_those_inside() {
        let mut regions = Regions::new(Arc::new(UserCopy::new().unwrap())).unwrap();
        let iov = [named(0x10000, 64)];
        let id = register(&mut regions, MODES, &iov, 0).unwrap();
        let region = regions.find(id.key).unwrap().clone();
        let inside = region.hold().ok().unwrap();
        assert!(!regions.shut(id).unwrap() && regions.find(id.key).is_none());
        assert_eq!((region.enter(), regions.shut(id).unwrap()), (Err(Code::Key), false));
        drop(inside);
        assert!(regions.shut(id).unwrap());
        regions.forget(id);
        assert!(regions.shut(id).is_err() && regions.open_count() == 0);
    }

    #[test]
    fn keys_of_the_callers_choice_are_its_own() {
        let mut regions = Regions::new(Arc::new(UserCopy::new().unwrap())).unwrap();
        let modes = Modes { prov_key: false, ..MODES };
        let iov = [named(0x10000, 64)];
        let id = register(&mut regions, modes, &iov, 7).unwrap();
        assert_eq!(id.key, 7);
        assert!(register(&mut regions, modes, &iov, 7).is_err_and(|e| e.errno == errno::ENOKEY));
        assert!(regions.find(7).is_some() && regions.find(0).is_none());
        assert!(regions.shut(id).unwrap() && regions.find(7).is_none());
    }
}
