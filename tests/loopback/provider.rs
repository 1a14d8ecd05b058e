// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A provider that reaches endpoints of the same process: the smallest one that keeps the contract of `prov::contract`.
//! It has no table of operations and no thread; whoever posts copies, under the locks of both sides in turn.

use crate::endpoint::{DATA_MAX, Ep, MAX_MSG, SCHEME, Waits, check_address};
use crate::regions::{Region, Regions, lock};
use gdrfab::error::{Error, Result, errno};
use gdrfab::hmem::{Kind, Site};
use gdrfab::mr::{Attr, Facts, Paths, RegionId, Source as Memory};
use gdrfab::prov::contract::{Domain, Endpoint, Listener, Offer, Provider};
use gdrfab::prov::info::{ADDR_STR, Ask, EP_MSG, Info, PROGRESS_MANUAL, THREAD_SAFE};
use gdrfab::prov::op::IOV_LIMIT;
use gdrfab::prov::{Counter, flags};
use gdrfab::sync::serial::Threading;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

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
        vec![Info {
            caps: flags::MSG | flags::RMA | flags::SEND | flags::RECV | flags::READ | flags::WRITE,
            paths: Paths::DIRECT,
            mr_mode: flags::MR_MODE_VIRT_ADDR | flags::MR_MODE_PROV_KEY,
            ep_type: EP_MSG,
            threading: THREAD_SAFE,
            progress: PROGRESS_MANUAL,
            addr_format: ADDR_STR,
            tx_iov_limit: IOV_LIMIT,
            max_msg_size: MAX_MSG,
            cm_data_size: DATA_MAX,
            prov_name: Some(self.name().into()),
            src_addr,
            dest_addr,
            ..Info::default()
        }]
    }

    fn check_address(&self, address: &str) -> Result<()> {
        check_address(address)
    }

    fn open_domain(&self, _info: &Info, _threading: Threading) -> Result<Arc<dyn Domain>> {
        Ok(Arc::new(Local::default()))
    }

    fn open_listener(&self, info: &Info) -> Result<Box<dyn Listener>> {
        let address = info.src_addr.clone().ok_or_else(|| Error::invalid("info->src_addr: missing"))?;
        check_address(&address)?;
        Ok(Box::new(Waits::new(address)))
    }
}

#[derive(Default)]
struct Local {
    regions: Arc<Regions>,
    keys: Mutex<u64>,
    memory: Mutex<BTreeMap<usize, Box<[u64]>>>,
}

fn closed() -> Error {
    Error::invalid("mr: this region is closed")
}

impl Domain for Local {
    fn in_use(&self) -> Option<String> {
        let counts = [(lock(&self.regions).len(), "region(s)"), (lock(&self.memory).len(), "allocation(s)")];
        let words: Vec<String> = counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        (!words.is_empty()).then(|| words.join(" and "))
    }

    fn open_endpoint(self: Arc<Self>, _info: &Info, context: usize) -> Result<Box<dyn Endpoint>> {
        Ok(Box::new(Ep::new(self.regions.clone(), context)))
    }

    fn register(&self, attr: &Attr<'_>) -> Result<RegionId> {
        let Memory::Iov([one]) = attr.source else { return Err(Error::invalid("mr_iov: one piece of host memory is expected")) };
        let mut keys = lock(&self.keys);
        *keys += 1;
        let region = Region { base: one.addr as u64, len: one.len as u64, access: attr.access, counter: None };
        lock(&self.regions).insert(*keys, region);
        Ok(RegionId { index: *keys as u32, generation: *keys, key: *keys, desc: *keys << 1 })
    }

    fn close_region(&self, id: RegionId) -> Result<()> {
        lock(&self.regions).remove(&id.key).map(drop).ok_or_else(closed)
    }

    fn facts(&self, id: RegionId) -> Result<Facts> {
        let regions = lock(&self.regions);
        let r = regions.get(&id.key).ok_or_else(closed)?;
        let (site, kind, paths) = (Site::HOST, Kind::Host, Paths::DIRECT);
        Ok(Facts { site, kind, key: id.key, base: r.base, len: r.len, access: r.access, paths, iov_count: 1 })
    }

    fn explain_region(&self, id: RegionId) -> Result<String> {
        Ok(format!("region of {} bytes: offers direct", self.facts(id)?.len))
    }

    fn bind_counter(&self, id: RegionId, counter: Arc<Counter>) -> Result<()> {
        lock(&self.regions).get_mut(&id.key).ok_or_else(closed)?.counter = Some(counter);
        Ok(())
    }

    fn regions_covering(&self, addr: u64, len: u64) -> usize {
        lock(&self.regions).values().filter(|r| r.base < addr + len && addr < r.base + r.len).count()
    }

    fn allocate(&self, len: usize) -> Result<usize> {
        let made = vec![0u64; len.div_ceil(8).max(1)].into_boxed_slice();
        let addr = made.as_ptr() as usize;
        lock(&self.memory).insert(addr, made);
        Ok(addr)
    }

    fn free(&self, addr: usize) -> Result<()> {
        let mut memory = lock(&self.memory);
        let len = memory.get(&addr).ok_or_else(|| Error::invalid("addr: nothing was allocated there"))?.len() * 8;
        if self.regions_covering(addr as u64, len as u64) > 0 {
            return Err(Error::new(errno::EBUSY, "addr: an open region covers this memory"));
        }
        memory.remove(&addr);
        Ok(())
    }
}
