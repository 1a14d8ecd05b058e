// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies the blocks of a list: by the CPU through mappings (`copy_mapped`), or by cross-memory attach (`attach`), with
//! as many blocks in one system call as the call can take. The caller (`ops/list.rs`) has checked every block.

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

/// Most bytes that are copied under one busy mark. An owner that closes a region waits for the mark, so `MARK_BYTES`
/// and `MARK_RUNS` bound that wait.
const MARK_BYTES: usize = 64 << 20;
/// Most runs that are copied under one busy mark.
const MARK_RUNS: usize = 16 << 10;

/// Sets the busy mark for all regions at once. `Err`: the index in `regions` of a region that is closed.
fn enter(conn: &mut Conn, regions: &[RemoteRegion]) -> std::result::Result<(), usize> {
    conn.gate.mark(conn.link.mine.busy());
    let shut = regions.iter().position(|p| !gate::shows(&conn.link.table.entry(p.index).gate, p.generation));
    let Some(i) = shut else { return Ok(()) };
    conn.gate.leave(conn.link.mine.busy());
    conn.remotes.evict(regions[i].key);
    Err(i)
}

/// The first block of `pair` in the runs from `from` on; if there is none, the first block of run `from`.
fn first_of(list: &List, from: usize, pair: usize) -> usize {
    list.runs[from..].iter().find(|r| r.pair as usize == pair).map_or(list.runs[from].first, |r| r.first) as usize
}

/// `Err`: the block whose copy failed, and the error.
pub type CopyResult = std::result::Result<(), (usize, Error)>;

/// Copies all blocks through the mappings of the regions. With `deliver`, every CPU sees the written bytes when the
/// function returns.
pub fn copy_mapped(conn: &mut Conn, list: &List, regions: &[RemoteRegion], dir: Dir, deliver: bool, streaming_from: usize) -> CopyResult {
    let streaming = if list.total >= streaming_from { streaming_from.min(64 << 10) } else { usize::MAX };
    let simple = regions.iter().all(|p| p.more.is_none());
    // For each region: the address of its mapping here minus its address in the peer.
    let shifts: Vec<u64> = regions.iter().map(|p| (p.one.here() as u64).wrapping_sub(p.base)).collect();
    let mut at = 0;
    while at < list.runs.len() {
        enter(conn, regions).map_err(|i| (first_of(list, at, i), no_such_key(regions[i].key)))?;
        let until = list.runs.len().min(at + MARK_RUNS);
        let runs = &list.runs[at..until];
        at += match (simple, &shifts[..], dir) {
            (false, ..) => copy_marked(runs, |run| pieces(run, &regions[run.pair as usize], dir, streaming)),
            // SAFETY: the C caller promised that the local blocks stay. The remote blocks were checked against their
            // region, whose entry holds the mapping. The same is true for the three arms below.
            (_, &[shift], Dir::Write) => copy_marked(runs, |run| unsafe { copy_to_region(run, shift, streaming) }),
            // SAFETY: local and remote blocks stay, as for the arm above.
            (_, &[shift], Dir::Read) => copy_marked(runs, |run| unsafe { copy_from_region(run, shift, streaming) }),
            // SAFETY: local and remote blocks stay, as for the arms above.
            (.., Dir::Write) => copy_marked(runs, |run| unsafe { copy_to_region(run, shifts[run.pair as usize], streaming) }),
            // SAFETY: local and remote blocks stay, as for the arms above.
            (.., Dir::Read) => copy_marked(runs, |run| unsafe { copy_from_region(run, shifts[run.pair as usize], streaming) }),
        };
        let busy = conn.link.mine.busy();
        if deliver && at == list.runs.len() { conn.gate.leave_delivered(busy) } else { conn.gate.leave(busy) }
    }
    Ok(())
}

/// Copies runs by `each`, up to the run that reaches `MARK_BYTES`; returns the count of copied runs.
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

/// Copies a block to a region whose mapping here lies `shift` bytes from the peer's addresses.
///
/// # Safety
/// The block is readable, and its place in the mapped region is writable.
#[inline(always)]
unsafe fn copy_to_region(run: &Run, shift: u64, streaming: usize) {
    // SAFETY: the caller promises that the block is readable and its place in the mapped region writable.
    unsafe { copy::copy(run.addr.wrapping_add(shift) as *mut u8, run.buf() as *const u8, run.len(), streaming) };
}

/// Copies a block from a region whose mapping here lies `shift` bytes from the peer's addresses.
///
/// # Safety
/// The block is writable, and its place in the mapped region is readable.
#[inline(always)]
unsafe fn copy_from_region(run: &Run, shift: u64, streaming: usize) {
    // SAFETY: the caller promises that the block is writable and its place in the mapped region readable.
    unsafe { copy::copy(run.buf() as *mut u8, run.addr.wrapping_add(shift) as *const u8, run.len(), streaming) };
}

/// Copies one block of a region that has several pieces.
fn pieces(run: &Run, region: &RemoteRegion, dir: Dir, streaming: usize) {
    let mut local = run.buf();
    for (there, n) in region.walk(run.addr - region.base, run.len()) {
        let (to, from) = if dir == Dir::Write { (there.here, local) } else { (local, there.here) };
        // SAFETY: the C caller promised that the local blocks stay; the remote run was checked against its region, whose entry holds
        // the mapping.
        unsafe { copy::copy(to as *mut u8, from as *const u8, n, streaming) };
        local += n;
    }
}

/// True if all pages of the peer are present, so that cross-memory attach waits for no page.
pub fn pages_are_present(reach: &mut Reach, list: &List, regions: &[RemoteRegion], dir: Dir) -> bool {
    if regions.iter().all(|region| region.more.is_none()) {
        let shifts: Vec<u64> = regions.iter().map(|region| region.one.addr().wrapping_sub(region.base)).collect();
        return reach.has(attach_of(dir), list.runs.iter().map(|run| (run.addr.wrapping_add(shifts[run.pair as usize]), run.len())));
    }
    let ranges = list.runs.iter().flat_map(|run| {
        let region = &regions[run.pair as usize];
        region.walk(run.addr - region.base, run.len()).map(|(there, n)| (there.addr, n))
    });
    reach.has(attach_of(dir), ranges)
}

/// Copies the runs in `which` by cross-memory attach, as many in one system call as the call can take.
pub fn attach(conn: &mut Conn, list: &List, regions: &[RemoteRegion], dir: Dir, which: Range<usize>) -> CopyResult {
    let how = attach_of(dir);
    let mut batch = Batch::default();
    let mut at = which.start;
    while at < which.end {
        batch.clear();
        let (first, mut bytes) = (at, 0);
        while let Some(run) = list.runs[..which.end].get(at) {
            let region = &regions[run.pair as usize];
            let parts = region.more.as_ref().map_or(1, |more| more.len());
            if at > first && (batch.pieces() + parts > Batch::MOST || bytes + run.len() > STEP) {
                break;
            }
            batch.push_local(run.local);
            region.walk(run.addr - region.base, run.len()).for_each(|(there, n)| batch.push_remote(piece(there.addr, n)));
            bytes += run.len();
            at += 1;
        }
        enter(conn, regions).map_err(|i| (first_of(list, first, i), no_such_key(regions[i].key)))?;
        let moved = conn.reach.copy_batch(how, &mut batch, bytes);
        let result = moved.map_err(|e| match e.errno {
            errno::EFAULT => find_failed_block(conn, list, regions, how, first..at, e),
            _ => (list.runs[first].first as usize, list.runs[first].pair, e),
        });
        conn.gate.leave(conn.link.mine.busy());
        result.map_err(|(block, pair, e)| (block, conn.attach_failed(&regions[pair as usize], e)))?;
    }
    Ok(())
}

/// Finds the block that made a cross-memory copy of several runs fail: repeats the call block by block. Returns the block, its pair,
/// and the error; the first block and the error of the whole call if no block fails alone.
#[cold]
fn find_failed_block(
    conn: &Conn,
    list: &List,
    regions: &[RemoteRegion],
    how: Attach,
    among: Range<usize>,
    all: Error,
) -> (usize, u32, Error) {
    let first = &list.runs[among.start];
    let (first, pair) = (first.first as usize, first.pair);
    for i in among {
        for block in list.blocks_of(i) {
            let region = &regions[block.pair as usize];
            let theirs: Vec<Piece> = region.walk(block.addr - region.base, block.len()).map(|(there, n)| piece(there.addr, n)).collect();
            if let Err(e) = conn.reach.copy(how, &[block.local], &theirs) {
                return (block.first as usize, block.pair, e);
            }
        }
    }
    (first, pair, all)
}
