// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lists of an endpoint that are queued or in progress: which operations each list posts next, and how the ends of its
//! operations decide the list's own completion. `lists.rs` holds one `PendingLists` behind a lock and drives it.
//!
//! A list first goes to the provider as a whole (`try_whole`). Otherwise it is posted in parts, each of several runs: as many
//! as fit one RMA operation, or as many as the provider takes. If the peer refuses a part of several blocks, its blocks are
//! posted again one by one, to find the block that fails.

use super::bind::{Bindings, Ending, PART};
use super::contract::Endpoint;
use super::flags;
use super::list::{List, Native, Run};
use super::op::{Common, Dir, IOV_LIMIT, Iov, RmaIov};
use crate::error::{Code, Error, Result, errno};
use crate::sys::time;
use std::collections::VecDeque;
use std::sync::Arc;

/// The most operations of lists that are outstanding on an endpoint at once.
const WINDOW: usize = 64;
/// The sum of bytes of outstanding operations from which no further operation is posted.
const WINDOW_BYTES: usize = 32 << 20;
/// The most bytes of an operation of several runs.
const PACK_BYTES: usize = 256 << 10;
/// Set in the contexts of parts: no address of a user process has this bit.
const MARK: usize = 1 << 63;

/// An outstanding operation of a list. The operation moves `count` runs from run `first` on: all runs of the list, if
/// the provider moves the list itself. A probe of one block has the count 0, and the block's index in `first`.
struct Part {
    context: usize,
    work: usize,
    first: usize,
    count: usize,
    bytes: usize,
}

/// The stage of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// The provider was not asked yet, or could not say yet, if it moves the list by its own means.
    Fresh,
    /// Being posted in parts.
    Pieces,
    /// All parts are posted.
    Posted,
    /// All bytes are in place. Next comes the operation that carries the data for the peer's completion.
    Notify,
    /// The operation with the data was posted, or the provider moves the whole list in one operation.
    Notified,
    /// A part of several blocks was refused: its blocks are posted one by one, to find the one that fails.
    Probe,
    Over,
}

/// A list that is queued or in progress.
pub(super) struct ListWork {
    pub(super) number: usize,
    pub(super) list: Arc<List>,
    pub(super) dir: Dir,
    /// The list's completion, as the caller gets it.
    pub(super) end: Ending,
    pub(super) flags: u64,
    pub(super) data: u64,
    pub(super) peer: u64,
    pub(super) stage: Stage,
    /// True if the provider decides how many runs each part has (`Native::Parts`).
    pub(super) parts: bool,
    /// True if the peer cannot take runs of several regions in one operation. Each further part then has runs of one
    /// key.
    pub(super) by_key: bool,
    /// The parts (first run, count) that the peer refused for that reason, which are posted again.
    pub(super) refused: Vec<(usize, usize)>,
    /// The next run to post.
    pub(super) next: usize,
    /// The number of outstanding parts.
    pub(super) outstanding: usize,
    pub(super) failed: Option<(usize, Error)>,
    /// Blocks of a refused part that are still to be posted one by one, in reverse order.
    pub(super) probes: Vec<Run>,
}

/// The lists of an endpoint and their outstanding parts. For the limits, `bytes` is the sum of the parts' bytes, and
/// `runs` the sum of the lists' runs. `turn` is the last number that a list or a part was given.
#[derive(Default)]
pub(super) struct PendingLists {
    pub(super) works: VecDeque<ListWork>,
    parts: Vec<Part>,
    pub(super) bytes: usize,
    pub(super) runs: usize,
    pub(super) turn: usize,
    pub(super) bind: Bindings,
}

/// Turns the error of a posting call into the error of a list that cannot be posted further. After the end of the
/// connection, the list's completion has the error that outstanding operations have, and not the error that a call
/// returns.
fn lost(e: Error) -> Error {
    match (e.errno, e.code) {
        (errno::ESHUTDOWN | errno::ENOTCONN, Code::Canceled) => Error { errno: errno::ECANCELED, ..e },
        (errno::ESHUTDOWN | errno::ENOTCONN, _) => Error { errno: errno::ECONNRESET, code: Code::PeerGone, ..e },
        _ => e,
    }
}

impl ListWork {
    /// Stops posting parts of the list, which fails with this error once its outstanding parts have ended.
    pub(super) fn stop(&mut self, why: Error) {
        let block = self.list.runs.get(self.next).or(self.list.runs.last()).map_or(0, |r| r.first as usize);
        self.failed.get_or_insert((block, lost(why)));
        self.probes.clear();
        self.refused.clear();
        self.stage = Stage::Over;
    }

    fn has_more(&self) -> bool {
        self.next < self.list.runs.len() || !self.refused.is_empty()
    }

    /// The arguments that every part of the list has. A fence is on the first part only.
    fn common(&self, context: usize, now: u64) -> Common {
        let keep = flags::TRANSMIT_COMPLETE | flags::DELIVERY_COMPLETE;
        let fence = if self.next == 0 { self.flags & flags::FENCE } else { 0 };
        let timeout_ns = if self.end.deadline == 0 { u64::MAX } else { self.end.deadline.saturating_sub(now).max(1) };
        Common { context, flags: self.flags & keep | fence | PART, data: 0, desc: 0, timeout_ns, peer: self.peer }
    }
}

impl PendingLists {
    /// True if the list at `at` may post parts: it is the first list, or the list before it has posted all parts and
    /// this list is not fenced.
    pub(super) fn may_start(&self, at: usize) -> bool {
        let fenced = self.works[at].flags & flags::FENCE != 0;
        at == 0 || !(fenced || matches!(self.works[at - 1].stage, Stage::Fresh | Stage::Pieces))
    }

    /// True if a list without outstanding parts waits to go on, which no completion will announce.
    pub(super) fn needs_polling(&self) -> bool {
        self.works.iter().any(|w| w.outstanding == 0)
    }

    /// Handles the end of a part, and its error if it failed. An error that names its run fails the list at that run's block, or
    /// has the part posted again by key. If the error names none, the part's blocks are posted one by one to find the block.
    pub(super) fn ended(&mut self, context: usize, why: Option<Error>) {
        let Some(at) = self.parts.iter().position(|p| p.context == context) else { return };
        let part = self.parts.swap_remove(at);
        self.bytes -= part.bytes;
        let Some(work) = self.works.iter_mut().find(|w| w.number == part.work) else { return };
        work.outstanding -= 1;
        let Some(why) = why else { return };
        let named = why.piece.filter(|(run, _)| usize::from(*run) < part.count);
        if let Some((run, good)) = named.and_then(|(i, good)| Some((work.list.runs.get(part.first + usize::from(i))?, good as usize))) {
            // If every part already has runs of one key, the refusal of several regions makes no sense, and counts as a
            // failure.
            let may_part = !work.by_key || !work.refused.is_empty();
            if why.code == Code::Path && good >= run.len() && part.count > 1 && may_part {
                if work.stage != Stage::Over {
                    (work.by_key, work.stage) = (true, Stage::Pieces);
                    work.refused.push((part.first, part.count));
                }
                return;
            }
            let block = work.list.block_at(run, good);
            if work.stage != Stage::Over && work.failed.as_ref().is_none_or(|(first, _)| *first > block) {
                (work.failed, work.stage) = (Some((block, why)), Stage::Over);
                work.probes.clear();
            }
            return;
        }
        if part.count == 0 {
            // A probe of one block, which is now known to fail.
            (work.failed, work.stage) = (Some((part.first, why)), Stage::Over);
            return work.probes.clear();
        }
        let block = work.list.runs.get(part.first).map_or(0, |r| r.first as usize);
        if work.stage == Stage::Over || work.failed.as_ref().is_some_and(|(first, _)| *first < block) {
            return;
        }
        let refused = matches!(why.code, Code::Key | Code::Bounds | Code::Access | Code::Fault | Code::Path);
        work.failed = Some((block, why));
        let blocks: Vec<Run> = match work.stage {
            Stage::Pieces | Stage::Posted | Stage::Probe if refused => {
                (part.first..part.first + part.count).flat_map(|i| work.list.blocks_of(i)).rev().collect()
            }
            _ => Vec::new(),
        };
        (work.stage, work.probes) = if blocks.len() > 1 { (Stage::Probe, blocks) } else { (Stage::Over, Vec::new()) };
    }

    /// Stops the lists whose deadline has passed, and cancels their parts.
    pub(super) fn expire(&mut self, prov: &dyn Endpoint) {
        if self.works.iter().all(|w| w.end.deadline == 0) {
            return;
        }
        let now = time::now_ns();
        for at in 0..self.works.len() {
            let work = &self.works[at];
            if work.end.deadline != 0 && work.end.deadline <= now && work.stage != Stage::Over {
                self.cancel_parts(prov, at);
                let words = "the list did not complete before its deadline";
                self.works[at].stop(Error::coded(errno::ETIMEDOUT, Code::Deadline, words));
            }
        }
    }

    /// Cancels those parts of a list that still can be cancelled.
    pub(super) fn cancel_parts(&mut self, prov: &dyn Endpoint, at: usize) {
        let number = self.works[at].number;
        for part in self.parts.iter().filter(|p| p.work == number) {
            // A part that cannot be cancelled ends by itself, and the list ends after that.
            let _ = prov.cancel(part.context);
        }
    }

    /// Records a part that is about to be posted, and returns its context.
    fn add_part(&mut self, at: usize, first: usize, count: usize, bytes: usize) -> usize {
        self.turn = self.turn.wrapping_add(1);
        let context = MARK | self.turn;
        self.parts.push(Part { context, work: self.works[at].number, first, count, bytes });
        self.works[at].outstanding += 1;
        self.bytes += bytes;
        context
    }

    /// Forgets the part that was added last, because its operation was not accepted.
    fn remove_part(&mut self, at: usize) {
        if let Some(part) = self.parts.pop() {
            self.bytes -= part.bytes;
            self.works[at].outstanding -= 1;
        }
    }

    /// Advances a list as far as possible: posts what can be posted now.
    pub(super) fn advance(&mut self, prov: &dyn Endpoint, at: usize, pack: usize) -> Result<()> {
        if self.works[at].stage == Stage::Fresh {
            self.try_whole(prov, at)?;
        }
        if self.works[at].stage == Stage::Pieces {
            self.post_runs(prov, at, pack)?;
        }
        if self.works[at].stage == Stage::Probe && self.works[at].outstanding == 0 {
            self.probe(prov, at)?;
        }
        if self.works[at].stage == Stage::Posted && self.works[at].outstanding == 0 {
            self.works[at].stage = if self.works[at].flags & flags::REMOTE_CQ_DATA != 0 { Stage::Notify } else { Stage::Over };
        }
        if self.works[at].stage == Stage::Notify {
            self.notify_peer(prov, at)?;
        }
        if self.works[at].stage == Stage::Notified && self.works[at].outstanding == 0 {
            self.works[at].stage = Stage::Over;
        }
        Ok(())
    }

    /// Offers the whole list to the provider, which may move it by means of its own.
    fn try_whole(&mut self, prov: &dyn Endpoint, at: usize) -> Result<()> {
        let (list, dir) = (self.works[at].list.clone(), self.works[at].dir);
        let context = self.add_part(at, 0, list.runs.len(), list.total);
        let work = &self.works[at];
        let has_data = work.flags & flags::REMOTE_CQ_DATA;
        let c = Common { data: work.data, ..work.common(context, time::now_ns()) };
        let came = prov.list(dir, &list, &Common { flags: c.flags | has_data, ..c });
        if !matches!(came, Ok(Native::Flying)) {
            self.remove_part(at);
        }
        let work = &mut self.works[at];
        match came? {
            Native::Done => work.stage = Stage::Over,
            Native::Flying => (work.next, work.stage) = (list.runs.len(), Stage::Notified),
            Native::Blocked => {}
            Native::Pieces => {
                if list.pairs.len() > 1 {
                    // Regions that are reached in different ways cannot share an operation, so runs of one pair are put
                    // together.
                    work.list = Arc::new(list.grouped(std::iter::once(0..list.runs.len()))?);
                }
                work.stage = Stage::Pieces;
            }
            Native::Parts => (work.stage, work.parts) = (Stage::Pieces, true),
            Native::Failed(block, why) => (work.failed, work.stage) = (Some((block, why)), Stage::Over),
        }
        Ok(())
    }

    /// Posts parts of the list, as long as the limits of outstanding operations and bytes permit.
    fn post_runs(&mut self, prov: &dyn Endpoint, at: usize, pack: usize) -> Result<()> {
        let (list, dir, now) = (self.works[at].list.clone(), self.works[at].dir, time::now_ns());
        // Parts that the provider forms may have any length. Two of them may be outstanding, so that one waits while
        // the other moves.
        let few = if self.works[at].parts { 2 } else { 1 };
        while self.works[at].has_more() && self.parts.len() < WINDOW && (self.bytes < WINDOW_BYTES || self.parts.len() < few) {
            let first = self.works[at].next;
            if few > 1 {
                if !self.post_part(prov, at, now)? {
                    return Ok(());
                }
                continue;
            }
            let on_host = list.pair(&list.runs[first]).is_on_host();
            let (mut count, mut bytes) = (0, 0);
            for run in &list.runs[first..] {
                let fits = count == 0 || bytes + run.len() <= PACK_BYTES;
                if count == pack || !fits || list.pair(run).is_on_host() != on_host {
                    break;
                }
                (count, bytes) = (count + 1, bytes + run.len());
            }
            let context = self.add_part(at, first, count, bytes);
            let c = self.works[at].common(context, now);
            if !post(prov, dir, &list, &list.runs[first..first + count], &c).inspect_err(|_| self.remove_part(at))? {
                self.remove_part(at);
                return Ok(());
            }
            self.works[at].next = first + count;
        }
        if !self.works[at].has_more() {
            self.works[at].stage = Stage::Posted;
        }
        Ok(())
    }

    /// Posts one part of as many runs as the provider takes. False: try again after progress.
    fn post_part(&mut self, prov: &dyn Endpoint, at: usize, now: u64) -> Result<bool> {
        let work = &self.works[at];
        if !work.refused.is_empty() {
            if work.outstanding > 0 {
                return Ok(false);
            }
            self.regroup(at)?;
        }
        let work = &self.works[at];
        let (list, dir, first) = (work.list.clone(), work.dir, work.next);
        let alike = |r: &&Run| r.pair == list.runs[first].pair;
        let most = if work.by_key { list.runs[first..].iter().take_while(alike).count() } else { list.runs.len() - first };
        let context = self.add_part(at, first, 0, 0);
        let c = self.works[at].common(context, now);
        let count = match prov.list_part(dir, &list.runs[first..first + most], &list.pairs, &c) {
            Ok(count) if count > 0 => count,
            Err(e) if !e.is_again() => {
                self.remove_part(at);
                return Err(e);
            }
            _ => {
                self.remove_part(at);
                return Ok(false);
            }
        };
        let bytes = list.runs[first..first + count].iter().map(Run::len).sum();
        if let Some(part) = self.parts.last_mut() {
            (part.count, part.bytes) = (count, bytes);
        }
        self.bytes += bytes;
        self.works[at].next = first + count;
        Ok(true)
    }

    /// Sorts the refused and the unposted runs by key, after the peer has refused several regions in one operation. The
    /// order of blocks may change, because no order is promised.
    #[cold]
    fn regroup(&mut self, at: usize) -> Result<()> {
        let work = &mut self.works[at];
        let rest = work.refused.iter().map(|(first, count)| *first..first + count).chain(std::iter::once(work.next..work.list.runs.len()));
        let list = Arc::new(work.list.grouped(rest)?);
        self.runs -= work.list.runs.len() - list.runs.len();
        (work.list, work.next) = (list, 0);
        work.refused.clear();
        Ok(())
    }

    /// Posts the next block of a refused part alone.
    fn probe(&mut self, prov: &dyn Endpoint, at: usize) -> Result<()> {
        let work = &mut self.works[at];
        let Some(run) = work.probes.pop() else {
            // No block was refused on its own, so the error of the whole part stands.
            work.stage = Stage::Over;
            return Ok(());
        };
        let (list, dir) = (work.list.clone(), work.dir);
        let context = self.add_part(at, run.first as usize, 0, run.len());
        let c = self.works[at].common(context, time::now_ns());
        match post(prov, dir, &list, &[run], &c) {
            Ok(true) => {}
            Ok(false) => {
                self.remove_part(at);
                self.works[at].probes.push(run);
            }
            Err(_) => {
                self.remove_part(at);
                self.works[at].stage = Stage::Over;
            }
        }
        Ok(())
    }

    /// Posts an empty write that carries the list's data to the peer, after the last byte is in place.
    fn notify_peer(&mut self, prov: &dyn Endpoint, at: usize) -> Result<()> {
        let list = self.works[at].list.clone();
        let last = list.runs.len().saturating_sub(1);
        let context = self.add_part(at, last, 1, 0);
        let work = &self.works[at];
        let (addr, key) = (list.addr, list.pairs.first().map_or(0, |p| p.key));
        let c = work.common(context, time::now_ns());
        let c = Common { flags: c.flags | flags::REMOTE_CQ_DATA, data: work.data, ..c };
        match prov.rma(Dir::Write, &[Iov::EMPTY], &[RmaIov { addr, len: 0, key }], &c, &[]) {
            Ok(()) => self.works[at].stage = Stage::Notified,
            Err(e) => {
                self.remove_part(at);
                if !e.is_again() {
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// Removes the lists that have ended, and reports their completions.
    pub(super) fn report_finished(&mut self) {
        let mut at = 0;
        while at < self.works.len() {
            let work = &self.works[at];
            if work.stage != Stage::Over || work.outstanding > 0 {
                at += 1;
                continue;
            }
            let Some(work) = self.works.remove(at) else { return };
            self.runs -= work.list.runs.len();
            match work.failed {
                None => self.bind.succeed(&work.end),
                Some((block, why)) => self.bind.tell_failed_block(&work.end, why.context(format_args!("block {block}")), block),
            }
        }
    }
}

/// Posts runs as one RMA operation. False: try again after progress.
fn post(prov: &dyn Endpoint, dir: Dir, list: &List, runs: &[Run], c: &Common) -> Result<bool> {
    let (mut local, mut remote, mut descs) = ([Iov::EMPTY; IOV_LIMIT], [RmaIov::default(); IOV_LIMIT], [0; IOV_LIMIT]);
    for (i, run) in runs.iter().enumerate() {
        let pair = list.pair(run);
        local[i] = run.local;
        remote[i] = RmaIov { addr: run.addr, len: run.len(), key: pair.key };
        descs[i] = pair.desc;
    }
    let (n, desc) = (runs.len(), descs[0]);
    match prov.rma(dir, &local[..n], &remote[..n], &Common { desc, ..*c }, &descs[..n]) {
        Ok(()) => Ok(true),
        Err(e) if e.is_again() => Ok(false),
        Err(e) => Err(e),
    }
}
