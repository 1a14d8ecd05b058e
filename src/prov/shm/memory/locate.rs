// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the memory that a caller registers (host memory, a file, or allocations of a device) and the paths that this memory permits.
//!
//! `Probe` asks drivers, without the regions' lock; `locate` then finds the files, under the lock.

use super::files::Files;
use super::region::{FileLocation, Located, Obstacles, PRIVATE, Piece};
use super::table::Table;
use crate::error::{Error, Result, errno};
use crate::hmem::{self, Allocation, Export, Interface, MemoryKind, Pinned, Site};
use crate::mr::region::{Location, Pieces};
use crate::mr::{Access, Attr, Iov, Paths, Source, file, location};
use crate::sys::mem::{self, Mappable};
use crate::sys::space;
use std::os::fd::BorrowedFd;

/// The answers of drivers about the memory to register. Drivers are asked without the regions' lock, so that a slow or
/// hanging driver delays only this registration.
pub enum Probe {
    Host { base: u64, len: u64 },
    File,
    Pinned(Option<Located>),
    Device(DeviceProbe),
}

/// Allocations of a device in which a region lies, and their exports for other processes.
pub struct DeviceProbe {
    up: &'static dyn Interface,
    site: Site,
    kind: MemoryKind,
    base: u64,
    len: u64,
    /// Each piece and the allocation in which it lies.
    parts: Vec<(Piece, Allocation)>,
    exports: Vec<Option<Export>>,
    /// `Err`: the reason why other processes get no export.
    ipc: Result<()>,
}

impl DeviceProbe {
    /// True if part `i` needs no export, because the domain's files or an earlier part have the same allocation.
    fn is_known(&self, files: &Files, i: usize) -> bool {
        let (_, of) = &self.parts[i];
        files.known_device(of).is_some() || (of.id != 0 && self.parts[..i].iter().any(|(_, before)| before == of))
    }

    /// True if `Probe::export` must run before `locate` can find the memory.
    fn needs_export(&self, files: &Files) -> bool {
        self.ipc.is_ok() && (0..self.parts.len()).any(|i| self.exports[i].is_none() && !self.is_known(files, i))
    }
}

impl Probe {
    /// Asks the drivers about the memory of a registration. `wanted`: the paths that the region may have.
    pub fn of(attr: &Attr<'_>, wanted: Paths) -> Result<Probe> {
        let Source::Iov(iovs) = attr.source else { return Ok(Probe::File) };
        let (base, len) = location::extent(iovs)?;
        let Some(site) = location::site_of(attr.memory, base)? else {
            location::refuse_device_memory(iovs)?;
            return Ok(Probe::Host { base, len });
        };
        let up = hmem::get(site.iface).map_err(|e| e.context("attr->iface"))?;
        let mut parts = Vec::with_capacity(1);
        let kind = location::each_allocation(up, site, iovs, |iov, at, of| {
            parts.push((Piece::within(iov, at, of, FileLocation::default()), *of))
        })?;
        if kind == MemoryKind::Pinned {
            return Ok(Probe::Pinned(Some(pinned(parts.into_iter().map(|(p, _)| p).collect(), (base, len)))));
        }
        let exports = parts.iter().map(|_| None).collect();
        let ipc = match wanted.contains(Paths::IPC) {
            true => Ok(()),
            false => Err(Error::fixed(errno::EACCES, "ruled out by attr->require or attr->forbid, so the memory was not exported")),
        };
        Ok(Probe::Device(DeviceProbe { up, site, kind, base, len, parts, exports, ipc }))
    }

    /// Has the driver export the allocations that peers cannot map yet. `known` says which allocations the domain's
    /// files have.
    pub fn export(&mut self, known: impl Fn(&Allocation) -> bool) {
        let Probe::Device(d) = self else { return };
        for i in 0..d.parts.len() {
            let (_, of) = d.parts[i];
            let before = of.id != 0 && d.parts[..i].iter().any(|(_, other)| *other == of);
            if d.exports[i].is_some() || before || known(&of) {
                continue;
            }
            match d.up.export(&of) {
                Ok(export) => d.exports[i] = Some(export),
                Err(e) => {
                    d.ipc = Err(e);
                    return;
                }
            }
        }
    }
}

/// Finds the memory among the domain's files. `None`: the driver must export an allocation first (`Probe::export`).
pub fn locate(files: &mut Files, table: &Table, attr: &Attr<'_>, probe: &mut Probe) -> Result<Option<Located>> {
    match (probe, &attr.source) {
        (_, Source::File { fd, offset, len, base_addr }) => {
            locate_file(files, table, attr.access, *fd, *offset, *len, *base_addr).map(Some)
        }
        (Probe::Host { base, len }, Source::Iov(iovs)) => Ok(Some(locate_host(files, iovs, (*base, *len)))),
        (Probe::Pinned(located), _) => Ok(located.take()),
        (Probe::Device(d), _) if d.needs_export(files) => Ok(None),
        (Probe::Device(d), _) => Ok(Some(locate_device(files, table, d))),
        (Probe::File, _) => Err(Error::fixed(errno::EINVAL, "attr: names no memory; set iov or dmabuf")),
    }
}

fn locate_host(files: &Files, iovs: &[Iov], (base, len): (u64, u64)) -> Located {
    let list: Vec<Piece> = iovs
        .iter()
        .map(|iov| {
            let (file, offset) = files.find(iov.addr(), iov.len()).unwrap_or((0, 0));
            Piece { iov: *iov, id: 0, at: FileLocation { file, offset } }
        })
        .collect();
    let obstacles = Obstacles::host(unmappable(files, &list));
    Located { location: Location { pieces: list.into(), base, len, site: Site::HOST, kind: MemoryKind::Host }, obstacles }
}

/// The reason why peers cannot map the pieces; `None`: peers can.
fn unmappable(files: &Files, pieces: &[Piece]) -> Option<&'static str> {
    pieces.iter().find_map(|piece| match files.get(piece.at.file).and_then(|f| f.host()).map(|f| &f.mappable) {
        None => Some(PRIVATE),
        Some(Mappable::No(why)) => Some(*why),
        Some(Mappable::Yes) => None,
    })
}

fn locate_device(files: &mut Files, table: &Table, d: &mut DeviceProbe) -> Located {
    let mut ipc = std::mem::replace(&mut d.ipc, Ok(()));
    let mut list = Vec::with_capacity(d.parts.len());
    for ((piece, of), export) in d.parts.iter().zip(&mut d.exports) {
        let file = match &ipc {
            Ok(()) => files.adopt_device(table, of, export).unwrap_or_else(|e| {
                ipc = Err(e);
                0
            }),
            Err(_) => 0,
        };
        list.push(Piece { at: FileLocation { file, offset: piece.iov.addr() as u64 - of.base }, ..*piece });
    }
    if ipc.is_err() {
        list.iter_mut().for_each(|p| p.at.file = 0);
        files.drop_unused(table);
    }
    let obstacles = Obstacles::device(ipc);
    Located { location: Location { pieces: list.into(), base: d.base, len: d.len, site: d.site, kind: d.kind }, obstacles }
}

/// Locates host memory that a vendor's driver allocated. The CPU reaches such memory. The kernel can copy it for other
/// processes (path cma) only if the driver has mapped the memory so that the kernel finds its pages, so one byte of
/// each piece is copied as a trial.
fn pinned(mut list: Vec<Piece>, (base, len): (u64, u64)) -> Located {
    list.iter_mut().for_each(|p| p.id = 0);
    let mut obstacles = Obstacles::host(Some(PRIVATE));
    for piece in &list {
        let mut byte = 0u8;
        // SAFETY: `byte` outlives the call.
        let here = unsafe { Iov::of_mut(std::slice::from_mut(&mut byte)) };
        if let Err(e) = space::copy_own(piece.iov.part(0, 1), here) {
            obstacles.cma = Some(e.to_string().into());
        }
    }
    Located { location: Location { pieces: list.into(), base, len, site: Site::HOST, kind: MemoryKind::Pinned }, obstacles }
}

fn locate_file(
    files: &mut Files,
    table: &Table,
    access: Access,
    fd: BorrowedFd<'_>,
    offset: u64,
    len: usize,
    base_addr: u64,
) -> Result<Located> {
    if len == 0 {
        return Err(Error::invalid("dmabuf->len: 0, must be at least 1"));
    }
    let id = files.adopt(table, fd, access.is_written())?;
    let map = files
        .get(id)
        .and_then(|f| f.host())
        .map(|f| &f.map)
        .ok_or(Error::fixed(errno::EIO, "internal error: the file of dmabuf->fd is missing"))?;
    let base = file::base_of(offset, len, map.len() as u64, base_addr)?;
    // SAFETY: `base_of` checked that the bytes lie inside the mapping, which stays as long as its region.
    let iov = unsafe { Iov::new(map.as_ptr() as usize + offset as usize, len) };
    let piece = Piece { iov, id: 0, at: FileLocation { file: id, offset } };
    let mut obstacles = Obstacles::host(unmappable(files, &[piece]));
    if mem::is_dmabuf(fd) {
        obstacles.cma = Some("the kernel cannot copy the pages of a dma-buf's mapping".into());
    }
    let location = Location { pieces: Pieces::One(piece), base, len: len as u64, site: Site::HOST, kind: MemoryKind::Host };
    Ok(Located { location, obstacles })
}

/// Pins host memory for copies by a device vendor's driver. `None`: the memory cannot be pinned, and copies are slower.
pub fn pin(site: Site, addr: u64, len: u64) -> Option<Pinned> {
    let page = mem::page_size() as u64;
    let start = addr & !(page - 1);
    let end = (addr + len).next_multiple_of(page);
    let pinned = hmem::get(site.iface).and_then(|up: &dyn Interface| up.pin(start, end - start));
    pinned.map_err(|e| crate::log!(Info, "{len} bytes at {addr:#x} could not be pinned, so copies to {site} are slower: {e}")).ok()
}
