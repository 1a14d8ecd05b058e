// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A domain of the verbs provider: one port of a device with one of its addresses, a protection domain, and the
//! regions in it.

use super::attach;
use super::bounce::Pool;
use super::cq::Cq;
use super::device::{Context, Transport};
use super::endpoint::Endpoint;
use super::gid::Gid;
use super::info::Choice;
use super::mr::Regions;
use super::object::Pd;
use super::watch::Watch;
use crate::config;
use crate::error::{Error, Result, errno};
use crate::mr::Access;
use crate::mr::alloc::Allocations;
use crate::mr::registry::wait_until;
use crate::mr::{Attr, Facts, RegionId};
use crate::prov;
use crate::prov::fault::Plan;
use crate::prov::flags;
use crate::prov::info::Info;
use crate::prov::op::{IOV_LIMIT, Iov};
use crate::prov::queue::{Counter, Queue};
use crate::sync::serial::{Serial, Threading};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// How long closing a region waits for copies of this process.
const CLOSE_MS: u64 = 1000;

pub struct Domain {
    pub me: Weak<Domain>,
    pub pd: Arc<Pd>,
    pub port: u8,
    pub gid: Gid,
    /// The port's largest packet.
    pub mtu: u32,
    pub lid: u16,
    pub ethernet: bool,
    pub threading: Threading,
    pub virt_addr: bool,
    /// Host memory is registered for on-demand paging.
    pub on_demand: bool,
    pub regions: Serial<Regions>,
    pub watch: Watch,
    pub pool: Mutex<Pool>,
    memory: Allocations,
    service_cq: Option<Arc<Cq>>,
    pub faults: Option<Box<Plan>>,
}

impl Domain {
    pub fn open(info: &Info, threading: Threading) -> Result<Arc<Domain>> {
        let choice = Choice::of(info)?;
        let pd = Pd::new(choice.context.clone())?;
        let on_demand = config::get().verbs.odp && choice.context.odp().is_ok_and(|o| o.supported);
        let port = choice.port;
        // Here and not with the first endpoint, so that a domain's descriptors are all there from the beginning.
        let service_cq = match choice.context.transport {
            Transport::Iwarp => None,
            _ => Cq::service(&choice.context, threading).inspect_err(|e| crate::log!(Info, "no staged transfers in this domain: {e}")).ok(),
        };
        let regions = Regions::new()?;
        Ok(Arc::new_cyclic(|me| Domain {
            me: me.clone(),
            pd,
            port: port.number,
            gid: choice.gid,
            mtu: match config::get().verbs.mtu {
                0 => port.mtu,
                wish => wish.min(port.mtu),
            },
            lid: port.lid,
            ethernet: port.link == super::device::Link::Ethernet,
            threading,
            virt_addr: info.mr_mode & flags::MR_MODE_VIRT_ADDR != 0,
            on_demand,
            regions: Serial::new(threading, regions),
            watch: Watch::default(),
            pool: Mutex::default(),
            memory: Allocations::default(),
            service_cq,
            faults: Plan::of("verbs"),
        }))
    }

    /// Pieces that a work request of ours may have.
    pub fn most_pieces(&self) -> u32 {
        self.context().attr.max_sge.clamp(1, IOV_LIMIT as i32) as u32
    }

    /// The queue of the service queue pairs, where the transport allows those.
    pub fn service_cq(&self) -> Option<&Arc<Cq>> {
        self.service_cq.as_ref()
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.pd.context
    }
}

impl prov::Domain for Domain {
    fn open_endpoint(self: Arc<Self>, info: &Info, context: usize) -> Result<Box<dyn prov::Endpoint>> {
        Ok(Box::new(Endpoint::open(self, info, context)?))
    }

    fn open_source(self: Arc<Self>, size: usize, queue: &Arc<Queue>) -> Result<Option<Arc<dyn prov::Source>>> {
        Ok(Some(Cq::open(&self, size, queue)?))
    }

    /// Regions and allocations that keep the domain open.
    fn in_use(&self) -> Option<String> {
        match (self.regions.lock().open_count(), self.memory.count()) {
            (0, 0) => None,
            (r, a) => Some(format!("{r} open region(s) and {a} allocation(s) of mem_alloc")),
        }
    }

    fn register(&self, attr: &Attr<'_>) -> Result<RegionId> {
        if attr.event {
            return Err(Error::fixed(errno::EOPNOTSUPP, "flags: GDRFAB_RMA_EVENT: RDMA devices do not report a peer's plain writes"));
        }
        // Pinning takes long and needs no lock.
        let attached = attach::attach(self, attr)?;
        self.regions.lock().add(attached, attr)
    }

    /// As `register` for one plain range of host memory, checked by the caller; `None`: nothing was done, `register`
    /// does it.
    fn register_plain(&self, iov: Iov, access: Access) -> Option<RegionId> {
        let attached = attach::attach_plain(self, iov, access)?;
        self.regions.lock().add(attached, &Attr::plain(access)).ok()
    }

    /// When this returns `Ok`, no peer reaches the memory, nor does a copy of this process.
    fn close_region(&self, id: RegionId) -> Result<()> {
        wait_until(CLOSE_MS, "operations still copy from or to the region; call mr_close again", || self.regions.lock().shut(id))?;
        self.regions.lock().detach(id)
    }

    fn facts(&self, id: RegionId) -> Result<Facts> {
        self.regions.lock().facts(id)
    }

    fn explain_region(&self, id: RegionId) -> Result<String> {
        self.regions.lock().explain(id, &self.context().name)
    }

    fn bind_counter(&self, _id: RegionId, _counter: Arc<Counter>) -> Result<()> {
        Err(Error::fixed(errno::EOPNOTSUPP, "mr: RDMA devices do not report a peer's plain writes; use writes with data"))
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
