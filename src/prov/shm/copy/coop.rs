// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Large operations that two cores copy together: the initiator copies from the front, and a target that happens to
//! poll copies from the back. The offer to a target that does not poll costs one line in the ring. The initiator wakes
//! a sleeping target if the initiator's option says so and there is enough to copy.
//!
//! The last bytes are not shared. The initiator copies them when all other bytes are in place, so that a target that
//! polls the end of its buffer then finds all bytes of the operation.

use super::direct::{copy_now, notify};
use super::mixed_paths::attach_of;
use super::shared_copy::{Claim, copy_back, report};
use crate::config;
use crate::error::{Code, Result};
use crate::hmem::Site;
use crate::mr::{Access, Paths};
use crate::prov::flags;
use crate::prov::op::{Dir, IOV_LIMIT, Iov, Pieces, RmaIov, parts};
use crate::prov::shm::domain::Domain;
use crate::prov::shm::limits::MAX_MSG;
use crate::prov::shm::peer::regions::{RemoteRegion, no_such_key};
use crate::prov::shm::state::State;
use crate::prov::shm::state::conn::Conn;
use crate::prov::shm::state::in_flight::{CopyWork, Flight, HelpedCopy, HelperPart, OfferedWork, SharedCopy};
use crate::prov::shm::state::job::{RmaJob, Step};
use crate::prov::shm::wire::message::{gone, kind, mark, protocol, unpack_slot};
use crate::sync::claim::MAX_CHUNKS;
use crate::sys::copy;
use crate::sys::space::{Attach, Reach, piece};

/// Bytes at the end of an operation that the initiator copies alone, last.
const TAIL: usize = 64;

/// Bounds of a chunk's size, for the initiator that chooses it and for the helper that checks it.
const CHUNK_MIN: usize = 64 << 10;
const CHUNK_MAX: usize = 512 << 10;

/// The size of a chunk. Small chunks let both sides end at the same time, but each chunk costs a transfer of the
/// claim's cache line between the cores. By cross-memory attach each chunk also costs a system call, in which both
/// sides take the same kernel locks. So there a chunk is half of the operation, up to `CHUNK_MAX`.
fn chunk_size(len: usize, path: Paths) -> usize {
    let parts = if path == Paths::DIRECT { 16 } else { 2 };
    (len / parts).clamp(CHUNK_MIN, CHUNK_MAX).next_multiple_of(4096)
}

/// Offers a large operation to the target and copies this side's part. `None`: the operation is not shared, and nothing
/// was done.
pub fn start(state: &mut State, domain: &Domain, job: &RmaJob, region: &RemoteRegion, offset: u64) -> Result<Option<Step>> {
    let ([local], config) = (job.local.as_slice(), config::get()) else { return Ok(None) };
    if local.len() < config.debug.coop_min.max(2 * TAIL) || !state.options.coop.is_on() || region.more.is_some() {
        return Ok(None);
    }
    let Some(conn) = state.conn.as_deref_mut() else { return Ok(None) };
    let len = local.len() - TAIL;
    let (local, tail) = (&local.part(0, len), local.part(len, TAIL));
    let chunk = chunk_size(len, region.path);
    let (file, file_offset) = domain.regions.lock().shared_place(job.desc, *local).unwrap_or((0, 0));
    let mut words = [0, region.key, region.base + offset, len as u64, chunk as u64, local.addr() as u64, file, file_offset];
    let Some(mut claim) = Claim::offer(conn, state.options.coop, kind::COOP, job.dir, len.div_ceil(chunk) as u32, len, &mut words)? else {
        return Ok(None);
    };
    let failed = claim.copy_front(conn, |conn, i| copy_chunk(conn, region, job.dir, local, offset, chunk, i));
    state.stats.moved(region.path, len + TAIL);
    let what = CopyWork::One { region: region.clone(), local: *local, tail, offset, chunk };
    let shared = SharedCopy {
        end: job.end,
        dir: job.dir,
        data: job.has_data().then_some(job.data),
        chunks: claim.chunks,
        front: claim.front,
        failed,
        what,
    };
    match claim.linger(conn) {
        Some(status) => finish(state, &shared, status).map(|()| Some(Step::Done(Ok(())))),
        None => {
            conn.coop += 1;
            conn.slots.launch(claim.slot, Flight::Coop(Box::new(shared)));
            Ok(Some(Step::InFlight))
        }
    }
}

/// Copies chunk `i`; with streaming stores, which bypass the cache, if the whole operation is large.
fn copy_chunk(conn: &mut Conn, region: &RemoteRegion, dir: Dir, local: &Iov, offset: u64, chunk: usize, i: u32) -> Result<()> {
    let at = i as usize * chunk;
    let n = chunk.min(local.len() - at);
    if region.path == Paths::DIRECT && local.len() >= config::get().debug.nt_threshold {
        let busy = conn.link.mine.busy();
        if !conn.gate.enter(busy, &conn.link.table.entry(region.index).gate, region.generation, region.index) {
            conn.remotes.evict(region.key);
            return Err(no_such_key(region.key));
        }
        let (there, here) = (region.one.here() + offset as usize + at, local.part(at, n));
        let (to, from) = if dir == Dir::Write { (there, here.addr()) } else { (here.addr(), there) };
        // SAFETY: `here` is the caller's buffer, which stays until completion. The remote side was bounds-checked, in the mapping
        // that `region` holds.
        unsafe { copy::copy_streaming(to as *mut u8, from as *const u8, here.len()) };
        conn.gate.leave(busy);
        return Ok(());
    }
    copy_now(conn, region, dir, std::slice::from_ref(local), at, offset + at as u64, n, false)
}

/// Ends a shared operation after the helper's report. If the helper failed, copies the helper's part again here. If
/// this side's part failed before, returns that error.
pub fn finish(state: &mut State, shared: &SharedCopy, status: u16) -> Result<()> {
    let CopyWork::One { region, local, tail, offset, chunk } = &shared.what else { return Ok(()) };
    if let Some(e) = &shared.failed {
        return Err(e.clone());
    }
    let conn = state.conn.as_deref_mut().ok_or_else(gone)?;
    if status != 0 {
        for i in shared.front..shared.chunks {
            copy_chunk(conn, region, shared.dir, local, *offset, *chunk, i)?;
        }
    } else {
        let helped = local.len().saturating_sub(shared.front as usize * chunk);
        state.stats.bytes_helped += helped as u64;
    }
    let whole = local.len() + TAIL;
    copy_now(conn, region, shared.dir, &[*tail], 0, offset + local.len() as u64, TAIL, true)?;
    notify(conn, shared.dir, shared.data, whole, &[(region.key, region.event, whole)]);
    Ok(())
}

/// True if the peer's pages that ending a shared operation may touch are present.
pub fn pages_are_present(reach: &mut Reach, shared: &SharedCopy) -> bool {
    let CopyWork::One { region, local, offset, .. } = &shared.what else { return true };
    if region.path != Paths::CMA {
        return true;
    }
    let whole = region.walk(*offset, local.len() + TAIL).map(|(run, n)| (run.addr, n));
    reach.has(attach_of(shared.dir), whole)
}

/// Makes a new job of the whole operation, which will take the region's present path.
pub fn again(shared: &SharedCopy) -> Option<RmaJob> {
    let CopyWork::One { region, local, tail, offset, .. } = &shared.what else { return None };
    let total = local.len() + tail.len();
    let mut remote = [RmaIov::default(); IOV_LIMIT];
    remote[0] = RmaIov { addr: region.base + offset, len: total, key: region.key };
    Some(RmaJob {
        site: Site::HOST,
        stream_after: 0,
        dir: shared.dir,
        local: Pieces::of_list(vec![*local, *tail]),
        remote,
        count: 1,
        total,
        flags: if shared.data.is_some() { flags::REMOTE_CQ_DATA } else { 0 },
        data: shared.data.unwrap_or(0),
        desc: 0,
        end: shared.end,
        owned: None,
        stream: None,
        held_until: 0,
    })
}

/// Target's side: accepts an operation that the peer offers. If no path to the peer's buffer works, leaves the
/// operation to the initiator, without an error.
pub fn join(conn: &mut Conn, marks: u8, words: [u64; 8]) -> Result<()> {
    let (slot, generation) = unpack_slot(words[0])?;
    let [_, key, addr, len, chunk, source, file, file_offset] = words;
    let (Ok(len), Ok(chunk)) = (usize::try_from(len), usize::try_from(chunk)) else { return Ok(()) };
    if !(CHUNK_MIN..=CHUNK_MAX).contains(&chunk)
        || len == 0
        || len > MAX_MSG
        || len.div_ceil(chunk) > MAX_CHUNKS as usize
        || source.checked_add(len as u64).is_none()
    {
        return Err(protocol("the peer offered a shared copy with invalid values"));
    }
    let read = marks & mark::READ != 0;
    let allowed = conn.remotes.allowed;
    let mapped = if file != 0 && !read && allowed.contains(Paths::DIRECT) {
        let found = conn.remotes.mapped(&conn.link, file, file_offset, len as u64);
        found.filter(|(import, _)| import.site().is_host()).map(|(import, here)| (import.clone(), here))
    } else {
        None
    };
    if mapped.is_some() || (conn.link.why_no_cma().is_none() && allowed.contains(Paths::CMA)) {
        let part = HelperPart { slot, generation, chunks: len.div_ceil(chunk) as u32, done: 0 };
        conn.helping = Some(HelpedCopy { part, read, what: OfferedWork::One { key, addr, len, chunk, source, mapped } });
    }
    Ok(())
}

/// Target's side: copies some chunks of an accepted operation. True: chunks are left for the next turn.
#[cold]
pub fn help(conn: &mut Conn, domain: &Domain, h: &mut HelpedCopy) -> bool {
    let OfferedWork::One { key, addr, len, chunk, source, mapped } = &h.what else { return false };
    let need = if h.read { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
    let Ok(pin) = domain.pin(*key, *addr, *len, need, conn.may_call_drivers()) else { return false };
    // If pages of this side's memory may be gone, only the kernel may copy; without cross-memory attach the initiator
    // copies all.
    // SAFETY: the mapping covers the source, and is held as long as `h` is.
    let map = mapped.as_ref().filter(|_| pin.stays).map(|(_held, address)| unsafe { Iov::new(*address, *len) });
    if !pin.site.is_host() || (map.is_none() && conn.link.why_no_cma().is_some()) {
        domain.regions.lock().unpin(pin);
        return false;
    }
    let streaming = *len >= config::get().debug.nt_threshold;
    let took = copy_back(conn, &mut h.part, |conn, i| {
        let at = i as usize * chunk;
        let (n, mut from) = ((*chunk).min(len - at), at);
        for here in parts(&pin.pieces, at, n) {
            help_run(&mut conn.reach, map, *source, from, here, h.read, streaming)?;
            from += here.len();
        }
        Ok(n)
    });
    domain.regions.lock().unpin(pin);
    report(conn, &h.part, &took)
}

/// Copies one contiguous part of a chunk. After an error the initiator copies the helper's part itself.
fn help_run(
    reach: &mut Reach,
    mapped: Option<Iov>,
    source: u64,
    at: usize,
    here: Iov,
    read: bool,
    streaming: bool,
) -> std::result::Result<(), Code> {
    if let Some(map) = mapped {
        let run = map.part(at, here.len());
        // SAFETY: by the promise of `Iov::new`, `run` is readable memory of the mapped source, and `here` lies in this side's pinned
        // region, whose pages stay. `run` is no longer than `here`.
        unsafe { copy::copy(here.as_ptr(), run.as_ptr(), run.len(), if streaming { 0 } else { usize::MAX }) };
        return Ok(());
    }
    let (how, from) = (if read { Attach::Write } else { Attach::Read }, source + at as u64);
    if !reach.has(how, std::iter::once((from, here.len()))) {
        return Err(Code::Fault);
    }
    reach.copy(how, &[here], &[piece(from, here.len())]).map_err(|_| Code::Fault)
}
