// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of an endpoint, either connectionless or connected with tags: its parts (peers, lanes, matching and others),
//! and operations under way.

use crate::error::{Error, Result, errno};
use crate::prov::av::Name;
use crate::prov::bind::{Bindings, Options, PART, SILENT};
use crate::prov::op::{Common, Iov};
use crate::rdm::cq_reader::CqReader;
use crate::rdm::parts::exposed::ExposedRegions;
use crate::rdm::parts::lanes::Lanes;
use crate::rdm::parts::listeners::Listeners;
use crate::rdm::parts::matching::Matching;
use crate::rdm::parts::peers::Peers;
use crate::rdm::parts::reports::Reports;
use crate::rdm::parts::turns::Turns;
use crate::rdm::peers::outstanding::{FaultInjection, Ops, OutstandingOp};
use crate::rdm::peers::peer::{CompletionInfo, Connection, Id};
use crate::sys::time;
use crate::sys::usercopy::UserCopy;
use std::sync::Arc;

/// All data of one endpoint. The endpoint's lock guards the data. The files in `connect` and `transfer` add methods.
pub struct State {
    pub name: Option<Name>,
    pub bind: Bindings,
    pub options: Options,
    pub faults: Option<Box<FaultInjection>>,
    /// Present on an endpoint of type MSG, which has one peer and no address vector.
    pub connection: Option<Box<Connection>>,
    pub closed: bool,
    /// Receives may name a source (`GDRFAB_DIRECTED_RECV`). Otherwise a source that a receive names is ignored, and the
    /// receive takes messages from any source.
    pub directed: bool,
    /// The endpoint's default flags contain `GDRFAB_DELIVERY_COMPLETE`: a send completes when the message is delivered. An
    /// injected send has no such completion.
    pub delivery_complete: bool,
    /// `settle_fast` has found that operations may take the fast path (`transfer/fast`, `transfer/fast_arrive`).
    /// `fast_send`: sends. `fast_recv`: tagged receives and arriving messages. `fast_untagged`: untagged receives.
    pub fast_send: bool,
    pub fast_recv: bool,
    pub fast_untagged: bool,
    /// A receive that is posted without flags writes a completion entry.
    pub entry_by_default: bool,
    /// The array of the `gdrfab_cq_read` call that drives this endpoint at present, if any. Entries of arriving messages
    /// go straight into this array.
    pub reader: CqReader,
    pub peers: Peers,
    pub matching: Matching,
    /// Operations that a lane or a peer works on.
    pub ops: Ops,
    pub lanes: Lanes,
    pub listeners: Listeners,
    /// Peers that broke the protocol: the `Link::number` of the peer's lane, and the error. The end of the turn disconnects
    /// these peers.
    pub violations: Vec<(usize, Error)>,
    /// Regions of offers that the peer has answered or that this side has revoked, until the regions are closed.
    pub exposed: ExposedRegions,
    /// Number of block lists, or parts of lists, that lanes are moving.
    pub lists: usize,
    pub user_copy: Arc<UserCopy>,
    /// The earliest deadline of anything outstanding, as an absolute time in nanoseconds; 0 if there is none.
    pub earliest: u64,
    pub turns: Turns,
    pub reports: Reports,
    /// Threads that sleep on the endpoint.
    pub sleepers: u32,
}

impl State {
    /// Peers for which operations may be waiting: peers to which this side has something to send, and peers whose lane is not
    /// connected yet.
    pub fn active(&self) -> Vec<Id> {
        self.peers.with_work().chain(self.lanes.connecting_peers()).collect()
    }

    /// True if something is unfinished that the program takes for finished: an injected operation, or a parcel without a
    /// message that waits for room in a connected lane, for example the answer to an offer that was read.
    pub fn has_unsent_promises(&self) -> bool {
        self.ops.each().any(
            |(_, op)| matches!(op, OutstandingOp::Offered { completion, .. } | OutstandingOp::Rma { completion, .. } if completion.silent),
        ) || self
            .active()
            .into_iter()
            .filter_map(|id| self.peers.get(id))
            .any(|peer| (!peer.control.is_empty() && peer.ready().is_some()) || peer.waiting.iter().any(|w| w.completion.silent))
    }

    /// Fails unless operations can be posted.
    pub fn check_enabled(&self) -> Result<()> {
        match (self.closed, self.bind.enabled) {
            (true, _) => Err(self.shut_error()),
            (_, false) => Err(Error::new(errno::EOPBADSTATE, "ep: call ep_enable first")),
            _ => Ok(()),
        }
    }

    fn note_timeout(&mut self, relative: u64) -> u64 {
        let deadline = time::deadline(relative);
        self.note_deadline(deadline);
        deadline
    }

    /// Records a deadline that progress has to enforce. 0 means no deadline.
    pub fn note_deadline(&mut self, deadline: u64) {
        if deadline != 0 {
            if self.earliest == 0 || deadline < self.earliest {
                self.earliest = deadline;
            }
            self.bind.expires(deadline);
        }
    }

    /// The deadline of an operation, from the operation's own timeout or else from the endpoint's option. Progress enforces
    /// the deadline from now on (`note_deadline`).
    pub fn start_deadline(&mut self, c: &Common) -> u64 {
        self.note_timeout(if c.timeout_ns != 0 { c.timeout_ns } else { self.options.deadline_ns })
    }

    /// As `start_deadline`, for a receive.
    pub fn start_recv_deadline(&mut self, c: &Common) -> u64 {
        self.note_timeout(if c.timeout_ns != 0 { c.timeout_ns } else { self.options.recv_deadline_ns })
    }

    /// Builds the completion of an operation that this side posts.
    pub fn completion_of(&mut self, c: &Common, kind: u64, local: &[Iov], len: usize, tag: u64) -> CompletionInfo {
        CompletionInfo {
            context: c.context,
            post: self.matching.next_post(),
            kind,
            len,
            buf: local.first().map_or(0, |v| v.addr()),
            wants_entry: self.bind.wants_entry(c.flags),
            deadline: self.start_deadline(c),
            silent: c.flags & SILENT != 0,
            part: c.flags & PART != 0,
            tag,
        }
    }

    /// Wakes the threads that sleep on the endpoint, if any. Callers use this method when a new descriptor has to be watched,
    /// or when work has come up.
    pub fn wake(&self) {
        if self.sleepers > 0 {
            self.bind.wake_sleepers();
        }
    }

    /// The error of a call after the connection has ended or the endpoint was shut down.
    #[cold]
    pub fn shut_error(&self) -> Error {
        match self.connection.as_ref().and_then(|connection| connection.ended_by.as_ref()) {
            Some(why) => Error::coded(errno::ESHUTDOWN, why.code, format!("ep: the connection is over: {}", why.words)),
            None => Error::new(errno::ESHUTDOWN, "ep: it was shut down"),
        }
    }

    /// Decides which operations may take the fast path, from what is bound and which options are set.
    pub fn settle_fast(&mut self) {
        let open = self.bind.enabled && !self.closed && self.faults.is_none();
        let b = &self.bind;
        self.fast_send = open && b.tx.is_some() && b.counters.send.is_none() && !self.delivery_complete;
        self.entry_by_default = b.wants_plain_receive();
        self.fast_recv = open && b.rx.is_some() && b.counters.recv.is_none() && self.options.recv_deadline_ns == 0;
        self.fast_untagged = self.fast_recv && !b.receives_several();
    }
}
