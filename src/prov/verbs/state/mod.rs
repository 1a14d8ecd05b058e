// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of an endpoint, and the end of its operations: with success, with an error, or flushed by the end of the
//! connection.
//!
//! `State` is one struct under the lock of `shared.rs`. The other files of this folder define its parts: `conn.rs` (the
//! connection and an attempt to make one), `staging.rs` (operations that wait behind a staged transfer), `lane.rs` (the
//! queues of a lane), `rails.rs` with `rail.rs`, `rail_port.rs`, `rail_keys.rs`, `stripe.rs` and `part_requests.rs`
//! (several ports), and `faults.rs` (fault injection). The parts do not know `State`. The folders `ops`, `rail`, `lane`
//! and `connect` add the methods of `State`.

pub(in crate::prov::verbs) mod conn;
pub(in crate::prov::verbs) mod faults;
pub(in crate::prov::verbs) mod lane;
pub(in crate::prov::verbs) mod part_requests;
pub(in crate::prov::verbs) mod rail;
pub(in crate::prov::verbs) mod rail_keys;
pub(in crate::prov::verbs) mod rail_port;
pub(in crate::prov::verbs) mod rails;
pub(in crate::prov::verbs) mod staging;
pub(in crate::prov::verbs) mod stripe;

use crate::error::{Code, Error, Result, errno};
use crate::mr::Paths;
use crate::prov::bind::{Bindings, Options, Stage};
use crate::prov::event::{EventKind, tell, tell_end};
use crate::prov::flags;
use crate::prov::info::permitted;
use crate::prov::queue::Completion;
use crate::prov::report::Stats;
use crate::prov::verbs::limits::{ANSWER_NS, DRAIN_NS, PATHS};
use crate::prov::verbs::memory::mr;
use crate::prov::verbs::queue::qp::{Qp, RetryPolicy};
use crate::prov::verbs::queue::ring::Ring;
use crate::prov::verbs::queue::service::Service;
use crate::prov::verbs::queue::tag::Tag;
use crate::prov::verbs::queue::template::Template;
use crate::prov::verbs::queue::work::{Batch, Chain, FETCH, PARCEL, RxOp, TxOp};
use crate::prov::verbs::sys::abi::{ibv_wc, ibv_wc_status};
use crate::prov::verbs::sys::status::{self, Failed};
use crate::sys::time;
use conn::{Connecting, Link};
use faults::Faults;
use lane::LaneQueues;
use rails::Rails;
use staging::StagingQueue;

pub enum Phase {
    /// Not enabled yet.
    Fresh,
    /// Enabled, and not connected yet.
    Enabled,
    Connecting(Box<Connecting>),
    Connected,
    /// The queue pair is in the error state, until the device has returned all requests.
    Draining,
    /// The connection is over, for this reason.
    Down(Error),
}

pub struct State {
    pub phase: Phase,
    pub bind: Bindings,
    pub options: Options,
    pub retry_policy: RetryPolicy,
    pub stats: Stats,
    /// The caller's handle, by which events name the endpoint.
    pub object: usize,
    /// The caller's context, which events contain.
    pub context: usize,
    pub qp: Option<Qp>,
    /// The addresses of the endpoint's completion queues, by which asynchronous events name them.
    pub cqs: [usize; 2],
    pub tx: Ring<TxOp>,
    pub rx: Ring<RxOp>,
    pub tx_tag: Tag,
    pub rx_tag: Tag,
    /// Operations posted since the last one that asks for a completion of the device.
    pub unsignalled: u32,
    /// Every operation asks for a completion, because counters have to move with every operation, or because
    /// completions may overtake each other (`unordered`).
    pub signal_all: bool,
    /// Flags of operations that are posted without flags.
    pub op_flags: u64,
    /// Completions of the device may overtake each other (over iWARP, a write may complete before an earlier read).
    pub unordered: bool,
    /// The provider posts the receives for writes with data, because the endpoint was opened without `GDRFAB_MSG` and
    /// `GDRFAB_RECV`.
    pub own_receives: bool,
    /// Work requests that wait for the last one of their batch (`GDRFAB_MORE`).
    pub batch: Box<Batch>,
    pub chain: Chain,
    pub fast: Template,
    /// The earliest deadline of anything posted; 0: none.
    pub earliest: u64,
    /// The time at which an expired deadline was found; 0: none.
    pub expired_at: u64,
    /// The first reason for which the connection ends or has ended.
    pub end_reason: Option<Error>,
    /// The device's report about the queue pair, until a failed operation gives a better reason.
    pub device_fault: Option<Error>,
    /// The reason for which the peer ends the connection, and the time until which operations in flight may still be
    /// answered.
    pub peer_end: Option<(Error, u64)>,
    /// The time at which draining is given up and the queue pair is destroyed.
    pub drain_deadline: u64,
    /// This side wanted the end or was never connected, so no event reports the end.
    pub silent: bool,
    pub link: Link,
    pub service: Option<Service>,
    pub staging: StagingQueue,
    /// Writes with data that were posted.
    pub data_sent: u64,
    /// Writes with data that have arrived.
    pub data_seen: u64,
    pub faults: Option<Faults>,
    /// Present if the connection has further rails.
    pub rails: Option<Box<Rails>>,
    /// The queues of a lane. Declared after `qp`, so that the queue pair is dropped before the buffers that it uses.
    pub lane: Option<Box<LaneQueues>>,
    /// The longest message of the device, in bytes.
    pub longest: u32,
}

fn operation(kind: u64) -> &'static str {
    match kind {
        k if k & flags::SEND != 0 => "send",
        k if k & flags::ATOMIC != 0 => "atomic operation",
        k if k & flags::READ != 0 => "read",
        _ => "write",
    }
}

impl State {
    /// Decides whether every operation has to ask for a completion: over iWARP, and where a counter is bound.
    pub fn update_signalling(&mut self) {
        let c = &self.bind.counters;
        self.signal_all = self.unordered || c.send.is_some() || c.write.is_some() || c.read.is_some();
    }

    pub fn event(&self, kind: EventKind, data: Vec<u8>, error: Option<Error>) {
        tell(kind, self.object, error.as_ref(), || self.describe_peer());
        self.bind.event(kind, self.object, self.context, data, error);
    }

    fn peer_address(&self) -> String {
        self.link.peer().map_or(String::new(), |peer| peer.to_string())
    }

    /// The peer and the paths to it, for the log.
    fn describe_peer(&self) -> String {
        let mut paths = self.options.policy.allowed() & permitted(PATHS);
        paths.set(Paths::STAGED, paths.contains(Paths::STAGED) && self.service.is_some());
        format!("{}, paths {}", self.peer_address(), paths.words())
    }

    pub fn not_connected(&self) -> Error {
        let peer_end = self.peer_end.as_ref().map(|(why, _)| why);
        match (&self.phase, self.end_reason.as_ref().or(peer_end)) {
            (Phase::Down(why), _) | (Phase::Draining | Phase::Connected, Some(why)) => {
                Error::coded(errno::ESHUTDOWN, why.code, format!("ep: the connection is over: {}", why.words))
            }
            (Phase::Connecting(_), _) => {
                Error::fixed(errno::ENOTCONN, "ep: not connected yet: wait for GDRFAB_CONNECTED on the event queue")
            }
            _ => Error::fixed(errno::ENOTCONN, "ep: not connected"),
        }
    }

    /// Handles the completion of an operation. Except over iWARP, all operations before it have completed with it.
    #[inline]
    pub fn tx_completed(&mut self, wc: &ibv_wc, seq: u32) {
        let failed = wc.status != ibv_wc_status::IBV_WC_SUCCESS;
        if failed && self.absorb_failure(wc, false, seq) {
            return;
        }
        if self.unordered {
            return self.tx_completed_unordered(wc, seq, failed);
        }
        loop {
            let last = self.tx.is_next(seq);
            let Some(op) = self.tx.pop_until(seq) else { break };
            if failed && last {
                self.tx_failed(op, wc);
            } else {
                self.tx_succeeded(op);
            }
        }
        if failed {
            self.finish_if_drained();
        }
    }

    /// Over iWARP every operation has a completion of its own, and completions may overtake each other. Entries still
    /// keep the order of posting.
    fn tx_completed_unordered(&mut self, wc: &ibv_wc, seq: u32, failed: bool) {
        let Some(end) = self.tx.get_mut(seq).map(|op| op.end) else { return };
        let fate = failed.then(|| Box::new(self.failure_of(wc, operation(end.kind), false, end.deadline)));
        if let Some(op) = self.tx.get_mut(seq) {
            (op.ended, op.error) = (true, fate);
        }
        while let Some(mut op) = self.tx.pop_if(|op| op.ended) {
            match op.error.take() {
                None => self.op_succeeded(op),
                Some(error) => self.fail_op(&op, *error),
            }
        }
        if failed {
            self.finish_if_drained();
        }
    }

    #[inline(always)]
    pub(in crate::prov::verbs) fn tx_succeeded(&mut self, op: TxOp) {
        let end = &op.end;
        if op.internal && !end.part {
            return self.internal_op_ended(&op);
        }
        if end.kind & flags::SEND != 0 {
            self.stats.sends += 1;
        } else {
            self.stats.moved(mr::path_of(op.path_bits), end.len);
            if op.path_bits & (FETCH | PARCEL) != 0 {
                self.lane_op_ended(op.path_bits, end.len);
            }
        }
        if op.internal {
            return;
        }
        if let Some((_, first)) = self.chain.failed.take_if(|(of, _)| end.part && *of == end.context) {
            return self.fail_op(&op, first);
        }
        match op.bounce {
            None => self.bind.succeed(end),
            Some(bounce) => {
                let placed = match op.error {
                    Some(unknown) => Err(*unknown),
                    None if end.kind & flags::READ != 0 => bounce.scatter(end.len),
                    None => Ok(()),
                };
                match placed {
                    Ok(()) => self.bind.succeed(end),
                    Err(e) => {
                        self.stats.errors += 1;
                        self.bind.fail(end, e);
                    }
                }
            }
        }
    }

    #[cold]
    fn tx_failed(&mut self, op: TxOp, wc: &ibv_wc) {
        let error = self.failure_of(wc, operation(op.end.kind), false, op.end.deadline);
        self.fail_op(&op, error);
    }

    /// Reports a failed operation. A chain is reported when its last request has ended, with the first error and its position.
    #[cold]
    pub fn fail_op(&mut self, op: &TxOp, error: Error) {
        if !op.end.part {
            if op.striped {
                self.stripe_failed(op.end.context as u64, op.run, error);
            } else if !op.internal {
                self.stats.errors += 1;
                self.bind.fail(&op.end, error);
            }
            return;
        }
        let mut first = Error { piece: error.piece.or(Some((op.run, 0))), ..error };
        if op.internal {
            self.chain.failed.get_or_insert((op.end.context, first));
            return;
        }
        if let Some((_, before)) = self.chain.failed.take_if(|(of, _)| *of == op.end.context) {
            first = before;
        }
        self.stats.errors += 1;
        self.bind.fail(&op.end, first);
    }

    /// The reason for a failed work request. The first failure ends the connection.
    #[cold]
    pub(in crate::prov::verbs) fn failure_of(&mut self, wc: &ibv_wc, operation: &'static str, receive: bool, deadline: u64) -> Error {
        if wc.status == ibv_wc_status::IBV_WC_WR_FLUSH_ERR {
            return self.flushed(deadline);
        }
        let failed = Failed { operation, receive, status: wc.status, qpn: wc.qp_num, vendor_err: wc.vendor_err };
        let error = status::completion_error(&failed);
        if self.device_fault.take().is_some() {
            self.end_reason = Some(error.clone());
        }
        self.begin_teardown(error.clone(), false);
        error
    }

    /// The error of an operation that ends with the connection.
    pub fn flushed(&self, deadline: u64) -> Error {
        if deadline != 0 && self.expired_at >= deadline {
            return Error::coded(
                errno::ETIMEDOUT,
                Code::Deadline,
                "the operation's deadline passed: the queue pair was stopped, so the device no longer accesses the buffer",
            );
        }
        let why = self.end_reason.as_ref().map_or("the peer ended it", |e| e.words.as_ref());
        let code =
            self.end_reason.as_ref().map_or(Code::Canceled, |e| if e.code == Code::PeerGone { Code::PeerGone } else { Code::Canceled });
        Error::coded(errno::ECANCELED, code, format!("flushed with the connection: {why}"))
    }

    pub fn fail_receive(&mut self, op: &RxOp, error: Error) {
        if op.own {
            return;
        }
        self.stats.errors += 1;
        let entry = Completion { context: op.context, flags: flags::RECV | flags::MSG, len: 0, buf: op.buf, data: 0 };
        self.bind.spoiled(None, entry, error.into());
    }

    /// Begins to end the connection with this reason, unless the end has begun already: the queue pair goes to the
    /// error state, and the device has to return all requests. `silent`: this side wanted the end, so no event reports
    /// the end.
    #[cold]
    pub fn begin_teardown(&mut self, why: Error, silent: bool) {
        if matches!(self.phase, Phase::Draining | Phase::Down(_)) {
            return;
        }
        self.close_fast();
        self.silent = silent || !matches!(self.phase, Phase::Connected);
        if !self.silent {
            tell_end(self.object, &self.peer_address(), &why);
        }
        self.end_reason = Some(why);
        self.phase = Phase::Draining;
        self.drain_deadline = time::now_ns() + DRAIN_NS;
        self.send_goodbye();
        self.fail_batch();
        if let Some(rails) = &mut self.rails {
            self.drain_deadline *= u64::from(!rails.is_failing_over());
            rails.end();
        }
        if let Some(qp) = &self.qp
            && let Err(e) = qp.fail()
        {
            crate::log!(Warn, "{e}");
            self.drain_deadline = 0;
        }
    }

    /// The peer ends the connection. Its goodbye travels apart from its answers and may overtake a refusal, so
    /// operations in flight may still be answered for `ANSWER_NS`.
    #[cold]
    pub fn peer_closed(&mut self, why: Error) {
        if !matches!(self.phase, Phase::Connected) || self.tx.is_empty() {
            self.begin_teardown(why, false);
        } else if self.peer_end.is_none() {
            self.close_fast();
            self.peer_end = Some((why, time::now_ns() + ANSWER_NS));
        }
    }

    /// Ends a connection that the peer has ended, once nothing is in flight or `ANSWER_NS` has passed.
    pub fn follow_peer(&mut self) {
        if let Some((why, _)) = self.peer_end.take_if(|(_, until)| self.tx.is_empty() || time::now_ns() >= *until) {
            self.begin_teardown(why, false);
        }
    }

    /// Ends the connection for good once the device has returned everything. If the device does not return everything
    /// in time, the queue pair is destroyed, which ends the device's access to the buffers as well.
    pub fn finish_if_drained(&mut self) {
        if !matches!(self.phase, Phase::Draining) {
            return;
        }
        // The caller first gets the parcels that have arrived.
        if self.has_parcels() && !self.silent {
            return;
        }
        if !(self.tx.is_empty() && self.rx.is_empty() && self.service.as_ref().is_none_or(|s| s.outstanding == 0)) {
            if time::now_ns() < self.drain_deadline {
                return;
            }
            self.qp = None;
            self.service = None;
            while let Some(op) = self.tx.pop() {
                let error = self.flushed(op.end.deadline);
                self.fail_op(&op, error);
            }
            while let Some(op) = self.rx.pop() {
                let error = self.flushed(op.deadline);
                self.fail_receive(&op, error);
            }
        }
        self.flush_held();
        self.flush_stripes();
        self.flush_queue();
        self.flush_lane();
        let why = self.end_reason.clone().unwrap_or(Error::fixed(errno::ECONNRESET, "the connection ended"));
        self.phase = Phase::Down(why);
        // A peer that broke the protocol shows in no error entry of a lane, so an event tells the user of the lane.
        let broken = |why: &Error| self.lane.is_some() && (why.code == Code::PeerBroke || why.errno == errno::ENORX);
        let fault = self.device_fault.take().or_else(|| self.end_reason.clone().filter(broken));
        if !self.silent {
            if fault.is_some() {
                self.event(EventKind::Shutdown, Vec::new(), fault);
            }
            self.event(EventKind::Shutdown, Vec::new(), None);
        }
    }

    /// Ends the connection if an operation has missed its deadline: a device cannot take back a single request.
    pub fn check_deadlines(&mut self) {
        if self.earliest == 0 || !matches!(self.phase, Phase::Connected | Phase::Enabled) {
            return;
        }
        let now = time::now_ns();
        if now < self.earliest {
            return;
        }
        self.expire_jobs();
        let striped = || self.rails.iter().flat_map(|r| r.active.iter().map(|s| s.end.deadline));
        let lined_up = || self.staging.jobs.iter().map(|j| j.ending().deadline).chain(striped());
        let posted = || self.tx.iter().map(|o| o.end.deadline).chain(self.rx.iter().map(|o| o.deadline));
        let held = || self.faults.iter().flat_map(|f| f.held.iter().map(|(_, held)| held.op.deadline));
        let deadlines = || posted().chain(self.lane_deadlines()).chain(lined_up()).chain(held()).filter(|d| *d != 0);
        if deadlines().any(|d| d <= now) {
            self.expired_at = now;
            let words = "an operation's deadline passed: the queue pair was stopped, because a device cannot cancel a single operation";
            return self.begin_teardown(Error::coded(errno::ETIMEDOUT, Code::Deadline, words), false);
        }
        self.earliest = deadlines().min().unwrap_or(0);
    }

    /// The absolute deadline of an operation posted now.
    #[inline(always)]
    pub fn deadline(&mut self, timeout_ns: u64) -> u64 {
        self.register_deadline(if timeout_ns != 0 { timeout_ns } else { self.options.deadline_ns })
    }

    /// The absolute deadline of a receive posted now.
    pub fn recv_deadline(&mut self, timeout_ns: u64) -> u64 {
        self.register_deadline(if timeout_ns != 0 { timeout_ns } else { self.options.recv_deadline_ns })
    }

    #[inline(always)]
    fn register_deadline(&mut self, relative: u64) -> u64 {
        let deadline = time::deadline(relative);
        if deadline == 0 {
            return 0;
        }
        if self.earliest == 0 || deadline < self.earliest {
            self.earliest = deadline;
        }
        self.bind.expires(deadline);
        deadline
    }

    /// Checks that a connection attempt may begin.
    pub fn check_can_connect(&self) -> Result<()> {
        self.bind.check_can_connect(match self.phase {
            Phase::Fresh => Stage::Fresh,
            Phase::Enabled => Stage::Enabled,
            Phase::Connecting(_) | Phase::Connected => Stage::Connected,
            Phase::Draining | Phase::Down(_) => Stage::Over,
        })
    }

    pub fn check_connected(&self) -> Result<&Qp> {
        match (&self.phase, &self.qp) {
            // After the peer's goodbye, operations under way may still be answered, but new ones would not be.
            (Phase::Connected, Some(qp)) if self.peer_end.is_none() => Ok(qp),
            // The caller may answer a message that has arrived. The queue pair was able to send before the message
            // arrived, although the connection manager has not yet confirmed that the peer knows about the connection.
            (Phase::Connecting(_), Some(qp)) if self.stats.recvs > 0 => Ok(qp),
            _ => Err(self.not_connected()),
        }
    }
}
