// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The record of one peer: its name, the lane that leads to it, operations that wait for the lane, and offers of both sides.

use super::credit::Credit;
use super::link::Link;
use crate::error::Error;
use crate::hmem::Site;
use crate::prov::atomic::AtomicOp;
use crate::prov::av::Name;
use crate::prov::event::{Event, EventKind};
use crate::prov::fault::Plan;
use crate::prov::op::{Dir, Pieces, RmaIov};
use crate::rdm::matching::matcher::EntryId;
use crate::rdm::matching::tag_hash::TagHashBuilder;
use crate::rdm::wire::parcel::{Label, ParcelWords};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Number of a peer's record at this endpoint.
pub type Id = u32;

/// The first source number of peers that the address vector does not name. Smaller numbers are indexes of the vector.
pub const UNKNOWN: u64 = 1 << 63;

/// The `Id` of a connected endpoint's only peer.
pub const ONLY_PEER: Id = 0;

/// Data that only a connected endpoint (type MSG) has.
pub struct Connection {
    pub link: Arc<Link>,
    /// Identifies the program's endpoint object in its events.
    pub object: usize,
    pub context: usize,
    /// The endpoint connects by `connect_addr`: each side was given the other's address.
    pub exchanged: bool,
    /// The reason for which the connection ended.
    pub ended_by: Option<Error>,
}

impl Connection {
    pub fn event(&self, kind: EventKind) -> Event {
        Event::new(kind, self.object, self.context)
    }
}

/// The state of the connection to a peer.
pub enum Phase {
    /// No lane: nothing was sent yet, or the last lane is over.
    Unconnected,
    Dialing(Arc<Link>),
    /// The peer dialed this side, and this side accepted; the peer's acknowledgement has not arrived.
    Accepting(Arc<Link>),
    /// Connected endpoint only: both ends dial each other by addresses that were exchanged.
    Exchanged(Arc<Link>),
    /// The next dial waits until `until`, an absolute time in nanoseconds: both sides dialed and the peer's call is the
    /// one that counts, or the peer could not take the call at this moment, for lack of room for example.
    Awaiting {
        until: u64,
    },
    Ready(Arc<Link>),
    /// The peer is this endpoint.
    Loopback,
}

/// The completion of an operation that this side posted: the fields of its entry, and the ways in which its end is
/// reported.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompletionInfo {
    pub context: usize,
    /// Number in the order of posting.
    pub post: u64,
    /// Flags of the completion entry.
    pub kind: u64,
    pub len: usize,
    pub buf: usize,
    pub wants_entry: bool,
    /// Absolute time; 0 means none.
    pub deadline: u64,
    /// The operation was injected or does not report success. If it is cancelled, it writes no entry.
    pub silent: bool,
    /// The operation is a part of a block list, and reports to the list instead of a queue.
    pub part: bool,
    pub tag: u64,
}

/// An operation that waits in its peer's queue and has not started.
pub struct PendingOp {
    pub completion: CompletionInfo,
    /// Time until which fault injection delays the operation; 0 if the operation is not delayed.
    pub delayed_until: u64,
    pub flags: u64,
    pub pieces: Pieces,
    pub descs: Vec<u64>,
    pub site: Site,
    /// The bytes of an inject call, which the library owns.
    pub owned: Option<Box<[u8]>>,
    pub kind: PendingKind,
}

/// The arguments that only one kind of operation has.
pub enum PendingKind {
    /// `offered`: the number of the offer and the pieces that the peer reads, once the memory is exposed to the peer. The
    /// offer may still wait for room in the lane.
    Message {
        label: Label,
        offered: Option<(u64, Vec<RmaIov>)>,
    },
    Rma {
        dir: Dir,
        remote: Vec<RmaIov>,
        data: u64,
    },
    /// The operands are in `PendingOp::pieces`.
    Atomic(Box<AtomicOp>),
}

/// State of an offer that the peer made.
#[derive(Clone, Copy)]
pub enum OfferState {
    /// The message waits in the matcher at `at`, unless a peek has claimed it.
    Unmatched { tagged: bool, at: EntryId },
    /// The operation of this number (`OutstandingOp::Reading`) reads the message.
    Reading(u64),
}

/// The record of one peer.
pub struct Peer {
    /// The name, as far as it is known. The name is complete once a lane was connected.
    pub name: Name,
    /// The nonce that the peer must have while `name` has none. The address vector named it after this record was made
    /// from the bare address. 0 if any endpoint at the address will do.
    pub expected_nonce: u64,
    /// Index in the address vector; a number from `UNKNOWN` on if the vector does not name the peer.
    pub source: u64,
    pub phase: Phase,
    /// Operations that have not started, in the order of posting.
    pub waiting: VecDeque<PendingOp>,
    /// Parcels that carry no message: answers, credit, withdrawals. These parcels are sent before anything in `waiting`.
    pub control: VecDeque<ParcelWords>,
    pub credit: Credit,
    /// Number of operations that the lane or the peer works on.
    pub in_flight: usize,
    /// Number of offers to the peer that it has not answered.
    pub open_offers: usize,
    /// Number of regions that these offers expose.
    pub exposed: usize,
    /// Number of the peer's offers to which this side has not sent DONE yet.
    pub unanswered_offers: usize,
    /// Offers of the peer that this side has not read completely, by the numbers that the peer gave them.
    pub peer_offers: HashMap<u64, OfferState, TagHashBuilder>,
    /// Operations that read the peer's offers and still have to be posted on the lane.
    pub reads: VecDeque<u64>,
    /// The peer is in `Peers::busy`.
    pub busy: bool,
    /// This side dialed the peer because a block list waits. If the dial fails, the list is moved piece by piece.
    pub dialed_for_list: bool,
    /// Time at which this side gives up dialing the peer; 0 before the first dial.
    pub connect_until: u64,
    /// Number of times in a row that the peer had no room for a caller, at most 6.
    pub refusals: u8,
    /// The reasons why the shm lane and the lane of an RDMA device do not lead to the peer, if they were tried.
    pub why_not_local: Option<Box<str>>,
    pub why_no_device: Option<Box<str>>,
    /// Fault injection of the peer's lane.
    pub fault_plan: Option<Box<Plan>>,
}

impl Peer {
    pub fn new(name: Name, source: u64) -> Peer {
        Peer {
            name,
            expected_nonce: 0,
            source,
            phase: Phase::Unconnected,
            waiting: VecDeque::new(),
            control: VecDeque::new(),
            credit: Credit::default(),
            in_flight: 0,
            open_offers: 0,
            exposed: 0,
            unanswered_offers: 0,
            peer_offers: HashMap::default(),
            reads: VecDeque::new(),
            busy: false,
            dialed_for_list: false,
            connect_until: 0,
            refusals: 0,
            why_not_local: None,
            why_no_device: None,
            fault_plan: None,
        }
    }

    pub fn offer_state(&self, offer: u64) -> Option<OfferState> {
        self.peer_offers.get(&offer).copied()
    }

    pub fn set_offer_state(&mut self, offer: u64, state: OfferState) {
        self.peer_offers.insert(offer, state);
    }

    /// Removes an offer that was read or taken back.
    pub fn forget_offer(&mut self, offer: u64) {
        self.peer_offers.remove(&offer);
    }

    /// True if no operation of this side waits for the lane or is under way on it.
    pub fn is_at_rest(&self) -> bool {
        self.in_flight == 0 && self.waiting.is_empty() && self.control.is_empty()
    }

    /// True if nothing but the record is left of the peer.
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Unconnected) && self.waiting.is_empty() && self.control.is_empty() && self.in_flight == 0 && !self.busy
    }

    pub fn link(&self) -> Option<&Arc<Link>> {
        match &self.phase {
            Phase::Ready(link) | Phase::Dialing(link) | Phase::Accepting(link) | Phase::Exchanged(link) => Some(link),
            _ => None,
        }
    }

    #[inline]
    pub fn ready(&self) -> Option<&Arc<Link>> {
        match &self.phase {
            Phase::Ready(link) => Some(link),
            _ => None,
        }
    }
}
