// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Large copies carried by two cores: the initiator copies from the front, and a target that happens
//! to poll joins from the back. A target that does not poll costs one line in the ring; one that sleeps is woken when there is
//! enough to copy for that to pay.
//!
//! The last bytes are left out of the sharing and copied by the initiator when everything else is in
//! place, so that a target that polls its buffer's end sees the whole.
//!
//! A helper that has claimed a chunk may be held up before it copies it, so the operation ends, whatever became of our own
//! part, only when the helper has reported or is known to be gone.

use super::conn::Conn;
use super::copy::{copy_now, notify};
use super::domain::Domain;
use super::flight::{Flight, Helping, Shared};
use super::job::{RmaJob, Step};
use super::limits::MAX_MSG;
use super::remote::{Remote, no_such_key};
use super::state::State;
use super::wire::{broken, gone, kind, mark, protocol, slot_word, status_of, unpack_slot};
use crate::config;
use crate::error::{Code, Result};
use crate::mr::{Access, Paths};
use crate::prov::op::{Dir, Iov, parts};
use crate::sync::ring::Header;
use crate::sys::process::{Attach, attach_copy, piece};
use crate::sys::{copy, time};

/// How long the initiator waits inside the posting call for the helper's last chunk.
const LINGER_NS: u64 = 200_000;

/// Bytes at the end that are not shared.
const TAIL: usize = 64;

/// Sizes of chunks: what an initiator makes, and a helper takes.
const CHUNK_MIN: usize = 64 << 10;
const CHUNK_MAX: usize = 512 << 10;

/// Bytes that are worth waking a sleeping target for: it takes as long as a tenth of them, and looks on for a while.
const WAKE_BYTES: usize = 1 << 20;

/// Bytes that a helper copies in one turn of its progress.
const HELP_BYTES: usize = 4 << 20;

/// Small chunks let both sides end together; each costs a hand-over of the claim's line, and on the
/// cross-memory path a system call in which both sides want the same locks of the kernel: there, halves
/// up to 1 MiB are a third faster than sixteenths.
fn chunk_size(len: usize, path: Paths) -> usize {
    let parts = if path == Paths::DIRECT { 16 } else { 2 };
    (len / parts).clamp(CHUNK_MIN, CHUNK_MAX).next_multiple_of(4096)
}

/// Offers a large operation to the target and does our part. `None`: not an operation to share.
pub fn start(state: &mut State, domain: &Domain, job: &RmaJob, place: &Remote, offset: u64) -> Result<Option<Step>> {
    let ([local], config) = (job.local.as_slice(), config::get()) else { return Ok(None) };
    if local.len() < config.coop_min.max(2 * TAIL) || !state.options.coop || place.more.is_some() {
        return Ok(None);
    }
    let Some(conn) = state.conn.as_deref_mut() else { return Ok(None) };
    let header = Header { kind: kind::COOP, words: 8, ..Header::default() };
    // A peer that does not poll must not find its ring full of invitations.
    if !conn.tx.is_roomy().map_err(broken)? {
        return Ok(None);
    }
    let Some((slot, generation)) = conn.slots.reserve() else { return Ok(None) };
    let len = local.len() - TAIL;
    let (local, tail) = (&local.part(0, len), local.part(len, TAIL));
    let chunk = chunk_size(len, place.path);
    let chunks = len.div_ceil(chunk) as u32;
    let ours = conn.link.mine.clone();
    ours.slot(slot as usize).open(generation, chunks);
    let (file, file_offset) = domain.regions.lock().shared_place(job.desc, *local).unwrap_or((0, 0));
    let marks = if job.dir == Dir::Read { mark::READ } else { 0 };
    let words =
        [slot_word(slot, generation), place.key, place.base + offset, len as u64, chunk as u64, local.addr() as u64, file, file_offset];
    conn.tx.write(Header { flags: marks, ..header }, &words, &[]);
    conn.offered += len;
    if conn.offered >= WAKE_BYTES {
        conn.offered = 0;
        conn.link.nudge();
    }
    let mut front = 0;
    let failed = loop {
        match ours.slot(slot as usize).claim_front(generation, front, chunks).map_err(broken) {
            Ok(true) => {}
            Ok(false) => break None,
            Err(e) => break Some(e),
        }
        let copied = copy_chunk(conn, place, job.dir, local, offset, chunk, front);
        front += 1;
        if let Err(e) = copied {
            // The gate closed or a page vanished: the helper begins nothing more.
            front = ours.slot(slot as usize).stop(generation, front, chunks).unwrap_or(front);
            break Some(e);
        }
    };
    state.stats.moved(place.path, len + TAIL);
    let shared = Shared {
        end: job.end,
        place: place.clone(),
        dir: job.dir,
        local: *local,
        tail,
        offset,
        data: job.has_data().then_some(job.data),
        chunk,
        chunks,
        front,
        failed,
    };
    let until = time::now_ns() + LINGER_NS;
    loop {
        let reported = ours.slot(slot as usize).reported(generation);
        if reported.chunks >= chunks - front || reported.status != 0 {
            let conn = state.conn.as_deref_mut().ok_or_else(gone)?;
            conn.slots.release(slot);
            return finish(state, &shared, reported.status).map(|()| Some(Step::Done(Ok(()))));
        }
        if time::now_ns() > until {
            break;
        }
        std::hint::spin_loop();
    }
    let conn = state.conn.as_deref_mut().ok_or_else(gone)?;
    conn.coop += 1;
    conn.slots.launch(slot, Flight::Coop(Box::new(shared)));
    Ok(Some(Step::Flying))
}

/// Copies chunk `i`, bypassing the cache if the whole operation is large.
fn copy_chunk(conn: &mut Conn, place: &Remote, dir: Dir, local: &Iov, offset: u64, chunk: usize, i: u32) -> Result<()> {
    let at = i as usize * chunk;
    let n = chunk.min(local.len() - at);
    if place.path == Paths::DIRECT && local.len() >= config::get().nt_threshold {
        let busy = conn.link.mine.busy();
        if !conn.gate.enter(busy, &conn.link.table.entry(place.index).gate, place.generation) {
            conn.remotes.evict(place.key);
            return Err(no_such_key(place.key));
        }
        let (there, here) = (place.one.here() + offset as usize + at, local.part(at, n));
        let (to, from) = if dir == Dir::Write { (there, here.addr()) } else { (here.addr(), there) };
        // SAFETY: `here` is the caller's buffer; the other side was bounds-checked, in the mapping that `place` holds.
        unsafe { copy::copy_streaming(to as *mut u8, from as *const u8, here.len()) };
        conn.gate.leave(busy);
        return Ok(());
    }
    copy_now(conn, place, dir, std::slice::from_ref(local), at, offset + at as u64, n, false)
}

/// The helper is through. All chunks are copied, or it failed and its part is done again here, or ours failed before.
fn finish(state: &mut State, shared: &Shared, status: u16) -> Result<()> {
    if let Some(e) = &shared.failed {
        return Err(e.clone());
    }
    let conn = state.conn.as_deref_mut().ok_or_else(gone)?;
    if status != 0 {
        for i in shared.front..shared.chunks {
            copy_chunk(conn, &shared.place, shared.dir, &shared.local, shared.offset, shared.chunk, i)?;
        }
    } else {
        let helped = shared.local.len().saturating_sub(shared.front as usize * shared.chunk);
        state.stats.bytes_helped += helped as u64;
    }
    let whole = shared.local.len() + TAIL;
    copy_now(conn, &shared.place, shared.dir, &[shared.tail], 0, shared.offset + shared.local.len() as u64, TAIL, true)?;
    notify(conn, shared.dir, shared.data, whole, &[(shared.place.key, shared.place.event, whole)]);
    Ok(())
}

/// The helper reported on a flight: ends it, if the ring has room for the notice.
pub fn landed(state: &mut State, index: u16, status: u16) -> Result<bool> {
    let Some(conn) = state.conn.as_deref_mut() else { return Ok(false) };
    if !conn.room(Header { words: 3, bytes: 128, ..Header::default() })? {
        return Ok(false);
    }
    let Some(Flight::Coop(shared)) = conn.slots.land(index) else { return Ok(false) };
    conn.coop -= 1;
    let result = finish(state, &shared, status);
    state.end(&shared.end, result);
    Ok(true)
}

/// Target's side: looks at a copy that a peer offers. Whatever does not fit is left to the initiator.
pub fn join(conn: &mut Conn, marks: u8, words: &[u64; 8]) -> Result<()> {
    let (slot, generation) = unpack_slot(words[0])?;
    let [_, key, addr, len, chunk, source, file, file_offset] = *words;
    // A new offer: that before it is over.
    conn.helping = None;
    let (Ok(len), Ok(chunk)) = (usize::try_from(len), usize::try_from(chunk)) else { return Ok(()) };
    if !(CHUNK_MIN..=CHUNK_MAX).contains(&chunk)
        || len == 0
        || len > MAX_MSG
        || len.div_ceil(chunk) > crate::sync::claim::MAX_CHUNKS as usize
        || source.checked_add(len as u64).is_none()
    {
        return Err(protocol("the peer offered a shared copy that makes no sense"));
    }
    let read = marks & mark::READ != 0;
    let allowed = conn.remotes.allowed;
    let mapped = if file != 0 && !read && allowed.contains(Paths::DIRECT) {
        let found = conn.remotes.mapped(&conn.link, file, file_offset, len as u64);
        found.filter(|(import, _)| import.site().is_host()).map(|(import, here)| (import.clone(), here))
    } else {
        None
    };
    if mapped.is_some() || (conn.link.cma.is_ok() && allowed.contains(Paths::CMA) && conn.check_alive().is_ok()) {
        conn.helping = Some(Helping { slot, generation, read, key, addr, len, chunk, done: 0, source, mapped });
    }
    Ok(())
}

/// Target's side: copies some chunks; the next turn goes on.
#[cold]
pub fn help(conn: &mut Conn, domain: &Domain) {
    let Some(mut h) = conn.helping.take() else { return };
    let need = if h.read { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
    let Ok(pin) = domain.pin(h.key, h.addr, h.len, need, conn.may_call_drivers()) else { return };
    if !pin.site.is_host() {
        domain.regions.lock().unpin(pin);
        return;
    }
    // Where our pages may be gone, the kernel copies, if it does; otherwise the initiator does all.
    // SAFETY: the mapping covers the source, and is held as long as `h` is.
    let map = h.mapped.as_ref().filter(|_| pin.stays).map(|(_held, address)| unsafe { Iov::new(*address, h.len) });
    if map.is_none() && (conn.link.cma.is_err() || conn.check_alive().is_err()) {
        domain.regions.lock().unpin(pin);
        return;
    }
    let slots = conn.link.peer.clone();
    let slot = slots.slot(h.slot as usize);
    // No more than there are chunks in all, whatever the peer writes into the claim meanwhile.
    let chunks = h.len.div_ceil(h.chunk) as u32;
    let (before, until) = (h.done, chunks.min(h.done + (HELP_BYTES / h.chunk) as u32));
    let (streaming, mut status, mut over) = (h.len >= config::get().nt_threshold, 0u16, false);
    while h.done < until {
        let Some(i) = slot.claim_back(h.generation) else {
            over = true;
            break;
        };
        let at = i as usize * h.chunk;
        if at >= h.len {
            (status, over) = (status_of(Code::PeerBroke), true);
            break;
        }
        let n = h.chunk.min(h.len - at);
        let (mut moved, mut from) = (Ok(()), at);
        for here in parts(&pin.pieces, at, n) {
            moved = moved.and_then(|()| help_run(conn.link.pid, map, h.source, from, here, h.read, streaming));
            from += here.len();
        }
        if moved.is_err() {
            (status, over) = (status_of(Code::Fault), true);
            break;
        }
        h.done += 1;
    }
    domain.regions.lock().unpin(pin);
    if h.done > before || status != 0 {
        slot.report(h.generation, status, h.done);
        conn.link.nudge();
    }
    if !over && h.done < chunks {
        conn.helping = Some(h);
    }
}

fn help_run(pid: i32, mapped: Option<Iov>, source: u64, at: usize, here: Iov, read: bool, streaming: bool) -> Result<()> {
    if let Some(map) = mapped {
        let run = map.part(at, here.len());
        // SAFETY: `Iov::new`: one may be read, and the other, inside our pinned region whose pages stay, as well; no longer than either.
        unsafe { copy::copy(here.as_ptr(), run.as_ptr(), run.len(), if streaming { 0 } else { usize::MAX }) };
        return Ok(());
    }
    let how = if read { Attach::Write } else { Attach::Read };
    attach_copy(pid, how, &[here], &[piece(source + at as u64, here.len())])
}
