// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a connection that is a lane keeps: registered places of parcels, operations that wait for their turn or for the peer's
//! word, and what the peer's keys name.

use super::abi::ibv_sge;
use super::bounce::Bounce;
use super::credit::{Class, Credit, Fetches, RECEIVES};
use super::memory::{Buffer, Registered};
use crate::error::{Error, Result};
use crate::mr::Access;
use crate::prov::bind::Ending;
use crate::prov::op::{Dir, Iov, RmaIov};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Bytes of a place, header included.
const PLACE: usize = 4096;
pub const HEADER: usize = 8;
/// Bytes that a parcel may have behind its header.
pub const MOST: usize = PLACE - HEADER;
/// Words of a parcel that travels inside its work request.
pub const SMALL: usize = 32;
/// Places of parcels that the device has not sent yet, and those of them that are not the caller's.
const SENDS: u32 = 16;
const OWN_SENDS: u32 = 4;
/// Operations that may wait for their turn, and those that may wait for the peer's word.
pub const JOBS: usize = 64;
pub const ACKS: usize = 32;
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
}

/// What a key of the peer's names.
#[derive(Clone, Copy)]
pub struct Told {
    pub rkey: u32,
    /// From the peer's addresses to the device's.
    pub shift: u64,
    pub base: u64,
    pub len: u64,
    pub access: Access,
    /// Writes to it are counted.
    pub counts: bool,
}

impl Told {
    /// Memory under the device's own names, of which the device alone knows more.
    pub fn direct(rkey: u32) -> Told {
        Told { rkey, shift: 0, base: 0, len: u64::MAX, access: Access::all(), counts: false }
    }
}

/// An RMA operation, as far as it has come.
pub struct Move {
    pub dir: Dir,
    pub pieces: Vec<ibv_sge>,
    /// What has to stay on this side until the end: a bounce buffer, or registrations for this operation.
    pub hold: Option<Box<Bounce>>,
    pub inline: bool,
    pub remote: Vec<RmaIov>,
    /// What the first so many of `remote` name.
    pub told: Vec<Told>,
    /// The keys are the device's own: nobody is asked.
    pub direct: bool,
    /// The peer was asked what the next of `remote` names.
    pub asked: bool,
    /// Its answer, if the operation may not go there.
    pub refused: Option<Error>,
    pub total: usize,
    pub begun: usize,
    pub over: bool,
    /// Pieces that were counted at the peer, or need not be.
    pub counted: usize,
    pub data: Option<u64>,
    /// Its end waits until the peer has seen it.
    pub deliver: bool,
    pub how: u8,
    pub end: Ending,
}

pub struct AtomicJob {
    pub words: [u64; 3],
    pub operands: Box<[u8]>,
    pub old: Iov,
    pub end: Ending,
}

pub enum Job {
    Move(Box<Move>),
    Atomic(AtomicJob),
}

impl Job {
    pub fn ending(&self) -> &Ending {
        match self {
            Job::Move(m) => &m.end,
            Job::Atomic(a) => &a.end,
        }
    }

    /// Nothing of it has gone to the device or to the peer.
    pub fn is_fresh(&self) -> bool {
        match self {
            Job::Move(m) => m.begun == 0 && !m.over && !m.asked,
            Job::Atomic(_) => true,
        }
    }
}

/// What waits for the peer's word.
pub struct Ack {
    pub end: Ending,
    /// Where the old values go.
    pub old: Iov,
    pub atomic: bool,
}

pub struct Own {
    pub kind: u8,
    pub words: Vec<u64>,
    pub bytes: Box<[u8]>,
}

pub struct Parcels {
    area: Buffer,
    pub memory: Arc<Registered>,
    pub credit: Credit,
    /// Places that the device has filled, with how many bytes.
    pub inbox: VecDeque<(u32, usize)>,
    /// Answers that wait for room; the caller's parcels wait behind them.
    pub outbox: VecDeque<Own>,
    posted: u32,
    done: u32,
    pub jobs: VecDeque<Job>,
    told: HashMap<u64, Told>,
    /// Keys of this side that the peer may have kept.
    pub shown: HashSet<u64>,
    pub acks: HashMap<u64, Ack>,
    /// Those of them that are atomics, which RMA does not overtake.
    pub atomics: usize,
    pub last_ack: u64,
    pub fetches: Fetches,
}

impl Parcels {
    pub fn new(memory: &Arc<Registered>) -> Result<Parcels> {
        Ok(Parcels {
            area: memory.buffer((RECEIVES + SENDS) as usize * PLACE)?,
            memory: memory.clone(),
            credit: Credit::default(),
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            posted: 0,
            done: 0,
            jobs: VecDeque::new(),
            told: HashMap::new(),
            shown: HashSet::new(),
            acks: HashMap::new(),
            atomics: 0,
            last_ack: 0,
            fetches: Fetches::default(),
        })
    }

    fn address(&self, place: u32) -> usize {
        self.area.address() + (place % (RECEIVES + SENDS)) as usize * PLACE
    }

    pub fn piece(&self, place: u32, len: usize) -> ibv_sge {
        ibv_sge { addr: self.address(place) as u64, length: len as u32, lkey: self.area.lkey() }
    }

    /// A whole place, for a receive.
    pub fn receive(&self, place: u32) -> ibv_sge {
        self.piece(place, PLACE)
    }

    /// What a receive has brought: header and the rest.
    pub fn bytes(&self, place: u32, len: usize) -> &[u8] {
        // SAFETY: `address` gives a place within `area`; the device has filled it, and does not have it again before `lane_turn`
        // has handed the parcel out.
        unsafe { std::slice::from_raw_parts(self.address(place) as *const u8, len.min(PLACE)) }
    }

    /// Whether a parcel has a receive at the peer, and its place if it needs one.
    pub fn has_room(&self, class: Class, placed: bool) -> bool {
        let kept = if class == Class::Caller { OWN_SENDS } else { 0 };
        (!placed || self.posted.wrapping_sub(self.done) < SENDS - kept) && self.credit.may_send(class)
    }

    /// Writes a parcel down that has room, into `small` or a place of its own; gives what the device sends.
    pub fn write(&mut self, kind: u8, words: &[u64], bytes: &[Iov], small: Option<&mut [u64; SMALL]>) -> ibv_sge {
        let header = u64::from(kind) | (words.len() as u64) << 8 | u64::from(self.credit.send()) << 32;
        let place = RECEIVES + self.posted % SENDS;
        let start = match small {
            Some(small) => small.as_mut_ptr() as usize,
            None => {
                self.posted = self.posted.wrapping_add(1);
                self.address(place)
            }
        };
        let mut at = start;
        for word in std::iter::once(&header).chain(words) {
            // SAFETY: `small`, or a place within `area` that the device is through with (`has_room`); `put_parcel` has checked that
            // all fits.
            unsafe { (at as *mut u64).write(word.to_le()) };
            at += 8;
        }
        for piece in bytes {
            // SAFETY: as above, of the caller's bytes, which are readable (`Iov::new`).
            unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), at as *mut u8, piece.len()) };
            at += piece.len();
        }
        ibv_sge { addr: start as u64, length: (at - start) as u32, lkey: self.area.lkey() }
    }

    /// The device has sent the oldest.
    pub fn sent(&mut self) {
        self.done = self.done.wrapping_add(1);
    }

    pub fn known(&self, key: u64) -> Option<Told> {
        self.told.get(&key).copied()
    }

    pub fn learn(&mut self, key: u64, told: Told) {
        if self.told.len() >= TOLD {
            self.told.clear();
        }
        self.told.insert(key, told);
    }

    pub fn forget(&mut self, key: u64) {
        self.told.remove(&key);
    }

    /// Keeps it until the answer comes; gives the number that the answer names.
    pub fn awaits(&mut self, ack: Ack) -> u64 {
        self.last_ack += 1;
        self.acks.insert(self.last_ack, ack);
        self.last_ack
    }
}
