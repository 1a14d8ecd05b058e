// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations that neither one driver nor the CPU can copy alone, because their regions are reached by different paths,
//! or because a region needs a bounce buffer. Each region is copied by its own path, within the call. The copies run
//! only while no earlier operation is in flight, because they could overtake it.

use super::direct::copy_now;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::{self, Site};
use crate::mr::{Paths, piece};
use crate::prov::flags;
use crate::prov::op::{Dir, Iov, parts};
use crate::prov::report::Stats;
use crate::prov::shm::peer::import::check_identity;
use crate::prov::shm::peer::regions::{RemoteRegion, no_such_key};
use crate::prov::shm::state::conn::Conn;
use crate::prov::shm::state::job::{RmaJob, wait_for_stream};
use crate::sys::space::{self, Attach};

/// Bytes of the bounce buffer between device memory and cross-memory attach.
const BOUNCE: usize = 4 << 20;

/// True if a device's driver copies between local memory at `local` and the region.
fn by_driver(local: Site, region: &RemoteRegion) -> bool {
    region.path == Paths::IPC || (!local.is_host() && region.path == Paths::DIRECT)
}

/// True if neither one stream of a driver nor the CPU can copy all regions. `Err`: no driver copies between the local
/// memory and one of the regions.
pub fn need_several_paths(local: Site, regions: &[(RemoteRegion, u64)]) -> Result<bool> {
    let mut ifaces = regions.iter().filter(|(p, _)| p.path == Paths::IPC).map(|(p, _)| p.site);
    if let Some(other) = ifaces.clone().find(|s| !local.is_host() && s.iface != local.iface) {
        let words = format!("no driver copies between {local} and {other}; forbid GDRFAB_PATH_IPC, or copy through host memory");
        return Err(Error::coded(errno::EOPNOTSUPP, Code::Path, words));
    }
    let first = ifaces.next();
    let vendors = ifaces.any(|s| first.is_some_and(|first| first.iface != s.iface));
    let count = regions.iter().filter(|(p, _)| by_driver(local, p)).count();
    let bounced = !local.is_host() && regions.iter().any(|(p, _)| p.path == Paths::CMA);
    Ok(vendors || bounced || (count != 0 && count != regions.len()))
}

/// True if all pages of the peer that cross-memory attach would copy are present.
pub fn pages_are_present(conn: &mut Conn, job: &RmaJob, regions: &[(RemoteRegion, u64)]) -> bool {
    let attached = regions.iter().zip(job.remote()).filter(|((region, _), _)| region.path == Paths::CMA);
    if attached.clone().next().is_none() {
        return true;
    }
    let ranges = attached.flat_map(|((region, offset), r)| region.walk(*offset, r.len).map(|(run, n)| (run.addr, n)));
    conn.reach.has(attach_of(job.dir), ranges)
}

/// The direction of cross-memory attach for an operation of this direction.
pub fn attach_of(dir: Dir) -> Attach {
    if dir == Dir::Write { Attach::Write } else { Attach::Read }
}

/// Copies all regions except those whose path is staged. Returns, for each copied region, its key, true if the region
/// counts writes, and the bytes.
pub fn move_all(conn: &mut Conn, job: &mut RmaJob, regions: &[(RemoteRegion, u64)], stats: &mut Stats) -> Result<Vec<(u64, bool, usize)>> {
    let (mut skip, mut moved) = (0, Vec::with_capacity(regions.len()));
    for (i, (region, offset)) in regions.iter().enumerate() {
        let len = job.remote[i].len;
        if region.path != Paths::STAGED {
            move_now(conn, job, region, *offset, skip, len)?;
            stats.moved(region.path, len);
            moved.push((region.key, region.event, len));
        }
        skip += len;
    }
    Ok(moved)
}

/// Copies the bytes of one region, which begin at byte `skip` of the operation.
fn move_now(conn: &mut Conn, job: &mut RmaJob, region: &RemoteRegion, offset: u64, skip: usize, len: usize) -> Result<()> {
    let deliver = job.flags & flags::DELIVERY_COMPLETE != 0;
    if by_driver(job.site, region) {
        return drive(conn, job, region, offset, skip, len);
    }
    if job.site.is_host() {
        return copy_now(conn, region, job.dir, job.local.as_slice(), skip, offset, len, deliver);
    }
    bounce(conn, job, region, offset, skip, len)
}

/// Enters the region's gate. The caller leaves the gate after the copy.
fn enter(conn: &mut Conn, region: &RemoteRegion) -> Result<()> {
    if conn.gate.enter(conn.link.mine.busy(), &conn.link.table.entry(region.index).gate, region.generation, region.index) {
        return Ok(());
    }
    conn.remotes.evict(region.key);
    Err(no_such_key(region.key))
}

/// Has the device's driver copy, and waits for the copy.
fn drive(conn: &mut Conn, job: &mut RmaJob, region: &RemoteRegion, offset: u64, skip: usize, len: usize) -> Result<()> {
    let site = if region.path == Paths::IPC && job.site.is_host() { region.site } else { job.site };
    wait_for_stream(site, &mut job.stream_after)?;
    let (up, write) = (hmem::get(site.iface)?, job.dir == Dir::Write);
    let how = match (job.site.is_host(), region.site.is_host(), write) {
        (false, false, _) => hmem::Dir::Within,
        (true, _, true) | (false, _, false) => hmem::Dir::ToDevice,
        _ => hmem::Dir::FromDevice,
    };
    enter(conn, region)?;
    let mut moved = Ok(());
    let mut at = skip;
    for (there, run) in region.walk(offset, len) {
        moved = moved.and_then(|()| check_identity(region.site, there.here, there.id));
        let mut here = there.here as u64;
        for part in parts(job.local.as_slice(), at, run) {
            let (to, from) = if write { (here, part.addr() as u64) } else { (part.addr() as u64, here) };
            // SAFETY: the caller promised by `Iov::new` that the part is memory until the operation is over. The remote run was
            // checked against its region, and `region` holds the mapping that the run lies in.
            moved = moved.and_then(|()| unsafe { up.copy(site.device, how, to, from, part.len()) });
            here += part.len() as u64;
        }
        at += run;
    }
    conn.gate.leave(conn.link.mine.busy());
    moved.map_err(|e| Error::coded(e.errno, Code::Fault, e.words))
}

/// Copies between device memory of this side and private host memory of the peer, through a bounce buffer.
fn bounce(conn: &mut Conn, job: &mut RmaJob, region: &RemoteRegion, offset: u64, skip: usize, len: usize) -> Result<()> {
    wait_for_stream(job.site, &mut job.stream_after)?;
    let mut buffer = vec![0u8; len.min(BOUNCE)];
    let mut done = 0;
    while done < len {
        let n = (len - done).min(buffer.len());
        if job.dir == Dir::Write {
            piece::load(job.site, job.local.as_slice(), skip + done, &mut buffer[..n])?;
        }
        across(conn, job.dir, region, offset + done as u64, &mut buffer[..n])?;
        if job.dir == Dir::Read {
            piece::store(job.site, job.local.as_slice(), skip + done, &buffer[..n])?;
        }
        done += n;
    }
    Ok(())
}

/// Has the kernel copy between the bounce buffer and the peer's memory.
fn across(conn: &mut Conn, dir: Dir, region: &RemoteRegion, offset: u64, buffer: &mut [u8]) -> Result<()> {
    enter(conn, region)?;
    let theirs: Vec<_> = region.walk(offset, buffer.len()).map(|(run, n)| space::piece(run.addr, n)).collect();
    let how = attach_of(dir);
    // SAFETY: `buffer` is borrowed exclusively until the copy below has returned.
    let ours = unsafe { Iov::of_mut(buffer) };
    let moved = conn.reach.copy(how, &[ours], &theirs);
    conn.gate.leave(conn.link.mine.busy());
    moved.map_err(|e| conn.attach_failed(region, e))
}
