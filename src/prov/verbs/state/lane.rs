// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queues of a lane: registered slots for parcels, operations that wait for their turn or for an answer of the peer, and the peer's
//! keys as far as this side knows them. The kinds of parcels (`kind`) are defined here, too.

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

/// Bytes of a slot, the header included.
const SLOT_BYTES: usize = 4096;
/// Bytes of a parcel's header.
pub const HEADER: usize = 8;
/// Most bytes of a parcel after its header.
pub const MAX_BYTES: usize = SLOT_BYTES - HEADER;
/// Words of the largest parcel that can travel inside its work request.
pub const INLINE_WORDS: usize = 32;
/// Send slots at first.
const FIRST_SENDS: usize = 4;
/// Send slots at most.
const SENDS: usize = 16;
/// Send slots that are reserved for the lane's own parcels.
const OWN_SENDS: usize = 2;
/// Most operations that wait for their turn.
pub const MAX_JOBS: usize = 64;
/// Most operations that wait for an answer of the peer.
pub const MAX_ACKS: usize = 32;
/// Most answers that wait to be sent. A peer that follows the protocol never causes more.
pub const MAX_ANSWERS: usize = 4 * RECEIVES as usize;
/// Most keys of the peer that are stored.
const MAX_PEER_KEYS: usize = 4096;

/// The kind of a parcel, in the first byte of its header. The header continues with the number of words (1 byte), two
/// bytes of 0, and the count of `Credit::send` (4 bytes).
pub mod kind {
    /// A parcel of the caller.
    pub const PARCEL: u8 = 1;
    /// A header alone, which carries credits.
    pub const CREDIT: u8 = 2;
    /// Asks which memory a key names: index of the operation's piece, key.
    pub const ASK: u8 = 3;
    /// Answers ASK: index, status, the device's key, offset from the peer's addresses to the device's, base, length, rights.
    pub const TOLD: u8 = 4;
    /// A key names nothing any more: key.
    pub const GONE: u8 = 5;
    /// A write with data has arrived before this parcel: length, data.
    pub const WRITTEN: u8 = 6;
    /// Asks the peer to confirm that all earlier writes have arrived: number.
    pub const SYNC: u8 = 7;
    /// An atomic operation: number, operation, address, key; then the operands.
    pub const ATOMIC: u8 = 8;
    /// Answers SYNC or ATOMIC: number, status; then the old values.
    pub const DONE: u8 = 9;
    /// A write to a region that counts writes has arrived before this parcel: key.
    pub const COUNT: u8 = 10;
    /// A message about rails and keys (`queue::service::kind`).
    pub const RAIL: u8 = 11;
}

/// The memory that a key of the peer names.
#[derive(Clone, Copy)]
pub struct PeerKey {
    pub rkey: u32,
    /// The offset that turns an address of the peer into the address of its device.
    pub shift: u64,
    pub base: u64,
    pub len: u64,
    pub access: Access,
    /// The region counts writes.
    pub counts: bool,
}

impl PeerKey {
    /// For a key of the peer's device: that device alone knows and checks the bounds.
    pub fn direct(rkey: u32) -> PeerKey {
        PeerKey { rkey, shift: 0, base: 0, len: u64::MAX, access: Access::all(), counts: false }
    }
}

/// An RMA operation and its progress.
pub struct LaneRma {
    pub dir: Dir,
    /// The scatter/gather entries of the local memory.
    pub pieces: Vec<ibv_sge>,
    /// Kept until the operation ends: a bounce buffer, or registrations for this operation.
    pub hold: Option<Box<Bounce>>,
    /// The bytes travel inside the work request.
    pub inline: bool,
    /// The operation is an atomic that the peer's card executes.
    pub card: Option<NicAtomic>,
    /// The remote pieces, with the keys that the caller gave.
    pub remote: Vec<RmaIov>,
    /// The meaning of the first keys of `remote`, as far as it is known.
    pub keys: Vec<PeerKey>,
    /// The keys are the device's own; the peer is not asked.
    pub direct: bool,
    /// The peer was asked about the next key of `remote`.
    pub asked: bool,
    /// The peer's answer, if the operation is not permitted there.
    pub refused: Option<Error>,
    /// The bytes of the operation.
    pub total: usize,
    /// Bytes for which work requests were posted.
    pub posted: usize,
    pub all_posted: bool,
    /// Remote pieces for which COUNT was sent or is not needed.
    pub counted: usize,
    /// The number of the striped operation that carries this operation; 0: none.
    pub stripe: u64,
    /// The data of a write with data, until the peer has been told.
    pub data: Option<u64>,
    /// The operation ends only when the peer has confirmed it.
    pub deliver: bool,
    /// The path to the local memory (`mr::path_of`).
    pub path_bits: u8,
    pub end: Ending,
}

impl LaneRma {
    /// An operation without pieces.
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
            path_bits: 0,
            end,
        }
    }

    /// True if the peer must be told of the write by a parcel.
    pub fn must_notify(&self) -> bool {
        self.data.is_some() || (self.dir == Dir::Write && self.keys.iter().any(|told| told.counts))
    }
}

pub struct LaneAtomic {
    /// The operation (`Atomic::encode`), its address and its key.
    pub words: [u64; 3],
    pub operands: Box<[u8]>,
    /// The destination of the old values.
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

    /// True if nothing of the operation has gone to the device or to the peer.
    pub fn is_fresh(&self) -> bool {
        match self {
            LaneJob::Rma(m) => m.posted == 0 && !m.all_posted && !m.asked && m.stripe == 0,
            LaneJob::Atomic(_) => true,
        }
    }

    /// True if the device has, or had, a part of the operation.
    pub fn has_begun(&self) -> bool {
        matches!(self, LaneJob::Rma(m) if m.posted > 0 || m.all_posted)
    }
}

/// An operation that waits for the peer's answer.
pub struct PendingAck {
    pub end: Ending,
    /// The destination of the old values.
    pub old: Iov,
    pub atomic: bool,
}

pub struct LaneMessage {
    /// The message answers a question of the peer.
    pub is_answer: bool,
    pub kind: u8,
    pub words: Vec<u64>,
    pub bytes: Box<[u8]>,
}

/// A growing set of registered slots.
#[derive(Default)]
struct Slots {
    areas: Vec<Buffer>,
    /// Address and local key of each slot.
    at: Vec<(usize, u32)>,
}

impl Slots {
    fn grow(&mut self, memory: &Registered, by: usize) -> Result<()> {
        let area = memory.buffer(by * SLOT_BYTES)?;
        self.at.extend((0..by).map(|i| (area.address() + i * SLOT_BYTES, area.lkey())));
        self.areas.push(area);
        Ok(())
    }

    /// Address and local key of a slot; zeros, which the device refuses, if there is no such slot.
    fn get(&self, place: u32) -> (usize, u32) {
        self.at.get(place as usize).copied().unwrap_or_default()
    }
}

pub struct LaneQueues {
    receives: Slots,
    sends: Slots,
    /// Free send slots.
    free: Vec<u32>,
    /// Send slots that the device holds, the oldest first.
    busy: VecDeque<u32>,
    pub memory: Arc<Registered>,
    pub credit: Credit,
    /// Receive slots that the device has filled, with the number of bytes.
    pub inbox: VecDeque<(u32, usize)>,
    /// A parcel has arrived on this connection.
    pub has_received: bool,
    /// Messages of the lane that wait for room; the caller's parcels wait behind them.
    pub outbox: VecDeque<LaneMessage>,
    /// The number of answers in `outbox`.
    pub answers_waiting: usize,
    pub jobs: VecDeque<LaneJob>,
    peer_keys: HashMap<u64, PeerKey>,
    /// Keys of this side that the peer may have stored.
    pub shared_keys: HashSet<u64>,
    pub acks: HashMap<u64, PendingAck>,
    /// The number of atomics in `acks`, which RMA must not overtake.
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

    /// Adds `by` receive slots.
    pub fn more_receives(&mut self, by: u32) -> Result<()> {
        self.receives.grow(&self.memory, by as usize)
    }

    fn more_sends(&mut self, by: usize) -> Result<()> {
        let have = self.sends.at.len() as u32;
        self.sends.grow(&self.memory, by)?;
        self.free.extend(have..have + by as u32);
        Ok(())
    }

    /// The number of receive slots.
    pub fn receives(&self) -> u32 {
        self.receives.at.len() as u32
    }

    /// The scatter/gather entry of a whole slot, for a receive.
    pub fn receive(&self, place: u32) -> ibv_sge {
        let (addr, lkey) = self.receives.get(place);
        ibv_sge { addr: addr as u64, length: SLOT_BYTES as u32, lkey }
    }

    /// The bytes of a received parcel, header included.
    pub fn bytes(&self, place: u32, len: usize) -> &[u8] {
        match self.receives.get(place) {
            (0, _) => &[],
            // SAFETY: the slot lies within `areas`. The device has filled it, and gets it again only after `lane_turn` has handed the
            // parcel out.
            (at, _) => unsafe { std::slice::from_raw_parts(at as *const u8, len.min(SLOT_BYTES)) },
        }
    }

    /// The place to write a parcel: the buffer `small`, or a send slot with its local key. `None`: the peer has no
    /// receive for the parcel, or no slot is free.
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
            // Without memory for more slots, the lane goes on with the existing ones.
            _ = self.more_sends(have).inspect_err(|e| crate::log!(Debug, "registering more buffers of a lane: {e}"));
        }
        if self.free.len() <= kept {
            return None;
        }
        let place = self.free.pop()?;
        self.busy.push_back(place);
        Some(self.sends.get(place))
    }

    /// Writes a parcel to the place that `room` gave; returns the scatter/gather entry to send.
    pub fn write(&mut self, (start, lkey): (usize, u32), kind: u8, words: &[u64], bytes: &[Iov]) -> ibv_sge {
        let header = u64::from(kind) | (words.len() as u64) << 8 | u64::from(self.credit.send()) << 32;
        let mut at = start;
        for word in std::iter::once(&header).chain(words) {
            // SAFETY: `room` gave the caller's buffer, or a send slot that the device does not hold; `send_parcel` has checked that
            // everything fits.
            unsafe { (at as *mut u64).write(word.to_le()) };
            at += 8;
        }
        for piece in bytes {
            // SAFETY: the destination is part of that place, and the caller's bytes are readable (the promise of `Iov::new`).
            unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), at as *mut u8, piece.len()) };
            at += piece.len();
        }
        ibv_sge { addr: start as u64, length: (at - start) as u32, lkey }
    }

    /// The device has sent the oldest parcel that occupies a slot.
    pub fn sent(&mut self) {
        self.free.extend(self.busy.pop_front());
    }

    pub fn known_key(&self, key: u64) -> Option<PeerKey> {
        self.peer_keys.get(&key).copied()
    }

    pub fn learn_key(&mut self, key: u64, told: PeerKey) {
        if self.peer_keys.len() >= MAX_PEER_KEYS {
            self.peer_keys.clear();
        }
        self.peer_keys.insert(key, told);
    }

    pub fn forget_key(&mut self, key: u64) {
        self.peer_keys.remove(&key);
    }

    /// Stores an operation until the peer's answer comes; returns the number that the answer will name.
    pub fn add_ack(&mut self, ack: PendingAck) -> u64 {
        self.last_ack += 1;
        self.acks.insert(self.last_ack, ack);
        self.last_ack
    }
}
