// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes the rails of a connection and brings lost rails back: pairs the addresses of both sides, dials or accepts each
//! rail, and repeats failed attempts with growing pauses. The side that dialed the connection dials its rails; the
//! other side listens.

use super::set::{RailEvent, Rails};
use super::transport::SharedRails;
use crate::config;
use crate::error::{Error, Result, errno};
use crate::prov::bind::{Options, RailList};
use crate::prov::tcp::handshake::acceptor::{HandshakeAcceptor, Request};
use crate::prov::tcp::handshake::dial::{Dial, Dialed};
use crate::prov::tcp::handshake::exchange::Link;
use crate::prov::tcp::handshake::socket_options::tune;
use crate::prov::tcp::secure::auth::Key;
use crate::prov::tcp::wire::address::Address;
use crate::prov::tcp::wire::hello::{Purpose, Terms};
use crate::prov::tcp::wire::segment::RAILS_MAX;
use crate::sys::{process, tcp};
use parking_lot::Mutex;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

/// Least time between two turns of `look`.
const LOOK_NS: u64 = 1_000_000;
/// The first pause before a lost rail is dialed again.
const PAUSE_NS: u64 = 100_000_000;
/// The longest pause before a lost rail is dialed again.
const PAUSE_MOST_NS: u64 = 1_000_000_000;
/// A rail that was up for this long is dialed again without a pause.
const LASTING_NS: u64 = 5_000_000_000;
/// The listener rejects a new connection of a rail within this time of the one before.
const TOO_SOON_NS: u64 = 50_000_000;
/// A rail's loss is reported to the program only after this time, because the whole connection may be ending.
const TELL_NS: u64 = 50_000_000;

/// The addresses of this host that `words` names: a comma-separated list of addresses and interfaces. The order is that
/// of the list.
pub fn own(words: &str) -> Result<RailList> {
    let mut found = Vec::new();
    for word in words.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        if let Ok(ip) = word.parse::<IpAddr>() {
            found.push(ip);
            continue;
        }
        match [false, true].map(|v6| tcp::interface_address(word, v6)) {
            [Err(e), Err(_)] => return Err(e),
            both => found.extend(both.into_iter().flatten()),
        }
    }
    RailList::of(&found)
}

/// The rails of an endpoint without `GDRFAB_OPT_RAILS`: those of `GDRFAB_TCP_RAILS`.
pub fn usual() -> Result<RailList> {
    own(&config::get().tcp.rails).map_err(|e| e.context("GDRFAB_TCP_RAILS"))
}

/// This side's addresses for INTRO; none if this side wants no rails.
pub fn wanted(options: &Options) -> Vec<SocketAddr> {
    let own = options.rails.map_or_else(usual, Ok).unwrap_or_else(|e| {
        crate::log!(Warn, "no rails: {e}");
        RailList::default()
    });
    own.iter().map(|ip| SocketAddr::new(ip, 0)).collect()
}

/// A rail that this side dials.
struct RailDial {
    from: IpAddr,
    to: SocketAddr,
    dial: Option<Box<Dial>>,
    /// Generation of the last attempt. Each attempt has its own generation, because the peer may have accepted an
    /// attempt whose ANSWER was lost.
    generation: u32,
    /// With `dial`: the time at which the attempt is given up. Without: the time at which the next attempt begins.
    until: u64,
    /// The pause after the next failure.
    pause: u64,
}

/// The side of the connection: the dialer dials rails, the listener accepts them.
enum Role {
    /// The dialer's rails, indexed by number, and the token that the listener demands.
    Dials(Vec<RailDial>, u64),
    /// The listening sockets, one for each rail.
    Listens(Vec<HandshakeAcceptor>),
}

/// Brings up a connection's rails, for as long as the connection lasts.
pub struct RailConnector {
    pub rails: SharedRails,
    role: Role,
    looked: u64,
}

/// Time limit of one attempt to dial a rail.
fn patience_ms() -> u32 {
    config::get().tcp.rail_timeout_ms.max(500)
}

/// Number of leading bits that two addresses of a family share.
fn likeness(a: IpAddr, b: IpAddr) -> Option<u32> {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros()),
        (IpAddr::V6(a), IpAddr::V6(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros()),
        _ => None,
    }
}

/// Pairs each of this side's addresses with the most similar of the peer's addresses that are left.
fn pairs(own: &[IpAddr], peer: &[SocketAddr]) -> Vec<(IpAddr, SocketAddr)> {
    let mut left = peer.to_vec();
    let mut found = Vec::new();
    for ip in own {
        let best = left.iter().enumerate().filter_map(|(i, at)| Some((likeness(*ip, at.ip())?, std::cmp::Reverse(i)))).max();
        if let Some((_, std::cmp::Reverse(i))) = best {
            found.push((*ip, left.remove(i)));
        }
    }
    found
}

/// If both sides want rails: this side's listening sockets, and for ANSWER their addresses and token.
pub fn acceptors(request: &Request, options: &Options) -> Option<(Vec<HandshakeAcceptor>, Vec<SocketAddr>, u64)> {
    let own = wanted(options);
    let first = request.called_at().filter(|_| !own.is_empty() && !request.terms().rails.is_empty())?;
    let mut raw = [0; 8];
    process::random(&mut raw).ok()?;
    let token = u64::from_le_bytes(raw).max(1);
    let others = own.iter().map(SocketAddr::ip).filter(|ip| *ip != first.ip());
    let mut acceptors = Vec::new();
    for ip in std::iter::once(first.ip()).chain(others).take(RAILS_MAX) {
        match HandshakeAcceptor::listen(SocketAddr::new(ip, 0), Purpose::Rail, token, request.key()) {
            Ok(acceptor) => acceptors.push(acceptor),
            Err(e) => crate::log!(Info, "no rail from {ip}: {e}"),
        }
    }
    let at: Vec<SocketAddr> = acceptors.iter().map(HandshakeAcceptor::local).collect();
    // The dialer takes the first address as that of rail 0. If rail 0 has no listening socket, all numbers would be wrong.
    at.first().is_some_and(|at| at.ip() == first.ip()).then_some((acceptors, at, token))
}

impl RailConnector {
    /// The connector of the side that accepted the connection.
    pub fn listener(rails: SharedRails, acceptors: Vec<HandshakeAcceptor>) -> RailConnector {
        for acceptor in &acceptors {
            if let Err(e) = acceptor.watch(rails.lock().set()) {
                crate::log!(Warn, "{e}");
            }
        }
        RailConnector { rails, role: Role::Listens(acceptors), looked: 0 }
    }

    /// The connector of the side that dialed the connection. Rail 0 goes from `own` to `peer`.
    pub fn dialer(rails: SharedRails, terms: &Terms, own: IpAddr, peer: IpAddr, options: &Options) -> RailConnector {
        let attempt = |(from, to)| RailDial { from, to, dial: None, generation: 1, until: 0, pause: PAUSE_NS };
        let first = terms.rails.first().copied().unwrap_or(SocketAddr::new(peer, 0));
        let mine: Vec<IpAddr> = wanted(options).iter().map(SocketAddr::ip).filter(|ip| *ip != own).collect();
        let others = pairs(&mine, terms.rails.get(1..).unwrap_or(&[]));
        let attempts = std::iter::once((own, first)).chain(others).take(RAILS_MAX).map(attempt).collect();
        RailConnector { rails, role: Role::Dials(attempts, terms.rail_token), looked: 0 }
    }

    /// Advances attempts and finds rails that the peer no longer answers on. Returns the events that are older than
    /// `TELL_NS`, for the program. `room`: its event queue has room; otherwise no event is returned yet.
    pub fn look(&mut self, key: Option<&Key>, short: usize, now: u64, room: bool) -> Vec<RailEvent> {
        if now.wrapping_sub(self.looked) < LOOK_NS && !self.rails.lock().is_undecided() {
            return Vec::new();
        }
        self.looked = now;
        match &mut self.role {
            Role::Dials(attempts, token) => {
                for (number, attempt) in attempts.iter_mut().enumerate() {
                    attempt.look(number, &self.rails, *token, key, now);
                }
            }
            Role::Listens(acceptors) => {
                let most = acceptors.len();
                for request in acceptors.iter_mut().flat_map(HandshakeAcceptor::poll) {
                    if let Err(e) = admit(request, &self.rails, most, now) {
                        crate::log!(Info, "a rail was not accepted or not configured: {e}");
                    }
                }
            }
        }
        let comes = match &self.role {
            Role::Dials(attempts, _) => attempts.iter().any(|attempt| attempt.dial.as_ref().is_some_and(|dial| dial.is_heard())),
            Role::Listens(acceptors) => acceptors.iter().any(|acceptor| acceptor.pending() > 0),
        };
        let mut rails = self.rails.lock();
        let config = &config::get().tcp;
        rails.decide(comes, now, 2 * patience_ms());
        rails.look_after(now, config.rail_timeout_ms, config.timeout_ms);
        if !rails.all_taken() {
            rails.begin_turn();
            // An error shows again in the next turn, which handles it.
            let _ = rails.push(short);
        }
        let (told, rest) = std::mem::take(&mut rails.events).into_iter().partition(|n| room && now.saturating_sub(n.at) >= TELL_NS);
        rails.events = rest;
        told
    }

    /// The time that a thread may sleep before `look` is due.
    pub fn sleep_limit_ns(&self) -> u64 {
        let rails = self.rails.lock();
        let calling = match &self.role {
            Role::Dials(attempts, _) => (0..attempts.len()).any(|i| !rails.is_up(i)),
            Role::Listens(_) => false,
        };
        let nap = rails.sleep_limit_ns(config::get().tcp.rail_timeout_ms);
        let nap = if rails.events.is_empty() { nap } else { nap.min(TELL_NS) };
        let nap = if rails.is_undecided() { LOOK_NS } else { nap };
        if calling { nap.min(5 * LOOK_NS) } else { nap }
    }

    /// One line of text for each rail.
    pub fn lines(&self) -> String {
        self.rails.lock().lines()
    }
}

impl RailDial {
    /// Advances the rail: dials it if it is down and the pause is over, and brings it up when the peer accepts.
    fn look(&mut self, number: usize, rails: &Mutex<Rails>, token: u64, key: Option<&Key>, now: u64) {
        let (since, undecided) = {
            let rails = rails.lock();
            (rails.slots.get(number).filter(|b| b.up.is_some()).map(|b| b.since), rails.is_undecided())
        };
        if undecided {
            // The last rail that was up is lost, and this rail may save the connection, so it is dialed without long pauses.
            (self.pause, self.until) = (PAUSE_NS, if self.dial.is_some() { self.until } else { self.until.min(now + PAUSE_NS) });
        }
        if let Some(since) = since {
            if now.saturating_sub(since) > LASTING_NS {
                (self.pause, self.until) = (PAUSE_NS, 0);
            }
            return;
        }
        let Some(dial) = &mut self.dial else {
            if now < self.until {
                return;
            }
            self.generation += 1;
            let mut data = vec![number as u8];
            data.extend(self.generation.to_le_bytes());
            let (to, from) = (Address::of(self.to, None), SocketAddr::new(self.from, 0));
            let patience = patience_ms();
            match Dial::new(&to, Some(from), Purpose::Rail, token, Terms { data, ..Terms::default() }, key.cloned()) {
                Ok(dial) => (self.dial, self.until) = (Some(Box::new(dial)), now + u64::from(patience) * 1_000_000),
                Err(e) => self.again(&e, now),
            }
            return;
        };
        match dial.advance() {
            Ok(Dialed::Waiting) if now < self.until => {}
            Ok(Dialed::Waiting) => self.again(&Error::fixed(errno::ETIMEDOUT, "the peer did not answer in time"), now),
            Ok(Dialed::Rejected(_)) => self.again(&Error::fixed(errno::ECONNREFUSED, "the peer rejected the rail; it is tried again"), now),
            Ok(Dialed::Accepted { link, .. }) => {
                prepare(&link);
                let up = rails.lock().attach(number, self.generation, link);
                match up {
                    Ok(()) => (self.dial, self.until) = (None, now + self.pause),
                    Err(e) => self.again(&e, now),
                }
            }
            Err(e) => {
                if e.errno == errno::ECONNREFUSED {
                    rails.lock().give_up();
                }
                self.again(&e, now);
            }
        }
    }

    /// After a failed attempt: sets the pause before the next attempt, and doubles the pause after that, up to `PAUSE_MOST_NS`.
    fn again(&mut self, why: &Error, now: u64) {
        crate::log!(Debug, "connecting a rail from {} to {}: {why}", self.from, self.to);
        self.dial = None;
        self.until = now + self.pause;
        self.pause = (2 * self.pause).min(PAUSE_MOST_NS);
    }
}

/// Sets the options of a rail's socket.
fn prepare(link: &Link) {
    if let Err(e) = tune(link.socket.as_fd()) {
        crate::log!(Info, "a rail was not accepted or not configured: {e}");
    }
}

/// The rails of a new connection, none of them up; `Rails::attach` adds rail 0.
pub fn begin() -> Result<SharedRails> {
    Ok(Arc::new(Mutex::new(Rails::new()?)))
}

/// Accepts a rail from the peer; `most`: the number of rails. A request that is not accepted is dropped, which rejects
/// it.
fn admit(request: Request, rails: &Mutex<Rails>, most: usize, now: u64) -> Result<()> {
    let Some((number, generation)) = request.terms().data.split_first_chunk::<1>().filter(|(_, rest)| rest.len() == 4) else {
        return Err(Error::fixed(errno::EPROTO, "the peer's request does not name a rail"));
    };
    let (number, generation) = (usize::from(number[0]), generation.try_into().map_or(0, u32::from_le_bytes));
    {
        let rails = rails.lock();
        let slot = rails.slots.get(number);
        let is_new = number < most && generation > slot.map_or(0, |b| b.generation);
        let is_early = slot.is_some_and(|b| b.generation > 0 && now.saturating_sub(b.since) < TOO_SOON_NS);
        if !is_new || is_early {
            return Err(Error::fixed(
                errno::EPROTO,
                "the peer's request names an unknown rail, an outdated attempt, or comes too soon after the last",
            ));
        }
    }
    let link = request.accept(Terms::default())?;
    prepare(&link);
    rails.lock().attach(number, generation, link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prov::tcp::rail::connection;
    use crate::prov::tcp::rail::connection::{Buf, HEADROOM};
    use crate::prov::tcp::wire::hello::HIGHEST;
    use crate::sys::stream::Moved;
    use crate::sys::time;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn addresses_of_one_network_find_each_other() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let at = |text: &str| SocketAddr::new(ip(text), 1);
        let own = [ip("10.0.1.1"), ip("10.0.2.1"), ip("2001:db8:1::1"), ip("192.168.0.1")];
        let peer = [at("10.0.2.2"), at("2001:db8:2::2"), at("10.0.1.2"), at("2001:db8:1::2")];
        let found = pairs(&own, &peer);
        assert_eq!(found, [(own[0], peer[2]), (own[1], peer[0]), (own[2], peer[3])]);
        assert!(pairs(&own[2..3], &peer[..1]).is_empty());
    }

    const TOKEN: u64 = 77;
    const PIECE: usize = 20_000;

    struct Side {
        rails: SharedRails,
        connector: Option<RailConnector>,
        /// Number of bytes that were put into the stream.
        put: u64,
        /// Number of bytes that came out of the stream.
        got: u64,
        buf: Buf,
        /// The last rail is lost and the connection is not over.
        waits: bool,
        /// Number of times that another rail came while `waits` was true.
        revived: u32,
    }

    fn byte(at: u64) -> u8 {
        (at % 251) as u8
    }

    impl Side {
        fn new(first: TcpStream, connector: impl FnOnce(SharedRails) -> RailConnector) -> Side {
            first.set_nonblocking(true).unwrap();
            let rails = begin().unwrap();
            rails.lock().attach(0, 1, Link { socket: first.into(), version: HIGHEST, seal: None, key: None, room: None }).unwrap();
            let connector = Some(connector(rails.clone()));
            Side { rails, connector, put: 0, got: 0, buf: connection::buffer(), waits: false, revived: 0 }
        }

        fn look(&mut self) {
            let Some(connector) = &mut self.connector else { return };
            connector.looked = 0;
            connector.look(None, usize::MAX, time::now_ns(), true);
            let rails = self.rails.lock();
            self.revived += u32::from(self.waits && rails.count_up() > 0);
            self.waits = rails.is_undecided();
        }

        /// Sends and receives, and checks that the bytes come in order.
        fn pump(&mut self) {
            let mut rails = self.rails.lock();
            rails.begin_turn();
            let mut over = rails.push(usize::MAX).is_err();
            loop {
                let mut window = (HEADROOM, HEADROOM);
                match rails.read(&mut self.buf, &mut window, usize::MAX) {
                    Ok(Moved::Bytes(_)) => {
                        assert!((window.0..window.1).all(|i| self.buf[i] == byte(self.got + (i - window.0) as u64)));
                        self.got += (window.1 - window.0) as u64;
                    }
                    Ok(_) => break,
                    Err(_) => {
                        over = true;
                        break;
                    }
                }
            }
            drop(rails);
            if over {
                self.end();
            }
        }

        fn end(&mut self) {
            let mut rails = self.rails.lock();
            rails.finish();
            rails.slots.clear();
            self.connector = None;
        }

        fn put(&mut self) {
            let bytes: Vec<u8> = (self.put..self.put + PIECE as u64).map(byte).collect();
            self.put += if self.connector.is_some() { self.rails.lock().put(&bytes) as u64 } else { 0 };
        }

        /// Loses a rail: 0 shuts it down, 1 resets it, 2 tells the peer's kernel nothing.
        fn lose(&mut self, number: usize, way: u64) {
            let mut rails = self.rails.lock();
            let Some(rail) = rails.slots.get(number).and_then(|b| b.up.as_ref()) else { return };
            match way {
                0 => rustix::net::shutdown(rail.socket.as_fd(), rustix::net::Shutdown::Both).unwrap_or(()),
                1 => rustix::net::sockopt::set_socket_linger(rail.socket.as_fd(), Some(std::time::Duration::ZERO)).unwrap(),
                _ => {}
            }
            if way > 0 {
                rails.lose(number, &Error::fixed(errno::ETIMEDOUT, "lost"));
            }
            self.waits |= rails.is_undecided();
        }

        /// Ends all pauses.
        fn wait(&mut self) {
            self.rails.lock().slots.iter_mut().for_each(|b| b.since = b.since.saturating_sub(2 * TOO_SOON_NS));
            if let Some(RailConnector { role: Role::Dials(attempts, _), .. }) = &mut self.connector {
                attempts.iter_mut().filter(|attempt| attempt.dial.is_none()).for_each(|attempt| attempt.until = 0);
            }
        }
    }

    fn pair() -> [Side; 2] {
        let ips = [1, 2].map(|n| IpAddr::from([127, 0, 0, n]));
        let acceptors = ips.map(|ip| HandshakeAcceptor::listen(SocketAddr::new(ip, 0), Purpose::Rail, TOKEN, None).unwrap());
        let attempt = |i: usize| RailDial { from: ips[i], to: acceptors[i].local(), dial: None, generation: 1, until: 0, pause: PAUSE_NS };
        let attempts = vec![attempt(0), attempt(1)];
        let listener = TcpListener::bind((ips[0], 0)).unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let dialer = Side::new(socket, |rails| RailConnector { rails, role: Role::Dials(attempts, TOKEN), looked: 0 });
        [dialer, Side::new(listener.accept().unwrap().0, |rails| RailConnector::listener(rails, acceptors.into()))]
    }

    /// Whichever rails are lost at either side at any time: either both sides go on and every byte arrives, or both end; none
    /// waits for ever. Bytes acknowledged to one side have arrived at the other.
    #[test]
    fn both_sides_agree_on_the_end() {
        let mut revived = 0;
        for seed in 1..200u64 {
            let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut random = |n: u64| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                x % n
            };
            let mut sides = pair();
            for _ in 0..60 {
                let side = &mut sides[random(2) as usize];
                match random(8) {
                    0 | 1 => side.look(),
                    2 => side.wait(),
                    3 => side.put(),
                    4 => side.lose(random(2) as usize, random(3)),
                    _ => side.pump(),
                }
            }
            if seed % 4 == 0 {
                sides[random(2) as usize].end();
            }
            let until = time::now_ns() + 3_000_000_000;
            let settled = |sides: &[Side; 2]| match (&sides[0].connector, &sides[1].connector) {
                (None, None) => true,
                (Some(_), Some(_)) => sides[0].put == sides[1].got && sides[1].put == sides[0].got,
                _ => false,
            };
            while !settled(&sides) {
                assert!(time::now_ns() < until, "seed {seed}: {:?}", sides.map(|s| (s.connector.is_some(), s.put, s.got)));
                for side in &mut sides {
                    side.wait();
                    side.look();
                    side.pump();
                }
            }
            let [a, b] = &sides;
            for (from, to) in [(a, b), (b, a)] {
                assert!(from.rails.lock().acked <= to.got && to.got <= from.put, "seed {seed}");
                assert!(from.connector.is_none() || to.got == from.put, "seed {seed}");
                revived += from.revived;
            }
        }
        assert!(revived > 60, "{revived} rails came in the place of the last");
    }
}
