// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connecting: dials a peer, waits for a peer or accepts a peer, and puts the new connection into the endpoint's state.
//! Events report the outcome.

use super::info::own_ip;
use super::streams;
use super::streams::StreamsOffer;
use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::prov::event::EventKind;
use crate::prov::name;
use crate::prov::tcp::conn::Conn;
use crate::prov::tcp::domain::Domain;
use crate::prov::tcp::handshake::acceptor::{HandshakeAcceptor, Request};
use crate::prov::tcp::handshake::dial::{Dial, Dialed};
use crate::prov::tcp::handshake::exchange::Link;
use crate::prov::tcp::handshake::lookup::Lookup;
use crate::prov::tcp::handshake::socket_options::tune;
use crate::prov::tcp::rail::connector;
use crate::prov::tcp::rail::connector::RailConnector;
use crate::prov::tcp::rail::set::RailEvent;
use crate::prov::tcp::rail::transport::SharedRails;
use crate::prov::tcp::state::{ConnectStage, NameLookup, Phase, State};
use crate::prov::tcp::wire::address::{Address, Host};
use crate::prov::tcp::wire::frame::{Header, Kind, WHOLE_MAX};
use crate::prov::tcp::wire::hello::{Purpose, Terms};
use crate::sys::{cancel, process, tcp, time};
use std::net::SocketAddr;
use std::os::fd::AsFd;

impl State {
    /// Most bytes of unmatched messages that this side lets the peer send. The budget of a lane has room for the
    /// largest parcel, because a parcel that is offered could never be fetched. A lane takes its parcels within a few
    /// turns, so the budget is soon free again.
    fn budget(&self) -> u32 {
        let budget = config::get().debug.tcp_budget;
        if self.bind.is_lane() { budget.max(WHOLE_MAX as u32) } else { budget }
    }

    /// This side's terms, without streams and rails.
    fn terms(&self, data: &[u8]) -> Terms {
        let address = self.address.clone().unwrap_or_default();
        Terms { window: config::get().debug.tcp_window, budget: self.budget(), address, data: data.to_vec(), ..Terms::default() }
    }

    /// Begins to connect to a passive endpoint.
    pub fn dial(&mut self, domain: &Domain, address: &str, data: &[u8]) -> Result<()> {
        let to: Address = address.parse()?;
        if to.token.is_some() {
            return Err(Error::invalid(format!("addr: {address:?} is an endpoint's own address; use gdrfab_ep_connect_addr")));
        }
        self.begin_dial(domain, &to, Purpose::Passive, 0, data)
    }

    /// Begins to dial `to`, after a lookup if the host is a name. An invalid argument is an error; every other failure
    /// becomes an event.
    fn begin_dial(&mut self, domain: &Domain, to: &Address, purpose: Purpose, token: u64, data: &[u8]) -> Result<()> {
        let deadline = time::deadline(self.options.connect_timeout_ns);
        to.check_port()?;
        let begun = match &to.host {
            Host::Ip(at) => self.dial_any(domain, to, vec![*at], purpose, token, data),
            Host::Name(..) => {
                let asked = |lookup| NameLookup { lookup, to: to.clone(), purpose, token, data: data.to_vec() };
                Lookup::begin(to).map(|lookup| ConnectStage::Lookup(Box::new(asked(lookup))))
            }
        };
        match begun {
            Ok(stage) => self.phase = Phase::Connecting { stage, deadline },
            // An invalid argument fails the call. Every other failure comes as an event, whether it happens now or later.
            Err(e) if e.errno != errno::EINVAL => self.give_up(domain, e, Vec::new()),
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Begins to dial the first of the addresses `found` that answers.
    fn dial_any(
        &self,
        domain: &Domain,
        to: &Address,
        found: Vec<SocketAddr>,
        purpose: Purpose,
        token: u64,
        data: &[u8],
    ) -> Result<ConnectStage> {
        let from = match self.source {
            None if config::get().tcp.iface.is_some() => Some(SocketAddr::new(own_ip(found.first().map(SocketAddr::ip))?, 0)),
            source => source,
        };
        let (streams, later) = streams::wanted(&self.options);
        let terms = Terms { streams, later, rails: connector::wanted(&self.options), ..self.terms(data) };
        let dial = Dial::to_any(to, found, from, purpose, token, terms, domain.key.clone())?;
        Ok(ConnectStage::Dial(Box::new(dial)))
    }

    /// Connects two endpoints that have exchanged their addresses: the endpoint with the smaller token dials, and the
    /// other one waits.
    pub fn connect_by_address(&mut self, domain: &Domain, address: &str) -> Result<()> {
        name::check_plain(address)?;
        let to: Address = address.parse()?;
        let theirs =
            to.token.ok_or_else(|| Error::invalid(format!("addr: {address:?} is not the address of an endpoint (gdrfab_ep_getname)")))?;
        let Some(own) = self.address.as_deref().map(str::parse::<Address>).transpose()?.and_then(|a| a.token) else {
            return Err(Error::new(
                errno::EOPBADSTATE,
                "ep: the peer cannot know this endpoint's address, because ep_getname was never called on it",
            ));
        };
        match own.cmp(&theirs) {
            std::cmp::Ordering::Equal => Err(Error::invalid("addr: this is the endpoint's own address")),
            std::cmp::Ordering::Less => self.begin_dial(domain, &to, Purpose::Endpoint, theirs, &[]),
            std::cmp::Ordering::Greater => {
                let deadline = time::deadline(self.options.connect_timeout_ns);
                self.phase = Phase::Connecting { stage: ConnectStage::Await(to.to_string()), deadline };
                Ok(())
            }
        }
    }

    /// The address by which a peer's endpoint can connect to this endpoint. An endpoint that is not connecting yet listens
    /// on the address from now on.
    pub fn own_address(&mut self, domain: &Domain) -> Result<String> {
        if let Some(known) = &self.address {
            return Ok(known.clone());
        }
        let mut raw = [0u8; 8];
        process::random(&mut raw)?;
        let token = u64::from_le_bytes(raw).max(1);
        let at = SocketAddr::new(self.source.map_or_else(|| own_ip(self.family_hint), |at| Ok(at.ip()))?, 0);
        let address = match (&self.phase, &self.conn) {
            // Once the endpoint is connecting, no peer can connect to the address, but it still identifies the endpoint.
            (Phase::Fresh | Phase::Enabled, _) => {
                let acceptor = HandshakeAcceptor::listen(at, Purpose::Endpoint, token, domain.key.clone())?;
                let address = Address::of(acceptor.local(), Some(token));
                self.acceptor = Some(acceptor);
                address
            }
            (_, Some(conn)) => Address::of(tcp::local(conn.socket())?, Some(token)),
            _ => Address::of(at, Some(token)),
        };
        Ok(self.address.insert(address.to_string()).clone())
    }

    /// Accepts a request. The connection exists from now on; the event follows when the dialer has sent READY.
    pub fn accept(&mut self, domain: &Domain, request: Request, data: &[u8]) -> Result<()> {
        let mut terms = request.terms().clone();
        let deadline = time::deadline(self.options.connect_timeout_ns);
        let mut ours = self.terms(data);
        let acceptors = connector::acceptors(&request, &self.options);
        let acceptors = if let Some((acceptors, at, token)) = acceptors {
            (ours.rails, ours.rail_token) = (at, token);
            Some(acceptors)
        } else {
            terms.rails.clear();
            None
        };
        // With rails, further streams are not needed.
        let offer = if acceptors.is_some() { StreamsOffer::None } else { streams::offer(&request, &self.options) };
        offer.write_to(&mut ours);
        match request.accept(ours).and_then(|link| self.establish(domain, link, &terms, false)) {
            Ok(()) => {
                self.keep_offer(offer);
                if let (Some(acceptors), Some(rails)) = (acceptors, self.rails()) {
                    self.keep_rails(RailConnector::listener(rails, acceptors));
                }
                self.phase = Phase::Connecting { stage: ConnectStage::AwaitReady, deadline };
                Ok(())
            }
            // Only the request is lost: the endpoint can accept another.
            Err(e) if e.code != Code::PeerGone => Err(e),
            Err(e) => {
                let words = format!("the peer that asked to connect is gone: {}", e.words);
                let error = Error::coded(errno::ECONNRESET, Code::PeerGone, words);
                self.end_everything(domain, &error);
                self.phase = Phase::Down(error.clone());
                Err(error)
            }
        }
    }

    /// Makes a connection of a link whose handshake has succeeded. `terms`: the peer's.
    fn establish(&mut self, domain: &Domain, link: Link, terms: &Terms, is_dialer: bool) -> Result<()> {
        tune(link.socket.as_fd())?;
        let (own, peer) = (tcp::local(link.socket.as_fd())?, tcp::peer(link.socket.as_fd())?);
        let name = if terms.address.is_empty() { Address::of(peer, None).to_string() } else { terms.address.clone() };
        let short = self.faults.as_ref().and_then(|f| f.short());
        self.begin_connection(domain, link, name, terms, (config::get().debug.tcp_window, self.budget()), is_dialer, short)?;
        if let (true, Some(rails)) = (is_dialer, self.rails()) {
            self.keep_rails(RailConnector::dialer(rails, terms, own.ip(), peer.ip(), &self.options));
        }
        Ok(())
    }

    /// The connection's rails, if it has several.
    fn rails(&self) -> Option<SharedRails> {
        self.conn.as_deref().and_then(Conn::rails)
    }

    fn keep_rails(&mut self, connector: RailConnector) {
        if let Some(conn) = self.conn.as_deref_mut() {
            conn.connector = Some(Box::new(connector));
        }
    }

    /// Advances the rails, and queues events for rails that were lost or restored. True: the connection is over.
    #[cold]
    pub fn look_at_rails(&mut self, now: u64) -> bool {
        let Some(conn) = self.conn.as_deref_mut() else { return false };
        let Some(connector) = &mut conn.connector else { return false };
        let news = connector.look(conn.key.as_ref(), conn.tx.short, now, self.bind.has_event_room());
        let is_over = conn.rails().is_some_and(|rails| rails.lock().end().is_some());
        if conn.end_reason.is_none() {
            for RailEvent { words, errno, is_up, .. } in news {
                crate::log!(Info, "{words}");
                let (data, why) = if is_up { (words.into_bytes(), None) } else { (Vec::new(), Some(Error::new(errno, words))) };
                self.event(EventKind::Notify, data, why);
            }
        }
        self.flush();
        is_over
    }

    /// Puts a new connection into the state. `ours`: the window and the budget that this side grants.
    #[allow(clippy::too_many_arguments)]
    pub fn begin_connection(
        &mut self,
        domain: &Domain,
        link: Link,
        name: String,
        terms: &Terms,
        ours: (u32, u32),
        is_dialer: bool,
        short: Option<usize>,
    ) -> Result<()> {
        let member = self.bind.is_lane().then(|| domain.pollset.join());
        // `terms` has addresses for rails only if both sides have agreed on rails.
        let rails = if terms.rails.is_empty() { None } else { Some(connector::begin()?) };
        if let (Some(rails), Some(faults)) = (&rails, &self.faults) {
            rails.lock().injected_losses = faults.rails();
        }
        self.conn = Some(Box::new(Conn::new(link, member, name, terms, ours, is_dialer, short, rails)?));
        self.acceptor = None;
        Ok(())
    }

    /// Ends the endpoint after an attempt that has failed, and queues the event.
    fn give_up(&mut self, domain: &Domain, why: Error, data: Vec<u8>) {
        self.end_everything(domain, &why);
        self.phase = Phase::Down(why.clone());
        self.acceptor = None;
        self.event(EventKind::Connected, data, Some(why));
    }
}

impl State {
    /// Handles READY. The event is queued before the frames behind READY are handled, so that the program can answer them.
    pub fn on_ready(&mut self) {
        if matches!(self.phase, Phase::Connecting { stage: ConnectStage::AwaitReady, .. }) {
            self.phase = Phase::Connected;
            self.event(EventKind::Connected, Vec::new(), None);
        }
    }
}

/// Advances a connection attempt. An event reports the attempt's outcome.
pub fn advance(state: &mut State, domain: &Domain) {
    let _held = cancel::CancelDisabled::off();
    if let Err(e) = try_advance(state, domain) {
        state.give_up(domain, e, Vec::new());
    }
}

fn try_advance(state: &mut State, domain: &Domain) -> Result<()> {
    let Phase::Connecting { stage, deadline } = &mut state.phase else { return Ok(()) };
    let late = *deadline != 0 && time::now_ns() > *deadline;
    match stage {
        ConnectStage::Lookup(asked) => {
            if let Some(found) = asked.lookup.take() {
                let NameLookup { to, purpose, token, data, .. } = &**asked;
                let (to, purpose, token, data, deadline) = (to.clone(), *purpose, *token, data.clone(), *deadline);
                let stage = state.dial_any(domain, &to, found?, purpose, token, &data)?;
                state.phase = Phase::Connecting { stage, deadline };
            }
        }
        ConnectStage::AwaitReady => match &state.conn {
            Some(conn) if conn.end_reason.is_some() => {
                return Err(Error::coded(errno::ECONNRESET, Code::PeerGone, "the peer that asked to connect is gone"));
            }
            Some(_) if late => {
                return Err(Error::coded(
                    errno::ETIMEDOUT,
                    Code::Deadline,
                    "the peer that asked to connect did not complete the handshake in time",
                ));
            }
            _ => {}
        },
        ConnectStage::Dial(dial) => match dial.advance()? {
            Dialed::Waiting => {}
            Dialed::Accepted { link, terms } => {
                state.establish(domain, link, &terms, true)?;
                state.phase = Phase::Connected;
                state.event(EventKind::Connected, terms.data.clone(), None);
                if let Some(conn) = state.conn.as_deref_mut() {
                    conn.agree(&terms, &state.options);
                    conn.put(Header::new(Kind::Ready, 0, 0));
                }
                state.flush();
                return Ok(());
            }
            Dialed::Rejected(data) => {
                let why = Error::coded(errno::ECONNREFUSED, Code::Rejected, "the peer rejected the connection");
                state.give_up(domain, why, data);
                return Ok(());
            }
        },
        ConnectStage::Await(peer) => {
            let requests = state.acceptor.as_mut().map_or(Vec::new(), HandshakeAcceptor::poll);
            for request in requests {
                if request.terms().address == *peer {
                    return state.accept(domain, request, &[]);
                }
                crate::log!(Warn, "a connection from endpoint {:?} is refused: this endpoint expects {peer:?}", request.terms().address);
            }
        }
    }
    if late && matches!(state.phase, Phase::Connecting { .. }) {
        let whom = match &state.phase {
            Phase::Connecting { stage: ConnectStage::Lookup(asked), .. } => format!("the name of {} was not resolved", asked.to),
            Phase::Connecting { stage: ConnectStage::Dial(dial), .. } => format!("{} did not answer", dial.peer()),
            Phase::Connecting { stage: ConnectStage::Await(peer), .. } => format!("{peer} did not connect"),
            _ => "the peer did not complete the handshake".to_string(),
        };
        return Err(Error::coded(errno::ETIMEDOUT, Code::Deadline, format!("connecting: {whom} in time")));
    }
    Ok(())
}
