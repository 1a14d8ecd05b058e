// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regions of a domain, and copies of a peer into them.

use gdrfab::error::{Code, Error, Result};
use gdrfab::mr::region::Region;
use gdrfab::mr::registry::Registry;
use gdrfab::mr::{Access, Iov, parts};
use gdrfab::prov::op::{Dir, RmaIov};
use parking_lot::Mutex;
use std::sync::Arc;

pub type Regions = Registry<Region<(), ()>>;
/// A copy holds the lock, so who closes a region knows that nobody is inside.
pub type Shared = Arc<Mutex<Regions>>;

/// Copies between local pieces and a peer's regions, which stay locked meanwhile.
pub fn copy(dir: Dir, local: &[Iov], regions: &Regions, remote: &[RmaIov]) -> Result<()> {
    let needed = if dir == Dir::Write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
    let mut checked = Vec::with_capacity(remote.len());
    for r in remote {
        let found = regions.find(r.key).ok_or(Code::Key).and_then(|of| Ok((of, of.range(r.addr, r.len as u64, needed)?, r.len)));
        checked.push(found.map_err(Error::reported)?);
    }
    let mut skip = 0;
    for (region, offset, len) in checked {
        for (piece, from, n) in region.walk(offset, len) {
            let mut there = piece.iov.part(from, n);
            for here in parts(local, skip, n) {
                let (to, from) = if dir == Dir::Write { (there, here) } else { (here, there) };
                // SAFETY: both are memory that the other side of this process gave (`Iov::new`), the region's as long as it is open.
                unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), here.len()) };
                there = there.part(here.len(), there.len());
            }
            skip += n;
        }
    }
    Ok(())
}
