// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of an endpoint, and the functions that end its operations: by success, by an error, or by the end of the
//! connection.
//!
//! `State` is one struct under the endpoint's lock. Its parts are the files of this room: `conn.rs` (the live connection; read it
//! second), `job.rs` (operations that have not started), `in_flight.rs` (operations that wait for a report, and operations of the
//! peer that this side carries out), `device_streams.rs` (copies that a device's driver carries out), `arrivals.rs` and
//! `posted_receives.rs` (messages and receives that wait for each other), and `parcel.rs` (parcels of a lane). The parts do not
//! know `State`; the rooms `copy`, `ops` and `connect` add the methods of `State`.

pub(in crate::prov::shm) mod arrivals;
pub(in crate::prov::shm) mod conn;
pub(in crate::prov::shm) mod device_streams;
pub(in crate::prov::shm) mod in_flight;
pub(in crate::prov::shm) mod job;
pub(in crate::prov::shm) mod parcel;
pub(in crate::prov::shm) mod posted_receives;

use super::limits::WINDOW;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::copier::Copier;
use crate::mr::Paths;
use crate::prov::bind::{Bindings, Ending, Options};
use crate::prov::event::{EventKind, tell};
use crate::prov::fault::Plan;
use crate::prov::flags;
use crate::prov::op::Common;
use crate::prov::queue::{Completion, Failure};
use crate::prov::report::Stats;
use crate::prov::shm::handshake::acceptor::HandshakeAcceptor;
use crate::prov::shm::handshake::control::Control;
use crate::prov::shm::state::arrivals::{Recv, Unexpected};
use crate::prov::shm::state::conn::Conn;
use crate::prov::shm::state::in_flight::Flight;
use crate::prov::shm::state::parcel::QueuedParcel;
use crate::prov::shm::state::posted_receives::PostedReceives;
use crate::prov::shm::wire::address::SCHEME;
use crate::prov::shm::wire::layout::SegmentRef;
use crate::prov::shm::wire::message::protocol;
use crate::sync::cache_line::LINE_BYTES;
use crate::sync::consumer::Consumer;
use crate::sys::time;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The phase of an endpoint's life.
pub enum Phase {
    Fresh,
    Enabled,
    Connecting(Box<Connecting>),
    Connected,
    /// The connection has ended, for this reason.
    Down(Error),
}

/// The stage of an attempt to connect.
pub enum ConnectStage {
    /// Dials a listener.
    Dial { name: String, by_name: bool, socket: Option<Arc<Control>> },
    /// Waits until the endpoint `name` dials this endpoint's own listener.
    Await { name: String },
    /// Has sent Accept, and waits for the dialer's Ready.
    Joining(Box<Conn>),
}

/// An attempt to connect.
pub struct Connecting {
    pub stage: ConnectStage,
    pub deadline: u64,
    pub data: Vec<u8>,
}

/// A connection that has ended while the peer or a device may still use buffers of its operations.
pub struct EndedConnection {
    pub conn: Box<Conn>,
    pub why: Error,
}

/// Fault injection of an endpoint.
pub struct Faults {
    pub plan: Box<Plan>,
    /// Delayed receives, and the times at which they are posted.
    pub held: VecDeque<(u64, Recv)>,
}

/// The state of an endpoint, under the endpoint's lock.
pub struct State {
    pub phase: Phase,
    pub bind: Bindings,
    pub options: Options,
    /// Bytes from which a copy uses streaming stores, which bypass the cache. Copied from the configuration, so that
    /// the data path finds the number here.
    pub streaming_from: usize,
    /// Length from which an operation may be shared with the peer (`copy/coop.rs`), and so takes no fast path.
    /// usize::MAX with cooperation off; 0 with fault injection.
    pub shared_from: usize,
    /// Length from which a message takes no fast path; 0 with fault injection.
    pub eager_end: usize,
    /// As `eager_end`, for a buffer in no region, which the peer cannot map.
    pub private_end: usize,
    /// Length from which a message does not take the fast path for messages of one ring line; 0: no message takes it.
    pub line_end: usize,
    /// As `line_end`, for the fast path of messages whose bytes lie out of line.
    pub out_of_line_end: usize,
    /// True if a receive only gives one completion entry, so that receives take the fast path.
    pub fast_receives: bool,
    /// True if the endpoint's options, flags and bindings permit the fastest table of operations, which also requires
    /// that the caller serialises its calls.
    pub fast: bool,
    pub faults: Option<Faults>,
    /// True if operations are delivery-complete by default.
    pub deliver: bool,
    pub object: usize,
    pub context: usize,
    pub conn: Option<Box<Conn>>,
    /// The ended connection, as long as the peer or a device may use a buffer of its operations.
    pub leaving: Option<Box<EndedConnection>>,
    pub rx: Option<Consumer<SegmentRef>>,
    /// This side's segment: made when the endpoint is enabled, handed to the peer when connecting.
    pub segment: Option<(SegmentRef, OwnedFd)>,
    pub recvs: PostedReceives,
    pub unexpected: VecDeque<Unexpected>,
    /// In a lane: parcels that were taken out of the ring to reach the messages behind them.
    pub parcels: VecDeque<QueuedParcel>,
    /// In a lane: true if the caller takes parcels from the ring itself after this turn of progress, so that this turn
    /// leaves them there.
    pub taking: bool,
    /// In a lane: turns in a row in which the layer above refused the first parcel.
    pub refusals: u8,
    /// Count of matched messages.
    pub matched: u64,
    /// The count of matched messages that the peer was last told.
    pub published: u64,
    /// Bytes of long messages that this turn of progress has fetched.
    pub fetched: usize,
    pub stats: Stats,
    /// Turns of progress so far; every 16th may look at the control socket.
    pub polls: u32,
    /// Threads that sleep until this endpoint has work.
    pub sleepers: u32,
    /// Ticks of the last look at the control socket, and the count of looks.
    pub last_control: u64,
    pub controls: u32,
    /// Earliest deadline of a receive; 0: none.
    pub recv_deadline: u64,
    pub peer_name: Option<String>,
    pub acceptor: Option<HandshakeAcceptor>,
    /// This endpoint's own address, once the program has asked for it.
    pub address: Option<String>,
    /// The copier process that makes the device copies, if this process may call no driver.
    pub copier: Option<&'static Copier>,
}

impl State {
    /// Decides which fast paths operations may take. Called by `enable`, and again when a counter is bound later.
    pub fn choose_fast_paths(&mut self) {
        let b = &self.bind;
        let calm = self.faults.is_none();
        let sends = calm && b.tx.is_some() && !b.tx_selective && b.counters.send.is_none() && !self.deliver;
        self.line_end = if sends { self.eager_end.min(LINE_BYTES + 1) } else { 0 };
        self.out_of_line_end = if sends { self.eager_end } else { 0 };
        self.fast_receives = calm && b.wants_plain_receive() && b.counters.recv.is_none();
    }

    pub fn event(&self, kind: EventKind, data: Vec<u8>, error: Option<Error>) {
        tell(kind, self.object, error.as_ref(), || self.reached());
        self.bind.event(kind, self.object, self.context, data, error);
    }

    pub fn peer_address(&self) -> String {
        format!("{}{}", SCHEME, self.peer_name.as_deref().unwrap_or_default())
    }

    /// The peer and the paths to it, for the log.
    fn reached(&self) -> String {
        let Some(conn) = &self.conn else { return self.peer_address() };
        let (paths, why) = match conn.link.why_no_cma() {
            None => (conn.remotes.allowed, String::new()),
            Some(e) => (conn.remotes.allowed - Paths::CMA, format!("; cma is not possible: {e}")),
        };
        format!("{}, {}, paths {}{why}", self.peer_address(), conn.link.who(), paths.words())
    }

    /// The error of an operation that is posted without a live connection.
    pub fn not_connected(&self) -> Error {
        match &self.phase {
            Phase::Down(why) => Error::coded(errno::ESHUTDOWN, why.code, format!("ep: the connection is over: {}", why.words)),
            Phase::Connecting(_) => Error::fixed(errno::ENOTCONN, "ep: not connected yet: wait for GDRFAB_CONNECTED on the event queue"),
            _ => Error::fixed(errno::ENOTCONN, "ep: not connected"),
        }
    }

    /// The absolute deadline of an operation posted now.
    #[inline]
    pub fn deadline(&self, c: &Common) -> u64 {
        self.until(if c.timeout_ns != 0 { c.timeout_ns } else { self.options.deadline_ns })
    }

    /// The absolute deadline of a receive posted now.
    #[inline]
    pub fn recv_deadline_of(&self, c: &Common) -> u64 {
        self.until(if c.timeout_ns != 0 { c.timeout_ns } else { self.options.recv_deadline_ns })
    }

    #[inline]
    fn until(&self, relative: u64) -> u64 {
        let deadline = time::deadline(relative);
        if deadline != 0 {
            self.bind.expires(deadline);
        }
        deadline
    }

    /// Runs `post`, which posts an operation. Then wakes the threads that sleep on the endpoint, if there is work that
    /// no packet announces.
    pub fn posted<R>(&mut self, post: impl FnOnce(&mut State) -> R) -> R {
        let result = post(self);
        if self.sleepers > 0 && self.is_stalled() {
            self.bind.wake_sleepers();
        }
        result
    }

    /// True if operations wait for something that no packet announces: room in the peer's ring, a device, or pages of
    /// the peer's memory.
    pub fn is_stalled(&self) -> bool {
        self.conn.as_ref().is_some_and(|c| {
            !c.backlog.is_empty()
                || (c.offer_waits && !self.recvs.is_empty())
                || !c.devices.is_idle()
                || !c.reads_out.is_empty()
                || c.slots.active.iter().any(|i| matches!(c.slots.flight(*i), Some(Flight::Rendezvous { sent: Some(_), .. })))
        })
    }

    #[inline]
    pub fn wants_entry(&self, flags: u64) -> bool {
        self.bind.wants_entry(flags)
    }

    #[inline]
    pub fn reserve(&self, wanted: bool) -> bool {
        self.bind.reserve(wanted)
    }

    /// Gives an accepted operation its place in the order of entries, if the endpoint keeps that order.
    #[inline]
    pub fn place(&mut self, end: Ending) -> Ending {
        let end = self.bind.place(end);
        if end.ticket.is_some() {
            self.mark_late();
        }
        end
    }

    /// Sets `Conn::late` to 1 if entries come in the order of posting and earlier operations are in flight. An
    /// operation that ends inside its call must then wait with its entry, so it takes no fast path.
    #[cold]
    fn mark_late(&mut self) {
        if let Some(conn) = &mut self.conn {
            conn.late = u32::from(!self.bind.is_calm());
        }
    }

    #[inline]
    pub fn succeed(&mut self, end: &Ending) {
        self.bind.succeed(end);
        if end.ticket.is_some() {
            self.mark_late();
        }
    }

    #[cold]
    pub fn fail(&mut self, end: &Ending, error: Error) {
        self.stats.errors += 1;
        self.bind.fail(end, error);
        if end.ticket.is_some() {
            self.mark_late();
        }
    }

    /// As `end`, for an operation that its own posting call has ended. A failure gives an entry even for an inject
    /// call.
    pub fn end_posted(&mut self, end: &Ending, result: Result<()>) {
        self.end(&Ending { silent: false, ..*end }, result);
    }

    pub fn end(&mut self, end: &Ending, result: Result<()>) {
        match result {
            Ok(()) => self.succeed(end),
            Err(e) => self.fail(end, e),
        }
    }

    /// Ends a receive: `len` bytes are in place, and `lost` bytes did not fit. `data` is the remote CQ data, if some
    /// came.
    pub fn received(&mut self, recv: &Recv, len: usize, lost: usize, data: Option<u64>) {
        let kind = flags::RECV | flags::MSG | if data.is_some() { flags::REMOTE_CQ_DATA } else { 0 };
        self.stats.recvs += 1;
        let entry = Completion { context: recv.context, flags: kind, len, buf: recv.pieces.first(), data: data.unwrap_or(0) };
        let lost = (lost > 0).then(|| {
            self.stats.errors += 1;
            let words = format!("the message has {} bytes, the receive only {}", len + lost, recv.room);
            Failure { error: Error::coded(errno::ETRUNC, Code::Trunc, words), olen: lost, block: 0 }
        });
        self.bind.received(recv.ticket, entry, recv.wanted, lost);
    }

    /// Ends a receive that will not be filled.
    #[cold]
    pub fn abandon(&mut self, recv: &Recv, error: Error) {
        let entry = Completion { context: recv.context, flags: flags::RECV | flags::MSG, len: 0, buf: recv.pieces.first(), data: 0 };
        self.stats.errors += 1;
        self.bind.spoiled(recv.ticket, entry, error.into());
    }

    /// Fails every posted receive.
    pub fn flush_receives(&mut self, error: &Error) {
        let mut recvs = std::mem::take(&mut self.recvs);
        while let Some(recv) = recvs.pop_front() {
            self.abandon(&recv, error.clone());
        }
        for (_, recv) in self.faults.as_mut().map(|faults| std::mem::take(&mut faults.held)).unwrap_or_default() {
            self.abandon(&recv, error.clone());
        }
        self.recv_deadline = 0;
    }

    /// Counts a matched message, and tells the peer the count after each quarter of the window.
    pub fn count_match(&mut self) {
        self.matched += 1;
        if self.matched - self.published >= WINDOW / 4 {
            self.publish_matches();
        }
    }

    /// Writes the count of matched messages into this side's segment, where the peer reads it.
    #[cold]
    #[inline(never)]
    pub fn publish_matches(&mut self) {
        if let Some(conn) = &self.conn {
            self.published = self.matched;
            conn.link.mine.matched().store(self.matched, crate::sync::primitive::Ordering::Release);
            conn.link.nudge();
        }
    }

    /// Checks that the peer has sent no more unmatched messages than its window allows.
    pub fn check_window(&self) -> Result<()> {
        if self.unexpected.len() as u64 > WINDOW {
            return Err(protocol("the peer sent more messages than its window allows"));
        }
        Ok(())
    }
}
