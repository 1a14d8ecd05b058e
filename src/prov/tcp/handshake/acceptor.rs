// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A listening socket and its connection attempts. Every caller is hostile until its INTRO has been checked, so the cost of an
//! attempt is bounded: one descriptor, a little memory, and a little time.

use super::exchange::Link;
use super::pending::{Introduced, ListenParams, Pending};
use super::refused_keys::RefusedKeys;
use crate::config;
use crate::error::{Error, Result};
use crate::prov;
use crate::prov::accept::{AcceptOutcome, Acceptor, MOST};
use crate::prov::tcp::secure::auth::Key;
use crate::prov::tcp::secure::sealed::SealedOut;
use crate::prov::tcp::wire::address::Address;
use crate::prov::tcp::wire::hello::{Purpose, Status, Terms};
use crate::sys::epoll::Poller;
use crate::sys::{tcp, time};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Length of the kernel's queue of connections that were not accepted yet; `net.core.somaxconn` may lower it.
const BACKLOG: i32 = 4096;
/// Most requests that wait for the program's answer. Further requests are refused.
const REQUESTS: usize = 1024;
/// Most attempts at once at a socket that listens for rails.
const RAIL_PENDING: usize = 8;
/// If there are too many attempts, an attempt that has sent nothing for this long makes room for another.
const SILENCE_NS: u64 = 100_000_000;

/// A connection request, whose INTRO is valid. Dropping it rejects it.
pub struct Request {
    introduced: Option<Introduced>,
    peer: SocketAddr,
    terms: Terms,
    /// A clone of the acceptor's `requests`.
    _counted: Arc<()>,
}

impl Request {
    fn new(mut introduced: Introduced, counted: Arc<()>) -> Request {
        let terms = std::mem::take(&mut introduced.terms);
        Request { peer: introduced.peer, introduced: Some(introduced), terms, _counted: counted }
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The key that applies to this peer.
    pub fn key(&self) -> Option<Key> {
        self.introduced.as_ref().and_then(|introduced| introduced.key.clone())
    }

    /// The version of the format that both sides speak.
    pub fn version(&self) -> u16 {
        self.introduced.as_ref().map_or(0, |introduced| introduced.version)
    }

    /// The address of this host that the peer dialed.
    pub fn called_at(&self) -> Option<SocketAddr> {
        self.introduced.as_ref().and_then(|introduced| tcp::local(introduced.socket.as_fd()).ok())
    }

    /// Accepts: sends ANSWER, after which the peer's next byte belongs to its first frame. If a sealed connection cannot get its
    /// buffer, ANSWER says BUSY.
    pub fn accept(mut self, terms: Terms) -> Result<Link> {
        let Some(mut introduced) = self.introduced.take() else {
            return Err(Error::invalid("handle: this connection request has been answered"));
        };
        let room = introduced.seals().then(SealedOut::room).transpose();
        if let Err(e) = room {
            introduced.answer(Status::Busy, &Terms::default())?;
            return Err(e.context("accepting a sealed connection"));
        }
        introduced.answer(Status::Good, &terms)?;
        Ok(Link { room: room?, ..introduced.link()? })
    }
}

impl prov::Request for Request {
    /// The address of the peer's socket, not an address that the peer claims.
    fn from(&self) -> String {
        Address::of(self.peer, None).to_string()
    }

    fn data(&self) -> &[u8] {
        &self.terms.data
    }

    fn reject(mut self: Box<Self>, data: &[u8]) -> Result<()> {
        match self.introduced.take() {
            Some(mut introduced) => introduced.answer(Status::Rejected, &Terms { data: data.to_vec(), ..Terms::default() }),
            None => Ok(()),
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(mut introduced) = self.introduced.take()
            && let Err(e) = introduced.answer(Status::Rejected, &Terms::default())
        {
            crate::log!(Debug, "{e}");
        }
    }
}

/// A listening socket and its attempts.
pub struct HandshakeAcceptor {
    acceptor: Acceptor,
    at: SocketAddr,
    params: ListenParams,
    /// The oldest attempt first.
    pending: Vec<Pending>,
    refused: RefusedKeys,
    /// Most attempts at once.
    most: usize,
    /// The time that a caller has for HELLO and INTRO.
    patience_ns: u64,
    /// Each open request holds a clone, so the reference count is the number of open requests plus 1.
    requests: Arc<()>,
    most_requests: usize,
}

impl HandshakeAcceptor {
    /// Listens on `at`; port 0: the kernel chooses one. `token`: the token that dialers must name; 0 for a passive endpoint.
    pub fn listen(at: SocketAddr, purpose: Purpose, token: u64, key: Option<Key>) -> Result<HandshakeAcceptor> {
        HandshakeAcceptor::start(tcp::bind(at)?, purpose, token, key)
    }

    /// Listens on a socket that is bound already.
    pub fn start(bound: OwnedFd, purpose: Purpose, token: u64, key: Option<Key>) -> Result<HandshakeAcceptor> {
        let at = tcp::local(bound.as_fd())?;
        tcp::start(bound.as_fd(), BACKLOG).map_err(|e| e.context(at))?;
        let config = &config::get().debug;
        Ok(HandshakeAcceptor {
            acceptor: Acceptor::new(bound, matches!(purpose, Purpose::Passive))?,
            at,
            params: ListenParams { purpose, token, key },
            pending: Vec::new(),
            refused: RefusedKeys::default(),
            // A socket for rails expects only one dialer, for as long as the connection lasts.
            most: if matches!(purpose, Purpose::Rail) { config.tcp_pending.min(RAIL_PENDING) } else { config.tcp_pending },
            requests: Arc::default(),
            most_requests: REQUESTS,
            patience_ns: config.tcp_greeting_ms.saturating_mul(1_000_000),
        })
    }

    pub fn local(&self) -> SocketAddr {
        self.at
    }

    /// Number of attempts whose INTRO has not been checked.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The attempt that has sent nothing for longest (index, time of its last byte).
    fn most_silent(&self) -> Option<(usize, u64)> {
        self.pending.iter().map(Pending::heard).enumerate().min_by_key(|(_, introduced)| *introduced)
    }

    /// The time from which the next connection can be accepted; a time in the past means now.
    fn room_at(&self) -> u64 {
        let full = self.pending.len() >= self.most;
        self.most_silent().filter(|_| full).map_or(0, |(_, introduced)| introduced + SILENCE_NS)
    }

    /// The error that keeps connections from being accepted, or the report of refused keys. Each error is returned once.
    pub fn trouble(&mut self) -> Option<Error> {
        self.acceptor.trouble().or_else(|| self.refused.tell(time::now_ns()))
    }

    /// Calls `each` with the descriptor that becomes readable when `poll` has work.
    pub fn each_fd(&self, mut each: impl FnMut(BorrowedFd<'_>)) {
        each(self.acceptor.set.as_fd());
    }

    pub fn watch(&self, poller: &Poller) -> Result<()> {
        poller.add(self.acceptor.set.as_fd())
    }

    /// Accepts and advances attempts; returns new requests.
    pub fn poll(&mut self) -> Vec<Request> {
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(self.acceptor.fd()).chain(self.pending.iter().map(Pending::fd)).collect();
        let ready = tcp::readable(&fds);
        let mut requests = Vec::new();
        if self.pending.is_empty() && !ready[0] && !self.acceptor.is_timed() {
            return requests;
        }
        let now = time::now_ns();
        for (pending, ready) in std::mem::take(&mut self.pending).into_iter().zip(&ready[1..]) {
            if *ready {
                self.read_from(pending, now, &mut requests);
            } else {
                self.keep(pending, now);
            }
        }
        if ready[0] {
            self.take(now, &mut requests);
        }
        let over = self.pending.iter().map(Pending::until).min();
        self.acceptor.sleep_well(self.room_at(), over);
        requests
    }

    /// Advances an attempt whose socket is readable: the attempt becomes a request, goes on, or is dropped.
    fn read_from(&mut self, pending: Pending, now: u64, requests: &mut Vec<Request>) {
        let peer = pending.peer();
        match pending.advance(&self.params) {
            Ok(Ok(mut introduced)) => {
                self.acceptor.set.remove(introduced.socket.as_fd());
                // The acceptor itself holds one reference.
                if Arc::strong_count(&self.requests) > self.most_requests {
                    crate::log!(
                        Info,
                        "the request of {peer} is refused: {} connection requests already wait for gdrfab_accept() or gdrfab_reject()",
                        self.most_requests
                    );
                    // If ANSWER is lost, the peer still sees the connection end.
                    let _ = introduced.answer(Status::Busy, &Terms::default());
                    return;
                }
                requests.push(Request::new(introduced, self.requests.clone()));
            }
            Ok(Err(pending)) => self.keep(pending, now),
            Err(e) => {
                crate::log!(Info, "a connection attempt from {peer} was dropped: {e}");
                self.refused.note(peer, e);
            }
        }
    }

    /// Keeps an attempt, unless its time is over.
    fn keep(&mut self, pending: Pending, now: u64) {
        if now < pending.until() {
            self.pending.push(pending);
        } else {
            crate::log!(Debug, "{} did not complete the handshake in time", pending.peer());
        }
    }

    /// Accepts connections from the kernel's queue while there is room for attempts, at most `MOST` in one turn.
    fn take(&mut self, now: u64, requests: &mut Vec<Request>) {
        for _ in 0..MOST {
            if self.room_at() > now {
                return;
            }
            match self.acceptor.take(now, tcp::accept) {
                AcceptOutcome::One((socket, peer)) => {
                    if self.pending.len() >= self.most
                        && let Some((silent, _)) = self.most_silent()
                    {
                        self.pending.remove(silent).refuse(Status::Busy);
                    }
                    match self.acceptor.set.add(socket.as_fd()).and_then(|()| Pending::new(socket, peer, self.patience_ns)) {
                        Ok(pending) => self.read_from(pending, now, requests),
                        Err(e) => crate::log!(Info, "{e}"),
                    }
                }
                AcceptOutcome::TurnAway((socket, peer)) => {
                    if let Ok(pending) = Pending::new(socket, peer, 0) {
                        pending.refuse_and_close(Status::Busy);
                    }
                }
                AcceptOutcome::Nobody => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prov::tcp::handshake::dial::{Dial, Dialed};
    use crate::sys::epoll::Woken;
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpStream};
    use std::time::Duration;

    #[test]
    fn a_caller_without_an_introduction_is_dropped_in_time() {
        let mut acceptor = HandshakeAcceptor::listen((Ipv4Addr::LOCALHOST, 0).into(), Purpose::Passive, 0, None).unwrap();
        acceptor.patience_ns = 400_000_000;
        let mut slow = TcpStream::connect(acceptor.local()).unwrap();
        for _ in 0..1000 {
            if acceptor.pending() == 1 {
                break;
            }
            assert!(acceptor.poll().is_empty());
            std::thread::sleep(Duration::from_millis(1));
        }
        // The caller keeps sending, which gives it no more time; the timer wakes a sleeping thread.
        slow.write_all(b"GDR").unwrap();
        while acceptor.pending() == 1 && acceptor.acceptor.set.wait(Some(20_000_000)) == Woken::Ready {
            assert!(acceptor.poll().is_empty());
        }
        // A busy machine may have slept through the timer.
        assert!(acceptor.pending() == 0 || acceptor.acceptor.set.wait(Some(1_000_000_000)) == Woken::Ready);
        assert!(acceptor.poll().is_empty() && acceptor.pending() == 0);
        assert!((acceptor.acceptor.set.wait(Some(0)), acceptor.acceptor.is_timed()) == (Woken::Timeout, false));
    }

    #[test]
    fn a_listener_without_descriptors_rests() {
        let mut acceptor = HandshakeAcceptor::listen((Ipv4Addr::LOCALHOST, 0).into(), Purpose::Passive, 0, None).unwrap();
        let later = time::now_ns() + 200_000_000;
        acceptor.acceptor.rest_until(later);
        acceptor.acceptor.sleep_well(0, None);
        let _one = TcpStream::connect(acceptor.local()).unwrap();
        assert!(acceptor.poll().is_empty() && acceptor.pending() == 0);
        assert!(acceptor.acceptor.set.wait(Some(10_000_000)) == Woken::Timeout);
        assert!(acceptor.acceptor.set.wait(Some(1_000_000_000)) == Woken::Ready);
        assert!(acceptor.poll().is_empty() && acceptor.pending() == 1);
    }

    /// Drives both sides until the dial is over, or the acceptor has a request.
    fn call(acceptor: &mut HandshakeAcceptor) -> (Result<Dialed>, Dial, Vec<Request>) {
        let to = Address::of(acceptor.local(), None);
        let mut dial = Dial::new(&to, None, Purpose::Passive, 0, Terms::default(), None).unwrap();
        let mut requests = Vec::new();
        for _ in 0..2000 {
            let dialed = dial.advance();
            requests.extend(acceptor.poll());
            if !requests.is_empty() || !matches!(dialed, Ok(Dialed::Waiting)) {
                return (dialed, dial, requests);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("neither an answer nor a request");
    }

    #[test]
    fn a_dialer_that_waits_for_an_answer_notices_a_dead_host() {
        let mut acceptor = HandshakeAcceptor::listen((Ipv4Addr::LOCALHOST, 0).into(), Purpose::Passive, 0, None).unwrap();
        let (dialed, dial, held) = call(&mut acceptor);
        assert!(matches!(dialed, Ok(Dialed::Waiting)) && held.len() == 1);
        assert!(rustix::net::sockopt::socket_keepalive(dial.fd().unwrap()).unwrap());
    }

    #[test]
    fn requests_that_nobody_answers_are_bounded() {
        let mut acceptor = HandshakeAcceptor::listen((Ipv4Addr::LOCALHOST, 0).into(), Purpose::Passive, 0, None).unwrap();
        acceptor.most_requests = 1;
        let (_, _first, held) = call(&mut acceptor);
        assert_eq!(held.len(), 1);
        let (refused, _, none) = call(&mut acceptor);
        assert!(none.is_empty() && refused.is_err_and(|e| e.errno == crate::error::errno::ECONNREFUSED));
        drop(held);
        let (_, _third, held) = call(&mut acceptor);
        assert_eq!(held.len(), 1, "there is room again");
    }
}
