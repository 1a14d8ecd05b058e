// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finding out what a caller wants registered: host memory, a file to be mapped, or allocations of a device.

use super::mr::{File, Piece};
use crate::error::{Code, Error, Result, errno};
use crate::hmem::{self, Kind, Site, dmabuf};
use crate::mr::alloc::Allocations;
use crate::mr::location;
use crate::mr::{Access, PathPolicy, Paths};
use crate::mr::{Attr, Source};
use crate::prov::op::Iov;
use crate::sys::mem::{self, Mapping, Protection};
use std::os::fd::BorrowedFd;

/// How a domain addresses its regions, and what this process permits.
#[derive(Clone, Copy, Debug)]
pub struct Modes {
    pub virt_addr: bool,
    pub prov_key: bool,
    pub paths: Paths,
}

/// Memory that was found to be what the caller says.
pub struct Located {
    pub pieces: Box<[Piece]>,
    /// Address that peers use for the first byte where addresses are virtual.
    pub base: u64,
    pub len: u64,
    pub site: Site,
    pub kind: Kind,
    pub file: Option<File>,
    /// The CPU may copy: the pieces lie in mappings of the library's own, whose pages nobody takes away.
    pub own: bool,
}

impl Located {
    pub fn path(&self) -> Paths {
        if self.site.is_host() { Paths::SOCKET } else { Paths::STAGED }
    }
}

/// Whether the one path that memory has is permitted.
pub fn check_path(path: Paths, process: Paths, policy: &PathPolicy) -> Result<()> {
    let who = match () {
        () if !process.contains(path) => format!("GDRFAB_TCP_PATHS permits {}", process.words()),
        () if !policy.allowed().contains(path) => format!("require {}, forbid {}", policy.require.words(), policy.forbid.words()),
        () => return Ok(()),
    };
    let memory = if path == Paths::SOCKET { "host" } else { "device" };
    let words = format!("over tcp, {memory} memory goes by the path {}, which is ruled out: {who}", path.words());
    Err(Error::coded(errno::EOPNOTSUPP, Code::Path, words))
}

pub fn locate(attr: &Attr<'_>, memory: &Allocations) -> Result<Located> {
    let iovs = match attr.source {
        Source::File { fd, offset, len, base_addr } => {
            let writable = attr.access.intersects(Access::REMOTE_WRITE | Access::RECV | Access::READ);
            return file(fd, offset, len, base_addr, writable);
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
    let mut pieces: Box<[Piece]> = iovs.iter().map(|iov| Piece { iov: *iov, at: iov.addr, id: 0 }).collect();
    let places: Option<Vec<usize>> = iovs.iter().map(|iov| memory.own(iov.addr, iov.len)).collect();
    if let Some(places) = &places {
        pieces.iter_mut().zip(places).for_each(|(piece, at)| piece.at = *at);
    }
    Ok(Located { pieces, base, len, site: Site::HOST, kind: Kind::Host, file: None, own: places.is_some() })
}

fn device(iovs: &[Iov], (base, len): (u64, u64), site: Site) -> Result<Located> {
    let up = hmem::get(site.iface).map_err(|e| e.context("attr->iface"))?;
    let mut pieces = Vec::with_capacity(1);
    let kind = location::each_allocation(up, site, iovs, |iov, at, of| {
        let end = of.end().min((iov.addr + iov.len) as u64);
        pieces.push(Piece { iov: Iov { addr: at as usize, len: (end - at) as usize }, at: at as usize, id: of.id });
    })?;
    // Host memory that the vendor made: the CPU and the kernel reach it.
    let site = if kind == Kind::Pinned { Site::HOST } else { site };
    if site.is_host() {
        pieces.iter_mut().for_each(|p| p.id = 0);
    }
    Ok(Located { pieces: pieces.into(), base, len, site, kind, file: None, own: false })
}

/// A descriptor of the caller's, mapped for the region's life.
fn file(fd: BorrowedFd<'_>, offset: u64, len: usize, base_addr: u64, writable: bool) -> Result<Located> {
    if len == 0 {
        return Err(Error::invalid("dmabuf->len: 0"));
    }
    let size = mem::dmabuf_size(fd)?.map_or_else(|| mem::file_id(fd).map(|(_, size)| size), Ok)?;
    if offset.checked_add(len as u64).is_none_or(|end| end > size) {
        return Err(Error::invalid(format!("dmabuf->offset {offset} + len {len} lie beyond the file's {size} bytes")));
    }
    let base = base_addr
        .checked_add(offset)
        .filter(|b| b.checked_add(len as u64).is_some())
        .ok_or_else(|| Error::invalid("dmabuf->base_addr + offset + len overflows"))?;
    let (start, within) = dmabuf::map_from(fd, offset)?;
    let bytes = len.checked_add(within).and_then(mem::page_round).ok_or_else(|| Error::invalid("dmabuf->len: overflows"))?;
    let protection = if writable { Protection::ReadWrite } else { Protection::ReadOnly };
    let map = Mapping::new(fd, start, bytes, protection)?;
    let at = map.as_ptr() as usize + within;
    let piece = Piece { iov: Iov { addr: at, len }, at, id: 0 };
    let own = mem::never_shrinks(fd);
    let file = File { fd: mem::duplicate(fd)?, _map: map };
    Ok(Located { pieces: [piece].into(), base, len: len as u64, site: Site::HOST, kind: Kind::Host, file: Some(file), own })
}
