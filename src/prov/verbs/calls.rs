// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `prov::Endpoint` trait, implemented for a verbs endpoint. Each call of the layer above takes the endpoint's
//! lock.

use super::cq::Cq;
use super::endpoint::{Endpoint, Queues};
use super::limits::PATHS;
use crate::error::{Code, Error, Result, errno};
use crate::mr::Paths;
use crate::prov::atomic::{Atomic, AtomicOp};
use crate::prov::bind::{Binding, Bindings, Effort, Options};
use crate::prov::list::{List, Native, Pair, Run};
use crate::prov::name;
use crate::prov::op::{Common, Dir, Iov, One, RmaIov};
use crate::prov::ops::{Dispatch, OpFlags};
use crate::prov::report::{MESSAGES, PathReport, RailReport, Refusals, Stats};
use crate::prov::request::own_request;
use crate::prov::verbs::connect::cm;
use crate::prov::verbs::connect::pep::Request;
use crate::prov::verbs::memory::mr;
use crate::prov::verbs::ops::fast::{READ, SEND, WRITE};
use crate::prov::verbs::ops::{atomic, table};
use crate::prov::verbs::queue::qp::Qp;
use crate::prov::verbs::queue::retransmit::RetransmitQueue;
use crate::prov::verbs::state::Phase;
use crate::prov::verbs::state::conn::Link;
use crate::prov::verbs::state::lane::LaneQueues;
use crate::prov::verbs::wire::greeting::DATA_MAX;
use crate::prov::{self, Lane};
use crate::sync::gate::Fences;
use crate::sys::epoll::Poller;
use crate::sys::time;
use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Retries of the device for a lane's parcel that finds no receive: the largest limited number, since 7 means
/// unlimited.
const RNR_RETRIES: u8 = 6;

impl prov::Endpoint for Endpoint {
    /// Sets the caller's handle, by which events name this endpoint.
    fn set_object(&self, object: usize) {
        self.shared.state.lock().object = object;
    }

    /// Bytes of private data that connect and accept take.
    fn cm_data_size(&self) -> usize {
        DATA_MAX
    }

    fn bind(&self, what: Binding) -> Result<()> {
        let mut s = self.shared.state.lock();
        let source = match &what {
            Binding::Cq { source: Some(source), transmit, receive, .. } => {
                let source: Arc<dyn Any + Send + Sync> = source.clone();
                source.downcast::<Cq>().ok().map(|cq| (cq, *transmit, *receive))
            }
            _ => None,
        };
        s.bind.bind(what)?;
        if s.bind.enabled {
            s.update_signalling();
            s.close_fast();
        }
        if let Some((cq, transmit, receive)) = source {
            let mut queues = self.queues.lock();
            if transmit {
                queues.tx = Some(cq.clone());
            }
            if receive {
                queues.rx = Some(cq);
            }
        }
        Ok(())
    }

    /// Makes the queue pair.
    fn enable(&self, op_flags: OpFlags) -> Result<()> {
        let domain = &self.domain;
        let mut s = self.shared.state.lock();
        s.bind.check_can_enable()?;
        let bound = self.queues.lock().clone();
        if s.bind.is_lane() {
            s.lane = Some(Box::new(LaneQueues::new(&domain.memory)?));
            // A parcel finds no receive only if the peer has promised receives that it does not have. Limited retries
            // keep such a peer from blocking the lane forever.
            s.retry_policy.rnr_retries = s.retry_policy.rnr_retries.min(RNR_RETRIES);
        }
        s.update_signalling();
        let is_lane = s.lane.is_some();
        // Lock order: completion queues before endpoints.
        drop(s);
        let (tx, rx) = (self.capacity.tx as usize + usize::from(!domain.rail_cqs().is_empty()), self.capacity.rx as usize);
        let (tx_cq, rx_cq, [tx_tag, rx_tag]) = if is_lane {
            let (cq, tags) = domain.add_lane(&self.shared, tx, rx)?;
            (cq.clone(), cq, tags)
        } else {
            let hidden = || Cq::unbound(domain.context(), domain.threading);
            let tx_cq = bound.tx.clone().map_or_else(hidden, Ok)?;
            let rx_cq = bound.rx.map_or_else(|| if bound.tx.is_none() { Ok(tx_cq.clone()) } else { hidden() }, Ok)?;
            let tx_tag = tx_cq.add(&self.shared, tx)?;
            let rx_tag = rx_cq.add(&self.shared, rx).inspect_err(|_| tx_cq.remove(&self.shared))?;
            (tx_cq, rx_cq, [tx_tag, rx_tag])
        };
        self.shared.state.lock().cqs = [&tx_cq, &rx_cq].map(|cq| cq.raw.raw().addr());
        *self.queues.lock() = Queues { tx: Some(tx_cq.clone()), rx: Some(rx_cq.clone()) };
        let make = || {
            let rails = self.make_rails()?;
            let asked = rails.as_ref().map_or(self.capacity, |rails| rails.asked);
            let mut qp = Qp::new(&domain.memory.pd, &tx_cq.raw, &rx_cq.raw, asked)?;
            qp.init(domain.port)?;
            qp.retransmit =
                rails.as_ref().map(|rails| Arc::new(Mutex::new(RetransmitQueue::new(asked.tx, asked.rx, rails.first.fault_every))));
            Ok((rails, qp))
        };
        let forget = |_: &Error| [&tx_cq, &rx_cq].into_iter().chain(domain.rail_cqs()).for_each(|cq| cq.remove(&self.shared));
        let (rails, qp) = make().inspect_err(forget)?;
        let mut s = self.shared.state.lock();
        s.rails = rails;
        (s.tx_tag, s.rx_tag) = (tx_tag, rx_tag);
        s.qp = Some(qp);
        s.op_flags = op_flags.tx;
        s.phase = Phase::Enabled;
        s.bind.enable(op_flags);
        domain.watch.add(&self.shared);
        if s.lane.is_some() {
            self.lane_cq.get_or_init(|| tx_cq);
            return s.post_receives();
        }
        if s.own_receives {
            (0..rx).for_each(|_| s.repost_own());
        }
        Ok(())
    }

    fn dispatch(&self) -> Option<Dispatch> {
        Some(Dispatch { ops: table::choose(self.domain.threading), of: Arc::as_ptr(&self.shared).cast(), tx: std::ptr::null() })
    }

    fn connect(&self, address: &str, data: &[u8]) -> Result<()> {
        self.ensure_service(false);
        let mut s = self.shared.state.lock();
        s.check_can_connect()?;
        s.dial(&self.domain, address, data)
    }

    fn connect_addr(&self, address: &str) -> Result<()> {
        self.check_by_address()?;
        name::check_plain(address)?;
        let mut s = self.shared.state.lock();
        s.check_can_connect()?;
        s.connect_by_address(&self.domain, address, self.psn)?;
        drop(s);
        self.domain.expect_removal();
        Ok(())
    }

    /// Accepts a connection request; on failure the request is lost, and the peer is rejected.
    fn accept(&self, request: Box<dyn prov::Request>, data: &[u8]) -> Result<()> {
        let request: Request = own_request(request)?;
        self.ensure_service(false);
        let mut s = self.shared.state.lock();
        s.check_can_connect()?;
        s.accept_request(&self.domain, request, data)
    }

    /// The address by which a peer's endpoint can connect to the queue pair of this endpoint.
    fn address(&self) -> Result<String> {
        self.check_by_address()?;
        self.ensure_service(true);
        let s = self.shared.state.lock();
        match &s.qp {
            Some(qp) => Ok(cm::address_of(&self.domain, qp, self.psn, s.service.as_ref().map(|v| v.qp.number)).to_string()),
            None => Err(Error::new(
                errno::EOPBADSTATE,
                "ep: call gdrfab_ep_enable() first, which creates the queue pair that the address names",
            )),
        }
    }

    fn peer_address(&self) -> Result<String> {
        let s = self.shared.state.lock();
        match (&s.phase, s.link.peer()) {
            (Phase::Connected, Some(peer)) => Ok(peer.to_string()),
            _ => Err(s.not_connected()),
        }
    }

    /// Says goodbye to the peer and ends all operations.
    fn shutdown(&self) -> Result<()> {
        {
            let s = self.shared.state.lock();
            if !matches!(s.phase, Phase::Connected | Phase::Connecting(_)) {
                return Err(s.not_connected());
            }
        }
        self.end_connection();
        Ok(())
    }

    /// Closes the endpoint; posted receives get error entries.
    fn close(&self) -> Result<()> {
        self.end_connection();
        let queues = {
            let mut s = self.shared.state.lock();
            s.qp = None;
            s.lane = None;
            s.link = Link::default();
            s.bind = Bindings::default();
            s.service = None;
            let Queues { tx, rx } = std::mem::take(&mut *self.queues.lock());
            s.rails = None;
            [tx, rx]
        };
        // The endpoint is removed from the service queue even if its service queue pair is already gone, together with
        // a queue pair that did not return its requests.
        queues.iter().flatten().chain(self.domain.service_cq()).chain(self.domain.rail_cqs()).for_each(|cq| cq.remove(&self.shared));
        Ok(())
    }

    fn rma(&self, dir: Dir, local: &[Iov], remote: &[RmaIov], c: &Common, descs: &[u64]) -> Result<()> {
        let mut s = self.shared.state.lock();
        if let ([local_iov], [remote_iov], [desc]) = (local, remote, descs)
            && local_iov.len() == remote_iov.len
        {
            let one = One { local: *local_iov, addr: remote_iov.addr, key: remote_iov.key, desc: *desc, context: c.context, data: 0 };
            let done = match dir {
                Dir::Write => self.try_fast::<WRITE>(&mut s, one, c),
                Dir::Read => self.try_fast::<READ>(&mut s, one, c),
            };
            if let Some(done) = done {
                return done;
            }
        }
        if s.lane.is_some() {
            return s.lane_rma(&self.shared.memory, dir, local, remote, c, descs);
        }
        s.rma(&self.shared.memory, dir, local, remote, c, descs)
    }

    fn list(&self, _dir: Dir, list: &List, c: &Common) -> Result<Native> {
        self.shared.state.lock().list(list, c)
    }

    fn list_part(&self, dir: Dir, runs: &[Run], pairs: &[Pair], c: &Common) -> Result<usize> {
        self.shared.state.lock().list_part(&self.shared.memory, dir, runs, pairs, c)
    }

    fn atomic_valid(&self, what: Atomic) -> Result<usize> {
        match self.domain.is_of_lanes() {
            true => Ok(what.most()),
            false => atomic::check_op(self.domain.context(), Atomic { count: 1, ..what }).map(|()| 1),
        }
    }

    /// The peer's CPU executes the atomics of a lane, unless the key is one for the card. The peer's card executes all
    /// other atomics.
    fn atomic(&self, op: &AtomicOp, c: &Common) -> Result<()> {
        let mut s = self.shared.state.lock();
        match s.lane {
            Some(_) => s.lane_atomic(&self.shared.memory, op, c),
            None => s.card_atomic(&self.shared.memory, op, c),
        }
    }

    fn lane(&self) -> Option<&dyn Lane> {
        self.domain.is_of_lanes().then_some(self)
    }

    fn send(&self, local: &[Iov], c: &Common, descs: &[u64]) -> Result<()> {
        let mut s = self.shared.state.lock();
        if let ([local_iov], [desc]) = (local, descs) {
            let one = One { local: *local_iov, addr: 0, key: 0, desc: *desc, context: c.context, data: 0 };
            if let Some(done) = self.try_fast::<SEND>(&mut s, one, c) {
                return done;
            }
        }
        s.send(&self.shared.memory, local, c, descs)
    }

    fn recv(&self, local: &[Iov], c: &Common, descs: &[u64]) -> Result<()> {
        let mut s = self.shared.state.lock();
        if let ([local_iov], [desc], 0) = (local, descs, c.timeout_ns)
            && s.bind.wants_receive(c.flags)
            && s.try_fast_receive(*local_iov, *desc, c.context).is_some()
        {
            return Ok(());
        }
        s.recv(&self.shared.memory, local, c, descs)
    }

    fn cancel(&self, _context: usize) -> Result<()> {
        Err(Error::fixed(
            errno::EOPNOTSUPP,
            "ep: verbs cannot cancel a single operation; shut the endpoint down, or give operations a deadline",
        ))
    }

    /// One turn of progress. The caller takes its entries from the completion queues. Events of the connection are
    /// handled now and then, and whenever `force` is set.
    #[inline]
    fn progress(&self, force: bool) {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        if force || turn & self.mask == 0 {
            self.progress_all(force);
        } else if self.shared.staging.load(Ordering::Relaxed) {
            if let Some(cq) = self.domain.service_cq() {
                cq.poll(false);
            }
            self.poll_rails();
        }
    }

    /// Adds every descriptor that can wake this endpoint to `poller`, and arms the queues. The caller then makes
    /// progress once more.
    fn sleep(&self, poller: &Poller) -> Result<Option<Fences>> {
        self.domain.watch_async(poller)?;
        let queues = {
            let s = self.shared.state.lock();
            s.link.add_to_poller(poller)?;
            self.queues(&s)
        };
        queues.into_iter().try_for_each(|cq| cq.sleep(poller))?;
        Ok(None)
    }

    /// The number changes when the set of descriptors to watch changes.
    fn watch_version(&self) -> u64 {
        u64::from(self.shared.state.lock().link.has_channel())
    }

    /// False if received parcels wait. Nothing else has to be checked, because every completion after the arming has
    /// made a descriptor readable.
    fn may_sleep(&self) -> bool {
        !self.shared.state.lock().has_parcels()
    }

    fn end_sleep(&self, _poller: Option<&Poller>) {
        let queues = {
            let s = self.shared.state.lock();
            self.queues(&s)
        };
        queues.for_each(|cq| cq.end_sleep());
    }

    /// The longest time, in nanoseconds, that a thread may sleep before this endpoint has to do something by itself.
    fn sleep_limit_ns(&self) -> u64 {
        const LONG: u64 = u64::MAX;
        const SHORT: u64 = 1_000_000;
        let s = self.shared.state.lock();
        let now = time::now_ns();
        let until = |at: u64| if at == 0 { LONG } else { at.saturating_sub(now).clamp(SHORT, LONG) };
        let draining = if matches!(s.phase, Phase::Draining) || s.peer_end.is_some() { SHORT } else { LONG };
        let nap = until(s.earliest)
            .min(until(s.held_until()))
            .min(until(s.connecting_deadline().unwrap_or(0)))
            .min(until(s.rails_due()))
            .min(until(s.link.repeat_first_at))
            .min(draining);
        s.bind.sleeps(now, nap)
    }

    fn set_stream(&self, stream: u64) -> Result<()> {
        match stream {
            0 => Ok(()),
            _ => {
                let words = "GDRFAB_OPT_STREAM: an RDMA device (verbs) does not wait for a stream; synchronise the stream before posting";
                Err(Error::new(errno::EOPNOTSUPP, words))
            }
        }
    }

    fn effort(&self, what: Effort) -> Result<u32> {
        let now = self.shared.state.lock().retry_policy;
        Ok(u32::from(match what {
            Effort::AckTimeout => now.timeout,
            Effort::Retries => now.retries,
            Effort::RnrRetries => now.rnr_retries,
            Effort::MinRnrTimer => now.min_rnr_timer,
        }))
    }

    /// Takes the codes of the verbs API: retries up to 7, and times up to 31.
    fn set_effort(&self, what: Effort, value: u32) -> Result<()> {
        let most = if matches!(what, Effort::Retries | Effort::RnrRetries) { 7 } else { 31 };
        match u8::try_from(value) {
            Ok(value) if value <= most => self.set_retry_policy(|now| match what {
                Effort::AckTimeout => now.timeout = value,
                Effort::Retries => now.retries = value,
                Effort::RnrRetries => now.rnr_retries = value,
                Effort::MinRnrTimer => now.min_rnr_timer = value,
            }),
            _ => Err(Error::invalid(format!("optval: {value}, must be 0 to {most}"))),
        }
    }

    fn options(&self) -> Options {
        self.shared.state.lock().options
    }

    fn set_options(&self, change: &mut dyn FnMut(&mut Options)) {
        let mut s = self.shared.state.lock();
        change(&mut s.options);
        s.close_fast();
    }

    /// The path follows from the local memory and the key. Only the peer's device can check a key of that device, and
    /// only when an operation arrives.
    fn report(&self, _peer: u64, key: u64, desc: u64) -> Result<PathReport> {
        let s = self.shared.state.lock();
        s.check_connected()?;
        let staged = key != MESSAGES && s.lane.is_none() && mr::is_staged(key);
        if !staged && key >> 32 != 0 && s.lane.is_none() {
            let words = format!("key: {key:#x} is not the key of a verbs region: it has more than 32 bits and names no staged region");
            return Err(Error::coded(errno::EKEYREJECTED, Code::Key, words));
        }
        let local_path = mr::local_path(desc)?;
        let no = |words: String| Some(Error::coded(errno::EOPNOTSUPP, Code::Path, words));
        let by_device = |path: Paths| match () {
            () if staged => {
                no("the peer's region is staged, because its RDMA device cannot access the memory (gdrfab_mr_explain() there tells why)"
                    .into())
            }
            () if local_path != path => no(format!("the local memory is registered with the path {}", local_path.words())),
            () => s.ruled_out(path),
        };
        if key == MESSAGES {
            let refusals = Refusals {
                nic: by_device(Paths::NIC),
                dmabuf: by_device(Paths::DMABUF),
                peer_mem: by_device(Paths::PEER_MEM),
                staged: if local_path == Paths::STAGED {
                    s.ruled_out(local_path)
                } else {
                    no("the RDMA device can access the memory, which needs no staging".into())
                },
                ..Refusals::refused("not a path of verbs, which reaches the peer by an RDMA device")
            };
            let to = format!("the peer, by {}", self.domain.context().name);
            return Ok(PathReport::of_messages(&to, None, "of any length", refusals, &s.describe_rails()));
        }
        let served = s.service.as_ref().is_some_and(|service| service.up);
        let by_copies = match (staged, local_path) {
            (true, _) if !served => no("this connection has no staged transfers (iWARP, or a peer that does not use gdrfab)".into()),
            (true, _) | (_, Paths::STAGED) => s.ruled_out(Paths::STAGED),
            _ => no("the RDMA devices can access the memory of both sides, which needs no staging".into()),
        };
        let refusals = Refusals {
            nic: by_device(Paths::NIC),
            dmabuf: by_device(Paths::DMABUF),
            peer_mem: by_device(Paths::PEER_MEM),
            staged: by_copies,
            ..Refusals::refused("not a path of verbs, which reaches the peer by an RDMA device")
        };
        let paths = refusals.possible();
        let offered = if staged { Paths::STAGED } else { PATHS };
        let path = paths.best();
        let device = &self.domain.context().name;
        let text = format!("to the peer's region {key:#x}, by {device}: {}\n{}{}", path.words(), refusals.lines(path), s.describe_rails());
        Ok(PathReport { path, paths, offered, refusals, short: None, text })
    }

    fn rail_reports(&self, _peer: u64) -> Result<Vec<RailReport>> {
        let s = self.shared.state.lock();
        s.check_connected()?;
        Ok(s.rails.as_ref().map_or(Vec::new(), |rails| rails.report(s.peer_ip())))
    }

    fn stats(&self) -> Stats {
        self.shared.state.lock().stats
    }
}
