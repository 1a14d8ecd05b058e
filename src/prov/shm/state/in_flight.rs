// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations that wait for a report: this side's own operations, in its slots, and operations of the peer that this side carries
//! out.

use crate::error::Error;
use crate::hmem::Site;
use crate::prov::bind::Ending;
use crate::prov::list::List;
use crate::prov::op::{Dir, Iov, Pieces};
use crate::prov::shm::peer::import::Import;
use crate::prov::shm::peer::regions::RemoteRegion;
use crate::prov::shm::wire::layout::SLOTS;
use std::sync::Arc;

/// An operation that waits for the peer's report.
pub enum Flight {
    /// A staged write, or a send that completes on delivery.
    Ack { end: Ending, staged: Option<usize> },
    /// A rendezvous: the receiver fetches the bytes, or asks for fragments (`sent` counts their bytes). `_owned` holds the bytes of
    /// an inject call, or a copy of device memory, until they were fetched.
    Rendezvous { end: Ending, pieces: Pieces, site: Site, _owned: Option<Box<[u8]>>, sent: Option<usize> },
    /// A staged read or a fetching atomic: bytes arrive as ring messages. For device memory they gather in `bounce` first.
    Read { end: Ending, pieces: Pieces, want: usize, got: usize, bounce: Option<(Site, Box<[u8]>)>, atomic: bool },
    /// A shared copy whose last chunks the helper has not reported.
    Coop(Box<SharedCopy>),
}

impl Flight {
    pub fn ending(&self) -> &Ending {
        match self {
            Flight::Ack { end, .. } | Flight::Rendezvous { end, .. } | Flight::Read { end, .. } => end,
            Flight::Coop(shared) => &shared.end,
        }
    }

    fn is_read(&self) -> bool {
        matches!(self, Flight::Read { atomic: false, .. })
    }
}

/// This side's slots.
pub struct Slots {
    pub generation: [u16; SLOTS],
    /// As many as were ever in use at once; most connections need few.
    flights: Vec<Option<Flight>>,
    free: Vec<u16>,
    pub active: Vec<u16>,
    /// Count of active staged reads, whose bytes the target sends when it has room.
    reading: usize,
}

impl Slots {
    pub fn new() -> Slots {
        Slots { generation: [0; SLOTS], flights: Vec::new(), free: (0..SLOTS as u16).rev().collect(), active: Vec::new(), reading: 0 }
    }

    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a free slot with a new generation. The caller launches an operation in it or releases it.
    pub fn reserve(&mut self) -> Option<(u16, u16)> {
        let index = self.free.pop()?;
        let g = &mut self.generation[index as usize];
        *g = g.wrapping_add(1);
        Some((index, *g))
    }

    pub fn launch(&mut self, index: u16, flight: Flight) {
        let at = index as usize;
        if self.flights.len() <= at {
            self.flights.resize_with(at + 1, || None);
        }
        self.reading += usize::from(flight.is_read());
        self.flights[at] = Some(flight);
        self.active.push(index);
    }

    pub fn flight(&self, index: u16) -> Option<&Flight> {
        self.flights.get(index as usize)?.as_ref()
    }

    pub fn flight_mut(&mut self, index: u16) -> Option<&mut Flight> {
        self.flights.get_mut(index as usize)?.as_mut()
    }

    /// True if staged reads are in flight: messages and writes, which the target takes at once, wait for them.
    #[inline]
    pub fn is_reading(&self) -> bool {
        self.reading > 0
    }

    pub fn release(&mut self, index: u16) {
        self.free.push(index);
    }

    /// Takes an ended operation out of its slot and frees the slot.
    pub fn land(&mut self, index: u16) -> Option<Flight> {
        let flight = self.flights.get_mut(index as usize)?.take()?;
        self.active.retain(|i| *i != index);
        self.free.push(index);
        self.reading -= usize::from(flight.is_read());
        Some(flight)
    }
}

/// Target's side of a staged read: the bytes still to send.
pub struct ReadOut {
    pub slot: u16,
    pub generation: u16,
    pub key: u64,
    pub addr: u64,
    pub len: usize,
    pub done: usize,
    /// Offset of the bytes in the operation.
    pub offset: u64,
    /// The bytes, if they were read when the request came.
    pub ready: Option<Box<[u8]>>,
}

/// A shared copy whose initiator has done its part and whose helper has not reported yet.
pub struct SharedCopy {
    pub end: Ending,
    pub dir: Dir,
    pub data: Option<u64>,
    pub chunks: u32,
    /// First chunk of the helper's part.
    pub front: u32,
    /// The error that ended this side's part early. The helper's part is waited for all the same, because it touches the caller's
    /// buffer.
    pub failed: Option<Error>,
    pub what: CopyWork,
}

/// The operation or list that is copied.
pub enum CopyWork {
    One {
        region: RemoteRegion,
        /// The shared part of the local buffer, and its tail, which the initiator copies.
        local: Iov,
        tail: Iov,
        offset: u64,
        chunk: usize,
    },
    List(SharedListCopy),
}

pub struct SharedListCopy {
    pub list: List,
    pub regions: Vec<RemoteRegion>,
    /// The rows that the helper reads.
    pub _rows: Box<[Row]>,
    /// Rows in each chunk.
    pub per: usize,
    /// Regions that count writes.
    pub events: Vec<(u64, bool, usize)>,
}

/// A run of a list as a helper reads it out of the initiator's memory.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Row {
    /// Address in the initiator's process.
    pub buf: u64,
    /// Address in the region, as in an operation.
    pub addr: u64,
    pub len: u64,
    pub key: u64,
}

/// Target's side: a copy that the peer offered and this side helps with.
pub struct HelpedCopy {
    pub part: HelperPart,
    pub read: bool,
    pub what: OfferedWork,
}

/// The helper's part of the copy. Between turns no chunk of it is claimed, so the initiator can always go on.
pub struct HelperPart {
    pub slot: u16,
    pub generation: u16,
    pub chunks: u32,
    pub done: u32,
}

pub enum OfferedWork {
    One {
        key: u64,
        addr: u64,
        len: usize,
        chunk: usize,
        /// The initiator's buffer: its address there, and its mapping here with the address, if it is mapped.
        source: u64,
        mapped: Option<(Arc<Import>, usize)>,
    },
    /// Rows in the initiator's memory.
    List { table: u64, rows: usize, per: usize },
}

impl SharedCopy {
    /// Count of chunks that the helper has claimed and must report.
    pub fn owed(&self) -> u32 {
        self.chunks - self.front
    }
}
