// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An endpoint: implements the calls of the layer above, each under the endpoint's lock.

use super::domain::Domain;
use super::state::{ConnectStage, Connecting, Faults, Phase, State};
use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::copier;
use crate::prov::atomic::{Atomic, AtomicOp};
use crate::prov::bind::{Binding, Bindings, Coop, Options, Stage};
use crate::prov::fault::Plan;
use crate::prov::list::{List, Native};
use crate::prov::op::{Common, Dir, Iov, RmaIov, one_kind};
use crate::prov::ops::{Dispatch, OpFlags};
use crate::prov::report::{MESSAGES, PathReport, Stats};
use crate::prov::request::own_request;
use crate::prov::shm::connect::cm;
use crate::prov::shm::connect::leaving;
use crate::prov::shm::handshake::acceptor::{HandshakeAcceptor, Request};
use crate::prov::shm::ops::rma::SLOW_FLAGS;
use crate::prov::shm::ops::table;
pub use crate::prov::shm::ops::table::Endpoint;
use crate::prov::shm::state::job::Job;
use crate::prov::shm::state::posted_receives::PostedReceives;
use crate::prov::shm::wire::address::{SCHEME, check_address, fresh_name};
use crate::prov::shm::wire::frame::DATA_MAX;
use crate::prov::shm::wire::layout::{MIN_LINES, Segment};
use crate::prov::{self, flags};
use crate::sync::gate::Fences;
use crate::sync::serial::{Rank, Serial};
use crate::sys::epoll::Poller;
use crate::sys::time;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

/// The value of `State::shared_from`: the length from which an operation takes no fast path.
fn shared_from(coop: Coop, faults: bool) -> usize {
    match (faults, coop.is_on()) {
        (true, _) => 0,
        (_, true) => config::get().debug.coop_min,
        _ => usize::MAX,
    }
}

impl Endpoint {
    pub fn open(domain: Arc<Domain>, context: usize) -> Endpoint {
        let config = config::get();
        let options = Options { driver_calls: !config.hmem.driver.process, coop: Coop::of(!config.debug.no_coop), ..Options::default() };
        let faults = Plan::of("shm").map(|plan| Faults { plan, held: VecDeque::new() });
        let state = State {
            phase: Phase::Fresh,
            bind: Bindings::default(),
            options,
            streaming_from: config.debug.nt_threshold,
            shared_from: shared_from(options.coop, faults.is_some()),
            eager_end: if faults.is_some() { 0 } else { config.ring_max(false) + 1 },
            private_end: if faults.is_some() { 0 } else { config.ring_max(true) + 1 },
            line_end: 0,
            out_of_line_end: 0,
            fast_receives: false,
            fast: false,
            faults,
            deliver: false,
            object: 0,
            context,
            conn: None,
            leaving: None,
            rx: None,
            segment: None,
            recvs: PostedReceives::default(),
            unexpected: VecDeque::new(),
            parcels: VecDeque::new(),
            taking: false,
            refusals: 0,
            matched: 0,
            published: 0,
            fetched: 0,
            stats: Stats::default(),
            polls: 0,
            sleepers: 0,
            last_control: 0,
            controls: 0,
            recv_deadline: 0,
            peer_name: None,
            acceptor: None,
            address: None,
            copier: None,
        };
        Endpoint { state: Serial::new(domain.threading, Rank::Connected, state), domain }
    }

    fn check_can_connect(s: &State) -> Result<()> {
        s.bind.check_can_connect(match s.phase {
            Phase::Fresh => Stage::Fresh,
            Phase::Enabled => Stage::Enabled,
            Phase::Connecting(_) | Phase::Connected => Stage::Connected,
            Phase::Down(_) => Stage::Over,
        })
    }

    /// Ends the connection or the attempt to connect, from this side, and adds no event. The endpoint cannot connect
    /// again.
    fn leave(&self, s: &mut State) {
        let why = Error::coded(errno::ECANCELED, Code::Canceled, "this side shut the connection down");
        if matches!(&s.phase, Phase::Connecting(c) if matches!(c.stage, ConnectStage::Joining(_)))
            && let Phase::Connecting(c) = std::mem::replace(&mut s.phase, Phase::Enabled)
            && let ConnectStage::Joining(conn) = c.stage
        {
            s.conn = Some(conn);
        }
        s.tear(&self.domain, &why);
        s.acceptor = None;
        s.segment = None;
        if !matches!(s.phase, Phase::Down(_)) {
            s.phase = Phase::Down(why);
        }
    }
}

impl prov::Endpoint for Endpoint {
    /// Sets the handle that events name.
    fn set_object(&self, object: usize) {
        self.state.lock().object = object;
    }

    fn bind(&self, what: Binding) -> Result<()> {
        let mut s = self.state.lock();
        s.bind.bind(what)?;
        if s.bind.enabled {
            s.choose_fast_paths();
            s.fast &= s.bind.is_fast();
        }
        Ok(())
    }

    /// Enables the endpoint, and decides which fast paths its operations may take. `op_flags`: the default flags of
    /// operations.
    fn enable(&self, op_flags: OpFlags) -> Result<()> {
        let mut s = self.state.lock();
        s.bind.check_can_enable()?;
        let lines = config::get().debug.ring_slots as usize;
        // A connectionless endpoint has many lanes, whose rings together should fit into a cache.
        s.segment = Some(Segment::create(if s.bind.is_lane() { MIN_LINES } else { lines })?);
        s.phase = Phase::Enabled;
        s.bind.enable(op_flags);
        s.deliver = op_flags.tx & flags::DELIVERY_COMPLETE != 0;
        s.choose_fast_paths();
        let promised = self.state.threading().is_promised();
        s.fast = promised && s.faults.is_none() && s.bind.is_fast() && op_flags.tx & (SLOW_FLAGS | flags::INJECT) == 0;
        Ok(())
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let s = self.state.lock();
        let tx = s.bind.tx.as_deref().map_or(std::ptr::null(), |q| &raw const *q);
        Some(Dispatch { ops: table::choose(self.state.threading(), s.fast), of: (&raw const *self).cast(), tx })
    }

    fn connect(&self, address: &str, data: &[u8]) -> Result<()> {
        let mut s = self.state.lock();
        Self::check_can_connect(&s)?;
        let name = check_address(address)?.to_string();
        debug_assert!(data.len() <= DATA_MAX);
        let deadline = time::deadline(s.options.connect_timeout_ns);
        let stage = ConnectStage::Dial { name, by_name: false, socket: None };
        s.phase = Phase::Connecting(Box::new(Connecting { stage, deadline, data: data.to_vec() }));
        cm::advance(&mut s, &self.domain);
        Ok(())
    }

    fn connect_addr(&self, address: &str) -> Result<()> {
        let mut s = self.state.lock();
        Self::check_can_connect(&s)?;
        let deadline = time::deadline(s.options.connect_timeout_ns);
        cm::by_address(&mut s, address, deadline)?;
        cm::advance(&mut s, &self.domain);
        Ok(())
    }

    /// Accepts a request. A failure consumes the request too, because its peer is gone then.
    fn accept(&self, request: Box<dyn prov::Request>, data: &[u8]) -> Result<()> {
        let request: Request = own_request(request)?;
        let mut s = self.state.lock();
        Self::check_can_connect(&s)?;
        s.accept(&self.domain, request, data)
    }

    /// The address by which a peer can connect to this endpoint.
    fn address(&self) -> Result<String> {
        let mut s = self.state.lock();
        if let Some(known) = &s.address {
            return Ok(known.clone());
        }
        let name = fresh_name()?;
        let address = format!("{SCHEME}{name}");
        // No peer can dial an endpoint that is connecting already, so the name then only identifies the endpoint.
        if matches!(s.phase, Phase::Fresh | Phase::Enabled) {
            s.acceptor = Some(HandshakeAcceptor::listen(name, false)?);
        }
        s.address = Some(address.clone());
        Ok(address)
    }

    fn peer_address(&self) -> Result<String> {
        let s = self.state.lock();
        match (&s.conn, &s.peer_name) {
            (Some(_), Some(name)) => Ok(format!("{SCHEME}{name}")),
            _ => Err(s.not_connected()),
        }
    }

    /// Ends the connection: tells the peer, and ends all outstanding operations.
    fn shutdown(&self) -> Result<()> {
        let mut s = self.state.lock();
        if s.conn.is_none() && !matches!(s.phase, Phase::Connecting(_)) {
            return Err(s.not_connected());
        }
        self.leave(&mut s);
        Ok(())
    }

    /// Closes the endpoint; posted receives get error entries. `EBUSY`: a stopped peer or a device may still use the
    /// buffer of an operation, so that the operation's entry cannot come yet. Everything else has ended by then.
    fn close(&self) -> Result<()> {
        let until = time::now_ns() + config::get().close_ms * 1_000_000;
        self.leave(&mut self.state.lock());
        loop {
            let mut s = self.state.lock();
            s.end_quiet_operations();
            let Some(leaving) = &s.leaving else {
                s.unexpected.clear();
                s.bind = Bindings::default();
                return Ok(());
            };
            if time::now_ns() > until {
                return Err(leaving.busy());
            }
            drop(s);
            std::thread::yield_now();
        }
    }

    fn rma(&self, dir: Dir, local: &[Iov], remote: &[RmaIov], common: &Common, descs: &[u64]) -> Result<()> {
        let c = one_kind(common, descs)?;
        self.state.lock().posted(|s| s.rma(&self.domain, dir, local, remote, &c))
    }

    fn atomic_valid(&self, what: Atomic) -> Result<usize> {
        Ok(what.most())
    }

    fn atomic(&self, op: &AtomicOp, common: &Common) -> Result<()> {
        self.state.lock().posted(|s| s.atomic(&self.domain, op, common))
    }

    fn list(&self, dir: Dir, list: &List, common: &Common) -> Result<Native> {
        self.state.lock().posted(|s| s.list(&self.domain, dir, list, common))
    }

    fn send(&self, local: &[Iov], common: &Common, descs: &[u64]) -> Result<()> {
        let c = one_kind(common, descs)?;
        self.state.lock().posted(|s| s.send(&self.domain, local, &c))
    }

    fn recv(&self, local: &[Iov], common: &Common, descs: &[u64]) -> Result<()> {
        let c = one_kind(common, descs)?;
        self.state.lock().recv(&self.domain, local, &c)
    }

    fn lane(&self) -> Option<&dyn prov::Lane> {
        Some(self)
    }

    /// Cancels the first operation or receive of `context` that can still be cancelled.
    fn cancel(&self, context: usize) -> Result<()> {
        let mut s = self.state.lock();
        let why = Error::coded(errno::ECANCELED, Code::Canceled, "cancelled by the caller");
        if let Some(recv) = s.recvs.remove(|r| r.context == context) {
            s.abandon(&recv, why);
            return Ok(());
        }
        if let Some(faults) = &mut s.faults
            && let Some(at) = faults.held.iter().position(|(_, r)| r.context == context)
            && let Some((_, recv)) = faults.held.remove(at)
        {
            s.abandon(&recv, why);
            return Ok(());
        }
        let queued = s.conn.as_ref().is_some_and(|c| c.backlog.iter().any(|j: &Job| j.ending().context == context));
        if queued {
            let first = std::cell::Cell::new(true);
            s.drop_jobs(|j| j.ending().context == context && first.replace(false), &why);
            return Ok(());
        }
        let flying = s
            .conn
            .as_ref()
            .and_then(|c| c.slots.active.iter().copied().find(|i| c.slots.flight(*i).is_some_and(|f| f.ending().context == context)));
        if let Some(index) = flying
            && s.conn.as_deref_mut().is_some_and(|conn| leaving::withdraw(conn, index))
        {
            s.land(index, Err(why));
            return Ok(());
        }
        Err(Error::new(errno::ENOENT, "context: no operation of this endpoint with it can still be cancelled"))
    }

    /// One turn of progress. If another thread is in a turn, this call does nothing, unless `force` is set. The last
    /// look before sleeping sets `force`, because the other thread may have looked before the sleep mark was set.
    #[inline]
    fn progress(&self, force: bool) {
        if force {
            return self.state.lock().progress(&self.domain, true);
        }
        if let Some(mut s) = self.state.try_lock() {
            s.progress(&self.domain, false);
        }
    }

    /// Adds the endpoint's sockets to `poller`, and marks this side as asleep, so that the peer wakes it. The caller
    /// then runs the barrier for the returned fences and one more turn of progress, and sleeps only if `may_sleep` is
    /// true.
    fn sleep(&self, poller: &Poller) -> Result<Option<Fences>> {
        let mut s = self.state.lock();
        s.sleepers += 1;
        if let Some(conn) = &s.conn {
            poller.add(conn.link.socket.as_fd())?;
            if let Some(pidfd) = conn.link.pidfd() {
                poller.add(pidfd.as_fd())?;
            }
            conn.link.sleep();
            return Ok(Some(conn.link.fences));
        }
        if let Phase::Connecting(c) = &s.phase {
            match &c.stage {
                ConnectStage::Dial { socket: Some(fd), .. } => poller.add(fd.as_fd())?,
                ConnectStage::Joining(conn) => poller.add(conn.link.socket.as_fd())?,
                _ => {}
            }
        }
        if let Some(acceptor) = &s.acceptor {
            poller.add(acceptor.fd())?;
        }
        Ok(None)
    }

    /// A number that changes whenever `sleep` would watch other sockets.
    fn watch_version(&self) -> u64 {
        let s = self.state.lock();
        let connecting = match &s.phase {
            Phase::Connecting(c) => match &c.stage {
                ConnectStage::Dial { socket, .. } => 1 + u64::from(socket.is_some()),
                ConnectStage::Joining(_) => 3,
                ConnectStage::Await { .. } => 4,
            },
            _ => 0,
        };
        connecting | u64::from(s.conn.is_some()) << 3 | u64::from(s.acceptor.is_some()) << 4
    }

    /// True if, after the look that follows `sleep`, no peer has woken this endpoint and no work is left.
    fn may_sleep(&self) -> bool {
        let s = self.state.lock();
        s.conn.as_ref().is_none_or(|conn| conn.link.may_sleep()) && !s.has_more()
    }

    /// Undoes one `sleep`. If another thread still sleeps on this endpoint, sets the sleep mark again, because the
    /// packet that woke this thread may have been meant for that other thread.
    fn end_sleep(&self, _poller: Option<&Poller>) {
        let mut s = self.state.lock();
        s.sleepers = s.sleepers.saturating_sub(1);
        let others = s.sleepers > 0;
        let Some(conn) = &s.conn else { return };
        if !others {
            return conn.link.end_sleep();
        }
        conn.link.renew_sleep();
        s.progress(&self.domain, true);
    }

    /// The longest time to sleep: until this endpoint has work that no packet announces.
    fn sleep_limit_ns(&self) -> u64 {
        const LONG: u64 = u64::MAX;
        /// The nap while something may happen that no packet announces (1 ms).
        const SHORT: u64 = 1_000_000;
        /// The nap while device copies are in flight (10 us).
        const COPY_NAP: u64 = 10_000;
        let s = self.state.lock();
        let now = time::now_ns();
        let mut nap = LONG;
        if let Phase::Connecting(c) = &s.phase {
            let dialing = matches!(&c.stage, ConnectStage::Dial { socket: None, .. });
            nap = match c.deadline {
                _ if dialing => SHORT,
                0 => LONG,
                deadline => deadline.saturating_sub(now).max(SHORT),
            };
        }
        if s.leaving.is_some() {
            nap = nap.min(SHORT);
        }
        let mut sooner = |deadline: u64| {
            if deadline != 0 {
                nap = nap.min(deadline.saturating_sub(now).max(SHORT));
            }
        };
        sooner(s.recv_deadline);
        sooner(s.faults.as_ref().and_then(|f| f.held.front()).map_or(0, |(until, _)| *until));
        if let Some(conn) = &s.conn {
            conn.backlog.iter().for_each(|j| sooner(j.ending().deadline));
            conn.devices.deadlines().for_each(&mut sooner);
            conn.slots.active.iter().filter_map(|i| conn.slots.flight(*i)).for_each(|f| sooner(f.ending().deadline));
            // No packet announces the end of a device copy, which may come at any moment.
            if !conn.devices.is_idle() {
                nap = nap.min(COPY_NAP);
            }
        }
        s.bind.sleeps(now, nap)
    }

    fn is_stalled(&self) -> bool {
        self.state.lock().is_stalled()
    }

    fn options(&self) -> Options {
        self.state.lock().options
    }

    fn set_options(&self, change: &mut dyn FnMut(&mut Options)) {
        let mut s = self.state.lock();
        change(&mut s.options);
        s.shared_from = shared_from(s.options.coop, s.faults.is_some());
        let allowed = self.domain.modes.paths & s.options.policy.allowed();
        if let Some(conn) = &mut s.conn {
            conn.remotes.set_allowed(allowed);
        }
    }

    fn set_coop(&self, coop: Coop) -> Result<()> {
        self.set_options(&mut |o| o.coop = coop);
        Ok(())
    }

    /// Permits or forbids operations to call a device's driver in this process. To forbid the calls, the copier process
    /// must be ready.
    fn set_driver_calls(&self, on: bool) -> Result<()> {
        if !on {
            copier::get()?.prepare()?;
        }
        let mut s = self.state.lock();
        if !matches!(s.phase, Phase::Fresh | Phase::Enabled) {
            return Err(Error::new(errno::EOPBADSTATE, "GDRFAB_OPT_DRIVER_CALLS: must be set before the endpoint connects"));
        }
        s.options.driver_calls = on;
        Ok(())
    }

    /// Reports the path to the peer's region `key`, which does not depend on local memory; or, for `MESSAGES`, the path
    /// of messages from the memory that `desc` names.
    fn report(&self, _peer: u64, key: u64, desc: u64) -> Result<PathReport> {
        let mut s = self.state.lock();
        if key == MESSAGES {
            return s.report_messages(&self.domain, desc);
        }
        let Some(conn) = s.conn.as_deref_mut() else { return Err(s.not_connected()) };
        let link = conn.link.clone();
        let region = conn.remotes.inspect(&link, key)?;
        conn.ask_for_files();
        let refusals = conn.remotes.refusals(&link, &region);
        let text = format!(
            "to the peer's region {key:#x} of {} bytes ({}): {}\n{}",
            region.len,
            link.place(),
            region.path.words(),
            conn.remotes.words(&link, &region)
        );
        let paths = refusals.possible();
        Ok(PathReport { path: region.path, paths, offered: region.offered, refusals, short: None, text })
    }

    fn stats(&self) -> Stats {
        self.state.lock().stats
    }
}
