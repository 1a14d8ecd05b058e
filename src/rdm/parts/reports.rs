// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports to the program: writes entries into the program's completion queues, adds to its counters, and counts for the
//! statistics. Entries that no receive asked for can fill the completion queue of receives. This part then stops the
//! polling of lanes, until the queue has room again.

use crate::error::{Code, Error, Result, errno};
use crate::prov::av::UNSPEC;
use crate::prov::bind::Bindings;
use crate::prov::flags;
use crate::prov::queue::{Completion, Counter, Failure, Origin};
use crate::prov::report::Stats;
use crate::rdm::peers::outstanding::Recv;
use crate::rdm::peers::peer::{CompletionInfo, UNKNOWN};
use crate::rdm::wire::parcel::Label;
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Default)]
pub struct Reports {
    /// `stats`: counts of the messages that this layer matches. `past_stats`: traffic of lanes that have ended, and of
    /// loopback copies.
    stats: Stats,
    past_stats: Stats,
    /// Turns poll the lanes. False while the endpoint is not enabled or is closed, and while the receive queue is full,
    /// because a lane can bring entries that no receive asked for.
    polls_lanes: bool,
    /// Entries of peers' RMA writes with remote data that arrived while the receive queue was full or lanes were not polled.
    /// Each entry has the source of the write.
    held_writes: VecDeque<(Completion, u64)>,
}

/// The origin that an entry reports for a message: its tag, and the sender's index or `UNSPEC`.
#[inline(always)]
pub fn origin(tag: Option<u64>, source: u64) -> Origin {
    Origin { tag: tag.unwrap_or(0), peer: if source >= UNKNOWN { UNSPEC } else { source } }
}

fn counter_of(bind: &Bindings, kind: u64) -> Option<&Arc<Counter>> {
    let c = &bind.counters;
    match kind {
        k if k & flags::SEND != 0 => c.send.as_ref(),
        k if k & flags::READ != 0 => c.read.as_ref(),
        _ => c.write.as_ref(),
    }
}

/// Flags of the entry of a receive.
fn kind_of(recv: &Recv, last: bool) -> u64 {
    flags::RECV | if recv.tagged { flags::TAGGED } else { flags::MSG } | if last { flags::MULTI_RECV } else { 0 }
}

impl Reports {
    #[inline(always)]
    pub fn stats(&mut self) -> &mut Stats {
        &mut self.stats
    }

    pub fn past_stats(&mut self) -> &mut Stats {
        &mut self.past_stats
    }

    /// The counts of this layer, and the traffic of `lanes` and of lanes that have ended.
    pub fn all_stats(&self, lanes: impl Iterator<Item = Stats>) -> Stats {
        let Stats { sends, recvs, errors, unexpected, .. } = self.stats;
        let mut all = self.past_stats;
        lanes.for_each(|lane| all.add(&lane));
        Stats { sends, recvs, errors, unexpected, ..all }
    }

    #[inline(always)]
    pub fn polls_lanes(&self) -> bool {
        self.polls_lanes
    }

    pub fn set_polls_lanes(&mut self, polls: bool) {
        self.polls_lanes = polls;
    }

    /// Completes an operation successfully.
    #[inline]
    pub fn succeed(&self, bind: &Bindings, completion: &CompletionInfo) {
        if completion.part {
            return bind.ends.put(completion.context, None);
        }
        if completion.wants_entry
            && let Some(q) = &bind.tx
        {
            q.push(Completion { context: completion.context, flags: completion.kind, len: completion.len, buf: completion.buf, data: 0 });
        }
        if let Some(counter) = counter_of(bind, completion.kind) {
            counter.add(1);
        }
    }

    /// Completes an operation with an error.
    #[cold]
    pub fn fail(&mut self, bind: &Bindings, completion: &CompletionInfo, error: Error) {
        self.stats.errors += 1;
        if completion.part {
            return bind.ends.put(completion.context, Some(error));
        }
        if let Some(counter) = counter_of(bind, completion.kind) {
            counter.add_error(1);
        }
        // A cancelled inject call has no entry.
        if completion.silent && error.code == Code::Canceled {
            return;
        }
        if let Some(q) = &bind.tx {
            let entry = Completion { context: completion.context, flags: completion.kind, len: 0, buf: completion.buf, data: 0 };
            q.fail_from(entry, Failure { error, olen: 0, block: 0 }, Origin { tag: completion.tag, peer: UNSPEC });
        }
    }

    /// Completes an operation with its result.
    pub fn finish(&mut self, bind: &Bindings, completion: &CompletionInfo, result: Result<()>) {
        match result {
            Ok(()) => self.succeed(bind, completion),
            Err(e) => self.fail(bind, completion, e),
        }
    }

    /// Completes a receive whose first `len` bytes are in place. `lost` further bytes of the message did not fit. `last`:
    /// the message is the last of a multi-receive buffer.
    pub fn received(&mut self, bind: &Bindings, recv: &Recv, last: bool, (len, lost): (usize, usize), label: &Label, source: u64) {
        self.stats.recvs += 1;
        let data = if label.data.is_some() { flags::REMOTE_CQ_DATA } else { 0 };
        let (kind, buf) = (kind_of(recv, last) | data, recv.first.addr());
        let entry = Completion { context: recv.context, flags: kind, len, buf, data: label.data.unwrap_or(0) };
        let origin = origin(label.tag, source);
        if let Some(counter) = &bind.counters.recv {
            if lost == 0 { counter.add(1) } else { counter.add_error(1) }
        }
        let Some(q) = &bind.rx else { return };
        // Empty messages use up nothing of a multi-receive buffer, so the messages of one buffer can fill the queue with
        // entries. A full queue stops the polling of lanes.
        self.polls_lanes &= recv.multi().is_none() || q.has_room();
        if lost > 0 {
            self.stats.errors += 1;
            let words = format!("the message has {} bytes, the receive only {}", len + lost, recv.room);
            q.fail_from(entry, Failure { error: Error::coded(errno::ETRUNC, Code::Trunc, words), olen: lost, block: 0 }, origin);
        } else if recv.wants_entry || last {
            q.push_from(entry, origin);
        }
    }

    /// Completes a receive with an error. `last` is as in `received`.
    #[cold]
    pub fn fail_recv(&mut self, bind: &Bindings, recv: &Recv, last: bool, error: Error, label: &Label, source: u64) {
        self.stats.errors += 1;
        let entry = Completion { context: recv.context, flags: kind_of(recv, last), len: 0, buf: recv.first.addr(), data: 0 };
        if let Some(counter) = &bind.counters.recv {
            counter.add_error(1);
        }
        if let Some(q) = &bind.rx {
            q.fail_from(entry, Failure { error, olen: 0, block: 0 }, origin(label.tag, source));
        }
    }

    /// Writes the entry of an RMA write with remote data into this endpoint's memory, or holds the entry until the queue
    /// has room.
    pub fn remote_data_arrived(&mut self, bind: &Bindings, entry: Completion, source: u64) {
        if let Some(counter) = &bind.counters.remote_write {
            counter.add(1);
        }
        let Some(q) = &bind.rx else { return };
        self.polls_lanes &= q.has_room();
        match self.polls_lanes {
            true => q.push_from(entry, origin(None, source)),
            false => self.held_writes.push_back((entry, source)),
        }
    }

    /// Writes the held entries as far as the receive queue has room. True if the queue still has room, so that lanes are
    /// polled again.
    pub fn resume_polling(&mut self, bind: &Bindings) -> bool {
        if let Some(q) = &bind.rx {
            while q.has_room()
                && let Some((entry, source)) = self.held_writes.pop_front()
            {
                q.push_from(entry, origin(None, source));
            }
            self.polls_lanes = q.has_room();
        }
        self.polls_lanes
    }
}
