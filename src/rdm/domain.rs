// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The calls of `fabric` on a domain. A region is registered with the domains of all lanes under one key, and closed in
//! all of them.

use super::endpoint::Endpoint;
use crate::config;
use crate::error::{Error, Result, errno};
use crate::mr::key::{INDEX_BITS, desc_of};
use crate::mr::location;
use crate::mr::region::{Location, Pieces};
use crate::mr::registry::wait_until;
use crate::mr::{Access, Attr, Facts, RegionId, Source};
use crate::prov::bind::RailList;
use crate::prov::info::{EP_RDM, Info};
use crate::prov::queue::Counter;
use crate::prov::{self, Reach};
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::memory::regions::{LocalRegion, Region, Regions};
use std::sync::Arc;

impl Domain {
    /// Closes a region, in each lane with `close`. `limit_ms`: time to wait for copies that endpoints of this process are
    /// making.
    fn close_by(&self, id: RegionId, limit_ms: u64, close: impl Fn(&dyn prov::Domain, RegionId) -> Result<()>) -> Result<()> {
        let (ids, local) = {
            let mut regions = self.regions.lock();
            let (ids, local) = regions.get(id).map(|r| (r.ids.clone(), r.local.clone()))?;
            if regions.by_key.get(&local.key) == Some(&id.index()) {
                regions.by_key.remove(&local.key);
            }
            (ids, local)
        };
        local.users.shut();
        // Every lane is asked to close the region before an error is returned, so that all lanes refuse new accesses. After
        // one lane was busy, the lanes behind it do not wait for their peers.
        let mut shut = if local.site().is_host() { Ok(()) } else { self.close_cached(id.generation) };
        for (at, lane) in self.lanes.iter().enumerate() {
            if let Some(lane_region) = ids.get(at).copied().flatten() {
                match if shut.is_ok() { close(&*lane.domain, lane_region) } else { lane.domain.try_close_region(lane_region) } {
                    Ok(()) => {
                        if let Some(place) = self.regions.lock().get(id)?.ids.get_mut(at) {
                            *place = None;
                        }
                    }
                    e => shut = shut.and(e),
                }
            }
        }
        shut?;
        wait_until(limit_ms, "an endpoint of this process still copies from or to the region; call mr_close again", || {
            Ok(local.users.is_empty())
        })?;
        let mut regions = self.regions.lock();
        if let Some(place) = regions.all.get_mut(id.index() as usize) {
            *place = None;
            regions.free.push(id.index());
        }
        Ok(())
    }
}

impl prov::Domain for Domain {
    fn in_use(&self) -> (usize, usize) {
        self.close_orphans();
        let of_lanes = self.lanes.iter().map(|lane| lane.domain.in_use()).find(|held| *held != (0, 0));
        of_lanes.unwrap_or_else(|| (self.regions.lock().all.iter().flatten().count(), 0))
    }

    fn open_endpoint(self: Arc<Self>, info: &Info, context: usize) -> Result<Box<dyn prov::Endpoint>> {
        Ok(Box::new(if info.ep_type == EP_RDM { Endpoint::open(self, info)? } else { Endpoint::open_connected(self, info, context)? }))
    }

    fn polls_memory(&self) -> bool {
        self.lanes.iter().any(|lane| lane.domain.polls_memory())
    }

    fn tcp_streams(&self) -> Option<(u32, u32)> {
        self.lanes.iter().find_map(|lane| lane.domain.tcp_streams())
    }

    fn rails(&self, words: Option<&str>) -> Result<RailList> {
        // The first lane whose provider has rails answers.
        let has_none = |answer: &Result<RailList>| answer.as_ref().is_err_and(|e| e.errno == errno::ENOPROTOOPT);
        let answers: Vec<_> = self.lanes.iter().map(|lane| lane.domain.rails(words)).collect();
        let which = answers.iter().position(|answer| !has_none(answer)).unwrap_or(0);
        answers.into_iter().nth(which).unwrap_or_else(|| Err(Error::fixed(errno::ENODEV, "no lane")))
    }

    fn check_card_atomics(&self) -> Result<()> {
        match self.lanes.iter().find(|lane| lane.provider.reach() == Reach::Devices) {
            Some(_) if self.user_keys => Err(Error::fixed(
                errno::EOPNOTSUPP,
                "access: GDRFAB_ATOMIC: peers learn from a key of the library's choice (GDRFAB_MR_PROV_KEY) that atomics are the card's",
            )),
            Some(cards) => cards.domain.check_card_atomics(),
            None => self.lanes.first().map_or(Ok(()), |lane| lane.domain.check_card_atomics()),
        }
    }

    fn register(&self, attr: &Attr<'_>) -> Result<RegionId> {
        self.check_quota()?;
        let key = match &attr.source {
            _ if self.user_keys => attr.requested_key,
            Source::Iov(iovs) => self.draw_key(location::is_on_device(attr.memory, location::extent(iovs)?.0), attr.access),
            Source::File { .. } => self.draw_key(false, attr.access),
        };
        let mut ids: Vec<Option<RegionId>> = Vec::new();
        for lane in &self.lanes {
            match lane.domain.register(&Attr { requested_key: key, ..*attr }) {
                Ok(id) => ids.push(Some(id)),
                // The device does not reach this memory. Another lane may reach it, but nothing can replace the card for
                // atomics.
                Err(e)
                    if lane.provider.reach() == Reach::Devices
                        && self.lanes.len() > 1
                        && e.errno == errno::EOPNOTSUPP
                        && !attr.access.contains(Access::ATOMIC) =>
                {
                    crate::log!(Info, "not registered over {}: {e}", lane.provider.name());
                    ids.push(None);
                }
                Err(e) => {
                    for (lane, id) in self.lanes.iter().zip(&ids) {
                        id.and_then(|id| lane.domain.close_region(id).err()).iter().for_each(|e| crate::log!(Warn, "{e}"));
                    }
                    return Err(e.context(lane.provider.name()));
                }
            }
        }
        let facts = match (self.lanes.first(), ids.first().copied().flatten()) {
            (Some(lane), Some(id)) => lane.domain.facts(id)?,
            _ => return Err(Error::fixed(errno::ENODEV, "domain: it has no lanes")),
        };
        let start = match &attr.source {
            Source::Iov(iov) => iov.first().map_or(0, |v| v.addr()),
            Source::File { .. } => facts.base as usize,
        };
        let mut regions = self.regions.lock();
        let Regions { all, free, count, by_key, .. } = &mut *regions;
        *count += 1;
        let generation = *count << INDEX_BITS;
        let readable = attr.access.contains(Access::REMOTE_READ) && matches!(attr.source, Source::Iov([_]) | Source::File { .. });
        let Facts { site, kind, base, len, paths, .. } = facts;
        let pieces = Pieces::of(if let Source::Iov(iovs) = attr.source { iovs } else { &[] }, |_| ());
        let local = Arc::new(LocalRegion::new(attr, key, base, paths, Location { pieces, base, len, site, kind }, ()));
        let region = Some(Region { generation, ids, start, local, counter: None, readable });
        let index = match free.pop() {
            Some(index) => index,
            None => {
                all.push(None);
                (all.len() - 1) as u32
            }
        };
        if let Some(place) = all.get_mut(index as usize) {
            *place = region;
            by_key.insert(key, index);
        }
        Ok(RegionId::new(index, generation, key, desc_of(index, generation, !site.is_host())))
    }

    fn close_region(&self, id: RegionId) -> Result<()> {
        self.close_by(id, config::get().close_ms, |domain, id| domain.close_region(id))
    }

    fn try_close_region(&self, id: RegionId) -> Result<()> {
        self.close_by(id, 0, |domain, id| domain.try_close_region(id))
    }

    fn facts(&self, id: RegionId) -> Result<Facts> {
        let mut all: Option<Facts> = None;
        let ids = self.regions.lock().get(id)?.ids.clone();
        for (lane, lane_region) in self.lanes.iter().zip(ids) {
            let facts = lane.domain.facts(lane_region.ok_or_else(|| Error::invalid("mr: it is being closed"))?)?;
            match &mut all {
                Some(all) => all.paths |= facts.paths,
                None => all = Some(facts),
            }
        }
        all.ok_or_else(|| Error::fixed(errno::ENODEV, "domain: it has no lanes"))
    }

    fn explain_region(&self, id: RegionId) -> Result<String> {
        let ids = self.regions.lock().get(id)?.ids.clone();
        let mut text = String::new();
        for (lane, lane_region) in self.lanes.iter().zip(ids) {
            let lane_region = lane_region.ok_or_else(|| Error::invalid("mr: it is being closed"))?;
            text += &format!("over {}:\n{}\n", lane.provider.name(), lane.domain.explain_region(lane_region)?.trim_end());
        }
        Ok(text)
    }

    fn bind_counter(&self, id: RegionId, counter: Arc<Counter>) -> Result<()> {
        let ids = self.regions.lock().get(id)?.ids.clone();
        for (lane, lane_region) in self.lanes.iter().zip(ids) {
            if let Some(lane_region) = lane_region {
                lane.domain.bind_counter(lane_region, counter.clone())?;
            }
        }
        self.regions.lock().get(id)?.counter = Some(counter);
        Ok(())
    }

    fn regions_covering(&self, addr: u64, len: u64) -> usize {
        // A region that all lanes have closed still counts while an endpoint of this process copies there.
        let local = self.regions.lock().all.iter().flatten().filter(|r| r.local.touches(addr, len)).count();
        self.lanes.first().map_or(0, |lane| lane.domain.regions_covering(addr, len)).max(local)
    }

    fn allocate(&self, len: usize) -> Result<usize> {
        match self.lanes.first() {
            Some(lane) => lane.domain.allocate(len),
            None => Err(Error::fixed(errno::ENODEV, "domain: it has no lanes")),
        }
    }

    fn free(&self, addr: usize) -> Result<()> {
        // A region that the lane has closed, but in which an endpoint of this process still copies, may lie in this memory.
        // Only the lane knows the length of the memory, and the lane has no record of the region any more. So any such
        // region prevents freeing.
        if self.regions.lock().all.iter().flatten().any(|r| r.local.users.is_shut() && !r.local.users.is_empty()) {
            return Err(Error::fixed(
                errno::EBUSY,
                "addr: an endpoint of this process copies in a region that is being closed; close that first",
            ));
        }
        match self.lanes.first() {
            Some(lane) => lane.domain.free(addr),
            None => Err(Error::fixed(errno::ENODEV, "domain: it has no lanes")),
        }
    }
}
