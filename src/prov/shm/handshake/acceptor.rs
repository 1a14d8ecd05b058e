// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A listener, and the connections to it that have not introduced themselves yet.
//!
//! A connecting process counts as hostile until the kernel has told its user and its introduction was checked. So the
//! number of unchecked connections, their time and their descriptors are bounded here.

use super::control::{self, BACKLOG, Control};
use super::credentials::check_peer;
use crate::error::{Error, Result, errno};
use crate::prov;
use crate::prov::accept::{AcceptOutcome, Acceptor, MOST};
use crate::prov::shm::wire::address::{self, SCHEME};
use crate::prov::shm::wire::frame::{self, Frame, Intro, RefusalReason};
use crate::sys::path_socket::BoundPath;
use crate::sys::{discard, process, socket, time};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Most connections without an introduction; further ones wait in the listener's backlog.
const PENDING: usize = 64;
/// Time within which a connection must introduce itself (5 s).
const PATIENCE_NS: u64 = 5_000_000_000;
/// Time after which a silent connection makes room for another if `PENDING` connections are waiting (100 ms).
const SILENCE_NS: u64 = 100_000_000;
/// Most requests that wait for the program's answer, each with up to four descriptors; further ones are refused.
const REQUESTS: usize = 256;

/// A connection request: its socket, introduction and descriptors. Dropping it unanswered rejects it.
pub struct Request {
    pub socket: Arc<Control>,
    pub intro: Intro,
    pub descriptors: Option<IntroDescriptors>,
    pub pid: i32,
    answered: bool,
    /// A reference by which the acceptor counts the requests that exist.
    _counted: Arc<()>,
}

impl prov::Request for Request {
    fn data(&self) -> &[u8] {
        &self.intro.data
    }

    /// The peer's address; only the scheme if the peer has no name.
    fn from(&self) -> String {
        format!("{SCHEME}{}", self.intro.name)
    }

    fn reject(mut self: Box<Self>, data: &[u8]) -> Result<()> {
        self.answered = true;
        socket::send(self.socket.as_fd(), &Frame::Reject(data.to_vec()).encode(), &[]).map(|_| ())
    }
}

impl Request {
    pub fn name(&self) -> &str {
        &self.intro.name
    }

    /// Notes that the caller of this function sends the answer, so that the drop sends no reject.
    pub fn answered(&mut self) {
        self.answered = true;
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.answered {
            let _ = socket::send(self.socket.as_fd(), &Frame::Reject(Vec::new()).encode(), &[]);
        }
    }
}

/// A connection without an introduction, and the time until which it may introduce itself.
struct Pending {
    socket: Control,
    until: u64,
}

/// A listening socket and the connections to it that have not introduced themselves.
pub struct HandshakeAcceptor {
    pub name: String,
    /// The socket file of a listener whose name is a path; removed with the acceptor.
    _place: Option<BoundPath>,
    acceptor: Acceptor,
    /// Oldest first.
    pending: Vec<Pending>,
    /// Cloned into each `Request`, so that the strong count is the number of requests and 1.
    requests: Arc<()>,
}

impl HandshakeAcceptor {
    /// Listens under `name`. With `tells`, a caller for whom this process has no descriptor left is refused with a
    /// reason; without, the caller waits.
    pub fn listen(name: String, tells: bool) -> Result<HandshakeAcceptor> {
        let (listener, _place) = address::listen(&name, BACKLOG)?;
        Ok(HandshakeAcceptor { name, _place, acceptor: Acceptor::new(listener, tells)?, pending: Vec::new(), requests: Arc::default() })
    }

    /// The descriptor that becomes readable when `poll` has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.acceptor.set.as_fd()
    }

    /// The reason why connections cannot be accepted, unless the owner has taken this reason already.
    pub fn trouble(&mut self) -> Option<Error> {
        self.acceptor.trouble()
    }

    /// The time from which the next connection can be accepted; a past time means now. If `PENDING` connections are
    /// waiting, the oldest of them makes room once it has been silent for `SILENCE_NS`.
    fn room_at(&self) -> u64 {
        let full = self.pending.len() >= PENDING;
        self.pending.first().filter(|_| full).map_or(0, |oldest| oldest.until - PATIENCE_NS + SILENCE_NS)
    }

    /// Accepts connections and reads introductions; returns the requests that passed all checks.
    pub fn poll(&mut self, by_name: bool) -> Vec<Request> {
        // An accept call makes a socket in the kernel even if no connection waits, so a cheap poll asks first.
        if self.pending.is_empty() && !self.acceptor.is_timed() && !socket::readable(self.acceptor.fd()) {
            return Vec::new();
        }
        let (mut requests, now) = (Vec::new(), time::now_ns());
        for one in std::mem::take(&mut self.pending) {
            self.advance_pending(one, by_name, now, &mut requests);
        }
        for _ in 0..MOST {
            if self.room_at() > now {
                break;
            }
            match self.acceptor.take(now, socket::accept) {
                // The queue of descriptors to close is full, so the descriptors that this caller brings could not be
                // closed.
                AcceptOutcome::One(socket) if discard::is_full() => {
                    let socket = Control::from(socket);
                    let _ = frame::recv(&socket, &mut [0; frame::MAX]);
                    refuse(&socket, RefusalReason::Descriptors);
                }
                // Other users are refused before their introduction is read.
                AcceptOutcome::One(socket) => {
                    let socket = Control::from(socket);
                    match self.admit(&socket).and_then(|_| self.acceptor.set.add(socket.as_fd())) {
                        Ok(()) => {
                            if self.pending.len() >= PENDING {
                                self.pending.remove(0);
                            }
                            self.advance_pending(Pending { socket, until: now + PATIENCE_NS }, by_name, now, &mut requests);
                        }
                        Err(e) => crate::log!(Info, "{e}"),
                    }
                }
                AcceptOutcome::TurnAway(socket) => {
                    let socket = Control::from(socket);
                    // Closing a socket with an unread packet would discard the answer, so the packet is read first.
                    let _ = frame::recv(&socket, &mut [0; frame::MAX]);
                    refuse(&socket, RefusalReason::Descriptors);
                }
                AcceptOutcome::Nobody => break,
            }
        }
        let over = self.pending.iter().map(|one| one.until).min();
        self.acceptor.sleep_well(self.room_at(), over);
        requests
    }

    /// Reads the introduction of one connection, if it has come: adds the request to `requests`, keeps the connection
    /// among the pending ones, or drops it.
    fn advance_pending(&mut self, one: Pending, by_name: bool, now: u64, requests: &mut Vec<Request>) {
        // One reference is the acceptor's own.
        let full = Arc::strong_count(&self.requests) > REQUESTS;
        match self.read_hello(one, by_name, full) {
            Ok(Introduction::Done(request)) => {
                self.acceptor.set.remove(request.socket.as_fd());
                requests.push(*request);
            }
            Ok(Introduction::Pending(one)) if now < one.until => self.pending.push(one),
            Ok(_) => {}
            Err(e) => {
                crate::log!(Info, "a connection attempt was dropped: {e}");
                if e.errno == errno::EMFILE {
                    self.acceptor.fails(e);
                }
            }
        }
    }

    /// The caller's pid, if its user may connect; else refuses the caller.
    fn admit(&self, socket: &Control) -> Result<i32> {
        check_peer(socket.as_fd(), &self.name).inspect_err(|_| refuse(socket, RefusalReason::User))
    }

    /// Reads and checks the introduction of one connection. `full`: the program has as many unanswered requests as it
    /// may have.
    fn read_hello(&self, one: Pending, by_name: bool, full: bool) -> Result<Introduction> {
        let mut buf = [0u8; frame::MAX];
        let (len, fds, lacking) = match frame::recv(&one.socket, &mut buf)? {
            socket::Received::Nothing => return Ok(Introduction::Pending(one)),
            socket::Received::Closed => return Ok(Introduction::Closed),
            socket::Received::Packet { len, fds, lacking } => (len, fds, lacking),
        };
        let frame = Frame::decode(&buf[..len]).inspect_err(|e| {
            if e.errno == errno::EPROTONOSUPPORT {
                refuse(&one.socket, RefusalReason::Version);
            }
        })?;
        let Frame::Hello(intro) = frame else {
            return Err(Error::fixed(errno::EPROTO, "the peer's first packet is not a connection request"));
        };
        let pid = self.admit(&one.socket)?;
        check_intro(&intro)?;
        if intro.by_name != by_name {
            return Err(Error::fixed(errno::EPROTO, "the request is for another kind of endpoint"));
        }
        if lacking || full {
            refuse(&one.socket, if lacking { RefusalReason::Descriptors } else { RefusalReason::Requests });
        }
        let descriptors = Some(IntroDescriptors::new(fds, lacking)?);
        if full {
            return Err(Error::new(
                errno::EAGAIN,
                format!("{REQUESTS} connection requests already wait for gdrfab_accept() or gdrfab_reject()"),
            ));
        }
        let (socket, _counted) = (Arc::new(one.socket), self.requests.clone());
        Ok(Introduction::Done(Box::new(Request { socket, intro, descriptors, pid, answered: false, _counted })))
    }
}

impl Drop for HandshakeAcceptor {
    fn drop(&mut self) {
        control::empty(self.acceptor.fd());
    }
}

/// Sends the caller the reason of a refusal.
fn refuse(socket: &Control, why: RefusalReason) {
    // An error means that the caller is gone, and then nobody misses the answer.
    let _ = socket::send(socket.as_fd(), &Frame::Refuse(why).encode(), &[]);
}

/// The outcome of reading an introduction.
enum Introduction {
    Done(Box<Request>),
    Pending(Pending),
    Closed,
}

/// The descriptors that come with an introduction.
pub struct IntroDescriptors {
    pub segment: OwnedFd,
    pub table: OwnedFd,
    /// A pidfd of the process that copies for the peer.
    pub copier: Option<OwnedFd>,
}

impl IntroDescriptors {
    /// Sorts the received descriptors. `lacking`: this process had too few free descriptors to receive them all.
    pub fn new(fds: Vec<OwnedFd>, lacking: bool) -> Result<IntroDescriptors> {
        if lacking {
            return Err(Error::fixed(errno::EMFILE, "receiving the descriptors of a connection request"));
        }
        let mut fds = fds.into_iter();
        match (fds.next(), fds.next(), fds.next(), fds.next()) {
            (Some(segment), Some(table), copier, None) if copier.as_ref().is_none_or(process::is_pidfd) => {
                Ok(IntroDescriptors { segment, table, copier })
            }
            _ => Err(Error::fixed(errno::EPROTO, "the peer sent other descriptors than a connection request has")),
        }
    }
}

/// Checks that the introduction comes from this host.
pub fn check_intro(intro: &Intro) -> Result<()> {
    let ours = process::host_id()?;
    if intro.host != ours {
        return Err(Error::new(errno::EHOSTUNREACH, address::other_host_words(intro.host, ours)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_speaks_another_version_is_told_so() {
        let name = format!("gdrfab-test-{}-version", process::pid());
        let mut acceptor = HandshakeAcceptor::listen(name.clone(), true).unwrap();
        let Ok(socket::Connect::Done(caller)) = address::dial(&name) else { panic!("nobody listens") };
        let intro = Intro {
            host: process::host_id().unwrap(),
            ring_lines: 256,
            fences_remote: true,
            guard_addr: 0,
            guard_word: 0,
            by_name: false,
            name: String::new(),
            data: Vec::new(),
        };
        let mut hello = Frame::Hello(intro).encode();
        hello[8..12].copy_from_slice(&(frame::VERSION + 1).to_le_bytes());
        socket::send(caller.as_fd(), &hello, &[]).unwrap();
        assert!(acceptor.poll(false).is_empty());
        let mut buf = [0; frame::MAX];
        let Ok(socket::Received::Packet { len, .. }) = frame::recv(&caller, &mut buf) else { panic!("no answer") };
        assert_eq!(Frame::decode(&buf[..len]).unwrap(), Frame::Refuse(RefusalReason::Version));
        assert_eq!(RefusalReason::Version.error().errno, errno::EPROTONOSUPPORT);
    }
}
