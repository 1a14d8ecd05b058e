// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listener's side of the handshake. The peer is hostile until its INTRO has been checked.

use super::exchange::{Inbox, Link, handshake_error, nonce, read_message, write_message};
use crate::error::{Code, Error, Result, errno};
use crate::prov::tcp::secure::auth::{Key, Transcript};
use crate::prov::tcp::secure::noise::Noise;
use crate::prov::tcp::secure::seal::Cipher;
use crate::prov::tcp::wire::hello::{
    EPHEMERAL, HEAD_LEN, HELLO_LEN, HIGHEST, Head, Hello, LATER_SINCE, LOWEST, NONCE_LEN, Purpose, RAILS_SINCE, STREAMS_SINCE, Status,
    Terms,
};
use crate::sys::{tcp, time};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The parameters of a listening socket, which callers are checked against.
#[derive(Clone)]
pub struct ListenParams {
    pub purpose: Purpose,
    /// The token that an INTRO must name; 0 for a passive endpoint.
    pub token: u64,
    pub key: Option<Key>,
}

/// The message, or part of a message, that the attempt waits for.
enum PendingStep {
    Hello,
    Head,
    Body(Head),
}

/// A connection attempt whose INTRO has not been checked.
pub struct Pending {
    socket: OwnedFd,
    peer: SocketAddr,
    transcript: Box<Transcript>,
    inbox: Inbox,
    step: PendingStep,
    /// The version that both sides speak.
    version: u16,
    /// The lowest version that this side speaks.
    lowest: u16,
    /// When the caller last sent something.
    heard: u64,
    /// The time at which the attempt is given up.
    until: u64,
}

/// A connection attempt whose INTRO is valid, and which waits for the program's answer.
pub struct Introduced {
    pub socket: OwnedFd,
    pub peer: SocketAddr,
    pub terms: Terms,
    pub version: u16,
    noise: Option<Box<Noise>>,
    /// The key that applies to this peer.
    pub key: Option<Key>,
}

impl Introduced {
    /// Sends ANSWER. The peer counts as lost if its socket does not take ANSWER at once.
    pub fn answer(&mut self, status: Status, terms: &Terms) -> Result<()> {
        let answer = write_message(self.noise.as_deref_mut(), status, 0, &terms.encode()?)?;
        send_whole(self.socket.as_fd(), &answer)
    }

    /// True if the connection will be sealed.
    pub fn seals(&self) -> bool {
        self.key.as_ref().is_some_and(|key| key.seal)
    }

    /// Turns an accepted attempt into a link.
    pub fn link(self) -> Result<Link> {
        Link::new(self.socket, self.version, self.noise, self.key)
    }
}

/// Sends a message at once. A peer whose socket has no room for the message counts as gone.
fn send_whole(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<()> {
    match tcp::send(fd, bytes)? {
        n if n == bytes.len() => Ok(()),
        _ => {
            Err(Error::coded(errno::ECONNRESET, Code::PeerGone, "the socket to the peer that asked to connect has no room for the answer"))
        }
    }
}

impl Pending {
    /// `patience_ns`: how long the caller has for HELLO and INTRO.
    pub fn new(socket: OwnedFd, peer: SocketAddr, patience_ns: u64) -> Result<Pending> {
        tcp::set_no_delay(socket.as_fd())?;
        let now = time::now_ns();
        let transcript = Box::new(Transcript { hello: [0; HELLO_LEN], challenge: [0; HELLO_LEN] });
        Ok(Pending {
            socket,
            peer,
            transcript,
            inbox: Inbox::of(HELLO_LEN),
            step: PendingStep::Hello,
            version: HIGHEST,
            lowest: LOWEST,
            heard: now,
            until: now + patience_ns,
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// When the caller last sent something.
    pub fn heard(&self) -> u64 {
        self.heard
    }

    /// The time at which the attempt is given up.
    pub fn until(&self) -> u64 {
        self.until
    }

    /// Refuses the attempt, with the reason in the message that is due: CHALLENGE or ANSWER.
    pub fn refuse(&self, status: Status) {
        // A caller that has gone misses the reason, which does no harm.
        let _ = match self.step {
            PendingStep::Hello => send_whole(self.fd(), &self.refusal(status).encode()),
            _ => {
                let head = Head { body: 0, status, token: 0, ephemeral: [0; EPHEMERAL] };
                send_whole(self.fd(), &head.encode())
            }
        };
    }

    /// A CHALLENGE that refuses. Its versions are those that this side speaks if `status` is `Status::Version`,
    /// otherwise the version of the attempt.
    fn refusal(&self, status: Status) -> Hello {
        let (lowest, highest) = match status {
            Status::Version => (self.lowest, HIGHEST),
            _ => (self.version, self.version),
        };
        Hello { lowest, highest, keyed: false, sealed: false, aes: false, purpose: 0, status, nonce: [0; NONCE_LEN], id: None }
    }

    /// Refuses an attempt that is closed at once. First reads the bytes that have arrived: closing a socket with unread
    /// bytes resets the connection, and the refusal would be lost.
    pub fn refuse_and_close(mut self, status: Status) {
        let _ = self.inbox.fill(self.socket.as_fd());
        self.refuse(status);
    }

    /// Reads and handles messages that have arrived. Returns `Introduced` once INTRO is valid, else the attempt itself.
    /// An error ends the attempt.
    pub fn advance(mut self, params: &ListenParams) -> Result<std::result::Result<Introduced, Pending>> {
        loop {
            let before = self.inbox.have;
            let all = self.inbox.fill(self.socket.as_fd())?;
            if self.inbox.have > before {
                self.heard = time::now_ns();
            }
            if !all {
                return Ok(Err(self));
            }
            match self.step {
                PendingStep::Hello => self.answer_hello(params)?,
                PendingStep::Head => {
                    let head = Head::decode(&self.inbox.array()?)?;
                    if head.status != Status::Good {
                        return Err(handshake_error("the peer's handshake message has an unexpected status"));
                    }
                    self.inbox = Inbox::of(head.body);
                    self.step = PendingStep::Body(head);
                }
                PendingStep::Body(head) => return self.introduced(&head, params).map(Ok),
            }
        }
    }

    /// Refuses the attempt; returns the error for this side's log and reports.
    fn refuse_with(&self, status: Status, errno: i32, words: &'static str) -> Error {
        self.refuse(status);
        Error::fixed(errno, words)
    }

    /// HELLO has arrived: checks it, and sends CHALLENGE.
    fn answer_hello(&mut self, params: &ListenParams) -> Result<()> {
        self.transcript.hello = self.inbox.array()?;
        self.lowest = params.key.as_ref().map_or(LOWEST, Key::since);
        let hello = Hello::decode(&self.transcript.hello)?;
        if !hello.speaks_ours() {
            return Err(self.refuse_with(Status::Version, errno::EPROTONOSUPPORT, "has no protocol version in common with this library"));
        }
        self.version = hello.common();
        if hello.status != Status::Good {
            return Err(handshake_error("the peer's first handshake message has an unexpected status"));
        }
        match (hello.keyed, &params.key) {
            (false, Some(_)) => {
                return Err(self.refuse_with(
                    Status::KeyNeeded,
                    errno::EACCES,
                    "has no key, but this side requires one (auth_key, GDRFAB_TCP_KEY_FILE)",
                ));
            }
            (true, None) => {
                return Err(self.refuse_with(
                    Status::KeyNeeded,
                    errno::EACCES,
                    "requires a key, but this side has none (auth_key, GDRFAB_TCP_KEY_FILE)",
                ));
            }
            _ => {}
        }
        if let Some(key) = &params.key {
            if hello.highest < self.lowest {
                return Err(self.refuse_with(
                    Status::Version,
                    errno::EPROTONOSUPPORT,
                    "has no protocol version that supports this kind of key",
                ));
            }
            if hello.sealed != key.seal {
                return Err(self.refuse_with(
                    Status::SealNeeded,
                    errno::EACCES,
                    "has a key but another GDRFAB_TCP_SECURITY than this side: one encrypts, the other does not",
                ));
            }
            if hello.id.is_some() != key.id().is_some() {
                return Err(self.refuse_with(
                    Status::KeyKind,
                    errno::EACCES,
                    "has another kind of key than this side: one has a shared key, the other a key pair",
                ));
            }
            if key.for_peer(hello.id).is_none() {
                return Err(self.refuse_with(
                    Status::KeyWrong,
                    errno::EKEYREJECTED,
                    "has a key that is not in this side's GDRFAB_TCP_KEY_FILE",
                ));
            }
        }
        if hello.purpose != params.purpose as u8 {
            return Err(self.refuse_with(Status::WrongDoor, errno::ECONNREFUSED, "tried to connect to another kind of endpoint"));
        }
        let flags = Hello { aes: hello.aes && Cipher::is_aes_fast(), id: params.key.as_ref().and_then(Key::id), ..hello };
        self.transcript.challenge = Hello { nonce: nonce()?, lowest: self.version, highest: self.version, ..flags }.encode();
        send_whole(self.socket.as_fd(), &self.transcript.challenge)?;
        self.inbox = Inbox::of(HEAD_LEN);
        self.step = PendingStep::Head;
        Ok(())
    }

    /// The key that applies to the caller who sent HELLO.
    fn key_of(&self, key: &Key) -> Result<Key> {
        let id = Hello::decode(&self.transcript.hello)?.id;
        key.for_peer(id).ok_or(Error::fixed(errno::EKEYREJECTED, "has a key that is not in this side's GDRFAB_TCP_KEY_FILE"))
    }

    /// INTRO has arrived: checks it. With a key, nothing in INTRO is trusted before it decrypts.
    fn introduced(self, head: &Head, params: &ListenParams) -> Result<Introduced> {
        let here = tcp::local(self.socket.as_fd())?;
        let key = params.key.as_ref().map(|key| self.key_of(key)).transpose()?;
        let mut noise = match &key {
            Some(key) => Some(Box::new(self.transcript.noise(key, self.peer, here, false)?)),
            None => None,
        };
        let Some((status, token, body)) = read_message(noise.as_deref_mut(), head, &self.inbox.bytes)? else {
            return Err(self.refuse_with(Status::KeyWrong, errno::EACCES, "has a different key, or the connection was tampered with"));
        };
        if status != Status::Good {
            return Err(handshake_error("the peer's handshake message has an unexpected status"));
        }
        // The tokens are compared as one number, so that the time does not tell how much of a guess is right.
        if token ^ params.token != 0 {
            return Err(self.refuse_with(Status::WrongDoor, errno::ECONNREFUSED, "named an endpoint that does not exist here"));
        }
        let terms = Terms::decode(&body)?;
        let streams_since = if terms.later { LATER_SINCE } else { STREAMS_SINCE };
        if (self.version < streams_since && terms.streams > 0) || (self.version < RAILS_SINCE && !terms.rails.is_empty()) {
            return Err(handshake_error("the peer's handshake message has flags that its protocol version does not define"));
        }
        Ok(Introduced { socket: self.socket, peer: self.peer, terms, version: self.version, noise, key })
    }
}
