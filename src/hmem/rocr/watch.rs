// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Identities of allocations. The HSA runtime has none, but it tells when memory is freed: an
//! allocation that was seen once is kept here, with a number, until it says so. While it is kept, its
//! address needs no question to the driver.

use super::super::Allocation;
use super::driver::{Hsa, STATUS_SUCCESS};
use crate::error::Result;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

struct Entry {
    allocation: Allocation,
    /// Its callback is registered for it and no other: it can be answered from.
    confirmed: bool,
}

/// By base. The runtime calls back into it, so nothing else is locked behind it.
static KNOWN: Mutex<BTreeMap<u64, Entry>> = Mutex::new(BTreeMap::new());
/// One newcomer at a time, or two would take each other's entry away. The runtime is called under this
/// lock, and calls back under no lock of its own.
static REGISTERING: Mutex<()> = Mutex::new(());
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// The allocation that `addr` lies in, if it is known.
pub fn find(addr: u64) -> Option<Allocation> {
    let known = KNOWN.lock();
    known.range(..=addr).next_back().filter(|(_, e)| e.confirmed && addr < e.allocation.end()).map(|(_, e)| e.allocation)
}

/// The allocation that `query` finds, with an identity if the runtime will tell when it is freed.
pub fn identify(hsa: &Hsa, addr: u64, query: impl Fn() -> Result<Option<Allocation>>) -> Result<Option<Allocation>> {
    let _one = REGISTERING.lock();
    if let Some(known) = find(addr) {
        return Ok(Some(known));
    }
    let Some(mut new) = query()? else { return Ok(None) };
    loop {
        new.id = LAST_ID.fetch_add(1, Ordering::Relaxed) + 1;
        // First the entry, then the callback: it may come at once, and has to find it.
        KNOWN.lock().insert(new.base, Entry { allocation: new, confirmed: false });
        // SAFETY: `freed` lives as long as the process, and takes the number as it is.
        let status = unsafe { hsa.hsa_amd_register_deallocation_callback(new.base as *mut c_void, freed, new.id as *mut c_void) };
        // What was registered is what lies there now; was that what was asked about?
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
            // Not from a pool, or the runtime is too old to tell: known, but without an identity.
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

/// The memory at `ptr` is about to be freed.
unsafe extern "C" fn freed(ptr: *mut c_void, id: *mut c_void) {
    super::probe::catch_panic(|| forget(ptr as u64, id as u64));
}
