// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Identities of allocations. The HSA runtime has none, but it calls back when memory is freed. An allocation gets a
//! number when it is first seen, and is remembered until that callback. Until then, the library answers for its address
//! without a query of the runtime.

use super::super::Allocation;
use super::driver::{Hsa, STATUS_SUCCESS};
use crate::error::Result;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

struct Entry {
    allocation: Allocation,
    /// True if the callback is known to be registered for this very allocation. Only then may the entry be used.
    confirmed: bool,
}

/// Known allocations by first address. The runtime's callback takes this lock, so no other lock is taken under it.
static KNOWN: Mutex<BTreeMap<u64, Entry>> = Mutex::new(BTreeMap::new());
/// Held while an allocation is registered, because otherwise two threads could remove each other's entry. The runtime
/// is called under this lock, and calls back without holding a lock of its own.
static REGISTERING: Mutex<()> = Mutex::new(());
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// The allocation that `addr` lies in, if it is known.
pub fn find(addr: u64) -> Option<Allocation> {
    let known = KNOWN.lock();
    known.range(..=addr).next_back().filter(|(_, e)| e.confirmed && addr < e.allocation.end()).map(|(_, e)| e.allocation)
}

/// The allocation that `query` finds, with an identity if the runtime will report when it is freed.
pub fn identify(hsa: &Hsa, addr: u64, query: impl Fn() -> Result<Option<Allocation>>) -> Result<Option<Allocation>> {
    let _one = REGISTERING.lock();
    if let Some(known) = find(addr) {
        return Ok(Some(known));
    }
    let Some(mut new) = query()? else { return Ok(None) };
    loop {
        new.id = LAST_ID.fetch_add(1, Ordering::Relaxed) + 1;
        // The entry comes before the callback is registered: the callback may run at once, and must find it.
        KNOWN.lock().insert(new.base, Entry { allocation: new, confirmed: false });
        // SAFETY: `freed` exists as long as the process, and uses the pointer only as a number.
        let status = unsafe { hsa.hsa_amd_register_deallocation_callback(new.base as *mut c_void, freed, new.id as *mut c_void) };
        // The callback was registered for the allocation that is at the address now. The second query tells whether it
        // is still the same.
        let now = query()?;
        match now {
            Some(now) if (now.base, now.len) == (new.base, new.len) && matches!(status, Ok(STATUS_SUCCESS)) => {
                if let Some(e) = KNOWN.lock().get_mut(&new.base).filter(|e| e.allocation.id == new.id) {
                    e.confirmed = true;
                }
                return Ok(Some(new));
            }
            _ => forget(new.base, new.id),
        }
        match (now, status) {
            (Some(now), Ok(STATUS_SUCCESS)) => new = now,
            // The memory is not from a pool, or the runtime is too old for callbacks: the allocation has no identity.
            (now, _) => return Ok(now),
        }
    }
}

fn forget(base: u64, id: u64) {
    let mut known = KNOWN.lock();
    if known.get(&base).is_some_and(|e| e.allocation.id == id) {
        known.remove(&base);
    }
}

/// The runtime's callback: the memory at `ptr` is about to be freed.
unsafe extern "C" fn freed(ptr: *mut c_void, id: *mut c_void) {
    super::probe::catch_panic(|| forget(ptr as u64, id as u64));
}
