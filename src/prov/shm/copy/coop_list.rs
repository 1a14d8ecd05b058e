// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists that two cores copy together: a target that polls or wakes copies rows from the back. Rows describe the
//! blocks; the target reads them out of the initiator's memory.
//!
//! Only lists that go by cross-memory attach are shared. Through mappings, the initiator has copied blocks of a few KiB
//! before a helper has seen the offer.

use super::direct::notify;
use super::list::{attach, pages_are_present};
use super::shared_copy::{Claim, copy_back, report};
use crate::config;
use crate::error::{Code, Error, Result};
use crate::fallible::{copied, filled, with_room};
use crate::mr::{Access, Paths};
use crate::prov::bind::Ending;
use crate::prov::list::{LIST_MAX, List, Native, Run};
use crate::prov::op::{Dir, Iov, parts};
use crate::prov::shm::domain::Domain;
use crate::prov::shm::memory::region::Pin;
use crate::prov::shm::peer::regions::RemoteRegion;
use crate::prov::shm::state::State;
use crate::prov::shm::state::conn::Conn;
use crate::prov::shm::state::in_flight::{CopyWork, Flight, HelpedCopy, HelperPart, OfferedWork, Row, SharedCopy, SharedListCopy};
use crate::prov::shm::wire::message::{gone, kind, mark, protocol, unpack_slot};
use crate::sys::space::{Attach, Batch, Reach, piece};
use std::ops::Range;

/// A list is shared from `COOP_MINS` times the bytes from which a single operation is shared.
const COOP_MINS: usize = 4;
/// Least average bytes of a run of a shared list. A list of shorter runs takes one system call, which is not shared.
const RUN_MIN: usize = 4 << 10;
/// Most bytes of a row. Lists with longer blocks are not shared as lists; their blocks are shared one by one.
const ROW_MAX: usize = 2 << 20;
/// Least bytes of a chunk that an initiator aims at.
const CHUNK_MIN: usize = 128 << 10;
/// Most bytes of a chunk that an initiator aims at.
const CHUNK_MAX: usize = 1 << 20;
/// Most bytes of a chunk that a helper accepts.
const CHUNK_MOST: usize = 16 << 20;
/// Most rows of a chunk that a helper accepts. The initiator puts no more rows into a chunk than one system call
/// copies.
const ROWS: u64 = 1024;
/// Most regions that a helper pins for one chunk.
const SPANS: usize = 64;

/// True if a list is large enough to be shared, and its runs are neither too short nor too long.
pub fn fits(list: &List) -> bool {
    list.total >= COOP_MINS * config::get().debug.coop_min && list.total / list.runs.len() >= RUN_MIN && longest(list) <= ROW_MAX
}

fn longest(list: &List) -> usize {
    list.runs.iter().map(|r| r.len()).max().unwrap_or(0)
}

/// Count of rows in a chunk of this list.
fn rows_of_chunk(list: &List) -> usize {
    let bytes = (list.total / 32).clamp(CHUNK_MIN, CHUNK_MAX);
    let average = list.total / list.runs.len();
    (bytes / average).clamp(1, Batch::MOST).min(CHUNK_MOST / longest(list))
}

/// The runs of chunk `i`.
fn runs(i: u32, per: usize, all: usize) -> Range<usize> {
    let first = i as usize * per;
    first..all.min(first + per)
}

/// The runs from chunk `front` on, which are the helper's part.
fn rest(front: u32, per: usize, all: usize) -> Range<usize> {
    all.min(front as usize * per)..all
}

/// Offers the list to the target and copies this side's part. The caller has checked every block. `None`: there is no room for an
/// offer.
pub fn start(
    state: &mut State,
    dir: Dir,
    list: &List,
    regions: &[RemoteRegion],
    end: Ending,
    data: Option<u64>,
    events: &[(u64, bool, usize)],
) -> Result<Option<Native>> {
    let conn = state.conn.as_deref_mut().ok_or_else(gone)?;
    let (per, all) = (rows_of_chunk(list), list.runs.len());
    let row = |r: &Run| Row { buf: r.buf() as u64, addr: r.addr, len: r.len() as u64, key: list.pair(r).key };
    let mut rows: Vec<Row> = with_room(all)?;
    rows.extend(list.runs.iter().map(row));
    // Once the list is offered, nothing may fail.
    let kept = list.renamed(copied(&list.pairs)?.into())?;
    let rows = rows.into_boxed_slice();
    let mut words = [0, rows.as_ptr() as u64, all as u64, per as u64];
    let chunks = all.div_ceil(per) as u32;
    let Some(mut claim) = Claim::offer(conn, state.options.coop, kind::COOP_LIST, dir, chunks, list.total, &mut words)? else {
        return Ok(None);
    };
    let mut block = 0;
    let failed = claim.copy_front(conn, |conn, i| {
        attach(conn, list, regions, dir, runs(i, per, all)).map_err(|(at, why)| {
            block = at;
            why
        })
    });
    state.stats.moved(Paths::CMA, list.total);
    match claim.linger(conn) {
        Some(status) => {
            let ended = match failed {
                Some(why) => Err((block, why)),
                None => end_of(state, list, regions, dir, rest(claim.front, per, all), status),
            };
            if let Err((block, why)) = ended {
                return Ok(Some(Native::Failed(block, why)));
            }
            let conn = state.conn.as_deref_mut().ok_or_else(gone)?;
            notify(conn, dir, data, list.total, events);
            Ok(Some(Native::Done))
        }
        None => {
            let failed = failed.map(|why| with_position(list, block, why));
            let what = CopyWork::List(SharedListCopy { list: kept, regions: regions.to_vec(), _rows: rows, per, events: events.to_vec() });
            let shared = SharedCopy { end, dir, data, chunks, front: claim.front, failed, what };
            conn.coop += 1;
            conn.slots.launch(claim.slot, Flight::Coop(Box::new(shared)));
            Ok(Some(Native::Flying))
        }
    }
}

/// Ends the helper's part, the runs `rest`: counts its bytes or, if the helper failed, copies the runs again here.
fn end_of(
    state: &mut State,
    list: &List,
    regions: &[RemoteRegion],
    dir: Dir,
    rest: Range<usize>,
    status: u16,
) -> std::result::Result<(), (usize, Error)> {
    if status == 0 || rest.is_empty() {
        state.stats.bytes_helped += list.runs[rest].iter().map(|r| r.len() as u64).sum::<u64>();
        return Ok(());
    }
    let conn = state.conn.as_deref_mut().ok_or_else(|| (0, gone()))?;
    attach(conn, list, regions, dir, rest)
}

/// Ends a shared list after the helper's report. The caller has checked that the ring has room for the notices.
pub fn finish(state: &mut State, shared: &SharedCopy, status: u16) -> Result<()> {
    let CopyWork::List(SharedListCopy { list, regions, per, events, .. }) = &shared.what else { return Ok(()) };
    if let Some(why) = &shared.failed {
        return Err(why.clone());
    }
    let rest = rest(shared.front, *per, list.runs.len());
    end_of(state, list, regions, shared.dir, rest, status).map_err(|(block, why)| with_position(list, block, why))?;
    let conn = state.conn.as_deref_mut().ok_or_else(gone)?;
    notify(conn, shared.dir, shared.data, list.total, events);
    Ok(())
}

/// Adds to an error the run in which it happened and the bytes of the run that were copied before, where both fit the error's fields.
fn with_position(list: &List, block: usize, why: Error) -> Error {
    let run = list.runs.partition_point(|r| r.first as usize <= block).saturating_sub(1);
    let before = list.blocks_of(run).iter().take_while(|b| (b.first as usize) < block).map(|b| b.len()).sum::<usize>();
    Error { piece: u16::try_from(run).ok().zip(u32::try_from(before).ok()), ..why }
}

/// True if the peer's pages that ending a shared list may touch are present.
pub fn listed_pages_are_present(reach: &mut Reach, dir: Dir, work: &SharedListCopy) -> bool {
    pages_are_present(reach, &work.list, &work.regions, dir)
}

/// Target's side: accepts a list that the peer offers. A list that this side cannot copy is left to the initiator, without an error.
pub fn join(conn: &mut Conn, marks: u8, words: [u64; 4]) -> Result<()> {
    let (slot, generation) = unpack_slot(words[0])?;
    let [_, table, rows, per] = words;
    let bytes = rows.saturating_mul(size_of::<Row>() as u64);
    if rows == 0 || rows > LIST_MAX as u64 || per == 0 || per > ROWS || table.checked_add(bytes).is_none() {
        return Err(protocol("the peer offered a shared list with invalid values"));
    }
    if conn.link.why_no_cma().is_none() && conn.remotes.allowed.contains(Paths::CMA) {
        let (rows, per) = (rows as usize, per as usize);
        let part = HelperPart { slot, generation, chunks: rows.div_ceil(per) as u32, done: 0 };
        conn.helping = Some(HelpedCopy { part, read: marks & mark::READ != 0, what: OfferedWork::List { table, rows, per } });
    }
    Ok(())
}

/// Target's side: copies some chunks of an accepted list. True: chunks are left for the next turn.
#[cold]
pub fn help(conn: &mut Conn, domain: &Domain, h: &mut HelpedCopy) -> bool {
    let OfferedWork::List { table, rows, per } = h.what else { return false };
    // Without memory for the rows, the helper gives up, and the initiator copies everything.
    let Ok(mut buf) = filled(Row::default(), per.min(rows)) else { return false };
    let took = copy_back(conn, &mut h.part, |conn, i| {
        let which = runs(i, per, rows);
        let buf = &mut buf[..which.len()];
        // SAFETY: the rows are plain numbers, and stay during the call.
        let here = unsafe { Iov::new(buf.as_mut_ptr() as usize, size_of_val(buf)) };
        let there = table + (which.start * size_of::<Row>()) as u64;
        if !conn.reach.has(Attach::Read, std::iter::once((there, here.len()))) {
            return Err(Code::Fault);
        }
        conn.reach.copy(Attach::Read, &[here], &[piece(there, here.len())]).map_err(|_| Code::Fault)?;
        copy_rows(conn, domain, h.read, buf)
    });
    report(conn, &h.part, &took)
}

/// The range of one region that a chunk touches.
struct Span {
    key: u64,
    low: u64,
    high: u64,
    pin: Option<Pin>,
}

/// Collects the ranges that the rows touch, one for each region, and the sum of bytes. The peer wrote the rows and may
/// be hostile, so each row is checked.
fn spans_of(rows: &[Row]) -> std::result::Result<(Vec<Span>, usize), Code> {
    let (mut spans, mut bytes): (Vec<Span>, usize) = (Vec::new(), 0);
    for row in rows {
        let end = row.addr.checked_add(row.len).filter(|_| row.len <= ROW_MAX as u64).ok_or(Code::PeerBroke)?;
        bytes += row.len as usize;
        match spans.iter_mut().rev().find(|s| s.key == row.key) {
            Some(span) => (span.low, span.high) = (span.low.min(row.addr), span.high.max(end)),
            None => spans.push(Span { key: row.key, low: row.addr, high: end, pin: None }),
        }
    }
    match bytes > CHUNK_MOST {
        true => Err(Code::PeerBroke),
        // With too many regions in one chunk, the initiator copies the chunk.
        false if spans.len() > SPANS => Err(Code::Fault),
        false => Ok((spans, bytes)),
    }
}

/// Target's side: pins the regions that the rows of a chunk touch, and copies the rows. Returns the bytes copied.
fn copy_rows(conn: &mut Conn, domain: &Domain, read: bool, rows: &[Row]) -> std::result::Result<usize, Code> {
    let (mut spans, bytes) = spans_of(rows)?;
    let need = if read { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
    let mut copied = Ok(());
    for span in &mut spans {
        match domain.pin(span.key, span.low, (span.high - span.low) as usize, need, conn.may_call_drivers()) {
            Ok(pin) => {
                copied = copied.and(if pin.site.is_host() { Ok(()) } else { Err(Code::Fault) });
                span.pin = Some(pin);
            }
            Err(code) => copied = Err(code),
        }
    }
    let copied = copied.and_then(|()| move_rows(conn, read, rows, &spans));
    let mut regions = domain.regions.lock();
    spans.into_iter().filter_map(|s| s.pin).for_each(|pin| regions.unpin(pin));
    copied.map(|()| bytes)
}

/// Copies rows by one call of cross-memory attach, between the initiator's blocks and the pinned regions.
fn move_rows(conn: &mut Conn, read: bool, rows: &[Row], spans: &[Span]) -> std::result::Result<(), Code> {
    let (mut batch, mut len) = (Batch::default(), 0);
    for row in rows {
        let span = spans.iter().rev().find(|s| s.key == row.key).ok_or(Code::Key)?;
        let pieces = span.pin.as_ref().map_or(&[][..], |pin| &pin.pieces);
        parts(pieces, (row.addr - span.low) as usize, row.len as usize).for_each(|part| batch.push_local(part));
        batch.push_remote(piece(row.buf, row.len as usize));
        len += row.len as usize;
    }
    let how = if read { Attach::Write } else { Attach::Read };
    if batch.pieces() > Batch::MOST || !conn.reach.has(how, rows.iter().map(|row| (row.buf, row.len as usize))) {
        return Err(Code::Fault);
    }
    conn.reach.copy_batch(how, &mut batch, len).map_err(|_| Code::Fault)
}
