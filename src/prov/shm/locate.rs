// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finding out what a caller wants registered: host memory, a file, or allocations of a device; and
//! which paths that memory permits.

use super::files::Files;
use super::region::{Located, Modes, ON_DEVICE, PRIVATE, Piece, PieceList, Source, Verdicts, Wish};
use super::table::Table;
use crate::error::{Error, Result, errno};
use crate::hmem::{self, Interface, Kind, Pinned, Site};
use crate::mr::{Access, Paths};
use crate::prov::op::Iov;
use crate::prov::survey;
use crate::sys::mem::{self, Mappable};
use crate::sys::process;
use std::borrow::Cow;
use std::os::fd::BorrowedFd;

pub fn locate(files: &mut Files, table: &Table, modes: Modes, wish: &Wish<'_>) -> Result<Located> {
    let iovs = match wish.source {
        Source::File { fd, offset, len, base_addr } => return locate_file(files, table, wish.access, fd, offset, len, base_addr),
        Source::Iov(iovs) => iovs,
    };
    let (base, sum) = survey::extent(iovs)?;
    match survey::site_of(wish.memory, base)? {
        Some(site) => locate_device(files, table, modes.paths & wish.policy.allowed(), iovs, (base, sum), site),
        None => locate_host(files, iovs, (base, sum)),
    }
}

fn pieces_of(mut list: Vec<Piece>) -> PieceList {
    match (list.pop(), list.is_empty()) {
        (Some(one), true) => PieceList::One(one),
        (last, _) => {
            list.extend(last);
            PieceList::Many(list.into())
        }
    }
}

fn locate_host(files: &Files, iovs: &[Iov], (base, len): (u64, u64)) -> Result<Located> {
    survey::refuse_device_memory(iovs)?;
    let list: Vec<Piece> = iovs
        .iter()
        .map(|iov| {
            let (file, file_offset) = files.find(iov.addr, iov.len).unwrap_or((0, 0));
            Piece { iov: *iov, file, file_offset, id: 0 }
        })
        .collect();
    let verdicts = Verdicts::host(can_map(files, &list));
    Ok(Located { pieces: pieces_of(list), base, len, site: Site::HOST, kind: Kind::Host, verdicts })
}

fn can_map(files: &Files, pieces: &[Piece]) -> std::result::Result<(), Cow<'static, str>> {
    for piece in pieces {
        match files.get(piece.file).and_then(|f| f.host()).map(|f| &f.mappable) {
            None => return Err(Cow::Borrowed(PRIVATE)),
            Some(Mappable::No(why)) => return Err(Cow::Borrowed(why)),
            Some(Mappable::Yes) => {}
        }
    }
    Ok(())
}

fn locate_device(files: &mut Files, table: &Table, wanted: Paths, iovs: &[Iov], (base, len): (u64, u64), site: Site) -> Result<Located> {
    let up = hmem::get(site.iface).map_err(|e| e.context("attr->iface"))?;
    let mut list = Vec::with_capacity(1);
    let mut ipc =
        if wanted.contains(Paths::IPC) { Ok(()) } else { Err(Error::fixed(errno::EACCES, "not wanted, so nothing was exported")) };
    let kind = survey::each_allocation(up, site, iovs, |iov, at, of| {
        let file = match &ipc {
            Ok(()) => files.adopt_device(table, up, of).unwrap_or_else(|e| {
                ipc = Err(e);
                0
            }),
            Err(_) => 0,
        };
        list.push(Piece::within(iov, at, of, file));
    })?;
    if kind == Kind::Pinned {
        return Ok(pinned(list, (base, len)));
    }
    if ipc.is_err() {
        list.iter_mut().for_each(|p| p.file = 0);
        files.drop_unused(table);
    }
    let verdicts = Verdicts { direct: Err(Cow::Borrowed(ON_DEVICE)), cma: Err(Cow::Borrowed(ON_DEVICE)), ipc, refused: Paths::empty() };
    Ok(Located { pieces: pieces_of(list), base, len, site, kind, verdicts })
}

/// Host memory that the vendor made: the CPU reaches it, but whether the kernel reads it for another
/// process depends on how it was mapped, so that is tried.
fn pinned(mut list: Vec<Piece>, (base, len): (u64, u64)) -> Located {
    list.iter_mut().for_each(|p| (p.file, p.id) = (0, 0));
    let mut verdicts = Verdicts::host(Err(Cow::Borrowed(PRIVATE)));
    for piece in &list {
        let mut byte = 0u8;
        let (here, there) = (process::piece(&raw mut byte as u64, 1), process::piece(piece.iov.addr as u64, 1));
        // SAFETY: `byte` is live; the kernel checks the other side.
        if let Err(e) = unsafe { process::attach_copy(process::pid(), process::Attach::Read, &[here], &[there]) } {
            verdicts.cma = Err(Cow::Owned(e.to_string()));
        }
    }
    Located { pieces: pieces_of(list), base, len, site: Site::HOST, kind: Kind::Pinned, verdicts }
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
        return Err(Error::invalid("dmabuf->len: 0"));
    }
    let id = files.adopt(table, fd, access.intersects(Access::REMOTE_WRITE | Access::RECV | Access::READ))?;
    let file = files.get(id).and_then(|f| f.host()).ok_or(Error::fixed(errno::EIO, "an adopted file vanished"))?;
    let (size, addr) = (file.map.len() as u64, file.map.as_ptr() as usize);
    if offset.checked_add(len as u64).is_none_or(|end| end > size) {
        return Err(Error::invalid(format!("dmabuf->offset {offset} + len {len} lie beyond the file's {size} bytes")));
    }
    let base = base_addr
        .checked_add(offset)
        .filter(|b| b.checked_add(len as u64).is_some())
        .ok_or_else(|| Error::invalid("dmabuf->base_addr + offset + len overflows"))?;
    let piece = Piece { iov: Iov { addr: addr + offset as usize, len }, file: id, file_offset: offset, id: 0 };
    let mut verdicts = Verdicts::host(can_map(files, &[piece]));
    if mem::is_dmabuf(fd) {
        verdicts.cma = Err(Cow::Borrowed("the mapping of a dma-buf has no pages that the kernel would copy"));
    }
    Ok(Located { pieces: PieceList::One(piece), base, len: len as u64, site: Site::HOST, kind: Kind::Host, verdicts })
}

/// Pins host memory for a vendor's copies; what cannot be pinned is copied more slowly.
pub fn pin(site: Site, addr: u64, len: u64) -> Option<Pinned> {
    let page = mem::page_size() as u64;
    let start = addr & !(page - 1);
    let end = (addr + len).next_multiple_of(page);
    let pinned = hmem::get(site.iface).and_then(|up: &dyn Interface| up.pin(start, end - start));
    pinned.map_err(|e| crate::log!(Info, "{len} bytes at {addr:#x} stay unpinned, so copies to {site} are slower: {e}")).ok()
}
