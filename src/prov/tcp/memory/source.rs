// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the bytes of a body lie that goes out, and one call's pieces of them for the kernel.

use super::mr::Region;
use super::staging::{DeviceMemory, DeviceSource, StagingLanes};
use crate::error::Result;
use crate::fallible::zeroed;
use crate::hmem::Site;
use crate::mr::piece::{self, PieceEnds, Span, Walk, walk};
use crate::prov::op::{Iov, Pieces, parts};
use std::sync::Arc;

/// A run of a region's bytes.
pub struct RegionRun {
    pub region: Arc<Region>,
    pub skip: u64,
    pub len: u64,
}

/// The memory of a peer's operation.
pub struct RegionRuns {
    pub list: Box<[RegionRun]>,
    /// Of a list: where its runs end, and each region once.
    of_list: Option<(PieceEnds, Box<[Arc<Region>]>)>,
}

impl RegionRuns {
    pub fn of_list(list: Vec<RegionRun>, regions: Vec<Arc<Region>>) -> RegionRuns {
        let ends = Ends::of(&list);
        RegionRuns { list: list.into(), of_list: Some((ends, regions.into())) }
    }

    /// Whose memory it is.
    pub fn regions(&self) -> impl Iterator<Item = &Arc<Region>> {
        let (few, many) = match &self.of_list {
            Some((_, regions)) => (&[][..], &regions[..]),
            None => (&self.list[..], &[][..]),
        };
        few.iter().map(|run: &RegionRun| &run.region).chain(many)
    }

    /// The runs that `len` bytes from byte `skip` on lie in.
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

/// Where a body's bytes come from.
pub enum BodySource {
    Pieces(Pieces),
    /// Bytes from this one of the body on.
    Owned(Box<[u8]>, u64),
    Regions(RegionRuns),
    Device(DeviceSource),
    /// What it was is not there any more.
    Nothing,
}

impl Span for RegionRun {
    #[inline(always)]
    fn bytes(&self) -> usize {
        self.len as usize
    }
}

/// A copy of `len` bytes from byte `skip` of host pieces on.
pub fn gather(pieces: &[Iov], skip: u64, len: u64) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(len as usize);
    parts(pieces, skip as usize, len as usize).for_each(|part| part.append_to(&mut bytes));
    bytes.into()
}

/// A copy of a device's bytes, now.
pub fn load(site: Site, pieces: &[Iov], total: usize) -> Result<Box<[u8]>> {
    let mut bytes = zeroed(total)?;
    piece::load(site, pieces, 0, &mut bytes)?;
    Ok(bytes)
}

/// The source of a body of local memory. `owned`: the caller gets its buffer back now.
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

/// What one call to the kernel will be given.
pub struct GatherCall<'a> {
    pub pieces: &'a mut [Iov],
    pub count: usize,
    pub bytes: u64,
    pub limit: u64,
    /// Regions that must be left again after the call.
    pub entered: Vec<Arc<Region>>,
}

impl GatherCall<'_> {
    pub fn is_full(&self) -> bool {
        self.count == self.pieces.len() || self.bytes >= self.limit
    }

    /// Adds a piece; gives how much of it fits.
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

    /// Adds bytes of our own.
    ///
    /// # Safety
    /// They stay where they are until the call is over.
    pub unsafe fn add_own(&mut self, bytes: &[u8]) -> usize {
        // SAFETY: the pieces are used by the call alone.
        self.add(unsafe { Iov::of(bytes) })
    }
}

/// Undoes `Body::enter` of one region.
pub fn leave(region: &Region) {
    if let Err(e) = region.end_cpu(false) {
        crate::log!(Warn, "{e}");
    }
    region.leave();
}
