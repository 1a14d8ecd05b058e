// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regions of a domain: their private truth here, their public face in the region table.

use super::files::{Elsewhere, Files};
use super::locate::{self, Asked};
use super::region::{
    Attr, Facts, Located, Modes, PRIVATE, Piece, PieceList, Pin, Region, RegionId, Slot, Verdicts, desc_fits, desc_index, desc_of,
};
use super::table::{self, INDEX_BITS, MAX_EXTENTS, MAX_REGIONS, Table};
use crate::error::{Code, Error, Result, errno};
use crate::hmem::copier::Copier;
use crate::hmem::{self, Export, Iface, Kind, Pinned, Site};
use crate::mr::piece::walk;
use crate::mr::{Access, KeySource, PathPolicy, Paths};
use crate::prov::fault::Plan;
use crate::prov::op::Iov;
use crate::prov::queue::Counter;
use crate::sync::gate;
use crate::sync::primitive::Ordering;
use crate::sys::mem::Mappable;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Default)]
struct Extents {
    next: u32,
    /// (first, count) of freed runs.
    free: Vec<(u32, u32)>,
}

impl Extents {
    fn take(&mut self, count: u32) -> Option<u32> {
        if let Some(i) = self.free.iter().position(|r| r.1 == count) {
            return Some(self.free.swap_remove(i).0);
        }
        let first = self.next;
        self.next = first.checked_add(count).filter(|end| *end as usize <= MAX_EXTENTS)?;
        Some(first)
    }
}

pub struct Regions {
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_key: HashMap<u64, u32>,
    keys: KeySource,
    extents: Extents,
    open: usize,
    pub files: Files,
    faults: Option<Box<Plan>>,
}

impl Regions {
    pub fn new() -> Result<Regions> {
        Ok(Regions {
            slots: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::new(),
            keys: KeySource::new()?,
            extents: Extents::default(),
            open: 0,
            files: Files::default(),
            faults: Plan::of("shm"),
        })
    }

    pub fn open_count(&self) -> usize {
        self.open
    }

    /// Paths that a fault on demand keeps from the next registration.
    pub fn refused(&self) -> Result<Paths> {
        self.faults.as_ref().map_or(Ok(Paths::empty()), |plan| plan.register())
    }

    /// Registers; nothing is left behind on failure. `None`: the driver has to export something first, without the lock.
    pub fn register(
        &mut self,
        table: &Table,
        modes: Modes,
        attr: &Attr<'_>,
        refused: Paths,
        asked: &mut Asked,
    ) -> Result<Option<RegionId>> {
        let located = locate::locate(&mut self.files, table, attr, asked);
        let result = located.and_then(|found| match found {
            None => Ok(None),
            Some(mut l) => {
                l.verdicts.refused = refused;
                self.finish_registration(table, modes, attr, l).map(Some)
            }
        });
        if result.is_err() {
            self.files.drop_unused(table);
        }
        result
    }

    /// As `register` for the ordinary case: one range that the caller has checked, any path, keys and
    /// addresses of the provider's choosing. `None`: not ordinary, or no slot; nothing is done.
    #[inline]
    pub fn register_plain(&mut self, table: &Table, modes: Modes, iov: Iov, access: Access) -> Option<RegionId> {
        if !modes.plain || hmem::any_opened() {
            return None;
        }
        let (file, file_offset) = self.files.find(iov.addr, iov.len).unwrap_or((0, 0));
        let verdicts = match self.files.get_mut(file) {
            Some(f) if f.host().is_some_and(|h| h.mappable == Mappable::Yes) => {
                f.regions += 1;
                Verdicts::host(Ok(()))
            }
            Some(_) => return None,
            None => Verdicts::host(Err(Cow::Borrowed(PRIVATE))),
        };
        let paths = verdicts.paths() & modes.paths;
        let index = match self.free.pop() {
            Some(i) => i,
            None if self.slots.len() < MAX_REGIONS => {
                self.slots.push(Slot::default());
                self.slots.len() as u32 - 1
            }
            None => u32::MAX,
        };
        let number = self.keys.draw();
        let Some(slot) = self.slots.get_mut(index as usize).filter(|_| !paths.is_empty()) else {
            if index != u32::MAX {
                self.free.push(index);
            }
            self.files.release(table, file);
            return None;
        };
        let key = number << INDEX_BITS | u64::from(index) | 1 << 63;
        let (base, len) = (iov.addr as u64, iov.len as u64);
        let entry = table.entry(index);
        entry.addr.store(base, Ordering::Relaxed);
        entry.file.store(file, Ordering::Relaxed);
        entry.file_offset.store(file_offset, Ordering::Relaxed);
        entry.key.store(key, Ordering::Relaxed);
        entry.base.store(base, Ordering::Relaxed);
        entry.len.store(len, Ordering::Relaxed);
        entry.rights.store(table::pack_rights(access, paths, 0), Ordering::Relaxed);
        table.raise_high(index);
        // Release: whoever sees the generation sees the fields.
        entry.gate.store(key, Ordering::Release);
        slot.generation = key;
        slot.key = key;
        slot.closing = false;
        let pieces = PieceList::One(Piece { iov, file, file_offset, id: 0 });
        slot.region = Some(Region {
            base,
            len,
            access,
            paths,
            policy: PathPolicy::default(),
            pieces,
            site: Site::HOST,
            kind: Kind::Host,
            verdicts,
            pins: Vec::new(),
            counter: None,
            event: false,
            extents: None,
        });
        self.open += 1;
        Some(RegionId { index, generation: key, key, desc: desc_of(index, key, false) })
    }

    fn finish_registration(&mut self, table: &Table, modes: Modes, attr: &Attr<'_>, located: Located) -> Result<RegionId> {
        let Located { pieces, base: natural_base, len, site, kind, verdicts } = located;
        let base = match modes.virt_addr {
            true if attr.offset != 0 => return Err(Error::invalid("offset: must be 0 in a domain with GDRFAB_MR_VIRT_ADDR")),
            true => natural_base,
            false => attr.offset,
        };
        if base.checked_add(len).is_none() {
            return Err(Error::invalid("offset: offset plus length overflows"));
        }
        let paths = verdicts.paths() & modes.paths & attr.policy.allowed();
        if paths.is_empty() {
            let chain: String = Paths::SHM.iter().map(|p| format!("{}: {}; ", p.words(), verdicts.words(*p))).collect();
            let number = if verdicts.refused.is_empty() { errno::EOPNOTSUPP } else { errno::EIO };
            return Err(Error::coded(
                number,
                Code::Path,
                format!(
                    "attr->require {} forbid {}: no path is left for this memory ({chain}this process permits {})",
                    attr.policy.require.words(),
                    attr.policy.forbid.words(),
                    modes.paths.words()
                ),
            ));
        }
        let (index, generation, key) = self.take_slot(modes, attr.requested_key)?;
        let extents = match self.publish(table, index, &pieces) {
            Ok(extents) => extents,
            Err(e) => {
                self.give_slot_back(index, key, modes);
                return Err(e);
            }
        };
        for piece in pieces.as_slice().iter().filter(|p| p.file != 0) {
            if let Some(file) = self.files.get_mut(piece.file) {
                file.regions += 1;
            }
        }
        let entry = table.entry(index);
        let extra = if attr.event { table::EVENT } else { 0 } | if extents.is_some() { table::MULTI } else { 0 };
        entry.key.store(key, Ordering::Relaxed);
        entry.base.store(base, Ordering::Relaxed);
        entry.len.store(len, Ordering::Relaxed);
        entry.rights.store(table::pack_rights(attr.access, paths, extra), Ordering::Relaxed);
        table.raise_high(index);
        // Release: whoever sees the generation sees the fields.
        entry.gate.store(generation, Ordering::Release);
        let slot = &mut self.slots[index as usize];
        slot.generation = generation;
        slot.key = key;
        slot.closing = false;
        slot.region = Some(Region {
            base,
            len,
            access: attr.access,
            paths,
            policy: attr.policy,
            pieces,
            site,
            kind,
            verdicts,
            pins: Vec::new(),
            counter: None,
            event: attr.event,
            extents,
        });
        self.open += 1;
        Ok(RegionId { index, generation, key, desc: desc_of(index, generation, !site.is_host()) })
    }

    fn take_slot(&mut self, modes: Modes, requested: u64) -> Result<(u32, u64, u64)> {
        if !self.by_key.is_empty() && !modes.prov_key && self.by_key.contains_key(&requested) {
            return Err(Error::new(errno::ENOKEY, format!("requested_key {requested:#x} already names a region of this domain")));
        }
        let index = match self.free.pop() {
            Some(i) => i,
            None if self.slots.len() < MAX_REGIONS => {
                self.slots.push(Slot::default());
                self.slots.len() as u32 - 1
            }
            None => return Err(Error::new(errno::ENOSPC, format!("this domain already has {MAX_REGIONS} regions"))),
        };
        let number = self.keys.draw();
        if modes.prov_key {
            // The index in the low bits lets the peer find the entry; 45 random bits keep it unguessable.
            let key = number << INDEX_BITS | u64::from(index);
            return Ok((index, key | 1 << 63, key | 1 << 63));
        }
        self.by_key.insert(requested, index);
        Ok((index, number | 1, requested))
    }

    fn give_slot_back(&mut self, index: u32, key: u64, modes: Modes) {
        if !modes.prov_key {
            self.by_key.remove(&key);
        }
        self.free.push(index);
    }

    fn publish(&mut self, table: &Table, index: u32, pieces: &PieceList) -> Result<Option<(u32, u32)>> {
        let entry = table.entry(index);
        match pieces {
            PieceList::One(p) => {
                entry.addr.store(p.iov.addr as u64, Ordering::Relaxed);
                entry.file.store(p.file, Ordering::Relaxed);
                entry.file_offset.store(p.file_offset, Ordering::Relaxed);
                Ok(None)
            }
            PieceList::Many(list) => {
                let count = list.len() as u32;
                let first = self.extents.take(count).ok_or(Error::fixed(errno::ENOSPC, "the domain's table of iovecs is full"))?;
                for (k, p) in list.iter().enumerate() {
                    let extent = table.extent(u64::from(first) + k as u64);
                    extent.addr.store(p.iov.addr as u64, Ordering::Relaxed);
                    extent.len.store(p.iov.len as u64, Ordering::Relaxed);
                    extent.file.store(p.file, Ordering::Relaxed);
                    extent.file_offset.store(p.file_offset, Ordering::Relaxed);
                }
                entry.addr.store(u64::from(first), Ordering::Relaxed);
                entry.file_offset.store(u64::from(count), Ordering::Relaxed);
                entry.file.store(0, Ordering::Relaxed);
                Ok(Some((first, count)))
            }
        }
    }

    fn slot_of(&self, id: RegionId) -> Result<&Slot> {
        match self.slots.get(id.index as usize) {
            Some(s) if s.generation == id.generation && s.region.is_some() => Ok(s),
            _ => Err(Error::invalid("mr: this region is closed")),
        }
    }

    fn region(&self, id: RegionId) -> Result<&Region> {
        self.slot_of(id)?.region.as_ref().ok_or(Error::fixed(errno::EINVAL, "mr: this region is closed"))
    }

    /// Closes a region at once, where no peer is connected and nothing of this process copies. False:
    /// not so simple, nothing was done.
    #[inline]
    pub fn close_plain(&mut self, table: &Table, id: RegionId) -> bool {
        let Some(slot) = self.slots.get_mut(id.index as usize) else { return false };
        let Some(region) = &slot.region else { return false };
        let Region { pieces: PieceList::One(piece), extents: None, counter: None, .. } = region else { return false };
        // What a driver has a part in is not dropped here.
        if !(region.site.is_host() && region.pins.is_empty()) {
            return false;
        }
        if slot.generation != id.generation || slot.users != 0 || !self.by_key.is_empty() {
            return false;
        }
        if piece.file != 0 && self.files.check_quiet(piece.file).is_err() {
            return false;
        }
        // Nobody is connected who could be between its check and its copy.
        table.entry(id.index).gate.store(0, Ordering::Release);
        let file = piece.file;
        slot.generation = 0;
        slot.key = 0;
        slot.closing = false;
        slot.region = None;
        if file != 0 {
            self.files.release(table, file);
        }
        self.free.push(id.index);
        self.open -= 1;
        true
    }

    /// First step of closing: no copy can start from now on.
    #[inline]
    pub fn shut(&mut self, table: &Table, id: RegionId) -> Result<()> {
        self.slot_of(id)?;
        gate::close(&table.entry(id.index).gate);
        let slot = &mut self.slots[id.index as usize];
        if !slot.closing {
            slot.closing = true;
            if !self.by_key.is_empty() {
                self.by_key.remove(&id.key);
            }
        }
        let pieces = slot.region.as_ref().map_or(&[][..], |r| r.pieces.as_slice());
        pieces.iter().filter(|p| p.file != 0).try_for_each(|p| self.files.check_quiet(p.file))
    }

    pub fn users(&self, id: RegionId) -> u32 {
        self.slots.get(id.index as usize).map_or(0, |s| s.users)
    }

    /// Last step: nobody copies any more. What is given back holds pinned memory, and is dropped without the lock.
    pub fn forget(&mut self, table: &Table, id: RegionId) -> Option<Region> {
        let slot = self.slots.get_mut(id.index as usize)?;
        let region = slot.region.take()?;
        slot.generation = 0;
        slot.key = 0;
        slot.closing = false;
        for piece in region.pieces.as_slice().iter().filter(|p| p.file != 0) {
            self.files.release(table, piece.file);
        }
        if let Some(run) = region.extents {
            self.extents.free.push(run);
        }
        self.free.push(id.index);
        self.open -= 1;
        Some(region)
    }

    pub fn bind_counter(&mut self, id: RegionId, counter: Arc<Counter>) -> Result<()> {
        if !self.region(id)?.event {
            return Err(Error::invalid("mr: the region was not registered with GDRFAB_RMA_EVENT, so peers do not report their writes"));
        }
        if let Some(region) = &mut self.slots[id.index as usize].region {
            region.counter = Some(counter);
        }
        Ok(())
    }

    pub fn facts(&self, id: RegionId) -> Result<Facts> {
        let r = self.region(id)?;
        Ok(Facts {
            site: r.site,
            kind: r.kind,
            key: id.key,
            base: r.base,
            len: r.len,
            access: r.access,
            paths: r.paths,
            iov_count: r.pieces.as_slice().len() as u32,
        })
    }

    /// The region's paths in words: what is offered, and why the rest is not.
    pub fn explain(&self, id: RegionId, modes: Modes) -> Result<String> {
        let r = self.region(id)?;
        let mut text =
            format!("region of {} bytes of {} memory ({}), key {:#x}: offers {}\n", r.len, r.site, r.kind.name(), id.key, r.paths.words());
        for path in Paths::SHM {
            let verdict = if r.paths.contains(path) {
                "offered".to_string()
            } else if !modes.paths.contains(path) {
                "not permitted in this process (GDRFAB_SHM_PATHS)".to_string()
            } else if !r.policy.allowed().contains(path) {
                "ruled out by attr->require or attr->forbid".to_string()
            } else {
                r.verdicts.words(path)
            };
            text.push_str(&format!("  {}: {verdict}\n", path.words()));
        }
        Ok(text)
    }

    fn find(&self, key: u64) -> Option<u32> {
        if !self.by_key.is_empty()
            && let Some(index) = self.by_key.get(&key)
        {
            return Some(*index);
        }
        let index = (key & ((1 << INDEX_BITS) - 1)) as u32;
        let slot = self.slots.get(index as usize)?;
        (slot.key == key && slot.generation == key && !slot.closing && slot.region.is_some()).then_some(index)
    }

    /// Checks an operation of a peer against our own truth and holds the region open for a copy of this process, which may
    /// have to be one without `drivers`.
    pub fn pin(&mut self, key: u64, addr: u64, len: usize, need: Access, drivers: bool) -> std::result::Result<Pin, Code> {
        let index = self.find(key).ok_or(Code::Key)?;
        let slot = &mut self.slots[index as usize];
        let region = slot.region.as_ref().ok_or(Code::Key)?;
        let skip =
            addr.checked_sub(region.base).filter(|o| o.checked_add(len as u64).is_some_and(|end| end <= region.len)).ok_or(Code::Bounds)?;
        if !region.access.contains(need) {
            return Err(Code::Access);
        }
        if !(drivers || region.site.is_host()) {
            return Err(Code::Path);
        }
        let stays = region.verdicts.direct.is_ok();
        let (mut pieces, mut ids) = (Vec::with_capacity(1), Vec::new());
        for (piece, from, n) in walk(region.pieces.as_slice(), skip as usize, len) {
            let addr = match stays {
                true => self.files.view(piece.file, piece.file_offset).map_err(|_| Code::Fault)?,
                false => piece.iov.addr,
            };
            pieces.push(Iov { addr: addr + from, len: n });
            if !region.site.is_host() {
                ids.push(piece.id);
            }
        }
        slot.users += 1;
        Ok(Pin { index, site: region.site, pieces, ids, stays })
    }

    pub fn unpin(&mut self, pin: Pin) {
        self.slots[pin.index as usize].users -= 1;
    }

    /// The counter that a peer's write to `key` moves.
    pub fn counter(&self, key: u64) -> Option<Arc<Counter>> {
        self.slots.get(self.find(key)? as usize)?.region.as_ref()?.counter.clone()
    }

    fn described(&self, desc: u64) -> Option<u32> {
        let index = desc_index(desc);
        let slot = self.slots.get(index as usize)?;
        (desc_fits(desc, slot.generation) && !slot.closing && slot.region.is_some()).then_some(index)
    }

    /// Where peers can map a local buffer that lies in the region `desc` names.
    pub fn shared_place(&self, desc: u64, iov: Iov) -> Option<(u64, u64)> {
        let region = self.slots[self.described(desc)? as usize].region.as_ref()?;
        if region.site.is_host() {
            return self.files.find(iov.addr, iov.len);
        }
        let piece = region.pieces.as_slice().iter().find(|p| holds(&p.iov, iov.addr, iov.len))?;
        (piece.file != 0).then(|| (piece.file, piece.file_offset + (iov.addr - piece.iov.addr) as u64))
    }

    /// Where the local pieces lie that an operation describes by `desc`: checked to be inside the region. Gives the
    /// device memory that they lie in, address and identity, for the driver to be asked about without the lock.
    pub fn local_site(&self, desc: u64, local: &[Iov]) -> Result<(Site, Vec<(usize, Piece)>)> {
        let stale = || Error::invalid("desc: names no open region of this domain");
        let region = self.described(desc).and_then(|i| self.slots[i as usize].region.as_ref()).ok_or_else(stale)?;
        if region.site.is_host() {
            return Ok((Site::HOST, Vec::new()));
        }
        let mut places = Vec::with_capacity(1);
        for (i, iov) in local.iter().enumerate() {
            let (mut at, end) = (iov.addr, iov.addr.saturating_add(iov.len));
            while at < end {
                let Some(piece) = region.pieces.as_slice().iter().find(|p| holds(&p.iov, at, 1)) else {
                    return Err(Error::invalid(format!("iov[{i}]: [{:#x}, +{}) lies outside the region of its desc", iov.addr, iov.len)));
                };
                places.push((i, *piece));
                at = piece.iov.addr + piece.iov.len;
            }
        }
        Ok((region.site, places))
    }

    /// The local pieces as the process knows them that copies for this one. They were checked by `local_site`. The second:
    /// a file that is not mapped there yet, and what that process needs for it.
    pub fn elsewhere(&mut self, desc: u64, local: &[Iov], copier: &'static Copier) -> Result<std::result::Result<Vec<Iov>, Away>> {
        let index = self.described(desc).ok_or(Error::fixed(errno::EINVAL, "desc: names no open region of this domain"))?;
        let Regions { slots, files, .. } = self;
        let region = slots[index as usize].region.as_ref().ok_or(Error::fixed(errno::EINVAL, "desc: its region is closed"))?;
        let mut runs = Vec::with_capacity(local.len());
        for iov in local {
            let (mut at, end) = (iov.addr, iov.addr + iov.len);
            while at < end {
                let piece = region.pieces.as_slice().iter().find(|p| holds(&p.iov, at, 1)).ok_or(Error::fixed(errno::EINVAL, "desc"))?;
                let Some(file) = files.get(piece.file) else {
                    let words = format!("the local memory cannot be mapped by another process: ipc: {}", region.verdicts.words(Paths::IPC));
                    return Err(Error::coded(errno::EOPNOTSUPP, Code::Path, words));
                };
                let base = match file.elsewhere(copier)? {
                    Elsewhere::Mapped(base) => base,
                    Elsewhere::NotYet(iface, export) => return Ok(Err(Away { file: piece.file, iface, export })),
                };
                let take = end.min(piece.iov.addr + piece.iov.len) - at;
                let within = piece.file_offset as usize + (at - piece.iov.addr);
                runs.push(Iov { addr: base as usize + within, len: take });
                at += take;
            }
        }
        Ok(Ok(runs))
    }

    /// The host memory of the region `desc` names, if it is to be pinned for copies of `site`'s vendor: once, and the region
    /// stays until `pinned`.
    pub fn begin_pin(&mut self, desc: u64, site: Site) -> Option<Pin> {
        let index = self.described(desc)?;
        let slot = &mut self.slots[index as usize];
        let region = slot.region.as_mut()?;
        if !region.site.is_host() || region.kind == Kind::Pinned || region.pins.iter().any(|(s, _)| s.iface == site.iface) {
            return None;
        }
        region.pins.push((site, None));
        slot.users += 1;
        let pieces = region.pieces.as_slice().iter().map(|p| p.iov).collect();
        Some(Pin { index, site, pieces, ids: Vec::new(), stays: region.verdicts.direct.is_ok() })
    }

    pub fn pinned(&mut self, pin: Pin, pins: Vec<(Site, Option<Pinned>)>) {
        if let Some(region) = self.slots.get_mut(pin.index as usize).and_then(|s| s.region.as_mut()) {
            region.pins.extend(pins);
        }
        self.unpin(pin);
    }

    /// Open regions that touch `[addr, addr+len)`.
    pub fn covering(&self, addr: u64, len: u64) -> usize {
        let end = addr.saturating_add(len);
        let touches = |p: &Piece| (p.iov.addr as u64) < end && (p.iov.addr + p.iov.len) as u64 > addr;
        self.slots.iter().filter_map(|s| s.region.as_ref()).filter(|r| r.pieces.as_slice().iter().any(touches)).count()
    }
}

fn holds(iov: &Iov, addr: usize, len: usize) -> bool {
    addr >= iov.addr && addr.checked_add(len).is_some_and(|end| end <= iov.addr + iov.len)
}

/// A file that the process that copies for this one has not mapped yet.
pub struct Away {
    pub file: u64,
    pub iface: Iface,
    pub export: Export,
}

/// Whether the device allocation at `addr` is another one than when it was registered as `id`.
pub fn is_stale(site: Site, addr: usize, id: u64) -> bool {
    id != 0 && hmem::get(site.iface).map_or(true, |up| up.identity(addr as u64) != Some(id))
}
