// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connecting an endpoint: either by rdma_cm, whose events advance the attempt while this library moves the queue pairs
//! through their states; or by addresses that the caller exchanged.

use super::pep::Request;
use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::prov::event::EventKind;
use crate::prov::verbs::domain::Domain;
use crate::prov::verbs::limits::{ALIVE_NS, MIN_RNR_TIMER, RNR_WITHOUT_END};
use crate::prov::verbs::queue::qp::{LocalPort, Qp, RemoteQp, RetryPolicy};
use crate::prov::verbs::queue::service::{Service, kind};
use crate::prov::verbs::state::conn::{ConnectStep, Connecting, Link};
use crate::prov::verbs::state::{Phase, State};
use crate::prov::verbs::sys::abi::ibv_qp_state;
use crate::prov::verbs::sys::cm_channel::Channel;
use crate::prov::verbs::sys::cm_event::{CmEvent, CmEventKind};
use crate::prov::verbs::sys::cm_id::{ConnParam, Id};
use crate::prov::verbs::sys::status::{self, Failed};
use crate::prov::verbs::wire::address::{Address, QpAddress};
use crate::prov::verbs::wire::greeting::{self, Greeting};
use crate::sys::time::{self, now_ns};
use std::net::SocketAddr;

/// The longest time that rdma_cm spends on one attempt to find an address or a route.
const RESOLVE_MS: i32 = 2000;
/// `IB_CM_REJ_CONSUMER_DEFINED`.
const CONSUMER_DEFINED: i32 = 28;

impl State {
    pub fn retry_policy_of(config: &config::Verbs) -> RetryPolicy {
        RetryPolicy { timeout: config.timeout, retries: config.retries, rnr_retries: RNR_WITHOUT_END, min_rnr_timer: MIN_RNR_TIMER }
    }

    pub fn connecting_deadline(&self) -> Option<u64> {
        match &self.phase {
            Phase::Connecting(c) => Some(c.deadline),
            _ => None,
        }
    }

    fn parameters<'a>(&self, domain: &Domain, private_data: &'a [u8]) -> Result<ConnParam<'a>> {
        let qp = self.qp.as_ref().ok_or(Error::fixed(errno::EOPBADSTATE, "ep: not enabled"))?;
        Ok(ConnParam {
            private_data,
            responder_resources: domain.context().reads_in(),
            initiator_depth: domain.context().reads_out(),
            retry_count: self.retry_policy.retries,
            rnr_retry_count: self.retry_policy.rnr_retries,
            qpn: qp.number,
        })
    }

    /// Begins to connect to a listener by rdma_cm.
    pub fn dial(&mut self, domain: &Domain, address: &str, data: &[u8]) -> Result<()> {
        let to = match address.parse::<Address>()? {
            Address::Cm(to) => to,
            Address::Qp(_) => return Err(Error::invalid("addr: the address of a queue pair is for gdrfab_ep_connect_addr")),
        };
        let channel = Channel::new()?;
        let id = Id::new(&channel)?;
        self.set_ack_timeout(&id);
        // The domain's own address is the source, so that rdma_cm chooses the domain's device and no other.
        let from = domain.gid.ip.filter(|ip| ip.is_ipv4() == to.is_ipv4()).map(|ip| SocketAddr::new(ip, 0));
        id.resolve(from, to, RESOLVE_MS).map_err(|e| e.context(format_args!("connecting to {address}")))?;
        self.link = Link { id: Some(id), channel: Some(channel), peer: Some(to), ..Link::default() };
        let deadline = time::deadline(self.options.connect_timeout_ns);
        self.phase = Phase::Connecting(Box::new(Connecting { step: ConnectStep::Address, deadline, data: data.to_vec() }));
        Ok(())
    }

    /// Accepts a connection request. On failure the request is lost and the peer is rejected.
    pub fn accept_request(&mut self, domain: &Domain, request: Request, data: &[u8]) -> Result<()> {
        let (service, rails) = (request.service(), request.rails());
        let mut id = request.into_id().ok_or(Error::fixed(errno::EINVAL, "info->handle: the request was answered already"))?;
        self.check_device(domain, &id)?;
        let channel = Channel::new()?;
        id.migrate(&channel)?;
        self.set_ack_timeout(&id);
        self.move_queue_pairs(domain, &id, service)?;
        let private = Greeting { service: self.service_number(), rails: self.rail_count(), data }.encode();
        id.accept(&self.parameters(domain, &private)?)?;
        let peer = id.peer();
        self.link = Link { id: Some(id), channel: Some(channel), peer, rails, ..Link::default() };
        let deadline = time::deadline(self.options.connect_timeout_ns);
        self.phase = Phase::Connecting(Box::new(Connecting { step: ConnectStep::Establish, deadline, data: Vec::new() }));
        Ok(())
    }

    /// Tells rdma_cm how long the device waits for an acknowledgement. Older kernels and iWARP choose the time
    /// themselves.
    fn set_ack_timeout(&self, id: &Id) {
        if let Err(e) = id.set_ack_timeout(self.retry_policy.timeout) {
            crate::log!(Debug, "{e}");
        }
    }

    fn check_device(&self, domain: &Domain, id: &Id) -> Result<()> {
        let found = (id.device(), id.port());
        if found != (Some(domain.context().name.clone()), domain.port) {
            return Err(Error::new(
                errno::EADDRNOTAVAIL,
                format!(
                    "the route to the peer leaves through port {} of {}, but the domain was opened on port {} of {}",
                    found.1,
                    found.0.as_deref().unwrap_or("no device"),
                    domain.port,
                    domain.context().name
                ),
            ));
        }
        Ok(())
    }

    fn rail_count(&self) -> u8 {
        self.rails.as_ref().map_or(0, |rails| rails.further.len() as u8 + 1)
    }

    fn service_number(&self) -> Option<u32> {
        self.service.as_ref().map(|s| s.qp.number)
    }

    /// Moves the queue pairs to RTR and RTS with the attributes of the connection manager. Over iWARP the kernel moves
    /// them.
    fn move_queue_pairs(&mut self, domain: &Domain, id: &Id, service: Option<u32>) -> Result<()> {
        if domain.is_iwarp() {
            return Ok(());
        }
        let qp = self.qp.as_ref().ok_or(Error::fixed(errno::EOPBADSTATE, "ep: not enabled"))?;
        for (state, words) in [(ibv_qp_state::IBV_QPS_RTR, "RTR"), (ibv_qp_state::IBV_QPS_RTS, "RTS")] {
            let (mut attr, mask) = id.qp_attr(state)?;
            attr.min_rnr_timer = self.retry_policy.min_rnr_timer;
            // The connection manager passes on the numbers that the peer asked for. These numbers may be above the
            // limits of this side's device.
            attr.max_dest_rd_atomic = attr.max_dest_rd_atomic.min(domain.context().reads_in());
            attr.max_rd_atomic = attr.max_rd_atomic.min(domain.context().reads_out());
            (attr.retry_cnt, attr.rnr_retry) = (self.retry_policy.retries, self.retry_policy.rnr_retries);
            qp.modify(&mut attr, mask, words)?;
            if let (Some(mine), Some(peer)) = (&self.service, service) {
                (attr.dest_qp_num, attr.rq_psn, attr.sq_psn) = (peer, Service::psn(peer), Service::psn(mine.qp.number));
                attr.rnr_retry = 7;
                mine.qp.modify(&mut attr, mask, words)?;
            }
        }
        if let Some(mine) = &mut self.service {
            mine.up = service.is_some();
        }
        Ok(())
    }

    /// Connects the service queue pair to the service queue pair that an exchanged address names.
    fn connect_service(&self, domain: &Domain) -> Result<()> {
        let (Some(mine), Some(peer)) = (&self.service, &self.link.service) else { return Ok(()) };
        let local = local_of(domain, Service::psn(mine.qp.number));
        let patience = RetryPolicy { rnr_retries: 7, ..self.retry_policy };
        mine.qp.ready_to_receive(domain.context(), &local, peer, &patience)?;
        mine.qp.ready_to_send(domain.context(), &local, peer, &patience)
    }

    /// Asks the peer's device for a sign of life.
    fn send_hello(&mut self) -> Result<()> {
        self.link.alive_asked_at = now_ns();
        match &mut self.service {
            Some(s) => s.send([u64::from(kind::HELLO), 0, 0, 0, 0, 0, 0, 0]),
            None => Ok(()),
        }
    }

    /// Handles the arrival of a service message of this kind at the peer's device.
    pub fn on_sent(&mut self, sent: u8) {
        if sent == kind::HELLO && matches!(&self.phase, Phase::Connecting(c) if c.step == ConnectStep::Hello) {
            if let Some(s) = &mut self.service {
                s.up = true;
            }
            self.phase = Phase::Connected;
            self.event(EventKind::Connected, Vec::new(), None);
        }
    }

    /// Handles a failure of the service queue pair: the service queue pair of the peer does not answer.
    pub fn on_service_failed(&mut self, status: u32) {
        if matches!(&self.phase, Phase::Connecting(c) if c.step == ConnectStep::Hello) {
            self.link.hello_unanswered = true;
            return;
        }
        let failed = Failed { operation: "keepalive", receive: false, status, qpn: self.service_number().unwrap_or(0), vendor_err: 0 };
        let e = status::completion_error(&failed);
        if !self.blames_operation(status, false, None) && self.can_fail_over() {
            return self.fail_over(e);
        }
        self.begin_teardown(Error::coded(e.errno, Code::PeerGone, e.words), false);
    }

    /// Tells the peer that this side ends the connection: through the connection manager, or by a message where there
    /// is none.
    pub fn send_goodbye(&mut self) {
        self.link.disconnect();
        let Some(s) = &mut self.service else { return };
        let sent = self.link.by_address.is_some()
            && s.up
            && !self.link.bye_received
            && s.send([u64::from(kind::BYE), 0, 0, 0, 0, 0, 0, 0]).is_ok();
        if !sent && let Err(e) = s.qp.fail() {
            crate::log!(Warn, "{e}");
        }
    }

    /// Connects to the queue pair that an exchanged address names.
    pub fn connect_by_address(&mut self, domain: &Domain, address: &str, psn: u32) -> Result<()> {
        let peer = match address.parse::<Address>()? {
            Address::Qp(peer) => peer,
            Address::Cm(_) => return Err(Error::invalid("addr: the address of a listener is for gdrfab_ep_connect")),
        };
        let Some(qp) = &self.qp else { return Err(Error::fixed(errno::EOPBADSTATE, "ep: not enabled")) };
        if peer.qpn == qp.number && peer.gid == domain.gid.raw && peer.lid == domain.lid {
            return Err(Error::invalid("addr: this is the endpoint's own address"));
        }
        let config = &config::get().verbs;
        let local = local_of(domain, psn);
        let remote = RemoteQp {
            gid: peer.gid,
            lid: peer.lid,
            qpn: peer.qpn,
            psn: peer.psn,
            mtu: peer.mtu.min(domain.mtu),
            service_level: config.service_level,
            traffic_class: config.traffic_class,
            hop_limit: 64,
            reads: peer.reads,
        };
        qp.ready_to_receive(domain.context(), &local, &remote, &self.retry_policy)?;
        qp.ready_to_send(domain.context(), &local, &remote, &self.retry_policy)?;
        let service = peer.service.map(|qpn| RemoteQp { qpn, psn: Service::psn(qpn), ..remote });
        // The number of the peer's rails is unknown here. The peer's answer to an offer shows whether the peer has that
        // rail.
        self.link = Link { by_address: Some(peer), service, rails: u8::MAX, ..Link::default() };
        if self.link.service.is_none() || self.service.is_none() {
            // One side has no service queue pair, so only an operation can find out whether the peer exists.
            self.phase = Phase::Connected;
            self.event(EventKind::Connected, Vec::new(), None);
            return Ok(());
        }
        self.connect_service(domain)?;
        let deadline = time::deadline(self.options.connect_timeout_ns);
        self.phase = Phase::Connecting(Box::new(Connecting { step: ConnectStep::Hello, deadline, data: Vec::new() }));
        self.send_hello()
    }

    /// Handles the events of the connection manager, and ends an attempt that takes too long.
    pub fn progress_connection(&mut self, domain: &Domain) {
        while let Some(channel) = self.link.channel.clone() {
            match channel.next() {
                Ok(Some(event)) => self.on_cm_event(domain, event),
                Ok(None) => break,
                Err(e) => {
                    crate::log!(Warn, "{e}");
                    break;
                }
            }
        }
        if std::mem::take(&mut self.link.hello_unanswered)
            && let Err(e) = self.try_again(domain)
        {
            self.fail_attempt(e, Vec::new());
        }
        self.check_alive();
        self.repeat_first();
        if self.connecting_deadline().is_some_and(|d| d != 0 && now_ns() > d) {
            let words = "the peer did not answer the connection request in time";
            self.fail_attempt(Error::coded(errno::ETIMEDOUT, Code::Deadline, words), Vec::new());
        }
    }

    /// Starts the attempt again, because the peer did not exist yet.
    fn try_again(&mut self, domain: &Domain) -> Result<()> {
        if let Some(s) = &mut self.service {
            s.restart(domain.port)?;
        }
        self.connect_service(domain)?;
        self.send_hello()
    }

    /// Without a connection manager no event reports that a peer has died, so the peer's device is asked now and then.
    fn check_alive(&mut self) {
        let idle = self.service.as_ref().is_some_and(|s| s.up && s.outstanding == 0) && !self.link.bye_received;
        let due =
            matches!(self.phase, Phase::Connected) && self.link.by_address.is_some() && now_ns() > self.link.alive_asked_at + ALIVE_NS;
        if idle
            && due
            && let Err(e) = self.send_hello()
        {
            crate::log!(Warn, "{e}");
        }
    }

    fn on_cm_event(&mut self, domain: &Domain, event: CmEvent) {
        if !matches!(self.phase, Phase::Connecting(_)) {
            return self.on_late_event(event);
        }
        let greeting = greeting::decode(&event.private_data);
        let service = greeting.as_ref().and_then(|g| g.service);
        if let Some(greeting) = &greeting
            && matches!(event.kind, CmEventKind::ConnectResponse)
        {
            self.link.rails = greeting.rails;
        }
        let peer_data = greeting.map(|g| g.data.to_vec());
        let next = match event.kind {
            CmEventKind::AddrResolved => self.on_addr_resolved(domain),
            CmEventKind::RouteResolved => self.on_route_resolved(domain),
            CmEventKind::ConnectResponse => {
                self.on_connect_response(domain, service).map(|()| Some(peer_data.unwrap_or(event.private_data)))
            }
            CmEventKind::Established => Ok(Some(match &self.phase {
                // On the accepting side, the peer's private data came with the request.
                Phase::Connecting(c) if c.step == ConnectStep::Establish => Vec::new(),
                _ => peer_data.unwrap_or(event.private_data),
            })),
            CmEventKind::Rejected => {
                // A gdrfab peer that rejects sends a greeting. Other programs are recognised by the reason "consumer
                // defined".
                let why = match peer_data.is_some() || event.status == CONSUMER_DEFINED {
                    true => Error::coded(errno::ECONNREFUSED, Code::Rejected, "the peer rejected the connection"),
                    false => {
                        let peer_name = self.link.peer().map_or(String::new(), |p| p.to_string());
                        Error::new(errno::ECONNREFUSED, format!("nothing listens at {peer_name} (rdma_cm reason {})", event.status))
                    }
                };
                return self.fail_attempt(why, peer_data.unwrap_or_default());
            }
            CmEventKind::TimewaitExit => Ok(None),
            _ => Err(event
                .error()
                .unwrap_or_else(|| Error::new(errno::ECONNABORTED, format!("connecting failed with rdma_cm event {:?}", event.kind)))),
        };
        match next {
            Ok(None) => {}
            Ok(Some(data)) => match self.lane.is_some() && domain.is_iwarp() {
                true => self.connected_by_iwarp(data),
                false => self.connected(data),
            },
            Err(e) => self.fail_attempt(e, Vec::new()),
        }
    }

    pub(in crate::prov::verbs) fn connected(&mut self, data: Vec<u8>) {
        self.phase = Phase::Connected;
        self.event(EventKind::Connected, data, None);
    }

    pub(in crate::prov::verbs) fn set_step(&mut self, to: ConnectStep) {
        if let Phase::Connecting(c) = &mut self.phase {
            c.step = to;
        }
    }

    fn id(&self) -> Result<&Id> {
        self.link.id.as_ref().ok_or(Error::fixed(errno::EOPBADSTATE, "ep: no connection identifier"))
    }

    fn on_addr_resolved(&mut self, domain: &Domain) -> Result<Option<Vec<u8>>> {
        let id = self.id()?;
        self.check_device(domain, id)?;
        id.resolve_route(RESOLVE_MS)?;
        self.set_step(ConnectStep::Route);
        Ok(None)
    }

    fn on_route_resolved(&mut self, domain: &Domain) -> Result<Option<Vec<u8>>> {
        let data = match &self.phase {
            Phase::Connecting(c) => c.data.as_slice(),
            _ => &[],
        };
        let private = Greeting { service: self.service_number(), rails: self.rail_count(), data }.encode();
        let peer_name = || self.link.peer().map_or(String::new(), |p| p.to_string());
        self.id()?.connect(&self.parameters(domain, &private)?).map_err(|e| e.context(format_args!("connecting to {}", peer_name())))?;
        self.set_step(ConnectStep::Answer);
        Ok(None)
    }

    /// The peer has accepted. The queue pairs are moved to RTR and RTS, and the peer is told.
    fn on_connect_response(&mut self, domain: &Domain, service: Option<u32>) -> Result<()> {
        let Some(id) = self.link.id.take() else { return Err(Error::fixed(errno::EOPBADSTATE, "ep: no connection identifier")) };
        let moved = self.move_queue_pairs(domain, &id, service).and_then(|()| id.establish());
        self.link.id = Some(id);
        moved
    }

    fn on_late_event(&mut self, event: CmEvent) {
        let why = match event.kind {
            CmEventKind::Disconnected => {
                let words = "the peer closed the connection or died";
                return self.peer_closed(Error::coded(errno::ECONNRESET, Code::PeerGone, words));
            }
            CmEventKind::DeviceRemoval => Error::coded(errno::ENODEV, Code::PeerGone, "the RDMA device was removed"),
            CmEventKind::TimewaitExit | CmEventKind::AddrChange | CmEventKind::Established => return,
            _ => match event.error() {
                Some(e) => e,
                None => return,
            },
        };
        self.begin_teardown(why, false);
        self.finish_if_drained();
    }

    /// Ends an attempt that has failed: an error event is reported, and the endpoint cannot be used any more.
    pub(in crate::prov::verbs) fn fail_attempt(&mut self, why: Error, data: Vec<u8>) {
        self.begin_teardown(why.clone(), true);
        self.finish_if_drained();
        self.event(EventKind::Connected, data, Some(why));
    }
}

pub fn local_of(domain: &Domain, psn: u32) -> LocalPort {
    LocalPort { port: domain.port, gid_index: domain.gid.index, psn, global: domain.ethernet || domain.lid == 0 }
}

/// The address by which a peer's queue pair reaches this one.
pub fn address_of(domain: &Domain, qp: &Qp, psn: u32, service: Option<u32>) -> Address {
    Address::Qp(QpAddress {
        lid: domain.lid,
        gid: domain.gid.raw,
        qpn: qp.number,
        psn,
        mtu: domain.mtu,
        service,
        reads: domain.context().reads_in(),
        access: 0,
    })
}
