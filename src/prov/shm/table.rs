// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The region table of a domain: what peers may reach, in a memory file that only its owner can
//! write (sealed against later writable mappings) and that every connected peer maps to read.
//!
//! An entry's gate word is its generation: unique per registration, 0 when closed. A peer reads the
//! gate, the fields, and the gate again; and once more under its busy mark before each copy.

use crate::error::{Error, Result, errno};
use crate::mr::{Access, Paths};
use crate::sync::primitive::{AtomicU64, Ordering};
use crate::sys::mem::{self, Mapping, Protection};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bits of a provider key that hold the entry's index.
pub const INDEX_BITS: u32 = 18;
pub const MAX_REGIONS: usize = 1 << INDEX_BITS;
pub const MAX_EXTENTS: usize = 1 << 15;
pub const MAX_FILES: usize = 4096;

/// Region was registered for counting remote writes: initiators notify.
pub const EVENT: u64 = 1 << 32;
/// More than one extent: `addr` is the first one's index, `file_offset` their count.
pub const MULTI: u64 = 1 << 33;

#[repr(C, align(64))]
pub struct Entry {
    pub gate: AtomicU64,
    pub key: AtomicU64,
    pub base: AtomicU64,
    pub len: AtomicU64,
    /// access:16 (bits 8.. of libfabric's, shifted down) | paths:16 | EVENT | MULTI
    pub rights: AtomicU64,
    pub addr: AtomicU64,
    pub file: AtomicU64,
    pub file_offset: AtomicU64,
}

#[repr(C)]
pub struct Extent {
    pub addr: AtomicU64,
    pub len: AtomicU64,
    pub file: AtomicU64,
    pub file_offset: AtomicU64,
}

/// A memory file that extents lie in; `id` 0 = unused. The slot is `id % MAX_FILES`.
#[repr(C)]
pub struct File {
    pub id: AtomicU64,
    pub size: AtomicU64,
    /// Descriptor number in the owner, for pidfd_getfd.
    pub fd: AtomicU64,
    pad: u64,
}

#[repr(C, align(64))]
struct Layout {
    magic: AtomicU64,
    /// One past the highest entry ever used.
    high: AtomicU64,
    pad: [u64; 6],
    files: [File; MAX_FILES],
    extents: [Extent; MAX_EXTENTS],
    entries: [Entry; MAX_REGIONS],
}

const MAGIC: u64 = u64::from_le_bytes(*b"gdrfabT1");

pub fn pack_rights(access: Access, paths: Paths, extra: u64) -> u64 {
    access.bits() >> 8 & 0xffff | (paths.bits() & 0xffff) << 16 | extra
}

pub fn unpack_rights(raw: u64) -> (Access, Paths) {
    (Access::from_bits_truncate((raw & 0xffff) << 8), Paths::from_bits_truncate(raw >> 16 & 0xffff))
}

/// The table, mapped by its owner or by a peer.
pub struct Table {
    map: Mapping,
}

impl Table {
    pub fn create() -> Result<(Table, OwnedFd)> {
        let fd = mem::memfd("gdrfab-table", size_of::<Layout>())?;
        let map = Mapping::new(fd.as_fd(), 0, size_of::<Layout>(), Protection::ReadWrite)?;
        mem::seal_against_writers(fd.as_fd())?;
        let table = Table { map };
        table.layout().magic.store(MAGIC, Ordering::Release);
        Ok((table, fd))
    }

    pub fn attach(fd: BorrowedFd<'_>) -> Result<Table> {
        mem::check_peer_file(fd, size_of::<Layout>() as u64)?;
        let table = Table { map: Mapping::new(fd, 0, size_of::<Layout>(), Protection::ReadOnly)? };
        if table.layout().magic.load(Ordering::Acquire) != MAGIC {
            return Err(Error::fixed(errno::EPROTO, "the peer's region table does not begin as one of this version does"));
        }
        Ok(table)
    }

    #[inline]
    fn layout(&self) -> &Layout {
        // SAFETY: the mapping has exactly this size, is page aligned, and lives as long as self;
        // the fields are atomics. A peer's mapping is read-only, and only loads are done there.
        unsafe { &*self.map.as_ptr().cast::<Layout>() }
    }

    #[inline]
    pub fn entry(&self, index: u32) -> &Entry {
        &self.layout().entries[index as usize % MAX_REGIONS]
    }

    pub fn extent(&self, index: u64) -> &Extent {
        &self.layout().extents[index as usize % MAX_EXTENTS]
    }

    pub fn file(&self, id: u64) -> &File {
        &self.layout().files[id as usize % MAX_FILES]
    }

    pub fn high(&self) -> u32 {
        self.layout().high.load(Ordering::Acquire).min(MAX_REGIONS as u64) as u32
    }

    pub fn raise_high(&self, index: u32) {
        if u64::from(index) >= self.layout().high.load(Ordering::Relaxed) {
            self.layout().high.store(u64::from(index) + 1, Ordering::Release);
        }
    }
}
