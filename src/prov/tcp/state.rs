// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of an endpoint, which its lock guards: phase, bindings, options, the connection, posted receives, and messages that
//! arrived before their receive. Also the functions by which operations and receives complete.

use super::conn::Conn;
use super::fault::Faults;
use super::recv::{Recv, Unexpected};
use crate::error::{Code, Error, Result, errno};
use crate::prov::bind::{Bindings, Ending, Options, Stage};
use crate::prov::event::{EventKind, tell};
use crate::prov::flags;
use crate::prov::idle_set::IdleSet;
use crate::prov::info::permitted;
use crate::prov::op::Common;
use crate::prov::queue::{Completion, Failure};
use crate::prov::report::Stats;
use crate::prov::tcp::handshake::acceptor::HandshakeAcceptor;
use crate::prov::tcp::handshake::dial::Dial;
use crate::prov::tcp::handshake::lookup::Lookup;
use crate::prov::tcp::limits::PATHS;
use crate::prov::tcp::wire::address::Address;
use crate::prov::tcp::wire::hello::Purpose;
use crate::sys::time;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A connect call that waits until the host's name is resolved.
pub struct NameLookup {
    pub lookup: Lookup,
    pub to: Address,
    pub purpose: Purpose,
    pub token: u64,
    pub data: Vec<u8>,
}

/// The step that an endpoint in `Phase::Connecting` is at.
pub enum ConnectStage {
    /// The name of the peer's host is being resolved.
    Lookup(Box<NameLookup>),
    Dial(Box<Dial>),
    /// This endpoint waits for a connection from the endpoint with this address.
    Await(String),
    /// This endpoint has accepted; the dialer's READY has not arrived.
    AwaitReady,
}

impl ConnectStage {
    /// The descriptor to wait for, and whether to wait until it is writable as well as readable. `None`: this step has no
    /// descriptor of its own.
    pub fn fd(&self) -> Option<(BorrowedFd<'_>, bool)> {
        match self {
            ConnectStage::Lookup(asked) => Some((asked.lookup.fd(), false)),
            ConnectStage::Dial(dial) => Some((dial.fd()?, dial.wants_write())),
            ConnectStage::Await(_) | ConnectStage::AwaitReady => None,
        }
    }
}

/// The phase of an endpoint's life.
pub enum Phase {
    Fresh,
    Enabled,
    Connecting {
        stage: ConnectStage,
        deadline: u64,
    },
    Connected,
    /// The connection is over, for this reason.
    Down(Error),
}

/// An endpoint's state. The rooms `connect` and `ops` add methods to it.
pub struct State {
    pub phase: Phase,
    pub bind: Bindings,
    pub options: Options,
    /// The handle that events name.
    pub object: usize,
    /// The program's context, which events carry.
    pub context: usize,
    pub conn: Option<Box<Conn>>,
    /// Posted receives that no message has matched.
    pub recvs: VecDeque<Recv>,
    /// Messages that no receive has matched.
    pub unexpected: VecDeque<Unexpected>,
    pub stats: Stats,
    /// The earliest deadline of an operation or receive, perhaps of one that has completed; 0: none.
    pub earliest: u64,
    /// The listening socket behind this endpoint's own address.
    pub acceptor: Option<HandshakeAcceptor>,
    /// The endpoint's own address, once it was asked for.
    pub address: Option<String>,
    /// The address of this host to listen on and to dial from, if the program gave one.
    pub source: Option<SocketAddr>,
    /// The destination that the endpoint was opened for. Without `source`, the endpoint listens on an address of this family
    /// (loopback if this one is).
    pub family_hint: Option<IpAddr>,
    /// Fault injection, if it is wanted.
    pub faults: Option<Box<Faults>>,
    /// Number of threads that sleep until this endpoint has something.
    pub sleepers: u32,
    /// The sets in which the endpoint rests (`ops/idle.rs`), each with the endpoint's number in the set.
    pub idle_sets: Vec<(Arc<IdleSet>, u64)>,
    /// The latest time until which the endpoint rests in one of the sets.
    pub idle_until: u64,
    /// For a lane: something has arrived since the layer above last took parcels.
    pub came: bool,
    /// Number of turns of progress so far.
    pub turns: u32,
    /// The time, in ticks, at which the rare work of a turn was last done.
    pub last_look: u64,
}

impl State {
    /// Logs an event of the endpoint and queues it.
    pub fn event(&self, kind: EventKind, data: Vec<u8>, error: Option<Error>) {
        tell(kind, self.object, error.as_ref(), || self.reached());
        self.bind.event(kind, self.object, self.context, data, error);
    }

    pub fn peer_address(&self) -> String {
        self.conn.as_ref().map_or(String::new(), |conn| conn.peer.clone())
    }

    /// The peer's address and the permitted paths, for the log.
    fn reached(&self) -> String {
        let paths = self.options.policy.allowed() & permitted(PATHS);
        format!("{}, paths {}", self.peer_address(), paths.words())
    }

    /// The error for a call that needs a connection.
    #[cold]
    pub fn not_connected(&self) -> Error {
        match &self.phase {
            Phase::Down(why) => Error::coded(errno::ESHUTDOWN, why.code, format!("ep: the connection is over: {}", why.words)),
            Phase::Connecting { .. } => {
                Error::fixed(errno::ENOTCONN, "ep: not connected yet: wait for GDRFAB_CONNECTED on the event queue")
            }
            _ => Error::fixed(errno::ENOTCONN, "ep: not connected"),
        }
    }

    /// Fails if the endpoint may not begin to connect.
    pub fn check_can_connect(&self) -> Result<()> {
        self.bind.check_can_connect(match self.phase {
            Phase::Fresh => Stage::Fresh,
            Phase::Enabled => Stage::Enabled,
            Phase::Connecting { .. } | Phase::Connected => Stage::Connected,
            Phase::Down(_) => Stage::Over,
        })
    }

    /// The connection, if it is up.
    #[inline]
    pub fn up(&mut self) -> Result<&mut Conn> {
        if !matches!(self.phase, Phase::Connected) {
            return Err(self.not_connected());
        }
        match self.conn.as_deref_mut() {
            Some(conn) => Ok(conn),
            None => Err(Error::fixed(errno::ENOTCONN, "ep: not connected")),
        }
    }

    /// The absolute deadline of an operation that is posted now.
    #[inline]
    pub fn deadline(&mut self, c: &Common) -> u64 {
        self.until(if c.timeout_ns != 0 { c.timeout_ns } else { self.options.deadline_ns })
    }

    /// The absolute deadline of a receive that is posted now.
    pub fn recv_deadline(&mut self, c: &Common) -> u64 {
        self.until(if c.timeout_ns != 0 { c.timeout_ns } else { self.options.recv_deadline_ns })
    }

    #[inline]
    /// The absolute deadline for a relative one, which is noted for the next look at deadlines; 0: none.
    fn until(&mut self, relative: u64) -> u64 {
        let deadline = time::deadline(relative);
        if deadline != 0 && (self.earliest == 0 || deadline < self.earliest) {
            self.earliest = deadline;
        }
        if deadline != 0 {
            self.bind.expires(deadline);
        }
        deadline
    }

    /// Completes an operation with an error.
    #[cold]
    pub fn fail(&mut self, end: &Ending, error: Error) {
        self.stats.errors += 1;
        self.bind.fail(end, error);
    }

    /// Completes an operation with its result.
    pub fn end(&mut self, end: &Ending, result: Result<()>) {
        match result {
            Ok(()) => self.bind.succeed(end),
            Err(e) => self.fail(end, e),
        }
    }

    /// Completes a receive with a message of `len` bytes and, if there is any, its remote data.
    pub fn received(&mut self, recv: &Recv, len: u64, data: Option<u64>) {
        let kind = flags::RECV | flags::MSG | if data.is_some() { flags::REMOTE_CQ_DATA } else { 0 };
        self.stats.recvs += 1;
        let placed = len.min(recv.room as u64) as usize;
        let entry = Completion { context: recv.context, flags: kind, len: placed, buf: recv.pieces.first(), data: data.unwrap_or(0) };
        let lost = (len > recv.room as u64).then(|| {
            self.stats.errors += 1;
            let words = format!("the message has {len} bytes, the receive only {}", recv.room);
            Failure { error: Error::coded(errno::ETRUNC, Code::Trunc, words), olen: (len - recv.room as u64) as usize, block: 0 }
        });
        self.bind.received(recv.ticket, entry, recv.wanted, lost);
    }

    /// Completes a receive with an error: no message will fill it.
    #[cold]
    pub fn abandon(&mut self, recv: &Recv, error: Error) {
        let entry = Completion { context: recv.context, flags: flags::RECV | flags::MSG, len: 0, buf: recv.pieces.first(), data: 0 };
        self.stats.errors += 1;
        self.bind.spoiled(recv.ticket, entry, Failure { error, olen: 0, block: 0 });
    }
}
