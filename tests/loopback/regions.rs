// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regions of a domain, and copies of a peer into them.

use gdrfab::error::{Code, Error, Result, errno};
use gdrfab::mr::{Access, Iov, parts};
use gdrfab::prov::Counter;
use gdrfab::prov::op::{Dir, RmaIov};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Region {
    pub base: u64,
    pub len: u64,
    pub access: Access,
    pub counter: Option<Arc<Counter>>,
}

/// Regions by their key. A copy holds the lock, so who closes one knows that nobody is inside.
pub type Regions = Mutex<BTreeMap<u64, Region>>;

/// Copies between local pieces and a peer's regions, which stay locked meanwhile.
pub fn copy(dir: Dir, local: &[Iov], regions: &BTreeMap<u64, Region>, remote: &[RmaIov]) -> Result<()> {
    let needed = if dir == Dir::Write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
    for r in remote {
        let region = regions.get(&r.key).ok_or_else(|| Error::coded(errno::EKEYREJECTED, Code::Key, "no region has this key"))?;
        let inside = r.addr >= region.base && r.addr.checked_add(r.len as u64).is_some_and(|end| end <= region.base + region.len);
        if !inside {
            return Err(Error::coded(errno::ERANGE, Code::Bounds, "outside of the peer's region"));
        }
        if !region.access.contains(needed) {
            return Err(Error::coded(errno::EACCES, Code::Access, "the peer's region does not permit this"));
        }
    }
    let mut skip = 0;
    for r in remote {
        let mut there = r.addr as usize;
        for (here, n) in parts(local, skip, r.len) {
            let (to, from) = if dir == Dir::Write { (there, here) } else { (here, there) };
            // SAFETY: who posted promised the local pieces, and who registered the region, which is open, its memory.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, n) };
            there += n;
        }
        skip += r.len;
        if let (Dir::Write, Some(counter)) = (dir, &regions[&r.key].counter) {
            counter.add(1);
        }
    }
    Ok(())
}
