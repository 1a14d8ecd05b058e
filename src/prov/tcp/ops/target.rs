// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory that a peer's WRITE or READ names: this memory is found by its key, checked, and kept from closing while
//! it is used.

use crate::error::{Code, Error, Result, errno};
use crate::hmem::Site;
use crate::mr::{Access, Paths};
use crate::prov::op::Pieces;
use crate::prov::tcp::conn::Conn;
use crate::prov::tcp::domain::Domain;
use crate::prov::tcp::memory::mr::Region;
use crate::prov::tcp::memory::source::{BodySource, RegionRun, RegionRuns};
use crate::prov::tcp::memory::staging::{DeviceMemory, DeviceSource};
use crate::prov::tcp::stream::body::{Body, Owner};
use crate::prov::tcp::wire::frame;
use crate::prov::tcp::wire::frame::{FAILED, Header, Kind, LIST, list_status, protocol_error, word};
use std::sync::Arc;

/// An answer up to this length is copied into the send buffer, so that several answers leave in one call.
pub const ANSWER_COPY: u64 = 4 << 10;
/// If a list's blocks are shorter than this on average, their bytes are copied into one buffer, because the kernel
/// would have to gather too many pieces.
const SHORT: u64 = 512;

/// The paths that the bits of a header's `paths` stand for.
pub fn paths_of(bits: u8) -> Paths {
    let mut paths = Paths::empty();
    paths.set(Paths::SOCKET, bits & frame::SOCKET != 0);
    paths.set(Paths::STAGED, bits & frame::STAGED != 0);
    paths
}

/// The checked memory of a peer's operation.
pub enum TargetMemory {
    Host(RegionRuns),
    Device(Site, RegionRuns),
}

impl Conn {
    /// Finds the region with this key. The region of the last operation is tried first, because this takes no lock on the table.
    #[inline]
    pub fn look_up(&mut self, domain: &Domain, key: u64) -> Option<Arc<Region>> {
        if let Some(last) = self.region.upgrade().filter(|r| r.is(key)) {
            return Some(last);
        }
        let found = domain.regions.lock().find(key).cloned()?;
        self.region = Arc::downgrade(&found);
        Some(found)
    }

    /// Checks the pieces that a WRITE or READ without LIST names.
    pub fn target(&mut self, domain: &Domain, h: &Header, words: &[u8], need: Access) -> std::result::Result<TargetMemory, Code> {
        let permitted = paths_of(h.paths);
        let mut runs = Vec::with_capacity(h.pieces.into());
        let mut site = None;
        for i in 0..usize::from(h.pieces) {
            let (addr, len, key) = (word(words, 3 * i), word(words, 3 * i + 1), word(words, 3 * i + 2));
            let region = self.look_up(domain, key).ok_or(Code::Key)?;
            let skip = region.check(addr, len, need, permitted)?;
            if *site.get_or_insert(region.site()) != region.site() {
                return Err(Code::Path);
            }
            if region.is_stale() {
                return Err(Code::Fault);
            }
            runs.push(RegionRun { region, skip, len });
        }
        match site {
            Some(site) if !site.is_host() => Ok(TargetMemory::Device(site, runs.into())),
            _ => Ok(TargetMemory::Host(runs.into())),
        }
    }

    /// Answers a READ with the bytes of its target, or with the reason for its refusal.
    pub fn answer_from(&mut self, target: Result<TargetMemory>, h: &Header) {
        let list = h.has(LIST);
        let source = match target {
            Ok(TargetMemory::Host(runs)) if h.len <= ANSWER_COPY => match self.answer(h.len, |out| copy_out(&runs, out)) {
                Ok(()) => return,
                Err(code) => Err(refused(code)),
            },
            // Blocks this short would take many system calls if they were sent from their own memory.
            Ok(TargetMemory::Host(runs)) if list && are_short(runs.list.len(), h.len) => {
                let mut bytes = Vec::with_capacity(h.len as usize);
                copy_out(&runs, &mut bytes).map(|()| BodySource::Owned(bytes.into(), 0)).map_err(refused)
            }
            Ok(TargetMemory::Host(runs)) => Ok(BodySource::Regions(runs)),
            Ok(TargetMemory::Device(..)) if h.len == 0 => return self.put(Header::new(Kind::Answered, 0, 0)),
            Ok(TargetMemory::Device(site, runs)) => {
                hold_device_memory(site, &runs).map(|p| BodySource::Device(DeviceSource::new(p, h.len))).map_err(refused)
            }
            Err(why) => Err(why),
        };
        match source {
            Ok(source) => {
                let body = self.body(Body::new(source, Owner::Answer { list }, None, h.len));
                self.put(Header::new(Kind::Answered, body.flag(), h.len));
                self.tx.put_body(body);
                self.answers += 1;
                self.list_answers += usize::from(list);
            }
            Err(why) => self.put_words(Kind::Answered, FAILED, 0, &[list_status(&why)]),
        }
    }
}

/// The error of an operation that this side refuses. The error's code goes to the peer, and the frame's body is read
/// and discarded.
pub fn refused(code: Code) -> Error {
    Error::coded(errno::EACCES, code, "refused here")
}

/// True if a list's blocks are so short that copying them is cheaper than naming each to the kernel.
pub fn are_short(blocks: usize, total: u64) -> bool {
    total / (blocks as u64).max(1) < SHORT
}

/// Checks that the lengths of the pieces sum to the frame's length.
pub fn check_sum(h: &Header, words: &[u8]) -> Result<()> {
    let sum = (0..usize::from(h.pieces)).try_fold(0u64, |sum, i| sum.checked_add(word(words, 3 * i + 1)));
    if sum != Some(h.len) {
        return Err(protocol_error("pieces whose lengths do not sum to the frame's length"));
    }
    Ok(())
}

/// Keeps the regions from closing for as long as a device copies their memory.
pub fn hold_device_memory(site: Site, runs: &RegionRuns) -> std::result::Result<DeviceMemory, Code> {
    let inside = runs.regions().map(Region::hold).collect::<std::result::Result<_, _>>()?;
    let pieces = runs.list.iter().flat_map(|run| run.region.parts(run.skip, run.len)).collect();
    Ok(DeviceMemory::new(site, Pieces::of_list(pieces), inside))
}

/// Appends the bytes of regions to `out`.
pub fn copy_out(runs: &RegionRuns, out: &mut Vec<u8>) -> std::result::Result<(), Code> {
    for run in &runs.list {
        run.region.enter()?;
        let read = run.region.begin_cpu(false).and_then(|()| {
            let read = run.region.read(run.skip, run.len, out);
            read.and(run.region.end_cpu(false))
        });
        run.region.leave();
        read.map_err(|_| Code::Fault)?;
    }
    Ok(())
}
