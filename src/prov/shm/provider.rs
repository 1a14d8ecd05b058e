// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Implements the traits of the layer above for the provider and for a domain: registration, closing, allocation, and
//! opening of endpoints.

use super::domain::Domain;
use super::endpoint::Endpoint;
use crate::config;
use crate::error::{Error, Result, errno};
use crate::mr::registry::wait_until;
use crate::mr::{Access, Attr, Facts, Iov, RegionId};
use crate::prov::info::{Ask, Info};
use crate::prov::queue::Counter;
use crate::prov::shm::connect::info;
use crate::prov::shm::connect::pep::Listener;
use crate::prov::shm::memory::locate::Probe;
use crate::prov::shm::peer::link::Link;
use crate::prov::shm::peer::quiesce;
use crate::prov::shm::wire::address::{self, check_address};
use crate::prov::{self, Offer, Provider, Reach, flags};
use crate::sync::gate::{Fences, barrier};
use crate::sync::serial::Threading;
use std::net::SocketAddr;
use std::sync::Arc;

/// The provider.
pub struct Shm;

impl Provider for Shm {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn offer(&self) -> Offer {
        info::offer()
    }

    fn reach(&self) -> Reach {
        Reach::Host
    }

    /// A name made of an IP address and a port is as unique in a network namespace as the port is. In a socket
    /// directory that several network namespaces share, two processes may want the same name; then the second process
    /// finds the name taken.
    fn lane_address(&self, _info: &Info, at: SocketAddr) -> String {
        address::of_lane(at)
    }

    /// The single candidate: shm on this host.
    fn candidates(&self, ask: &Ask<'_>) -> Vec<Info> {
        let mut info = info::info();
        if let Err(e) = info::answer(&mut info, ask) {
            info.reason = Some(e);
        }
        vec![info]
    }

    fn check_address(&self, address: &str) -> Result<()> {
        check_address(address).map(|_| ())
    }

    fn open_domain(&self, info: &Info, threading: Threading) -> Result<Arc<dyn prov::Domain>> {
        let (virt_addr, prov_key) = (info.mr_mode & flags::MR_MODE_VIRT_ADDR != 0, info.mr_mode & flags::MR_MODE_PROV_KEY != 0);
        Ok(Arc::new(Domain::open(threading, virt_addr, prov_key)?))
    }

    fn open_listener(&self, info: &Info) -> Result<Box<dyn prov::Listener>> {
        Ok(Box::new(Listener::open(info.src_addr.as_deref())?))
    }
}

impl Domain {
    /// Closes a region that peers may have used. At the first attempt `who` finds the peers that may be inside; later
    /// attempts wait for the rest of these peers.
    #[inline(never)]
    fn close_used_region(&self, id: RegionId, limit_ms: u64, who: fn(&Domain, RegionId) -> Result<quiesce::Initiators>) -> Result<()> {
        self.regions.lock().shut(&self.table, id)?;
        let place = (id.index(), id.generation);
        let known = self.links.lock().closing.remove(&place);
        let mut inside = match known {
            Some(inside) => inside,
            None => who(self, id)?,
        };
        let busy = "another thread of this process still copies for a peer; call gdrfab_mr_close() again";
        let over =
            quiesce::wait_for(&mut inside, limit_ms).and_then(|()| wait_until(limit_ms, busy, || Ok(self.regions.lock().is_quiet(id))));
        if over.is_err() {
            self.links.lock().closing.insert(place, inside);
            return over;
        }
        let mut regions = self.regions.lock();
        let gone = (regions.forget(&self.table, id), std::mem::take(&mut regions.files.gone));
        // The drop of pins and mappings may call a driver, so the lock is released first.
        drop(regions);
        drop(gone);
        Ok(())
    }

    /// The peers that may be inside a region whose gate was just closed.
    fn initiators(&self, id: RegionId) -> Result<quiesce::Initiators> {
        let mut used: Vec<Arc<Link>> = Vec::new();
        {
            let mut links = self.links.lock();
            links.sweep_late();
            // The store to the gate and the load of the filter are both sequentially consistent. So if this look does
            // not see a peer's bit, that peer sees the closed gate when it looks the region up.
            used.extend(links.all.iter().filter(|l| quiesce::used(l, id.index())).cloned());
        }
        if used.is_empty() {
            return Ok(Vec::new());
        }
        let fences = if used.iter().any(|l| l.fences == Fences::Remote) { Fences::Remote } else { Fences::Full };
        // Without the barrier a peer's mark may not be visible yet. Then the peers inside are unknown, and the region
        // is not closed.
        barrier(fences).map_err(|e| {
            Error::new(
                errno::EBUSY,
                format!("mr: cannot determine whether a peer still copies from or to this region; call gdrfab_mr_close() again: {e}"),
            )
        })?;
        Ok(quiesce::initiators(&used, id.index()))
    }

    #[inline]
    fn close_within(&self, id: RegionId, limit_ms: u64) -> Result<()> {
        {
            let mut regions = self.regions.lock();
            if self.links.lock().all.is_empty() && regions.close_fast(&self.table, id) {
                return Ok(());
            }
        }
        self.close_used_region(id, limit_ms, Domain::initiators)
    }
}

impl prov::Domain for Domain {
    fn open_endpoint(self: Arc<Self>, _info: &Info, context: usize) -> Result<Box<dyn prov::Endpoint>> {
        Ok(Box::new(Endpoint::open(self, context)))
    }

    fn polls_memory(&self) -> bool {
        true
    }

    fn in_use(&self) -> (usize, usize) {
        let regions = self.regions.lock();
        (regions.open_count(), regions.files.allocations())
    }

    /// Registers a region. Calls drivers without the regions' lock, so that a driver that hangs delays only this
    /// registration.
    fn register(&self, attr: &Attr<'_>) -> Result<RegionId> {
        let refused = self.regions.lock().refused()?;
        let mut probe = Probe::of(attr, (self.modes.paths - refused) & attr.policy.allowed())?;
        loop {
            if let Some(id) = self.regions.lock().register(&self.table, self.modes, attr, refused, &mut probe)? {
                return Ok(id);
            }
            // A file that is known now, and so not exported, may be gone when `register` needs it; then the loop comes
            // back here.
            probe.export(|of| self.regions.lock().files.known_device(of).is_some());
        }
    }

    /// As `register`, for one range of host memory. False: nothing was done, and the caller calls `register`.
    #[inline]
    fn register_fast(&self, iov: Iov, access: Access, id: &mut RegionId) -> bool {
        let registered = self.regions.lock().register_fast(&self.table, self.modes, iov, access);
        registered.map(|named| *id = named).is_some()
    }

    fn make_room(&self) {
        self.regions.lock().make_room();
    }

    /// As `register_fast`, for memory that the library exposes to one peer. The key is the provider's and contains the
    /// entry's index, so it needs no place in the hash table of keys.
    #[inline]
    fn expose(&self, iov: Iov) -> Option<RegionId> {
        self.regions.lock().expose(&self.table, self.modes, iov)
    }

    /// Closes an exposed region without the barrier. Only one peer was told the key, and that peer has reported the end of
    /// its last copy, so no peer can be inside. A peer that lies can read no more than a peer that keeps a mapping.
    /// Copies that this process makes for the peer count as users of the region; while one runs, the close fails.
    #[inline]
    fn close_exposed(&self, id: RegionId) -> Result<()> {
        if self.regions.lock().close_fast(&self.table, id) {
            return Ok(());
        }
        self.close_used_region(id, 0, |_, _| Ok(Vec::new()))
    }

    /// Closes a region. After `Ok`, no copy of a peer runs in the region, and none can start.
    #[inline]
    fn close_region(&self, id: RegionId) -> Result<()> {
        self.close_within(id, config::get().close_ms)
    }

    fn try_close_region(&self, id: RegionId) -> Result<()> {
        self.close_within(id, 0)
    }

    fn facts(&self, id: RegionId) -> Result<Facts> {
        self.regions.lock().facts(id)
    }

    fn explain_region(&self, id: RegionId) -> Result<String> {
        self.regions.lock().explain(id, self.modes)
    }

    fn bind_counter(&self, id: RegionId, counter: Arc<Counter>) -> Result<()> {
        self.regions.lock().bind_counter(&self.table, id, counter)
    }

    /// The count of open regions that overlap `[addr, addr+len)`.
    fn regions_covering(&self, addr: u64, len: u64) -> usize {
        self.regions.lock().covering(addr, len)
    }

    fn allocate(&self, len: usize) -> Result<usize> {
        self.regions.lock().files.allocate(&self.table, len)
    }

    fn free(&self, addr: usize) -> Result<()> {
        self.regions.lock().files.free(&self.table, addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mr::Source;
    use crate::prov::Domain as _;

    #[test]
    fn what_is_lent_comes_back_unless_a_copy_of_this_process_runs() {
        // Callers choose the keys, as in the domains of lanes.
        let domain = Domain::open(Threading::Safe, true, false).unwrap();
        let bytes = vec![7u8; 4096];
        // SAFETY: the bytes outlive the regions.
        let iov = unsafe { Iov::of(&bytes) };
        let chosen = Attr { source: Source::Iov(&[iov]), requested_key: 77, ..Attr::plain(Access::REMOTE_READ) };
        let other = domain.register(&chosen).unwrap();
        let exposed = domain.expose(iov).expect("host memory");
        assert_eq!((domain.table.find(exposed.key).unwrap(), domain.table.find(77).unwrap()), (Some(exposed.index()), Some(other.index())));
        assert!(domain.pin(exposed.key, bytes.as_ptr() as u64, 1, Access::REMOTE_WRITE, true).is_err());
        let pin = domain.pin(exposed.key, bytes.as_ptr() as u64, 4096, Access::REMOTE_READ, true).unwrap();
        assert!(domain.close_exposed(exposed).is_err_and(|e| e.errno == errno::EBUSY));
        assert_eq!(domain.table.find(exposed.key).unwrap(), None, "no copy can start");
        assert!(domain.pin(exposed.key, bytes.as_ptr() as u64, 1, Access::REMOTE_READ, true).is_err());
        domain.regions.lock().unpin(pin);
        domain.close_exposed(exposed).unwrap();
        assert!(domain.links.lock().closing.is_empty());
        for _ in 0..3 {
            let exposed = domain.expose(iov).unwrap();
            domain.close_exposed(exposed).unwrap();
            assert!(domain.pin(exposed.key, bytes.as_ptr() as u64, 1, Access::REMOTE_READ, true).is_err());
        }
        let pin = domain.pin(77, bytes.as_ptr() as u64, 4096, Access::REMOTE_READ, true).unwrap();
        domain.regions.lock().unpin(pin);
        // Memory for which a driver might have to be asked is registered in the usual way.
        domain.close_exposed(other).unwrap();
        assert_eq!(domain.in_use(), (0, 0));
        // SAFETY: the memory that these ranges name is never accessed.
        let wrong = [unsafe { Iov::new(0, 8) }, unsafe { Iov::new(8, 0) }, unsafe { Iov::new(usize::MAX, 8) }];
        assert!(wrong.iter().all(|iov| domain.expose(*iov).is_none()));
    }
}
