// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A live connection: the transmitting end of the ring, operations that wait for their turn, and
//! operations that wait for the peer's report in a slot.

use super::device::Devices;
use super::layout::SLOTS;
use super::layout::SegmentRef;
use super::link::Link;
use super::msg::{RendezvousIn, SendJob};
use super::remote::Remotes;
use super::rma::RmaJob;
use super::staged::ReadOut;
use super::state::Ending;
use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::Site;
use crate::hmem::copier::Copier;
use crate::mr::Paths;
use crate::prov::op::Pieces;
use crate::sync::gate::Initiator;
use crate::sync::ring::{Broken, Header, Producer};
use crate::sys::time;
use std::collections::VecDeque;
use std::sync::Arc;

/// Kinds of ring messages.
pub mod kind {
    pub const SEND: u8 = 1;
    pub const RENDEZVOUS: u8 = 2;
    pub const FRAGMENT: u8 = 3;
    pub const NOTIFY: u8 = 4;
    pub const COOP: u8 = 5;
    pub const STAGED_WRITE: u8 = 6;
    pub const STAGED_READ: u8 = 7;
    pub const STAGED_DATA: u8 = 8;
}

/// Flags of ring messages.
pub mod mark {
    /// Remote CQ data travels with it.
    pub const DATA: u8 = 1;
    /// The sender wants a report in a slot.
    pub const ACK: u8 = 2;
    /// The last part of a staged write.
    pub const LAST: u8 = 4;
    /// The region counts writes.
    pub const EVENT: u8 = 8;
    /// Cooperation on a read instead of a write.
    pub const READ: u8 = 16;
    /// The offered buffer is device memory.
    pub const DEVICE: u8 = 32;
}

/// Bytes of a staged fragment.
pub const FRAGMENT_BYTES: usize = config::RING_MOST;

/// The receiver cannot fetch the message itself and asks for fragments; not an error code.
pub const STATUS_SEND_FRAGMENTS: u16 = 0x100;

/// A report's status for an error, and back.
pub fn status_of(code: Code) -> u16 {
    code.0 as u16
}

pub fn error_of(status: u16) -> Result<()> {
    let (code, errno) = match status {
        0 => return Ok(()),
        1 => (Code::Key, errno::EKEYREJECTED),
        2 => (Code::Bounds, errno::ERANGE),
        3 => (Code::Access, errno::EACCES),
        4 => (Code::Path, errno::EOPNOTSUPP),
        5 => (Code::Fault, errno::EFAULT),
        8 => (Code::Deadline, errno::ETIMEDOUT),
        9 => (Code::Canceled, errno::ECANCELED),
        _ => (Code::PeerBroke, errno::EPROTO),
    };
    Err(Error::coded(errno, code, format!("the peer reports: {}", Code::words(code.0))))
}

pub fn broken(_: Broken) -> Error {
    protocol("the peer wrote nonsense into the shared ring or a slot")
}

/// The peer broke the protocol.
pub fn protocol(words: &'static str) -> Error {
    Error::coded(errno::EPROTO, Code::PeerBroke, words)
}

/// Packs a slot's index and generation into a ring word.
pub fn slot_word(index: u16, generation: u16) -> u64 {
    u64::from(index) | u64::from(generation) << 16
}

pub fn unpack_slot(word: u64) -> Result<(u16, u16)> {
    let index = word as u16;
    if word >> 32 != 0 || index as usize >= SLOTS {
        return Err(protocol("the peer named a slot that does not exist"));
    }
    Ok((index, (word >> 16) as u16))
}

/// An operation that waits for the peer's report.
pub enum Flight {
    /// A staged write, or a send that completes on delivery.
    Ack { end: Ending, staged: Option<usize> },
    /// A rendezvous: the receiver fetches, or asks for fragments (`sent` counts them).
    /// `_owned` keeps the bytes of an inject call, or a copy of device memory, until they were fetched.
    Rendezvous { end: Ending, pieces: Pieces, site: Site, _owned: Option<Box<[u8]>>, sent: Option<usize> },
    /// A staged read: bytes arrive as ring messages.
    /// For device memory they gather in `bounce` first.
    Read { end: Ending, pieces: Pieces, want: usize, got: usize, bounce: Option<(Site, Box<[u8]>)> },
    /// A shared copy whose last chunks the helper still has.
    Coop(super::coop::Shared),
}

impl Flight {
    pub fn ending(&self) -> &Ending {
        match self {
            Flight::Ack { end, .. } | Flight::Rendezvous { end, .. } | Flight::Read { end, .. } => end,
            Flight::Coop(shared) => &shared.end,
        }
    }
}

/// Our slots.
pub struct Slots {
    pub generation: [u16; SLOTS],
    pub flights: Vec<Option<Flight>>,
    free: Vec<u16>,
    pub active: Vec<u16>,
}

impl Slots {
    fn new() -> Slots {
        Slots {
            generation: [0; SLOTS],
            flights: (0..SLOTS).map(|_| None).collect(),
            free: (0..SLOTS as u16).rev().collect(),
            active: Vec::new(),
        }
    }

    /// A fresh slot with its new generation; put a flight into it or give it back.
    pub fn take(&mut self) -> Option<(u16, u16)> {
        let index = self.free.pop()?;
        let g = &mut self.generation[index as usize];
        *g = g.wrapping_add(1);
        Some((index, *g))
    }

    pub fn launch(&mut self, index: u16, flight: Flight) {
        self.flights[index as usize] = Some(flight);
        self.active.push(index);
    }

    pub fn give_back(&mut self, index: u16) {
        self.free.push(index);
    }

    /// Takes a flight that is over out of its slot.
    pub fn land(&mut self, index: u16) -> Option<Flight> {
        let flight = self.flights[index as usize].take()?;
        self.active.retain(|i| *i != index);
        self.free.push(index);
        Some(flight)
    }
}

/// An operation that has not started, or that streams fragments at the head of the queue.
pub enum Job {
    Rma(Box<RmaJob>),
    Send(Box<SendJob>),
}

impl Job {
    /// Whether a fault on demand keeps it from starting.
    pub fn is_held(&self) -> bool {
        let until = match self {
            Job::Rma(job) => job.held,
            Job::Send(job) => job.held,
        };
        until != 0 && time::now_ns() < until
    }

    pub fn ending(&self) -> &Ending {
        match self {
            Job::Rma(job) => &job.end,
            Job::Send(job) => &job.end,
        }
    }
}

/// What trying to start an operation came to.
pub enum Step {
    /// It is over.
    Done(Result<()>),
    /// It waits in a slot for the peer.
    Flying,
    /// Not now: try again after progress.
    Blocked,
}

pub struct Conn {
    pub link: Arc<Link>,
    pub tx: Producer<SegmentRef>,
    pub gate: Initiator,
    /// Address of our busy word.
    pub busy: usize,
    /// Before the mappings, which must outlive the copies.
    pub devices: Devices,
    pub remotes: Remotes,
    pub slots: Slots,
    pub backlog: VecDeque<Job>,
    /// Staged operations in flight: copies of our own must not overtake them.
    pub staged: u32,
    /// Shared copies in flight: nothing may overtake them.
    pub coop: u32,
    /// 1: operations whose entries come in the order of posting are under way.
    pub late: u32,
    pub sent: u64,
    pub credited: u64,
    /// Per slot of the peer: generation and first error of a staged write in progress.
    pub staged_in: Vec<(u16, u16)>,
    pub reads_out: VecDeque<ReadOut>,
    /// The peer's copy that this side shares.
    pub helping: Option<super::coop::Helping>,
    pub rendezvous_in: Vec<Option<RendezvousIn>>,
    /// When the peer was last known to live, in ticks.
    pub seen_alive: u64,
    /// Bytes of a fragment: `FRAGMENT_BYTES`, or less by a fault on demand.
    pub fragment: usize,
}

impl Conn {
    pub fn new(link: Arc<Link>, allowed: Paths, short: Option<usize>) -> Conn {
        Conn {
            tx: Producer::new(link.peer.clone(), config::get().area_max),
            gate: Initiator::new(link.fences),
            busy: std::ptr::from_ref(link.mine.busy()) as usize,
            devices: Devices::default(),
            remotes: Remotes::new(allowed),
            slots: Slots::new(),
            backlog: VecDeque::new(),
            staged: 0,
            coop: 0,
            late: 0,
            sent: 0,
            credited: 0,
            staged_in: vec![(0, 0); SLOTS],
            reads_out: VecDeque::new(),
            helping: None,
            rendezvous_in: (0..SLOTS).map(|_| None).collect(),
            seen_alive: time::ticks(),
            fragment: short.map_or(FRAGMENT_BYTES, |n| n.min(FRAGMENT_BYTES)),
            link,
        }
    }

    /// Device memory is copied by another process, and no driver is called in this one.
    pub fn copy_elsewhere(&mut self, copier: &'static Copier) {
        self.devices.copier = Some(copier);
        self.remotes.imports.copier = Some(copier);
    }

    /// Whether the drivers of devices may be called here.
    pub fn may_call_drivers(&self) -> bool {
        self.devices.copier.is_none()
    }

    /// Whether a copy of our own may run now without overtaking anything.
    #[inline(always)]
    pub fn is_clear(&self) -> bool {
        self.backlog.len() as u64 | u64::from(self.staged) | u64::from(self.coop) | u64::from(self.late) | self.devices.len() as u64 == 0
    }

    pub fn outstanding(&self) -> usize {
        self.backlog.len() + self.slots.active.len() + self.devices.len()
    }

    pub fn room(&mut self, header: Header) -> Result<bool> {
        self.tx.room(header.lines()).map_err(broken)
    }

    /// Writes a message without bytes, whose room was checked.
    pub fn put_words(&mut self, kind: u8, flags: u8, words: &[u64]) {
        let header = Header { kind, flags, words: words.len() as u8, bytes: 0 };
        // SAFETY: there are no pieces.
        unsafe { self.tx.write(header, words, &[]) };
        self.link.nudge();
    }
}
