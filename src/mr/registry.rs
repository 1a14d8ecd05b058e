// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The regions of a domain, in slots with generations. A region is found by handle, by a peer's key, or by an
//! operation's descriptor.
//!
//! Closing a region has three steps in every provider: `shut`, after which the region is neither found nor entered; a
//! bounded wait, without the domain's lock, for its users, whom the provider knows ([`wait_until`]); and `remove`.

use super::key::{INDEX_BITS, KeySource, OWN_REGIONS, desc_fits, desc_index, desc_of};
use super::region::{Local, Region};
use super::{Facts, Iov, RegionId};
use crate::error::{Error, Result, errno};
use crate::fallible::MakeRoom;
use crate::sys::time::now_ns;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Set in every key that the library chose.
pub const CHOSEN_KEY: u64 = 1 << 63;
/// Set in a chosen key of device memory, in the domains that tell peers so.
pub const DEVICE_KEY: u64 = 1 << 62;
/// Set in a chosen key, in the domain of a connectionless endpoint, if only the card carries out atomics on the region.
pub const CARD_KEY: u64 = 1 << 61;

/// The source of a region's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyOf {
    /// The library draws it. The low bits are the index of the region, and the random bits above make the key
    /// unguessable.
    Domain,
    /// The caller chose it.
    Caller(u64),
    /// The device chose it, and the device itself looks it up.
    Device(u64),
}

/// An element of a registry: a region, or a shared reference to one.
pub trait HasRegion {
    type At;
    type Own;
    fn region(&self) -> &Region<Self::At, Self::Own>;
}

impl<P, O> HasRegion for Region<P, O> {
    type At = P;
    type Own = O;
    #[inline(always)]
    fn region(&self) -> &Region<P, O> {
        self
    }
}

impl<P, O> HasRegion for Arc<Region<P, O>> {
    type At = P;
    type Own = O;
    #[inline(always)]
    fn region(&self) -> &Region<P, O> {
        self
    }
}

struct Slot<R> {
    /// Different for each registration; 0 if the slot is empty.
    generation: u64,
    region: Option<R>,
}

/// A reserved slot, and the names of the region that will fill it.
#[derive(Clone, Copy, Debug)]
pub struct Reserved {
    pub index: u32,
    pub generation: u64,
    pub key: u64,
}

pub struct Registry<R, const BITS: u32 = INDEX_BITS> {
    slots: Vec<Slot<R>>,
    free: Vec<u32>,
    /// The slots by key, in domains where callers choose the keys.
    by_key: HashMap<u64, u32>,
    keys: KeySource,
    /// Bit that is set in chosen keys of device memory, and in no others.
    device_mark: u64,
    open: usize,
    /// Largest number of regions.
    max_regions: usize,
}

const CLOSED: &str = "mr: this region is closed";

/// The error of a domain that already has its largest number of regions.
#[cold]
pub fn full(max_regions: usize) -> Error {
    Error::new(errno::ENOSPC, format!("this domain already has {max_regions} regions"))
}

impl<R: HasRegion, const BITS: u32> Registry<R, BITS> {
    pub const MAX: usize = 1 << BITS;

    /// In domains of providers without a device, half of the indexes are kept for regions that the library exposes
    /// itself.
    pub fn new(device_mark: u64) -> Result<Self> {
        let (slots, free, by_key) = (Vec::new(), Vec::new(), HashMap::new());
        let max_regions = if BITS == INDEX_BITS { OWN_REGIONS } else { Self::MAX };
        Ok(Registry { slots, free, by_key, keys: KeySource::new()?, device_mark, open: 0, max_regions })
    }

    /// Raises the largest number of regions to all indexes, for regions that the library exposes beside the program's.
    /// From then on the caller counts both.
    pub fn make_room(&mut self) {
        self.max_regions = Self::MAX;
    }

    pub fn open_count(&self) -> usize {
        self.open
    }

    /// Reserves a slot, and chooses the names of the region to come.
    #[inline(always)]
    pub fn reserve(&mut self, key: KeyOf, on_device: bool) -> Result<Reserved> {
        if let KeyOf::Caller(wanted) = key {
            if self.by_key.contains_key(&wanted) {
                return Err(Self::key_taken(wanted));
            }
            self.by_key.room(1)?;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.max_regions => {
                self.grow_slots()?;
                self.slots.push(Slot { generation: 0, region: None });
                self.slots.len() as u32 - 1
            }
            None => return Err(full(self.max_regions)),
        };
        let mark = if on_device { self.device_mark } else { 0 };
        let generation = (self.keys.draw() << BITS) & !self.device_mark | u64::from(index) | mark | CHOSEN_KEY;
        let key = match key {
            KeyOf::Domain => generation,
            KeyOf::Device(key) => key,
            KeyOf::Caller(key) => {
                self.by_key.insert(key, index);
                key
            }
        };
        Ok(Reserved { index, generation, key })
    }

    /// Makes room for one slot more, also in the list of free slots, so that giving slots back never allocates.
    #[cold]
    #[inline(never)]
    fn grow_slots(&mut self) -> Result<()> {
        self.slots.room(1)?;
        let more = self.slots.len() + 1;
        self.free.room(more - self.free.len())
    }

    #[cold]
    fn key_taken(key: u64) -> Error {
        Error::new(
            errno::ENOKEY,
            format!(
                "requested_key: {key:#x} is already the key of a region of this domain; choose another (info->mr_mode lacks \
                 GDRFAB_MR_PROV_KEY)"
            ),
        )
    }

    /// Gives back a slot that was not filled.
    #[cold]
    pub fn cancel(&mut self, reserved: Reserved) {
        self.unlist(reserved.key, reserved.index);
        self.free.push(reserved.index);
    }

    #[inline]
    fn unlist(&mut self, key: u64, index: u32) {
        if !self.by_key.is_empty()
            && let Entry::Occupied(listed) = self.by_key.entry(key)
            && *listed.get() == index
        {
            listed.remove();
        }
    }

    /// Fills a reserved slot with `region`, which already has its key.
    pub fn fill(&mut self, reserved: Reserved, region: R) -> RegionId {
        let on_device = !region.region().site().is_host();
        let (id, place) = self.occupy(reserved, on_device);
        *place = Some(region);
        id
    }

    /// Like `fill`, but the caller constructs the region in the returned place. Moving a finished region into the slot
    /// would make the CPU wait for the stores to it.
    #[inline(always)]
    pub fn occupy(&mut self, Reserved { index, generation, key }: Reserved, on_device: bool) -> (RegionId, &mut Option<R>) {
        let desc = desc_of(index, generation, on_device);
        let slot = &mut self.slots[index as usize];
        slot.generation = generation;
        slot.region = None;
        self.open += 1;
        (RegionId::new(index, generation, key, desc), &mut slot.region)
    }

    #[inline]
    pub fn get(&self, id: RegionId) -> Result<&R> {
        match self.slots.get(id.index() as usize) {
            Some(Slot { generation, region: Some(region) }) if *generation == id.generation => Ok(region),
            _ => Err(Error::fixed(errno::EINVAL, CLOSED)),
        }
    }

    #[inline]
    pub fn get_mut(&mut self, id: RegionId) -> Result<&mut R> {
        match self.slots.get_mut(id.index() as usize) {
            Some(Slot { generation, region: Some(region) }) if *generation == id.generation => Ok(region),
            _ => Err(Error::fixed(errno::EINVAL, CLOSED)),
        }
    }

    /// The region in slot `index`; `None` if the slot is empty. No generation is compared, because the caller knows
    /// that the slot holds its region.
    #[inline]
    pub fn at(&self, index: u32) -> Option<&R> {
        self.slots.get(index as usize)?.region.as_ref()
    }

    #[inline]
    pub fn at_mut(&mut self, index: u32) -> Option<&mut R> {
        self.slots.get_mut(index as usize)?.region.as_mut()
    }

    /// The index of the slot where a region with this key would be.
    #[inline]
    pub fn index_of(&self, key: u64) -> u32 {
        let listed = if self.by_key.is_empty() { None } else { self.by_key.get(&key).copied() };
        listed.unwrap_or((key & ((1 << BITS) - 1)) as u32)
    }

    /// The open region that a peer's key names.
    #[inline]
    pub fn find(&self, key: u64) -> Option<&R> {
        self.at(self.index_of(key)).filter(|r| r.region().is(key))
    }

    /// The open region that a descriptor names.
    #[inline]
    pub fn described(&self, desc: u64) -> Option<&R> {
        let slot = self.slots.get(desc_index(desc) as usize)?;
        slot.region.as_ref().filter(|r| desc_fits(desc, slot.generation) && !r.region().users.is_shut())
    }

    /// The local memory of an operation with the descriptor `desc`; fails if it is not inside the region.
    pub fn local(&self, desc: u64, local: &[Iov]) -> Result<Local> {
        let region = self.described(desc).ok_or(Error::fixed(errno::EINVAL, "desc: names no open region of this domain"))?;
        Local::of(region.region(), local)
    }

    /// All memory of the region with the descriptor `desc`.
    pub fn local_pieces(&self, desc: u64) -> Result<Local> {
        let region = self.described(desc).ok_or(Error::fixed(errno::EINVAL, "desc: names no open region of this domain"))?;
        Ok(Local::whole(region.region()))
    }

    /// First step of closing: from now on the region is neither found nor entered. May be repeated.
    #[inline]
    pub fn shut(&mut self, id: RegionId) -> Result<&mut R> {
        let region = self.get(id)?.region();
        if !region.users.is_shut() {
            region.users.shut();
            let key = region.key;
            self.unlist(key, id.index());
        }
        self.get_mut(id)
    }

    /// Last step of closing, when the region has no users.
    #[inline]
    pub fn remove(&mut self, id: RegionId) -> Option<R> {
        let region = self.slot_of(id)?.region.take()?;
        self.free.push(id.index());
        self.open -= 1;
        Some(region)
    }

    /// Like `remove`, but drops the region in its slot.
    #[inline(always)]
    pub fn drop_region(&mut self, id: RegionId) {
        let Some(slot) = self.slot_of(id) else { return };
        slot.region = None;
        self.free.push(id.index());
        self.open -= 1;
    }

    /// Like `drop_region`, without running the region's destructor: the region owns nothing that has to be released.
    #[inline(always)]
    pub fn forget_region(&mut self, id: RegionId) {
        let Some(slot) = self.slot_of(id) else { return };
        std::mem::forget(slot.region.take());
        self.free.push(id.index());
        self.open -= 1;
    }

    /// Clears the generation of the slot of a region that is being removed, and returns the slot.
    #[inline]
    fn slot_of(&mut self, id: RegionId) -> Option<&mut Slot<R>> {
        let slot = self.slots.get_mut(id.index() as usize).filter(|s| s.generation == id.generation && s.region.is_some())?;
        slot.generation = 0;
        Some(slot)
    }

    pub fn facts(&self, id: RegionId) -> Result<Facts> {
        Ok(self.get(id)?.region().facts())
    }

    /// All regions, also those that are shut and not yet removed.
    pub fn iter(&self) -> impl Iterator<Item = &R> {
        self.slots.iter().filter_map(|s| s.region.as_ref())
    }

    /// Number of open regions that overlap `[addr, addr+len)`.
    pub fn covering(&self, addr: u64, len: u64) -> usize {
        self.iter().filter(|r| r.region().touches(addr, len)).count()
    }
}

/// Waits until `quiet` returns true, for at most `ms` milliseconds. `busy` is the error if the region is still in use
/// then.
pub fn wait_until(ms: u64, busy: &'static str, mut quiet: impl FnMut() -> Result<bool>) -> Result<()> {
    let mut until = 0;
    while !quiet()? {
        let now = now_ns();
        if until == 0 {
            until = now + ms * 1_000_000;
        }
        if now > until {
            return Err(Error::fixed(errno::EBUSY, busy));
        }
        std::thread::yield_now();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use crate::hmem::{MemoryKind, Site};
    use crate::mr::region::{Location, Piece, Pieces};
    use crate::mr::{Access, Attr, Paths};

    type Plain = Region<(), ()>;

    fn named(addr: usize, len: usize) -> Iov {
        // SAFETY: the test does not access the memory.
        unsafe { Iov::new(addr, len) }
    }

    fn region(pieces: &[(usize, usize)]) -> Plain {
        let list: Vec<_> = pieces.iter().map(|&(addr, len)| Piece { iov: named(addr, len), id: 0, at: () }).collect();
        let (base, len) = (pieces[0].0 as u64, pieces.iter().map(|p| p.1 as u64).sum());
        let location = Location { pieces: Pieces::from(list), base, len, site: Site::HOST, kind: MemoryKind::Host };
        Region::new(&Attr::plain(Access::REMOTE_READ), 0, base, Paths::STAGED, location, ())
    }

    fn register(regions: &mut Registry<Plain>, key: KeyOf, region: Plain) -> Result<RegionId> {
        let names = regions.reserve(key, false)?;
        Ok(regions.fill(names, Region { key: names.key, ..region }))
    }

    #[test]
    fn a_region_is_found_by_its_names_until_it_is_shut() {
        let mut regions = Registry::new(0).unwrap();
        let id = register(&mut regions, KeyOf::Domain, region(&[(4096, 64)])).unwrap();
        assert!(regions.find(id.key).is_some() && regions.described(id.desc).is_some());
        assert!(regions.find(id.key ^ 1 << 20).is_none() && regions.find(0).is_none() && regions.described(0).is_none());
        assert!(regions.at(0).unwrap().users.enter());
        assert!(!regions.shut(id).unwrap().users.is_empty());
        assert!(regions.find(id.key).is_none() && regions.described(id.desc).is_none());
        assert!(!regions.at(0).unwrap().users.enter());
        regions.at(0).unwrap().users.leave();
        assert!(regions.shut(id).unwrap().users.is_empty());
        assert!(regions.remove(id).is_some() && regions.remove(id).is_none());
        assert!(regions.shut(id).is_err() && regions.get(id).is_err() && regions.open_count() == 0);
        // The slot serves again, under other names.
        let next = register(&mut regions, KeyOf::Domain, region(&[(4096, 64)])).unwrap();
        assert!(next.index() == id.index() && next.key != id.key && regions.get(id).is_err() && regions.described(id.desc).is_none());
    }

    #[test]
    fn keys_of_the_callers_choice_are_free_once_the_region_is_shut() {
        let mut regions = Registry::new(0).unwrap();
        let one = register(&mut regions, KeyOf::Caller(7), region(&[(4096, 64)])).unwrap();
        assert!(one.key == 7 && regions.find(7).is_some() && regions.find(0).is_none());
        assert!(register(&mut regions, KeyOf::Caller(7), region(&[(4096, 64)])).is_err_and(|e| e.errno == errno::ENOKEY));
        regions.shut(one).unwrap();
        let two = register(&mut regions, KeyOf::Caller(7), region(&[(8192, 64)])).unwrap();
        // The region before it in this slot, still closing, has no effect on it.
        regions.shut(one).unwrap();
        regions.remove(one).unwrap();
        assert_eq!(regions.find(7).map(|r| r.base), regions.get(two).ok().map(|r| r.base));
        let taken = regions.reserve(KeyOf::Caller(8), false).unwrap();
        regions.cancel(taken);
        assert!(regions.find(8).is_none() && regions.reserve(KeyOf::Caller(8), false).is_ok());
    }

    #[test]
    fn marks_of_device_memory_are_in_its_keys_alone() {
        let mut regions = Registry::<Plain>::new(1 << 62).unwrap();
        for on_device in [false, true] {
            for _ in 0..100 {
                let names = regions.reserve(KeyOf::Domain, on_device).unwrap();
                assert_eq!((names.key >> 63, names.key >> 62 & 1 == 1, names.key), (1, on_device, names.generation));
            }
        }
        let names = regions.reserve(KeyOf::Device(17), false).unwrap();
        assert!(names.key == 17 && names.generation != 17);
    }

    #[test]
    fn ranges_are_those_that_were_registered() {
        let region = region(&[(0x10000, 64), (0x20000, 16)]);
        assert_eq!(region.range(0x10000, 80, Access::REMOTE_READ), Ok(0));
        assert_eq!(region.range(0x10001, 80, Access::REMOTE_READ), Err(Code::Bounds));
        assert_eq!(region.range(0xffff, 2, Access::REMOTE_READ), Err(Code::Bounds));
        assert_eq!(region.range(0x10000, u64::MAX, Access::REMOTE_READ), Err(Code::Bounds));
        assert_eq!(region.range(0x10000, 1, Access::REMOTE_WRITE), Err(Code::Access));
        let parts: Vec<_> = region.walk(60, 8).map(|(p, from, n)| (p.iov.addr() + from, n)).collect();
        assert_eq!(parts, [(0x1003c, 4), (0x20000, 4)]);
        let found = |addr, len| region.find(named(addr, len)).map(|f| f.map(|(p, from, n)| (p.iov.addr(), from, n))).collect::<Vec<_>>();
        assert_eq!(found(0x10010, 0x30), [Some((0x10000, 0x10, 0x30))]);
        assert_eq!(found(0x10010, 0x31), [Some((0x10000, 0x10, 0x30)), None]);
        assert!(found(0x10010, 0).is_empty());
        assert!(region.touches(0x1003f, 1) && !region.touches(0x10040, 0x100) && region.touches(0, u64::MAX));
    }
}
