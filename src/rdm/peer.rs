// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an endpoint knows of a peer once it was used: its name, the lane that leads to it, what waits for the lane, and the
//! grants of both sides.

use super::limits::{EAGER_MAX, FIRST_GRANT, GRANT_LIMIT, HEAD, MOST_GRANT, PATIENCE};
use super::matcher::At;
use super::mix::Mixer;
use super::wire::{Label, OVERHEAD, Words};
use crate::error::{Code, Error, Result, errno};
use crate::hmem::Site;
use crate::prov::atomic::AtomicOp;
use crate::prov::av::Name;
use crate::prov::bind::Options;
use crate::prov::event::{Event, EventKind};
use crate::prov::fault::Plan;
use crate::prov::op::{Dir, Pieces, RmaIov};
use crate::prov::{Endpoint, Lane, Listener};
use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The number of a peer at this endpoint.
pub type Id = u32;

/// An endpoint of a provider that leads to one peer.
pub struct Link {
    pub ep: Box<dyn Endpoint>,
    /// Of `ep`: its lane, found once.
    lane: Option<NonNull<dyn Lane>>,
    /// Which of the domain's lanes it is of.
    pub of: usize,
    /// What its events name.
    pub number: usize,
    /// Bytes up to which a message goes as one parcel.
    pub eager_max: usize,
    /// When its peer called, if the address vector did not name it; 0: it does, or this side called.
    pub unlisted: AtomicU64,
    /// Its place in the rota, and how many looks in a row were in vain.
    place: AtomicUsize,
    vain: AtomicU32,
    /// The endpoint's last turn in which it filled a receive.
    filled: AtomicU32,
}

// SAFETY: `lane` is a part of `ep`, which is both.
unsafe impl Send for Link {}
// SAFETY: as above.
unsafe impl Sync for Link {}

impl Link {
    pub fn new(ep: Box<dyn Endpoint>, of: usize, number: usize) -> Link {
        let eager_max = ep.lane().map_or(0, |lane| lane.max().saturating_sub(HEAD).min(EAGER_MAX));
        let lane = ep.lane().map(|lane| {
            // SAFETY: only the lifetime changes; it lies in what `ep` owns, and that stays as long as the link (`lane` below).
            NonNull::from(unsafe { std::mem::transmute::<&dyn Lane, &'static dyn Lane>(lane) })
        });
        Link {
            ep,
            lane,
            of,
            number,
            eager_max,
            unlisted: AtomicU64::new(0),
            place: AtomicUsize::new(0),
            vain: AtomicU32::new(0),
            filled: AtomicU32::new(u32::MAX / 2),
        }
    }

    /// The endpoint's options, but for who calls drivers: that is settled where a lane is opened.
    pub fn set_options(&self, options: Options) {
        self.ep.set_options(&mut |o| *o = Options { driver_calls: o.driver_calls, ..options });
    }

    pub fn unlisted_since(&self) -> u64 {
        // Relaxed: read and written under the endpoint's lock.
        self.unlisted.load(Ordering::Relaxed)
    }

    pub fn set_unlisted(&self, since: u64) {
        self.unlisted.store(since, Ordering::Relaxed);
    }

    // Relaxed: as above, also the next two.
    #[inline]
    pub fn place(&self) -> usize {
        self.place.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn set_place(&self, place: usize) {
        self.place.store(place, Ordering::Relaxed);
    }

    /// Turns since it filled a receive.
    #[inline(always)]
    pub fn since_filled(&self, turn: u32) -> u32 {
        turn.wrapping_sub(self.filled.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub fn set_filled(&self, turn: u32) {
        self.filled.store(turn, Ordering::Relaxed);
    }

    #[inline]
    pub fn set_vain(&self, looks: u32) {
        self.vain.store(looks, Ordering::Relaxed);
    }

    /// One more look was in vain: how many there were.
    #[inline]
    pub fn one_more_in_vain(&self) -> u32 {
        let looks = self.vain.load(Ordering::Relaxed).saturating_add(1);
        self.set_vain(looks);
        looks
    }

    #[inline(always)]
    pub fn lane(&self) -> Option<&dyn Lane> {
        // SAFETY: it lies in what `ep` owns, which is never replaced; borrowed no longer than the link.
        self.lane.map(|lane| unsafe { &*lane.as_ptr() })
    }
}

/// What listens for callers on one lane.
pub struct Greeter {
    pub of: usize,
    pub listener: Box<dyn Listener>,
}

/// The only peer of a connected endpoint.
pub const ONLY: Id = 0;

/// What a connected endpoint has besides.
pub struct Only {
    pub link: Arc<Link>,
    /// What the caller's events name.
    pub object: usize,
    pub context: usize,
    /// Connected by addresses of both ends.
    pub exchanged: bool,
    /// Why the connection is over.
    pub why: Option<Error>,
}

impl Only {
    pub fn event(&self, kind: EventKind) -> Event {
        Event::new(kind, self.object, self.context)
    }
}

pub enum Phase {
    /// No lane: nothing was sent yet, or the last lane is over.
    Fresh,
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
    Own,
}

/// How an operation of this side ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct End {
    pub context: usize,
    /// Its number, by which operations are in order.
    pub post: u64,
    /// Completion flags.
    pub kind: u64,
    pub len: usize,
    pub buf: usize,
    pub wanted: bool,
    /// Absolute; 0: none.
    pub deadline: u64,
    pub silent: bool,
    /// A part of a list.
    pub part: bool,
    pub tag: u64,
}

/// A message or an RMA operation that has not started.
pub struct Waiting {
    pub end: End,
    /// Until when a fault on demand keeps it; 0: none does.
    pub held: u64,
    pub flags: u64,
    pub pieces: Pieces,
    pub descs: Vec<u64>,
    pub site: Site,
    /// The bytes of an inject call.
    pub owned: Option<Box<[u8]>>,
    pub what: What,
}

pub enum What {
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

/// Bytes of unexpected messages, counted since the lane was connected.
#[derive(Default)]
pub struct Credit {
    /// What this side may send: the peer's grant, what was charged to it, what the peer has consumed of it.
    granted: u64,
    charged: u64,
    returned: u64,
    /// Turns in which something waited for more, since some came.
    waited: u32,
    /// What the peer may send: our grant, what came, what was consumed of it, and what the peer was told of.
    grant: u64,
    came: u64,
    consumed: u64,
    told: u64,
    /// What may come and be consumed at once before more than a subtraction is due, and how much that was when it was measured:
    /// what has passed since is not in `came` and `consumed` yet.
    passes: u64,
    measured: u64,
}

impl Credit {
    pub fn new(granted: u64) -> Credit {
        let mut credit = Credit { granted: granted.min(GRANT_LIMIT), grant: FIRST_GRANT, ..Credit::default() };
        credit.measure();
        credit
    }

    /// Counts what has passed.
    #[inline]
    fn settle(&mut self) {
        let passed = self.measured - self.passes;
        (self.came, self.consumed, self.measured) = (self.came + passed, self.consumed + passed, self.passes);
    }

    #[inline]
    fn measure(&mut self) {
        let (granted, untold) = (self.grant.saturating_sub(self.came - self.told), self.consumed - self.told);
        self.passes = granted.min((self.grant / 2).saturating_sub(untold + 1));
        self.measured = self.passes;
    }

    #[inline]
    pub fn may_send(&self, len: usize) -> bool {
        self.charged - self.returned + len as u64 + OVERHEAD <= self.granted
    }

    #[inline]
    pub fn sent(&mut self, len: usize) {
        self.charged += len as u64 + OVERHEAD;
    }

    /// There is none for a message; whether it is worth waiting for some.
    pub fn is_worth_waiting(&mut self) -> bool {
        self.waited += u32::from(self.waited < PATIENCE);
        self.waited < PATIENCE
    }

    /// The peer tells what it has consumed, and its grant.
    pub fn returned(&mut self, consumed: u64, grant: u64) -> Result<()> {
        if consumed < self.returned || consumed > self.charged || grant < self.granted {
            return Err(Error::coded(errno::EPROTO, Code::PeerBroke, "the peer takes back what it granted, or counts what was not sent"));
        }
        (self.returned, self.granted, self.waited) = (consumed, grant.min(GRANT_LIMIT), 0);
        Ok(())
    }

    #[inline]
    pub fn came(&mut self, len: usize) -> Result<()> {
        if !self.takes(len) {
            return Err(Error::coded(errno::EPROTO, Code::PeerBroke, "the peer sent more than it was granted"));
        }
        Ok(())
    }

    /// A message comes. False: it is more than was granted, and nothing was done.
    #[inline]
    pub fn takes(&mut self, len: usize) -> bool {
        self.settle();
        let came = self.came + len as u64 + OVERHEAD;
        if came - self.told > self.grant {
            return false;
        }
        self.came = came;
        self.measure();
        true
    }

    /// A message comes and is matched at once, of which nobody need be told: false if it is not that simple, and nothing was done.
    #[inline(always)]
    pub fn passes(&mut self, len: usize) -> bool {
        match self.passes.checked_sub(len as u64 + OVERHEAD) {
            Some(left) => {
                self.passes = left;
                true
            }
            None => false,
        }
    }

    /// A message was matched. Gives what to tell the peer, when it is worth it; `widen`: how much more may be granted.
    #[inline]
    pub fn consumed(&mut self, len: usize, widen: impl FnOnce(u64) -> bool) -> Option<Words> {
        self.settle();
        self.consumed += len as u64 + OVERHEAD;
        let words = if self.consumed - self.told < self.grant / 2 { None } else { Some(self.tell(widen)) };
        self.measure();
        words
    }

    #[cold]
    #[inline(never)]
    fn tell(&mut self, widen: impl FnOnce(u64) -> bool) -> Words {
        // It uses what it has.
        if self.grant < MOST_GRANT && widen(self.grant) {
            self.grant *= 2;
        }
        self.told = self.consumed;
        Words::credit(self.told, self.grant)
    }

    pub fn grant(&self) -> u64 {
        self.grant
    }

    /// What came and was not consumed.
    pub fn unread(&mut self) -> u64 {
        self.settle();
        self.came - self.consumed
    }
}

/// Where an offer of the peer's is, by the operation that reads it, or where it waits for a receive, unless that has claimed it.
#[derive(Clone, Copy)]
pub enum Place {
    Waits { tagged: bool, at: At },
    Read(u64),
}

pub struct Peer {
    /// As far as it is known: in full once a lane was connected.
    pub name: Name,
    /// The nonce of the name it was called by while its own was not known; 0: only its address.
    pub meant: u64,
    /// Its index in the address vector, or a number above all of them.
    pub source: u64,
    pub phase: Phase,
    pub waiting: VecDeque<Waiting>,
    /// Parcels without bytes, which go first.
    pub control: VecDeque<Words>,
    pub credit: Credit,
    /// Operations that the lane or the peer has.
    pub under_way: usize,
    /// Offers that were not taken yet.
    pub offers: usize,
    /// Regions of such offers.
    pub lent: usize,
    /// Its offers that it was not told to be done.
    pub offered: usize,
    /// Those of them that are not done, by its numbers.
    pub places: HashMap<u64, Place, Mixer>,
    /// Reads of its offers that are to be posted.
    pub reads: VecDeque<u64>,
    /// It is in the endpoint's list of those that have something to send.
    pub busy: bool,
    /// Called because a list waits, which goes in pieces if that comes to nothing.
    pub called_for_list: bool,
    /// Until when it is called; 0: it was not called yet.
    pub patience: u64,
    /// How often in a row it had no room for a caller.
    pub refused: u8,
    /// Why the local lane does not lead there, if it was tried; and the device's.
    pub not_local: Option<Box<str>>,
    pub no_device: Option<Box<str>>,
    /// Faults on demand of its lane.
    pub plan: Option<Box<Plan>>,
}

impl Peer {
    pub fn new(name: Name, source: u64) -> Peer {
        Peer {
            name,
            meant: 0,
            source,
            phase: Phase::Fresh,
            waiting: VecDeque::new(),
            control: VecDeque::new(),
            credit: Credit::default(),
            under_way: 0,
            offers: 0,
            lent: 0,
            offered: 0,
            places: HashMap::default(),
            reads: VecDeque::new(),
            busy: false,
            called_for_list: false,
            patience: 0,
            refused: 0,
            not_local: None,
            no_device: None,
            plan: None,
        }
    }

    pub fn place_of(&self, offer: u64) -> Option<Place> {
        self.places.get(&offer).copied()
    }

    pub fn set_place(&mut self, offer: u64, place: Place) {
        self.places.insert(offer, place);
    }

    /// An offer is done.
    pub fn forget_offer(&mut self, offer: u64) {
        self.places.remove(&offer);
    }

    /// Nothing of this side's waits for its lane.
    pub fn is_at_rest(&self) -> bool {
        self.under_way == 0 && self.waiting.is_empty() && self.control.is_empty()
    }

    /// Nothing of it is left but its record.
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Fresh) && self.waiting.is_empty() && self.control.is_empty() && self.under_way == 0 && !self.busy
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

#[cfg(test)]
mod tests;
