// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of a connectionless endpoint: its peers, what is under way, receives and messages that wait for one another, and
//! the one way in which operations end.

use super::cq_reader::CqReader;
use super::wire::parcel::Label;
use crate::error::{Code, Error, Result, errno};
use crate::mr::RegionId;
use crate::prov::EventQueue;
use crate::prov::av::{Av, Name, UNSPEC};
use crate::prov::bind::{Bindings, Ends, Options, PART, SILENT};
use crate::prov::drivers::Drivers;
use crate::prov::flags;
use crate::prov::op::{Common, Iov};
use crate::prov::queue::{Completion, Failure, Origin, Queue};
use crate::prov::report::Stats;
use crate::rdm::matching::matcher::Matcher;
use crate::rdm::peers::budget::BudgetShare;
use crate::rdm::peers::link::Link;
use crate::rdm::peers::listen_schedule::ListenSchedule;
use crate::rdm::peers::outstanding::{FaultInjection, MultiRecv, Op, Ops, Recv, RevokedOffer};
use crate::rdm::peers::peer::{Acceptor, CompletionInfo, Connection, Id, Peer};
use crate::rdm::peers::poll_schedule::PollSchedule;
use crate::rdm::peers::unexpected::Unexpected;
use crate::sys::time;
use crate::sys::usercopy::UserCopy;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Sources above this are peers that the address vector does not have.
pub const UNKNOWN: u64 = 1 << 63;

pub type Space = Matcher<Recv, Unexpected>;

pub struct State {
    pub name: Option<Name>,
    pub bind: Bindings,
    pub options: Options,
    pub faults: Option<Box<FaultInjection>>,
    pub av: Option<Arc<Av>>,
    /// Of a connected endpoint, which has no address vector.
    pub connection: Option<Box<Connection>>,
    /// What the peers' indexes were when they were last looked up.
    pub av_changes: u64,
    pub closed: bool,
    pub directed: bool,
    pub deliver: bool,
    /// Enabled, not closed, and the queue of receives has room for what peers send unasked: lanes are looked at.
    pub polls_lanes: bool,
    /// Peers' writes with data for which that queue has no room.
    pub held_writes: VecDeque<(Completion, u64)>,
    /// Messages, receives, and of these the untagged ones that are posted, may take the fast path.
    pub fast_send: bool,
    pub fast_recv: bool,
    pub fast_untagged: bool,
    /// Receives without flags give entries.
    pub entry_by_default: bool,
    pub reader: CqReader,
    pub peers: Vec<Option<Box<Peer>>>,
    pub free_peers: Vec<Id>,
    /// Peers that are gone and have no index: their records go when there are `bury_at` of them.
    pub dead: HashSet<Id>,
    pub reap_at: usize,
    /// This very endpoint, if it was ever named.
    pub loopback: Option<Id>,
    /// Peers by where they listen and their nonces.
    pub by_address: HashMap<std::net::SocketAddr, Vec<Id>>,
    /// By index in the address vector: generation of the index, and the peer.
    pub routes: Vec<Option<(u32, Id)>>,
    pub tagged: Space,
    pub untagged: Space,
    /// Messages that a peek has claimed, by the context of the call.
    pub claimed: HashMap<usize, (u64, u64, bool, Unexpected)>,
    pub multi: Vec<Option<MultiRecv>>,
    /// Receives, tagged or not, and operations that were posted, but for sends of the fast path: what gives them their order.
    pub posts: u64,
    pub ops: Ops,
    /// Peers whose offers are to be read.
    pub reads: Vec<Id>,
    /// Peers that have something to send.
    pub busy: Vec<Id>,
    /// Peers whose calls are awaited.
    pub awaiting: Vec<Id>,
    /// Lanes that bring parcels.
    pub ready: PollSchedule,
    /// Lanes that are being connected.
    pub connecting: Vec<(Id, Arc<Link>)>,
    /// Lanes that are over, and cannot be closed yet.
    pub closing: Vec<Arc<Link>>,
    pub links: HashMap<usize, Id>,
    /// Lanes of callers that the address vector does not name, and what it was when they were counted.
    pub unlisted: usize,
    pub unlisted_counted_at: u64,
    pub next_link: usize,
    /// Lanes whose peers broke the rules.
    pub violations: Vec<(usize, Error)>,
    /// Regions of offers that are done.
    pub returned: Vec<(usize, RegionId)>,
    /// Those of them in which a peer may still be inside, as far as can be seen; and offers that wait for the same.
    pub pending_close: VecDeque<(usize, RegionId)>,
    pub revoked: VecDeque<RevokedOffer>,
    /// When they are tried again, and the pause after that.
    pub retry_at: u64,
    pub retry_pause: u64,
    pub acceptors: Vec<Acceptor>,
    /// Where the lanes' own results and events go.
    pub results: Arc<Queue>,
    /// Lists that the lanes have, and where their ends go.
    pub lists: usize,
    pub list_ends: Arc<Ends>,
    pub events: Arc<EventQueue>,
    pub drivers: Arc<Drivers>,
    pub user_copy: Arc<UserCopy>,
    /// Of all grants beyond the first.
    pub extra_grants: BudgetShare,
    /// Offers of all peers that were not told to be done.
    pub unanswered_offers: usize,
    /// Bytes of messages that wait though their lanes are over.
    pub ended_bytes: BudgetShare,
    pub earliest: u64,
    pub turns: u32,
    /// The last turn in which a lane filled a receive.
    pub last_fill_turn: u32,
    pub last_rare_poll: u64,
    pub rare_polls: u32,
    /// When the doors are looked at.
    pub listen_schedule: ListenSchedule,
    pub stats: Stats,
    pub past_stats: Stats,
    pub sleepers: u32,
}

impl State {
    pub fn peer(&mut self, id: Id) -> Option<&mut Peer> {
        self.peers.get_mut(id as usize)?.as_deref_mut()
    }

    /// Peers that operations may wait for: those with something to send, and those with whom a lane is still to come.
    pub fn active(&self) -> Vec<Id> {
        let connecting = self.connecting.iter().map(|(id, _)| *id);
        self.busy.iter().copied().chain(connecting).chain(self.awaiting.iter().copied()).collect()
    }

    /// Something is still to be sent of which the caller thinks that it was: injected messages, and that offers were taken.
    pub fn has_unsent_promises(&mut self) -> bool {
        self.ops.each().any(|(_, op)| matches!(op, Op::Offered { end, .. } | Op::Rma { end, .. } if end.silent))
            || self
                .active()
                .into_iter()
                .filter_map(|id| self.peers.get(id as usize)?.as_deref())
                .any(|peer| (!peer.control.is_empty() && peer.ready().is_some()) || peer.waiting.iter().any(|w| w.end.silent))
    }

    pub fn space(&mut self, tagged: bool) -> &mut Space {
        if tagged { &mut self.tagged } else { &mut self.untagged }
    }

    pub fn check_enabled(&self) -> Result<()> {
        match (self.closed, self.bind.enabled) {
            (true, _) => Err(self.shut_error()),
            (_, false) => Err(Error::new(errno::EOPBADSTATE, "ep: call ep_enable first")),
            _ => Ok(()),
        }
    }

    pub fn next_post(&mut self) -> u64 {
        self.posts += 1;
        self.posts
    }

    fn note_timeout(&mut self, relative: u64) -> u64 {
        let deadline = time::deadline(relative);
        self.note_deadline(deadline);
        deadline
    }

    /// Something waits that ends at this time; 0: at none.
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

    /// What tells of an operation of this side.
    pub fn completion_of(&mut self, c: &Common, kind: u64, local: &[Iov], len: usize, tag: u64) -> CompletionInfo {
        CompletionInfo {
            context: c.context,
            post: self.next_post(),
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

    #[inline]
    pub fn succeed(&mut self, end: &CompletionInfo) {
        if end.part {
            return self.bind.ends.put(end.context, None);
        }
        if end.wants_entry
            && let Some(q) = &self.bind.tx
        {
            q.push(Completion { context: end.context, flags: end.kind, len: end.len, buf: end.buf, data: 0 });
        }
        if let Some(counter) = self.counter_of(end.kind) {
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

    #[cold]
    pub fn fail(&mut self, end: &CompletionInfo, error: Error) {
        self.stats.errors += 1;
        if end.part {
            return self.bind.ends.put(end.context, Some(error));
        }
        if let Some(counter) = self.counter_of(end.kind) {
            counter.add_error(1);
        }
        if end.silent && error.code == Code::Canceled {
            return;
        }
        if let Some(q) = &self.bind.tx {
            let entry = Completion { context: end.context, flags: end.kind, len: 0, buf: end.buf, data: 0 };
            q.fail_from(entry, Failure { error, olen: 0, block: 0 }, Origin { tag: end.tag, peer: UNSPEC });
        }
    }

    pub fn end(&mut self, end: &CompletionInfo, result: Result<()>) {
        match result {
            Ok(()) => self.succeed(end),
            Err(e) => self.fail(end, e),
        }
    }

    /// What the caller knows of a source.
    pub fn origin(tag: Option<u64>, source: u64) -> Origin {
        Origin { tag: tag.unwrap_or(0), peer: if source >= UNKNOWN { UNSPEC } else { source } }
    }

    /// A receive ended: `len` bytes of a message are in place, and `lost` were too many.
    pub fn received(&mut self, recv: &Recv, len: usize, lost: usize, label: &Label, source: u64) {
        self.stats.recvs += 1;
        let kind = flags::RECV | if recv.tagged { flags::TAGGED } else { flags::MSG };
        let data = if label.data.is_some() { flags::REMOTE_CQ_DATA } else { 0 };
        let last = if self.finish_part(recv) { flags::MULTI_RECV } else { 0 };
        let entry =
            Completion { context: recv.context, flags: kind | data | last, len, buf: recv.first.addr(), data: label.data.unwrap_or(0) };
        let origin = State::origin(label.tag, source);
        if let Some(counter) = &self.bind.counters.recv {
            if lost == 0 { counter.add(1) } else { counter.add_error(1) }
        }
        if let Some(q) = &self.bind.rx {
            // One buffer takes any number of messages without bytes.
            self.polls_lanes &= recv.multi().is_none() || q.has_room();
            if lost > 0 {
                self.stats.errors += 1;
                let words = format!("the message has {} bytes, the receive only {}", len + lost, recv.room);
                q.fail_from(entry, Failure { error: Error::coded(errno::ETRUNC, Code::Trunc, words), olen: lost, block: 0 }, origin);
            } else if recv.wants_entry || last != 0 {
                q.push_from(entry, origin);
            }
        }
        self.end_if_last(recv);
    }

    /// A receive that will not be filled.
    #[cold]
    pub fn complete_failed_recv(&mut self, recv: &Recv, error: Error, label: &Label, source: u64) {
        self.stats.errors += 1;
        let kind = flags::RECV | if recv.tagged { flags::TAGGED } else { flags::MSG };
        let last = if self.finish_part(recv) { flags::MULTI_RECV } else { 0 };
        let entry = Completion { context: recv.context, flags: kind | last, len: 0, buf: recv.first.addr(), data: 0 };
        if let Some(counter) = &self.bind.counters.recv {
            counter.add_error(1);
        }
        if let Some(q) = &self.bind.rx {
            q.fail_from(entry, Failure { error, olen: 0, block: 0 }, State::origin(label.tag, source));
        }
        self.end_if_last(recv);
    }

    /// Wakes who sleeps on the endpoint, for there is something else to watch or to do.
    pub fn wake(&self) {
        if self.sleepers > 0 {
            self.bind.rouse();
        }
    }
}
