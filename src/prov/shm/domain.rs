// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A domain of the shm provider: its regions, its memory files, and the links of its endpoints.

use super::endpoint::Endpoint;
use super::link::Link;
use super::locate::{self, Asked};
use super::mr::Regions;
use super::quiesce;
use super::region::Pin;
use super::table::Table;
use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::copier::Copier;
use crate::hmem::{Export, Offer, Site};
use crate::mr::region::{Modes, is_stale};
use crate::mr::registry::wait_until;
use crate::mr::{Access, Attr, Facts, Iov, RegionId};
use crate::prov;
use crate::prov::info::Info;
use crate::prov::queue::Counter;
use crate::sync::gate::{Fences, barrier};
use crate::sync::serial::{Serial, Threading};
use crate::sys::process;
use crate::sys::time;
use crate::sys::usercopy::UserCopy;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Links of this domain's endpoints, and those of endpoints that are over while their peers may still be inside a copy.
#[derive(Default)]
struct Links {
    all: Vec<Arc<Link>>,
    /// How many there must be before those that are over are looked at again, and when that was, in ticks.
    sweep_at: usize,
    swept: u64,
}

/// Ticks between two looks that closing regions take.
const SWEEP_TICKS: u64 = 2_000_000;
/// Links that are all looked at whenever one ends.
const FEW_LINKS: usize = 64;

impl Links {
    /// Drops links that are over on both sides.
    fn sweep(&mut self) {
        self.all.retain(|l| !(l.is_torn() && quiesce::is_out(l)));
        self.sweep_at = (2 * self.all.len()).max(16);
        self.swept = time::ticks();
    }
}

pub struct Domain {
    pub threading: Threading,
    pub modes: Modes,
    pub table: Table,
    pub table_fd: OwnedFd,
    pub regions: Serial<Regions>,
    links: Serial<Links>,
    /// Copies for peers where the caller's pages may be gone.
    pub user: UserCopy,
    /// Whether this process can leave fences to the peers' barriers.
    pub remote_fences: bool,
}

impl Domain {
    pub fn open(threading: Threading, virt_addr: bool, prov_key: bool) -> Result<Domain> {
        let (table, table_fd) = Table::create().map_err(|e| e.context("opening a shm domain"))?;
        let config = config::get();
        Ok(Domain {
            threading,
            modes: Modes { virt_addr, prov_key, paths: crate::mr::Paths::from_bits_truncate(config.paths) },
            table,
            table_fd,
            regions: Serial::new(threading, Regions::new(virt_addr && prov_key && config.faults.is_empty())?),
            links: Serial::new(threading, Links::default()),
            user: UserCopy::default(),
            remote_fences: config.membarrier && process::barrier_register(),
        })
    }

    pub fn add_link(&self, link: Arc<Link>) {
        self.links.lock().all.push(link);
    }

    /// Drops links that are over on both sides; of many only now and then.
    pub fn sweep_links(&self) {
        let mut links = self.links.lock();
        if links.all.len() <= FEW_LINKS || links.all.len() >= links.sweep_at || time::ticks().wrapping_sub(links.swept) > SWEEP_TICKS {
            links.sweep();
        }
    }

    /// As `Regions::pin`, for memory that is still what was registered.
    pub fn pin(&self, key: u64, addr: u64, len: usize, need: Access, drivers: bool) -> std::result::Result<Pin, Code> {
        let pin = self.regions.lock().pin(key, addr, len, need, drivers)?;
        if pin.pieces.iter().zip(&pin.ids).any(|(iov, id)| is_stale(pin.site, iov.addr, *id)) {
            self.regions.lock().unpin(pin);
            return Err(Code::Fault);
        }
        Ok(pin)
    }

    /// Where the local pieces lie that an operation describes by `desc`; if the driver may be asked, they are still what was
    /// registered.
    pub fn local_site(&self, desc: u64, local: &[Iov], drivers: bool) -> Result<Site> {
        let found = self.regions.lock().local(desc, local)?;
        if drivers { found.check() } else { Ok(found.site) }
    }

    /// The local pieces as the process knows them that copies for this one, mapped there for its device `near` when first asked.
    pub fn elsewhere(&self, desc: u64, local: &[Iov], copier: &'static Copier, near: u32) -> Result<Vec<Iov>> {
        loop {
            let away = match self.regions.lock().elsewhere(desc, local, copier)? {
                Ok(runs) => return Ok(runs),
                Err(away) => away,
            };
            let Export { how, device, handle, len, fd, .. } = &away.export;
            let offer = Offer { how: *how, device: *device, handle: *handle, fd: fd.as_ref().map(OwnedFd::as_fd), len: *len };
            let import = copier.import(away.iface, &offer, Some(near));
            let import = import.map_err(|e| e.context("mapping the local memory in the process that copies"))?;
            let spare = match self.regions.lock().files.get_mut(away.file) {
                Some(file) => file.keep_away(copier, import),
                None => Some(import),
            };
            drop(spare);
        }
    }

    /// Pins the host memory of the region `desc` names for copies of `site`'s vendor, once.
    pub fn pin_host(&self, desc: u64, site: Site) {
        let Some(held) = self.regions.lock().begin_pin(desc, site) else { return };
        let pins = held.pieces.iter().map(|iov| (site, locate::pin(site, iov.addr as u64, iov.len as u64))).collect();
        self.regions.lock().pinned(held, pins);
    }

    #[inline(never)]
    fn close_used_region(&self, id: RegionId) -> Result<()> {
        self.regions.lock().shut(&self.table, id)?;
        let mut used: Vec<Arc<Link>> = Vec::new();
        {
            let mut links = self.links.lock();
            if links.all.iter().any(|l| l.is_torn()) && time::ticks().wrapping_sub(links.swept) > SWEEP_TICKS {
                links.sweep();
            }
            if !links.all.is_empty() {
                // The gate's store was sequentially consistent, and so is the filter's load: a peer
                // whose bit is not seen here sees the closed gate when it resolves.
                used.extend(links.all.iter().filter(|l| quiesce::used(l, id.index)).cloned());
            }
        }
        if !used.is_empty() {
            let fences = if used.iter().any(|l| l.fences == Fences::Remote) { Fences::Remote } else { Fences::Full };
            // Without the barrier a mark may not be seen: then nothing is proved, and the region stays.
            barrier(fences).map_err(|e| Error::new(errno::EBUSY, format!("who copies in this region cannot be found out: {e}")))?;
            quiesce::wait_for_initiators(&used, id.index, config::get().close_ms)?;
        }
        let busy = "another thread of this process still copies for a peer; call mr_close again";
        wait_until(config::get().close_ms, busy, || Ok(self.regions.lock().is_quiet(id)))?;
        let mut regions = self.regions.lock();
        let gone = (regions.forget(&self.table, id), std::mem::take(&mut regions.files.gone));
        // Dropping them may ask a driver.
        drop(regions);
        drop(gone);
        Ok(())
    }
}

impl prov::Domain for Domain {
    fn open_endpoint(self: Arc<Self>, _info: &Info, context: usize) -> Result<Box<dyn prov::Endpoint>> {
        Ok(Box::new(Endpoint::open(self, context)))
    }

    fn polls_memory(&self) -> bool {
        true
    }

    /// Regions and allocations that keep the domain open.
    fn in_use(&self) -> Option<String> {
        let regions = self.regions.lock();
        match (regions.open_count(), regions.files.allocations()) {
            (0, 0) => None,
            (r, a) => Some(format!("{r} open region(s) and {a} allocation(s) of mem_alloc")),
        }
    }

    /// Drivers are asked without the regions' lock: one that hangs holds up nobody else.
    fn register(&self, attr: &Attr<'_>) -> Result<RegionId> {
        let refused = self.regions.lock().refused()?;
        let mut asked = Asked::of(attr, (self.modes.paths - refused) & attr.policy.allowed())?;
        loop {
            if let Some(id) = self.regions.lock().register(&self.table, self.modes, attr, refused, &mut asked)? {
                return Ok(id);
            }
            // What is known now may be closed by the time that it is needed: then this comes again.
            asked.export(|of| self.regions.lock().files.known_device(of).is_some());
        }
    }

    /// As `register` for one plain range; `None`: nothing was done, `register` does it.
    #[inline]
    fn register_plain(&self, iov: Iov, access: Access) -> Option<RegionId> {
        self.regions.lock().register_plain(&self.table, self.modes, iov, access)
    }

    /// Closes a region: when this returns `Ok`, no peer's copy runs and none can start.
    #[inline]
    fn close_region(&self, id: RegionId) -> Result<()> {
        {
            let mut regions = self.regions.lock();
            if self.links.lock().all.is_empty() && regions.close_plain(&self.table, id) {
                return Ok(());
            }
        }
        self.close_used_region(id)
    }

    fn facts(&self, id: RegionId) -> Result<Facts> {
        self.regions.lock().facts(id)
    }

    fn explain_region(&self, id: RegionId) -> Result<String> {
        self.regions.lock().explain(id, self.modes)
    }

    fn bind_counter(&self, id: RegionId, counter: Arc<Counter>) -> Result<()> {
        self.regions.lock().bind_counter(id, counter)
    }

    /// Open regions that touch `[addr, addr+len)`.
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
