// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies between local memory and a peer's region within the call, and the notices that tell the peer of a write. Each
//! copy runs inside the region's gate, so that the peer does not close the region during the copy. `deliver` takes
//! bytes out of a ring message.

use crate::config;
use crate::error::Result;
use crate::fallible::zeroed;
use crate::hmem::Site;
use crate::mr::Paths;
use crate::mr::piece::store;
use crate::prov::op::{Dir, Iov, parts};
use crate::prov::shm::peer::regions::{RemoteRegion, no_such_key};
use crate::prov::shm::state::conn::Conn;
use crate::prov::shm::wire::layout::SegmentRef;
use crate::prov::shm::wire::message::{kind, mark};
use crate::sync::consumer::Message;
use crate::sync::ring::Header;
use crate::sys::copy;
use crate::sys::space::{Attach, Piece, Reach, piece};

/// Copies `len` bytes between local pieces (from byte `skip` on) and a peer's region (from `offset` on), by the
/// region's path and inside the region's gate. With `deliver`, every CPU sees the written bytes when the function
/// returns.
#[allow(clippy::too_many_arguments)]
pub fn copy_now(
    conn: &mut Conn,
    region: &RemoteRegion,
    dir: Dir,
    local: &[Iov],
    skip: usize,
    offset: u64,
    len: usize,
    deliver: bool,
) -> Result<()> {
    let busy = conn.link.mine.busy();
    if !conn.gate.enter(busy, &conn.link.table.entry(region.index).gate, region.generation, region.index) {
        conn.remotes.evict(region.key);
        return Err(no_such_key(region.key));
    }
    let result = match region.path {
        Paths::DIRECT => {
            let (mut at, from) = (skip, config::get().debug.nt_threshold);
            let streaming = if len >= from { 0 } else { usize::MAX };
            for (there, run) in region.walk(offset, len) {
                let mut here = there.here;
                for part in parts(local, at, run) {
                    let (to, from) = if dir == Dir::Write { (here, part.addr()) } else { (part.addr(), here) };
                    // SAFETY: the part is local memory; the remote run was bounds-checked, and `region` holds the mapping that it
                    // lies in.
                    unsafe { copy::copy(to as *mut u8, from as *const u8, part.len(), streaming) };
                    here += part.len();
                }
                at += run;
            }
            Ok(())
        }
        _ => attach_run(&conn.reach, region, dir, local, skip, offset, len),
    };
    if deliver {
        conn.gate.leave_delivered(busy)
    } else {
        conn.gate.leave(busy)
    }
    result.map_err(|e| conn.attach_failed(region, e))
}

/// Has the kernel copy by cross-memory attach.
fn attach_run(reach: &Reach, region: &RemoteRegion, dir: Dir, local: &[Iov], skip: usize, offset: u64, len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let ours: Vec<Iov> = parts(local, skip, len).collect();
    let theirs: Vec<Piece> = region.walk(offset, len).map(|(run, n)| piece(run.addr, n)).collect();
    let how = if dir == Dir::Write { Attach::Write } else { Attach::Read };
    reach.copy(how, &ours, &theirs)
}

/// The header of a message as large as all notices of a write to `events` regions, to check the ring's room for
/// `notify`.
pub fn notices(events: usize) -> Header {
    Header { words: 3, bytes: ((events + 1) * 64) as u16, ..Header::default() }
}

/// Sends the target the notices of a write: one message for each region that counts writes, and one with the caller's
/// remote CQ data. A read needs none. The caller has checked the room of the ring before the copy.
pub fn notify(conn: &mut Conn, dir: Dir, data: Option<u64>, total: usize, events: &[(u64, bool, usize)]) {
    if dir == Dir::Read {
        return;
    }
    for (key, counts, len) in events {
        if *counts {
            conn.put_words(kind::NOTIFY, mark::EVENT, &[*key, *len as u64, 0]);
        }
    }
    if let Some(data) = data {
        conn.put_words(kind::NOTIFY, mark::DATA, &[0, total as u64, data]);
    }
}

/// Copies `len` bytes of a ring message into pieces of memory at `site`, from byte `skip` of the pieces on.
pub fn deliver(message: &Message<'_, SegmentRef>, site: Site, pieces: &[Iov], skip: usize, len: usize) -> Result<()> {
    if site.is_host() {
        let mut at = 0;
        for part in parts(pieces, skip, len) {
            message.copy_out(at, part);
            at += part.len();
        }
        return Ok(());
    }
    let mut bytes = zeroed(len)?;
    message.copy_into(0, &mut bytes);
    store(site, pieces, skip, &bytes)
}
