// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Registration as every provider takes it: what a caller asks for, and the names and facts of what it got.

use crate::error::{Error, Result};
use crate::hmem::{Kind, Site};
use crate::mr::{Access, PathPolicy, Paths};
use crate::prov::op::Iov;
use std::os::fd::BorrowedFd;

/// Iovecs that one region may have.
pub const MR_IOV_LIMIT: usize = 16;

/// What a caller wants registered.
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

pub struct Wish<'a> {
    pub source: Source<'a>,
    pub memory: Memory,
    pub access: Access,
    /// Remote address of the first byte where the domain does not address virtually.
    pub offset: u64,
    pub requested_key: u64,
    pub policy: PathPolicy,
    pub event: bool,
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
    pub index: u32,
    pub generation: u64,
    pub key: u64,
    /// What operations take as `desc`.
    pub desc: u64,
}

/// Set in descriptors of device memory: the quick ways, on which the CPU reads the buffer, are not for them.
pub const DEVICE_DESC: u64 = 1;

/// Bits of a key, and of a descriptor, that are the index of a region of host-side providers.
pub const INDEX_BITS: u32 = 18;
const DESC_NUMBER: u64 = u64::MAX >> (INDEX_BITS + 1);

/// What operations take as `desc`: index, part of the generation, and whether it is device memory.
#[inline]
pub fn desc_of(index: u32, generation: u64, on_device: bool) -> u64 {
    let number = generation >> INDEX_BITS & DESC_NUMBER;
    number << (INDEX_BITS + 1) | u64::from(index) << 1 | u64::from(on_device)
}

/// The index that a descriptor names, and whether `generation` is the one it was made for.
pub fn desc_index(desc: u64) -> u32 {
    (desc >> 1) as u32 & ((1 << INDEX_BITS) - 1)
}

pub fn desc_fits(desc: u64, generation: u64) -> bool {
    desc >> (INDEX_BITS + 1) == generation >> INDEX_BITS & DESC_NUMBER
}

pub fn check_range(iov: &Iov, i: usize) -> Result<()> {
    if iov.addr == 0 {
        return Err(Error::invalid(format!("iov[{i}]: the address is NULL")));
    }
    if iov.len == 0 {
        return Err(Error::invalid(format!("iov[{i}]: the length is 0")));
    }
    if iov.addr.checked_add(iov.len).is_none() {
        return Err(Error::invalid(format!("iov[{i}]: address plus length overflows")));
    }
    Ok(())
}
