// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The regions of a domain. Each region is published in the domain's table, which peers map and read.

use super::files::{CopierMapping, Files};
use super::locate::{self, Probe};
use super::region::{FileLocation, Located, Obstacles, PRIVATE, Piece, Pin, Region, RegionState};
use super::table::{self, MAX_EXTENTS, Table};
use crate::error::{Code, Error, Result, errno};
use crate::hmem::copier::Copier;
use crate::hmem::{self, Export, Iface, MemoryKind, Pinned, Site};
use crate::mr::key::desc_index;
use crate::mr::region::{Local, Location, Modes, Pieces};
use crate::mr::registry::{KeyOf, Registry};
use crate::mr::{Access, Attr, Iov, Paths, RegionId, location};
use crate::prov::fault::Plan;
use crate::prov::queue::Counter;
use crate::sync::gate;
use crate::sync::primitive::Ordering;
use crate::sys::mem::Mappable;
use std::ops::Deref;
use std::sync::Arc;

/// The rows of the table's extents that are in use.
#[derive(Default)]
struct Extents {
    /// The first row that was never used.
    next: u32,
    /// (first, count) of freed runs.
    free: Vec<(u32, u32)>,
}

impl Extents {
    fn reserve(&mut self, count: u32) -> Option<u32> {
        if let Some(i) = self.free.iter().position(|r| r.1 == count) {
            return Some(self.free.swap_remove(i).0);
        }
        let first = self.next;
        self.next = first.checked_add(count).filter(|end| *end as usize <= MAX_EXTENTS)?;
        Some(first)
    }

    /// Writes the pieces of a region with several pieces into the table, as a run of extents; returns the run, (first,
    /// count).
    fn publish(&mut self, table: &Table, pieces: &[Piece]) -> Result<(u32, u32)> {
        let count = pieces.len() as u32;
        let first = self
            .reserve(count)
            .ok_or(Error::fixed(errno::ENOSPC, "the domain's table of memory ranges is full; close regions of several iovecs"))?;
        for (k, p) in pieces.iter().enumerate() {
            let extent = table.extent(u64::from(first) + k as u64)?;
            extent.addr.store(p.iov.addr() as u64, Ordering::Relaxed);
            extent.len.store(p.iov.len() as u64, Ordering::Relaxed);
            extent.file.store(p.at.file, Ordering::Relaxed);
            extent.file_offset.store(p.at.offset, Ordering::Relaxed);
        }
        Ok((first, count))
    }
}

/// The regions of a domain, its files, and the use of the table's extents.
pub struct Regions {
    registry: Registry<Region>,
    extents: Extents,
    pub files: Files,
    faults: Option<Box<Plan>>,
    /// True if registrations may take the fast path: the provider chooses the keys, remote addresses are virtual
    /// addresses, and no faults are injected.
    fast: bool,
}

impl Deref for Regions {
    type Target = Registry<Region>;
    fn deref(&self) -> &Self::Target {
        &self.registry
    }
}

impl Regions {
    pub fn new(fast: bool) -> Result<Regions> {
        Ok(Regions { registry: Registry::new(0)?, extents: Extents::default(), files: Files::default(), faults: Plan::of("shm"), fast })
    }

    /// Lifts the limit on open regions (see `prov::Domain::make_room`).
    pub fn make_room(&mut self) {
        self.registry.make_room();
    }

    /// Paths that fault injection refuses to the next registration.
    pub fn refused(&self) -> Result<Paths> {
        self.faults.as_ref().map_or(Ok(Paths::empty()), |plan| plan.register())
    }

    /// Registers a region; a failure leaves nothing behind. `None`: the caller must run `Probe::export` without the
    /// lock, and call again.
    pub fn register(
        &mut self,
        table: &Table,
        modes: Modes,
        attr: &Attr<'_>,
        refused: Paths,
        probe: &mut Probe,
    ) -> Result<Option<RegionId>> {
        let located = locate::locate(&mut self.files, table, attr, probe);
        let result = located.and_then(|found| match found {
            None => Ok(None),
            Some(mut l) => {
                l.obstacles.refused = refused;
                let key = if modes.prov_key { KeyOf::Domain } else { KeyOf::Caller(attr.requested_key) };
                self.publish(table, modes, key, attr, l).map(Some)
            }
        });
        if result.is_err() {
            self.files.drop_unused(table);
        }
        result
    }

    /// The fast path of `register`, for one range that the caller of this function has checked, and without a choice of
    /// paths. `None`: nothing was done, and the caller must call `register`.
    #[inline]
    pub fn register_fast(&mut self, table: &Table, modes: Modes, iov: Iov, access: Access) -> Option<RegionId> {
        if self.fast { self.register_one(table, modes, iov, access) } else { None }
    }

    /// Makes a region of the library's own, from which a peer may read a single message. As `register_fast`, but also
    /// in domains whose callers choose keys and addresses.
    #[inline]
    pub fn expose(&mut self, table: &Table, modes: Modes, iov: Iov) -> Option<RegionId> {
        let simple = self.faults.is_none() && location::check_range(&iov, 0).is_ok();
        if simple { self.register_one(table, modes, iov, Access::REMOTE_READ) } else { None }
    }

    /// Registers one range of host memory with a provider's key. `None`: nothing was done.
    #[inline(always)]
    fn register_one(&mut self, table: &Table, modes: Modes, iov: Iov, access: Access) -> Option<RegionId> {
        if hmem::any_opened() {
            return None;
        }
        let (file, offset) = self.files.find(iov.addr(), iov.len()).unwrap_or((0, 0));
        let direct = match self.files.get(file) {
            Some(f) if f.host().is_some_and(|h| h.mappable == Mappable::Yes) => None,
            Some(_) => return None,
            None => Some(PRIVATE),
        };
        let (addr, len) = (iov.addr() as u64, iov.len() as u64);
        let attr = Attr::plain(access);
        let base = modes.base(&attr, addr, len).ok()?;
        let paths = Obstacles::host(direct).paths() & modes.paths;
        if paths.is_empty() {
            return None;
        }
        let reserved = self.registry.reserve(KeyOf::Domain, false).ok()?;
        if let Some(file) = self.files.get_mut(file) {
            file.regions += 1;
        }
        let entry = table.entry(reserved.index);
        entry.place(addr, file, offset);
        entry.open(reserved, base, len, table::pack_rights(access, paths, 0));
        let (id, region) = self.registry.occupy(reserved, false);
        let pieces = Pieces::One(Piece { iov, id: 0, at: FileLocation { file, offset } });
        let location = Location { pieces, base: addr, len, site: Site::HOST, kind: MemoryKind::Host };
        let own = RegionState { obstacles: Obstacles::host(direct), pins: Vec::new(), counter: None, extents: None };
        *region = Some(Region::new(&attr, reserved.key, base, paths, location, own));
        Some(id)
    }

    /// Gives the region its key and descriptor, and writes it into the table.
    fn publish(&mut self, table: &Table, modes: Modes, key: KeyOf, attr: &Attr<'_>, located: Located) -> Result<RegionId> {
        let Located { location, obstacles } = located;
        let Location { pieces, base: natural, len, site, kind } = location;
        let base = modes.base(attr, natural, len)?;
        let paths = obstacles.paths() & modes.paths & attr.policy.allowed();
        if paths.is_empty() {
            return Err(no_path(modes, attr, &obstacles));
        }
        let reserved = self.registry.reserve(key, !site.is_host())?;
        if let KeyOf::Caller(key) = key
            && let Err(e) = table.list_key(key, reserved.index)
        {
            self.registry.cancel(reserved);
            return Err(e);
        }
        let entry = table.entry(reserved.index);
        let extents = match &pieces {
            Pieces::One(p) => {
                entry.place(p.iov.addr() as u64, p.at.file, p.at.offset);
                None
            }
            Pieces::Many(list) => match self.extents.publish(table, list) {
                Ok(run) => {
                    entry.place(run.0.into(), 0, run.1.into());
                    Some(run)
                }
                Err(e) => {
                    table.unlist_key(reserved.key, reserved.index);
                    self.registry.cancel(reserved);
                    return Err(e);
                }
            },
        };
        for piece in pieces.as_slice().iter().filter(|p| p.at.file != 0) {
            if let Some(file) = self.files.get_mut(piece.at.file) {
                file.regions += 1;
            }
        }
        let extra = if attr.rma_event { table::EVENT } else { 0 } | if extents.is_some() { table::MULTI } else { 0 };
        entry.open(reserved, base, len, table::pack_rights(attr.access, paths, extra));
        let shared = RegionState { obstacles, pins: Vec::new(), counter: None, extents };
        let location = Location { pieces, base: natural, len, site, kind };
        Ok(self.registry.fill(reserved, Region::new(attr, reserved.key, base, paths, location, shared)))
    }

    /// Closes a region at once, if neither this process nor the copier process copies in the region. The caller has
    /// made sure that no peer does. False: nothing was done, and the caller must close the region by `shut` and
    /// `forget`.
    #[inline]
    pub fn close_fast(&mut self, table: &Table, id: RegionId) -> bool {
        let Ok(region) = self.registry.get(id) else { return false };
        // A region with resources of a driver, or with a key that the caller chose, is closed by `shut` and `forget`.
        let fast = region.site().is_host() && region.own.is_plain() && id.key == id.generation;
        let Pieces::One(Piece { at: FileLocation { file, .. }, .. }) = region.location.pieces else { return false };
        if !fast || !region.users.is_idle() || (file != 0 && self.files.check_quiet(file).is_err()) {
            return false;
        }
        // The caller knows that no peer is between its check of the gate and its copy.
        table.entry(id.index()).gate.store(0, Ordering::Release);
        self.registry.forget_region(id);
        if file != 0 {
            self.files.release(table, file);
        }
        true
    }

    /// Checks that the copier process copies nothing in the region's files. `Err`: this process cannot find out.
    #[inline]
    fn check_quiet(&self, region: &Region) -> Result<()> {
        region.pieces().iter().filter(|p| p.at.file != 0).try_for_each(|p| self.files.check_quiet(p.at.file))
    }

    /// First step of closing: no copy can start from now on.
    #[inline]
    pub fn shut(&mut self, table: &Table, id: RegionId) -> Result<()> {
        self.registry.shut(id)?;
        gate::close(&table.entry(id.index()).gate);
        // Only keys that callers chose are listed.
        if id.key != id.generation {
            table.unlist_key(id.key, id.index());
        }
        self.check_quiet(self.registry.get(id)?)
    }

    /// True if no copy of this process runs in a region that is shut.
    pub fn is_quiet(&self, id: RegionId) -> bool {
        self.registry.get(id).map_or(true, |r| r.users.is_empty())
    }

    /// Last step of closing: no copy is running any more. The returned region holds pinned memory; the caller drops it without the
    /// lock.
    pub fn forget(&mut self, table: &Table, id: RegionId) -> Option<Region> {
        let region = self.registry.remove(id)?;
        for piece in region.pieces().iter().filter(|p| p.at.file != 0) {
            self.files.release(table, piece.at.file);
        }
        if let Some(run) = region.own.extents {
            self.extents.free.push(run);
        }
        Some(region)
    }

    /// Binds a counter to a region. From now on, a peer that looks the region up reports its writes, as for a region
    /// that was registered with an event.
    pub fn bind_counter(&mut self, table: &Table, id: RegionId, counter: Arc<Counter>) -> Result<()> {
        self.registry.get_mut(id)?.own.counter = Some(counter);
        table.entry(id.index()).rights.fetch_or(table::EVENT, Ordering::Relaxed);
        Ok(())
    }

    /// The region's paths in words: what is offered, and why the rest is not.
    pub fn explain(&self, id: RegionId, modes: Modes) -> Result<String> {
        let r = self.registry.get(id)?;
        let mut text = format!("{}offers {}\n", r.headline(""), r.paths.words());
        for path in Paths::SHM {
            let verdict = if r.paths.contains(path) {
                "offered".to_string()
            } else if !modes.paths.contains(path) {
                "not permitted in this process (GDRFAB_PATHS)".to_string()
            } else if !r.policy.allowed().contains(path) {
                "ruled out by attr->require or attr->forbid".to_string()
            } else {
                r.own.obstacles.words(path)
            };
            text.push_str(&format!("  {}: {verdict}\n", path.words()));
        }
        Ok(text)
    }

    /// Checks an operation of a peer, and holds the region open for a copy by this process. The check reads this
    /// process's own data and not the shared table. Without `drivers`, only host memory may be copied.
    pub fn pin(&mut self, key: u64, addr: u64, len: usize, need: Access, drivers: bool) -> std::result::Result<Pin, Code> {
        let index = self.registry.index_of(key);
        let region = self.registry.find(key).ok_or(Code::Key)?;
        let skip = region.range(addr, len as u64, need)?;
        let site = region.site();
        if !(drivers || site.is_host()) {
            return Err(Code::Path);
        }
        let stays = region.own.obstacles.direct.is_none();
        let (mut pieces, mut ids) = (Vec::with_capacity(1), Vec::new());
        for (piece, from, n) in region.walk(skip, len) {
            pieces.push(match stays {
                true => self.files.view(piece.at.file, piece.at.offset + from as u64, n).map_err(|_| Code::Fault)?,
                false => piece.iov.part(from, n),
            });
            if !site.is_host() {
                ids.push(piece.id);
            }
        }
        region.enter()?;
        Ok(Pin { index, site, pieces, ids, stays })
    }

    /// Gives back a region that `pin` or `begin_pin` held open.
    pub fn unpin(&mut self, pin: Pin) {
        if let Some(region) = self.registry.at(pin.index) {
            region.leave();
        }
    }

    /// The counter that a peer's write to `key` moves.
    pub fn counter(&self, key: u64) -> Option<Arc<Counter>> {
        self.registry.find(key)?.own.counter.clone()
    }

    /// The file and offset by which peers can map a local buffer, which lies in the region that `desc` names.
    pub fn shared_place(&self, desc: u64, iov: Iov) -> Option<(u64, u64)> {
        let region = self.registry.described(desc)?;
        if region.site().is_host() {
            return self.files.find(iov.addr(), iov.len());
        }
        let (piece, from, n) = region.find(iov).next()??;
        (piece.at.file != 0 && n == iov.len()).then(|| (piece.at.file, piece.at.offset + from as u64))
    }

    /// The site of the region that `desc` names, and true if peers can map the whole region by one file.
    pub fn message_memory(&self, desc: u64) -> Result<(Site, bool)> {
        let region = self.registry.described(desc).ok_or(Error::fixed(errno::EINVAL, "desc: names no open region of this domain"))?;
        let shared = matches!(region.pieces(), [one] if self.shared_place(desc, one.iov).is_some());
        Ok((region.site(), shared))
    }

    /// The local pieces, which `local` has checked, at their addresses in the copier process. The inner `Err` is a file
    /// that the copier process has not mapped yet, and the file's export.
    pub fn pieces_in_copier(
        &mut self,
        desc: u64,
        local: &[Iov],
        copier: &'static Copier,
    ) -> Result<std::result::Result<Vec<Iov>, UnmappedFile>> {
        let region = self.registry.described(desc).ok_or(Error::fixed(errno::EINVAL, "desc: names no open region of this domain"))?;
        let mut runs = Vec::with_capacity(local.len());
        for iov in local {
            for part in region.find(*iov) {
                let (piece, from, n) = part.ok_or(Error::fixed(errno::EINVAL, "desc: its region does not cover the local memory"))?;
                let Some(file) = self.files.get(piece.at.file) else {
                    let why = region.own.obstacles.words(Paths::IPC);
                    let words = format!("the local memory cannot be mapped by another process: ipc: {why}");
                    return Err(Error::coded(errno::EOPNOTSUPP, Code::Path, words));
                };
                let base = match file.copier_mapping(copier)? {
                    CopierMapping::Mapped(base) => base,
                    CopierMapping::NotYet(iface, export) => return Ok(Err(UnmappedFile { file: piece.at.file, iface, export })),
                };
                // SAFETY: an address of the copier process, which this process passes only to that process's driver.
                runs.push(unsafe { Iov::new(base as usize + piece.at.offset as usize + from, n) });
            }
        }
        Ok(Ok(runs))
    }

    /// All pieces of the region that `desc` names.
    pub fn local_pieces(&self, desc: u64) -> Result<Local> {
        self.registry.local_pieces(desc)
    }

    /// Begins to pin the host memory of the region that `desc` names, for copies by the driver of `site`. The region
    /// stays open until the caller calls `pinned`. `None`: there is nothing to pin, or pinning was tried before.
    pub fn begin_pin(&mut self, desc: u64, site: Site) -> Option<Pin> {
        let index = self.registry.described(desc).map(|_| desc_index(desc))?;
        let region = self.registry.at_mut(index)?;
        let pins = &mut region.own.pins;
        // Memory that is pinned already needs no pin, except under CUDA: there the pin may be another region's and end
        // with that region, so this region takes a share of the pin.
        let theirs = region.location.kind == MemoryKind::Pinned && site.iface != Iface::Cuda;
        if !region.location.site.is_host() || theirs || pins.iter().any(|(s, _)| s.iface == site.iface) {
            return None;
        }
        pins.push((site, None));
        region.enter().ok()?;
        let pieces = region.pieces().iter().map(|p| p.iov).collect();
        Some(Pin { index, site, pieces, ids: Vec::new(), stays: region.own.obstacles.direct.is_none() })
    }

    /// True if every piece of the region that `desc` names is pinned for the driver of `site` until the region is
    /// closed.
    pub fn keeps_pinned(&self, desc: u64, site: Site) -> bool {
        let Some(region) = self.registry.described(desc) else { return false };
        let pins = region.own.pins.iter().filter(|(s, pin)| s.iface == site.iface && pin.is_some());
        pins.count() == region.pieces().len()
    }

    /// Ends what `begin_pin` began: stores the pins and lets the region be closed.
    pub fn pinned(&mut self, pin: Pin, pins: Vec<(Site, Option<Pinned>)>) {
        if let Some(region) = self.registry.at_mut(pin.index) {
            region.own.pins.extend(pins);
        }
        self.unpin(pin);
    }
}

#[cold]
fn no_path(modes: Modes, attr: &Attr<'_>, obstacles: &Obstacles) -> Error {
    let chain: String = Paths::SHM.iter().map(|p| format!("{}: {}; ", p.words(), obstacles.words(*p))).collect();
    let number = if obstacles.refused.is_empty() { errno::EOPNOTSUPP } else { errno::EIO };
    let (require, forbid, process) = (attr.policy.require.words(), attr.policy.forbid.words(), modes.paths.words());
    let words =
        format!("attr->require {require}, attr->forbid {forbid}: no path remains for this memory ({chain}GDRFAB_PATHS permits {process})");
    Error::coded(number, Code::Path, words)
}

/// A file that the copier process has not mapped yet.
pub struct UnmappedFile {
    pub file: u64,
    pub iface: Iface,
    pub export: Export,
}
