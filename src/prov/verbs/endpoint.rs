// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An endpoint: its state, its completion queues, and the functions that need both.

use super::cq::Cq;
use super::domain::Domain;
use super::limits::{ANSWER_NS, RX_SIZE, TX_SIZE};
use super::shared::Shared;
use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::prov::bind::{Bindings, Options};
use crate::prov::fault::Plan;
use crate::prov::flags;
use crate::prov::info::Info;
use crate::prov::op::{Common, One};
use crate::prov::report::Stats;
use crate::prov::verbs::queue::qp::{Capacity, RetryPolicy};
use crate::prov::verbs::queue::ring::Ring;
use crate::prov::verbs::queue::service::Service;
use crate::prov::verbs::queue::tag::Tag;
use crate::prov::verbs::queue::work::Batch;
use crate::prov::verbs::rail::join::CHARGE;
use crate::prov::verbs::state::conn::Link;
use crate::prov::verbs::state::faults::Faults;
use crate::prov::verbs::state::rail::{Rail, RailStage, SOON};
use crate::prov::verbs::state::rails::Rails;
use crate::prov::verbs::state::staging::StagingQueue;
use crate::prov::verbs::state::{Phase, State};
use crate::sync::serial::{Rank, Serial, Threading};
use crate::sys::time;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Turns of progress between two looks at rare events: a power of two.
const RARELY: u32 = 1024;

/// The device's completion queues for operations and for receives.
#[derive(Clone, Default)]
pub struct Queues {
    pub tx: Option<Arc<Cq>>,
    pub rx: Option<Arc<Cq>>,
}

/// Lock order: a completion queue, the state, `queues`.
pub struct Endpoint {
    pub(super) shared: Arc<Shared>,
    pub(super) domain: Arc<Domain>,
    pub(super) queues: Mutex<Queues>,
    /// The completion queue of a lane, set when the endpoint is enabled.
    pub(super) lane_cq: OnceLock<Arc<Cq>>,
    pub(super) capacity: Capacity,
    pub(super) psn: u32,
    pub(super) turns: AtomicU32,
    /// A turn whose number has none of these bits also handles rare events.
    pub(super) mask: u32,
    /// The order that the endpoint promises (`msg_order`).
    order: u64,
}

impl Endpoint {
    pub fn open(domain: Arc<Domain>, info: &Info, context: usize) -> Result<Endpoint> {
        let config = &config::get().verbs;
        let or = |n: usize, usual: usize| if n == 0 { usual as u32 } else { n as u32 };
        let attr = &domain.context().attr;
        let sge = domain.most_pieces() as usize;
        // The answer to an iWARP read goes into one scatter/gather entry.
        let tx_sge = if domain.is_iwarp() { 1 } else { sge };
        let capacity = Capacity {
            tx: or(info.tx_size, TX_SIZE).min(attr.max_qp_wr.max(1) as u32 - u32::from(domain.rail_ports.len() > 1)).max(1),
            rx: or(info.rx_size, RX_SIZE).min(attr.max_qp_wr.max(1) as u32),
            tx_pieces: or(info.tx_iov_limit, tx_sge).min(tx_sge as u32),
            rx_pieces: or(info.rx_iov_limit, sge).min(sge as u32),
            inline: if info.inject_size == 0 { domain.context().inline(config::get().debug.inline) } else { info.inject_size } as u32,
        };
        let state = State {
            phase: Phase::Fresh,
            bind: Bindings::default(),
            options: Options::default(),
            retry_policy: State::retry_policy_of(config),
            stats: Stats::default(),
            object: 0,
            context,
            qp: None,
            cqs: [0; 2],
            tx: Ring::new(capacity.tx as usize),
            rx: Ring::new(capacity.rx as usize),
            tx_tag: Tag::default(),
            rx_tag: Tag::default(),
            unsignalled: 0,
            signal_all: false,
            op_flags: 0,
            unordered: domain.is_iwarp(),
            own_receives: info.caps != 0 && info.caps & (flags::MSG | flags::RECV) == 0,
            batch: Batch::new(),
            chain: Default::default(),
            fast: Default::default(),
            earliest: 0,
            expired_at: 0,
            end_reason: None,
            device_fault: None,
            peer_end: None,
            drain_deadline: 0,
            silent: false,
            link: Link::default(),
            service: None,
            staging: StagingQueue::default(),
            data_sent: 0,
            data_seen: 0,
            faults: Plan::of("verbs")
                .filter(|plan| !domain.is_of_lanes() && plan.concerns_operations())
                .map(|plan| Faults { plan, held: VecDeque::new() }),
            rails: None,
            lane: None,
            longest: domain.longest,
        };
        // Fault injection delays an operation until a set time, so every turn has to look at the clock.
        let mask = if state.faults.is_some() { 0 } else { RARELY - 1 };
        let psn = crate::mr::KeySource::new()?.draw() as u32 & 0xff_ffff;
        let (staging, moving, memory) = (AtomicBool::new(false), AtomicBool::new(false), domain.memory.clone());
        let shared = Arc::new(Shared { memory, staging, moving, state: Serial::new(domain.threading, Rank::Connected, state) });
        let (queues, lane_cq, turns) = (Mutex::default(), OnceLock::new(), AtomicU32::new(0));
        Ok(Endpoint { shared, domain, queues, lane_cq, capacity, psn, turns, mask, order: info.msg_order })
    }

    /// Makes the service queue pair, where the transport allows a second queue pair. Without a service queue pair the
    /// endpoint has no staged transfers. A lane has no staged transfers anyway, and needs the service queue pair only
    /// if no connection manager reports the end of the peer (`by_address`).
    pub(super) fn ensure_service(&self, by_address: bool) {
        let domain = &self.domain;
        {
            let s = self.shared.state.lock();
            let needs_none = domain.is_iwarp() || (s.lane.is_some() && !by_address);
            if s.service.is_some() || needs_none || !matches!(s.phase, Phase::Enabled) {
                return;
            }
        }
        let make = || {
            let cq = domain.service_cq().ok_or(Error::fixed(errno::ENOSYS, "the domain has no completion queue for staged transfers"))?;
            let mut service = Service::new(&domain.memory, &cq.raw, domain.port, domain.most_pieces(), !domain.rail_cqs().is_empty())?;
            // Lock order: completion queues before endpoints.
            let tag = cq.add(&self.shared, Service::CHARGE)?;
            service.begin(tag).inspect_err(|_| cq.remove(&self.shared))?;
            Ok::<_, Error>(service)
        };
        match make() {
            Ok(service) => self.shared.state.lock().service = Some(service),
            Err(e) => crate::log!(Info, "no staged transfers on this endpoint: {e}"),
        }
    }

    pub(super) fn check_by_address(&self) -> Result<()> {
        match self.domain.is_iwarp() {
            true => Err(Error::fixed(errno::EOPNOTSUPP, "ep: iWARP connects only by rdma_cm (gdrfab_connect), not by exchanged addresses")),
            false => Ok(()),
        }
    }

    pub(super) fn queues(&self, s: &State) -> impl Iterator<Item = Arc<Cq>> + use<'_> {
        let Queues { tx, rx } = self.queues.lock().clone();
        let service = self.domain.service_cq().filter(|_| s.service.is_some()).cloned();
        let rails = if s.rails.is_some() { self.domain.rail_cqs() } else { &[] };
        [tx, rx, service].into_iter().flatten().chain(rails.iter().cloned())
    }

    /// For a lane: waits until everything that was posted has gone out, at most `ANSWER_NS`.
    fn drain_sends(&self) {
        let until = time::now_ns() + ANSWER_NS;
        let is_owed = |s: &State| s.lane.is_some() && matches!(s.phase, Phase::Connected) && s.peer_end.is_none() && !s.tx.is_empty();
        while let Some(cq) = self.lane_cq.get()
            && is_owed(&self.shared.state.lock())
            && time::now_ns() < until
        {
            cq.poll(true);
            std::thread::yield_now();
        }
    }

    /// Ends the connection and waits until the device has returned everything.
    pub(super) fn end_connection(&self) {
        let why = Error::coded(errno::ECANCELED, Code::Canceled, "this side shut the connection down");
        self.drain_sends();
        let queues = {
            let mut s = self.shared.state.lock();
            s.discard_inbox();
            s.begin_teardown(why, true);
            s.finish_if_drained();
            self.queues(&s).collect::<Vec<_>>()
        };
        while matches!(self.shared.state.lock().phase, Phase::Draining) {
            queues.iter().for_each(|cq| cq.poll(true));
            self.shared.state.lock().finish_if_drained();
            std::thread::yield_now();
        }
    }

    /// Posts an operation with flags on the fast path. `None`: the operation has to take the slow path.
    #[inline(always)]
    pub(super) fn try_fast<const KIND: u8>(&self, s: &mut State, one: One, c: &Common) -> Option<Result<()>> {
        if c.timeout_ns != 0 {
            return None;
        }
        match self.domain.threading {
            Threading::Promised(_) => s.try_fast::<KIND, false>(one, c.flags),
            Threading::Safe => s.try_fast::<KIND, true>(one, c.flags),
        }
    }

    /// A full turn of progress: events of the device and the connection, rails, deadlines, and all completion queues.
    #[inline(never)]
    pub(super) fn progress_all(&self, force: bool) {
        self.domain.poll_async();
        let queues = {
            let mut s = if force {
                self.shared.state.lock()
            } else {
                match self.shared.state.try_lock() {
                    Some(s) => s,
                    None => return,
                }
            };
            // Operations with `GDRFAB_MORE` wait for the last operation of their batch, but no longer than until this
            // turn.
            s.flush_batch();
            s.progress_connection(&self.domain);
            s.rails_turn(&self.domain);
            s.failover_turn(|| self.first_queues());
            if s.faults.is_some() {
                s.release_held();
            }
            s.check_deadlines();
            s.follow_peer();
            s.finish_if_drained();
            self.queues(&s)
        };
        queues.for_each(|cq| cq.poll(force));
    }

    /// Polls the queues of the further rails.
    pub(super) fn poll_rails(&self) {
        self.domain.rail_cqs().iter().for_each(|cq| cq.poll(false));
        if self.shared.moving.load(Ordering::Relaxed)
            && let Some(mut s) = self.shared.state.try_lock()
        {
            s.rails_turn(&self.domain);
            s.failover_turn(|| self.first_queues());
            self.shared.moving.store(s.rails_due() == SOON || s.is_failing_over(), Ordering::Relaxed);
        }
    }

    /// The completion queues of the first rail.
    fn first_queues(&self) -> Option<[Arc<Cq>; 2]> {
        let Queues { tx, rx } = self.queues.lock().clone();
        Some([tx?, rx?])
    }

    /// Makes the further rails of the domain for this endpoint. `None`: the connection goes over one rail.
    pub(super) fn make_rails(&self) -> Result<Option<Box<Rails>>> {
        let domain = &self.domain;
        let Some((own, further)) = domain.rail_ports.split_first().filter(|(_, further)| !further.is_empty()) else { return Ok(None) };
        let (plan, most) = (Plan::of("verbs"), domain.rail_ports.iter().map(|card| card.context().attr.max_sge.max(1) as u32).min());
        let mut rails = Vec::with_capacity(further.len());
        for (i, (card, cq)) in further.iter().zip(domain.rail_cqs()).enumerate() {
            let tag = match cq.add(&self.shared, CHARGE) {
                Ok(tag) => tag,
                Err(e) => {
                    crate::log!(Warn, "rail {}: {e}; this connection uses one RDMA device only", i + 1);
                    domain.rail_cqs().iter().for_each(|cq| cq.remove(&self.shared));
                    return Ok(None);
                }
            };
            rails.push(Rail::new(card.clone(), tag, plan.as_ref().map_or(0, |plan| plan.rail(i + 1))));
        }
        let pieces = self.capacity.tx_pieces.min(most.unwrap_or(1));
        let mut first = Rail::new(own.clone(), Tag::default(), plan.map_or(0, |plan| plan.first_rail()));
        first.stage = RailStage::Up;
        // The queue gets one work request more than there can be operations: the marker whose completion shows that the
        // device has returned all operations (`State::fail_over`).
        let asked = Capacity { tx: self.capacity.tx + 1, ..self.capacity };
        Ok(Some(Box::new(Rails::new(first, rails, asked, self.order, pieces, domain.stale.clone()))))
    }

    /// Changes the retry policy, which is possible only before connecting or accepting.
    pub(super) fn set_retry_policy(&self, change: impl FnOnce(&mut RetryPolicy)) -> Result<()> {
        let mut s = self.shared.state.lock();
        match s.phase {
            Phase::Fresh | Phase::Enabled => {
                change(&mut s.retry_policy);
                Ok(())
            }
            _ => Err(Error::fixed(errno::EOPBADSTATE, "ep: this option must be set before connecting or accepting")),
        }
    }
}
