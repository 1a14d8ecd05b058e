// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A peer's regions as seen from an endpoint: looked up in the peer's table at first use, kept in a
//! small cache, checked against the gate at every use.

use super::link::Link;
use super::table::{self, INDEX_BITS, MAX_EXTENTS, MAX_REGIONS, NO_FD};
use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::copier::Copier;
use crate::hmem::{self, Allocation, Iface, Pinned, Site};
use crate::mr::{Access, Paths};
use crate::prov::bind::Verdicts;
use crate::sync::primitive::{Ordering, fence};
use crate::sys::mem::{Mapping, Protection, check_peer_file};
use crate::sys::process;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Entries of the cache; a power of two.
const CACHE: usize = 128;

/// A contiguous piece of a peer's region.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extent {
    /// Address in the peer.
    pub addr: u64,
    pub len: u64,
    /// Address here, if mapped.
    pub here: usize,
    /// Identity of the memory there if it is the owner's own address, which nothing keeps: asked before each copy.
    /// 0: a mapping of ours.
    pub id: u64,
}

/// What is known of a peer's region.
#[derive(Clone, Debug, Default)]
pub struct Remote {
    pub key: u64,
    pub base: u64,
    pub len: u64,
    pub generation: u64,
    pub index: u32,
    /// Address of the region's gate word in the peer's table, which the link maps.
    pub gate: usize,
    pub access: Access,
    pub event: bool,
    /// The rights, if it is mapped, of one piece, and nobody is to be notified: the ordinary case. Otherwise none.
    pub plain: Access,
    /// Offsets at which eight bytes fit.
    pub words: u64,
    /// The path that operations take.
    pub path: Paths,
    /// Who copies what is mapped here, and for whom it was mapped.
    pub site: Site,
    pub near: Near,
    pub offered: Paths,
    /// The only extent, or the first of `more`.
    pub one: Extent,
    pub more: Option<Arc<[Extent]>>,
}

impl Remote {
    pub fn extents(&self) -> &[Extent] {
        match &self.more {
            Some(list) => list,
            None => std::slice::from_ref(&self.one),
        }
    }

    /// Checks a range; gives the offset of its first byte in the region.
    #[inline]
    pub fn check(&self, addr: u64, len: usize, need: Access) -> std::result::Result<u64, Error> {
        let offset = addr.wrapping_sub(self.base);
        if addr < self.base || offset > self.len || self.len - offset < len as u64 {
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

    /// Gives the extents of `[offset, offset+len)`.
    pub fn walk(&self, offset: u64, len: usize, mut each: impl FnMut(Extent, usize)) {
        let (mut skip, mut left) = (offset, len as u64);
        for e in self.extents() {
            if skip >= e.len {
                skip -= e.len;
                continue;
            }
            let take = left.min(e.len - skip);
            if take > 0 {
                let here = if e.here == 0 { 0 } else { e.here + skip as usize };
                each(Extent { addr: e.addr + skip, len: take, here, id: e.id }, take as usize);
            }
            left -= take;
            skip = 0;
            if left == 0 {
                return;
            }
        }
    }
}

pub fn no_such_key(key: u64) -> Error {
    Error::coded(errno::EKEYREJECTED, Code::Key, format!("the peer has no region with key {key:#x}: it is stale, foreign, or closed"))
}

/// A peer's memory file or device allocation, mapped here.
enum Import {
    Host {
        map: Mapping,
        writable: bool,
        pinned: Option<Option<Pinned>>,
    },
    Device(hmem::Import),
    /// The peer is in this process: its memory at its own address, and the device that copies.
    Own {
        of: Allocation,
        device: u32,
    },
}

impl Import {
    fn base(&self) -> usize {
        match self {
            Import::Host { map, .. } => map.as_ptr() as usize,
            Import::Device(import) => import.base as usize,
            Import::Own { of, .. } => of.base as usize,
        }
    }

    fn len(&self) -> u64 {
        match self {
            Import::Host { map, .. } => map.len() as u64,
            Import::Device(import) => import.len,
            Import::Own { of, .. } => of.len,
        }
    }

    fn site(&self) -> Site {
        match self {
            Import::Host { .. } => Site::HOST,
            Import::Device(import) => Site { iface: import.iface, device: import.device },
            Import::Own { of, device } => Site { iface: of.iface, device: *device },
        }
    }

    fn id(&self) -> u64 {
        if let Import::Own { of, .. } = self { of.id } else { 0 }
    }
}

/// Why a peer's file is not mapped here yet.
#[derive(Clone, Debug)]
enum Missing {
    /// The peer was asked over the socket.
    Asked,
    /// It cannot be had.
    Never(Error),
}

/// The device that a mapping is for.
pub type Near = Option<u32>;

/// What resolving came to.
pub enum Resolved {
    Ready,
    /// The peer was asked for a memory file: try again after progress.
    Wait,
}

pub struct Remotes {
    cache: Box<[Remote; CACHE]>,
    /// By file and, for device memory, the device it was mapped for: a driver copies at full speed only
    /// through a mapping of the device that copies.
    imports: HashMap<(u64, Near), Import>,
    missing: HashMap<u64, Missing>,
    filter: Vec<u64>,
    /// What this endpoint's options and environment permit.
    pub allowed: Paths,
    /// Files that the caller has to ask the peer for.
    pub to_ask: Vec<u64>,
    /// Copies of a driver are in flight.
    pub busy: bool,
    /// Device that the peer's memory is mapped for; none: any will do.
    near: Near,
    /// Last reasons, for explanations.
    pidfd_refused: Option<Error>,
    /// The process in which device memory is mapped instead of here.
    pub copier: Option<&'static Copier>,
}

impl Remotes {
    pub fn new(allowed: Paths) -> Remotes {
        Remotes {
            cache: Box::new(std::array::from_fn(|_| Remote::default())),
            imports: HashMap::new(),
            missing: HashMap::new(),
            filter: vec![0; super::layout::FILTER_BITS / 64],
            allowed,
            to_ask: Vec::new(),
            near: None,
            busy: false,
            pidfd_refused: None,
            copier: None,
        }
    }

    /// From now on the peer's memory is mapped for the device of this local buffer. For one of the host any will do,
    /// and going back and forth would map everything twice.
    pub fn stay_near(&mut self, site: Site) {
        if !site.is_host() {
            self.near = Some(site.device);
        }
    }

    #[inline(always)]
    fn place(key: u64) -> usize {
        // Provider keys differ in their low bits; user keys usually as well.
        (key ^ key >> 18) as usize % CACHE
    }

    /// The cached entry of `key`, if there is one; the gate decides whether it still holds.
    #[inline(always)]
    pub fn cached(&self, key: u64) -> Option<&Remote> {
        let r = &self.cache[Self::place(key)];
        (r.generation != 0 && r.key == key).then_some(r)
    }

    /// The cached entry of `key` if it is plain and permits `need`.
    #[inline(always)]
    pub fn plain(&self, key: u64, need: Access) -> Option<&Remote> {
        let r = &self.cache[Self::place(key)];
        // An empty entry permits nothing.
        (r.key == key && r.plain.contains(need)).then_some(r)
    }

    /// Drops the cached entry of `key`.
    pub fn evict(&mut self, key: u64) {
        let place = Self::place(key);
        if self.cache[place].key == key {
            self.cache[place] = Remote::default();
        }
    }

    /// Forgets which paths were chosen, after the options changed.
    pub fn evict_all(&mut self) {
        self.cache.fill(Remote::default());
    }

    /// Makes `key` current in the cache. `Err`: an operation on it fails with that error.
    pub fn resolve(&mut self, link: &Link, key: u64) -> Result<Resolved> {
        if let Some(r) = self.cached(key)
            && link.table.entry(r.index).gate.load(Ordering::Acquire) == r.generation
            && (r.path != Paths::IPC || r.near == self.near)
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
        self.cache[Self::place(key)] = fresh;
        Ok(Resolved::Ready)
    }

    fn index_of(&self, link: &Link, key: u64) -> Option<u32> {
        let direct = (key & ((1 << INDEX_BITS) - 1)) as u32;
        let holds = |i: u32| {
            let e = link.table.entry(i);
            e.gate.load(Ordering::Acquire) != 0 && e.key.load(Ordering::Relaxed) == key
        };
        if (direct as usize) < MAX_REGIONS && holds(direct) {
            return Some(direct);
        }
        // A key of the user's choosing: once per region, so a scan is fine.
        (0..link.table.high()).find(|i| holds(*i))
    }

    fn look_up(&mut self, link: &Link, key: u64) -> Result<Remote> {
        let index = self.index_of(link, key).ok_or_else(|| no_such_key(key))?;
        // The owner must know that we use this region before we trust the gate.
        let (word, bit) = link.mine.filter(index);
        let slot = index as usize % super::layout::FILTER_BITS / 64;
        self.filter[slot] |= bit;
        word.store(self.filter[slot], Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let e = link.table.entry(index);
        let generation = e.gate.load(Ordering::Acquire);
        let (access, offered) = table::unpack_rights(e.rights.load(Ordering::Relaxed));
        let rights = e.rights.load(Ordering::Relaxed);
        let mut fresh = Remote {
            key,
            base: e.base.load(Ordering::Relaxed),
            len: e.len.load(Ordering::Relaxed),
            generation,
            index,
            gate: (&raw const e.gate) as usize,
            access,
            event: rights & table::EVENT != 0,
            plain: Access::empty(),
            words: 0,
            path: Paths::empty(),
            site: Site::HOST,
            near: self.near,
            offered,
            one: Extent::default(),
            more: None,
        };
        let (addr, file, offset) = (e.addr.load(Ordering::Relaxed), e.file.load(Ordering::Relaxed), e.file_offset.load(Ordering::Relaxed));
        let mut files = vec![(file, offset)];
        if rights & table::MULTI != 0 {
            let count = offset;
            if count == 0 || addr.checked_add(count).is_none_or(|end| end > MAX_EXTENTS as u64) {
                return Err(nonsense("its number of iovecs"));
            }
            let mut list = Vec::with_capacity(count as usize);
            files.clear();
            for k in 0..count {
                let x = link.table.extent(addr + k);
                list.push(Extent { addr: x.addr.load(Ordering::Relaxed), len: x.len.load(Ordering::Relaxed), ..Extent::default() });
                files.push((x.file.load(Ordering::Relaxed), x.file_offset.load(Ordering::Relaxed)));
            }
            fresh.one = list[0];
            fresh.more = Some(list.into());
        } else {
            fresh.one = Extent { addr, len: fresh.len, ..Extent::default() };
        }
        // Relaxed field loads above, then the gate again: unchanged means that they belong together.
        fence(Ordering::Acquire);
        if generation == 0 || e.gate.load(Ordering::Acquire) != generation || e.key.load(Ordering::Relaxed) != key {
            return Err(no_such_key(key));
        }
        let sum = fresh.extents().iter().try_fold(0u64, |s, x| x.addr.checked_add(x.len).and(s.checked_add(x.len)));
        if sum != Some(fresh.len) || fresh.base.checked_add(fresh.len).is_none() {
            return Err(nonsense("its lengths"));
        }
        self.map_files(link, &mut fresh, &files);
        Ok(fresh)
    }

    /// Maps what a region lies in, where a path through mappings is offered and wanted; extents that
    /// could not be mapped keep `here` = 0.
    fn map_files(&mut self, link: &Link, fresh: &mut Remote, files: &[(u64, u64)]) {
        if !(fresh.offered & self.allowed).intersects(Paths::DIRECT | Paths::IPC) {
            return;
        }
        let mut extents: Vec<Extent> = fresh.extents().to_vec();
        for (extent, (file, offset)) in extents.iter_mut().zip(files) {
            if let Some(import) = self.import(link, *file, fresh.access.contains(Access::REMOTE_WRITE))
                && offset.checked_add(extent.len).is_some_and(|end| end <= import.len())
            {
                extent.here = import.base() + *offset as usize;
                extent.id = import.id();
                fresh.site = import.site();
            }
        }
        fresh.one = extents[0];
        if fresh.more.is_some() {
            fresh.more = Some(extents.into());
        }
    }

    fn import(&mut self, link: &Link, file: u64, write: bool) -> Option<&Import> {
        let on_device = link.table.file(file).how.load(Ordering::Relaxed) != 0;
        let place = (file, self.near.filter(|_| on_device));
        if self.imports.get(&place).is_some_and(|i| write && matches!(i, Import::Host { writable: false, .. })) {
            // Cached regions point into the mapping that goes.
            self.evict_all();
            self.imports.remove(&place);
        }
        if !self.imports.contains_key(&place) && !self.missing.contains_key(&file) {
            self.sweep(link);
            let record = link.table.file(file);
            if file == 0 || record.id.load(Ordering::Acquire) != file {
                self.missing.insert(file, Missing::Never(Error::fixed(errno::ENOENT, "the peer freed the memory")));
            } else {
                self.obtain(link, file, write);
            }
        }
        self.imports.get(&place)
    }

    /// Maps a file by what the peer's record says, or notes what is missing for that.
    fn obtain(&mut self, link: &Link, file: u64, write: bool) {
        if let Some(own) = self.own(link, file) {
            self.imports.insert((file, self.near), own);
            return;
        }
        let record = link.table.file(file);
        let without = record.fd.load(Ordering::Relaxed) == NO_FD;
        let result = if without { self.take_in_device(link, file, None) } else { self.fetch(link, file, write) };
        match result {
            Ok(()) => {}
            Err(e) if without => drop(self.missing.insert(file, Missing::Never(e))),
            // Without ptrace permission the peer itself hands the file over, at its next progress.
            Err(e) => {
                self.pidfd_refused = Some(e);
                self.missing.insert(file, Missing::Asked);
                self.to_ask.push(file);
            }
        }
    }

    /// Device memory of a peer in this process, where the vendor reaches it at the address that it has.
    fn own(&self, link: &Link, file: u64) -> Option<Import> {
        let of = link.kin.as_ref().filter(|_| self.copier.is_none())?.allocation(file)?;
        match hmem::get(of.iface).and_then(|up| up.reach(&of, self.near)) {
            Ok(device) => Some(Import::Own { of, device }),
            Err(e) => {
                crate::log!(Debug, "memory of this process (file {file}) is mapped like another's: {e}");
                None
            }
        }
    }

    fn fetch(&mut self, link: &Link, file: u64, write: bool) -> Result<()> {
        if !config::get().pidfd {
            return Err(Error::fixed(errno::EPERM, "switched off by GDRFAB_SHM_PIDFD=0"));
        }
        let pidfd = link.pidfd().ok_or(Error::fixed(errno::ESRCH, "the kernel gives no pidfd of the peer"))?;
        let record = link.table.file(file);
        let (size, number) = (record.size.load(Ordering::Relaxed), record.fd.load(Ordering::Relaxed));
        let fd = process::fetch_fd(pidfd, number as i32)?;
        match self.take_in(link, file, size, fd.as_fd(), write) {
            // The fd is there; what fails from here on would fail with the peer's help as well.
            Err(e) if record.how.load(Ordering::Relaxed) != 0 => {
                self.missing.insert(file, Missing::Never(e));
                Ok(())
            }
            other => other,
        }
    }

    fn take_in(&mut self, link: &Link, file: u64, size: u64, fd: BorrowedFd<'_>, write: bool) -> Result<()> {
        if link.table.file(file).how.load(Ordering::Relaxed) != 0 {
            return self.take_in_device(link, file, Some(fd));
        }
        check_peer_file(fd, size)?;
        if size == 0 || size > isize::MAX as u64 {
            return Err(nonsense("a file's size"));
        }
        let map = match Mapping::new(fd, 0, size as usize, if write { Protection::ReadWrite } else { Protection::ReadOnly }) {
            Ok(map) => map,
            Err(e) => return Err(e.context("mapping the peer's memory")),
        };
        crate::log!(Debug, "mapped {size} bytes of the peer (file {file})");
        self.imports.insert((file, None), Import::Host { map, writable: write, pinned: None });
        Ok(())
    }

    fn take_in_device(&mut self, link: &Link, file: u64, fd: Option<BorrowedFd<'_>>) -> Result<()> {
        let (iface, offer) = link.table.file(file).offer(fd).ok_or_else(|| nonsense("a file without a descriptor"))?;
        let iface = Iface::from_raw(iface).filter(|i| *i != Iface::System).ok_or_else(|| nonsense("a device interface"))?;
        if offer.len == 0 || offer.len > isize::MAX as u64 {
            return Err(nonsense("an allocation's size"));
        }
        let import = match self.copier {
            Some(copier) => copier.import(iface, &offer, self.near),
            None => hmem::get(iface).and_then(|up| up.import(&offer, self.near)),
        };
        let import = import.map_err(|e| e.context("mapping the peer's device memory"))?;
        if import.len < offer.len {
            return Err(nonsense("an allocation's size"));
        }
        crate::log!(Debug, "mapped {} bytes of the peer's {} memory (file {file})", import.len, iface.name());
        self.imports.insert((file, self.near), Import::Device(import));
        Ok(())
    }

    /// Pins a mapped file of the peer's for copies of `site`'s vendor, once.
    pub fn pin(&mut self, here: usize, site: Site) {
        let inside = |i: &&mut Import| here >= i.base() && ((here - i.base()) as u64) < i.len();
        if let Some(Import::Host { map, pinned: pinned @ None, .. }) = self.imports.values_mut().find(inside) {
            *pinned = Some(super::locate::pin(site, map.as_ptr() as u64, map.len() as u64));
        }
    }

    /// The peer answered a question for a file.
    pub fn brought(&mut self, link: &Link, file: u64, size: u64, fd: Option<BorrowedFd<'_>>) {
        if !matches!(self.missing.get(&file), Some(Missing::Asked)) {
            return;
        }
        let result = match fd {
            Some(fd) => self.take_in(link, file, size, fd, true).or_else(|_| self.take_in(link, file, size, fd, false)),
            None => Err(Error::fixed(errno::ENOENT, "the peer has no such memory file any more")),
        };
        match result {
            Ok(()) => self.missing.remove(&file),
            Err(e) => self.missing.insert(file, Missing::Never(e)),
        };
    }

    /// Where a peer's buffer, said to lie in `file` at `offset`, is mapped here, and who copies it; only
    /// if it can be mapped at once.
    pub fn mapped(&mut self, link: &Link, file: u64, offset: u64, len: u64) -> Option<(usize, Site)> {
        let elsewhere = self.copier.is_some();
        let import = self.import(link, file, false).filter(|i| !elsewhere || i.site().is_host())?;
        offset.checked_add(len).filter(|end| *end <= import.len())?;
        still_there(import.site(), import.base() + offset as usize, import.id()).ok()?;
        Some((import.base() + offset as usize, import.site()))
    }

    /// Unmaps what the peer has freed or closed, unless a driver may still be copying there.
    pub fn sweep(&mut self, link: &Link) {
        let gone = |id: u64| link.table.file(id).id.load(Ordering::Acquire) != id;
        let held = |i: &Import| self.busy && matches!(i, Import::Device(_) | Import::Host { pinned: Some(Some(_)), .. });
        let stale: Vec<(u64, Near)> =
            self.imports.iter().filter(|(place, import)| gone(place.0) && !held(import)).map(|(place, _)| *place).collect();
        if !stale.is_empty() {
            // Cached regions may point into them; their gates are closed, but drop them all the same.
            self.evict_all();
            stale.iter().for_each(|place| drop(self.imports.remove(place)));
        }
        self.missing.retain(|id, _| link.table.file(*id).id.load(Ordering::Acquire) == *id);
    }

    /// Chooses the path. `Ok(true)`: wait for a memory file first.
    fn choose(&mut self, link: &Link, r: &mut Remote) -> Result<bool> {
        let usable = r.offered & self.allowed;
        if usable.intersects(Paths::DIRECT | Paths::IPC) {
            let path = if r.site.is_host() { Paths::DIRECT } else { Paths::IPC };
            if r.extents().iter().all(|x| x.here != 0) && usable.contains(path) {
                r.path = path;
                if r.more.is_none() && !r.event && path == Paths::DIRECT {
                    r.plain = r.access;
                    r.words = r.len.saturating_sub(7);
                }
                return Ok(false);
            }
            if self.missing.values().any(|m| matches!(m, Missing::Asked)) {
                return Ok(true);
            }
        }
        if usable.contains(Paths::CMA) && link.cma.is_ok() {
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

    pub fn verdicts(&self, link: &Link, r: &Remote) -> Verdicts {
        let policy = |path: Paths| {
            if !r.offered.contains(path) {
                return Some(Error::fixed(errno::ENODEV, "the peer's region does not offer it (its mr_explain tells why)"));
            }
            if !self.allowed.contains(path) {
                return Some(Error::fixed(errno::EACCES, "ruled out by this endpoint's options or GDRFAB_SHM_PATHS"));
            }
            None
        };
        let unmapped = || {
            if self.missing.values().any(|m| matches!(m, Missing::Asked)) {
                return Error::fixed(errno::EAGAIN, "the peer was asked for its memory file and has not answered yet");
            }
            let reason = self.missing.values().find_map(|m| if let Missing::Never(e) = m { Some(e.clone()) } else { None });
            reason.or_else(|| self.pidfd_refused.clone()).unwrap_or(Error::fixed(errno::EAGAIN, "not mapped yet"))
        };
        Verdicts {
            direct: policy(Paths::DIRECT).or_else(|| r.extents().iter().any(|x| x.here == 0).then(unmapped)),
            ipc: policy(Paths::IPC).or_else(|| r.extents().iter().any(|x| x.here == 0).then(unmapped)),
            cma: policy(Paths::CMA).or_else(|| link.cma.as_ref().err().cloned()),
            staged: policy(Paths::STAGED),
        }
    }

    /// One line per path: chosen, possible, or why not.
    pub fn words(&self, link: &Link, r: &Remote) -> String {
        let v = self.verdicts(link, r);
        let mut text = String::new();
        for (path, verdict) in [(Paths::DIRECT, v.direct), (Paths::IPC, v.ipc), (Paths::CMA, v.cma), (Paths::STAGED, v.staged)] {
            let words = match verdict {
                Some(e) => format!("no: {e}"),
                None if r.path == path => "chosen".into(),
                None => "possible".into(),
            };
            text.push_str(&format!("  {}: {words}\n", path.words()));
        }
        if let Some(copier) = self.copier {
            text.push_str(&format!("  no driver is called here: device memory is mapped and copied by process {}\n", copier.pid));
        }
        text
    }

    /// A region's entry for questions: resolved without waiting.
    pub fn inspect(&mut self, link: &Link, key: u64) -> Result<Remote> {
        self.evict(key);
        let mut r = self.look_up(link, key)?;
        let _ = self.choose(link, &mut r);
        Ok(r)
    }
}

/// Whether what lies at a peer's own address in this process is what the peer registered.
#[inline]
pub fn still_there(site: Site, here: usize, id: u64) -> Result<()> {
    if id == 0 || hmem::get(site.iface)?.identity(here as u64) == Some(id) {
        return Ok(());
    }
    Err(Error::coded(errno::EFAULT, Code::Fault, format!("the peer's {site} memory at {here:#x} was freed after it was registered")))
}

fn nonsense(what: &str) -> Error {
    Error::coded(errno::EPROTO, Code::PeerBroke, format!("the peer's region table makes no sense: {what}"))
}
