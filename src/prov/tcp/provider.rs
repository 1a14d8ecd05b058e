// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prov::Provider` and `prov::Domain`: the calls of the layer above for the provider and its domains.

use super::domain::Domain;
use super::locked::Endpoint;
use crate::config;
use crate::error::Result;
use crate::mr::registry::wait_until;
use crate::mr::{Attr, Facts, Paths, RegionId};
use crate::prov::bind::RailList;
use crate::prov::info::{Ask, Info};
use crate::prov::queue::Counter;
use crate::prov::tcp::connect::info;
use crate::prov::tcp::connect::pep::Listener;
use crate::prov::tcp::memory::locate;
use crate::prov::tcp::rail::connector;
use crate::prov::tcp::wire::hello::STREAMS_MAX;
use crate::prov::{self, Offer, Provider};
use crate::sync::serial::Threading;
use crate::sys::tcp;
use std::net::SocketAddr;
use std::sync::Arc;

/// Most time, in ms, that closing a region waits for a device's copy that uses the region.
const CLOSE_MS: u64 = 1000;

/// The provider.
pub struct Tcp;

impl Provider for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn offer(&self) -> Offer {
        info::offer()
    }

    fn candidates(&self, ask: &Ask<'_>) -> Vec<Info> {
        info::candidates(ask)
    }

    fn check_address(&self, address: &str) -> Result<()> {
        info::check_address(address)
    }

    fn open_domain(&self, info: &Info, threading: Threading) -> Result<Arc<dyn prov::Domain>> {
        Ok(Arc::new(Domain::open(info, threading)?))
    }

    fn open_listener(&self, info: &Info) -> Result<Box<dyn prov::Listener>> {
        Ok(Box::new(Listener::open(info)?))
    }
}

impl Domain {
    /// Closes a region. Waits at most `limit_ms` until no device's copy uses the region any more.
    fn close_within(&self, id: RegionId, limit_ms: u64) -> Result<()> {
        wait_until(limit_ms, "a device's copy still touches the region; call mr_close again", || {
            let quiet = self.regions.lock().shut(id)?;
            if !quiet {
                // A copy completes in a turn of the endpoint that began the copy.
                let endpoints = self.endpoints.lock().clone();
                endpoints.iter().filter_map(|s| s.try_lock()).for_each(|mut s| s.progress(self, true));
            }
            Ok(quiet)
        })?;
        self.regions.lock().forget(id);
        Ok(())
    }
}

impl prov::Domain for Domain {
    fn open_endpoint(self: Arc<Self>, info: &Info, context: usize) -> Result<Box<dyn prov::Endpoint>> {
        Ok(Box::new(Endpoint::open(self, info, context)?))
    }

    fn in_use(&self) -> (usize, usize) {
        // Covering memory is looked for under the other lock, so the first one is let go.
        let open = self.regions.lock().open_count();
        (open, self.memory.count())
    }

    fn tcp_streams(&self) -> Option<(u32, u32)> {
        Some((config::get().tcp.streams, STREAMS_MAX))
    }

    fn rails(&self, words: Option<&str>) -> Result<RailList> {
        let Some(words) = words else { return connector::usual() };
        let rails = connector::own(words)?;
        // An address is this host's if a socket can be bound to it.
        rails.iter().try_for_each(|ip| tcp::bind(SocketAddr::new(ip, 0)).map(|_| ()))?;
        Ok(rails)
    }

    fn make_room(&self) {
        self.regions.lock().make_room();
    }

    fn register(&self, attr: &Attr<'_>) -> Result<RegionId> {
        let refused = self.faults.as_ref().map_or(Ok(Paths::empty()), |plan| plan.register())?;
        // Drivers are called without the lock on the regions.
        let located = locate::locate(attr, &self.memory)?;
        self.regions.lock().register(self.modes, attr, refused, located)
    }

    /// After a result of `Ok`, no peer's operation touches the memory any more. A transfer under way goes on without
    /// the memory, and fails.
    fn close_region(&self, id: RegionId) -> Result<()> {
        self.close_within(id, CLOSE_MS)
    }

    fn try_close_region(&self, id: RegionId) -> Result<()> {
        self.close_within(id, 0)
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
