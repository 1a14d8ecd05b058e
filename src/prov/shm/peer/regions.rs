// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The peer's regions as an endpoint sees them. A region is looked up in the peer's table at its first use, a path is chosen, and the
//! result stays in a small cache. Each use checks the region's gate, so an entry of a closed region is noticed.

use super::import::{Import, Imports, MappedFor, check_identity, table_error};
use super::link::Link;
use crate::error::{Code, Error, Result, errno};
use crate::fallible::with_room;
use crate::hmem::Site;
use crate::mr::piece::{self, Span};
use crate::mr::{Access, Paths};
use crate::prov::report::Refusals;
use crate::prov::shm::memory::table::{self, MAX_EXTENTS};
use crate::sync::primitive::{Ordering, fence};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

/// Entries of the cache; a power of two.
const CACHE: usize = 128;
/// Most entries of `RemoteRegions::cma_refused`. When the map is full, all entries are dropped, and cross-memory attach
/// is tried again for their regions.
const CMA_REFUSED: usize = 1024;

/// A contiguous piece of a peer's region.
#[derive(Clone, Default)]
pub struct Extent {
    /// Address in the peer.
    addr: u64,
    len: u64,
    /// Address in this process, inside of `map`, which keeps the mapping alive; 0: not mapped.
    here: usize,
    map: Option<Arc<Import>>,
}

/// A part of an extent, valid as long as the caller holds the extent.
#[derive(Clone, Copy)]
pub struct ExtentPart {
    /// Address in the peer.
    pub addr: u64,
    /// Address in this process; 0: not mapped.
    pub here: usize,
    /// 0: the part lies in a mapping of this side's own, which stays. Else the part is memory of a peer in this
    /// process, used at the owner's address, which the owner may free at any time: then the identity of its allocation,
    /// checked before each copy.
    pub id: u64,
}

impl Span for Extent {
    #[inline(always)]
    fn bytes(&self) -> usize {
        self.len as usize
    }
}

impl Extent {
    /// Address in the peer.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Address in this process; 0: not mapped.
    #[inline(always)]
    pub fn here(&self) -> usize {
        self.here
    }

    /// Pins the file in which the extent lies for copies by the driver of `site`, at the first call.
    pub fn pin(&self, site: Site) {
        if let Some(map) = &self.map {
            map.pin(site);
        }
    }

    /// As [`Import::stays_reachable`].
    pub fn stays_reachable(&self) -> bool {
        self.map.as_ref().is_some_and(|map| map.stays_reachable())
    }
}

/// A region of the peer. The value keeps the mappings alive in which its extents lie.
#[derive(Clone, Default)]
pub struct RemoteRegion {
    pub key: u64,
    pub base: u64,
    pub len: u64,
    pub generation: u64,
    pub index: u32,
    /// Address of the region's gate word in the peer's table, which the link maps.
    pub gate: usize,
    pub access: Access,
    /// True if the region counts writes, so that each write needs a notice.
    pub event: bool,
    /// The rights that the fast path checks: `access` if the region has one piece, is mapped for the CPU, and counts no
    /// writes; else none.
    pub fast: Access,
    /// Count of offsets at which eight bytes fit into the region; 0 without `fast`.
    pub words: u64,
    /// The path that operations take.
    pub path: Paths,
    /// The place of the mapped memory: the host, or a device whose driver must copy.
    pub site: Site,
    /// The device for which the memory was mapped.
    pub mapped_for: MappedFor,
    /// The paths that the owner offers.
    pub offered: Paths,
    /// The only extent, or the first of `more`.
    pub one: Extent,
    pub more: Option<Arc<[Extent]>>,
}

impl RemoteRegion {
    pub fn extents(&self) -> &[Extent] {
        match &self.more {
            Some(list) => list,
            None => std::slice::from_ref(&self.one),
        }
    }

    /// A hash of the addresses at which the region is mapped here.
    pub fn mapping_hash(&self) -> u64 {
        let mut all = DefaultHasher::new();
        self.extents().iter().for_each(|e| all.write_usize(e.here));
        all.finish()
    }

    /// True if a range lies in the region.
    #[inline(always)]
    pub fn holds(&self, addr: u64, len: usize) -> bool {
        let offset = addr.wrapping_sub(self.base);
        addr >= self.base && offset <= self.len && self.len - offset >= len as u64
    }

    /// Checks a range and the rights; returns the offset of the first byte in the region.
    #[inline]
    pub fn check(&self, addr: u64, len: usize, need: Access) -> std::result::Result<u64, Error> {
        let offset = addr.wrapping_sub(self.base);
        if !self.holds(addr, len) {
            return Err(self.outside(addr, len));
        }
        if !self.access.contains(need) {
            return Err(self.forbidden(need));
        }
        Ok(offset)
    }

    #[cold]
    fn outside(&self, addr: u64, len: usize) -> Error {
        let end = self.base.saturating_add(self.len);
        Error::coded(
            errno::ERANGE,
            Code::Bounds,
            format!("[{addr:#x}, +{len}) lies outside the peer's region {:#x}, which is [{:#x}, {end:#x})", self.key, self.base),
        )
    }

    #[cold]
    fn forbidden(&self, need: Access) -> Error {
        let right = if need.contains(Access::REMOTE_WRITE) { "REMOTE_WRITE" } else { "REMOTE_READ" };
        Error::coded(errno::EACCES, Code::Access, format!("the peer's region {:#x} was not registered with GDRFAB_{right}", self.key))
    }

    /// The parts of `[offset, offset+len)`.
    #[inline]
    pub fn walk(&self, offset: u64, len: usize) -> impl Iterator<Item = (ExtentPart, usize)> + Clone + '_ {
        piece::walk(self.extents(), offset as usize, len).map(|(e, from, n)| {
            let here = if e.here == 0 { 0 } else { e.here + from };
            let id = e.map.as_ref().map_or(0, |map| map.id());
            (ExtentPart { addr: e.addr + from as u64, here, id }, n)
        })
    }
}

pub fn no_such_key(key: u64) -> Error {
    Error::coded(errno::EKEYREJECTED, Code::Key, format!("the peer has no region with key {key:#x}: it is stale, foreign, or closed"))
}

/// Result of resolving a key.
pub enum Resolved {
    Ready,
    /// The peer was asked for a memory file. The caller tries again after progress.
    Wait,
}

/// The peer's regions that this endpoint has looked up, and the peer's files that are mapped for them.
pub struct RemoteRegions {
    /// All connections share one empty cache until they resolve a first region.
    cache: Arc<[RemoteRegion; CACHE]>,
    pub imports: Imports,
    /// This side's copy of the filter words in its own segment, which the peer could overwrite.
    filter: Vec<u64>,
    /// Paths that this endpoint's options and the environment permit.
    pub allowed: Paths,
    /// Regions for which cross-memory attach failed: by key, the generation and the error.
    cma_refused: HashMap<u64, (u64, Error)>,
}

/// An empty cache.
fn no_remotes() -> Arc<[RemoteRegion; CACHE]> {
    static NONE: OnceLock<Arc<[RemoteRegion; CACHE]>> = OnceLock::new();
    NONE.get_or_init(|| Arc::new(std::array::from_fn(|_| RemoteRegion::default()))).clone()
}

/// Logs the chosen path. A function of its own, because `resolve` begins every operation and must stay small.
#[inline(never)]
fn log_path(link: &Link, r: &RemoteRegion) {
    crate::log!(Debug, "{}: its region {:#x} is reached by the path {}", link.who(), r.key, r.path.words());
}

impl RemoteRegions {
    pub fn new(allowed: Paths) -> RemoteRegions {
        RemoteRegions {
            cache: no_remotes(),
            imports: Imports::default(),
            filter: vec![0; crate::prov::shm::wire::layout::FILTER_BITS / 64],
            allowed,
            cma_refused: HashMap::new(),
        }
    }

    /// Has the peer's memory mapped for the device of this local buffer from now on. A buffer in host memory changes
    /// nothing: any mapping serves it, and a change to and fro would map everything twice.
    pub fn map_for(&mut self, site: Site) {
        if !site.is_host() {
            self.imports.mapped_for = Some(site.device);
        }
    }

    /// The place of a key in the cache.
    #[inline(always)]
    fn place(key: u64) -> usize {
        // Keys of the provider differ in their low bits, and keys of callers usually do.
        (key ^ key >> 18) as usize % CACHE
    }

    /// The cached entry of `key`, if there is one. The caller must check the region's gate, which shows if the entry is
    /// still valid.
    #[inline(always)]
    pub fn cached(&self, key: u64) -> Option<&RemoteRegion> {
        let r = &self.cache[Self::place(key)];
        (r.generation != 0 && r.key == key).then_some(r)
    }

    /// The cached entry of `key`, if the fast path may use the region and the region permits `need`.
    #[inline(always)]
    pub fn fast(&self, key: u64, need: Access) -> Option<&RemoteRegion> {
        let r = &self.cache[Self::place(key)];
        // An empty entry permits nothing.
        (r.key == key && r.fast.contains(need)).then_some(r)
    }

    /// The cached entry of `key`, if the region's path is cma, and the region has one piece, counts no writes, and
    /// permits `need`.
    #[inline]
    pub fn attached(&self, key: u64, need: Access) -> Option<&RemoteRegion> {
        self.cached(key).filter(|r| r.path == Paths::CMA && r.access.contains(need) && !r.event && r.more.is_none())
    }

    /// Drops the cached entry of `key`.
    pub fn evict(&mut self, key: u64) {
        let place = Self::place(key);
        if self.cache[place].key == key {
            Arc::make_mut(&mut self.cache)[place] = RemoteRegion::default();
        }
    }

    /// Permits other paths from now on, and drops the cached regions with their chosen paths. Returns the paths that
    /// were permitted before, if they differ.
    pub fn set_allowed(&mut self, allowed: Paths) -> Option<Paths> {
        if allowed == self.allowed {
            return None;
        }
        self.evict_all();
        Some(std::mem::replace(&mut self.allowed, allowed))
    }

    /// Drops all cached entries, so that regions are looked up again.
    pub fn evict_all(&mut self) {
        self.cache = no_remotes();
    }

    /// Makes the cached entry of `key` valid: looks the region up again if the entry is missing or old. `Err`: an
    /// operation on the region fails with that error.
    pub fn resolve(&mut self, link: &Link, key: u64) -> Result<Resolved> {
        if let Some(r) = self.cached(key)
            && link.table.entry(r.index).gate.load(Ordering::Acquire) == r.generation
            && (r.path != Paths::IPC || r.mapped_for == self.imports.mapped_for)
        {
            return Ok(Resolved::Ready);
        }
        self.evict(key);
        let mut fresh = self.look_up(link, key)?;
        match self.choose(link, &mut fresh) {
            Ok(false) => {}
            Ok(true) => return Ok(Resolved::Wait),
            // The region may have been closed, and its memory file freed, while it was looked at.
            Err(_) if link.table.entry(fresh.index).gate.load(Ordering::Acquire) != fresh.generation => return Err(no_such_key(key)),
            Err(e) => return Err(e),
        }
        log_path(link, &fresh);
        Arc::make_mut(&mut self.cache)[Self::place(key)] = fresh;
        Ok(Resolved::Ready)
    }

    /// The region with one of `paths` as its path, none of which needs a memory file. `None`: the region can be reached
    /// by none of `paths`.
    #[cold]
    pub fn without_files(&mut self, link: &Link, key: u64, paths: Paths) -> Result<Option<RemoteRegion>> {
        let mut r = self.look_up(link, key)?;
        r.offered &= paths;
        let chosen = self.choose(link, &mut r);
        Ok(chosen.is_ok().then_some(r))
    }

    /// Reads the region's entry in the peer's table, and maps the files in which the region lies.
    fn look_up(&mut self, link: &Link, key: u64) -> Result<RemoteRegion> {
        let index = link.table.find(key)?.ok_or_else(|| no_such_key(key))?;
        // The filter bit must be set before the gate is read, so that the owner's close waits for this side if the gate
        // was open.
        let (word, bit) = link.mine.filter(index);
        let slot = index as usize % crate::prov::shm::wire::layout::FILTER_BITS / 64;
        self.filter[slot] |= bit;
        word.store(self.filter[slot], Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let e = link.table.entry(index);
        let generation = e.gate.load(Ordering::Acquire);
        let (access, offered) = table::unpack_rights(e.rights.load(Ordering::Relaxed));
        let rights = e.rights.load(Ordering::Relaxed);
        let mut fresh = RemoteRegion {
            key,
            base: e.base.load(Ordering::Relaxed),
            len: e.len.load(Ordering::Relaxed),
            generation,
            index,
            gate: (&raw const e.gate) as usize,
            access,
            event: rights & table::EVENT != 0,
            fast: Access::empty(),
            words: 0,
            path: Paths::empty(),
            site: Site::HOST,
            mapped_for: self.imports.mapped_for,
            offered,
            one: Extent::default(),
            more: None,
        };
        let (addr, file, offset) = (e.addr.load(Ordering::Relaxed), e.file.load(Ordering::Relaxed), e.file_offset.load(Ordering::Relaxed));
        let mut files = vec![(file, offset)];
        if rights & table::MULTI != 0 {
            let count = offset;
            if count == 0 || addr.checked_add(count).is_none_or(|end| end > MAX_EXTENTS as u64) {
                return Err(table_error("the number of a region's iovecs"));
            }
            let mut list = with_room(count as usize)?;
            files.clear();
            for k in 0..count {
                let x = link.table.extent(addr + k)?;
                list.push(Extent { addr: x.addr.load(Ordering::Relaxed), len: x.len.load(Ordering::Relaxed), ..Extent::default() });
                files.push((x.file.load(Ordering::Relaxed), x.file_offset.load(Ordering::Relaxed)));
            }
            fresh.more = Some(list.into());
        } else {
            fresh.one = Extent { addr, len: fresh.len, ..Extent::default() };
        }
        // The fields were loaded relaxed. If the gate is unchanged now, they belong together.
        fence(Ordering::Acquire);
        if generation == 0 || e.gate.load(Ordering::Acquire) != generation || e.key.load(Ordering::Relaxed) != key {
            return Err(no_such_key(key));
        }
        let sum = fresh.extents().iter().try_fold(0u64, |s, x| x.addr.checked_add(x.len).and(s.checked_add(x.len)));
        if sum != Some(fresh.len) || fresh.base.checked_add(fresh.len).is_none() {
            return Err(table_error("its lengths"));
        }
        self.map_files(link, &mut fresh, &files);
        Ok(fresh)
    }

    /// Maps the files of a region, if the region offers and this side permits a path through mappings. An extent that
    /// could not be mapped keeps `here` = 0.
    fn map_files(&mut self, link: &Link, fresh: &mut RemoteRegion, files: &[(u64, u64)]) {
        if (fresh.offered & self.allowed).intersects(Paths::DIRECT | Paths::IPC) {
            let mut extents: Vec<Extent> = fresh.extents().to_vec();
            if files.iter().any(|(file, _)| self.imports.is_new(link, *file)) {
                self.sweep(link);
            }
            for (extent, (file, offset)) in extents.iter_mut().zip(files) {
                if let Some(import) = self.imports.get(link, *file, fresh.access.contains(Access::REMOTE_WRITE))
                    && let Some(here) = import.at(*offset, extent.len)
                {
                    (extent.here, extent.map) = (here, Some(import.clone()));
                    fresh.site = import.site();
                }
            }
            match &mut fresh.more {
                Some(more) => *more = extents.into(),
                None => fresh.one = extents.pop().unwrap_or_default(),
            }
        }
        if let Some(first) = fresh.more.as_ref().and_then(|more| more.first()) {
            fresh.one = first.clone();
        }
    }

    /// The mapping of a peer's buffer that lies in `file` at `offset`, and the buffer's address here. `None`: the
    /// buffer cannot be mapped without waiting for the peer.
    pub fn mapped(&mut self, link: &Link, file: u64, offset: u64, len: u64) -> Option<(&Arc<Import>, usize)> {
        let elsewhere = self.imports.copier.is_some();
        if self.imports.is_new(link, file) {
            self.sweep(link);
        }
        let import = self.imports.get(link, file, false).filter(|i| !elsewhere || i.site().is_host())?;
        let here = import.at(offset, len)?;
        check_identity(import.site(), here, import.id()).ok()?;
        Some((import, here))
    }

    /// Takes the peer's answer to a request for a file (see [`Imports::answered`]).
    pub fn file_answered(&mut self, link: &Link, file: u64, size: u64, found: bool, fd: Option<BorrowedFd<'_>>) {
        self.imports.answered(link, file, size, found, fd);
    }

    /// Drops imports that the peer has freed. A mapping in use stays until its last user drops it.
    pub fn sweep(&mut self, link: &Link) {
        if self.imports.sweep(link) {
            self.evict_all();
        }
    }

    /// Chooses the region's path. `Ok(true)`: the caller must wait for a memory file first.
    fn choose(&mut self, link: &Link, r: &mut RemoteRegion) -> Result<bool> {
        let usable = r.offered & self.allowed;
        if usable.intersects(Paths::DIRECT | Paths::IPC) {
            let path = if r.site.is_host() { Paths::DIRECT } else { Paths::IPC };
            if r.extents().iter().all(|x| x.here != 0) && usable.contains(path) {
                r.path = path;
                if r.more.is_none() && !r.event && path == Paths::DIRECT {
                    r.fast = r.access;
                    r.words = r.len.saturating_sub(7);
                }
                return Ok(false);
            }
            if self.imports.is_waiting() {
                return Ok(true);
            }
        }
        if usable.contains(Paths::CMA) && link.why_no_cma().is_none() && self.why_cma_refused(r).is_none() {
            r.path = Paths::CMA;
        } else if usable.contains(Paths::STAGED) {
            r.path = Paths::STAGED;
        } else {
            return Err(Error::coded(
                errno::EOPNOTSUPP,
                Code::Path,
                format!("no path to the peer's region {:#x}:\n{}", r.key, self.words(link, r)),
            ));
        }
        Ok(false)
    }

    /// Notes that cross-memory attach fails for the region's memory, so that the next look-up chooses another path.
    pub fn refuse(&mut self, r: &RemoteRegion, why: Error) {
        if self.cma_refused.len() >= CMA_REFUSED {
            self.cma_refused.clear();
        }
        self.cma_refused.insert(r.key, (r.generation, why));
        self.evict(r.key);
    }

    fn why_cma_refused(&self, r: &RemoteRegion) -> Option<&Error> {
        self.cma_refused.get(&r.key).filter(|(generation, _)| *generation == r.generation).map(|(_, why)| why)
    }

    /// For each path, the reason why the region is not reached by it.
    pub fn refusals(&self, link: &Link, r: &RemoteRegion) -> Refusals {
        let policy = |path: Paths| {
            if !r.offered.contains(path) {
                return Some(Error::fixed(
                    errno::ENODEV,
                    "the peer's region does not offer this path (gdrfab_mr_explain() there tells why)",
                ));
            }
            if !self.allowed.contains(path) {
                return Some(Error::fixed(errno::EACCES, "ruled out by this endpoint's options or GDRFAB_PATHS"));
            }
            None
        };
        Refusals {
            direct: policy(Paths::DIRECT).or_else(|| r.extents().iter().any(|x| x.here == 0).then(|| self.imports.why_not())),
            ipc: policy(Paths::IPC).or_else(|| r.extents().iter().any(|x| x.here == 0).then(|| self.imports.why_not())),
            cma: policy(Paths::CMA).or_else(|| link.why_no_cma().or(self.why_cma_refused(r)).cloned()),
            staged: policy(Paths::STAGED),
            ..Refusals::refused("not a path of shm, which reaches processes of this host")
        }
    }

    /// One line for each path: chosen, possible, or the reason against it.
    pub fn words(&self, link: &Link, r: &RemoteRegion) -> String {
        let mut text = self.refusals(link, r).lines(r.path);
        if let Some(copier) = self.imports.copier {
            text.push_str(&format!("  this process calls no driver: process {} maps and copies device memory\n", copier.pid));
        }
        text
    }

    /// The region and its path, for a query by the program: looked up anew, without waiting for the peer.
    pub fn inspect(&mut self, link: &Link, key: u64) -> Result<RemoteRegion> {
        self.evict(key);
        let mut r = self.look_up(link, key)?;
        let _ = self.choose(link, &mut r);
        Ok(r)
    }
}
