// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The domain of connectionless endpoints: the domains of all its lanes, keys that are valid over every lane, and memory that messages
//! expose to peers for reading.

use super::region_quota::RegionQuota;
use super::regions::Regions;
use super::registration_cache::{CacheCounts, CacheKey};
use crate::error::{Code, Error, Result, errno};
use crate::hmem::Site;
use crate::mr::registry::{CARD_KEY, CHOSEN_KEY, DEVICE_KEY, full};
use crate::mr::{Access, Attr, DEVICE_DESC, KeySource, Memory, RegionId, Source};
use crate::prov::info::Info;
use crate::prov::op::{IOV_LIMIT, Iov};
use crate::prov::{self, Provider, Reach, flags};
use crate::sync::serial::{Rank, Serial, Threading};
use crate::sys::usercopy::UserCopy;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A provider whose endpoints serve as lanes, and its domain.
pub struct LaneDomain {
    pub provider: &'static dyn Provider,
    pub domain: Arc<dyn prov::Domain>,
    /// The info with which lanes are opened.
    pub info: Info,
}

pub struct Domain {
    pub threading: Threading,
    pub lanes: Vec<LaneDomain>,
    pub regions: Serial<Regions>,
    /// Exposed regions that nobody else closes any more, with the index of the lane. Such regions were busy when their
    /// endpoint closed, or when they left the registration cache.
    orphans: Serial<Vec<(usize, RegionId)>>,
    pub quota: RegionQuota,
    keys: Serial<KeySource>,
    /// Counts that all endpoints share. `grants`: bytes granted beyond the first grants. `ended`: bytes of unexpected
    /// messages whose senders are gone.
    pub grants: Arc<AtomicU64>,
    pub ended: Arc<AtomicU64>,
    /// The program chooses the keys of regions.
    pub user_keys: bool,
    /// Copies within this process by system calls, which report missing pages as an error.
    pub user_copy: Arc<UserCopy>,
}

impl Domain {
    pub fn open(lanes: &[&'static dyn Provider], info: &Info, threading: Threading) -> Result<Domain> {
        let mut open = Vec::new();
        for provider in lanes {
            let of_lane = provider.lane_info(info)?;
            let domain = provider.open_domain(&of_lane, threading)?;
            domain.make_room();
            open.push(LaneDomain { provider: *provider, domain, info: of_lane });
        }
        let quota = RegionQuota::of(open.iter().map(|lane| (lane.provider.reach(), lane.info.mr_cnt)));
        Ok(Domain {
            threading,
            lanes: open,
            quota,
            regions: Serial::new(threading, Rank::ConnectionlessRegions, Regions::default()),
            orphans: Serial::new(threading, Rank::Leaf, Vec::new()),
            keys: Serial::new(threading, Rank::Leaf, KeySource::new()?),
            grants: Arc::default(),
            ended: Arc::default(),
            user_keys: info.mr_mode & flags::MR_MODE_PROV_KEY == 0,
            user_copy: Arc::new(UserCopy::new()?),
        })
    }

    /// True if some lane lets the target's process carry out a part of large copies.
    pub fn shares_copies(&self) -> bool {
        self.lanes.iter().any(|lane| lane.provider.reach() == Reach::Host)
    }

    /// Address of the device that one of the lanes has. The port in the address is 0, which stands for any port.
    pub fn device_address(&self) -> Option<SocketAddr> {
        let devices = self.lanes.iter().filter(|lane| lane.provider.reach() == Reach::Devices);
        devices.filter_map(|lane| lane.info.src_addr.as_deref()?.split_once("://")?.1.parse().ok()).next()
    }

    /// Draws a random number that nobody can guess. The number is never 0.
    pub fn draw(&self) -> u64 {
        self.keys.lock().draw()
    }

    /// Draws a key. As a lane's own key does, the key tells peers whether it names device memory, and whether only the
    /// card carries out atomics on the region.
    pub fn draw_key(&self, on_device: bool, access: Access) -> u64 {
        let (device, card) = (if on_device { DEVICE_KEY } else { 0 }, if access.contains(Access::ATOMIC) { CARD_KEY } else { 0 });
        self.draw() & !(DEVICE_KEY | CARD_KEY) | CHOSEN_KEY | device | card
    }

    /// True if a peer's key says that the card alone carries out atomics on the region. A key that a program chose says
    /// nothing.
    pub fn is_card_key(&self, key: u64) -> bool {
        const MARKS: u64 = CHOSEN_KEY | CARD_KEY;
        key & MARKS == MARKS && !self.user_keys
    }

    /// Location of the local memory that `desc` describes.
    pub fn site(&self, desc: u64) -> Result<Site> {
        if desc & DEVICE_DESC == 0 { Ok(Site::HOST) } else { self.regions.lock().named(desc).map(|r| r.local.site()) }
    }

    /// Translates the program's descriptors to the descriptors of one lane. A descriptor of host memory only speeds
    /// things up, so a descriptor of host memory that names no region becomes 0.
    pub fn descs_of(&self, lane: usize, descs: &[u64]) -> Result<([u64; IOV_LIMIT], usize)> {
        let mut out = [0; IOV_LIMIT];
        if descs.iter().any(|d| *d != 0) {
            let regions = self.regions.lock();
            for (to, desc) in out.iter_mut().zip(descs).filter(|(_, desc)| **desc != 0) {
                *to = match regions.named(*desc) {
                    Ok(region) => match region.ids.get(lane).copied().flatten() {
                        Some(id) => id.desc,
                        // The lane does not reach this device, and the CPU cannot copy the memory in its place.
                        None if !region.local.site().is_host() => return Err(unreachable(self.lanes.get(lane))),
                        None => 0,
                    },
                    Err(_) if *desc & DEVICE_DESC == 0 => 0,
                    Err(e) => return Err(e),
                };
            }
        }
        Ok((out, descs.len().min(IOV_LIMIT)))
    }

    /// Address and key by which the peer of a lane can read a buffer in one of the program's regions. `None` if peers may not read that
    /// region.
    pub fn remote_name(&self, lane: usize, desc: u64, iov: Iov) -> Result<Option<(u64, u64)>> {
        let regions = self.regions.lock();
        let region = regions.named(desc)?;
        let within = |skip: &usize| skip.checked_add(iov.len()).is_some_and(|end| end as u64 <= region.local.location.len);
        match iov.addr().checked_sub(region.start).filter(within) {
            Some(_) if !region.readable => Ok(None),
            Some(skip) => {
                let (Some(of), Some(id)) = (self.lanes.get(lane), region.ids.get(lane).copied().flatten()) else { return Ok(None) };
                let named = of.domain.message_name(id, iov)?;
                Ok(Some(named.unwrap_or((region.local.base.wrapping_add(skip as u64), region.local.key))))
            }
            None if region.readable => Err(Error::invalid("desc: the buffer does not lie in its region")),
            None => Ok(None),
        }
    }

    /// Fails if the program has as many regions as it may.
    pub fn check_quota(&self) -> Result<()> {
        let regions = self.regions.lock();
        let (open, most) = (regions.all.len() - regions.free.len(), self.quota.most_program());
        if open < most { Ok(()) } else { Err(full(most)) }
    }

    /// Exposes memory to the peer of one lane for reading, until the region is closed. Returns the region, and the address and key that the
    /// peer uses. The caller has checked `quota`.
    pub fn expose(&self, lane: usize, site: Site, iov: Iov, desc: u64) -> Result<(RegionId, u64, u64)> {
        let at = lane;
        let Some(lane) = self.lanes.get(at) else { return Err(Error::fixed(errno::EINVAL, "no such lane")) };
        let fast = if site.is_host() { lane.domain.expose(iov) } else { None };
        let id = match fast {
            Some(id) => id,
            None if !site.is_host() && lane.provider.reach() == Reach::Devices => self.expose_device(at, site, iov, desc)?,
            None => register(&*lane.domain, site, iov, self.draw_key(!site.is_host(), Access::REMOTE_READ))?,
        };
        self.quota.add(1);
        let base = if lane.info.mr_mode & flags::MR_MODE_VIRT_ADDR != 0 { iov.addr() as u64 } else { 0 };
        let named = lane.domain.message_name(id, iov).inspect_err(|_| self.adopt([(at, id)]))?;
        let (addr, key) = named.unwrap_or((base, id.key));
        Ok((id, addr, key))
    }

    /// Exposes device memory. The card may still have it registered from an earlier message.
    #[cold]
    fn expose_device(&self, at: usize, site: Site, iov: Iov, desc: u64) -> Result<RegionId> {
        let Some(lane) = self.lanes.get(at) else { return Err(Error::fixed(errno::EINVAL, "no such lane")) };
        let owner = self.regions.lock().named(desc)?.generation;
        let cache_key = CacheKey::of(at, site, iov, owner);
        if let Some(known) = cache_key.as_ref().and_then(|cache_key| self.regions.lock().cache.take(cache_key)) {
            return Ok(known);
        }
        let id = register(&*lane.domain, site, iov, self.draw_key(true, Access::REMOTE_READ))?;
        if let Some(cache_key) = cache_key {
            let mut regions = self.regions.lock();
            // Another thread may have closed the program's region meanwhile. Then nothing would remove the registration
            // from the cache, so it is not cached.
            let gone = if regions.named(desc).is_ok() { regions.cache.keep(cache_key, id) } else { Vec::new() };
            drop(regions);
            self.close_evicted(gone);
        }
        Ok(id)
    }

    fn close_evicted(&self, gone: Vec<(usize, RegionId)>) {
        if !gone.is_empty() {
            self.quota.add(gone.len());
            self.adopt(gone);
            self.close_orphans();
        }
    }

    /// Closes the cached registrations that belong to a region of the program, because that region closes.
    pub fn close_cached(&self, owner: u64) -> Result<()> {
        let kept = self.regions.lock().cache.close_owner(owner);
        let mut all = Ok(());
        for (at, id) in kept {
            match self.lanes.get(at).map_or(Ok(()), |lane| lane.domain.try_close_region(id)) {
                Ok(()) => self.regions.lock().cache.forget(at, id),
                e => all = all.and(e),
            }
        }
        all
    }

    pub fn cached(&self) -> CacheCounts {
        self.regions.lock().cache.counts
    }

    /// True if an exposed region can be closed while the peer may be reading it, so that only that read fails.
    pub fn can_revoke(&self, lane: usize) -> bool {
        self.lanes.get(lane).is_none_or(|lane| lane.domain.can_revoke())
    }

    /// Tries to close an exposed region. True if the region is busy because the peer may be reading; the caller has to
    /// try again.
    pub fn close_is_busy(&self, (lane, id): (usize, RegionId)) -> bool {
        if id.desc & DEVICE_DESC != 0 {
            self.regions.lock().cache.forget(lane, id);
        }
        self.closing_is_busy(lane, |domain| domain.try_close_region(id))
    }

    /// Tries to close an exposed region with `close`, and counts the region as closed. True if the region is busy.
    fn closing_is_busy(&self, lane: usize, close: impl FnOnce(&dyn prov::Domain) -> Result<()>) -> bool {
        let busy = self.lanes.get(lane).is_some_and(|lane| close(&*lane.domain).is_err_and(|e| e.errno == errno::EBUSY));
        if !busy {
            self.quota.give_back();
        }
        busy
    }

    /// Gives back an exposed region that the peer has finished with or was never told of. A cached registration stays
    /// open; any other is closed. True if the region is busy.
    pub fn release_is_busy(&self, (lane, id): (usize, RegionId)) -> bool {
        if id.desc & DEVICE_DESC != 0 && self.regions.lock().cache.put_back(lane, id) {
            self.quota.give_back();
            return false;
        }
        self.closing_is_busy(lane, |domain| domain.close_exposed(id))
    }

    /// Takes over exposed regions that nobody else will close, for example those that a closing endpoint could not close.
    pub fn adopt(&self, regions: impl IntoIterator<Item = (usize, RegionId)>) {
        self.orphans.lock().extend(regions);
    }

    /// Tries again to close the regions that `adopt` took over.
    pub fn close_orphans(&self) {
        let orphans = std::mem::take(&mut *self.orphans.lock());
        let busy: Vec<_> = orphans.into_iter().filter(|region| self.close_is_busy(*region)).collect();
        self.adopt(busy);
    }
}

/// Registers memory for a peer to read.
fn register(domain: &dyn prov::Domain, site: Site, iov: Iov, requested_key: u64) -> Result<RegionId> {
    let source = Source::Iov(std::slice::from_ref(&iov));
    let memory = if site.is_host() { Memory::Host } else { Memory::Device(site) };
    domain.register(&Attr { source, memory, requested_key, ..Attr::plain(Access::REMOTE_READ) })
}

/// The error for device memory that is not registered with the lane's device.
#[cold]
fn unreachable(lane: Option<&LaneDomain>) -> Error {
    let lane = lane.map_or("?", |lane| lane.provider.name());
    Error::coded(errno::EOPNOTSUPP, Code::Path, format!("desc: this memory is not registered over {lane}, by which the peer is reached"))
}
