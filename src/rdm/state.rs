// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of a connectionless endpoint: its peers and lanes, receives and unexpected messages, operations under way; and the functions
//! by which every operation ends, with an entry in a queue or a counter.

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

/// Sources from here on stand for peers that the address vector does not name.
pub const UNKNOWN: u64 = 1 << 63;

/// The matcher of one kind of messages, tagged or untagged.
pub type Space = Matcher<Recv, Unexpected>;

/// All data of one endpoint. It is behind the endpoint's lock, and the rooms `connect` and `transfer` add its methods.
pub struct State {
    pub name: Option<Name>,
    pub bind: Bindings,
    pub options: Options,
    pub faults: Option<Box<FaultInjection>>,
    pub av: Option<Arc<Av>>,
    /// Present on an endpoint of type MSG, which has one peer and no address vector.
    pub connection: Option<Box<Connection>>,
    /// Change count of the address vector when the peers' indexes were last looked up.
    pub av_changes: u64,
    pub closed: bool,
    /// Receives may name a source (`GDRFAB_DIRECTED_RECV`); otherwise they take messages from any source.
    pub directed: bool,
    /// Sends complete on delivery unless they are injected (`GDRFAB_DELIVERY_COMPLETE` by default).
    pub deliver: bool,
    /// The endpoint is enabled and open, and the receive queue has room for entries that no receive asked for, so lanes are polled.
    pub polls_lanes: bool,
    /// Entries of peers' writes with data for which the receive queue had no room, with the peer's index.
    pub held_writes: VecDeque<(Completion, u64)>,
    /// The fast path may be taken: by sends, by receives, and by untagged receives.
    pub fast_send: bool,
    pub fast_recv: bool,
    pub fast_untagged: bool,
    /// A receive without flags writes an entry.
    pub entry_by_default: bool,
    /// The read of the program's queue that drives this endpoint at present, if any.
    pub reader: CqReader,
    /// Records of peers, by `Id`. `free_peers` are the unused ones.
    pub peers: Vec<Option<Box<Peer>>>,
    pub free_peers: Vec<Id>,
    /// Peers without lane and without index. Their records are freed once there are `reap_at` of them.
    pub dead: HashSet<Id>,
    pub reap_at: usize,
    /// The peer record of this endpoint itself, if its name was looked up.
    pub loopback: Option<Id>,
    /// Peers by the address where they listen. Several incarnations of an endpoint may share an address; the nonce in the name tells them
    /// apart.
    pub by_address: HashMap<std::net::SocketAddr, Vec<Id>>,
    /// By index of the address vector: the generation of the index, and the peer.
    pub routes: Vec<Option<(u32, Id)>>,
    /// Posted receives and unexpected messages, tagged and untagged.
    pub tagged: Space,
    pub untagged: Space,
    /// Messages claimed by a peek, by the context of that call: source, tag, whether tagged, and the message.
    pub claimed: HashMap<usize, (u64, u64, bool, Unexpected)>,
    /// Multi-receive buffers, as long as messages go to them.
    pub multi: Vec<Option<MultiRecv>>,
    /// Count of posted receives (tagged and untagged) and of posted operations other than sends of the fast path. It numbers them in the
    /// order of posting.
    pub posts: u64,
    /// Operations that a lane or a peer works on.
    pub ops: Ops,
    /// Peers that have offers to be read.
    pub reads: Vec<Id>,
    /// Peers that have something to send.
    pub busy: Vec<Id>,
    /// Peers that are dialed again after a pause, unless they call first.
    pub awaiting: Vec<Id>,
    /// Connected lanes.
    pub ready: PollSchedule,
    /// Lanes that are being connected.
    pub connecting: Vec<(Id, Arc<Link>)>,
    /// Lanes that are over but cannot be closed yet.
    pub closing: Vec<Arc<Link>>,
    /// The peer of each link, by the number of the link.
    pub links: HashMap<usize, Id>,
    /// `unlisted`: lanes of callers that the address vector does not name. `unlisted_counted_at`: change count of the address vector when
    /// they were last counted.
    pub unlisted: usize,
    pub unlisted_counted_at: u64,
    /// Number of the newest link.
    pub next_link: usize,
    /// Lanes whose peers broke the protocol, and how.
    pub violations: Vec<(usize, Error)>,
    /// Exposed regions, by lane, that the peer has finished with or never heard of. They are closed at the end of the turn.
    pub returned: Vec<(usize, RegionId)>,
    /// `pending_close`: exposed regions that could not be closed, because a peer may still be reading. `revoked`: offers that were taken
    /// back and wait for the same reason.
    pub pending_close: VecDeque<(usize, RegionId)>,
    pub revoked: VecDeque<RevokedOffer>,
    /// Time of the next attempt to close these regions, and the pause that led to it.
    pub retry_at: u64,
    pub retry_pause: u64,
    /// The listeners, one per lane.
    pub acceptors: Vec<Acceptor>,
    /// Queue for the results of the lanes' operations. Their events go to `events`.
    pub results: Arc<Queue>,
    /// `lists`: block lists that lanes are moving. `list_ends`: queue for their results.
    pub lists: usize,
    pub list_ends: Arc<Ends>,
    pub events: Arc<EventQueue>,
    pub drivers: Arc<Drivers>,
    pub user_copy: Arc<UserCopy>,
    /// This endpoint's part of the domain's grants beyond the first ones.
    pub extra_grants: BudgetShare,
    /// Offers of all peers to which no DONE was sent yet.
    pub unanswered_offers: usize,
    /// Bytes of unexpected messages whose senders are gone.
    pub ended_bytes: BudgetShare,
    /// The earliest deadline of anything outstanding; 0 if there is none.
    pub earliest: u64,
    /// Turns of progress so far; wraps around.
    pub turns: u32,
    /// The last turn in which any lane filled a receive.
    pub last_fill_turn: u32,
    /// Time of the last poll of rare matters, in ticks, and how many there were.
    pub last_rare_poll: u64,
    pub rare_polls: u32,
    /// Says in which turns the listeners are polled.
    pub listen_schedule: ListenSchedule,
    /// `stats` counts messages that are matched here, `past_stats` the traffic of lanes that are over and of loopback copies.
    pub stats: Stats,
    pub past_stats: Stats,
    /// Threads that sleep on the endpoint.
    pub sleepers: u32,
}

impl State {
    pub fn peer(&mut self, id: Id) -> Option<&mut Peer> {
        self.peers.get_mut(id as usize)?.as_deref_mut()
    }

    /// Peers that operations may be waiting for: peers with something to send, and peers whose lane is not connected yet.
    pub fn active(&self) -> Vec<Id> {
        let connecting = self.connecting.iter().map(|(id, _)| *id);
        self.busy.iter().copied().chain(connecting).chain(self.awaiting.iter().copied()).collect()
    }

    /// Something the program believes sent is still here: an injected message, or the confirmation that an offer was read.
    pub fn has_unsent_promises(&mut self) -> bool {
        self.ops.each().any(|(_, op)| matches!(op, Op::Offered { completion, .. } | Op::Rma { completion, .. } if completion.silent))
            || self
                .active()
                .into_iter()
                .filter_map(|id| self.peers.get(id as usize)?.as_deref())
                .any(|peer| (!peer.control.is_empty() && peer.ready().is_some()) || peer.waiting.iter().any(|w| w.completion.silent))
    }

    /// The matcher of tagged or of untagged messages.
    pub fn space(&mut self, tagged: bool) -> &mut Space {
        if tagged { &mut self.tagged } else { &mut self.untagged }
    }

    /// Fails unless operations can be posted.
    pub fn check_enabled(&self) -> Result<()> {
        match (self.closed, self.bind.enabled) {
            (true, _) => Err(self.shut_error()),
            (_, false) => Err(Error::new(errno::EOPBADSTATE, "ep: call ep_enable first")),
            _ => Ok(()),
        }
    }

    /// The next number in the order of posting.
    pub fn next_post(&mut self) -> u64 {
        self.posts += 1;
        self.posts
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

    /// Completes a receive with `len` bytes in place. `lost` further bytes did not fit.
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
            // A multi-receive buffer takes any number of empty messages, each with an entry: the queue may fill up.
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

    /// Completes a receive with an error.
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

    /// Wakes threads that sleep on the endpoint, because there is a new descriptor to watch or something to do.
    pub fn wake(&self) {
        if self.sleepers > 0 {
            self.bind.rouse();
        }
    }
}
