// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds out which memory a registration names: host memory, a file to map, or allocations of a device.

use super::mr::{Located, Piece};
use crate::error::{Error, Result, errno};
use crate::hmem::{self, MemoryKind, Site};
use crate::mr::alloc::Allocations;
use crate::mr::file::{self, MappedFile};
use crate::mr::region::{Location, Pieces};
use crate::mr::{Attr, Iov, Source, location};
use crate::sys::mem;

/// Finds the memory of the registration `attr`. `memory`: the domain's own allocations.
pub fn locate(attr: &Attr<'_>, memory: &Allocations) -> Result<Located> {
    let iovs = match attr.source {
        Source::File { fd, offset, len, base_addr } => {
            if len == 0 {
                return Err(Error::invalid("dmabuf->len: 0, must be at least 1"));
            }
            let base = file::base_of(offset, len, file::size_of(fd)?, base_addr)?;
            let file = MappedFile::new(fd, offset, len, attr.access.is_written())?;
            let iov = file.part(0, len).ok_or(Error::fixed(errno::EIO, "dmabuf->fd: the mapping is shorter than the file"))?;
            let pieces = Pieces::One(Piece { iov, id: 0, at: iov });
            let location = Location { pieces, base, len: len as u64, site: Site::HOST, kind: MemoryKind::Host };
            return Ok(Located { location, file: Some(file), own: mem::never_shrinks(fd) });
        }
        Source::Iov(iovs) => iovs,
    };
    let extent = location::extent(iovs)?;
    match location::site_of(attr.memory, extent.0)? {
        Some(site) => device(iovs, extent, site),
        None => host(iovs, extent, memory),
    }
}

fn host(iovs: &[Iov], (base, len): (u64, u64), memory: &Allocations) -> Result<Located> {
    location::refuse_device_memory(iovs)?;
    let ours = Pieces::try_of(iovs, |iov| memory.own(iov));
    let own = ours.is_some();
    let pieces = ours.unwrap_or_else(|| Pieces::of(iovs, |iov| *iov));
    let location = Location { pieces, base, len, site: Site::HOST, kind: MemoryKind::Host };
    Ok(Located { location, file: None, own })
}

fn device(iovs: &[Iov], (base, len): (u64, u64), site: Site) -> Result<Located> {
    let up = hmem::get(site.iface).map_err(|e| e.context("attr->iface"))?;
    let mut pieces: Vec<Piece> = Vec::with_capacity(1);
    let kind = location::each_allocation(up, site, iovs, |iov, start, of| {
        let piece = Piece::within(iov, start, of, Iov::EMPTY);
        pieces.push(Piece { at: piece.iov, ..piece });
    })?;
    // Pinned memory is host memory that the device's driver allocated: the CPU and the kernel reach it.
    let site = if kind == MemoryKind::Pinned { Site::HOST } else { site };
    if site.is_host() {
        pieces.iter_mut().for_each(|p| p.id = 0);
    }
    Ok(Located { location: Location { pieces: pieces.into(), base, len, site, kind }, file: None, own: false })
}
