// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listener's side of the handshake: a pending connection, hostile until its introduction has been checked.

use super::auth::{Side, Transcript};
use super::hello::{HEAD_LEN, HELLO_LEN, HIGHEST, Head, Hello, LOWEST, NONCE_LEN, PROOF_LEN, Purpose, STREAMS_SINCE, Status, Terms};
use super::shake::{Inbox, nonce, nonsense, say};
use crate::error::{Code, Error, Result, errno};
use crate::prov::info::Secret;
use crate::sys::{tcp, time};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What a listener offers to those who come.
#[derive(Clone)]
pub struct Door {
    pub purpose: Purpose,
    /// What an INTRO must name; 0 for a passive endpoint.
    pub token: u64,
    pub key: Option<Secret>,
}

enum Turn {
    Hello,
    Head,
    Body(Head),
}

/// A connection whose introduction has not been checked yet.
pub struct Pending {
    socket: OwnedFd,
    peer: SocketAddr,
    transcript: Box<Transcript>,
    inbox: Inbox,
    turn: Turn,
    /// The version that both speak.
    version: u16,
    /// When it last said anything.
    heard: u64,
    /// When to give it up.
    until: u64,
}

/// One whose introduction is good, and waits for its answer.
pub struct Heard {
    pub socket: OwnedFd,
    pub peer: SocketAddr,
    pub terms: Terms,
    transcript: Box<Transcript>,
    key: Option<Secret>,
}

impl Heard {
    /// Answers; a socket that does not take it all is as good as lost.
    pub fn answer(&self, status: Status, terms: &Terms) -> Result<()> {
        let answer = say(&self.transcript, self.key.as_ref(), Side::Listener, status, 0, &terms.encode()?)?;
        whole(self.socket.as_fd(), &answer)
    }
}

fn whole(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<()> {
    match tcp::send(fd, bytes)? {
        n if n == bytes.len() => Ok(()),
        _ => Err(Error::coded(errno::ECONNRESET, Code::PeerGone, "the peer that asked to connect takes no answer")),
    }
}

impl Pending {
    /// `patience_ns`: how long it has to introduce itself.
    pub fn new(socket: OwnedFd, peer: SocketAddr, patience_ns: u64) -> Result<Pending> {
        tcp::set_no_delay(socket.as_fd())?;
        let now = time::now_ns();
        let transcript = Box::new(Transcript { hello: [0; HELLO_LEN], challenge: [0; HELLO_LEN] });
        Ok(Pending {
            socket,
            peer,
            transcript,
            inbox: Inbox::of(HELLO_LEN),
            turn: Turn::Hello,
            version: HIGHEST,
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

    /// When it last said anything.
    pub fn heard(&self) -> u64 {
        self.heard
    }

    /// When its time is over.
    pub fn until(&self) -> u64 {
        self.until
    }

    /// Sends it away, with the reason where its turn allows one.
    pub fn refuse(&self, status: Status) {
        // It may be gone, or deaf: nothing is lost by that.
        let _ = match self.turn {
            Turn::Hello => whole(self.fd(), &challenge(status, self.version, false, 0, [0; NONCE_LEN]).encode()),
            _ => {
                let head = Head { body: 0, status, token: 0, proof: [0; PROOF_LEN] };
                whole(self.fd(), &head.encode())
            }
        };
    }

    /// As `refuse`, of one that is closed at once: what it has said already is read, because a socket that is closed with
    /// bytes unread takes its answer back.
    pub fn turn_back(mut self, status: Status) {
        let _ = self.inbox.fill(self.socket.as_fd());
        self.refuse(status);
    }

    /// Reads what has come. Gives back the connection if there is more to wait for; an error is the end of it.
    pub fn advance(mut self, door: &Door) -> Result<std::result::Result<Heard, Pending>> {
        loop {
            let before = self.inbox.have;
            let all = self.inbox.fill(self.socket.as_fd())?;
            if self.inbox.have > before {
                self.heard = time::now_ns();
            }
            if !all {
                return Ok(Err(self));
            }
            match self.turn {
                Turn::Hello => self.greet(door)?,
                Turn::Head => {
                    let head = Head::decode(&self.inbox.array()?)?;
                    if head.status != Status::Good {
                        return Err(nonsense("the introduction has a status"));
                    }
                    self.inbox = Inbox::of(head.body);
                    self.turn = Turn::Body(head);
                }
                Turn::Body(head) => return self.introduced(&head, door).map(Ok),
            }
        }
    }

    fn turn_away(&self, status: Status, errno: i32, words: &'static str) -> Error {
        self.refuse(status);
        Error::fixed(errno, words)
    }

    /// HELLO is there: CHALLENGE goes out.
    fn greet(&mut self, door: &Door) -> Result<()> {
        self.transcript.hello = self.inbox.array()?;
        let hello = Hello::decode(&self.transcript.hello)?;
        if !hello.speaks_ours() {
            return Err(self.turn_away(Status::Version, errno::EPROTONOSUPPORT, "speaks no version of the format that this library does"));
        }
        self.version = hello.common();
        if hello.status != Status::Good {
            return Err(nonsense("the greeting has a status"));
        }
        match (hello.keyed, &door.key) {
            (false, Some(_)) => return Err(self.turn_away(Status::KeyNeeded, errno::EACCES, "has no key, which this side insists on")),
            (true, None) => return Err(self.turn_away(Status::KeyNeeded, errno::EACCES, "insists on a key, and this side has none")),
            _ => {}
        }
        if hello.purpose != door.purpose as u8 {
            return Err(self.turn_away(Status::WrongDoor, errno::ECONNREFUSED, "meant another kind of endpoint"));
        }
        self.transcript.challenge = challenge(Status::Good, self.version, door.key.is_some(), hello.purpose, nonce()?).encode();
        whole(self.socket.as_fd(), &self.transcript.challenge)?;
        self.inbox = Inbox::of(HEAD_LEN);
        self.turn = Turn::Head;
        Ok(())
    }

    /// INTRO is there. Its body is nobody's until the proof is good.
    fn introduced(self, head: &Head, door: &Door) -> Result<Heard> {
        let body = &self.inbox.bytes;
        if let Some(key) = &door.key
            && !self.transcript.is_proven(key, Side::Dialer, &head.proven(), body, &head.proof)?
        {
            return Err(self.turn_away(Status::KeyWrong, errno::EACCES, "has another key"));
        }
        // In one piece: how much of a guess was right must not show.
        if head.token ^ door.token != 0 {
            return Err(self.turn_away(Status::WrongDoor, errno::ECONNREFUSED, "named an endpoint that is not here"));
        }
        let terms = Terms::decode(body)?;
        if self.version < STREAMS_SINCE && terms.streams > 0 {
            return Err(nonsense("the introduction has flags that its version does not"));
        }
        Ok(Heard { socket: self.socket, peer: self.peer, terms, transcript: self.transcript, key: door.key.clone() })
    }
}

fn challenge(status: Status, version: u16, keyed: bool, purpose: u8, nonce: [u8; NONCE_LEN]) -> Hello {
    // A refusal for want of a common version says which ones there are.
    let (lowest, highest) = if status == Status::Version { (LOWEST, HIGHEST) } else { (version, version) };
    Hello { lowest, highest, keyed, purpose, status, nonce }
}
