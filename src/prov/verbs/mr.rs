// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regions of a domain, and the pieces of operations that lie in them.
//!
//! A descriptor of plain memory carries the device's own local key, so that an operation looks nothing up; a wrong
//! one is refused by the device. Regions of several registrations, and staged ones, are found by their number.

use super::abi::ibv_sge;
use super::attach::Attached;
use super::backing::Backing;
use crate::error::{Error, Result, errno};
use crate::hmem::Site;
use crate::mr::{Access, KeySource, Paths};
use crate::mr::{DEVICE_DESC, Facts, RegionId};
use crate::prov::op::{IOV_LIMIT, Iov};
use std::sync::Arc;

/// Regions that a domain can have.
pub const MAX_REGIONS: usize = 1 << 20;

/// Where a descriptor's bytes are reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Local {
    /// By the CPU and the device.
    Host,
    /// By the device; the CPU must not touch them.
    Device,
    /// Not by the device.
    Staged,
}

/// Descriptors: never 0, bit 0 for device memory, bit 1 for those that are looked up, then the path if it is not nic.
const SET: u64 = 1 << 62;
const LOOKED_UP: u64 = 2;
const DMABUF: u64 = 4;
const PEER_MEM: u64 = 8;
const STAGED: u64 = 16;
const NUMBER_SHIFT: u32 = 8;

fn desc_of(number: u32, path: Paths, device: bool, looked_up: bool) -> u64 {
    let how = match path {
        Paths::DMABUF => DMABUF,
        Paths::PEER_MEM => PEER_MEM,
        Paths::STAGED => STAGED,
        _ => 0,
    };
    SET | u64::from(number) << NUMBER_SHIFT | how | if looked_up { LOOKED_UP } else { 0 } | if device { DEVICE_DESC } else { 0 }
}

/// How the device reaches the memory of a descriptor: bits that `path_of` reads, all 0 for pinned host pages.
#[inline(always)]
pub fn how_of(desc: u64) -> u8 {
    desc as u8
}

/// The same of all local pieces of an operation.
pub fn how_of_all(local: &[Iov], descs: &[u64]) -> u8 {
    local.iter().zip(descs).filter(|(v, _)| v.len > 0).fold(0, |all, (_, desc)| all | how_of(*desc))
}

/// What a bounced operation has instead.
pub const BOUNCED: u8 = STAGED as u8;

/// The path of an operation of this side: that of the piece which is harder to reach.
pub fn path_of(how: u8) -> Paths {
    let how = u64::from(how);
    match () {
        () if how & STAGED != 0 => Paths::STAGED,
        () if how & PEER_MEM != 0 => Paths::PEER_MEM,
        () if how & DMABUF != 0 => Paths::DMABUF,
        () => Paths::NIC,
    }
}

/// The path to memory of this side, for questions; `desc` 0 is host memory.
pub fn local_path(desc: u64) -> Result<Paths> {
    match desc {
        0 => Ok(Paths::NIC),
        _ if desc & SET == 0 => Err(no_desc(0, desc)),
        _ => Ok(path_of(how_of(desc))),
    }
}

/// Turns local pieces into the device's. `unnamed`: their bytes are copied out at once, so they need no region.
#[inline(always)]
pub fn pieces(local: &[Iov], descs: &[u64], unnamed: bool, into: &mut [ibv_sge; IOV_LIMIT]) -> Result<(usize, Local)> {
    let mut n = 0;
    let mut here = Local::Host;
    for (i, v) in local.iter().enumerate() {
        if v.len == 0 {
            continue;
        }
        let desc = descs.get(i).copied().unwrap_or(0);
        if desc & SET == 0 && !unnamed {
            return Err(no_desc(i, desc));
        }
        if desc & (LOOKED_UP | DEVICE_DESC) != 0 {
            here = here.max(if desc & LOOKED_UP != 0 { Local::Staged } else { Local::Device });
        }
        if let Some(place) = into.get_mut(n) {
            *place = ibv_sge { addr: v.addr as u64, length: v.len as u32, lkey: (desc >> NUMBER_SHIFT) as u32 };
        }
        n += 1;
    }
    Ok((n, here))
}

#[cold]
fn no_desc(i: usize, desc: u64) -> Error {
    let words = match desc {
        0 => "the buffer needs gdrfab_mr_desc() of a region that holds it (info->mr_mode has GDRFAB_MR_LOCAL)",
        _ => "no descriptor of a verbs region",
    };
    Error::invalid(format!("desc[{i}]: {words}"))
}

struct Region {
    attached: Attached,
    access: Access,
    key: u64,
}

#[derive(Default)]
struct Slot {
    generation: u64,
    region: Option<Arc<parking_lot::Mutex<Region>>>,
    /// For copies, which do not wait for the lock of a region that closes.
    backing: Option<Arc<Staged>>,
    /// No copy starts any more.
    closing: bool,
}

/// A region that is reached by copies.
pub struct Staged {
    pub backing: Backing,
    pub base: u64,
    pub len: u64,
    pub access: Access,
}

pub struct Regions {
    slots: Vec<Slot>,
    free: Vec<u32>,
    keys: KeySource,
    /// Regions that there were.
    count: u64,
    open: usize,
}

/// Keys of staged regions: above what a device's key can be, a number and what tells it from its predecessors.
const STAGED_KEY: u64 = 1 << 63;
const INDEX_BITS: u32 = 20;

/// The number of the staged region that a key names.
pub fn staged_index(key: u64) -> Option<u32> {
    (key & STAGED_KEY != 0).then_some((key & ((1 << INDEX_BITS) - 1)) as u32)
}

impl Regions {
    pub fn new() -> Result<Regions> {
        Ok(Regions { slots: Vec::new(), free: Vec::new(), keys: KeySource::new()?, count: 0, open: 0 })
    }

    pub fn open_count(&self) -> usize {
        self.open
    }

    pub fn add(&mut self, mut attached: Attached, access: Access) -> Result<RegionId> {
        let index = match self.free.pop() {
            Some(i) => i,
            None if self.slots.len() < MAX_REGIONS => {
                self.slots.push(Slot::default());
                self.slots.len() as u32 - 1
            }
            None => return Err(Error::new(errno::ENOSPC, format!("this domain already has {MAX_REGIONS} regions"))),
        };
        self.count += 1;
        let generation = self.count;
        let device = !attached.site.is_host();
        let (key, desc, backing) = match attached.pieces.as_slice() {
            [(_, one)] => {
                let (lkey, rkey) = (attached.local.as_ref().unwrap_or(one).keys().0, one.keys().1);
                (u64::from(rkey), desc_of(lkey, attached.path, device, false), None)
            }
            [] => {
                let key = STAGED_KEY | (self.keys.draw() << INDEX_BITS & !STAGED_KEY) | u64::from(index);
                let backing = attached.backing.take();
                let staged = backing.map(|backing| Arc::new(Staged { backing, base: attached.base, len: attached.len, access }));
                (key, desc_of(index, Paths::STAGED, device, true), staged)
            }
            // For local use only, so the key opens nothing.
            _ => (0, desc_of(index, attached.path, device, true), None),
        };
        let region = Region { attached, access, key };
        self.slots[index as usize] = Slot { generation, region: Some(Arc::new(parking_lot::Mutex::new(region))), backing, closing: false };
        self.open += 1;
        Ok(RegionId { index, generation, key, desc })
    }

    fn slot(&self, id: RegionId) -> Result<&Slot> {
        match self.slots.get(id.index as usize) {
            Some(s) if s.generation == id.generation && s.region.is_some() => Ok(s),
            _ => Err(Error::invalid("mr: this region is closed")),
        }
    }

    fn region(&self, id: RegionId) -> Result<&Arc<parking_lot::Mutex<Region>>> {
        self.slot(id)?.region.as_ref().ok_or(Error::fixed(errno::EINVAL, "mr: this region is closed"))
    }

    /// First step of closing: no copy starts from now on. Tells whether none runs any more: those hold the backing, and
    /// so does the slot, once, until the region is gone.
    pub fn shut(&mut self, id: RegionId) -> Result<bool> {
        self.slot(id)?;
        let slot = &mut self.slots[id.index as usize];
        slot.closing = true;
        Ok(slot.backing.as_ref().is_none_or(|b| Arc::strong_count(b) == 1))
    }

    /// Second step: the device lets go. It stays open if that fails.
    pub fn detach(&mut self, id: RegionId) -> Result<()> {
        let region = self.region(id)?.clone();
        let mut region = region.lock();
        // The one that peers know first.
        region.attached.pieces.iter_mut().try_for_each(|(_, mr)| mr.close())?;
        region.attached.local.iter_mut().try_for_each(|mr| mr.close())?;
        drop(region);
        if let Some(slot) = self.slots.get_mut(id.index as usize) {
            *slot = Slot::default();
            self.free.push(id.index);
            self.open -= 1;
        }
        Ok(())
    }

    pub fn facts(&self, id: RegionId) -> Result<Facts> {
        let r = self.region(id)?.lock();
        let a = &r.attached;
        Ok(Facts {
            site: a.site,
            kind: a.kind,
            key: r.key,
            base: a.base,
            len: a.len,
            access: r.access,
            paths: a.path,
            iov_count: a.pieces.len().max(1) as u32,
        })
    }

    pub fn explain(&self, id: RegionId, device: &str) -> Result<String> {
        let r = self.region(id)?.lock();
        let a = &r.attached;
        Ok(format!(
            "region of {} bytes of {} memory ({}) on {device}, key {:#x}: {}\n{}",
            a.len,
            a.site,
            a.kind.name(),
            r.key,
            a.path.words(),
            a.record.lines()
        ))
    }

    /// Open regions that touch `[addr, addr+len)`.
    pub fn covering(&self, addr: u64, len: u64) -> usize {
        let touches = |at: u64, n: u64| at < addr.saturating_add(len) && addr < at.saturating_add(n);
        let covers = |s: &&Slot| {
            s.region.as_ref().is_some_and(|r| {
                let r = r.lock();
                touches(r.attached.base, r.attached.len)
            })
        };
        self.slots.iter().filter(covers).count()
    }

    /// The staged region of a descriptor; `None`: it is one of several registrations.
    pub fn staged(&self, desc: u64) -> Result<Option<Arc<Staged>>> {
        let number = (desc >> NUMBER_SHIFT) as u32;
        let slot = self.slots.get(number as usize).filter(|s| s.region.is_some() && !s.closing);
        let slot = slot.ok_or(Error::fixed(errno::EINVAL, "desc: the region is closed"))?;
        Ok(slot.backing.clone())
    }

    /// The staged region that a peer's key names.
    pub fn by_key(&self, key: u64) -> Option<Arc<Staged>> {
        let slot = self.slots.get(staged_index(key)? as usize).filter(|s| !s.closing)?;
        let matches = slot.region.as_ref().is_some_and(|r| r.lock().key == key);
        if matches { slot.backing.clone() } else { None }
    }

    /// Where the bytes behind a descriptor of registered memory lie.
    pub fn site_of(&self, desc: u64) -> Site {
        if desc & DEVICE_DESC == 0 {
            return Site::HOST;
        }
        let key = (desc >> NUMBER_SHIFT) as u32;
        let of = |s: &Slot| {
            let r = s.region.as_ref()?.lock();
            r.attached.pieces.iter().any(|(_, mr)| mr.keys().0 == key).then_some(r.attached.site)
        };
        self.slots.iter().find_map(of).unwrap_or(Site::HOST)
    }

    /// The device's piece that holds `iov`, of a region of several.
    pub fn piece(&self, desc: u64, iov: &Iov) -> Result<ibv_sge> {
        let number = (desc >> NUMBER_SHIFT) as u32;
        let region = self.slots.get(number as usize).and_then(|s| s.region.as_ref());
        let region = region.ok_or(Error::fixed(errno::EINVAL, "desc: the region is closed"))?.lock();
        let holds = |p: &Iov| iov.addr >= p.addr && iov.addr - p.addr <= p.len && iov.len <= p.len - (iov.addr - p.addr);
        match region.attached.pieces.iter().find(|(p, _)| holds(p)) {
            Some((_, mr)) => Ok(ibv_sge { addr: iov.addr as u64, length: iov.len as u32, lkey: mr.keys().0 }),
            None => Err(Error::invalid(format!("iov: {} bytes at {:#x} lie in no single range of the region", iov.len, iov.addr))),
        }
    }
}

/// The device's own key in a descriptor of pinned host pages, if it carries one.
#[inline(always)]
pub fn on_host(desc: u64) -> Option<u32> {
    const HOST: u64 = SET.rotate_right(NUMBER_SHIFT) >> 32;
    // The key below, and all else above.
    let turned = desc.rotate_right(NUMBER_SHIFT);
    (turned >> 32 == HOST).then_some(turned as u32)
}

/// The same of any memory that the device reaches.
#[inline(always)]
pub fn plain(desc: u64) -> Option<u32> {
    on_host(desc & !(DEVICE_DESC | DMABUF | PEER_MEM))
}

/// Whether a descriptor's region is looked up.
pub fn is_looked_up(desc: u64) -> bool {
    desc & LOOKED_UP != 0
}

/// Paths that a region may have been registered by.
pub const PATHS: Paths = Paths::NIC.union(Paths::DMABUF).union(Paths::PEER_MEM).union(Paths::STAGED);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_carries_the_key() {
        // SAFETY: plain numbers.
        let mut sges: [ibv_sge; IOV_LIMIT] = unsafe { std::mem::zeroed() };
        let iov = [Iov { addr: 64, len: 8 }, Iov { addr: 1, len: 0 }, Iov { addr: 128, len: 16 }];
        let descs = [desc_of(u32::MAX, Paths::NIC, false, false), 0, desc_of(7, Paths::DMABUF, true, false)];
        let (n, here) = pieces(&iov, &descs, false, &mut sges).expect("pieces");
        assert_eq!((n, here), (2, Local::Device));
        assert_eq!((sges[0].lkey, sges[1].lkey, sges[1].length), (u32::MAX, 7, 16));
        assert!(pieces(&iov, &[], false, &mut sges).is_err_and(|e| e.words.contains("desc[0]")));
        assert!(pieces(&iov, &[0x1234; 3], false, &mut sges).is_err());
        assert_eq!(pieces(&iov, &[], true, &mut sges).expect("unnamed"), (2, Local::Host));
        assert_eq!([0, 2].map(|i| (plain(descs[i]), on_host(descs[i]))), [(Some(u32::MAX), Some(u32::MAX)), (Some(7), None)]);
        let looked_up = [desc_of(7, Paths::NIC, false, true), desc_of(7, Paths::STAGED, true, true)];
        for odd in [0, 1, 0x1234, looked_up[0], looked_up[1], descs[0] | 1 << 63, descs[0] & !SET] {
            assert_eq!((plain(odd), on_host(odd)), (None, None), "{odd:#x}");
        }
        // An operation's path is that of its harder piece; one without bytes does not count.
        let peer = desc_of(7, Paths::PEER_MEM, true, false);
        let paths = [descs[0], descs[2], peer, looked_up[0], looked_up[1]].map(|d| local_path(d).expect("a descriptor"));
        assert_eq!(paths, [Paths::NIC, Paths::DMABUF, Paths::PEER_MEM, Paths::NIC, Paths::STAGED]);
        assert_eq!(path_of(how_of_all(&iov, &[descs[0], looked_up[1], peer])), Paths::PEER_MEM);
        assert_eq!(path_of(how_of_all(&iov, &[peer, 0, looked_up[1]])), Paths::STAGED);
        assert!(local_path(0).is_ok_and(|p| p == Paths::NIC) && local_path(0x1234).is_err());
    }

    #[test]
    fn a_region_is_not_shut_as_long_as_a_copy_runs_however_often_that_is_asked() {
        let place = [Iov { addr: 4096, len: 64 }];
        let attached = Attached {
            pieces: Vec::new(),
            local: None,
            backing: Some(Backing::memory(Site::HOST, &place, 4096)),
            path: Paths::STAGED,
            base: 4096,
            len: 64,
            site: Site::HOST,
            kind: crate::hmem::Kind::Host,
            record: Default::default(),
        };
        let mut regions = Regions::new().unwrap();
        let id = regions.add(attached, Access::REMOTE_READ).expect("a place");
        let copying = regions.by_key(id.key).expect("its key");
        assert!(!regions.shut(id).expect("open"));
        assert!(!regions.shut(id).expect("open"), "the second time as well");
        assert!(regions.by_key(id.key).is_none() && regions.staged(id.desc).is_err(), "no copy starts any more");
        drop(copying);
        assert!(regions.shut(id).expect("open"));
        regions.detach(id).expect("quiet");
        assert!(regions.shut(id).is_err() && regions.open_count() == 0);
    }
}
