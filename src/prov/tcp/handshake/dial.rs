// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dialer's side of the handshake: connects to the first address of a host that answers, then exchanges the four messages.

use super::exchange::{Inbox, Link, handshake_error, nonce, read_message, write_message};
use super::socket_options::keep_alive;
use crate::error::{Code, Error, Result, errno};
use crate::prov::tcp::secure::auth::{Key, Transcript};
use crate::prov::tcp::secure::noise::Noise;
use crate::prov::tcp::secure::seal::Cipher;
use crate::prov::tcp::wire::address::{Address, Host};
use crate::prov::tcp::wire::hello::{
    HEAD_LEN, HELLO_LEN, HIGHEST, Head, Hello, LATER_SINCE, LOWEST, Purpose, RAILS_SINCE, STREAMS_SINCE, Status, Terms,
};
use crate::sys::{tcp, time};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// If an address of a host has not answered for this long, the next address is tried, if there is one.
const NEXT_NS: u64 = 2_000_000_000;

/// The error for a status that the listener answered with. Only `Status::Rejected` gives `Code::Rejected`: all other
/// statuses come from the library, not from the peer's program.
fn refused(status: Status, key: Option<&Key>) -> Error {
    let (errno, code, words) = match status {
        Status::Version => (errno::EPROTONOSUPPORT, Code::PeerBroke, "the listener and this library have no protocol version in common"),
        Status::KeyNeeded => (
            errno::EACCES,
            Code::None,
            "one side requires a key (auth_key, GDRFAB_TCP_KEY_FILE) and the other has none; give both the same key",
        ),
        Status::KeyWrong if key.is_some_and(|key| key.id().is_some()) => (
            errno::EKEYREJECTED,
            Code::None,
            "the listener's GDRFAB_TCP_KEY_FILE does not permit this side's key, or the connection was tampered with",
        ),
        Status::KeyWrong => {
            (errno::EACCES, Code::None, "the listener has a different key; give both sides the same (auth_key, GDRFAB_TCP_KEY_FILE)")
        }
        Status::KeyKind => (
            errno::EACCES,
            Code::None,
            "one side has a shared key and the other a key pair; give both the same kind (auth_key, GDRFAB_TCP_KEY_FILE)",
        ),
        Status::SealNeeded => {
            (errno::EACCES, Code::None, "one side encrypts the connection and the other does not; set GDRFAB_TCP_SECURITY alike on both")
        }
        Status::WrongDoor => (errno::ECONNREFUSED, Code::None, "the listener has no endpoint of this address, or one of another kind"),
        Status::Busy => (
            errno::ECONNREFUSED,
            Code::Busy,
            "the listener has too many connection attempts, or no free descriptor (its event queue reports that); try again later",
        ),
        Status::Good | Status::Rejected => (errno::ECONNREFUSED, Code::Rejected, "the peer rejected the connection"),
    };
    Error::coded(errno, code, words)
}

/// The outcome of `Dial::advance`.
pub enum Dialed {
    Waiting,
    Accepted {
        link: Link,
        terms: Terms,
    },
    /// The peer's program rejected the connection, with this data.
    Rejected(Vec<u8>),
}

/// The step of a dial, named after the event or message that the dial waits for.
enum DialStep {
    Connecting,
    Challenge,
    Head,
    Body(Head),
    Over,
}

/// A connection attempt of this side.
pub struct Dial {
    socket: Option<OwnedFd>,
    at: SocketAddr,
    /// The time from which the next address may be tried.
    patience: u64,
    /// The host's addresses that have not been tried yet.
    others: VecDeque<SocketAddr>,
    /// The address of this host to dial from.
    from: Option<SocketAddr>,
    purpose: Purpose,
    token: u64,
    terms: Terms,
    /// The host as the caller named it, by which its key is found.
    host: Host,
    key: Option<Key>,
    /// The part of `key` that applies to the address being tried.
    address_key: Option<Key>,
    transcript: Transcript,
    noise: Option<Box<Noise>>,
    /// The bytes of this side's message that are still to be sent.
    out: Vec<u8>,
    inbox: Inbox,
    step: DialStep,
}

impl Dial {
    /// Begins to connect to `to`, whose host is an IP address. `token`: the token of the peer's endpoint; 0 for a
    /// passive endpoint. Fails at once if the attempt cannot succeed.
    pub fn new(to: &Address, from: Option<SocketAddr>, purpose: Purpose, token: u64, terms: Terms, key: Option<Key>) -> Result<Dial> {
        Dial::to_any(to, to.resolve()?, from, purpose, token, terms, key)
    }

    /// As `new`, to the first of the addresses `found` that answers.
    pub fn to_any(
        to: &Address,
        found: Vec<SocketAddr>,
        from: Option<SocketAddr>,
        purpose: Purpose,
        token: u64,
        terms: Terms,
        key: Option<Key>,
    ) -> Result<Dial> {
        to.check_port()?;
        terms.encode()?;
        let mut others: VecDeque<SocketAddr> = found.into();
        if let Some(from) = from {
            others.retain(|at| at.is_ipv4() == from.is_ipv4());
        }
        let Some(at) = others.front().copied() else {
            return Err(Error::new(
                errno::EADDRNOTAVAIL,
                format!("addr: {to} has no IP address of the same family (IPv4 or IPv6) as the local address"),
            ));
        };
        let hello = Hello {
            lowest: key.as_ref().map_or(LOWEST, Key::since),
            highest: HIGHEST,
            keyed: key.is_some(),
            sealed: key.as_ref().is_some_and(|key| key.seal),
            aes: key.is_some() && Cipher::is_aes_fast(),
            purpose: purpose as u8,
            status: Status::Good,
            nonce: nonce()?,
            id: key.as_ref().and_then(Key::id),
        };
        let transcript = Transcript { hello: hello.encode(), challenge: [0; HELLO_LEN] };
        let mut dial = Dial {
            socket: None,
            at,
            patience: 0,
            others,
            from,
            purpose,
            token,
            terms,
            host: to.host.clone(),
            key,
            address_key: None,
            transcript,
            noise: None,
            out: Vec::new(),
            inbox: Inbox::of(HELLO_LEN),
            step: DialStep::Connecting,
        };
        dial.next(None)?;
        Ok(dial)
    }

    /// Begins to connect to the next address. If none is left, fails with the error of the last address that was tried,
    /// or else with `why`.
    fn next(&mut self, mut why: Option<Error>) -> Result<()> {
        self.socket = None;
        while let Some(at) = self.others.pop_front() {
            self.at = at;
            self.patience = time::now_ns() + NEXT_NS;
            let key = self.key.as_ref().map(|key| key.for_address(&self.host, at)).transpose();
            match key.and_then(|key| Ok((tcp::connect(at, self.from)?, key))) {
                Ok((socket, key)) => {
                    self.address_key = key;
                    self.socket = Some(socket);
                    return Ok(());
                }
                Err(e) => why = Some(e),
            }
        }
        self.step = DialStep::Over;
        Err(why.unwrap_or(Error::fixed(errno::EADDRNOTAVAIL, "addr: resolves to no IP address")))
    }

    /// The descriptor to wait for: until it is writable if `wants_write`, else until it is readable. The descriptor can
    /// change with each `advance`. `None`: the attempt is over.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    pub fn wants_write(&self) -> bool {
        matches!(self.step, DialStep::Connecting) || !self.out.is_empty()
    }

    /// True if the TCP connection is up, so a listener is there.
    pub fn is_heard(&self) -> bool {
        !matches!(self.step, DialStep::Connecting | DialStep::Over)
    }

    /// The address that is being tried.
    pub fn peer(&self) -> SocketAddr {
        self.at
    }

    /// Goes on as far as possible without blocking. Every outcome except `Dialed::Waiting` ends the attempt.
    pub fn advance(&mut self) -> Result<Dialed> {
        let result = self.steps();
        if !matches!(result, Ok(Dialed::Waiting)) {
            self.step = DialStep::Over;
            self.socket = None;
        }
        result.map_err(|e| e.context(format_args!("connecting to {}", self.at)))
    }

    fn steps(&mut self) -> Result<Dialed> {
        loop {
            let Some(socket) = &self.socket else { return Err(Error::fixed(errno::EOPBADSTATE, "the connection attempt has ended")) };
            let fd = socket.as_fd();
            if matches!(self.step, DialStep::Connecting) {
                match tcp::connected(fd) {
                    Ok(Some(())) => {
                        tcp::set_no_delay(fd)?;
                        keep_alive(fd)?;
                        self.out = self.transcript.hello.to_vec();
                        self.step = DialStep::Challenge;
                    }
                    Ok(None) if self.others.is_empty() || time::now_ns() < self.patience => return Ok(Dialed::Waiting),
                    Ok(None) => self.next(None)?,
                    Err(e) => self.next(Some(e))?,
                }
                continue;
            }
            if !self.out.is_empty() {
                let sent = tcp::send(fd, &self.out).map_err(no_answer)?;
                self.out.drain(..sent);
                if !self.out.is_empty() {
                    return Ok(Dialed::Waiting);
                }
            }
            if !self.inbox.fill(fd).map_err(no_answer)? {
                return Ok(Dialed::Waiting);
            }
            match &self.step {
                DialStep::Challenge => self.challenged()?,
                DialStep::Head => {
                    let head = Head::decode(&self.inbox.array()?)?;
                    self.inbox = Inbox::of(head.body);
                    self.step = DialStep::Body(head);
                }
                DialStep::Body(head) => {
                    let head = *head;
                    return self.answered(&head);
                }
                DialStep::Connecting | DialStep::Over => {}
            }
        }
    }

    /// CHALLENGE has arrived: checks it, and sends INTRO.
    fn challenged(&mut self) -> Result<()> {
        let bytes = self.inbox.array()?;
        // TCP can connect a socket to itself, if the kernel happens to give it the very port that it dials.
        if bytes == self.transcript.hello {
            return Err(Error::fixed(errno::ECONNREFUSED, "nothing listens at this address"));
        }
        let challenge = Hello::decode(&bytes)?;
        let versions = (challenge.lowest, challenge.highest);
        let key = self.address_key.as_ref();
        let lowest = key.map_or(LOWEST, Key::since);
        let key_needed = challenge.status == Status::Good && challenge.keyed != key.is_some();
        match challenge.status {
            Status::Good if key_needed => return Err(refused(Status::KeyNeeded, key)),
            Status::Good if versions.0 == versions.1 && (lowest..=HIGHEST).contains(&versions.0) => {}
            Status::Good | Status::Version => {
                let (low, high) = versions;
                return Err(
                    refused(Status::Version, key).context(format_args!("it has versions {low} to {high}, this side {lowest} to {HIGHEST}"))
                );
            }
            status => return Err(refused(status, key)),
        }
        if challenge.purpose != self.purpose as u8 {
            return Err(handshake_error("the listener answered for another kind of connection"));
        }
        let ours = Hello::decode(&self.transcript.hello)?;
        if challenge.sealed != ours.sealed {
            return Err(refused(Status::SealNeeded, key));
        }
        if challenge.id.is_some() != ours.id.is_some() {
            return Err(refused(Status::KeyKind, key));
        }
        if challenge.aes && !ours.aes {
            return Err(handshake_error("the listener chose a cipher that this side did not offer"));
        }
        self.transcript.challenge = bytes;
        if let (Some(key), Some(socket)) = (key, &self.socket) {
            let (own, peer) = (tcp::local(socket.as_fd())?, tcp::peer(socket.as_fd())?);
            self.noise = Some(Box::new(self.transcript.noise(key, own, peer, true)?));
        }
        if challenge.highest < if self.terms.later { LATER_SINCE } else { STREAMS_SINCE } {
            (self.terms.streams, self.terms.later) = (0, false);
        }
        if challenge.highest < RAILS_SINCE {
            self.terms.rails.clear();
        }
        self.out = write_message(self.noise.as_deref_mut(), Status::Good, self.token, &self.terms.encode()?)?;
        self.inbox = Inbox::of(HEAD_LEN);
        self.step = DialStep::Head;
        Ok(())
    }

    /// ANSWER has arrived: checks it.
    fn answered(&mut self, head: &Head) -> Result<Dialed> {
        let has_key = self.noise.is_some();
        if !matches!(head.status, Status::Good | Status::Rejected) {
            return Err(refused(head.status, self.address_key.as_ref()));
        }
        let unproven = || Error::coded(errno::EACCES, Code::PeerBroke, "the listener did not prove that it has the key");
        if has_key && head.status != Status::Good {
            return Err(unproven());
        }
        let (status, _, body) = read_message(self.noise.as_deref_mut(), head, &self.inbox.bytes)?.ok_or_else(unproven)?;
        let terms = Terms::decode(&body)?;
        match status {
            Status::Good => {}
            Status::Rejected => return Ok(Dialed::Rejected(terms.data)),
            status => return Err(refused(status, self.address_key.as_ref())),
        }
        let version = Hello::decode(&self.transcript.challenge)?.highest;
        let called_for = if terms.later { version >= LATER_SINCE } else { !self.terms.later && terms.door.0 != 0 };
        if terms.streams > self.terms.streams || (terms.streams > 0 && !called_for) {
            return Err(handshake_error("the listener accepts more streams than this side offered"));
        }
        if !terms.rails.is_empty() && (self.terms.rails.is_empty() || terms.streams > 0) {
            return Err(handshake_error("the listener accepts rails that this side did not offer"));
        }
        match self.socket.take() {
            Some(socket) => Ok(Dialed::Accepted { link: Link::new(socket, version, self.noise.take(), self.address_key.take())?, terms }),
            None => Err(Error::fixed(errno::EOPBADSTATE, "the connection attempt has ended")),
        }
    }
}

/// The error for a listener that closes the connection in the middle of the handshake.
fn no_answer(e: Error) -> Error {
    if e.code != Code::PeerGone {
        return e;
    }
    Error::coded(errno::ECONNREFUSED, Code::PeerGone, "the listener closed without an answer")
}
