// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The calls of `fabric` on an endpoint, each under the endpoint's lock.

use super::cq_reader::CqReader;
use super::ops;
pub use super::ops::Endpoint;
use super::state::State;
use super::wire::hello::{MATCHED_LEN, VERSION};
use crate::config;
use crate::error::{Error, Result, errno};
use crate::prov::atomic::{Atomic, AtomicOp};
use crate::prov::av::Name;
use crate::prov::bind::{Binding, Bindings, Coop, Effort, Options, RailList};
use crate::prov::info::Info;
use crate::prov::list::{List, Native, Pair, Run};
use crate::prov::name;
use crate::prov::op::{Common, Dir, Iov, RmaIov};
use crate::prov::ops::{Dispatch, OpFlags};
use crate::prov::report::{MESSAGES, PathReport, RailReport, Short, Stats};
use crate::prov::{self, Provider, Reach, Request, flags};
use crate::rdm::connect::connected::connectionless;
use crate::rdm::connect::listen::{listen, source_of};
use crate::rdm::connect::same_host;
use crate::rdm::connect::wireup::no_room_for_callers;
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::memory::registration_cache::CacheCounts;
use crate::rdm::parts::exposed::ExposedRegions;
use crate::rdm::parts::lanes::Lanes;
use crate::rdm::parts::listeners::Listeners;
use crate::rdm::parts::matching::Matching;
use crate::rdm::parts::peers::Peers;
use crate::rdm::parts::reports::Reports;
use crate::rdm::parts::turns::Turns;
use crate::rdm::peers::outstanding::{FaultInjection, Ops};
use crate::rdm::peers::peer::ONLY_PEER;
use crate::rdm::transfer::cancel::Cancelled;
use crate::sync::gate::Fences;
use crate::sync::serial::{Rank, Serial};
use crate::sys::epoll::Poller;
use crate::sys::time;
use std::net::SocketAddr;
use std::sync::Arc;

impl Endpoint {
    pub fn open(domain: Arc<Domain>, info: &Info) -> Result<Endpoint> {
        let source = info.src_addr.as_deref().map(source_of).transpose()?;
        Endpoint::with_source(domain, info, source)
    }

    pub fn open_connected(domain: Arc<Domain>, info: &Info, context: usize) -> Result<Endpoint> {
        let opened = Endpoint::with_source(domain, info, None)?;
        opened.state.lock().open_connection(&opened.domain, context)?;
        Ok(opened)
    }

    fn with_source(domain: Arc<Domain>, info: &Info, source: Option<SocketAddr>) -> Result<Endpoint> {
        let state = State {
            name: None,
            bind: Bindings::default(),
            options: Options { coop: Coop::of(!config::get().debug.no_coop && domain.shares_copies()), ..Options::default() },
            faults: FaultInjection::configured(&domain),
            connection: None,
            closed: false,
            directed: info.caps & flags::DIRECTED_RECV != 0,
            delivery_complete: false,
            fast_send: false,
            fast_recv: false,
            fast_untagged: false,
            entry_by_default: false,
            reader: CqReader::NONE,
            peers: Peers::new(&domain),
            matching: Matching::default(),
            ops: Ops::default(),
            lanes: Lanes::new(domain.threading)?,
            listeners: Listeners::default(),
            violations: Vec::new(),
            exposed: ExposedRegions::default(),
            lists: 0,
            user_copy: domain.user_copy.clone(),
            earliest: 0,
            turns: Turns::default(),
            reports: Reports::default(),
            sleepers: 0,
        };
        Ok(Endpoint { source, state: Serial::new(domain.threading, Rank::Connectionless, state), domain })
    }
}

impl prov::Endpoint for Endpoint {
    /// Only a connected endpoint keeps the object, because a connectionless endpoint has no events that name it.
    fn set_object(&self, object: usize) {
        if let Some(connection) = &mut self.state.lock().connection {
            connection.object = object;
        }
    }

    fn cm_data_size(&self) -> usize {
        self.state.lock().connection.as_ref().map_or(0, |connection| connection.link.ep.cm_data_size() - MATCHED_LEN)
    }

    fn bind(&self, what: Binding) -> Result<()> {
        let mut s = self.state.lock();
        s.bind.check_can_bind(&what)?;
        match what {
            Binding::Av(_) if s.connection.is_none() && s.peers.has_av() => {
                return Err(Error::new(errno::EBUSY, "ep: an address vector is bound already"));
            }
            Binding::Av(av) if s.connection.is_none() => s.peers.set_av(av),
            Binding::Order => return Err(Error::new(errno::EOPNOTSUPP, "info->comp_order: entries come as operations end")),
            Binding::Drivers(drivers) => {
                s.lanes.set_drivers(drivers.clone());
                s.bind.bind(Binding::Drivers(drivers))?;
            }
            other => s.bind.bind(other)?,
        }
        s.settle_fast();
        Ok(())
    }

    fn enable(&self, op_flags: OpFlags) -> Result<()> {
        let mut s = self.state.lock();
        if !s.peers.has_av() && s.connection.is_none() {
            return Err(Error::new(errno::EOPBADSTATE, "ep: bind an address vector before ep_enable"));
        }
        s.bind.check_can_enable()?;
        s.enable_connection()?;
        if s.connection.is_none() {
            let host = same_host::host_hint()?;
            let (at, acceptors) = listen(&self.domain, self.source)?;
            let mut name = Name::at(at);
            (name.nonce, name.host) = (self.domain.draw(), host);
            s.name = Some(name);
            s.listeners.open(acceptors);
        }
        s.delivery_complete = op_flags.tx & flags::DELIVERY_COMPLETE != 0;
        s.bind.enable(op_flags);
        s.reports.set_polls_lanes(true);
        s.settle_fast();
        Ok(())
    }

    fn dispatch(&self) -> Option<Dispatch> {
        Some(Dispatch { ops: ops::choose(self.domain.threading), of: (&raw const *self).cast(), tx: std::ptr::null() })
    }

    fn connect(&self, address: &str, data: &[u8]) -> Result<()> {
        self.state.lock().connect(address, data)
    }

    fn connect_addr(&self, address: &str) -> Result<()> {
        self.state.lock().connect_addr(address)
    }

    fn accept(&self, request: Box<dyn Request>, data: &[u8]) -> Result<()> {
        self.state.lock().accept(&self.domain, request, data)
    }

    fn address(&self) -> Result<String> {
        let s = self.state.lock();
        match (&s.connection, s.name) {
            (Some(connection), _) => Ok(name::matched(&connection.link.ep.address()?, VERSION)),
            (None, Some(name)) => Ok(name.to_string()),
            (None, None) => Err(Error::new(errno::EOPBADSTATE, "ep: call ep_enable first; it has no address before")),
        }
    }

    fn peer_address(&self) -> Result<String> {
        let s = self.state.lock();
        let connection = s.connection.as_ref().ok_or_else(connectionless)?;
        let address = connection.link.ep.peer_address()?;
        Ok(if connection.exchanged { name::matched(&address, VERSION) } else { address })
    }

    fn shutdown(&self) -> Result<()> {
        let mut s = self.state.lock();
        let link = s.lane_to_end()?;
        crate::log!(Debug, "ep: lane {} is shut down", link.number);
        s.flush_promised(&self.domain);
        s.drain_lane(ONLY_PEER, &link);
        s.end_all(&self.domain);
        Ok(())
    }

    fn close(&self) -> Result<()> {
        let mut s = self.state.lock();
        if !s.closed {
            s.flush_promised(&self.domain);
            s.end_all(&self.domain);
        }
        s.lanes.end_connecting();
        let until = time::now_ns() + crate::config::get().close_ms * 1_000_000;
        loop {
            s.lanes.close_ended();
            s.take_results();
            s.exposed.close_returned(&self.domain);
            s.exposed.retry_soon();
            s.retry_closes(&self.domain, time::now_ns());
            if !s.lanes.is_closing() && !s.exposed.has_revoked() {
                break;
            }
            if time::now_ns() > until {
                return Err(Error::new(errno::EBUSY, "ep: a peer that does not go on still has a buffer of an operation"));
            }
        }
        self.domain.adopt(s.exposed.take_busy());
        s.bind = Bindings::default();
        Ok(())
    }

    fn rma(&self, dir: Dir, local: &[Iov], remote: &[RmaIov], common: &Common, descs: &[u64]) -> Result<()> {
        self.state.lock().rma(&self.domain, dir, local, remote, common, descs)
    }

    fn atomic_valid(&self, what: Atomic) -> Result<usize> {
        Ok(what.most())
    }

    fn atomic(&self, op: &AtomicOp, common: &Common) -> Result<()> {
        self.state.lock().atomic(&self.domain, op, common)
    }

    fn list(&self, dir: Dir, list: &List, common: &Common) -> Result<Native> {
        self.state.lock().list(&self.domain, dir, list, common)
    }

    fn list_part(&self, dir: Dir, runs: &[Run], pairs: &[Pair], common: &Common) -> Result<usize> {
        self.state.lock().list_part(&self.domain, dir, runs, pairs, common)
    }

    fn send(&self, local: &[Iov], common: &Common, descs: &[u64]) -> Result<()> {
        self.state.lock().send(&self.domain, local, common, descs, None)
    }

    fn recv(&self, local: &[Iov], common: &Common, descs: &[u64]) -> Result<()> {
        let mut s = self.state.lock();
        s.recv(&self.domain, local, common, descs, None)?;
        s.run_queued_work(&self.domain);
        Ok(())
    }

    fn tsend(&self, local: &[Iov], common: &Common, descs: &[u64], tag: u64) -> Result<()> {
        self.state.lock().send(&self.domain, local, common, descs, Some(tag))
    }

    fn trecv(&self, local: &[Iov], common: &Common, descs: &[u64], tag: u64, ignore: u64) -> Result<()> {
        let mut s = self.state.lock();
        s.recv(&self.domain, local, common, descs, Some((tag, ignore)))?;
        s.run_queued_work(&self.domain);
        Ok(())
    }

    fn cancel(&self, context: usize) -> Result<()> {
        let mut s = self.state.lock();
        if s.cancel(&self.domain, context)? == Cancelled::Withdrawn {
            s.run_queued_work(&self.domain);
        }
        Ok(())
    }

    fn progress(&self, force: bool) {
        let Some(mut s) = (if force { Some(self.state.lock()) } else { self.state.try_lock() }) else { return };
        // If a `gdrfab_cq_read` panicked, `reader` still has the array of that call, which is no longer valid.
        s.reader.end();
        s.progress(&self.domain, force);
    }

    fn sleep(&self, poller: &Poller) -> Result<Option<Fences>> {
        let mut s = self.state.lock();
        s.sleepers += 1;
        // Messages that wait for credit are offered now, because a sleeping thread does not look for credit.
        s.run_queued_work(&self.domain);
        let mut fences = None;
        for link in s.lanes.each() {
            match link.ep.sleep(poller)? {
                Some(Fences::Remote) => fences = Some(Fences::Remote),
                Some(Fences::Full) => fences = fences.or(Some(Fences::Full)),
                None => {}
            }
        }
        s.listeners.watch(poller)?;
        Ok(fences)
    }

    fn may_sleep(&self) -> bool {
        let s = self.state.lock();
        s.lanes.is_handled() && s.lanes.each().all(|link| link.ep.may_sleep())
    }

    fn end_sleep(&self, poller: Option<&Poller>) {
        let mut s = self.state.lock();
        s.sleepers = s.sleepers.saturating_sub(1);
        s.lanes.each().for_each(|link| link.ep.end_sleep(poller));
    }

    fn sleep_limit_ns(&self) -> u64 {
        /// Longest sleep of a thread while a peer has to be dialed again, a lane or region has to be closed, or lanes are not
        /// polled because the program's queue is full.
        const RECHECK_NS: u64 = 10_000_000;
        let s = self.state.lock();
        let now = time::now_ns();
        let until = |at: u64| at.saturating_sub(now).max(1_000_000);
        let own = if s.earliest == 0 { u64::MAX } else { until(s.earliest) };
        let own = s.faults.as_ref().map_or(own, |faults| own.min(until(faults.next())));
        let idle = !s.peers.is_awaiting() && !s.lanes.is_closing() && !s.exposed.is_closing();
        // No event announces that the program has made room in its queue, so a sleeping thread wakes to look for room too.
        let own = if idle && (s.reports.polls_lanes() || s.closed) { own } else { own.min(RECHECK_NS) };
        let nap = s.lanes.each().map(|link| link.ep.sleep_limit_ns()).fold(own, u64::min);
        s.bind.sleeps(now, nap)
    }

    fn watch_version(&self) -> u64 {
        let s = self.state.lock();
        let lanes = s.lanes.each().map(|link| link.ep.watch_version() ^ link.number as u64);
        let all = lanes.chain(s.listeners.watch_versions());
        all.fold(0, |sum, n| sum.wrapping_mul(0x100_0000_01b3).wrapping_add(n + 1))
    }

    fn is_stalled(&self) -> bool {
        let s = self.state.lock();
        s.peers.queued_work() != 0 || s.exposed.returned() != 0 || s.lanes.connected_lanes().iter().any(|(_, link)| link.ep.is_stalled())
    }

    fn options(&self) -> Options {
        self.state.lock().options
    }

    fn set_options(&self, change: &mut dyn FnMut(&mut Options)) {
        let mut s = self.state.lock();
        change(&mut s.options);
        s.settle_fast();
        let options = s.options;
        s.lanes.each().for_each(|link| link.set_options(options));
    }

    fn set_coop(&self, coop: Coop) -> Result<()> {
        if coop.is_on() && !self.domain.shares_copies() {
            return Err(prov::no_coop());
        }
        self.set_options(&mut |o| o.coop = coop);
        Ok(())
    }

    fn set_rails(&self, rails: RailList) -> Result<()> {
        if let Some(connection) = &self.state.lock().connection {
            connection.link.ep.set_rails(rails)?;
        }
        self.set_options(&mut |o| o.rails = Some(rails));
        Ok(())
    }

    fn effort(&self, what: Effort) -> Result<u32> {
        self.state.lock().connection.as_ref().map_or_else(|| Err(prov::no_effort()), |connection| connection.link.ep.effort(what))
    }

    fn set_effort(&self, what: Effort, value: u32) -> Result<()> {
        self.state
            .lock()
            .connection
            .as_ref()
            .map_or_else(|| Err(prov::no_effort()), |connection| connection.link.ep.set_effort(what, value))
    }

    /// Only 0, no stream, is accepted. An operation may start long after its call, and the receiver reads a message in
    /// device memory, so there is no stream to order the operation with.
    fn set_stream(&self, stream: u64) -> Result<()> {
        match stream {
            0 => Ok(()),
            _ => {
                let words = "GDRFAB_OPT_STREAM: a connectionless endpoint waits for no stream; synchronise with it before posting";
                Err(Error::new(errno::EOPNOTSUPP, words))
            }
        }
    }

    fn rail_reports(&self, index: u64) -> Result<Vec<RailReport>> {
        let mut s = self.state.lock();
        s.check_enabled()?;
        let id = s.route(index)?;
        if s.peers.is_loopback(id) {
            return Ok(Vec::new());
        }
        match s.peers.get(id).and_then(|p| p.ready()) {
            Some(link) => link.ep.rail_reports(0),
            None => Err(Error::fixed(errno::ENOTCONN, "ep: nothing has connected this peer yet")),
        }
    }

    fn report(&self, index: u64, key: u64, desc: u64) -> Result<PathReport> {
        let mut s = self.state.lock();
        s.check_enabled()?;
        let id = s.route(index)?;
        if s.peers.is_loopback(id) {
            return s.report_loopback(&self.domain, key, desc);
        }
        let name = s.peers.get(id).map(|p| p.name);
        match s.peers.get(id).and_then(|p| p.ready()) {
            Some(link) => {
                let (descs, _) = self.domain.descs_of(link.lane_index, &[desc])?;
                let report = adapt_report(link.ep.report(0, key, descs[0])?, key, link.eager_max);
                let provider = self.domain.lanes.get(link.lane_index).map(|lane| lane.provider);
                let lane = provider.map_or("", |provider| provider.name());
                let is_local = |provider: &dyn Provider| provider.reach() == Reach::Host;
                let local = self.domain.lanes.iter().any(|lane| is_local(lane.provider)) && !provider.is_some_and(is_local);
                let peer = s.peers.get(id);
                let local_error = peer.and_then(|p| p.why_not_local.as_deref());
                let names = name.as_ref().zip(s.name.as_ref()).filter(|_| local);
                let not_local = names.map(|(name, own)| same_host::why_not_local(name, own, local_error));
                let device = peer.and_then(|p| p.why_no_device.as_deref());
                let device = device.filter(|_| provider.is_some_and(|provider| provider.reach() == Reach::Ports));
                let why = not_local.into_iter().chain(device).collect::<Vec<_>>().join("; ");
                let why = if why.is_empty() { why } else { format!(" ({why})") };
                Ok(PathReport { text: format!("over {lane}{why}:\n{}", report.text), ..report })
            }
            None => {
                let why = if s.peers.get(id).is_some_and(|p| p.refusals > 0) {
                    format!(": {}", no_room_for_callers().words)
                } else {
                    String::new()
                };
                Err(Error::new(errno::ENOTCONN, format!("peer: it was not reached yet, so no way to it is settled{why}")))
            }
        }
    }

    fn stats(&self) -> Stats {
        let s = self.state.lock();
        let all = s.reports.all_stats(s.lanes.connected_lanes().iter().map(|(_, link)| link.ep.stats()));
        let CacheCounts { hits, misses, evictions } = self.domain.cached();
        Stats { cache_hits: hits, cache_misses: misses, cache_evictions: evictions, ..all }
    }
}

/// Adapts a lane's report to messages, which this layer matches: a short message goes as a parcel of the lane, and the
/// receiver reads a longer message as an RMA read would.
fn adapt_report(report: PathReport, key: u64, eager_max: usize) -> PathReport {
    if key != MESSAGES {
        return report;
    }
    let path = report.short.map_or(report.path, |short| short.path);
    PathReport { short: Some(Short { path, most: eager_max, how: "with their bytes; of longer ones the receiver reads them" }), ..report }
}
