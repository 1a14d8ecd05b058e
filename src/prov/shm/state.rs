// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of an endpoint: its phase, its bindings, receives that wait for messages and messages
//! that wait for receives; and the one way in which operations end.

use super::cm::Connecting;
use super::conn::Conn;
use super::layout::SegmentRef;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::Site;
use crate::mr::{PathPolicy, Paths};
use crate::prov::event::{Event, EventKind, EventQueue};
use crate::prov::flags;
use crate::prov::op::{Common, Iov, Pieces, total};
use crate::prov::queue::{Completion, Counter, Failure, Queue};
use crate::sync::ring::Consumer;
use crate::sync::serial::Threading;
use crate::sys::time;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Operations that can be outstanding on an endpoint.
pub const TX_SIZE: usize = 1024;
/// Messages that may wait unmatched at the receiver before the sender is held back.
pub const WINDOW: u64 = 1024;

/// This operation gives no entry when it succeeds (inject calls).
pub const SILENT: u64 = 1 << 63;

pub enum Phase {
    Fresh,
    Enabled,
    Connecting(Box<Connecting>),
    Connected,
    /// Over; says why.
    Down(Error),
}

/// Which operations a counter counts.
#[derive(Default)]
pub struct Counters {
    pub send: Option<Arc<Counter>>,
    pub recv: Option<Arc<Counter>>,
    pub read: Option<Arc<Counter>>,
    pub write: Option<Arc<Counter>>,
    pub remote_write: Option<Arc<Counter>>,
}

#[derive(Default)]
pub struct Bindings {
    pub tx: Option<Arc<Queue>>,
    pub rx: Option<Arc<Queue>>,
    pub tx_selective: bool,
    pub rx_selective: bool,
    pub eq: Option<Arc<EventQueue>>,
    pub counters: Counters,
}

impl Bindings {
    /// Whether every RMA operation gives an entry without a lock, and nothing else.
    pub fn is_short(&self) -> bool {
        let counted = self.counters.write.is_some() || self.counters.read.is_some();
        !counted && !self.tx_selective && self.tx.as_ref().is_some_and(|q| q.threading() == Threading::Promised)
    }
}

/// Options that `setopt` changes.
#[derive(Clone, Copy)]
pub struct Options {
    pub deadline_ns: u64,
    pub connect_timeout_ns: u64,
    pub policy: PathPolicy,
    pub coop: bool,
    /// The caller's stream behind which device copies go; 0: none.
    pub stream: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub ops_direct: u64,
    pub ops_cma: u64,
    pub ops_staged: u64,
    pub ops_ipc: u64,
    pub bytes_direct: u64,
    pub bytes_cma: u64,
    pub bytes_staged: u64,
    pub bytes_ipc: u64,
    pub bytes_helped: u64,
    pub sends: u64,
    pub recvs: u64,
    pub errors: u64,
    pub unexpected: u64,
}

impl Stats {
    #[inline]
    pub fn moved(&mut self, path: Paths, bytes: usize) {
        let (ops, sum) = match path {
            Paths::DIRECT => (&mut self.ops_direct, &mut self.bytes_direct),
            Paths::CMA => (&mut self.ops_cma, &mut self.bytes_cma),
            Paths::IPC => (&mut self.ops_ipc, &mut self.bytes_ipc),
            _ => (&mut self.ops_staged, &mut self.bytes_staged),
        };
        *ops += 1;
        *sum += bytes as u64;
    }
}

/// How an outstanding operation of this side ends: what its entry says and what it holds.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    pub context: usize,
    /// Completion flags: SEND|MSG and the like.
    pub kind: u64,
    pub len: usize,
    pub buf: usize,
    /// A success gives an entry, which is reserved in the queue.
    pub wanted: bool,
    /// Absolute; 0 = none.
    pub deadline: u64,
}

/// A posted receive.
pub struct Recv {
    pub pieces: Pieces,
    pub site: Site,
    pub room: usize,
    pub context: usize,
    pub wanted: bool,
    pub deadline: u64,
}

/// A message that came before its receive.
pub enum Unexpected {
    Eager { bytes: Box<[u8]>, data: Option<u64>, ack: Option<(u16, u16)> },
    Rendezvous(super::rendezvous::Offered),
}

pub struct State {
    pub phase: Phase,
    pub bind: Bindings,
    pub options: Options,
    /// From the configuration, kept where the data path finds them.
    pub streaming_from: usize,
    /// Length from which an operation is offered to the peer as well; usize::MAX with cooperation off.
    pub shared_from: usize,
    pub eager_max: usize,
    /// Operations are delivery-complete by default.
    pub deliver: bool,
    pub object: usize,
    pub context: usize,
    pub conn: Option<Box<Conn>>,
    pub rx: Option<Consumer<SegmentRef>>,
    /// Our segment, made when enabled, handed to the peer when connecting.
    pub segment: Option<(SegmentRef, OwnedFd)>,
    pub recvs: VecDeque<Recv>,
    pub unexpected: VecDeque<Unexpected>,
    /// Messages matched so far, and how many of them the peer was told of.
    pub matched: u64,
    pub published: u64,
    pub stats: Stats,
    pub polls: u32,
    /// Threads that sleep until this endpoint has something.
    pub sleepers: u32,
    pub last_control: u64,
    pub controls: u32,
    /// Earliest deadline of a receive; 0 = none.
    pub recv_deadline: u64,
    pub peer_name: Option<String>,
    pub greeter: Option<super::cm::Greeter>,
    /// This endpoint's own address, once somebody asked.
    pub address: Option<String>,
}

impl State {
    pub fn event(&self, kind: EventKind, data: Vec<u8>, error: Option<Error>) {
        if let Some(eq) = &self.bind.eq {
            let mut event = Event::new(kind, self.object, self.context);
            event.data = data;
            event.error = error;
            eq.push(event);
        }
    }

    pub fn not_connected(&self) -> Error {
        match &self.phase {
            Phase::Down(why) => Error::coded(errno::ENOTCONN, why.code, format!("ep: the connection is over: {}", why.words)),
            Phase::Connecting(_) => Error::fixed(errno::ENOTCONN, "ep: not connected yet: wait for GDRFAB_CONNECTED on the event queue"),
            _ => Error::fixed(errno::ENOTCONN, "ep: not connected"),
        }
    }

    /// The absolute deadline of an operation posted now.
    #[inline]
    pub fn deadline(&self, c: &Common) -> u64 {
        let relative = if c.timeout_ns != 0 { c.timeout_ns } else { self.options.deadline_ns };
        time::deadline(relative)
    }

    #[inline]
    pub fn wants_entry(&self, flags: u64) -> bool {
        self.bind.tx.is_some() && flags & SILENT == 0 && (!self.bind.tx_selective || flags & flags::COMPLETION != 0)
    }

    /// Reserves the entry of an operation that wants one.
    #[inline]
    pub fn reserve(&self, wanted: bool) -> bool {
        match &self.bind.tx {
            Some(q) if wanted => q.reserve(),
            _ => true,
        }
    }

    fn counter_of(&self, kind: u64) -> Option<&Arc<Counter>> {
        let c = &self.bind.counters;
        match kind {
            k if k & flags::RECV != 0 => c.recv.as_ref(),
            k if k & flags::SEND != 0 => c.send.as_ref(),
            k if k & flags::READ != 0 => c.read.as_ref(),
            _ => c.write.as_ref(),
        }
    }

    /// An operation of this side ended well.
    #[inline]
    pub fn succeed(&mut self, end: &Ending) {
        if end.wanted
            && let Some(q) = &self.bind.tx
        {
            q.fill(Completion { context: end.context, flags: end.kind, len: end.len, buf: end.buf, data: 0 });
        }
        if let Some(counter) = self.counter_of(end.kind) {
            counter.add(1);
        }
    }

    /// An operation of this side failed: always an entry.
    #[cold]
    pub fn fail(&mut self, end: &Ending, error: Error) {
        self.stats.errors += 1;
        if let Some(counter) = self.counter_of(end.kind) {
            counter.add_error(1);
        }
        if let Some(q) = &self.bind.tx {
            let entry = Completion { context: end.context, flags: end.kind, len: 0, buf: end.buf, data: 0 };
            q.fail(entry, Failure { error, olen: 0 }, end.wanted);
        }
    }

    pub fn end(&mut self, end: &Ending, result: Result<()>) {
        match result {
            Ok(()) => self.succeed(end),
            Err(e) => self.fail(end, e),
        }
    }

    /// A receive ended: with `len` bytes in place, `lost` that did not fit, perhaps remote data.
    pub fn received(&mut self, recv: &Recv, len: usize, lost: usize, data: Option<u64>) {
        let kind = flags::RECV | flags::MSG | if data.is_some() { flags::REMOTE_CQ_DATA } else { 0 };
        self.stats.recvs += 1;
        let entry = Completion { context: recv.context, flags: kind, len, buf: recv.pieces.first(), data: data.unwrap_or(0) };
        if lost > 0 {
            let words = format!("the message has {} bytes, the receive only {}", len + lost, recv.room);
            return self.spoiled(entry, Failure { error: Error::coded(errno::ETRUNC, Code::Trunc, words), olen: lost });
        }
        if let Some(counter) = &self.bind.counters.recv {
            counter.add(1);
        }
        if let Some(q) = &self.bind.rx
            && recv.wanted
        {
            q.push(entry);
        }
    }

    /// A receive ended badly.
    #[cold]
    fn spoiled(&mut self, entry: Completion, failure: Failure) {
        self.stats.errors += 1;
        if let Some(counter) = &self.bind.counters.recv {
            counter.add_error(1);
        }
        if let Some(q) = &self.bind.rx {
            q.fail(entry, failure, false);
        }
    }

    /// A receive that will not be filled.
    pub fn abandon(&mut self, recv: &Recv, error: Error) {
        let entry = Completion { context: recv.context, flags: flags::RECV | flags::MSG, len: 0, buf: recv.pieces.first(), data: 0 };
        self.spoiled(entry, Failure { error, olen: 0 });
    }

    /// Fails every posted receive.
    pub fn flush_receives(&mut self, error: &Error) {
        for recv in std::mem::take(&mut self.recvs) {
            self.abandon(&recv, error.clone());
        }
        self.recv_deadline = 0;
    }

    /// One message more was matched; tells the peer now and then.
    pub fn count_match(&mut self) {
        self.matched += 1;
        if self.matched - self.published >= WINDOW / 4
            && let Some(conn) = &self.conn
        {
            self.published = self.matched;
            conn.link.mine.matched().store(self.matched, crate::sync::primitive::Ordering::Release);
            conn.link.nudge();
        }
    }
}

/// Checks and measures local pieces.
pub fn measure(iov: &[Iov]) -> Result<usize> {
    if iov.len() > crate::prov::op::IOV_LIMIT {
        return Err(Error::invalid(format!("iov_count: {} pieces, the limit is {}", iov.len(), crate::prov::op::IOV_LIMIT)));
    }
    for (i, v) in iov.iter().enumerate() {
        if v.addr == 0 && v.len > 0 {
            return Err(Error::invalid(format!("iov[{i}]: the address is NULL but the length is {}", v.len)));
        }
    }
    match total(iov) {
        Some(n) if n <= super::MAX_MSG => Ok(n),
        _ => Err(Error::new(errno::EMSGSIZE, format!("len: more than the {} bytes of max_msg_size", super::MAX_MSG))),
    }
}
