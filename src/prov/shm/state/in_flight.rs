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

/// An operation of this side that waits in a slot for the peer's report.
pub enum Flight {
    /// A staged write, or a send that completes on delivery.
    Ack { end: Ending, staged: Option<usize> },
    /// A rendezvous: the receiver fetches the bytes, or asks for fragments; `sent` then counts the bytes sent in
    /// fragments. `_owned` holds a copy of the bytes, of an inject call or of device memory, until the receiver has
    /// them.
    Rendezvous { end: Ending, pieces: Pieces, site: Site, _owned: Option<Box<[u8]>>, sent: Option<usize> },
    /// A staged read or a fetching atomic: the bytes arrive as ring messages. Bytes for device memory gather in
    /// `bounce` first.
    Read { end: Ending, pieces: Pieces, want: usize, got: usize, bounce: Option<(Site, Box<[u8]>)>, atomic: bool },
    /// A shared copy: this side has done its part, and the helper has not reported the last chunks.
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
    /// The operations, by slot index. The list grows as slots are used, because most connections need few.
    flights: Vec<Option<Flight>>,
    free: Vec<u16>,
    pub active: Vec<u16>,
    /// Count of active staged reads, whose bytes the target sends whenever its ring has room.
    reading: usize,
}

impl Slots {
    pub fn new() -> Slots {
        Slots { generation: [0; SLOTS], flights: Vec::new(), free: (0..SLOTS as u16).rev().collect(), active: Vec::new(), reading: 0 }
    }

    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a free slot and gives it a new generation. The caller launches an operation in the slot, or releases the
    /// slot.
    pub fn reserve(&mut self) -> Option<(u16, u16)> {
        let index = self.free.pop()?;
        let g = &mut self.generation[index as usize];
        *g = g.wrapping_add(1);
        Some((index, *g))
    }

    /// Puts an operation into a reserved slot.
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

    /// True if staged reads are in flight. The target takes messages and writes at once, so these wait until the reads
    /// are over.
    #[inline]
    pub fn is_reading(&self) -> bool {
        self.reading > 0
    }

    /// Frees a reserved slot into which no operation was put.
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
    /// The error that ended this side's part early. The operation still waits for the helper's part, because the helper
    /// touches the caller's buffer.
    pub failed: Option<Error>,
    pub what: CopyWork,
}

/// The operation or list that is copied.
pub enum CopyWork {
    One {
        region: RemoteRegion,
        /// The part of the local buffer that both sides copy.
        local: Iov,
        /// The end of the local buffer, which the initiator copies alone, last.
        tail: Iov,
        offset: u64,
        chunk: usize,
    },
    List(SharedListCopy),
}

/// A list that both sides copy.
pub struct SharedListCopy {
    pub list: List,
    pub regions: Vec<RemoteRegion>,
    /// The rows, kept here because the helper reads them out of this process's memory.
    pub _rows: Box<[Row]>,
    /// Rows in each chunk.
    pub per: usize,
    /// For each region: key, true if the region counts writes, and bytes.
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

/// The progress of the helper. Between turns the helper holds no claimed chunk, so the initiator never waits for a
/// helper that rests.
pub struct HelperPart {
    pub slot: u16,
    pub generation: u16,
    pub chunks: u32,
    pub done: u32,
}

/// The operation or list that the peer has offered.
pub enum OfferedWork {
    One {
        key: u64,
        addr: u64,
        len: usize,
        chunk: usize,
        /// The address of the initiator's buffer in the initiator's process.
        source: u64,
        /// The mapping of the initiator's buffer in this process and the buffer's address there, if the buffer is
        /// mapped.
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
