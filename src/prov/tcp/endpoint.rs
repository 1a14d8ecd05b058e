// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prov::Endpoint`: the calls of the layer above, each under the endpoint's lock.

use super::locked::Endpoint;
use super::state::{ConnectStage, Phase};
use crate::error::{Code, Error, Result, errno};
use crate::mr::Paths;
use crate::prov;
use crate::prov::atomic::{Atomic, AtomicOp};
use crate::prov::bind::{Binding, Bindings, Options, RailList};
use crate::prov::idle_set::IdleSet;
use crate::prov::list::{List, Native, Pair, Run};
use crate::prov::op::{Common, Dir, Iov, RmaIov, one_kind};
use crate::prov::ops::{Dispatch, OpFlags};
use crate::prov::report::{MESSAGES, PathReport, RailReport, Refusals, Stats};
use crate::prov::request::own_request;
use crate::prov::tcp::connect::cm;
use crate::prov::tcp::handshake::acceptor::Request;
use crate::prov::tcp::memory::mr;
use crate::prov::tcp::ops::{rma, table};
use crate::prov::tcp::wire::frame::HEADER;
use crate::prov::tcp::wire::hello::DATA_MAX;
use crate::sync::gate::Fences;
use crate::sys::epoll::Poller;
use crate::sys::time;
use std::os::fd::AsRawFd;
use std::sync::Arc;

impl prov::Endpoint for Endpoint {
    /// Sets the handle that events name.
    fn set_object(&self, object: usize) {
        self.state.lock().object = object;
    }

    /// Most bytes of private data in connect and accept.
    fn cm_data_size(&self) -> usize {
        DATA_MAX
    }

    fn bind(&self, what: Binding) -> Result<()> {
        self.state.lock().bind.bind(what)
    }

    /// Enables the endpoint. tcp has nothing to prepare, because connect and accept create the sockets.
    fn enable(&self, op_flags: OpFlags) -> Result<()> {
        let mut s = self.state.lock();
        s.bind.check_can_enable()?;
        s.phase = Phase::Enabled;
        s.bind.enable(op_flags);
        Ok(())
    }

    fn dispatch(&self) -> Option<Dispatch> {
        Some(Dispatch { ops: table::choose(self.state.threading()), of: (&raw const *self).cast(), tx: std::ptr::null() })
    }

    fn connect(&self, address: &str, data: &[u8]) -> Result<()> {
        let mut s = self.state.lock();
        s.check_can_connect()?;
        s.dial(&self.domain, address, data)?;
        cm::advance(&mut s, &self.domain);
        Ok(())
    }

    fn connect_addr(&self, address: &str) -> Result<()> {
        let mut s = self.state.lock();
        s.check_can_connect()?;
        s.connect_by_address(&self.domain, address)?;
        cm::advance(&mut s, &self.domain);
        Ok(())
    }

    /// Accepts a request. After a failure the request is lost; its peer is rejected or gone.
    fn accept(&self, request: Box<dyn prov::Request>, data: &[u8]) -> Result<()> {
        let request: Request = own_request(request)?;
        let mut s = self.state.lock();
        s.check_can_connect()?;
        s.accept(&self.domain, request, data)
    }

    /// The address by which a peer can connect to this endpoint.
    fn address(&self) -> Result<String> {
        self.state.lock().own_address(&self.domain)
    }

    fn peer_address(&self) -> Result<String> {
        let s = self.state.lock();
        match (&s.phase, &s.conn) {
            (Phase::Connected, Some(conn)) => Ok(conn.peer.clone()),
            _ => Err(s.not_connected()),
        }
    }

    /// Sends BYE and completes everything outstanding with an error.
    fn shutdown(&self) -> Result<()> {
        self.with_state(|s| {
            if s.conn.is_none() && !matches!(s.phase, Phase::Connecting { .. }) {
                return Err(s.not_connected());
            }
            self.disconnect(s);
            Ok(())
        })
    }

    /// Ends the endpoint; posted receives complete with an error.
    fn close(&self) -> Result<()> {
        let mut s = self.state.lock();
        self.disconnect(&mut s);
        s.unexpected.clear();
        s.bind = Bindings::default();
        drop(s);
        self.domain.remove(&self.state);
        Ok(())
    }

    fn rma(&self, dir: Dir, local: &[Iov], remote: &[RmaIov], common: &Common, descs: &[u64]) -> Result<()> {
        let c = one_kind(common, descs)?;
        self.with_state(|s| s.rma(&self.domain, dir, local, remote, &c))
    }

    fn atomic_valid(&self, what: Atomic) -> Result<usize> {
        Ok(what.most())
    }

    fn atomic(&self, op: &AtomicOp, common: &Common) -> Result<()> {
        self.with_state(|s| s.atomic(&self.domain, op, common))
    }

    fn list(&self, _dir: Dir, list: &List, _common: &Common) -> Result<Native> {
        self.state.lock().list(&self.domain, list)
    }

    fn list_part(&self, dir: Dir, runs: &[Run], pairs: &[Pair], common: &Common) -> Result<usize> {
        self.with_state(|s| s.list_part(&self.domain, dir, runs, pairs, common))
    }

    fn send(&self, local: &[Iov], common: &Common, descs: &[u64]) -> Result<()> {
        let c = one_kind(common, descs)?;
        self.with_state(|s| s.send(&self.domain, local, &c))
    }

    fn recv(&self, local: &[Iov], common: &Common, descs: &[u64]) -> Result<()> {
        let c = one_kind(common, descs)?;
        self.with_state(|s| s.recv(&self.domain, local, &c))
    }

    fn lane(&self) -> Option<&dyn prov::Lane> {
        Some(self)
    }

    /// Cancels the first operation or receive with this `context` that has not completed.
    fn cancel(&self, context: usize) -> Result<()> {
        self.with_state(|s| s.cancel(context))
    }

    /// Takes one turn of progress. If another thread is in a turn, its turn is enough, unless `force` says that this is
    /// the last turn before sleeping.
    #[inline]
    fn progress(&self, force: bool) {
        if force {
            return self.state.lock().progress(&self.domain, true);
        }
        if let Some(mut s) = self.state.try_lock() {
            s.progress(&self.domain, false);
        }
    }

    fn can_be_idle(&self) -> bool {
        true
    }

    fn join_idle_set(&self, at: &Arc<IdleSet>, number: u64) -> Option<u64> {
        self.state.lock().join_idle_set(at, number)
    }

    fn leave_idle_sets(&self) {
        self.state.lock().leave_idle_sets();
    }

    /// Watches the endpoint's sockets with `poller`. The caller then runs progress once more, and sleeps if `may_sleep`.
    fn sleep(&self, poller: &Poller) -> Result<Option<Fences>> {
        let mut s = self.state.lock();
        s.sleepers += 1;
        if let Some(conn) = &s.conn {
            match conn.end_reason.is_some() && conn.rx.is_gathering() {
                // The socket's end is known, and would wake the thread at once.
                true => poller.remove(conn.socket()),
                false => poller.watch(conn.socket(), conn.waits_for_room())?,
            }
            conn.watch_streams(poller)?;
            if let Some(rails) = conn.rails() {
                rails.lock().sleep(true);
            }
        }
        if let Phase::Connecting { stage, .. } = &s.phase
            && let Some((fd, writes)) = stage.fd()
        {
            poller.watch(fd, writes)?;
        }
        if let Some(acceptor) = &s.acceptor {
            acceptor.watch(poller)?;
        }
        Ok(None)
    }

    /// A value that changes when other descriptors are to be watched. Attempts do not count, because an acceptor watches its own.
    fn watch_version(&self) -> u64 {
        let s = self.state.lock();
        let dial = match &s.phase {
            Phase::Connecting { stage, .. } => stage.fd().map(|(fd, writes)| (fd.as_raw_fd(), writes)),
            _ => None,
        };
        let conn = s.conn.as_ref().map(|c| (c.socket().as_raw_fd(), c.waits_for_room()));
        let streams = s.conn.as_ref().map_or(0, |c| c.watched_streams());
        [dial, conn].into_iter().fold(u64::from(s.acceptor.is_some()), |sum, at| {
            sum << 24 | at.map_or(0, |(fd, writes)| (fd as u64 + 1) << 1 | u64::from(writes))
        }) ^ streams.rotate_left(51)
    }

    /// Called after the turn that follows `sleep`. True if a socket will announce everything that is still to be done.
    fn may_sleep(&self) -> bool {
        let s = self.state.lock();
        s.conn.as_ref().is_none_or(|c| !c.rx.holds_more() && (!c.rx.has_bytes() || c.rx.body.is_some() || c.rx.bytes().len() < HEADER))
    }

    /// Undoes one `sleep`. The sockets leave the poller, because the kernel does more work for each packet of a watched socket.
    fn end_sleep(&self, poller: Option<&Poller>) {
        let mut s = self.state.lock();
        s.sleepers = s.sleepers.saturating_sub(1);
        if let (0, Some(rails)) = (s.sleepers, s.conn.as_ref().and_then(|conn| conn.rails())) {
            rails.lock().sleep(false);
        }
        if let (Some(conn), Some(poller)) = (&s.conn, poller) {
            poller.remove(conn.socket());
            conn.forget_streams(poller);
        }
    }

    /// The time that a thread may sleep before this endpoint has work without an arrival.
    fn sleep_limit_ns(&self) -> u64 {
        const LONG: u64 = u64::MAX;
        const SHORT: u64 = 1_000_000;
        /// Bound while an address is dialed, because the host's next address is tried after a while.
        const NEXT_ADDRESS: u64 = 250_000_000;
        let s = self.state.lock();
        let now = time::now_ns();
        let until = |deadline: u64| if deadline == 0 { LONG } else { deadline.saturating_sub(now).clamp(SHORT, LONG) };
        let nap = match &s.phase {
            Phase::Connecting { deadline, stage: ConnectStage::Dial(_) } => until(*deadline).min(NEXT_ADDRESS),
            Phase::Connecting { deadline, .. } => until(*deadline),
            _ => until(s.earliest)
                .min(s.conn.as_ref().map_or(LONG, |c| c.streams_nap_ns().min(until(c.keepalive_due()))))
                .min(s.conn.as_ref().and_then(|c| c.connector.as_ref()).map_or(LONG, |j| j.sleep_limit_ns()))
                .min(s.faults.as_ref().map_or(LONG, |f| until(f.next()))),
        };
        s.bind.sleeps(now, nap)
    }

    /// True if this side waits for copies of a device. No socket announces their end.
    fn is_stalled(&self) -> bool {
        let s = self.state.lock();
        s.conn.as_ref().is_some_and(|c| c.rx.awaits_device() || c.tx.awaits_device())
    }

    fn options(&self) -> Options {
        self.state.lock().options
    }

    fn set_options(&self, change: &mut dyn FnMut(&mut Options)) {
        change(&mut self.state.lock().options)
    }

    fn set_rails(&self, rails: RailList) -> Result<()> {
        let mut s = self.state.lock();
        if !matches!(s.phase, Phase::Fresh | Phase::Enabled) {
            return Err(Error::fixed(errno::EOPBADSTATE, "GDRFAB_OPT_RAILS: must be set before the endpoint connects"));
        }
        s.options.rails = Some(rails);
        Ok(())
    }

    /// The report is decided from the local memory and the key alone. Only an operation finds out whether the peer has
    /// such a region.
    fn report(&self, _peer: u64, key: u64, desc: u64) -> Result<PathReport> {
        let s = self.state.lock();
        let Some(conn) = &s.conn else { return Err(s.not_connected()) };
        let no = |words| Some(Error::coded(errno::EOPNOTSUPP, Code::Path, words));
        let allowed = s.allowed(&self.domain);
        let permit = |path: Paths| {
            let words = "ruled out by this endpoint's options or GDRFAB_PATHS";
            (!allowed.contains(path)).then(|| Error::coded(errno::EACCES, Code::Path, words))
        };
        let here = rma::site_of(&self.domain, desc, &[])?;
        let rails = conn.connector.as_ref().map_or(String::new(), |connector| connector.lines());
        let sealed = if conn.is_sealed { "  all data is encrypted (GDRFAB_TCP_SECURITY=sealed)\n" } else { "" };
        let ways = format!("{}{rails}{sealed}", conn.streams_lines());
        let refused = || Refusals::refused("not a path of tcp, which reaches the peer over a TCP connection");
        if key == MESSAGES {
            let refusals = match here.is_host() {
                true => Refusals { socket: None, staged: no("the message is in host memory, which needs no staging"), ..refused() },
                false => {
                    let socket = no("the message is in device memory, which the kernel cannot access");
                    Refusals { socket, staged: permit(Paths::STAGED), ..refused() }
                }
            };
            return Ok(PathReport::of_messages(&conn.peer, None, "of any length", refusals, &ways));
        }
        let there = mr::names_device(key);
        let (socket, staged) = match (here.is_host(), there) {
            (false, _) => (no("the local memory is device memory, which the kernel cannot access"), None),
            (true, Some(true)) => (no("the peer's region is device memory, which its kernel cannot access"), None),
            (true, Some(false)) => (None, no("both sides' memory is host memory, which needs no staging")),
            (true, None) => {
                let words = "used if the peer's region is device memory, which a key chosen by the peer's application does not tell";
                (None, Some(Error::coded(errno::EAGAIN, Code::Path, words)))
            }
        };
        let refusals =
            Refusals { socket: socket.or_else(|| permit(Paths::SOCKET)), staged: staged.or_else(|| permit(Paths::STAGED)), ..refused() };
        let paths = refusals.possible();
        let offered = if there == Some(true) { Paths::STAGED } else { Paths::SOCKET | Paths::STAGED };
        let path = paths.best();
        let text = format!("to the peer's region {key:#x} ({}): {}\n{}{ways}", conn.peer, path.words(), refusals.lines(path));
        Ok(PathReport { path, paths, offered, refusals, short: None, text })
    }

    fn rail_reports(&self, _peer: u64) -> Result<Vec<RailReport>> {
        let s = self.state.lock();
        let Some(conn) = &s.conn else { return Err(s.not_connected()) };
        Ok(conn.rails().map_or(Vec::new(), |rails| rails.lock().report()))
    }

    fn stats(&self) -> Stats {
        let s = self.state.lock();
        let lost = s.conn.as_ref().and_then(|conn| conn.rails()).map_or(0, |rails| rails.lock().losses());
        Stats { rails_lost: s.stats.rails_lost + lost, ..s.stats }
    }
}
