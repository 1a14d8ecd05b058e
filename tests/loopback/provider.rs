// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A provider that reaches endpoints of the same process: the smallest one that keeps the contract of `prov::contract`.
//! It has no table of operations and no thread; whoever posts copies, under the locks of both sides in turn.

use crate::endpoint::{DATA_MAX, Ep, MAX_MSG, SCHEME, Waits, check_address};
use crate::regions::{Regions, Shared};
use gdrfab::error::{Error, Result};
use gdrfab::hmem::{Kind, Site};
use gdrfab::mr::alloc::Allocations;
use gdrfab::mr::location::extent;
use gdrfab::mr::region::{Location, Pieces, Region};
use gdrfab::mr::registry::KeyOf;
use gdrfab::mr::{Attr, Facts, Paths, RegionId, Source as Memory};
use gdrfab::prov::contract::{Domain, Endpoint, Listener, Offer, Provider};
use gdrfab::prov::info::{Ask, Info};
use gdrfab::sync::serial::Threading;
use parking_lot::Mutex;
use std::sync::Arc;

pub struct Loopback;

impl Provider for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn offer(&self) -> Offer {
        Offer { name: self.name(), usable: Ok(()), facts: vec![("reach".into(), Ok("endpoints of this process".into()))] }
    }

    fn candidates(&self, ask: &Ask<'_>) -> Vec<Info> {
        let address = ask.service.map(|name| format!("{SCHEME}{name}"));
        let (src_addr, dest_addr) = if ask.source { (address, None) } else { (None, address) };
        vec![Info { paths: Paths::DIRECT, max_msg_size: MAX_MSG, cm_data_size: DATA_MAX, src_addr, dest_addr, ..Info::of_cpu(self.name()) }]
    }

    fn check_address(&self, address: &str) -> Result<()> {
        check_address(address)
    }

    fn open_domain(&self, _info: &Info, _threading: Threading) -> Result<Arc<dyn Domain>> {
        let regions = Arc::new(Mutex::new(Regions::new(0)?));
        Ok(Arc::new(Local { regions, memory: Allocations::default() }))
    }

    fn open_listener(&self, info: &Info) -> Result<Box<dyn Listener>> {
        let address = info.src_addr.clone().ok_or_else(|| Error::invalid("info->src_addr: missing"))?;
        check_address(&address)?;
        Ok(Box::new(Waits { address, listens: false }))
    }
}

struct Local {
    regions: Shared,
    memory: Allocations,
}

impl Domain for Local {
    fn in_use(&self) -> (usize, usize) {
        (self.regions.lock().open_count(), self.memory.count())
    }

    fn open_endpoint(self: Arc<Self>, _info: &Info, context: usize) -> Result<Box<dyn Endpoint>> {
        Ok(Box::new(Ep::new(self.regions.clone(), context)))
    }

    fn register(&self, attr: &Attr<'_>) -> Result<RegionId> {
        let Memory::Iov(iovs) = attr.source else { return Err(Error::invalid("attr: host memory is expected")) };
        let (base, len) = extent(iovs)?;
        let location = Location { pieces: Pieces::of(iovs, |_| ()), base, len, site: Site::HOST, kind: Kind::Host };
        let mut regions = self.regions.lock();
        let names = regions.reserve(KeyOf::Domain, false)?;
        Ok(regions.fill(names, Region::new(attr, names.key, base, Paths::DIRECT, location, ())))
    }

    fn close_region(&self, id: RegionId) -> Result<()> {
        let mut regions = self.regions.lock();
        regions.shut(id)?;
        regions.drop_region(id);
        Ok(())
    }

    fn facts(&self, id: RegionId) -> Result<Facts> {
        self.regions.lock().facts(id)
    }

    fn explain_region(&self, id: RegionId) -> Result<String> {
        Ok(self.regions.lock().get(id)?.headline("") + "offers direct")
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
