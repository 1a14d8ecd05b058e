// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regions of a domain as verbs has them, whose keys are the device's; and the pieces of operations that lie in them.
//!
//! A descriptor of plain memory carries the device's own local key, so that an operation looks nothing up; a wrong
//! one is refused by the device. Regions of several registrations, and staged ones, are found by their number.

use super::backing::Backing;
use super::keys::Keys;
use super::steps::RegistrationRecord;
use crate::error::{Error, Result, errno};
use crate::hmem::Site;
use crate::mr::region::{self, Location};
use crate::mr::registry::{CHOSEN_KEY, KeyOf, Registry};
use crate::mr::{Access, Attr, DEVICE_DESC, Iov, Paths, RegionId, Source};
use crate::prov::op::IOV_LIMIT;
use crate::prov::queue::Counter;
use crate::prov::verbs::device::object::RawMr;
use crate::prov::verbs::sys::abi::ibv_sge;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where a descriptor's bytes are reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum BufferKind {
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
    local.iter().zip(descs).filter(|(v, _)| !v.is_empty()).fold(0, |all, (_, desc)| all | how_of(*desc))
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
pub fn pieces(local: &[Iov], descs: &[u64], unnamed: bool, into: &mut [ibv_sge; IOV_LIMIT]) -> Result<(usize, BufferKind)> {
    let mut n = 0;
    let mut here = BufferKind::Host;
    for (i, v) in local.iter().enumerate() {
        if v.is_empty() {
            continue;
        }
        let desc = descs.get(i).copied().unwrap_or(0);
        if desc & SET == 0 && !unnamed {
            return Err(no_desc(i, desc));
        }
        if desc & (LOOKED_UP | DEVICE_DESC) != 0 {
            here = here.max(if desc & LOOKED_UP != 0 { BufferKind::Staged } else { BufferKind::Device });
        }
        if let Some(place) = into.get_mut(n) {
            *place = ibv_sge { addr: v.addr() as u64, length: v.len() as u32, lkey: (desc >> NUMBER_SHIFT) as u32 };
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

/// Memory that the device, or staging, reaches.
pub struct Attached {
    /// By this process's addresses.
    pub location: Location<()>,
    /// Address of the first byte for the device.
    pub base: u64,
    /// What peers call that.
    pub peer_base: u64,
    /// The device's registration of each piece; none where the memory is staged.
    pub mrs: Vec<RawMr>,
    /// The same memory under this process's addresses, where peers use others.
    pub local: Option<RawMr>,
    /// How the bytes are reached where the device cannot.
    pub backing: Option<Backing>,
    pub path: Paths,
    pub record: RegistrationRecord,
    /// The same with the devices of further rails, by their names.
    pub rails: Vec<(String, Result<RailRegistration>)>,
}

/// Memory as the device of a further rail knows it.
pub struct RailRegistration {
    /// As of [`Attached`].
    pub mrs: Vec<RawMr>,
    pub local: Option<RawMr>,
    pub _backing: Option<Backing>,
}

/// A region with the device's registrations of its pieces.
pub type Region = region::Region<(), VerbsRegion>;

/// What verbs keeps of a region.
pub struct VerbsRegion {
    /// One for each piece; none where the memory is staged.
    mrs: Vec<RawMr>,
    /// The same memory under this process's addresses, where peers use others.
    local: Option<RawMr>,
    /// Memory that the device does not reach. Copies hold it.
    staged: Option<Arc<Staged>>,
    /// Where the CPU sees a file that the device reached by its mapping.
    _backing: Option<Backing>,
    record: RegistrationRecord,
    rails: Vec<(String, Result<RailRegistration>)>,
    /// From peers' addresses to the device's.
    shift: u64,
    /// Its addresses are none of this process's.
    is_file: bool,
    /// A peer has asked what its key names.
    shared: AtomicBool,
    /// Counts peers' writes.
    counter: Option<Arc<Counter>>,
}

impl VerbsRegion {
    /// By which key the device knows it, and what to add to peers' addresses; none: peers do not reach it by the device.
    pub fn name(&self) -> Option<(u32, u64)> {
        let [one] = self.mrs.as_slice() else { return None };
        Some((one.keys().1, self.shift))
    }

    pub fn mark_shared(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    pub fn was_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    pub fn count(&self) {
        if let Some(counter) = &self.counter {
            counter.add(1);
        }
    }

    pub fn is_nowhere(&self) -> bool {
        self.is_file
    }
}

/// A region that is reached by copies.
pub struct Staged {
    pub backing: Backing,
    pub base: u64,
    pub len: u64,
    pub access: Access,
}

const INDEX_BITS: u32 = 20;
/// Regions that a domain can have.
pub const MAX_REGIONS: usize = 1 << INDEX_BITS;

pub struct Regions {
    registry: Registry<Region, INDEX_BITS>,
    /// Keys are the caller's.
    chosen: bool,
    /// Of a domain with rails: a region's keys by the first rail's local one, and by that which peers know.
    by_lkey: HashMap<u32, Arc<Keys>>,
    by_rkey: HashMap<u32, Arc<Keys>>,
}

impl Attached {
    /// Its keys on every rail that can carry something of it; none without rails.
    pub fn keys(&self) -> Option<Keys> {
        let [own] = self.mrs.as_slice() else { return None };
        let named = |mrs: &[RawMr], local: &Option<RawMr>| {
            let peers = mrs.first()?;
            Some((local.as_ref().unwrap_or(peers).keys().0, peers.keys().1))
        };
        let further = self.rails.iter().map(|(_, there)| there.as_ref().ok().and_then(|there| named(&there.mrs, &there.local)));
        let all = std::iter::once(named(std::slice::from_ref(own), &self.local)).chain(further);
        (!self.rails.is_empty()).then(|| Keys::of(all))
    }
}

/// Whether a key names a staged region: those keys are above what a device's can be.
pub fn is_staged(key: u64) -> bool {
    key & CHOSEN_KEY != 0
}

impl Deref for Regions {
    type Target = Registry<Region, INDEX_BITS>;
    fn deref(&self) -> &Self::Target {
        &self.registry
    }
}

impl Regions {
    pub fn new(chosen: bool) -> Result<Regions> {
        Ok(Regions { registry: Registry::new(0)?, chosen, by_lkey: HashMap::new(), by_rkey: HashMap::new() })
    }

    pub fn add(&mut self, attached: Attached, attr: &Attr<'_>) -> Result<RegionId> {
        let keys = attached.keys();
        let Attached { location, base, peer_base: named, mrs, local, backing, path, record, rails } = attached;
        let device = !location.site.is_host();
        let key = match mrs.as_slice() {
            _ if self.chosen => KeyOf::Caller(attr.requested_key),
            [] => KeyOf::Domain,
            [one] => KeyOf::Device(u64::from(one.keys().1)),
            // For local use only, so the key opens nothing.
            _ => KeyOf::Device(0),
        };
        let reserved = self.registry.reserve(key, device)?;
        if let Some(keys) = keys.map(Arc::new) {
            self.by_lkey.insert(keys.lkeys[0], keys.clone());
            self.by_rkey.insert(keys.rkeys[0], keys);
        }
        let desc = match mrs.as_slice() {
            [] => desc_of(reserved.index, Paths::STAGED, device, true),
            [one] => desc_of(local.as_ref().unwrap_or(one).keys().0, path, device, false),
            _ => desc_of(reserved.index, path, device, true),
        };
        let (backing, staged) = match backing {
            Some(backing) if mrs.is_empty() => (None, Some(Arc::new(Staged { backing, base, len: location.len, access: attr.access }))),
            other => (other, None),
        };
        let is_file = matches!(attr.source, Source::File { .. });
        let published = VerbsRegion {
            mrs,
            local,
            staged,
            _backing: backing,
            record,
            rails,
            shift: base.wrapping_sub(named),
            is_file,
            shared: AtomicBool::new(false),
            counter: None,
        };
        let id = self.registry.fill(reserved, Region::new(attr, reserved.key, named, path, location, published));
        Ok(RegionId::new(id.index(), id.generation, id.key, desc))
    }

    pub fn bind_counter(&mut self, id: RegionId, counter: Arc<Counter>) -> Result<()> {
        let region = self.registry.get_mut(id)?;
        // Who asks what its key names is told so from now on.
        region.event = true;
        region.own.counter = Some(counter);
        Ok(())
    }

    /// First step of closing: no copy starts from now on. Tells whether none runs any more: those have entered, or hold the
    /// backing, and so does the region, once, until it is gone.
    pub fn shut(&mut self, id: RegionId) -> Result<bool> {
        let region = self.registry.shut(id)?;
        Ok(region.users.is_empty() && region.own.staged.as_ref().is_none_or(|s| Arc::strong_count(s) == 1))
    }

    /// Last step: the device lets go. The region stays if that fails.
    pub fn detach(&mut self, id: RegionId) -> Result<()> {
        let own = &mut self.registry.get_mut(id)?.own;
        let lkey = own.local.as_ref().or(own.mrs.first()).map_or(0, |mr| mr.keys().0);
        // The one that peers know first.
        own.mrs.iter_mut().try_for_each(RawMr::close)?;
        for (_, there) in &mut own.rails {
            there.iter_mut().flat_map(|there| there.mrs.iter_mut().chain(&mut there.local)).try_for_each(RawMr::close)?;
        }
        own.local.iter_mut().try_for_each(RawMr::close)?;
        self.by_lkey.remove(&lkey);
        self.registry.drop_region(id);
        Ok(())
    }

    /// No peer is told its keys on further rails any more; gives those that some may have been told.
    pub fn unpublish_rails(&mut self, id: RegionId) -> Option<Arc<Keys>> {
        let rkey = self.registry.get(id).ok()?.own.mrs.first()?.keys().1;
        self.by_rkey.remove(&rkey)
    }

    /// The keys on every rail of the region that a descriptor is of.
    pub fn rail_keys_of_desc(&self, desc: u64) -> Option<&Arc<Keys>> {
        self.by_lkey.get(&local_key(desc)?)
    }

    /// The same by the first rail's local key.
    pub fn rail_keys_by_lkey(&self, lkey: u32) -> Option<&Arc<Keys>> {
        self.by_lkey.get(&lkey)
    }

    /// The same of the region that peers know by this key of the first rail.
    pub fn rail_keys_by_rkey(&self, rkey: u32) -> Option<&Arc<Keys>> {
        self.by_rkey.get(&rkey)
    }

    pub fn explain(&self, id: RegionId, device: &str) -> Result<String> {
        let r = self.registry.get(id)?;
        let rail = |(i, (name, there)): (usize, &(String, Result<RailRegistration>))| match there {
            Ok(_) => format!("  rail {}, {name}: carries it too\n", i + 1),
            Err(e) => format!("  rail {}, {name}: carries nothing of it: {e}\n", i + 1),
        };
        let rails: String = r.own.rails.iter().enumerate().map(rail).collect();
        Ok(format!("{}{}\n{}{rails}", r.headline(&format!(" on {device}")), r.paths.words(), r.own.record.lines()))
    }

    /// The region whose number a descriptor carries.
    fn looked_up(&self, desc: u64) -> Result<&Region> {
        let region = self.registry.at((desc >> NUMBER_SHIFT) as u32).filter(|r| !r.users.is_shut());
        region.ok_or(Error::fixed(errno::EINVAL, "desc: the region is closed"))
    }

    /// The staged region of a descriptor; `None`: it is one of several registrations.
    pub fn staged(&self, desc: u64) -> Result<Option<Arc<Staged>>> {
        Ok(self.looked_up(desc)?.own.staged.clone())
    }

    /// The staged region that a peer's key names.
    pub fn by_key(&self, key: u64) -> Option<Arc<Staged>> {
        self.registry.find(key).filter(|_| is_staged(key))?.own.staged.clone()
    }

    /// Where the bytes behind a descriptor of registered memory lie.
    pub fn site_of(&self, desc: u64) -> Site {
        if desc & DEVICE_DESC == 0 {
            return Site::HOST;
        }
        let key = (desc >> NUMBER_SHIFT) as u32;
        self.registry.iter().find(|r| r.own.mrs.iter().any(|mr| mr.keys().0 == key)).map_or(Site::HOST, Region::site)
    }

    /// Of the pieces whose regions are looked up, those of several registrations get their own keys; one that is staged
    /// makes the operation a staged one.
    #[cold]
    pub fn resolve(&self, local: &[Iov], descs: &[u64], into: &mut [ibv_sge; IOV_LIMIT]) -> Result<BufferKind> {
        let mut here = BufferKind::Host;
        for ((i, v), place) in local.iter().enumerate().filter(|(_, v)| !v.is_empty()).zip(into.iter_mut()) {
            let desc = descs.get(i).copied().unwrap_or(0);
            if !is_looked_up(desc) {
                continue;
            }
            if self.staged(desc)?.is_some() {
                return Ok(BufferKind::Staged);
            }
            *place = self.piece(desc, v)?;
            here = BufferKind::Device;
        }
        Ok(here)
    }

    /// The device's piece that holds `iov`, of a region of several.
    pub fn piece(&self, desc: u64, iov: &Iov) -> Result<ibv_sge> {
        let region = self.looked_up(desc)?;
        let holds = |p: &Iov| iov.addr() >= p.addr() && iov.addr() - p.addr() <= p.len() && iov.len() <= p.len() - (iov.addr() - p.addr());
        match region.pieces().iter().zip(&region.own.mrs).find(|(p, _)| holds(&p.iov)) {
            Some((_, mr)) => Ok(ibv_sge { addr: iov.addr() as u64, length: iov.len() as u32, lkey: mr.keys().0 }),
            None => Err(Error::invalid(format!("iov: {} bytes at {:#x} lie in no single range of the region", iov.len(), iov.addr()))),
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
pub fn local_key(desc: u64) -> Option<u32> {
    on_host(desc & !(DEVICE_DESC | DMABUF | PEER_MEM))
}

/// Whether a descriptor's region is looked up.
pub fn is_looked_up(desc: u64) -> bool {
    desc & LOOKED_UP != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_carries_the_key() {
        // SAFETY: integers, for all of which zero is a valid value.
        let mut sges: [ibv_sge; IOV_LIMIT] = unsafe { std::mem::zeroed() };
        // SAFETY: nobody touches what they name.
        let iov = [(64, 8), (1, 0), (128, 16)].map(|(addr, len)| unsafe { Iov::new(addr, len) });
        let descs = [desc_of(u32::MAX, Paths::NIC, false, false), 0, desc_of(7, Paths::DMABUF, true, false)];
        let (n, here) = pieces(&iov, &descs, false, &mut sges).expect("pieces");
        assert_eq!((n, here), (2, BufferKind::Device));
        assert_eq!((sges[0].lkey, sges[1].lkey, sges[1].length), (u32::MAX, 7, 16));
        assert!(pieces(&iov, &[], false, &mut sges).is_err_and(|e| e.words.contains("desc[0]")));
        assert!(pieces(&iov, &[0x1234; 3], false, &mut sges).is_err());
        assert_eq!(pieces(&iov, &[], true, &mut sges).expect("unnamed"), (2, BufferKind::Host));
        assert_eq!([0, 2].map(|i| (local_key(descs[i]), on_host(descs[i]))), [(Some(u32::MAX), Some(u32::MAX)), (Some(7), None)]);
        let looked_up = [desc_of(7, Paths::NIC, false, true), desc_of(7, Paths::STAGED, true, true)];
        for odd in [0, 1, 0x1234, looked_up[0], looked_up[1], descs[0] | 1 << 63, descs[0] & !SET] {
            assert_eq!((local_key(odd), on_host(odd)), (None, None), "{odd:#x}");
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
        // SAFETY: nobody touches what it names.
        let iov = unsafe { Iov::new(4096, 64) };
        let pieces = vec![region::Piece { iov, id: 0, at: () }].into();
        let attached = Attached {
            location: region::Location { pieces, base: 4096, len: 64, site: Site::HOST, kind: crate::hmem::Kind::Host },
            base: 4096,
            peer_base: 4096,
            mrs: Vec::new(),
            local: None,
            backing: Some(Backing::memory(Site::HOST, &[iov], 4096)),
            path: Paths::STAGED,
            record: Default::default(),
            rails: Vec::new(),
        };
        let mut regions = Regions::new(false).unwrap();
        let id = regions.add(attached, &Attr::plain(Access::REMOTE_READ)).expect("a place");
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
