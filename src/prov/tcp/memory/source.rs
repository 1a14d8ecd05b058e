// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory from which a body is sent (`BodySource`), and the pieces of this memory that one system call gathers
//! (`GatherCall`).

use super::mr::Region;
use super::staging::{DeviceMemory, DeviceSource, StagingLanes};
use crate::error::Result;
use crate::fallible::zeroed;
use crate::hmem::Site;
use crate::mr::piece::{self, PieceEnds, Span, Walk, walk};
use crate::prov::op::{Iov, Pieces, parts};
use std::sync::Arc;

/// Contiguous bytes of one region: `len` bytes from byte `skip` of the region on.
pub struct RegionRun {
    pub region: Arc<Region>,
    pub skip: u64,
    pub len: u64,
}

/// The memory that a peer's operation names: runs of regions, in the order of the body.
pub struct RegionRuns {
    pub list: Box<[RegionRun]>,
    /// For a list, which may have many runs: the end of each run, to find a byte quickly, and each region once.
    of_list: Option<(PieceEnds, Box<[Arc<Region>]>)>,
}

impl RegionRuns {
    /// The runs of a list. `regions`: each region once.
    pub fn of_list(list: Vec<RegionRun>, regions: Vec<Arc<Region>>) -> RegionRuns {
        let ends = PieceEnds::of(&list);
        RegionRuns { list: list.into(), of_list: Some((ends, regions.into())) }
    }

    /// The regions of all runs. A region can come several times.
    pub fn regions(&self) -> impl Iterator<Item = &Arc<Region>> {
        let (few, many) = match &self.of_list {
            Some((_, regions)) => (&[][..], &regions[..]),
            None => (&self.list[..], &[][..]),
        };
        few.iter().map(|run: &RegionRun| &run.region).chain(many)
    }

    /// The runs, or parts of runs, with the `len` bytes of the body that begin at byte `skip`.
    #[inline]
    pub fn walk(&self, skip: usize, len: usize) -> Walk<'_, RegionRun> {
        let (first, skip) = self.of_list.as_ref().map_or((0, skip), |(ends, _)| ends.find(skip));
        walk(self.list.get(first..).unwrap_or(&[]), skip, len)
    }
}

impl From<Vec<RegionRun>> for RegionRuns {
    fn from(list: Vec<RegionRun>) -> RegionRuns {
        RegionRuns { list: list.into(), of_list: None }
    }
}

/// The memory from which a body is sent.
pub enum BodySource {
    /// Memory of this side, which the caller keeps.
    Pieces(Pieces),
    /// A copy of the body's bytes from this offset on.
    Owned(Box<[u8]>, u64),
    /// Regions of this side, which the peer named.
    Regions(RegionRuns),
    Device(DeviceSource),
    /// Memory that may not be read any more. Where the framing demands bytes, zeros are sent.
    Nothing,
}

impl Span for RegionRun {
    #[inline(always)]
    fn bytes(&self) -> usize {
        self.len as usize
    }
}

/// Copies `len` bytes of host memory, which begin at byte `skip` of the pieces.
pub fn gather(pieces: &[Iov], skip: u64, len: u64) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(len as usize);
    parts(pieces, skip as usize, len as usize).for_each(|part| part.append_to(&mut bytes));
    bytes.into()
}

/// Copies device memory into host memory, and waits for the copy.
pub fn load(site: Site, pieces: &[Iov], total: usize) -> Result<Box<[u8]>> {
    let mut bytes = zeroed(total)?;
    piece::load(site, pieces, 0, &mut bytes)?;
    Ok(bytes)
}

/// The source for local memory. `owned`: the bytes are copied now, because the caller gets its buffer back. `stream`:
/// the caller's device stream; the copies of a device begin after the work that this stream holds now.
pub fn source_of(lanes: &mut StagingLanes, pieces: Pieces, site: Site, total: usize, owned: bool, stream: u64) -> Result<BodySource> {
    if site.is_host() {
        return Ok(match owned {
            true => BodySource::Owned(gather(pieces.as_slice(), 0, total as u64), 0),
            false => BodySource::Pieces(pieces),
        });
    }
    lanes.after(site, stream)?;
    if owned {
        return Ok(BodySource::Owned(load(site, pieces.as_slice(), total)?, 0));
    }
    let place = DeviceMemory::new(site, pieces, Vec::new());
    Ok(BodySource::Device(DeviceSource::new(place, total as u64)))
}

/// The pieces of memory that one system call gathers.
pub struct GatherCall<'a> {
    pub pieces: &'a mut [Iov],
    /// Number of the pieces that are in use.
    pub count: usize,
    /// Bytes of the pieces in use.
    pub bytes: u64,
    /// Most bytes that the call may gather.
    pub limit: u64,
    /// Regions that this call has entered, and that must be left after the call.
    pub entered: Vec<Arc<Region>>,
}

impl GatherCall<'_> {
    pub fn is_full(&self) -> bool {
        self.count == self.pieces.len() || self.bytes >= self.limit
    }

    /// Adds a piece, or the part of the piece that fits; returns the number of bytes added.
    pub fn add(&mut self, piece: Iov) -> usize {
        let n = piece.len().min((self.limit - self.bytes.min(self.limit)) as usize);
        match self.pieces.get_mut(self.count) {
            Some(place) if n > 0 => {
                *place = piece.part(0, n);
                self.count += 1;
                self.bytes += n as u64;
                n
            }
            _ => 0,
        }
    }

    /// Adds bytes of the library's own memory; returns the number of bytes added.
    ///
    /// # Safety
    /// The bytes stay in place and unchanged until the call is over.
    pub unsafe fn add_own(&mut self, bytes: &[u8]) -> usize {
        // SAFETY: the caller promises that the bytes stay in place while the call uses the pieces.
        self.add(unsafe { Iov::of(bytes) })
    }
}

/// Undoes `Body::enter` for one region.
pub fn leave(region: &Region) {
    if let Err(e) = region.end_cpu(false) {
        crate::log!(Warn, "{e}");
    }
    region.leave();
}
