// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the blocks of a list are copied: through mappings, or by as many as one call of the kernel takes.

use super::mixed_paths::attach_of;
use crate::error::{Error, errno};
use crate::prov::list::{List, Run};
use crate::prov::op::Dir;
use crate::prov::shm::peer::regions::{RemoteRegion, no_such_key};
use crate::prov::shm::state::conn::Conn;
use crate::sync::gate;
use crate::sys::copy;
use crate::sys::space::{Attach, Batch, Piece, Reach, STEP, piece};
use std::ops::Range;

/// Bytes, and blocks, copied under one mark, so that a region is closed in bounded time.
const MARK_BYTES: usize = 64 << 20;
const MARK_RUNS: usize = 16 << 10;

/// Enters all regions under one mark; the place of one that is closed.
fn enter(conn: &mut Conn, places: &[RemoteRegion]) -> std::result::Result<(), usize> {
    conn.gate.mark(conn.link.mine.busy());
    let shut = places.iter().position(|p| !gate::shows(&conn.link.table.entry(p.index).gate, p.generation));
    let Some(i) = shut else { return Ok(()) };
    conn.gate.leave(conn.link.mine.busy());
    conn.remotes.evict(places[i].key);
    Err(i)
}

/// The first block from run `from` on of a pair.
fn first_of(list: &List, from: usize, pair: usize) -> usize {
    list.runs[from..].iter().find(|r| r.pair as usize == pair).map_or(list.runs[from].first, |r| r.first) as usize
}

pub type CopyResult = std::result::Result<(), (usize, Error)>;

/// Copies through mappings.
pub fn copy_mapped(conn: &mut Conn, list: &List, places: &[RemoteRegion], dir: Dir, deliver: bool, streaming_from: usize) -> CopyResult {
    let streaming = if list.total >= streaming_from { streaming_from.min(64 << 10) } else { usize::MAX };
    let simple = places.iter().all(|p| p.more.is_none());
    // Where a byte of each region lies here, less its address.
    let shifts: Vec<u64> = places.iter().map(|p| (p.one.here() as u64).wrapping_sub(p.base)).collect();
    let mut at = 0;
    while at < list.runs.len() {
        enter(conn, places).map_err(|i| (first_of(list, at, i), no_such_key(places[i].key)))?;
        let until = list.runs.len().min(at + MARK_RUNS);
        let runs = &list.runs[at..until];
        at += match (simple, &shifts[..], dir) {
            (false, ..) => copy_marked(runs, |run| pieces(run, &places[run.pair as usize], dir, streaming)),
            // SAFETY: the local blocks stay, as the C caller says; the remote ones were checked against their region, whose entry
            // holds the mapping.
            (_, &[shift], Dir::Write) => copy_marked(runs, |run| unsafe { copy_to_region(run, shift, streaming) }),
            // SAFETY: as above.
            (_, &[shift], Dir::Read) => copy_marked(runs, |run| unsafe { copy_from_region(run, shift, streaming) }),
            // SAFETY: as above.
            (.., Dir::Write) => copy_marked(runs, |run| unsafe { copy_to_region(run, shifts[run.pair as usize], streaming) }),
            // SAFETY: as above.
            (.., Dir::Read) => copy_marked(runs, |run| unsafe { copy_from_region(run, shifts[run.pair as usize], streaming) }),
        };
        let busy = conn.link.mine.busy();
        if deliver && at == list.runs.len() { conn.gate.leave_delivered(busy) } else { conn.gate.leave(busy) }
    }
    Ok(())
}

/// Moves the first of some runs, as many as one mark allows; how many.
#[inline(always)]
fn copy_marked(runs: &[Run], each: impl Fn(&Run)) -> usize {
    let mut bytes = 0;
    for (i, run) in runs.iter().enumerate() {
        each(run);
        bytes += run.len();
        if bytes >= MARK_BYTES {
            return i + 1;
        }
    }
    runs.len()
}

/// Copies a block to a region that is mapped here, `shift` from the peer's addresses.
///
/// # Safety
/// The block and its place in the region are there.
#[inline(always)]
unsafe fn copy_to_region(run: &Run, shift: u64, streaming: usize) {
    // SAFETY: as the caller says.
    unsafe { copy::copy(run.addr.wrapping_add(shift) as *mut u8, run.buf() as *const u8, run.len(), streaming) };
}

/// Copies a block from there.
///
/// # Safety
/// As for `copy_to_region`.
#[inline(always)]
unsafe fn copy_from_region(run: &Run, shift: u64, streaming: usize) {
    // SAFETY: as the caller says.
    unsafe { copy::copy(run.buf() as *mut u8, run.addr.wrapping_add(shift) as *const u8, run.len(), streaming) };
}

/// As `copy_mapped` of a block whose region has several pieces.
fn pieces(run: &Run, place: &RemoteRegion, dir: Dir, streaming: usize) {
    let mut local = run.buf();
    for (there, n) in place.walk(run.addr - place.base, run.len()) {
        let (to, from) = if dir == Dir::Write { (there.here, local) } else { (local, there.here) };
        // SAFETY: as in `copy_mapped`.
        unsafe { copy::copy(to as *mut u8, from as *const u8, n, streaming) };
        local += n;
    }
}

/// Whether the peer's pages are there that the kernel is to copy.
pub fn pages_are_present(reach: &mut Reach, list: &List, places: &[RemoteRegion], dir: Dir) -> bool {
    if places.iter().all(|place| place.more.is_none()) {
        let shifts: Vec<u64> = places.iter().map(|place| place.one.addr().wrapping_sub(place.base)).collect();
        return reach.has(attach_of(dir), list.runs.iter().map(|run| (run.addr.wrapping_add(shifts[run.pair as usize]), run.len())));
    }
    let ranges = list.runs.iter().flat_map(|run| {
        let place = &places[run.pair as usize];
        place.walk(run.addr - place.base, run.len()).map(|(there, n)| (there.addr, n))
    });
    reach.has(attach_of(dir), ranges)
}

/// Has the kernel copy some runs, as many at a time as it takes.
pub fn attach(conn: &mut Conn, list: &List, places: &[RemoteRegion], dir: Dir, which: Range<usize>) -> CopyResult {
    let how = attach_of(dir);
    let mut batch = Batch::default();
    let mut at = which.start;
    while at < which.end {
        batch.clear();
        let (first, mut bytes) = (at, 0);
        while let Some(run) = list.runs[..which.end].get(at) {
            let place = &places[run.pair as usize];
            let parts = place.more.as_ref().map_or(1, |more| more.len());
            if at > first && (batch.pieces() + parts > Batch::MOST || bytes + run.len() > STEP) {
                break;
            }
            batch.push_local(run.local);
            place.walk(run.addr - place.base, run.len()).for_each(|(there, n)| batch.push_remote(piece(there.addr, n)));
            bytes += run.len();
            at += 1;
        }
        enter(conn, places).map_err(|i| (first_of(list, first, i), no_such_key(places[i].key)))?;
        let moved = conn.reach.copy_batch(how, &mut batch, bytes);
        let result = moved.map_err(|e| match e.errno {
            errno::EFAULT => find_failed_block(conn, list, places, how, first..at, e),
            _ => (list.runs[first].first as usize, list.runs[first].pair, e),
        });
        conn.gate.leave(conn.link.mine.busy());
        result.map_err(|(block, pair, e)| (block, conn.attach_failed(&places[pair as usize], e)))?;
    }
    Ok(())
}

/// Which of the blocks that one call moved is it that the kernel could not, and of which pair.
#[cold]
fn find_failed_block(
    conn: &Conn,
    list: &List,
    places: &[RemoteRegion],
    how: Attach,
    among: Range<usize>,
    all: Error,
) -> (usize, u32, Error) {
    let first = &list.runs[among.start];
    let (first, pair) = (first.first as usize, first.pair);
    for i in among {
        for block in list.blocks_of(i) {
            let place = &places[block.pair as usize];
            let theirs: Vec<Piece> = place.walk(block.addr - place.base, block.len()).map(|(there, n)| piece(there.addr, n)).collect();
            if let Err(e) = conn.reach.copy(how, &[block.local], &theirs) {
                return (block.first as usize, block.pair, e);
            }
        }
    }
    (first, pair, all)
}
