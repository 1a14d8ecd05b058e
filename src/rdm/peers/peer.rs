// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an endpoint knows of a peer once it was used: its name, the lane that leads to it, what waits for the lane, and the
//! grants of both sides.

use super::credit::Credit;
use super::link::Link;
use crate::error::Error;
use crate::hmem::Site;
use crate::prov::Listener;
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

/// The number of a peer at this endpoint.
pub type Id = u32;

/// What listens for callers on one lane.
pub struct Acceptor {
    pub lane_index: usize,
    pub listener: Box<dyn Listener>,
}

/// The only peer of a connected endpoint.
pub const ONLY_PEER: Id = 0;

/// What a connected endpoint has besides.
pub struct Connection {
    pub link: Arc<Link>,
    /// What the caller's events name.
    pub object: usize,
    pub context: usize,
    /// Connected by addresses of both ends.
    pub exchanged: bool,
    /// Why the connection is over.
    pub why: Option<Error>,
}

impl Connection {
    pub fn event(&self, kind: EventKind) -> Event {
        Event::new(kind, self.object, self.context)
    }
}

pub enum Phase {
    /// No lane: nothing was sent yet, or the last lane is over.
    Unconnected,
    Dialing(Arc<Link>),
    /// It has called, and has not said yet that it knows that it was heard.
    Accepting(Arc<Link>),
    /// Of a connected endpoint: both ends call each other by addresses.
    Exchanged(Arc<Link>),
    /// Both have called, and the other call counts; or the peer has no room for a caller now.
    Awaiting {
        until: u64,
    },
    Ready(Arc<Link>),
    /// This very endpoint.
    Loopback,
}

/// How an operation of this side ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompletionInfo {
    pub context: usize,
    /// Its number, by which operations are in order.
    pub post: u64,
    /// Completion flags.
    pub kind: u64,
    pub len: usize,
    pub buf: usize,
    pub wants_entry: bool,
    /// Absolute; 0: none.
    pub deadline: u64,
    pub silent: bool,
    /// A part of a list.
    pub part: bool,
    pub tag: u64,
}

/// A message or an RMA operation that has not started.
pub struct PendingOp {
    pub end: CompletionInfo,
    /// Until when a fault on demand keeps it; 0: none does.
    pub delayed_until: u64,
    pub flags: u64,
    pub pieces: Pieces,
    pub descs: Vec<u64>,
    pub site: Site,
    /// The bytes of an inject call.
    pub owned: Option<Box<[u8]>>,
    pub kind: PendingKind,
}

pub enum PendingKind {
    /// `offered`: under this number its regions are lent already.
    Message {
        label: Label,
        offered: Option<(u64, Vec<RmaIov>)>,
    },
    Rma {
        dir: Dir,
        remote: Vec<RmaIov>,
        data: u64,
    },
    /// Its operands are the pieces.
    Atomic(Box<AtomicOp>),
}

/// Where an offer of the peer's is, by the operation that reads it, or where it waits for a receive, unless that has claimed it.
#[derive(Clone, Copy)]
pub enum OfferState {
    Unmatched { tagged: bool, at: EntryId },
    Reading(u64),
}

pub struct Peer {
    /// As far as it is known: in full once a lane was connected.
    pub name: Name,
    /// The nonce of the name it was called by while its own was not known; 0: only its address.
    pub expected_nonce: u64,
    /// Its index in the address vector, or a number above all of them.
    pub source: u64,
    pub phase: Phase,
    pub waiting: VecDeque<PendingOp>,
    /// Parcels without bytes, which go first.
    pub control: VecDeque<ParcelWords>,
    pub credit: Credit,
    /// Operations that the lane or the peer has.
    pub in_flight: usize,
    /// Offers that were not taken yet.
    pub open_offers: usize,
    /// Regions of such offers.
    pub exposed: usize,
    /// Its offers that it was not told to be done.
    pub unanswered_offers: usize,
    /// Those of them that are not done, by its numbers.
    pub peer_offers: HashMap<u64, OfferState, TagHashBuilder>,
    /// Reads of its offers that are to be posted.
    pub reads: VecDeque<u64>,
    /// It is in the endpoint's list of those that have something to send.
    pub busy: bool,
    /// Called because a list waits, which goes in pieces if that comes to nothing.
    pub dialed_for_list: bool,
    /// Until when it is called; 0: it was not called yet.
    pub connect_until: u64,
    /// How often in a row it had no room for a caller.
    pub refusals: u8,
    /// Why the local lane does not lead there, if it was tried; and the device's.
    pub why_not_local: Option<Box<str>>,
    pub why_no_device: Option<Box<str>>,
    /// Faults on demand of its lane.
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

    pub fn set_offer_state(&mut self, offer: u64, place: OfferState) {
        self.peer_offers.insert(offer, place);
    }

    /// An offer is done.
    pub fn forget_offer(&mut self, offer: u64) {
        self.peer_offers.remove(&offer);
    }

    /// Nothing of this side's waits for its lane.
    pub fn is_at_rest(&self) -> bool {
        self.in_flight == 0 && self.waiting.is_empty() && self.control.is_empty()
    }

    /// Nothing of it is left but its record.
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
