// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Completes operations and receives: writes the entry into the program's completion queue and adds to the counter.

use crate::error::{Code, Error, Result, errno};
use crate::prov::av::UNSPEC;
use crate::prov::flags;
use crate::prov::queue::{Completion, Failure, Origin};
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::outstanding::{Op, Recv};
use crate::rdm::peers::peer::{CompletionInfo, PendingKind, PendingOp, UNKNOWN};
use crate::rdm::state::State;
use crate::rdm::wire::parcel::Label;
use std::sync::Arc;

impl State {
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

    /// Fails an operation that has not started.
    pub fn fail_pending(&mut self, waiting: PendingOp, why: Error) {
        if let PendingKind::Message { offered: Some((number, _)), .. } = waiting.kind
            && let Some(Op::Offered { peer: id, exposed, .. }) = self.ops.take(number)
        {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.exposed = peer.exposed.saturating_sub(exposed.len());
            }
            self.exposed.give_back(exposed);
        }
        self.fail(&waiting.completion, why);
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

    /// Writes the entry of a write with remote data to this endpoint's memory, or holds the entry until the queue has
    /// room.
    pub fn remote_data_arrived(&mut self, entry: Completion, source: u64) {
        if let Some(counter) = &self.bind.counters.remote_write {
            counter.add(1);
        }
        let Some(q) = &self.bind.rx else { return };
        self.polls_lanes &= q.has_room();
        match self.polls_lanes {
            true => q.push_from(entry, State::origin(None, source)),
            false => self.held_writes.push_back((entry, source)),
        }
    }

    /// Writes the held entries (`held_writes`) as far as the receive queue has room. True if the queue still has room, so
    /// that lanes are polled again.
    #[cold]
    pub fn resume_polling(&mut self) -> bool {
        if !self.bind.enabled || self.closed {
            return false;
        }
        if let Some(q) = &self.bind.rx {
            while q.has_room()
                && let Some((entry, source)) = self.held_writes.pop_front()
            {
                q.push_from(entry, State::origin(None, source));
            }
            self.polls_lanes = q.has_room();
        }
        self.polls_lanes
    }

    /// Closes regions that were busy, and fails the offers that have ended by that.
    pub fn retry_closes(&mut self, domain: &Domain, now: u64) {
        for (completion, why) in self.exposed.retry(domain, now) {
            self.fail(&completion, why);
        }
    }
}
