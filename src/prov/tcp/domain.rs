// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A domain of the tcp provider: its regions, its memory, and what its endpoints' connections begin with.

use super::auth;
use super::crowd::Crowd;
use super::endpoint::Endpoint;
use super::locate;
use super::mr::Regions;
use super::state::State;
use crate::config;
use crate::error::Result;
use crate::hmem::Site;
use crate::mr::Paths;
use crate::mr::alloc::Allocations;
use crate::mr::region::Modes;
use crate::mr::registry::wait_until;
use crate::mr::{Attr, Facts, RegionId};
use crate::prov;
use crate::prov::fault::Plan;
use crate::prov::flags;
use crate::prov::info::{Info, PROGRESS_AUTO, Secret};
use crate::prov::op::Iov;
use crate::prov::queue::Counter;
use crate::sync::serial::{Serial, Threading};
use crate::sys::usercopy::UserCopy;
use std::sync::Arc;

/// How long closing a region waits for a copy that touches it.
const CLOSE_MS: u64 = 1000;

pub struct Domain {
    pub threading: Threading,
    pub modes: Modes,
    /// A thread of the library drives the endpoints: what is posted goes out at once.
    pub auto: bool,
    pub regions: Serial<Regions>,
    /// Faults on demand.
    faults: Option<Box<Plan>>,
    /// What both sides of a connection must know.
    pub key: Option<Secret>,
    memory: Allocations,
    pub crowd: Crowd,
    /// Those whose copies a closing region may have to wait for.
    endpoints: Serial<Vec<Arc<Serial<State>>>>,
}

impl Domain {
    pub fn open(info: &Info, threading: Threading) -> Result<Domain> {
        let modes = Modes {
            virt_addr: info.mr_mode & flags::MR_MODE_VIRT_ADDR != 0,
            prov_key: info.mr_mode & flags::MR_MODE_PROV_KEY != 0,
            paths: Paths::from_bits_truncate(config::get().tcp.paths),
        };
        Ok(Domain {
            threading,
            modes,
            auto: info.progress == PROGRESS_AUTO,
            regions: Serial::new(threading, Regions::new(Arc::new(UserCopy::new()?))?),
            faults: Plan::of("tcp"),
            key: auth::key(info)?,
            memory: Allocations::doubled(),
            crowd: Crowd::default(),
            endpoints: Serial::new(threading, Vec::new()),
        })
    }

    pub fn add(&self, state: &Arc<Serial<State>>) {
        self.endpoints.lock().push(state.clone());
    }

    pub fn remove(&self, state: &Arc<Serial<State>>) {
        self.endpoints.lock().retain(|s| !Arc::ptr_eq(s, state));
    }

    /// Where the local pieces lie that an operation describes by `desc`; they are still what was registered.
    pub fn local_site(&self, desc: u64, local: &[Iov]) -> Result<Site> {
        let found = self.regions.lock().local(desc, local)?;
        found.check()
    }
}

impl prov::Domain for Domain {
    fn open_endpoint(self: Arc<Self>, info: &Info, context: usize) -> Result<Box<dyn prov::Endpoint>> {
        Ok(Box::new(Endpoint::open(self, info, context)?))
    }

    /// Regions and allocations that keep the domain open.
    fn in_use(&self) -> Option<String> {
        match (self.regions.lock().open_count(), self.memory.count()) {
            (0, 0) => None,
            (r, a) => Some(format!("{r} open region(s) and {a} allocation(s) of mem_alloc")),
        }
    }

    fn register(&self, attr: &Attr<'_>) -> Result<RegionId> {
        let refused = self.faults.as_ref().map_or(Ok(Paths::empty()), |plan| plan.register())?;
        // Drivers are asked without the lock.
        let located = locate::locate(attr, &self.memory)?;
        self.regions.lock().register(self.modes, attr, refused, located)
    }

    /// When this returns `Ok`, nothing of a peer's touches the memory, nor will: a transfer that is under way goes on
    /// without it, and fails.
    fn close_region(&self, id: RegionId) -> Result<()> {
        wait_until(CLOSE_MS, "a device's copy still touches the region; call mr_close again", || {
            let quiet = self.regions.lock().shut(id)?;
            if !quiet {
                // Copies end in the turns of the endpoints that began them.
                let endpoints = self.endpoints.lock().clone();
                endpoints.iter().filter_map(|s| s.try_lock()).for_each(|mut s| s.progress(self, true));
            }
            Ok(quiet)
        })?;
        self.regions.lock().forget(id);
        Ok(())
    }

    fn facts(&self, id: RegionId) -> Result<Facts> {
        self.regions.lock().facts(id)
    }

    fn explain_region(&self, id: RegionId) -> Result<String> {
        self.regions.lock().explain(id)
    }

    fn bind_counter(&self, id: RegionId, counter: Arc<Counter>) -> Result<()> {
        self.regions.lock().bind_counter(id, counter)
    }

    fn regions_covering(&self, addr: u64, len: u64) -> usize {
        self.regions.lock().covering(addr, len)
    }

    fn allocate(&self, len: usize) -> Result<usize> {
        self.memory.allocate(len)
    }

    fn free(&self, addr: usize) -> Result<()> {
        self.memory.free(addr, |addr, len| self.regions_covering(addr, len))
    }
}
