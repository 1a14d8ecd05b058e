// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The blocks of one list operation, checked once. Neighbouring blocks that adjoin both locally and at the peer are merged
//! into one run, and each pair of descriptor and key is stored once.

use crate::error::{Error, Result, errno};
use crate::fallible::{MakeRoom, copied, with_room};
use crate::mr::{DEVICE_DESC, Iov};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most blocks of one list.
pub const LIST_MAX: usize = 1 << 20;
/// The most bytes of a run: as many as one system call or one work request moves.
const RUN_MAX: usize = 1 << 30;

/// A block; the layout is that of the C structure.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Block {
    pub buf: usize,
    pub addr: u64,
    pub len: usize,
}

/// One or more consecutive blocks that adjoin on both sides.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub local: Iov,
    pub addr: u64,
    /// The index of the run's first block in the caller's list.
    pub first: u32,
    /// The index of the run's descriptor and key in `List::pairs`.
    pub pair: u32,
}

impl Run {
    #[inline(always)]
    pub fn buf(&self) -> usize {
        self.local.addr()
    }

    #[inline(always)]
    #[allow(clippy::len_without_is_empty)] // no run is empty
    pub fn len(&self) -> usize {
        self.local.len()
    }
}

/// The local descriptor and the peer's key of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Pair {
    pub desc: u64,
    pub key: u64,
}

impl Pair {
    pub fn is_on_host(&self) -> bool {
        self.desc & DEVICE_DESC == 0
    }
}

/// The checked blocks of one list operation.
#[derive(Debug)]
pub struct List {
    /// Identifies a prepared list, so that a provider can keep what it worked out for the list; 0: not prepared.
    pub number: u64,
    pub runs: Box<[Run]>,
    pub pairs: Box<[Pair]>,
    pub total: usize,
    /// The peer's address of the first block, even if that block is empty.
    pub addr: u64,
    /// For each block, the offset of its end in its run: finds the block that failed. Empty if no blocks were merged.
    ends: Box<[usize]>,
}

/// The element for block `i`: `of[i]`; or the only element, which then is for all blocks; or 0 if there is none.
fn pick(of: &[u64], i: usize) -> u64 {
    if of.len() > 1 { of[i] } else { of.first().copied().unwrap_or(0) }
}

impl List {
    /// Checks the blocks and merges neighbours. `descs` and `keys` have one element for all blocks, or one for each, as the
    /// caller has checked. No block may be longer than `max`.
    ///
    /// # Safety
    /// Each block is memory as [`Iov::new`] asks.
    pub unsafe fn new(blocks: &[Block], descs: &[u64], keys: &[u64], max: usize) -> Result<List> {
        let mut pairs = vec![Pair { desc: pick(descs, 0), key: pick(keys, 0) }];
        let several = descs.len() > 1 || keys.len() > 1;
        // SAFETY: the caller promises that each block is memory as `Iov::new` asks.
        let simple = if several { None } else { unsafe { one_each(blocks, max)? } };
        let (runs, total, merged) = match simple {
            Some((runs, total)) => (runs, total, false),
            // SAFETY: the caller promises that each block is memory as `Iov::new` asks.
            None => unsafe { join(blocks, descs, keys, max, &mut pairs)? },
        };
        let ends = if merged { ends_of(blocks, &runs)? } else { Box::default() };
        Ok(List { number: 0, runs: runs.into(), pairs: pairs.into(), total, addr: blocks.first().map_or(0, |b| b.addr), ends })
    }

    /// Gives the list a number of its own, because it is prepared and will be posted many times.
    pub fn keep(&mut self) {
        static LAST: AtomicU64 = AtomicU64::new(0);
        self.number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    }

    pub fn pair(&self, run: &Run) -> Pair {
        self.pairs[run.pair as usize]
    }

    /// The same blocks with other descriptors and keys.
    pub fn renamed(&self, pairs: Box<[Pair]>) -> Result<List> {
        let (runs, ends) = (copied(&self.runs)?.into(), copied(&self.ends)?.into());
        Ok(List { number: self.number, runs, pairs, total: self.total, addr: self.addr, ends })
    }

    /// A list of only the runs in these ranges, sorted so that runs of one pair follow each other.
    pub fn grouped(&self, ranges: impl Iterator<Item = Range<usize>>) -> Result<List> {
        let mut runs: Vec<Run> = with_room(self.runs.len())?;
        runs.extend(ranges.flat_map(|range| self.runs[range].iter().copied()));
        runs.sort_unstable_by_key(|run| (run.pair, run.first));
        let (pairs, ends) = (copied(&self.pairs)?.into(), copied(&self.ends)?.into());
        Ok(List { number: 0, runs: runs.into(), pairs, total: self.total, addr: self.addr, ends })
    }

    pub fn first_buf(&self) -> usize {
        self.runs.first().map_or(0, Run::buf)
    }

    /// The index of the block that contains byte `at` of a run.
    pub fn block_at(&self, run: &Run, at: usize) -> usize {
        let first = run.first as usize;
        match self.ends.get(first..) {
            Some(ends) => first + ends.iter().position(|end| *end > at).unwrap_or(0),
            None => first,
        }
    }

    /// The blocks of run `i`, each as a run of its own.
    pub fn blocks_of(&self, i: usize) -> Vec<Run> {
        let run = self.runs[i];
        let (mut from, mut list) = (0, Vec::new());
        while from < run.len() {
            let block = self.block_at(&run, from);
            let end = self.ends.get(block).map_or(run.len(), |end| (*end).min(run.len()));
            let end = if end > from { end } else { run.len() };
            list.push(Run { local: run.local.part(from, end - from), addr: run.addr + from as u64, first: block as u32, pair: run.pair });
            from = end;
        }
        list
    }
}

/// One run for each block, and the sum of the lengths. `None` if a block is empty, adjoins the one before it in local memory,
/// or is invalid; `join` then decides. Most lists pass here, at half the cost of `join`.
///
/// # Safety
/// As for [`List::new`].
unsafe fn one_each(blocks: &[Block], max: usize) -> Result<Option<(Vec<Run>, usize)>> {
    let mut runs = with_room(blocks.len())?;
    // Above these bounds, an address plus a block's length may overflow.
    let (high, high_there) = (usize::MAX - max, u64::MAX - max as u64);
    let (mut total, mut other, mut end) = (0u128, false, 0);
    let run = |(i, b): (usize, &Block)| {
        other |= (b.len.wrapping_sub(1) >= max) | (b.buf.wrapping_sub(1) >= high) | (b.addr > high_there) | (b.buf == end);
        end = b.buf.wrapping_add(b.len);
        total += b.len as u128;
        // SAFETY: the C caller promises that the block's bytes stay until the list has completed.
        Run { local: unsafe { Iov::new(b.buf, b.len) }, addr: b.addr, first: i as u32, pair: 0 }
    };
    runs.extend(blocks.iter().enumerate().map(run));
    Ok(usize::try_from(total).ok().filter(|_| !other).map(|total| (runs, total)))
}

/// The runs of the blocks, with neighbours merged; the sum of the lengths; and whether any were merged.
///
/// # Safety
/// As for [`List::new`].
unsafe fn join(blocks: &[Block], descs: &[u64], keys: &[u64], max: usize, pairs: &mut Vec<Pair>) -> Result<(Vec<Run>, usize, bool)> {
    let mut runs: Vec<Run> = with_room(blocks.len())?;
    let mut places: HashMap<Pair, u32> = HashMap::new();
    let (mut last, mut total, mut merged) = (0u32, 0u128, false);
    let several = descs.len() > 1 || keys.len() > 1;
    let most = max.min(RUN_MAX);
    for (i, b) in blocks.iter().enumerate() {
        if b.len == 0 {
            continue;
        }
        check(i, b, max)?;
        total += b.len as u128;
        if several {
            let pair = Pair { desc: pick(descs, i), key: pick(keys, i) };
            if pairs[last as usize] != pair {
                places.room(2)?;
                pairs.room(1)?;
                places.entry(pairs[0]).or_insert(0);
                last = *places.entry(pair).or_insert_with(|| {
                    pairs.push(pair);
                    pairs.len() as u32 - 1
                });
            }
        }
        if let Some(run) = runs.last_mut()
            && run.buf() + run.len() == b.buf
            && run.addr + run.len() as u64 == b.addr
            && run.len() + b.len <= most
            && run.pair == last
        {
            // SAFETY: the C caller promises that both blocks' bytes stay until the list has completed, and the second begins
            // where the first ends.
            run.local = unsafe { Iov::new(run.buf(), run.len() + b.len) };
            merged = true;
            continue;
        }
        // SAFETY: the C caller promises that the block's bytes stay until the list has completed.
        let local = unsafe { Iov::new(b.buf, b.len) };
        runs.push(Run { local, addr: b.addr, first: i as u32, pair: last });
    }
    let total = usize::try_from(total).map_err(|_| Error::fixed(errno::EMSGSIZE, "blocks: the lengths overflow"))?;
    Ok((runs, total, merged))
}

/// Refuses a block at NULL, of more than `max` bytes, or whose end overflows an address.
#[inline]
fn check(i: usize, b: &Block, max: usize) -> Result<()> {
    if b.buf == 0 || b.buf.checked_add(b.len).is_none() || b.addr.checked_add(b.len as u64).is_none() {
        return Err(Error::invalid(format!("blocks[{i}]: buf is NULL, or an address plus the length overflows")));
    }
    if b.len > max {
        return Err(Error::new(errno::EMSGSIZE, format!("blocks[{i}].len: more than the {max} bytes of max_msg_size")));
    }
    Ok(())
}

/// For each block, the offset of its end in its run. An empty block ends where the block before it does.
#[cold]
fn ends_of(blocks: &[Block], runs: &[Run]) -> Result<Box<[usize]>> {
    let mut all = with_room(blocks.len())?;
    let (mut next, mut at) = (runs.iter().map(|r| r.first as usize).peekable(), 0);
    let ends = blocks.iter().enumerate().map(|(i, b)| {
        if next.peek() == Some(&i) {
            next.next();
            at = 0;
        }
        at += b.len;
        at
    });
    all.extend(ends);
    Ok(all.into())
}

/// The result of handing a list to a provider (`Endpoint::list`).
#[derive(Debug)]
pub enum Native {
    /// The list is complete: all bytes are in place.
    Done,
    /// One operation for the whole list was posted, and will end.
    Flying,
    /// Nothing was done: try again after progress.
    Blocked,
    /// The provider posts the list in parts of its own choice (`Endpoint::list_part`).
    Parts,
    /// The provider has no means of its own for this list: the caller posts its runs as ordinary operations.
    Pieces,
    /// The list failed: the index of the block, and the reason.
    Failed(usize, Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(blocks: &[Block], descs: &[u64], keys: &[u64], max: usize) -> Result<List> {
        // SAFETY: the tests never access the memory behind these addresses.
        unsafe { List::new(blocks, descs, keys, max) }
    }

    fn block(buf: usize, addr: u64, len: usize) -> Block {
        Block { buf, addr, len }
    }

    #[test]
    fn neighbours_that_adjoin_on_both_sides_are_one_run() {
        let blocks = [block(100, 1000, 10), block(5, 5, 0), block(110, 1010, 6), block(116, 2000, 4), block(200, 2004, 4)];
        let made = list(&blocks, &[], &[7], 1 << 20).unwrap();
        let runs: Vec<_> = made.runs.iter().map(|r| (r.buf(), r.addr, r.len(), r.first)).collect();
        assert_eq!(runs, [(100, 1000, 16, 0), (116, 2000, 4, 3), (200, 2004, 4, 4)]);
        assert_eq!(
            (made.total, made.block_at(&made.runs[0], 9), made.block_at(&made.runs[0], 10), made.block_at(&made.runs[2], 3)),
            (24, 0, 2, 4)
        );
        let parts: Vec<_> = made.blocks_of(0).iter().map(|r| (r.buf(), r.addr, r.len(), r.first)).collect();
        assert_eq!(parts, [(100, 1000, 10, 0), (110, 1010, 6, 2)]);
    }

    #[test]
    fn blocks_of_other_keys_stay_apart_and_keys_stand_once() {
        let blocks = [block(100, 1000, 8), block(108, 1008, 8), block(116, 1016, 8), block(124, 1024, 8)];
        let made = list(&blocks, &[], &[1, 2, 1, 1], 1 << 20).unwrap();
        assert_eq!(made.grouped([0..1, 1..3].into_iter()).unwrap().runs.iter().map(|r| r.first).collect::<Vec<_>>(), [0, 2, 1]);
        assert_eq!((made.runs.len(), made.pairs.len()), (3, 2));
        assert_eq!(made.runs.iter().map(|r| made.pair(r).key).collect::<Vec<_>>(), [1, 2, 1]);
    }

    #[test]
    fn invalid_blocks_are_refused() {
        let bad = [block(0, 1000, 8), block(usize::MAX, 1000, 8), block(8, u64::MAX, 8), block(8, 8, 1 << 21)];
        assert!(bad.iter().all(|b| list(&[*b], &[], &[1], 1 << 20).is_err()));
        let none = list(&[block(0, 0, 0)], &[], &[1], 1).unwrap();
        assert!(none.runs.is_empty() && none.total == 0 && none.pairs.len() == 1);
    }
}
