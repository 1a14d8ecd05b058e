// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The regions of a domain with the device's keys, and the pieces of operations that lie in these regions.
//!
//! A descriptor of plain memory contains the device's local key, so an operation looks nothing up, and the device
//! refuses a wrong key. The descriptor of a staged region, or of a region with several registrations, contains a number
//! by which the region is looked up.

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

/// The reachability of the bytes behind a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum BufferKind {
    /// The CPU and the device reach the bytes.
    Host,
    /// The device reaches the bytes; the CPU must not touch them.
    Device,
    /// The device does not reach the bytes. From `pieces`, this value also means that a region has to be looked up;
    /// `Regions::resolve` then gives the final value.
    Staged,
}

/// The bits of a descriptor. `SET` makes it different from 0. Bit 0 (`DEVICE_DESC`) means device memory, and
/// `LOOKED_UP` a region that is looked up. One of the next bits is set if the path is not nic. The local key or the
/// number of the region follows from bit 8 on.
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

/// The path to the memory of a descriptor, as bits for `path_of`: all 0 for pinned host pages.
#[inline(always)]
pub fn path_bits(desc: u64) -> u8 {
    desc as u8
}

/// The paths to all local pieces of an operation, as bits for `path_of`.
pub fn all_path_bits(local: &[Iov], descs: &[u64]) -> u8 {
    local.iter().zip(descs).filter(|(v, _)| !v.is_empty()).fold(0, |all, (_, desc)| all | path_bits(*desc))
}

/// The bits for `path_of` of an operation that uses a bounce buffer.
pub const BOUNCED: u8 = STAGED as u8;

/// The path of an operation. If its pieces have different paths, the path of the piece that is hardest to reach counts.
pub fn path_of(how: u8) -> Paths {
    let how = u64::from(how);
    match () {
        () if how & STAGED != 0 => Paths::STAGED,
        () if how & PEER_MEM != 0 => Paths::PEER_MEM,
        () if how & DMABUF != 0 => Paths::DMABUF,
        () => Paths::NIC,
    }
}

/// The path to local memory, for queries. The descriptor 0 means host memory.
pub fn local_path(desc: u64) -> Result<Paths> {
    match desc {
        0 => Ok(Paths::NIC),
        _ if desc & SET == 0 => Err(no_desc(0, desc)),
        _ => Ok(path_of(path_bits(desc))),
    }
}

/// Turns local pieces into scatter/gather entries; returns their number and the reachability of the memory. `unnamed`:
/// a piece needs no descriptor, because the caller copies or registers it.
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
        _ => "not the descriptor of an open verbs region",
    };
    Error::invalid(format!("desc[{i}]: {words}"))
}

/// Memory that was made reachable, by registrations or by staging.
pub struct Attached {
    /// The ranges as addresses of this process.
    pub location: Location<()>,
    /// The device's address of the first byte.
    pub base: u64,
    /// The address by which peers name the first byte.
    pub peer_base: u64,
    /// The device's registration of each piece; empty for staged memory.
    pub mrs: Vec<RawMr>,
    /// A second registration under this process's addresses, if the first one has other addresses on the device.
    pub local: Option<RawMr>,
    /// The access of this process to the bytes; present if the device cannot reach the bytes, or reaches them through
    /// the mapping of a file.
    pub backing: Option<Backing>,
    pub path: Paths,
    pub record: RegistrationRecord,
    /// The registrations with the devices of further rails, by the names of their ports.
    pub rails: Vec<(String, Result<RailRegistration>)>,
}

/// Memory as registered with the device of a further rail.
pub struct RailRegistration {
    /// The registration of each piece, as in [`Attached`].
    pub mrs: Vec<RawMr>,
    pub local: Option<RawMr>,
    pub _backing: Option<Backing>,
}

/// A region with the device's registrations of its pieces.
pub type Region = region::Region<(), VerbsRegion>;

/// The part of a region that only verbs needs.
pub struct VerbsRegion {
    /// The device's registration of each piece; empty for staged memory.
    mrs: Vec<RawMr>,
    /// A second registration under this process's addresses, if the first one has other addresses on the device.
    local: Option<RawMr>,
    /// The memory of a staged region. A copy in progress holds a reference.
    staged: Option<Arc<Staged>>,
    /// The CPU's mapping of a file that the device reaches by that mapping.
    _backing: Option<Backing>,
    record: RegistrationRecord,
    rails: Vec<(String, Result<RailRegistration>)>,
    /// The offset that turns an address of the peers into the device's address.
    shift: u64,
    /// The region is a file, so its addresses are no addresses of this process.
    is_file: bool,
    /// A peer has asked for the meaning of the key.
    shared: AtomicBool,
    /// Counts the peers' writes.
    counter: Option<Arc<Counter>>,
}

impl VerbsRegion {
    /// The device's key, and the offset that turns an address of the peers into the device's address. `None`: peers
    /// cannot reach the region through the device.
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

    pub fn is_file(&self) -> bool {
        self.is_file
    }
}

/// A staged region.
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
    /// The caller chooses the keys of regions.
    chosen: bool,
    /// In a domain with rails: the keys of a region on all rails, by the local key on the first rail.
    by_lkey: HashMap<u32, Arc<Keys>>,
    /// The same keys, by the key on the first rail that peers know.
    by_rkey: HashMap<u32, Arc<Keys>>,
}

impl Attached {
    /// The keys on all rails that can carry the region; `None` without rails.
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

/// True if a key names a staged region. The keys of staged regions are above all keys of a device.
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
            // A region of several registrations is for local use only; its key opens nothing.
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
        // From now on a peer that asks about the key is told to report its writes.
        region.rma_event = true;
        region.own.counter = Some(counter);
        Ok(())
    }

    /// First step of closing: no copy begins from now on. Returns true if no copy is in progress. A copy in progress
    /// has entered the region or holds the staged memory, which the region itself holds once.
    pub fn shut(&mut self, id: RegionId) -> Result<bool> {
        let region = self.registry.shut(id)?;
        Ok(region.users.is_empty() && region.own.staged.as_ref().is_none_or(|s| Arc::strong_count(s) == 1))
    }

    /// Last step of closing: the device loses its access. On failure the region stays.
    pub fn detach(&mut self, id: RegionId) -> Result<()> {
        let own = &mut self.registry.get_mut(id)?.own;
        let lkey = own.local.as_ref().or(own.mrs.first()).map_or(0, |mr| mr.keys().0);
        // The registration that peers know is closed first.
        own.mrs.iter_mut().try_for_each(RawMr::close)?;
        for (_, there) in &mut own.rails {
            there.iter_mut().flat_map(|there| there.mrs.iter_mut().chain(&mut there.local)).try_for_each(RawMr::close)?;
        }
        own.local.iter_mut().try_for_each(RawMr::close)?;
        self.by_lkey.remove(&lkey);
        self.registry.drop_region(id);
        Ok(())
    }

    /// Stops telling peers the region's keys on further rails. Returns these keys if some peer may have been told.
    pub fn unpublish_rails(&mut self, id: RegionId) -> Option<Arc<Keys>> {
        let rkey = self.registry.get(id).ok()?.own.mrs.first()?.keys().1;
        self.by_rkey.remove(&rkey)
    }

    /// The keys on all rails of the region with this descriptor.
    pub fn rail_keys_of_desc(&self, desc: u64) -> Option<&Arc<Keys>> {
        self.by_lkey.get(&local_key(desc)?)
    }

    /// The keys on all rails of the region with this local key on the first rail.
    pub fn rail_keys_by_lkey(&self, lkey: u32) -> Option<&Arc<Keys>> {
        self.by_lkey.get(&lkey)
    }

    /// The keys on all rails of the region that peers know by this key of the first rail.
    pub fn rail_keys_by_rkey(&self, rkey: u32) -> Option<&Arc<Keys>> {
        self.by_rkey.get(&rkey)
    }

    pub fn explain(&self, id: RegionId, device: &str) -> Result<String> {
        let r = self.registry.get(id)?;
        let rail = |(i, (name, there)): (usize, &(String, Result<RailRegistration>))| match there {
            Ok(_) => format!("  rail {}, {name}: registered there too\n", i + 1),
            Err(e) => format!("  rail {}, {name}: not registered, so not used for this region: {e}\n", i + 1),
        };
        let rails: String = r.own.rails.iter().enumerate().map(rail).collect();
        Ok(format!("{}{}\n{}{rails}", r.headline(&format!(" on {device}")), r.paths.words(), r.own.record.lines()))
    }

    /// The open region whose number is in the descriptor.
    fn looked_up(&self, desc: u64) -> Result<&Region> {
        let region = self.registry.at((desc >> NUMBER_SHIFT) as u32).filter(|r| !r.users.is_shut());
        region.ok_or(Error::fixed(errno::EINVAL, "desc: the region is closed"))
    }

    /// The staged region of a descriptor. `None`: the region has several registrations instead.
    pub fn staged(&self, desc: u64) -> Result<Option<Arc<Staged>>> {
        Ok(self.looked_up(desc)?.own.staged.clone())
    }

    /// The staged region that a peer's key names.
    pub fn by_key(&self, key: u64) -> Option<Arc<Staged>> {
        self.registry.find(key).filter(|_| is_staged(key))?.own.staged.clone()
    }

    /// The site (host or accelerator) of the bytes behind a descriptor of registered memory.
    pub fn site_of(&self, desc: u64) -> Site {
        if desc & DEVICE_DESC == 0 {
            return Site::HOST;
        }
        let key = (desc >> NUMBER_SHIFT) as u32;
        self.registry.iter().find(|r| r.own.mrs.iter().any(|mr| mr.keys().0 == key)).map_or(Site::HOST, Region::site)
    }

    /// Handles pieces whose regions are looked up. A piece of a region with several registrations gets its
    /// scatter/gather entry here. A piece of a staged region makes the whole operation staged.
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

    /// The scatter/gather entry of `iov` in a region with several registrations.
    pub fn piece(&self, desc: u64, iov: &Iov) -> Result<ibv_sge> {
        let region = self.looked_up(desc)?;
        let holds = |p: &Iov| iov.addr() >= p.addr() && iov.addr() - p.addr() <= p.len() && iov.len() <= p.len() - (iov.addr() - p.addr());
        match region.pieces().iter().zip(&region.own.mrs).find(|(p, _)| holds(&p.iov)) {
            Some((_, mr)) => Ok(ibv_sge { addr: iov.addr() as u64, length: iov.len() as u32, lkey: mr.keys().0 }),
            None => {
                Err(Error::invalid(format!("iov: {} bytes at {:#x} are not within one range of the region of desc", iov.len(), iov.addr())))
            }
        }
    }
}

/// The device's local key in a descriptor of pinned host pages; `None` for other descriptors.
#[inline(always)]
pub fn on_host(desc: u64) -> Option<u32> {
    const HOST: u64 = SET.rotate_right(NUMBER_SHIFT) >> 32;
    // The key is in the lower half now, everything else in the upper half.
    let turned = desc.rotate_right(NUMBER_SHIFT);
    (turned >> 32 == HOST).then_some(turned as u32)
}

/// The device's local key in a descriptor of any memory that the device reaches.
#[inline(always)]
pub fn local_key(desc: u64) -> Option<u32> {
    on_host(desc & !(DEVICE_DESC | DMABUF | PEER_MEM))
}

/// True if the region of a descriptor has to be looked up.
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
        // SAFETY: no code follows the addresses.
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
        // The path of an operation is the path of its hardest piece. A piece without bytes does not count.
        let peer = desc_of(7, Paths::PEER_MEM, true, false);
        let paths = [descs[0], descs[2], peer, looked_up[0], looked_up[1]].map(|d| local_path(d).expect("a descriptor"));
        assert_eq!(paths, [Paths::NIC, Paths::DMABUF, Paths::PEER_MEM, Paths::NIC, Paths::STAGED]);
        assert_eq!(path_of(all_path_bits(&iov, &[descs[0], looked_up[1], peer])), Paths::PEER_MEM);
        assert_eq!(path_of(all_path_bits(&iov, &[peer, 0, looked_up[1]])), Paths::STAGED);
        assert!(local_path(0).is_ok_and(|p| p == Paths::NIC) && local_path(0x1234).is_err());
    }

    #[test]
    fn a_region_is_not_shut_as_long_as_a_copy_runs_however_often_that_is_asked() {
        // SAFETY: no code follows the address.
        let iov = unsafe { Iov::new(4096, 64) };
        let pieces = vec![region::Piece { iov, id: 0, at: () }].into();
        let attached = Attached {
            location: region::Location { pieces, base: 4096, len: 64, site: Site::HOST, kind: crate::hmem::MemoryKind::Host },
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
