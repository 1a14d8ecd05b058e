// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The traits of the layer above, implemented for the provider, for a domain, and for a completion queue of the device.

use super::cq::Cq;
use super::domain::Domain;
use super::endpoint::Endpoint;
use super::{attach, info, nic};
use crate::error::{Code, Error, Result, errno};
use crate::mr::registry::wait_until;
use crate::mr::{Access, Attr, Facts, RegionId};
use crate::prov::info::{Ask, Info, Nic};
use crate::prov::op::Iov;
use crate::prov::ops::{CqFormat, CqOps};
use crate::prov::queue::{Counter, Queue};
use crate::prov::verbs::connect::pep::Listener;
use crate::prov::verbs::memory::mr::Attached;
use crate::prov::verbs::ops::{atomic, table};
use crate::prov::{self, Offer, Provider, Reach};
use crate::sync::serial::Threading;
use std::net::SocketAddr;
use std::sync::Arc;

/// Milliseconds that `close_region` waits, at most, for operations that still copy from or to the region in this
/// process.
const CLOSE_MS: u64 = 1000;

/// The verbs provider.
pub struct Verbs;

impl Provider for Verbs {
    fn name(&self) -> &'static str {
        "verbs"
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

    fn reach(&self) -> Reach {
        Reach::Devices
    }

    /// False: a card accepts every host that reaches the port, so a key would keep nobody out.
    fn enforces_auth_key(&self) -> bool {
        false
    }

    fn lane_address(&self, info: &Info, at: SocketAddr) -> String {
        info::lane_address(info, at)
    }

    fn as_lane(&self, info: Info) -> Info {
        info::as_lane(info)
    }

    fn lanes(&self, near: Option<&str>) -> Vec<Info> {
        info::lanes(near)
    }

    fn lane_info(&self, info: &Info) -> Result<Info> {
        info::lane_info(info)
    }

    fn nic(&self, info: &Info, near: Option<&str>) -> Result<Nic> {
        nic::nic(info, near)
    }

    fn open_domain(&self, info: &Info, threading: Threading) -> Result<Arc<dyn prov::Domain>> {
        Ok(Domain::open(info, threading)?)
    }

    fn open_listener(&self, info: &Info) -> Result<Box<dyn prov::Listener>> {
        Ok(Box::new(Listener::open(info.src_addr.as_deref())?))
    }
}

impl Domain {
    fn close_within(&self, id: RegionId, limit_ms: u64) -> Result<()> {
        if self.is_of_lanes() && self.memory.regions.lock().get(id)?.own.was_shared() {
            self.revoke(id.key);
        }
        let shown = if self.rail_ports.is_empty() { None } else { self.memory.regions.lock().unpublish_rails(id) };
        if let Some(keys) = shown {
            self.revoke_rails(&keys);
        }
        wait_until(limit_ms, "mr: operations still copy from or to the region; call gdrfab_mr_close() again", || {
            self.memory.regions.lock().shut(id)
        })?;
        self.memory.regions.lock().detach(id)
    }
}

impl prov::Domain for Domain {
    fn open_endpoint(self: Arc<Self>, info: &Info, context: usize) -> Result<Box<dyn prov::Endpoint>> {
        Ok(Box::new(Endpoint::open(self, info, context)?))
    }

    fn open_source(self: Arc<Self>, size: usize, queue: &Arc<Queue>) -> Result<Option<Arc<dyn prov::CompletionSource>>> {
        Ok(Some(Cq::open(self.context(), self.threading, size, queue)?))
    }

    fn in_use(&self) -> (usize, usize) {
        // Covering memory is looked for under the other lock, so the first one is let go.
        let open = self.memory.regions.lock().open_count();
        (open, self.allocations.count())
    }

    fn check_card_atomics(&self) -> Result<()> {
        atomic::check(self.context(), "access: GDRFAB_ATOMIC")
    }

    fn register(&self, attr: &Attr<'_>) -> Result<RegionId> {
        if attr.rma_event && !self.is_of_lanes() {
            return Err(Error::fixed(
                errno::EOPNOTSUPP,
                "flags: GDRFAB_RMA_EVENT: RDMA devices do not report a peer's plain writes; use writes with data",
            ));
        }
        // Pinning takes long, and needs no lock.
        let attach = || match self.offsets {
            // A device maps memory only at an address that agrees with the memory's own address within a page. So the
            // region is registered at its own address, and the caller's offset is only the name that peers use. The
            // parcel TOLD gives peers the difference.
            true => Ok(Attached { peer_base: attr.offset, ..attach::attach(self, &Attr { offset: 0, ..*attr })? }),
            false => attach::attach(self, attr),
        };
        let mut attached = attach()?;
        // A region must not get keys that a peer may still take for the keys of a closed region. A registration with
        // such keys is kept until another registration has got other keys, so that the device cannot give the same keys
        // again.
        let mut spare = Vec::new();
        while attached.keys().is_some_and(|keys| self.may_be_confused(&keys)) {
            spare.push(std::mem::replace(&mut attached, attach()?));
        }
        self.memory.regions.lock().add(attached, attr)
    }

    /// A shortcut of `register` for one plain range of host memory, which the caller has checked. False: the range is
    /// not registered, and the caller uses `register`.
    fn register_fast(&self, iov: Iov, access: Access, id: &mut RegionId) -> bool {
        let attached = attach::attach_plain(self, iov, access);
        let added = attached.and_then(|of| self.memory.regions.lock().add(of, &Attr::plain(access)).ok());
        added.map(|named| *id = named).is_some()
    }

    /// After `Ok`, no peer reaches the memory, and no operation of this process copies from or to the memory.
    fn close_region(&self, id: RegionId) -> Result<()> {
        self.close_within(id, CLOSE_MS)
    }

    fn try_close_region(&self, id: RegionId) -> Result<()> {
        self.close_within(id, 0)
    }

    fn facts(&self, id: RegionId) -> Result<Facts> {
        self.memory.regions.lock().facts(id)
    }

    /// The address with the device's own key, so the peer does not have to ask for the meaning of the key.
    fn message_name(&self, id: RegionId, iov: Iov) -> Result<Option<(u64, u64)>> {
        let regions = self.memory.regions.lock();
        let region = regions.get(id)?;
        match region.own.name() {
            Some((key, _)) if !region.own.is_file() => Ok(Some((iov.addr() as u64, u64::from(key)))),
            _ => Err(Error::coded(errno::EOPNOTSUPP, Code::Path, "the RDMA device cannot access this memory, so a peer cannot read it")),
        }
    }

    /// False: if a peer reads with a revoked key, the device ends the connection.
    fn can_revoke(&self) -> bool {
        false
    }

    fn explain_region(&self, id: RegionId) -> Result<String> {
        self.memory.regions.lock().explain(id, &self.context().name)
    }

    /// Only lanes support a counter: a lane tells its peer about each write to a region that counts writes.
    fn bind_counter(&self, id: RegionId, counter: Arc<Counter>) -> Result<()> {
        match self.is_of_lanes() {
            true => self.memory.regions.lock().bind_counter(id, counter),
            false => Err(Error::fixed(errno::EOPNOTSUPP, "mr: RDMA devices do not report a peer's plain writes; use writes with data")),
        }
    }

    fn regions_covering(&self, addr: u64, len: u64) -> usize {
        self.memory.regions.lock().covering(addr, len)
    }

    fn allocate(&self, len: usize) -> Result<usize> {
        self.allocations.allocate(len)
    }

    fn free(&self, addr: usize) -> Result<()> {
        self.allocations.free(addr, |addr, len| self.regions_covering(addr, len))
    }
}

impl prov::CompletionSource for Cq {
    fn ops(&self, format: CqFormat) -> (&'static CqOps, *const ()) {
        (table::cq_ops(self.inner.threading(), format), (&raw const *self).cast())
    }

    fn poll(&self, force: bool) {
        Cq::poll(self, force);
    }
}
