// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Registrations with a card of device memory that messages are read from, kept for the next message from there: for each
//! a driver exports and a card pins, which takes longer than most messages. What is kept is found by the driver's identity of the
//! allocation, which no other allocation gets, so that memory that was freed is never taken for what lies there now.
//!
//! Host memory has no such thing, and nothing of it is kept. userfaultfd tells of less than it seems: not of `MADV_GUARD_INSTALL`
//! and `SHM_REMAP`, of `MADV_DONTNEED` before the pages go, so that a message in between takes the old ones; and programs that
//! use it themselves get `EBUSY`.

use crate::hmem::{self, Site};
use crate::mr::RegionId;
use crate::prov::op::Iov;

/// Registrations that are kept, those in use among them.
const ENTRIES: usize = 256;
/// And their bytes, which stay pinned.
const BYTES: usize = 1 << 30;

/// What is registered, as far as it decides whether a registration is of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CacheKey {
    pub lane: usize,
    pub site: Site,
    pub addr: usize,
    pub len: usize,
    /// The driver's identity of the one allocation that it lies in.
    pub allocation: u64,
    /// Generation of the caller's region: its end is theirs.
    pub owner: u64,
}

impl CacheKey {
    /// Without an identity, or of several allocations: none, and nothing is kept.
    pub fn of(lane: usize, site: Site, iov: Iov, owner: u64) -> Option<CacheKey> {
        let found = hmem::get(site.iface).ok()?.detect(iov.addr() as u64).ok()??;
        let within = (iov.addr() as u64).checked_add(iov.len() as u64).is_some_and(|end| end <= found.end());
        let (addr, len, allocation) = (iov.addr(), iov.len(), found.id);
        (allocation != 0 && within).then_some(CacheKey { lane, site, addr, len, allocation, owner })
    }

    /// Whether an allocation that is gone was where this one is.
    fn replaces(&self, old: &CacheKey) -> bool {
        self.site == old.site && self.allocation != old.allocation && self.addr < old.addr + old.len && old.addr < self.addr + self.len
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
}

struct Entry {
    key: CacheKey,
    region: RegionId,
    /// To a peer; nothing takes it away meanwhile.
    in_use: bool,
    /// Goes when it comes back.
    closing: bool,
}

/// Least recently used first.
#[derive(Default)]
pub struct Cache {
    entries: Vec<Entry>,
    pub counts: Counts,
}

impl Cache {
    /// A registration of it that no operation uses, for one that begins.
    pub fn take(&mut self, key: &CacheKey) -> Option<RegionId> {
        let e = self.entries.iter_mut().rfind(|e| e.key == *key && !e.in_use && !e.closing)?;
        e.in_use = true;
        self.counts.hits += 1;
        Some(e.region)
    }

    /// Keeps a new one, which is lent, if there is room; gives those that are to be closed for it.
    pub fn keep(&mut self, key: CacheKey, region: RegionId) -> Vec<(usize, RegionId)> {
        self.counts.misses += 1;
        let mut gone = Vec::new();
        let mut full = key.len > BYTES;
        // First what the driver has freed.
        while let Some(at) = self.entries.iter().position(|e| !e.in_use && key.replaces(&e.key)) {
            gone.push(self.evict(at));
        }
        while !full && (self.entries.len() >= ENTRIES || self.bytes() + key.len > BYTES) {
            match self.entries.iter().position(|e| !e.in_use) {
                Some(oldest) => gone.push(self.evict(oldest)),
                None => full = true,
            }
        }
        if !full {
            self.entries.push(Entry { key, region, in_use: true, closing: false });
        }
        gone
    }

    /// The peer is through with it. False: it is not kept.
    pub fn put_back(&mut self, lane: usize, region: RegionId) -> bool {
        let Some(at) = self.position(lane, region) else { return false };
        let mut entry = self.entries.remove(at);
        let kept = !entry.closing;
        if kept {
            entry.in_use = false;
            self.entries.push(entry);
        }
        kept
    }

    /// It is closed.
    pub fn forget(&mut self, lane: usize, region: RegionId) {
        if let Some(at) = self.position(lane, region) {
            self.entries.remove(at);
        }
    }

    /// Nothing of a caller's region is kept from now on; gives what no operation uses.
    pub fn close_owner(&mut self, owner: u64) -> Vec<(usize, RegionId)> {
        let mut idle = Vec::new();
        for e in self.entries.iter_mut().filter(|e| e.key.owner == owner) {
            e.closing = true;
            if !e.in_use {
                idle.push((e.key.lane, e.region));
            }
        }
        idle
    }

    fn bytes(&self) -> usize {
        self.entries.iter().map(|e| e.key.len).sum()
    }

    fn position(&self, lane: usize, region: RegionId) -> Option<usize> {
        self.entries.iter().position(|e| e.key.lane == lane && e.region == region)
    }

    fn evict(&mut self, at: usize) -> (usize, RegionId) {
        let gone = self.entries.remove(at);
        self.counts.evictions += 1;
        (gone.key.lane, gone.region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hmem::Iface;

    const SITE: Site = Site { iface: Iface::Cuda, device: 0 };

    fn key(addr: usize, len: usize, allocation: u64) -> CacheKey {
        CacheKey { lane: 0, site: SITE, addr, len, allocation, owner: 1 }
    }

    fn region(n: u64) -> RegionId {
        RegionId::new(n as u32, n, n, 0)
    }

    #[test]
    fn another_allocation_at_the_same_address_is_never_found() {
        let mut cache = Cache::default();
        assert_eq!((cache.take(&key(4096, 64, 7)), cache.keep(key(4096, 64, 7), region(1))), (None, vec![]));
        assert!(cache.put_back(0, region(1)));
        assert_eq!(cache.take(&key(4096, 64, 8)), None);
        // Nor kept, once its place is another's.
        assert_eq!(cache.keep(key(4000, 97, 8), region(2)), [(0, region(1))]);
        assert_eq!((cache.take(&key(4096, 64, 7)), cache.put_back(0, region(1))), (None, false));
        assert_eq!(cache.counts, Counts { hits: 0, misses: 2, evictions: 1 });
    }

    #[test]
    fn what_a_peer_reads_is_found_by_no_other_operation_and_stays() {
        let mut cache = Cache::default();
        let at = |n: u64| key(4096 * n as usize, 64, n);
        for n in 1..=ENTRIES as u64 {
            assert_eq!(cache.keep(at(n), region(n)), []);
        }
        assert_eq!(cache.take(&at(1)), None, "it is lent");
        assert_eq!(cache.keep(at(1), region(1000)), [], "there is no room for a second one");
        assert!(!cache.put_back(0, region(1000)) && cache.put_back(0, region(2)) && cache.put_back(0, region(1)));
        assert_eq!(cache.keep(at(2000), region(2000)), [(0, region(2))], "least recently used");
        assert_eq!((cache.take(&at(1)), cache.take(&at(2))), (Some(region(1)), None));
    }

    #[test]
    fn bytes_are_bounded() {
        let mut cache = Cache::default();
        let at = |n: usize, len| key(n * BYTES, len, n as u64);
        assert_eq!((cache.keep(at(1, BYTES / 2), region(1)), cache.put_back(0, region(1))), (vec![], true));
        assert_eq!((cache.keep(at(2, BYTES + 1), region(2)), cache.put_back(0, region(2))), (vec![], false));
        assert_eq!((cache.keep(at(3, BYTES / 2), region(3)), cache.put_back(0, region(3))), (vec![], true));
        assert_eq!(cache.keep(at(4, BYTES), region(4)), [(0, region(1)), (0, region(3))]);
    }

    #[test]
    fn a_region_ends_with_what_was_kept_of_it() {
        let mut cache = Cache::default();
        cache.keep(key(4096, 64, 7), region(1));
        cache.keep(key(4096, 64, 7), region(2));
        cache.keep(CacheKey { owner: 2, ..key(4096, 64, 7) }, region(3));
        assert!(cache.put_back(0, region(1)) && cache.put_back(0, region(3)));
        assert_eq!(cache.close_owner(1), [(0, region(1))]);
        assert_eq!(cache.take(&key(4096, 64, 7)), None);
        assert!(!cache.put_back(0, region(2)), "closed as it comes back");
        cache.forget(0, region(1));
        assert_eq!((cache.close_owner(1), cache.close_owner(2)), (vec![], vec![(0, region(3))]));
    }
}
