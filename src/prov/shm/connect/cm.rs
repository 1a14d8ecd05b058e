// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connecting: dials and accepts, exchanges introductions over the control socket, and joins two endpoints by a link.
//!
//! The dialing endpoint sends Hello with its segment and region table; the accepting endpoint answers Accept with its
//! own; the dialing endpoint then sends Ready. Two endpoints that connect by exchanged addresses do the same: the
//! endpoint with the smaller name dials.

use crate::error::{Code, Error, Result, errno};
use crate::hmem::copier;
use crate::mr::Paths;
use crate::prov::event::EventKind;
use crate::prov::name;
use crate::prov::shm::domain::Domain;
use crate::prov::shm::handshake::acceptor::{IntroDescriptors, Request, check_intro};
use crate::prov::shm::handshake::control::Control;
use crate::prov::shm::handshake::credentials::check_peer;
use crate::prov::shm::memory::table::Table;
use crate::prov::shm::peer::link::Link;
use crate::prov::shm::state::conn::Conn;
use crate::prov::shm::state::{ConnectStage, Connecting, Phase, State};
use crate::prov::shm::wire::address::{self, SCHEME, check_address};
use crate::prov::shm::wire::frame::{self, Frame, Intro};
use crate::prov::shm::wire::layout::Segment;
use crate::prov::shm::wire::message::protocol;
use crate::sync::consumer::Consumer;
use crate::sync::gate::Fences;
use crate::sync::ring::Store;
use crate::sys::space::{AddressSpace, Guard};
use crate::sys::{process, socket, time};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

impl State {
    /// This endpoint's introduction.
    fn intro(&self, domain: &Domain, data: &[u8], by_name: bool) -> Result<Intro> {
        let Some((segment, _)) = &self.segment else { return Err(Error::new(errno::EOPBADSTATE, "ep: not enabled")) };
        let guard = Guard::own()?;
        Ok(Intro {
            host: process::host_id()?,
            ring_lines: segment.capacity() as u32,
            fences_remote: domain.remote_fences,
            guard_addr: guard.addr,
            guard_word: guard.word,
            by_name,
            name: self.address.as_deref().and_then(|a| a.strip_prefix(SCHEME)).unwrap_or("").to_string(),
            data: data.to_vec(),
        })
    }

    /// Chooses the copier process, if this process may call no driver. Called before the introduction, which tells the
    /// peer of the copier process.
    fn choose_copier(&mut self) -> Result<()> {
        self.copier = (!self.options.driver_calls).then(copier::get).transpose()?;
        Ok(())
    }

    /// Sends an introduction with its descriptors; false: the socket is full.
    fn introduce(&self, socket: &Control, packet: &[u8], segment: &OwnedFd, domain: &Domain) -> Result<bool> {
        let mut fds = vec![segment.as_fd(), domain.table_fd.as_fd()];
        fds.extend(self.copier.and_then(|c| c.pidfd()));
        socket::send(socket.as_fd(), packet, &fds)
    }

    /// Makes the connection with a peer that has introduced itself: maps the peer's segment and table, and adds the
    /// link to the domain.
    fn join(&mut self, domain: &Domain, socket: Arc<Control>, pid: i32, intro: &Intro, descriptors: IntroDescriptors) -> Result<()> {
        let peer = Segment::attach(descriptors.segment.as_fd(), intro.ring_lines as usize)?;
        let table = Table::attach(descriptors.table.as_fd())?;
        let fences = if intro.fences_remote && domain.remote_fences { Fences::Remote } else { Fences::Full };
        let guard = Guard { addr: intro.guard_addr, word: intro.guard_word };
        let space = match domain.modes.paths.contains(Paths::CMA) {
            true => AddressSpace::of(pid, guard),
            false => Err(Error::fixed(errno::EACCES, "ruled out by GDRFAB_PATHS")),
        };
        let Some((mine, _)) = self.segment.take() else { return Err(Error::new(errno::EOPBADSTATE, "ep: not enabled")) };
        let link = Arc::new(Link::new(mine.clone(), peer, table, socket, pid, fences, space).with_copier(descriptors.copier));
        domain.add_link(link.clone());
        self.rx = Some(Consumer::new(mine));
        let fragment = self.faults.as_ref().and_then(|f| f.plan.short());
        let mut conn = Conn::new(link, domain.modes.paths & self.options.policy.allowed(), fragment);
        // The copier process of which the introduction has told the peer.
        if let Some(copier) = self.copier {
            conn.copy_elsewhere(copier);
        }
        self.conn = Some(Box::new(conn));
        self.phase = Phase::Connected;
        self.peer_name = Some(intro.name.clone());
        self.acceptor = None;
        Ok(())
    }

    /// Accepts a request. The link is added to the domain before Accept goes out, so the close of a region already
    /// waits for this peer. This side touches no region of the peer until the peer has sent Ready.
    pub fn accept(&mut self, domain: &Domain, mut request: Request, data: &[u8]) -> Result<()> {
        let packet = Frame::Accept(self.intro(domain, data, request.intro.by_name)?).encode();
        let Some((_, segment)) = &self.segment else { return Err(Error::new(errno::EOPBADSTATE, "ep: not enabled")) };
        let segment = crate::sys::mem::duplicate(segment)?;
        self.choose_copier()?;
        let (socket, intro) = (request.socket.clone(), request.intro.clone());
        let Some(descriptors) = request.descriptors.take() else {
            return Err(Error::new(errno::EOPBADSTATE, "info->handle: the connection request was answered already"));
        };
        self.join(domain, socket, request.pid, &intro, descriptors)?;
        request.answered();
        let sent = self.introduce(&request.socket, &packet, &segment, domain);
        let why = match sent {
            Ok(true) => {
                let deadline = time::deadline(self.options.connect_timeout_ns);
                if let Some(conn) = self.conn.take() {
                    self.phase = Phase::Connecting(Box::new(Connecting { stage: ConnectStage::Joining(conn), deadline, data: Vec::new() }));
                }
                return Ok(());
            }
            Ok(false) => "its socket has no room for the answer".into(),
            Err(e) => e.words,
        };
        let error = Error::coded(errno::ECONNRESET, Code::PeerGone, format!("the peer that asked to connect is gone: {why}"));
        self.tear(domain, &error);
        self.phase = Phase::Down(error.clone());
        Err(error)
    }
}

/// Advances a connection attempt; its outcome goes to the event queue.
pub fn advance(state: &mut State, domain: &Domain) {
    if let Err(e) = try_advance(state, domain) {
        give_up(state, domain, e, Vec::new());
    }
}

/// Ends a failed attempt to connect: puts an error event into the event queue, and ends the endpoint.
fn give_up(state: &mut State, domain: &Domain, why: Error, data: Vec<u8>) {
    state.tear(domain, &why);
    state.phase = Phase::Down(why.clone());
    state.segment = None;
    state.acceptor = None;
    state.event(EventKind::Connected, data, Some(why));
}

/// Takes the next step of a connection attempt, if the peer or the time permits one. `Err`: the attempt has failed.
fn try_advance(state: &mut State, domain: &Domain) -> Result<()> {
    let Phase::Connecting(mut c) = std::mem::replace(&mut state.phase, Phase::Enabled) else { return Ok(()) };
    if let ConnectStage::Joining(conn) = c.stage {
        let heard = has_joined(&conn);
        if !matches!(heard, Ok(false)) {
            state.conn = Some(conn);
        } else if c.deadline == 0 || time::now_ns() <= c.deadline {
            c.stage = ConnectStage::Joining(conn);
            state.phase = Phase::Connecting(c);
            return Ok(());
        } else {
            state.conn = Some(conn);
            return Err(Error::coded(
                errno::ETIMEDOUT,
                Code::Deadline,
                "the peer that asked to connect did not complete the handshake in time",
            ));
        }
        heard?;
        state.phase = Phase::Connected;
        state.event(EventKind::Connected, Vec::new(), None);
        return Ok(());
    }
    if c.deadline != 0 && time::now_ns() > c.deadline {
        return Err(Error::coded(errno::ETIMEDOUT, Code::Deadline, "the peer did not answer the connection request in time"));
    }
    match &mut c.stage {
        ConnectStage::Dial { name, by_name, socket } => {
            if socket.is_none() {
                match address::dial(name)? {
                    socket::Connect::Busy => {}
                    socket::Connect::Done(fd) => {
                        let fd = Arc::new(Control::from(fd));
                        check_peer(fd.as_fd(), name)?;
                        state.choose_copier()?;
                        let packet = Frame::Hello(state.intro(domain, &c.data, *by_name)?).encode();
                        let Some((_, segment)) = &state.segment else { return Err(Error::new(errno::EOPBADSTATE, "ep: not enabled")) };
                        match state.introduce(&fd, &packet, segment, domain) {
                            Ok(true) => *socket = Some(fd),
                            Ok(false) => {
                                return Err(Error::fixed(
                                    errno::ECONNREFUSED,
                                    "the listener's socket has no room for the connection request; try again later",
                                ));
                            }
                            // The listener may have sent the reason why it refuses.
                            Err(e) => return Err(read_answer(&fd).err().unwrap_or(e)),
                        }
                    }
                }
            } else if let Some(fd) = socket.take() {
                match read_answer(&fd)? {
                    None => *socket = Some(fd),
                    Some(Answer::Accepted(intro, descriptors)) => {
                        let pid = check_peer(fd.as_fd(), name)?;
                        state.join(domain, fd, pid, &intro, descriptors)?;
                        // An accepting endpoint may have no name of its own. Then the dialed name, its listener's,
                        // stands for it.
                        if intro.name.is_empty() {
                            state.peer_name = Some(name.clone());
                        }
                        if let Some(conn) = &state.conn {
                            // If this fails, the listener is gone, and the socket will show that.
                            let _ = socket::send(conn.link.socket.as_fd(), &Frame::Ready.encode(), &[]);
                        }
                        state.event(EventKind::Connected, intro.data, None);
                        return Ok(());
                    }
                    Some(Answer::Rejected(data)) => {
                        let why = Error::coded(errno::ECONNREFUSED, Code::Rejected, "the peer rejected the connection");
                        give_up(state, domain, why, data);
                        return Ok(());
                    }
                }
            }
        }
        ConnectStage::Joining(_) => return Ok(()),
        ConnectStage::Await { name } => {
            let requests = state.acceptor.as_mut().map_or(Vec::new(), |g| g.poll(true));
            for request in requests {
                if request.name() == name.as_str() {
                    return state.accept(domain, request, &[]);
                }
                crate::log!(Warn, "a connection from endpoint {:?} is refused: this endpoint expects {name:?}", request.name());
            }
        }
    }
    state.phase = Phase::Connecting(c);
    Ok(())
}

/// True if the dialer has sent Ready, so that both domains know the link.
fn has_joined(conn: &Conn) -> Result<bool> {
    let mut buf = [0u8; frame::MAX];
    match frame::recv(&conn.link.socket, &mut buf)? {
        socket::Received::Nothing => Ok(false),
        socket::Received::Closed => Err(Error::coded(errno::ECONNRESET, Code::PeerGone, "the peer that asked to connect is gone")),
        socket::Received::Packet { len, .. } if Frame::decode(&buf[..len])? == Frame::Ready => Ok(true),
        socket::Received::Packet { .. } => Err(protocol("the peer ended before it confirmed the connection")),
    }
}

/// The listener's answer to Hello.
enum Answer {
    Accepted(Intro, IntroDescriptors),
    Rejected(Vec<u8>),
}

/// Reads the listener's answer. `None`: no answer has come yet.
fn read_answer(fd: &Arc<Control>) -> Result<Option<Answer>> {
    let mut buf = [0u8; frame::MAX];
    let (len, fds, lacking) = match frame::recv(fd, &mut buf)? {
        socket::Received::Nothing => return Ok(None),
        socket::Received::Closed => {
            return Err(Error::coded(errno::ECONNREFUSED, Code::PeerGone, "the listener closed without an answer"));
        }
        socket::Received::Packet { len, fds, lacking } => (len, fds, lacking),
    };
    match Frame::decode(&buf[..len])? {
        Frame::Accept(intro) => {
            check_intro(&intro)?;
            Ok(Some(Answer::Accepted(intro, IntroDescriptors::new(fds, lacking)?)))
        }
        Frame::Reject(data) => Ok(Some(Answer::Rejected(data))),
        Frame::Refuse(why) => Err(why.error()),
        _ => Err(Error::coded(errno::EPROTO, Code::PeerBroke, "the listener sent an unexpected answer")),
    }
}

/// Begins to connect by exchanged addresses: the endpoint with the smaller name dials, and the other endpoint waits.
pub fn by_address(state: &mut State, peer: &str, deadline: u64) -> Result<()> {
    name::check_plain(peer)?;
    let peer = check_address(peer)?.to_string();
    let Some(acceptor) = &state.acceptor else {
        return Err(Error::new(
            errno::EOPBADSTATE,
            "ep: the peer cannot know this endpoint's address, because ep_getname was never called on it",
        ));
    };
    let stage = match acceptor.name.as_str().cmp(&peer) {
        std::cmp::Ordering::Less => ConnectStage::Dial { name: peer, by_name: true, socket: None },
        std::cmp::Ordering::Greater => ConnectStage::Await { name: peer },
        std::cmp::Ordering::Equal => return Err(Error::invalid("addr: this is the endpoint's own address")),
    };
    state.phase = Phase::Connecting(Box::new(Connecting { stage, deadline, data: Vec::new() }));
    Ok(())
}
