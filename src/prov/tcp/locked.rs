// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `Endpoint`: an endpoint's domain, and its state behind the endpoint's lock. The calls of the layer above are in `endpoint`.

use super::conn::Conn;
use super::domain::Domain;
use super::fault::Faults;
use super::state::{ConnectStage, Phase, State};
use crate::error::{Code, Error, Result, errno};
use crate::prov::bind::{Bindings, Options};
use crate::prov::fast::Fast;
use crate::prov::info::Info;
use crate::prov::op::Iov;
use crate::prov::report::Stats;
use crate::prov::tcp::handshake::exchange::Link;
use crate::prov::tcp::wire::address::{Address, Host};
use crate::prov::tcp::wire::hello::Terms;
use crate::sync::serial::{Rank, Serial};
use std::collections::VecDeque;
use std::sync::Arc;

/// An endpoint as the layer above holds it.
pub struct Endpoint {
    pub(super) domain: Arc<Domain>,
    pub(super) state: Arc<Serial<State>>,
}

impl Endpoint {
    pub fn open(domain: Arc<Domain>, info: &Info, context: usize) -> Result<Endpoint> {
        // The address on which the endpoint listens, and from which it dials.
        let source = match info.src_addr.as_deref().filter(|_| info.request.is_none()) {
            Some(text) => {
                let address: Address = text.parse().map_err(|e: Error| e.context("info->src_addr"))?;
                address.resolve().map_err(|e| e.context("info->src_addr"))?.first().copied()
            }
            None => None,
        };
        let family_hint = match info.dest_addr.as_deref().and_then(|text| text.parse::<Address>().ok()).map(|a| a.host) {
            Some(Host::Ip(at)) => Some(at.ip()),
            _ => None,
        };
        let state = State {
            phase: Phase::Fresh,
            bind: Bindings::default(),
            options: Options::default(),
            object: 0,
            context,
            conn: None,
            recvs: VecDeque::new(),
            unexpected: VecDeque::new(),
            stats: Stats::default(),
            earliest: 0,
            acceptor: None,
            address: None,
            source,
            family_hint,
            faults: Faults::wanted(),
            sleepers: 0,
            idle_sets: Vec::new(),
            idle_until: 0,
            came: false,
            turns: 0,
            last_look: 0,
        };
        let state = Arc::new(Serial::new(domain.threading, Rank::Connected, state));
        domain.add(&state);
        Ok(Endpoint { domain, state })
    }

    /// Begins a connection with a link on any stream socket, as if a handshake had just ended. Tests use the function,
    /// and so does `fuzz/`, which plays the peer.
    #[doc(hidden)]
    pub fn adopt(&self, link: Link, theirs: &Terms, ours: (u32, u32), is_dialer: bool, short: Option<usize>) -> Result<()> {
        let mut s = self.state.lock();
        s.begin_connection(&self.domain, link, theirs.address.clone(), theirs, ours, is_dialer, short)?;
        s.phase = if is_dialer { Phase::Connected } else { Phase::Connecting { stage: ConnectStage::AwaitReady, deadline: 0 } };
        Ok(())
    }

    /// Adds a rail to a connection that `adopt` began, if the connection still exists.
    #[doc(hidden)]
    pub fn adopt_rail(&self, number: usize, generation: u32, link: Link) -> Result<()> {
        let rails = self.state.lock().conn.as_deref().and_then(Conn::rails);
        rails.map_or(Ok(()), |rails| rails.lock().attach(number, generation, link))
    }

    /// Runs a call that may give the endpoint work, under its lock.
    pub(super) fn with_state<R>(&self, call: impl FnOnce(&mut State) -> R) -> R {
        let mut s = self.state.lock();
        let result = call(&mut s);
        s.leave_idle_sets_if_active();
        result
    }

    /// Sends BYE, and completes everything outstanding with `ECANCELED`.
    pub(super) fn disconnect(&self, s: &mut State) {
        let why = Error::coded(errno::ECANCELED, Code::Canceled, "this side shut the connection down");
        s.say_goodbye();
        s.end_everything(&self.domain, &why);
        s.acceptor = None;
        if !matches!(s.phase, Phase::Down(_)) {
            s.phase = Phase::Down(why);
        }
    }

    /// The fast path of an RMA operation. `Fast::Declined`: nothing was posted.
    ///
    /// # Safety
    /// `LOCKED` is true, or the domain was opened with `Threading::Promised`.
    #[inline(always)]
    pub unsafe fn rma_fast<const WRITE: bool, const LOCKED: bool>(
        &self,
        local: Iov,
        addr: u64,
        key: u64,
        context: usize,
        flags: u64,
    ) -> Fast {
        // SAFETY: the caller promises that `LOCKED` matches the domain's threading.
        let mut s = unsafe { self.state.reach::<LOCKED>() };
        let posted = s.rma_fast::<WRITE>(&self.domain, local, addr, key, context, flags);
        s.leave_idle_sets_if_active();
        posted
    }
}
