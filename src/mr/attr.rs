// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The attributes of a registration as every provider takes them, and the names and properties of the resulting region.

use super::{Access, Iov, PathPolicy, Paths};
use crate::hmem::{MemoryKind, Site};
use std::os::fd::BorrowedFd;

/// Largest number of iovecs of one region.
pub const MR_IOV_LIMIT: usize = 16;

/// The memory that a caller wants to register.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    Iov(&'a [Iov]),
    /// `[offset, offset+len)` of a mappable file. Peers address the first byte of this range as `base_addr + offset`.
    File {
        fd: BorrowedFd<'a>,
        offset: u64,
        len: usize,
        base_addr: u64,
    },
}

/// The kind of memory, as the caller states it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    Host,
    Device(Site),
    /// The library asks the drivers. The owner of the first byte counts as the owner of all memory of the region.
    Auto,
}

/// A caller's request to register memory.
pub struct Attr<'a> {
    pub source: Source<'a>,
    pub memory: Memory,
    pub access: Access,
    /// Address that peers use for the first byte, if the domain has no virtual addressing.
    pub offset: u64,
    pub requested_key: u64,
    pub policy: PathPolicy,
    /// Peers have to report their writes to the region.
    pub rma_event: bool,
}

impl Attr<'_> {
    /// The most common request: host memory, any path, and the domain's defaults. The iovecs are passed separately.
    #[inline(always)]
    pub fn plain(access: Access) -> Attr<'static> {
        Attr {
            source: Source::Iov(&[]),
            memory: Memory::Host,
            access,
            offset: 0,
            requested_key: 0,
            policy: PathPolicy::default(),
            rma_event: false,
        }
    }
}

/// Properties of a region that the API reports.
#[derive(Clone, Debug)]
pub struct Facts {
    pub site: Site,
    pub kind: MemoryKind,
    pub key: u64,
    pub base: u64,
    pub len: u64,
    pub access: Access,
    pub paths: Paths,
    pub iov_count: u32,
}

/// Identifies a region of a domain. A lookup with it fails after the region was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionId {
    /// A full word like the other fields. With a half word, compilers copy the struct by loads that each cover parts of
    /// two fields, and CPUs stall on such loads.
    index: u64,
    pub generation: u64,
    pub key: u64,
    /// The descriptor that operations take as `desc`.
    pub desc: u64,
}

impl RegionId {
    /// Identifies no region.
    pub const NONE: RegionId = RegionId { index: u32::MAX as u64, generation: 0, key: 0, desc: 0 };

    #[inline(always)]
    pub fn new(index: u32, generation: u64, key: u64, desc: u64) -> RegionId {
        RegionId { index: index.into(), generation, key, desc }
    }

    /// Index of the region's slot.
    #[inline(always)]
    pub fn index(&self) -> u32 {
        self.index as u32
    }
}
