// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A domain of the shm provider: its regions, its memory files, and the links of its endpoints.

use super::link::Link;
use super::mr::Regions;
use super::quiesce;
use super::region::{Facts, Modes, RegionId, Wish};
use super::table::Table;
use crate::config;
use crate::error::{Error, Result, errno};
use crate::mr::Access;
use crate::prov::op::Iov;
use crate::prov::queue::Counter;
use crate::sync::gate::Fences;
use crate::sync::serial::{Serial, Threading};
use crate::sys::process;
use crate::sys::time::now_ns;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub struct Domain {
    pub threading: Threading,
    pub modes: Modes,
    pub table: Table,
    pub table_fd: OwnedFd,
    pub regions: Serial<Regions>,
    links: Serial<Vec<Arc<Link>>>,
    /// Whether this process can leave fences to the peers' barriers.
    pub remote_fences: bool,
}

impl Domain {
    pub fn open(threading: Threading, virt_addr: bool, prov_key: bool) -> Result<Domain> {
        let (table, table_fd) = Table::create().map_err(|e| e.context("opening a shm domain"))?;
        let config = config::get();
        Ok(Domain {
            threading,
            modes: Modes {
                virt_addr,
                prov_key,
                paths: crate::mr::Paths::from_bits_truncate(config.paths),
                plain: virt_addr && prov_key && config.faults.is_empty(),
            },
            table,
            table_fd,
            regions: Serial::new(threading, Regions::new()),
            links: Serial::new(threading, Vec::new()),
            remote_fences: config.membarrier && process::barrier_register(),
        })
    }

    /// Regions and allocations that keep the domain open.
    pub fn in_use(&self) -> Option<String> {
        let regions = self.regions.lock();
        match (regions.open_count(), regions.files.allocations()) {
            (0, 0) => None,
            (r, a) => Some(format!("{r} open region(s) and {a} allocation(s) of mem_alloc")),
        }
    }

    pub fn add_link(&self, link: Arc<Link>) {
        self.links.lock().push(link);
    }

    pub fn drop_link(&self, link: &Arc<Link>) {
        self.links.lock().retain(|l| !Arc::ptr_eq(l, link));
    }

    #[inline]
    pub fn register(&self, wish: &Wish<'_>) -> Result<RegionId> {
        self.regions.lock().register(&self.table, self.modes, wish)
    }

    /// As `register` for one plain range; `None`: nothing was done, take the long way.
    #[inline]
    pub fn register_plain(&self, iov: Iov, access: Access) -> Option<RegionId> {
        self.regions.lock().register_plain(&self.table, self.modes, iov, access)
    }

    /// Closes a region: when this returns `Ok`, no peer's copy runs and none can start.
    #[inline]
    pub fn close_region(&self, id: RegionId) -> Result<()> {
        {
            let mut regions = self.regions.lock();
            if self.links.lock().is_empty() && regions.close_plain(&self.table, id) {
                return Ok(());
            }
        }
        self.close_used_region(id)
    }

    #[inline(never)]
    fn close_used_region(&self, id: RegionId) -> Result<()> {
        self.regions.lock().shut(&self.table, id)?;
        let mut used: Vec<Arc<Link>> = Vec::new();
        {
            let links = self.links.lock();
            if !links.is_empty() {
                // The gate's store was sequentially consistent, and so is the filter's load: a peer
                // whose bit is not seen here sees the closed gate when it resolves.
                used.extend(links.iter().filter(|l| quiesce::used(l, id.index)).cloned());
            }
        }
        if !used.is_empty() {
            let fences = if used.iter().any(|l| l.fences == Fences::Remote) { Fences::Remote } else { Fences::Full };
            Link::barrier(fences);
            quiesce::wait_for_initiators(&used, id.index, config::get().close_ms)?;
        }
        let mut deadline = 0;
        loop {
            let mut regions = self.regions.lock();
            if regions.users(id) == 0 {
                regions.forget(&self.table, id);
                return Ok(());
            }
            drop(regions);
            let now = now_ns();
            if deadline == 0 {
                deadline = now + config::get().close_ms * 1_000_000;
            }
            if now > deadline {
                return Err(Error::fixed(errno::EBUSY, "another thread of this process still copies for a peer; call mr_close again"));
            }
            std::thread::yield_now();
        }
    }

    pub fn facts(&self, id: RegionId) -> Result<Facts> {
        self.regions.lock().facts(id)
    }

    pub fn explain_region(&self, id: RegionId) -> Result<String> {
        self.regions.lock().explain(id, self.modes)
    }

    pub fn bind_counter(&self, id: RegionId, counter: Arc<Counter>) -> Result<()> {
        self.regions.lock().bind_counter(id, counter)
    }

    /// Open regions that touch `[addr, addr+len)`.
    pub fn regions_covering(&self, addr: u64, len: u64) -> usize {
        self.regions.lock().covering(addr, len)
    }

    pub fn allocate(&self, len: usize) -> Result<usize> {
        self.regions.lock().files.allocate(&self.table, len)
    }

    pub fn free(&self, addr: usize) -> Result<()> {
        self.regions.lock().files.free(&self.table, addr)
    }
}
