// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A domain of the verbs provider: one port of a device with one of its addresses, a protection domain, and the memory that is registered
//! in it.

use super::cq::Cq;
use super::info::DevicePort;
use super::limits::MAX_MSG;
use super::shared::Shared;
use crate::config;
use crate::error::{Error, Result, errno};
use crate::mr::alloc::Allocations;
use crate::prov::fault::Plan;
use crate::prov::flags;
use crate::prov::info::{EP_RDM, Info};
use crate::prov::op::IOV_LIMIT;
use crate::prov::verbs::device::context::{Context, LinkLayer, Transport};
use crate::prov::verbs::device::gid::Gid;
use crate::prov::verbs::device::object::Pd;
use crate::prov::verbs::memory::mr::Regions;
use crate::prov::verbs::memory::registered::Registered;
use crate::prov::verbs::queue::tag::Tag;
use crate::prov::verbs::state::rail_port::RailPort;
use crate::prov::verbs::sys::cm_channel::Channel;
use crate::prov::verbs::sys::cm_id::Id;
use crate::sync::serial::{Rank, Serial, Threading};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};

pub struct Domain {
    pub memory: Arc<Registered>,
    pub port: u8,
    pub gid: Gid,
    /// The port's largest packet, in bytes.
    pub mtu: u32,
    pub lid: u16,
    pub ethernet: bool,
    pub threading: Threading,
    pub virt_addr: bool,
    /// Host memory is registered for on-demand paging.
    pub on_demand: bool,
    pub watch: Watch,
    pub(super) allocations: Allocations,
    service_cq: Option<Arc<Cq>>,
    /// The completion queues of lanes; `None` if the endpoints of the domain are not lanes.
    lane_cqs: Option<Mutex<Vec<Arc<Cq>>>>,
    /// Peers name the bytes of a region by an offset that the caller chose, and not by the addresses of the memory.
    pub offsets: bool,
    /// The port's longest message, in bytes.
    pub longest: u32,
    pub faults: Option<Box<Plan>>,
    /// The ports of the rails: this domain's own port, then the further ones; empty if there are no rails.
    pub rail_ports: Vec<Arc<RailPort>>,
    /// The completion queues of the further rails.
    rail_cqs: Vec<Arc<Cq>>,
    /// The number of keys of closed regions that some peer has not confirmed to have forgotten.
    pub(super) stale: Arc<AtomicUsize>,
}

impl Domain {
    pub fn open(info: &Info, threading: Threading) -> Result<Arc<Domain>> {
        let choice = DevicePort::of(info)?;
        let pd = Pd::new(choice.context.clone())?;
        let on_demand = config::get().verbs.odp && choice.context.odp().is_ok_and(|o| o.supported);
        let port = choice.port.clone();
        // Only lanes let the caller choose the keys, because a lane asks its peer for the meaning of a key.
        let lanes = info.mr_mode & flags::MR_MODE_PROV_KEY == 0;
        let lane_cq = lanes.then(|| Cq::unbound(&choice.context, threading)).transpose()?;
        let lane_cqs = lane_cq.map(|cq| Mutex::new(vec![cq]));
        // The service queue is made here and not with the first endpoint, so that all descriptors of a domain exist
        // from the beginning.
        let service_cq = match choice.context.transport {
            Transport::Iwarp => None,
            // A lane of a connectionless endpoint (rdm) needs no service queue. Other endpoints may connect by
            // exchanged addresses, and then the service queue pair shows that the peer exists.
            _ if lanes && info.ep_type == EP_RDM => None,
            _ => Cq::service(&choice.context, threading).inspect_err(|e| crate::log!(Info, "no staged transfers in this domain: {e}")).ok(),
        };
        let (gid, number) = (choice.gid.clone(), port.number);
        let (mtu, lid, ethernet) = (port.mtu, port.lid, port.link == LinkLayer::Ethernet);
        let longest = port.max_message.clamp(1, MAX_MSG as u32);
        let cards = RailPort::all(choice, &pd)?;
        let further = cards.iter().skip(1).enumerate();
        let rail_cqs = further.map(|(i, card)| Cq::rail(card.context(), threading, i + 1)).collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(Domain {
            memory: Arc::new(Registered::new(pd, Serial::new(threading, Rank::Regions, Regions::new(lanes)?))),
            port: number,
            gid,
            mtu: match config::get().verbs.mtu {
                0 => mtu,
                asked => asked.min(mtu),
            },
            lid,
            ethernet,
            threading,
            virt_addr: lanes || info.mr_mode & flags::MR_MODE_VIRT_ADDR != 0,
            offsets: lanes && info.mr_mode & flags::MR_MODE_VIRT_ADDR == 0,
            longest,
            lane_cqs,
            on_demand,
            watch: Watch::default(),
            allocations: Allocations::default(),
            service_cq,
            faults: Plan::of("verbs").filter(|plan| plan.concerns_operations()),
            rail_ports: cards,
            rail_cqs,
            stale: Arc::default(),
        }))
    }

    /// Most scatter/gather entries of a work request.
    pub fn most_pieces(&self) -> u32 {
        self.context().attr.max_sge.clamp(1, IOV_LIMIT as i32) as u32
    }

    /// Adds a lane, which can have `tx` and `rx` completions outstanding, to a queue. Returns the queue and the lane's
    /// tags for both directions. If every queue is full, the lane gets a new queue: a device limits the size of a
    /// queue, and not every device can resize one.
    pub(super) fn add_lane(&self, lane: &Arc<Shared>, tx: usize, rx: usize) -> Result<(Arc<Cq>, [Tag; 2])> {
        let Some(cqs) = &self.lane_cqs else {
            return Err(Error::fixed(errno::EOPNOTSUPP, "internal error: the domain has no queues for lanes"));
        };
        let mut cqs = cqs.lock();
        for cq in cqs.iter().rev() {
            if let Ok(tags) = cq.add_both(lane, tx, rx) {
                return Ok((cq.clone(), tags));
            }
        }
        let cq = Cq::unbound(self.context(), self.threading)?;
        let tags = cq.add_both(lane, tx, rx)?;
        cqs.push(cq.clone());
        Ok((cq, tags))
    }

    pub fn is_iwarp(&self) -> bool {
        self.context().transport == Transport::Iwarp
    }

    pub fn is_of_lanes(&self) -> bool {
        self.lane_cqs.is_some()
    }

    /// The queue of the service queue pairs, where the transport allows them.
    pub fn service_cq(&self) -> Option<&Arc<Cq>> {
        self.service_cq.as_ref()
    }

    /// The queues of the rails, from the second on.
    pub fn rail_cqs(&self) -> &[Arc<Cq>] {
        &self.rail_cqs
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.memory.pd.context
    }
}

/// An identifier of rdma_cm that is bound to the device, so that the connection manager reports the removal of the
/// device.
pub(super) struct RemovalWatch {
    /// Declared before `channel`, so that the identifier is dropped before its channel.
    pub(super) _id: Id,
    pub(super) channel: Arc<Channel>,
}

#[derive(Default)]
pub(super) struct WatchState {
    endpoints: Vec<Weak<Shared>>,
    pub(super) bound: Option<RemovalWatch>,
    /// An attempt to bind the identifier was made; there is no second attempt.
    pub(super) tried: bool,
}

/// The endpoints that are told about the device's events (`watch.rs`).
#[derive(Default)]
pub struct Watch {
    pub(super) inner: Mutex<WatchState>,
    /// When the descriptors were last read, in nanoseconds.
    pub(super) looked: AtomicU64,
}

impl Watch {
    /// Adds an endpoint, which is told about events from now on, as long as the endpoint lives.
    pub fn add(&self, ep: &Arc<Shared>) {
        let mut inner = self.inner.lock();
        inner.endpoints.retain(|e| e.strong_count() > 0);
        inner.endpoints.push(Arc::downgrade(ep));
    }

    pub(super) fn endpoints(&self) -> Vec<Arc<Shared>> {
        self.inner.lock().endpoints.iter().filter_map(Weak::upgrade).collect()
    }
}
