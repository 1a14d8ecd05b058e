// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a connection that is a lane keeps: registered places of parcels, operations that wait for their turn or for the peer's
//! word, and what the peer's keys name.

use crate::error::{Error, Result};
use crate::mr::Access;
use crate::prov::bind::Ending;
use crate::prov::op::{Dir, Iov, RmaIov};
use crate::prov::verbs::memory::bounce::Bounce;
use crate::prov::verbs::memory::registered::{Buffer, Registered};
use crate::prov::verbs::queue::work::NicAtomic;
use crate::prov::verbs::sys::abi::ibv_sge;
use crate::prov::verbs::wire::credit::{Class, Credit, FIRST, Fetches, RECEIVES};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Bytes of a place, header included.
const PLACE: usize = 4096;
pub const HEADER: usize = 8;
/// Bytes that a parcel may have behind its header.
pub const MAX_BYTES: usize = PLACE - HEADER;
/// Words of a parcel that travels inside its work request.
pub const INLINE_WORDS: usize = 32;
/// Places of parcels that the device has not sent yet, at first and at most, and those of them that are not the caller's.
const FIRST_SENDS: usize = 4;
const SENDS: usize = 16;
const OWN_SENDS: usize = 2;
/// Operations that may wait for their turn, and those that may wait for the peer's word.
pub const MAX_JOBS: usize = 64;
pub const MAX_ACKS: usize = 32;
/// Answers that wait, of a peer that keeps to what it may ask.
pub const MAX_ANSWERS: usize = 4 * RECEIVES as usize;
/// Keys of the peer's whose meaning is kept, at most.
const TOLD: usize = 4096;

/// First byte of a header; then the number of words, two bytes of 0, and what `Credit::send` gave.
pub mod kind {
    /// The caller's.
    pub const PARCEL: u8 = 1;
    /// Nothing but the header.
    pub const CREDIT: u8 = 2;
    /// What memory does a key name: which piece of the operation asks, key.
    pub const ASK: u8 = 3;
    /// That piece, status, the device's key, what to add to addresses, base, length, rights.
    pub const TOLD: u8 = 4;
    /// A key names nothing any more: key.
    pub const GONE: u8 = 5;
    /// A write with data has come before this: length, data.
    pub const WRITTEN: u8 = 6;
    /// Says that it was seen, and so all writes before it: number.
    pub const SYNC: u8 = 7;
    /// Number, operation, address, key; then the operands.
    pub const ATOMIC: u8 = 8;
    /// Of SYNC or ATOMIC: number, status; then the old values.
    pub const DONE: u8 = 9;
    /// Writes to what a key names came before this, which counts them: key.
    pub const COUNT: u8 = 10;
    /// Words of the service's about rails and keys (`service::kind`).
    pub const RAIL: u8 = 11;
}

/// What a key of the peer's names.
#[derive(Clone, Copy)]
pub struct PeerKey {
    pub rkey: u32,
    /// From the peer's addresses to the device's.
    pub shift: u64,
    pub base: u64,
    pub len: u64,
    pub access: Access,
    /// Writes to it are counted.
    pub counts: bool,
}

impl PeerKey {
    /// Memory under the device's own names, of which the device alone knows more.
    pub fn direct(rkey: u32) -> PeerKey {
        PeerKey { rkey, shift: 0, base: 0, len: u64::MAX, access: Access::all(), counts: false }
    }
}

/// An RMA operation, as far as it has come.
pub struct LaneRma {
    pub dir: Dir,
    pub pieces: Vec<ibv_sge>,
    /// What has to stay on this side until the end: a bounce buffer, or registrations for this operation.
    pub hold: Option<Box<Bounce>>,
    pub inline: bool,
    /// It is an atomic operation of the card's.
    pub card: Option<NicAtomic>,
    pub remote: Vec<RmaIov>,
    /// What the first so many of `remote` name.
    pub keys: Vec<PeerKey>,
    /// The keys are the device's own: nobody is asked.
    pub direct: bool,
    /// The peer was asked what the next of `remote` names.
    pub asked: bool,
    /// Its answer, if the operation may not go there.
    pub refused: Option<Error>,
    pub total: usize,
    pub posted: usize,
    pub all_posted: bool,
    /// Pieces that were counted at the peer, or need not be.
    pub counted: usize,
    /// It is under way over several rails, by this number; 0: it is not.
    pub stripe: u64,
    pub data: Option<u64>,
    /// Its end waits until the peer has seen it.
    pub deliver: bool,
    pub how: u8,
    pub end: Ending,
}

impl LaneRma {
    /// One that goes nowhere yet.
    pub fn new(dir: Dir, end: Ending) -> LaneRma {
        LaneRma {
            dir,
            pieces: Vec::new(),
            hold: None,
            inline: false,
            card: None,
            remote: Vec::new(),
            keys: Vec::new(),
            direct: false,
            asked: false,
            refused: None,
            total: 0,
            posted: 0,
            all_posted: false,
            counted: 0,
            stripe: 0,
            data: None,
            deliver: false,
            how: 0,
            end,
        }
    }

    /// The peer is to hear of it in parcels of its own.
    pub fn must_notify(&self) -> bool {
        self.data.is_some() || (self.dir == Dir::Write && self.keys.iter().any(|told| told.counts))
    }
}

pub struct LaneAtomic {
    pub words: [u64; 3],
    pub operands: Box<[u8]>,
    pub old: Iov,
    pub end: Ending,
}

pub enum LaneJob {
    Rma(Box<LaneRma>),
    Atomic(LaneAtomic),
}

impl LaneJob {
    pub fn ending(&self) -> &Ending {
        match self {
            LaneJob::Rma(m) => &m.end,
            LaneJob::Atomic(a) => &a.end,
        }
    }

    /// Nothing of it has gone to the device or to the peer.
    pub fn is_fresh(&self) -> bool {
        match self {
            LaneJob::Rma(m) => m.posted == 0 && !m.all_posted && !m.asked && m.stripe == 0,
            LaneJob::Atomic(_) => true,
        }
    }

    /// The device has, or had, some of it.
    pub fn has_begun(&self) -> bool {
        matches!(self, LaneJob::Rma(m) if m.posted > 0 || m.all_posted)
    }
}

/// What waits for the peer's word.
pub struct PendingAck {
    pub end: Ending,
    /// Where the old values go.
    pub old: Iov,
    pub atomic: bool,
}

pub struct LaneMessage {
    /// The peer asked for it.
    pub is_answer: bool,
    pub kind: u8,
    pub words: Vec<u64>,
    pub bytes: Box<[u8]>,
}

/// Registered places, which grow.
#[derive(Default)]
struct Slots {
    areas: Vec<Buffer>,
    /// Address and key of each.
    at: Vec<(usize, u32)>,
}

impl Slots {
    fn grow(&mut self, memory: &Registered, by: usize) -> Result<()> {
        let area = memory.buffer(by * PLACE)?;
        self.at.extend((0..by).map(|i| (area.address() + i * PLACE, area.lkey())));
        self.areas.push(area);
        Ok(())
    }

    /// Address and key of a place; of one that there is not, none that the device would take.
    fn get(&self, place: u32) -> (usize, u32) {
        self.at.get(place as usize).copied().unwrap_or_default()
    }
}

pub struct LaneQueues {
    receives: Slots,
    sends: Slots,
    /// Of the places to send from: those that are free, and those that the device has, in their order.
    free: Vec<u32>,
    busy: VecDeque<u32>,
    pub memory: Arc<Registered>,
    pub credit: Credit,
    /// Places that the device has filled, with how many bytes.
    pub inbox: VecDeque<(u32, usize)>,
    /// Some have come.
    pub has_received: bool,
    /// Answers that wait for room; the caller's parcels wait behind them.
    pub outbox: VecDeque<LaneMessage>,
    /// How many of these are answers.
    pub answers_waiting: usize,
    pub jobs: VecDeque<LaneJob>,
    peer_keys: HashMap<u64, PeerKey>,
    /// Keys of this side that the peer may have kept.
    pub shared_keys: HashSet<u64>,
    pub acks: HashMap<u64, PendingAck>,
    /// Those of them that are atomics, which RMA does not overtake.
    pub atomics: usize,
    pub last_ack: u64,
    pub fetches: Fetches,
}

impl LaneQueues {
    pub fn new(memory: &Arc<Registered>) -> Result<LaneQueues> {
        let mut parcels = LaneQueues {
            receives: Slots::default(),
            sends: Slots::default(),
            free: Vec::new(),
            busy: VecDeque::new(),
            memory: memory.clone(),
            credit: Credit::default(),
            inbox: VecDeque::new(),
            has_received: false,
            outbox: VecDeque::new(),
            answers_waiting: 0,
            jobs: VecDeque::new(),
            peer_keys: HashMap::new(),
            shared_keys: HashSet::new(),
            acks: HashMap::new(),
            atomics: 0,
            last_ack: 0,
            fetches: Fetches::default(),
        };
        parcels.more_receives(FIRST)?;
        parcels.more_sends(FIRST_SENDS)?;
        Ok(parcels)
    }

    /// Makes places for so many receives more.
    pub fn more_receives(&mut self, by: u32) -> Result<()> {
        self.receives.grow(&self.memory, by as usize)
    }

    fn more_sends(&mut self, by: usize) -> Result<()> {
        let have = self.sends.at.len() as u32;
        self.sends.grow(&self.memory, by)?;
        self.free.extend(have..have + by as u32);
        Ok(())
    }

    /// Places of receives that there are.
    pub fn receives(&self) -> u32 {
        self.receives.at.len() as u32
    }

    /// A whole place, for a receive.
    pub fn receive(&self, place: u32) -> ibv_sge {
        let (addr, lkey) = self.receives.get(place);
        ibv_sge { addr: addr as u64, length: PLACE as u32, lkey }
    }

    /// What a receive has brought: header and the rest.
    pub fn bytes(&self, place: u32, len: usize) -> &[u8] {
        match self.receives.get(place) {
            (0, _) => &[],
            // SAFETY: a place within `areas`; the device has filled it, and does not have it again before `lane_turn` has handed the
            // parcel out.
            (at, _) => unsafe { std::slice::from_raw_parts(at as *const u8, len.min(PLACE)) },
        }
    }

    /// Where a parcel is written that has a receive at the peer: `small`, or a place of its own with the device's key of it.
    pub fn room(&mut self, class: Class, small: Option<&mut [u64; INLINE_WORDS]>) -> Option<(usize, u32)> {
        if !self.credit.may_send(class) {
            return None;
        }
        if let Some(small) = small {
            return Some((small.as_mut_ptr() as usize, 0));
        }
        let kept = if class == Class::Caller { OWN_SENDS } else { 0 };
        let have = self.sends.at.len();
        if self.free.len() <= kept && have < SENDS {
            // Without more, those that there are have to do.
            _ = self.more_sends(have).inspect_err(|e| crate::log!(Debug, "places of parcels: {e}"));
        }
        if self.free.len() <= kept {
            return None;
        }
        let place = self.free.pop()?;
        self.busy.push_back(place);
        Some(self.sends.get(place))
    }

    /// Writes a parcel to where `room` said; gives what the device sends.
    pub fn write(&mut self, (start, lkey): (usize, u32), kind: u8, words: &[u64], bytes: &[Iov]) -> ibv_sge {
        let header = u64::from(kind) | (words.len() as u64) << 8 | u64::from(self.credit.send()) << 32;
        let mut at = start;
        for word in std::iter::once(&header).chain(words) {
            // SAFETY: `room` gave the caller's own words, or a place of `sends` that the device is through with; `put_parcel` has
            // checked that all fits.
            unsafe { (at as *mut u64).write(word.to_le()) };
            at += 8;
        }
        for piece in bytes {
            // SAFETY: as above, of the caller's bytes, which are readable (`Iov::new`).
            unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), at as *mut u8, piece.len()) };
            at += piece.len();
        }
        ibv_sge { addr: start as u64, length: (at - start) as u32, lkey }
    }

    /// The device has sent the oldest that has a place.
    pub fn sent(&mut self) {
        self.free.extend(self.busy.pop_front());
    }

    pub fn known_key(&self, key: u64) -> Option<PeerKey> {
        self.peer_keys.get(&key).copied()
    }

    pub fn learn_key(&mut self, key: u64, told: PeerKey) {
        if self.peer_keys.len() >= TOLD {
            self.peer_keys.clear();
        }
        self.peer_keys.insert(key, told);
    }

    pub fn forget_key(&mut self, key: u64) {
        self.peer_keys.remove(&key);
    }

    /// Keeps it until the answer comes; gives the number that the answer names.
    pub fn add_ack(&mut self, ack: PendingAck) -> u64 {
        self.last_ack += 1;
        self.acks.insert(self.last_ack, ack);
        self.last_ack
    }
}
