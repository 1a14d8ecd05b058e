// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regions of a domain: their private truth here, their public face in the region table.

use super::files::Files;
use super::table::{self, INDEX_BITS, MAX_EXTENTS, MAX_REGIONS, Table};
use crate::error::{Code, Error, Result, errno};
use crate::mr::{Access, KeySource, PathPolicy, Paths};
use crate::prov::op::Iov;
use crate::prov::queue::Counter;
use crate::sync::gate;
use crate::sync::primitive::Ordering;
use crate::sys::mem::Mappable;
use std::borrow::Cow;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Why memory that nobody shares cannot be mapped.
const PRIVATE: &str = "private memory of this process, not from mem_alloc and not given as a file descriptor";

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

pub struct Wish<'a> {
    pub source: Source<'a>,
    pub access: Access,
    /// Remote address of the first byte where the domain does not address virtually.
    pub offset: u64,
    pub requested_key: u64,
    pub policy: PathPolicy,
    pub event: bool,
}

/// A contiguous piece of a region.
#[derive(Clone, Copy, Debug)]
struct Piece {
    iov: Iov,
    file: u64,
    file_offset: u64,
}

enum PieceList {
    One(Piece),
    Many(Box<[Piece]>),
}

impl PieceList {
    fn as_slice(&self) -> &[Piece] {
        match self {
            PieceList::One(p) => std::slice::from_ref(p),
            PieceList::Many(list) => list,
        }
    }
}

struct Region {
    base: u64,
    len: u64,
    access: Access,
    paths: Paths,
    policy: PathPolicy,
    pieces: PieceList,
    /// Why peers cannot map it, if they cannot.
    direct: std::result::Result<(), Cow<'static, str>>,
    counter: Option<Arc<Counter>>,
    event: bool,
    extents: Option<(u32, u32)>,
}

#[derive(Default)]
struct Slot {
    generation: u64,
    key: u64,
    /// Copies of this process in or out of the region right now.
    users: u32,
    closing: bool,
    region: Option<Region>,
}

/// A region's public facts.
#[derive(Clone, Debug)]
pub struct Facts {
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
}

/// A region held open while this process copies: must be given back with `unpin`.
pub struct Pin {
    index: u32,
    pub pieces: Vec<Iov>,
}

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
}

impl Regions {
    pub fn new() -> Regions {
        Regions {
            slots: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::new(),
            keys: KeySource::default(),
            extents: Extents::default(),
            open: 0,
            files: Files::default(),
        }
    }

    pub fn open_count(&self) -> usize {
        self.open
    }

    /// Registers; nothing is left behind on failure.
    pub fn register(&mut self, table: &Table, modes: Modes, wish: &Wish<'_>) -> Result<RegionId> {
        let (pieces, natural_base, len) = self.locate(table, wish)?;
        let result = self.finish_registration(table, modes, wish, pieces, natural_base, len);
        if result.is_err()
            && let Source::File { .. } = wish.source
        {
            self.files.drop_unused(table);
        }
        result
    }

    /// As `register` for the ordinary case: one range that the caller has checked, any path, keys and
    /// addresses of the provider's choosing. `None`: not ordinary, or no slot; nothing is done.
    #[inline]
    pub fn register_plain(&mut self, table: &Table, modes: Modes, iov: Iov, access: Access) -> Option<RegionId> {
        if !modes.virt_addr || !modes.prov_key {
            return None;
        }
        let (file, file_offset) = self.files.find(iov.addr, iov.len).unwrap_or((0, 0));
        let (direct, offered) = match self.files.get_mut(file) {
            Some(f) if f.mappable == Mappable::Yes => {
                f.regions += 1;
                (Ok(()), Paths::all())
            }
            Some(_) => return None,
            None => (Err(Cow::Borrowed(PRIVATE)), Paths::CMA | Paths::STAGED),
        };
        let paths = offered & modes.paths;
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
        let pieces = PieceList::One(Piece { iov, file, file_offset });
        slot.region = Some(Region {
            base,
            len,
            access,
            paths,
            policy: PathPolicy::default(),
            pieces,
            direct,
            counter: None,
            event: false,
            extents: None,
        });
        self.open += 1;
        Some(RegionId { index, generation: key, key })
    }

    fn locate(&mut self, table: &Table, wish: &Wish<'_>) -> Result<(PieceList, u64, u64)> {
        match wish.source {
            Source::Iov([one]) => {
                check_range(one, 0)?;
                Ok((PieceList::One(self.piece(*one)), one.addr as u64, one.len as u64))
            }
            Source::Iov(many) => {
                let mut sum = 0u64;
                let mut list = Vec::with_capacity(many.len());
                for (i, iov) in many.iter().enumerate() {
                    check_range(iov, i)?;
                    sum = sum.checked_add(iov.len as u64).ok_or_else(|| Error::invalid("iov: the lengths sum to more than 64 bits"))?;
                    list.push(self.piece(*iov));
                }
                let base = many.first().map_or(0, |v| v.addr as u64);
                base.checked_add(sum).ok_or_else(|| Error::invalid("iov: first address plus total length overflows"))?;
                Ok((PieceList::Many(list.into()), base, sum))
            }
            Source::File { fd, offset, len, base_addr } => {
                let id = self.files.adopt(table, fd, wish.access.intersects(Access::REMOTE_WRITE | Access::RECV | Access::READ))?;
                let file = self.files.get(id).ok_or(Error::fixed(errno::EIO, "an adopted file vanished"))?;
                let size = file.map.len() as u64;
                let addr = file.map.as_ptr() as usize;
                let fits = offset.checked_add(len as u64).is_some_and(|end| end <= size);
                let base = base_addr.checked_add(offset).filter(|b| b.checked_add(len as u64).is_some());
                match (fits, base, len) {
                    (true, Some(base), 1..) => {
                        let piece = Piece { iov: Iov { addr: addr + offset as usize, len }, file: id, file_offset: offset };
                        Ok((PieceList::One(piece), base, len as u64))
                    }
                    (_, _, 0) => {
                        self.files.drop_unused(table);
                        Err(Error::invalid("dmabuf->len: 0"))
                    }
                    (false, ..) => {
                        self.files.drop_unused(table);
                        Err(Error::invalid(format!("dmabuf->offset {offset} + len {len} lie beyond the file's {size} bytes")))
                    }
                    _ => {
                        self.files.drop_unused(table);
                        Err(Error::invalid("dmabuf->base_addr + offset + len overflows"))
                    }
                }
            }
        }
    }

    fn piece(&self, iov: Iov) -> Piece {
        let (file, file_offset) = self.files.find(iov.addr, iov.len).unwrap_or((0, 0));
        Piece { iov, file, file_offset }
    }

    fn finish_registration(
        &mut self,
        table: &Table,
        modes: Modes,
        wish: &Wish<'_>,
        pieces: PieceList,
        natural_base: u64,
        len: u64,
    ) -> Result<RegionId> {
        let base = match modes.virt_addr {
            true if wish.offset != 0 => return Err(Error::invalid("offset: must be 0 in a domain with GDRFAB_MR_VIRT_ADDR")),
            true => natural_base,
            false => wish.offset,
        };
        if base.checked_add(len).is_none() {
            return Err(Error::invalid("offset: offset plus length overflows"));
        }
        let direct = self.can_map(&pieces);
        let mut paths = (Paths::CMA | Paths::STAGED) & modes.paths;
        if direct.is_ok() {
            paths |= Paths::DIRECT & modes.paths;
        }
        paths &= wish.policy.allowed();
        if paths.is_empty() {
            let why = direct.err().unwrap_or(Cow::Borrowed("possible"));
            return Err(Error::coded(
                errno::EOPNOTSUPP,
                Code::Path,
                format!(
                    "attr->require {} forbid {}: no path is left for this memory (direct: {why}; this process permits {})",
                    wish.policy.require.words(),
                    wish.policy.forbid.words(),
                    modes.paths.words()
                ),
            ));
        }
        let (index, generation, key) = self.take_slot(modes, wish.requested_key)?;
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
        let extra = if wish.event { table::EVENT } else { 0 } | if extents.is_some() { table::MULTI } else { 0 };
        entry.key.store(key, Ordering::Relaxed);
        entry.base.store(base, Ordering::Relaxed);
        entry.len.store(len, Ordering::Relaxed);
        entry.rights.store(table::pack_rights(wish.access, paths, extra), Ordering::Relaxed);
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
            access: wish.access,
            paths,
            policy: wish.policy,
            pieces,
            direct,
            counter: None,
            event: wish.event,
            extents,
        });
        self.open += 1;
        Ok(RegionId { index, generation, key })
    }

    fn can_map(&self, pieces: &PieceList) -> std::result::Result<(), Cow<'static, str>> {
        for piece in pieces.as_slice() {
            match self.files.get(piece.file).map(|f| &f.mappable) {
                None => {
                    return Err(Cow::Borrowed(PRIVATE));
                }
                Some(Mappable::No(why)) => return Err(Cow::Borrowed(why)),
                Some(Mappable::Yes) => {}
            }
        }
        Ok(())
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
        let Some(Region { pieces: PieceList::One(piece), extents: None, counter: None, .. }) = &slot.region else { return false };
        if slot.generation != id.generation || slot.users != 0 || !self.by_key.is_empty() {
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
        Ok(())
    }

    pub fn users(&self, id: RegionId) -> u32 {
        self.slots.get(id.index as usize).map_or(0, |s| s.users)
    }

    /// Last step: nobody copies any more.
    pub fn forget(&mut self, table: &Table, id: RegionId) {
        let Some(slot) = self.slots.get_mut(id.index as usize) else { return };
        let Some(region) = &slot.region else { return };
        slot.generation = 0;
        slot.key = 0;
        slot.closing = false;
        for piece in region.pieces.as_slice().iter().filter(|p| p.file != 0) {
            self.files.release(table, piece.file);
        }
        if let Some(run) = region.extents {
            self.extents.free.push(run);
        }
        slot.region = None;
        self.free.push(id.index);
        self.open -= 1;
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
        Ok(Facts { key: id.key, base: r.base, len: r.len, access: r.access, paths: r.paths, iov_count: r.pieces.as_slice().len() as u32 })
    }

    /// The region's paths in words: what is offered, and why the rest is not.
    pub fn explain(&self, id: RegionId, modes: Modes) -> Result<String> {
        let r = self.region(id)?;
        let mut text = format!("region of {} bytes, key {:#x}: offers {}\n", r.len, id.key, r.paths.words());
        for path in [Paths::DIRECT, Paths::CMA, Paths::STAGED] {
            let verdict = if r.paths.contains(path) {
                "offered".to_string()
            } else if !modes.paths.contains(path) {
                "not permitted in this process (GDRFAB_SHM_PATHS)".to_string()
            } else if !r.policy.allowed().contains(path) {
                "ruled out by attr->require or attr->forbid".to_string()
            } else {
                match &r.direct {
                    Err(why) => format!("impossible, ENODEV: {why}"),
                    Ok(()) => "impossible".to_string(),
                }
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

    /// Checks an operation of a peer against our own truth and holds the region open for a copy.
    pub fn pin(&mut self, key: u64, addr: u64, len: usize, need: Access) -> std::result::Result<Pin, Code> {
        let index = self.find(key).ok_or(Code::Key)?;
        let slot = &mut self.slots[index as usize];
        let region = slot.region.as_ref().ok_or(Code::Key)?;
        let skip =
            addr.checked_sub(region.base).filter(|o| o.checked_add(len as u64).is_some_and(|end| end <= region.len)).ok_or(Code::Bounds)?;
        if !region.access.contains(need) {
            return Err(Code::Access);
        }
        let mut pieces = Vec::with_capacity(1);
        let (mut skip, mut left) = (skip as usize, len);
        for piece in region.pieces.as_slice() {
            if skip >= piece.iov.len {
                skip -= piece.iov.len;
                continue;
            }
            let take = left.min(piece.iov.len - skip);
            if take > 0 {
                pieces.push(Iov { addr: piece.iov.addr + skip, len: take });
            }
            left -= take;
            skip = 0;
        }
        slot.users += 1;
        Ok(Pin { index, pieces })
    }

    pub fn unpin(&mut self, pin: Pin) {
        self.slots[pin.index as usize].users -= 1;
    }

    /// The counter that a peer's write to `key` moves.
    pub fn counter(&self, key: u64) -> Option<Arc<Counter>> {
        self.slots.get(self.find(key)? as usize)?.region.as_ref()?.counter.clone()
    }

    /// Where peers can map a local buffer that lies in the region `desc` names.
    pub fn shared_place(&self, desc: u64, iov: Iov) -> Option<(u64, u64)> {
        self.find(desc)?;
        self.files.find(iov.addr, iov.len)
    }
}

fn check_range(iov: &Iov, i: usize) -> Result<()> {
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
