// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of a connectionless endpoint: its peers and lanes, receives and unexpected messages, and operations under
//! way. The functions at the end of the file complete operations and receives: they write the entry into the completion
//! queue and add to the counter.

use super::cq_reader::CqReader;
use super::wire::parcel::Label;
use crate::error::{Code, Error, Result, errno};
use crate::prov::av::{Name, UNSPEC};
use crate::prov::bind::{Bindings, Options, PART, SILENT};
use crate::prov::flags;
use crate::prov::op::{Common, Iov};
use crate::prov::queue::{Completion, Failure, Origin};
use crate::prov::report::Stats;
use crate::rdm::parts::exposed::ExposedRegions;
use crate::rdm::parts::lanes::Lanes;
use crate::rdm::parts::listeners::Listeners;
use crate::rdm::parts::matching::Matching;
use crate::rdm::parts::peers::Peers;
use crate::rdm::peers::outstanding::{FaultInjection, Op, Ops, Recv};
use crate::rdm::peers::peer::{CompletionInfo, Connection, Id, UNKNOWN};
use crate::sys::time;
use crate::sys::usercopy::UserCopy;
use std::collections::VecDeque;
use std::sync::Arc;

/// All data of one endpoint. The endpoint's lock guards it. The files in `connect` and `transfer` add its methods.
pub struct State {
    pub name: Option<Name>,
    pub bind: Bindings,
    pub options: Options,
    pub faults: Option<Box<FaultInjection>>,
    /// Present on an endpoint of type MSG, which has one peer and no address vector.
    pub connection: Option<Box<Connection>>,
    pub closed: bool,
    /// Receives may name a source (`GDRFAB_DIRECTED_RECV`); otherwise they take messages from any source.
    pub directed: bool,
    /// Sends complete on delivery unless they are injected (`GDRFAB_DELIVERY_COMPLETE` by default).
    pub deliver: bool,
    /// Turns poll the lanes. False while the endpoint is not enabled or is closed, and while the receive queue is full,
    /// because a lane can bring entries that no receive asked for.
    pub polls_lanes: bool,
    /// Entries of peers' RMA writes with remote data that found the receive queue full, each with the source of the
    /// write.
    pub held_writes: VecDeque<(Completion, u64)>,
    /// The fast path (`transfer/fast`) may be taken: `fast_send` by sends, `fast_recv` by tagged receives and arriving
    /// messages, `fast_untagged` by untagged receives.
    pub fast_send: bool,
    pub fast_recv: bool,
    pub fast_untagged: bool,
    /// A receive that is posted without flags writes an entry.
    pub entry_by_default: bool,
    /// The `gdrfab_cq_read` that drives this endpoint at present, if any. Entries of messages go into its array.
    pub reader: CqReader,
    pub peers: Peers,
    pub matching: Matching,
    /// Operations that a lane or a peer works on.
    pub ops: Ops,
    pub lanes: Lanes,
    pub listeners: Listeners,
    /// Lanes whose peers broke the protocol, by `Link::number`, with the error. The end of the turn disconnects them.
    pub violations: Vec<(usize, Error)>,
    /// Regions of offers that are over for this side, until they are closed.
    pub exposed: ExposedRegions,
    /// Number of block lists, or parts of lists, that lanes are moving.
    pub lists: usize,
    pub user_copy: Arc<UserCopy>,
    /// The earliest deadline of anything outstanding; 0 if there is none.
    pub earliest: u64,
    /// Turns of progress so far; wraps around.
    pub turns: u32,
    /// The last turn in which any lane filled a receive.
    pub last_fill_turn: u32,
    /// Time of the last poll of rare matters, in ticks of the clock counter.
    pub last_rare_poll: u64,
    /// `stats`: counts of the messages that this layer matches. `past_stats`: traffic of lanes that have ended, and of
    /// loopback copies.
    pub stats: Stats,
    pub past_stats: Stats,
    /// Threads that sleep on the endpoint.
    pub sleepers: u32,
}

impl State {
    /// Peers that operations may be waiting for: peers with something to send, and peers whose lane is not connected yet.
    pub fn active(&self) -> Vec<Id> {
        self.peers.with_work().chain(self.lanes.connecting_peers()).collect()
    }

    /// True if this side still has to send something that the program believes sent: an injected message, or the answer
    /// to an offer that was read.
    pub fn has_unsent_promises(&self) -> bool {
        self.ops.each().any(|(_, op)| matches!(op, Op::Offered { completion, .. } | Op::Rma { completion, .. } if completion.silent))
            || self
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

    pub fn deadline(&mut self, c: &Common) -> u64 {
        self.note_timeout(if c.timeout_ns != 0 { c.timeout_ns } else { self.options.deadline_ns })
    }

    pub fn recv_deadline(&mut self, c: &Common) -> u64 {
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
            deadline: self.deadline(c),
            silent: c.flags & SILENT != 0,
            part: c.flags & PART != 0,
            tag,
        }
    }

    /// Completes an operation successfully.
    #[inline]
    pub fn succeed(&mut self, completion: &CompletionInfo) {
        if completion.part {
            return self.bind.ends.put(completion.context, None);
        }
        if completion.wants_entry
            && let Some(q) = &self.bind.tx
        {
            q.push(Completion { context: completion.context, flags: completion.kind, len: completion.len, buf: completion.buf, data: 0 });
        }
        if let Some(counter) = self.counter_of(completion.kind) {
            counter.add(1);
        }
    }

    fn counter_of(&self, kind: u64) -> Option<&Arc<crate::prov::Counter>> {
        let c = &self.bind.counters;
        match kind {
            k if k & flags::SEND != 0 => c.send.as_ref(),
            k if k & flags::READ != 0 => c.read.as_ref(),
            _ => c.write.as_ref(),
        }
    }

    /// Completes an operation with an error.
    #[cold]
    pub fn fail(&mut self, completion: &CompletionInfo, error: Error) {
        self.stats.errors += 1;
        if completion.part {
            return self.bind.ends.put(completion.context, Some(error));
        }
        if let Some(counter) = self.counter_of(completion.kind) {
            counter.add_error(1);
        }
        if completion.silent && error.code == Code::Canceled {
            return;
        }
        if let Some(q) = &self.bind.tx {
            let entry = Completion { context: completion.context, flags: completion.kind, len: 0, buf: completion.buf, data: 0 };
            q.fail_from(entry, Failure { error, olen: 0, block: 0 }, Origin { tag: completion.tag, peer: UNSPEC });
        }
    }

    /// Completes an operation with its result.
    pub fn finish(&mut self, completion: &CompletionInfo, result: Result<()>) {
        match result {
            Ok(()) => self.succeed(completion),
            Err(e) => self.fail(completion, e),
        }
    }

    /// The origin that an entry reports for a message: its tag, and the sender's index or `UNSPEC`.
    pub fn origin(tag: Option<u64>, source: u64) -> Origin {
        Origin { tag: tag.unwrap_or(0), peer: if source >= UNKNOWN { UNSPEC } else { source } }
    }

    /// Completes a receive whose first `len` bytes are in place. `lost` further bytes of the message did not fit.
    pub fn received(&mut self, recv: &Recv, len: usize, lost: usize, label: &Label, source: u64) {
        self.stats.recvs += 1;
        let kind = flags::RECV | if recv.tagged { flags::TAGGED } else { flags::MSG };
        let data = if label.data.is_some() { flags::REMOTE_CQ_DATA } else { 0 };
        let last = if self.matching.finish_part(recv) { flags::MULTI_RECV } else { 0 };
        let entry =
            Completion { context: recv.context, flags: kind | data | last, len, buf: recv.first.addr(), data: label.data.unwrap_or(0) };
        let origin = State::origin(label.tag, source);
        if let Some(counter) = &self.bind.counters.recv {
            if lost == 0 { counter.add(1) } else { counter.add_error(1) }
        }
        if let Some(q) = &self.bind.rx {
            // Empty messages use up nothing of a multi-receive buffer, so one buffer can write entries until the queue is
            // full. A full queue stops the polling of lanes.
            self.polls_lanes &= recv.multi().is_none() || q.has_room();
            if lost > 0 {
                self.stats.errors += 1;
                let words = format!("the message has {} bytes, the receive only {}", len + lost, recv.room);
                q.fail_from(entry, Failure { error: Error::coded(errno::ETRUNC, Code::Trunc, words), olen: lost, block: 0 }, origin);
            } else if recv.wants_entry || last != 0 {
                q.push_from(entry, origin);
            }
        }
        if let Some((recv, why)) = self.matching.end_if_last(recv) {
            self.fail_recv(recv, why, UNKNOWN);
        }
    }

    /// Fails a receive. A multi-receive buffer fails only when all messages that are arriving in it are in place.
    pub fn fail_recv(&mut self, recv: Recv, why: Error, source: u64) {
        if let Some((recv, why)) = self.matching.fail(recv, why) {
            self.complete_failed_recv(&recv, why, &Label::default(), source);
        }
    }

    /// Completes a receive with an error.
    #[cold]
    pub fn complete_failed_recv(&mut self, recv: &Recv, error: Error, label: &Label, source: u64) {
        self.stats.errors += 1;
        let kind = flags::RECV | if recv.tagged { flags::TAGGED } else { flags::MSG };
        let last = if self.matching.finish_part(recv) { flags::MULTI_RECV } else { 0 };
        let entry = Completion { context: recv.context, flags: kind | last, len: 0, buf: recv.first.addr(), data: 0 };
        if let Some(counter) = &self.bind.counters.recv {
            counter.add_error(1);
        }
        if let Some(q) = &self.bind.rx {
            q.fail_from(entry, Failure { error, olen: 0, block: 0 }, State::origin(label.tag, source));
        }
        if let Some((recv, why)) = self.matching.end_if_last(recv) {
            self.fail_recv(recv, why, UNKNOWN);
        }
    }

    /// Wakes the threads that sleep on the endpoint, because a new descriptor has to be watched or work has come up.
    pub fn wake(&self) {
        if self.sleepers > 0 {
            self.bind.rouse();
        }
    }
}
