// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Registrations of device memory with a card, kept from one message to the next, because exporting memory from a driver
//! and pinning it takes longer than most messages. The driver gives each allocation an identity, by which an entry is
//! found. The driver never uses an identity again, so freed memory is never mistaken for the memory at its address now.
//!
//! Host memory has no such identity, so none of it is cached. A cache would need a report of every page that goes, and
//! userfaultfd does not report enough: it misses `MADV_GUARD_INSTALL` and `SHM_REMAP`, and it reports `MADV_DONTNEED`
//! before the pages go, so that a message in between would read the old pages. A program that uses userfaultfd itself
//! would get `EBUSY`.

use crate::hmem::{self, Site};
use crate::mr::RegionId;
use crate::prov::op::Iov;

/// Registrations that are kept, including those in use.
const ENTRIES: usize = 256;
/// Bytes of these registrations, which stay pinned.
const BYTES: usize = 1 << 30;

/// Identifies the memory of a registration. Two messages can share a registration only if all of this is equal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CacheKey {
    pub lane: usize,
    pub site: Site,
    pub addr: usize,
    pub len: usize,
    /// The driver's identity of the allocation that contains the memory.
    pub allocation: u64,
    /// Generation of the program's region. The entry is removed when that region closes.
    pub owner: u64,
}

impl CacheKey {
    /// The key of a message's memory. `None`, so that nothing is cached, if the driver gives no identity or the memory
    /// spans several allocations.
    pub fn of(lane: usize, site: Site, iov: Iov, owner: u64) -> Option<CacheKey> {
        let found = hmem::get(site.iface).ok()?.detect(iov.addr() as u64).ok()??;
        let within = (iov.addr() as u64).checked_add(iov.len() as u64).is_some_and(|end| end <= found.end());
        let (addr, len, allocation) = (iov.addr(), iov.len(), found.id);
        (allocation != 0 && within).then_some(CacheKey { lane, site, addr, len, allocation, owner })
    }

    /// True if `old` names an allocation that is gone and whose addresses this allocation has now.
    fn replaces(&self, old: &CacheKey) -> bool {
        self.site == old.site && self.allocation != old.allocation && self.addr < old.addr + old.len && old.addr < self.addr + self.len
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
}

struct CacheEntry {
    key: CacheKey,
    region: RegionId,
    /// A peer may be reading the memory, so the entry is neither evicted nor used for another message.
    in_use: bool,
    /// The program's region is closing: the entry is removed when its message is finished.
    closing: bool,
}

/// Entries in order of last use, oldest first.
#[derive(Default)]
pub struct RegistrationCache {
    entries: Vec<CacheEntry>,
    pub counts: CacheCounts,
}

impl RegistrationCache {
    /// Takes a registration of this memory that no message is using.
    pub fn take(&mut self, key: &CacheKey) -> Option<RegionId> {
        let e = self.entries.iter_mut().rfind(|e| e.key == *key && !e.in_use && !e.closing)?;
        e.in_use = true;
        self.counts.hits += 1;
        Some(e.region)
    }

    /// Adds a registration, which a message is using, if there is room. Returns the registrations that are to be closed to make room.
    pub fn keep(&mut self, key: CacheKey, region: RegionId) -> Vec<(usize, RegionId)> {
        self.counts.misses += 1;
        let mut gone = Vec::new();
        let mut full = key.len > BYTES;
        // Allocations that the driver has freed go first.
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
            self.entries.push(CacheEntry { key, region, in_use: true, closing: false });
        }
        gone
    }

    /// Takes back the registration of a finished message. False if the registration is not kept and has to be closed.
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

    /// Removes an entry whose registration is closed.
    pub fn forget(&mut self, lane: usize, region: RegionId) {
        if let Some(at) = self.position(lane, region) {
            self.entries.remove(at);
        }
    }

    /// Stops caching for a region of the program. Returns those of its registrations that no message is using.
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
        let mut cache = RegistrationCache::default();
        assert_eq!((cache.take(&key(4096, 64, 7)), cache.keep(key(4096, 64, 7), region(1))), (None, vec![]));
        assert!(cache.put_back(0, region(1)));
        assert_eq!(cache.take(&key(4096, 64, 8)), None);
        // The entry of the freed allocation is evicted once another allocation lies there.
        assert_eq!(cache.keep(key(4000, 97, 8), region(2)), [(0, region(1))]);
        assert_eq!((cache.take(&key(4096, 64, 7)), cache.put_back(0, region(1))), (None, false));
        assert_eq!(cache.counts, CacheCounts { hits: 0, misses: 2, evictions: 1 });
    }

    #[test]
    fn a_registration_in_use_is_neither_shared_nor_evicted() {
        let mut cache = RegistrationCache::default();
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
        let mut cache = RegistrationCache::default();
        let at = |n: usize, len| key(n * BYTES, len, n as u64);
        assert_eq!((cache.keep(at(1, BYTES / 2), region(1)), cache.put_back(0, region(1))), (vec![], true));
        assert_eq!((cache.keep(at(2, BYTES + 1), region(2)), cache.put_back(0, region(2))), (vec![], false));
        assert_eq!((cache.keep(at(3, BYTES / 2), region(3)), cache.put_back(0, region(3))), (vec![], true));
        assert_eq!(cache.keep(at(4, BYTES), region(4)), [(0, region(1)), (0, region(3))]);
    }

    #[test]
    fn a_closed_region_takes_its_registrations_with_it() {
        let mut cache = RegistrationCache::default();
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
