// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Registration as every provider takes it: what a caller asks for, and the names and facts of what it got.

use super::{Access, Iov, PathPolicy, Paths};
use crate::hmem::{Kind, Site};
use std::os::fd::BorrowedFd;

/// Iovecs that one region may have.
pub const MR_IOV_LIMIT: usize = 16;

/// What a caller wants registered.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    Iov(&'a [Iov]),
    /// A mappable file: `[offset, offset+len)` of it, whose first byte peers address as
    /// `base_addr + offset`.
    File {
        fd: BorrowedFd<'a>,
        offset: u64,
        len: usize,
        base_addr: u64,
    },
}

/// Whose memory the caller says it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    Host,
    Device(Site),
    /// The first byte decides.
    Auto,
}

/// What a caller asks for.
pub struct Attr<'a> {
    pub source: Source<'a>,
    pub memory: Memory,
    pub access: Access,
    /// Remote address of the first byte where the domain does not address virtually.
    pub offset: u64,
    pub requested_key: u64,
    pub policy: PathPolicy,
    pub event: bool,
}

impl Attr<'_> {
    /// What most callers ask for: host memory, any path, and the rest as the domain does it. The source is found already.
    #[inline(always)]
    pub fn plain(access: Access) -> Attr<'static> {
        Attr {
            source: Source::Iov(&[]),
            memory: Memory::Host,
            access,
            offset: 0,
            requested_key: 0,
            policy: PathPolicy::default(),
            event: false,
        }
    }
}

/// A region's public facts.
#[derive(Clone, Debug)]
pub struct Facts {
    pub site: Site,
    pub kind: Kind,
    pub key: u64,
    pub base: u64,
    pub len: u64,
    pub access: Access,
    pub paths: Paths,
    pub iov_count: u32,
}

/// Names a region of a domain; stale after close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionId {
    /// A whole word, as the others: half of one makes compilers copy across words, and CPUs wait for that.
    index: u64,
    pub generation: u64,
    pub key: u64,
    /// What operations take as `desc`.
    pub desc: u64,
}

impl RegionId {
    /// Names no region.
    pub const NONE: RegionId = RegionId { index: u32::MAX as u64, generation: 0, key: 0, desc: 0 };

    #[inline(always)]
    pub fn new(index: u32, generation: u64, key: u64, desc: u64) -> RegionId {
        RegionId { index: index.into(), generation, key, desc }
    }

    /// Its slot.
    #[inline(always)]
    pub fn index(&self) -> u32 {
        self.index as u32
    }
}
