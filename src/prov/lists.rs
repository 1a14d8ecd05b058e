// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists of an endpoint that are under way. A provider moves a list by means of its own; where it has none, the list is worked
//! off as operations of one block, so many at a time, from progress. Either way one entry tells of the end.

use super::bind::{Binding, Bindings, Ending, Ends, PART};
use super::contract::Endpoint;
use super::flags;
use super::list::{List, Native, Run};
use super::op::{Common, Dir, IOV_LIMIT, Iov, RmaIov};
use crate::error::{Code, Error, Result, errno};
use crate::sys::time;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Operations of lists that are outstanding at once on an endpoint, and their bytes.
const WINDOW: usize = 64;
const WINDOW_BYTES: usize = 32 << 20;
/// Lists that wait or are under way, and their runs.
const WAITING: usize = 1024;
const WAITING_RUNS: usize = 4 << 20;
/// Bytes of several runs that go as one operation.
const PACK_BYTES: usize = 256 << 10;
/// Contexts of parts: no address of a caller's has the bit.
const MARK: usize = 1 << 63;

/// Runs that one operation moves; of a list that a provider moves itself, all.
struct Part {
    context: usize,
    work: usize,
    first: usize,
    count: usize,
    bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The provider has not said how it goes.
    Fresh,
    /// By operations of one block.
    Pieces,
    /// All are posted.
    Posted,
    /// The peer is to be told; then that it was.
    Tell,
    Told,
    /// A part of several blocks was refused: they go one by one, to find out which.
    Probe,
    Over,
}

struct Work {
    number: usize,
    list: Arc<List>,
    dir: Dir,
    /// Of the list: told to the caller.
    end: Ending,
    flags: u64,
    data: u64,
    peer: u64,
    stage: Stage,
    /// The next run, and parts that are posted.
    next: usize,
    out: usize,
    failed: Option<(usize, Error)>,
    /// Blocks of the part that was refused, to be tried one by one.
    probes: Vec<Run>,
}

#[derive(Default)]
struct Waiting {
    works: VecDeque<Work>,
    parts: Vec<Part>,
    bytes: usize,
    runs: usize,
    turn: usize,
    bind: Bindings,
}

pub struct Lists {
    waiting: Mutex<Waiting>,
    /// Lists that wait or are under way; asked without the lock.
    pending: AtomicUsize,
    ends: Arc<Ends>,
    /// Runs that an operation takes.
    pack: usize,
}

/// Why a list ends that can be posted no further.
fn lost(e: Error) -> Error {
    match (e.errno, e.code) {
        (errno::ESHUTDOWN | errno::ENOTCONN, Code::Canceled) => Error { errno: errno::ECANCELED, ..e },
        (errno::ESHUTDOWN | errno::ENOTCONN, _) => Error { errno: errno::ECONNRESET, code: Code::PeerGone, ..e },
        _ => e,
    }
}

impl Lists {
    pub fn new(iov_limit: usize) -> Lists {
        Lists { waiting: Mutex::default(), pending: AtomicUsize::new(0), ends: Arc::default(), pack: iov_limit.clamp(1, IOV_LIMIT) }
    }

    /// What the endpoint is bound to, where the lists' own ends are told.
    pub fn bind(&self, what: Binding) {
        // What cannot be bound was refused by the provider; who names peers, and the order of entries, do not matter here.
        if !matches!(what, Binding::Av(_) | Binding::Order) {
            let _ = self.waiting.lock().bind.bind(what);
        }
    }

    pub fn ends(&self) -> Binding {
        Binding::Ends(self.ends.clone())
    }

    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.pending.load(Ordering::Relaxed) == 0
    }

    /// Whether a part has ended that nobody has looked at.
    pub fn has_news(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Posts a list; it ends here if it can.
    pub fn post(&self, prov: &dyn Endpoint, dir: Dir, list: Arc<List>, c: &Common) -> Result<()> {
        let mut w = self.waiting.lock();
        let (wanted, timeout) = (w.bind.wants_entry(c.flags), if c.timeout_ns != 0 { c.timeout_ns } else { prov.options().deadline_ns });
        if w.works.len() >= WAITING || w.runs + list.runs.len() > WAITING_RUNS.max(list.runs.len()) || !w.bind.reserve(wanted) {
            return Err(Error::AGAIN);
        }
        let kind = flags::RMA | if dir == Dir::Read { flags::READ } else { flags::WRITE };
        let deadline = time::deadline(timeout);
        let end = Ending { context: c.context, kind, len: list.total, buf: list.first_buf(), wanted, deadline, ..Ending::default() };
        w.turn = w.turn.wrapping_add(1);
        let work = Work {
            number: w.turn,
            dir,
            end,
            flags: c.flags,
            data: c.data,
            peer: c.peer,
            stage: Stage::Fresh,
            next: 0,
            out: 0,
            failed: None,
            probes: Vec::new(),
            list,
        };
        w.runs += work.list.runs.len();
        w.works.push_back(work);
        let at = w.works.len() - 1;
        let first = if at == 0 || w.may_start(at) { w.advance(prov, at, self.pack) } else { Ok(()) };
        let posted = w.works[at].next > 0 || w.works[at].out > 0;
        if let Err(e) = first.as_ref()
            && posted
        {
            w.works[at].stop(e.clone());
        } else if let Err(e) = first {
            // Nothing was posted: the call's own result.
            if let Some(work) = w.works.pop_back() {
                w.runs -= work.list.runs.len();
            }
            if let Some(q) = w.bind.tx.as_ref().filter(|_| wanted) {
                q.release();
            }
            return Err(e);
        }
        w.sweep();
        self.pending.store(w.works.len(), Ordering::Relaxed);
        if w.works.iter().any(|work| work.number == w.turn) && (deadline != 0 || w.is_hungry()) {
            w.bind.rouse();
        }
        Ok(())
    }

    /// Takes what has ended, and goes on.
    #[cold]
    pub fn progress(&self, prov: &dyn Endpoint) {
        // A thread that is inside does all there is to do.
        let Some(mut w) = self.waiting.try_lock() else { return };
        for (context, why) in self.ends.take() {
            w.ended(context, why);
        }
        w.expire(prov);
        for at in 0..w.works.len() {
            if !w.may_start(at) {
                break;
            }
            if let Err(e) = w.advance(prov, at, self.pack) {
                w.works[at].stop(e);
            }
        }
        w.sweep();
        self.pending.store(w.works.len(), Ordering::Relaxed);
    }

    /// When somebody has to look again that nothing announces; and whether soon.
    pub fn next_look(&self) -> (u64, bool) {
        let w = self.waiting.lock();
        let deadline = w.works.iter().map(|work| work.end.deadline).filter(|d| *d != 0).min().unwrap_or(u64::MAX);
        (deadline, w.is_hungry())
    }

    /// Ends a list before its end; false: there is none of this context.
    pub fn cancel(&self, prov: &dyn Endpoint, context: usize) -> Result<bool> {
        let mut w = self.waiting.lock();
        for (context, why) in self.ends.take() {
            w.ended(context, why);
        }
        let Some(at) = w.works.iter().position(|work| work.end.context == context && work.failed.is_none()) else { return Ok(false) };
        let why = Error::coded(errno::ECANCELED, Code::Canceled, "cancelled by the caller");
        w.cancel_parts(prov, at);
        for (context, why) in self.ends.take() {
            w.ended(context, why);
        }
        let work = &mut w.works[at];
        if work.out > 0 && work.stage == Stage::Told {
            return Err(Error::new(errno::ENOENT, "context: all of the list is under way, and cannot be cancelled"));
        }
        work.stop(why);
        w.sweep();
        self.pending.store(w.works.len(), Ordering::Relaxed);
        Ok(true)
    }

    /// The endpoint is closed: its operations have ended, and nothing can be posted.
    pub fn close(&self) {
        let mut w = self.waiting.lock();
        for (context, why) in self.ends.take() {
            w.ended(context, why);
        }
        let why = Error::coded(errno::ECANCELED, Code::Canceled, "this side closed the endpoint");
        for work in &mut w.works {
            work.out = 0;
            work.stop(why.clone());
        }
        w.sweep();
        w.bind = Bindings::default();
        self.pending.store(0, Ordering::Relaxed);
    }
}

impl Work {
    /// Nothing more of it is posted; it ends when what is under way has.
    fn stop(&mut self, why: Error) {
        let block = self.list.runs.get(self.next).or(self.list.runs.last()).map_or(0, |r| r.first as usize);
        self.failed.get_or_insert((block, lost(why)));
        self.probes.clear();
        self.stage = Stage::Over;
    }

    fn common(&self, context: usize, now: u64) -> Common {
        let keep = flags::TRANSMIT_COMPLETE | flags::DELIVERY_COMPLETE;
        let fence = if self.next == 0 { self.flags & flags::FENCE } else { 0 };
        let timeout_ns = if self.end.deadline == 0 { u64::MAX } else { self.end.deadline.saturating_sub(now).max(1) };
        Common { context, flags: self.flags & keep | fence | PART, data: 0, desc: 0, timeout_ns, peer: self.peer }
    }
}

impl Waiting {
    /// Whether the list at `at` may post something: those before it have posted all they will.
    fn may_start(&self, at: usize) -> bool {
        let fenced = self.works[at].flags & flags::FENCE != 0;
        at == 0 || !(fenced || matches!(self.works[at - 1].stage, Stage::Fresh | Stage::Pieces))
    }

    /// Whether a list waits for something that nobody announces.
    fn is_hungry(&self) -> bool {
        self.works.iter().any(|w| w.out == 0)
    }

    fn ended(&mut self, context: usize, why: Option<Error>) {
        let Some(at) = self.parts.iter().position(|p| p.context == context) else { return };
        let part = self.parts.swap_remove(at);
        self.bytes -= part.bytes;
        let Some(work) = self.works.iter_mut().find(|w| w.number == part.work) else { return };
        work.out -= 1;
        let Some(why) = why else { return };
        if part.count == 0 {
            // One block of a part that was refused.
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

    fn expire(&mut self, prov: &dyn Endpoint) {
        if self.works.iter().all(|w| w.end.deadline == 0) {
            return;
        }
        let now = time::now_ns();
        for at in 0..self.works.len() {
            let work = &self.works[at];
            if work.end.deadline != 0 && work.end.deadline <= now && work.stage != Stage::Over {
                self.cancel_parts(prov, at);
                let words = "the list could not be moved before its deadline";
                self.works[at].stop(Error::coded(errno::ETIMEDOUT, Code::Deadline, words));
            }
        }
    }

    /// Cancels the parts of a list that still can be.
    fn cancel_parts(&mut self, prov: &dyn Endpoint, at: usize) {
        let number = self.works[at].number;
        for part in self.parts.iter().filter(|p| p.work == number) {
            // What cannot be cancelled any more ends by itself, and the list with it.
            let _ = prov.cancel(part.context);
        }
    }

    fn begin(&mut self, at: usize, first: usize, count: usize, bytes: usize) -> usize {
        self.turn = self.turn.wrapping_add(1);
        let context = MARK | self.turn;
        self.parts.push(Part { context, work: self.works[at].number, first, count, bytes });
        self.works[at].out += 1;
        self.bytes += bytes;
        context
    }

    /// An operation was not accepted.
    fn undo(&mut self, at: usize) {
        if let Some(part) = self.parts.pop() {
            self.bytes -= part.bytes;
            self.works[at].out -= 1;
        }
    }

    /// Posts what can be posted of a list.
    fn advance(&mut self, prov: &dyn Endpoint, at: usize, pack: usize) -> Result<()> {
        if self.works[at].stage == Stage::Fresh {
            self.try_whole(prov, at)?;
        }
        if self.works[at].stage == Stage::Pieces {
            self.feed(prov, at, pack)?;
        }
        if self.works[at].stage == Stage::Probe && self.works[at].out == 0 {
            self.probe(prov, at)?;
        }
        if self.works[at].stage == Stage::Posted && self.works[at].out == 0 {
            self.works[at].stage = if self.works[at].flags & flags::REMOTE_CQ_DATA != 0 { Stage::Tell } else { Stage::Over };
        }
        if self.works[at].stage == Stage::Tell {
            self.tell(prov, at)?;
        }
        if self.works[at].stage == Stage::Told && self.works[at].out == 0 {
            self.works[at].stage = Stage::Over;
        }
        Ok(())
    }

    fn try_whole(&mut self, prov: &dyn Endpoint, at: usize) -> Result<()> {
        let (list, dir) = (self.works[at].list.clone(), self.works[at].dir);
        let context = self.begin(at, 0, list.runs.len(), list.total);
        let work = &self.works[at];
        let has_data = work.flags & flags::REMOTE_CQ_DATA;
        let c = Common { data: work.data, ..work.common(context, time::now_ns()) };
        let came = prov.list(dir, &list, &Common { flags: c.flags | has_data, ..c });
        if !matches!(came, Ok(Native::Flying)) {
            self.undo(at);
        }
        let work = &mut self.works[at];
        match came? {
            Native::Done => work.stage = Stage::Over,
            Native::Flying => (work.next, work.stage) = (list.runs.len(), Stage::Told),
            Native::Blocked => {}
            Native::Pieces => work.stage = Stage::Pieces,
            Native::Failed(block, why) => (work.failed, work.stage) = (Some((block, why)), Stage::Over),
        }
        Ok(())
    }

    fn feed(&mut self, prov: &dyn Endpoint, at: usize, pack: usize) -> Result<()> {
        let (list, dir, now) = (self.works[at].list.clone(), self.works[at].dir, time::now_ns());
        while self.works[at].next < list.runs.len() && self.parts.len() < WINDOW && (self.bytes < WINDOW_BYTES || self.parts.is_empty()) {
            let first = self.works[at].next;
            let on_host = list.pair(&list.runs[first]).is_on_host();
            let (mut count, mut bytes) = (0, 0);
            for run in &list.runs[first..] {
                let fits = count == 0 || bytes + run.len() <= PACK_BYTES;
                if count == pack || !fits || list.pair(run).is_on_host() != on_host {
                    break;
                }
                (count, bytes) = (count + 1, bytes + run.len());
            }
            let context = self.begin(at, first, count, bytes);
            let c = self.works[at].common(context, now);
            if !post(prov, dir, &list, &list.runs[first..first + count], &c).inspect_err(|_| self.undo(at))? {
                self.undo(at);
                return Ok(());
            }
            self.works[at].next = first + count;
        }
        if self.works[at].next == list.runs.len() {
            self.works[at].stage = Stage::Posted;
        }
        Ok(())
    }

    fn probe(&mut self, prov: &dyn Endpoint, at: usize) -> Result<()> {
        let work = &mut self.works[at];
        let Some(run) = work.probes.pop() else {
            // None is refused any more: what was told of the part stands.
            work.stage = Stage::Over;
            return Ok(());
        };
        let (list, dir) = (work.list.clone(), work.dir);
        let context = self.begin(at, run.first as usize, 0, run.len());
        let c = self.works[at].common(context, time::now_ns());
        match post(prov, dir, &list, &[run], &c) {
            Ok(true) => {}
            Ok(false) => {
                self.undo(at);
                self.works[at].probes.push(run);
            }
            Err(_) => {
                self.undo(at);
                self.works[at].stage = Stage::Over;
            }
        }
        Ok(())
    }

    /// The last byte is in place: now the peer gets its data.
    fn tell(&mut self, prov: &dyn Endpoint, at: usize) -> Result<()> {
        let list = self.works[at].list.clone();
        let last = list.runs.len().saturating_sub(1);
        let context = self.begin(at, last, 1, 0);
        let work = &self.works[at];
        let (addr, key) = (list.addr, list.pairs.first().map_or(0, |p| p.key));
        let c = work.common(context, time::now_ns());
        let c = Common { flags: c.flags | flags::REMOTE_CQ_DATA, data: work.data, ..c };
        match prov.rma(Dir::Write, &[Iov::EMPTY], &[RmaIov { addr, len: 0, key }], &c, &[]) {
            Ok(()) => self.works[at].stage = Stage::Told,
            Err(e) => {
                self.undo(at);
                if !e.is_again() {
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// Tells of the lists that are over, and forgets them.
    fn sweep(&mut self) {
        let mut at = 0;
        while at < self.works.len() {
            let work = &self.works[at];
            if work.stage != Stage::Over || work.out > 0 {
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

/// Posts runs as one operation; false: try again after progress.
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
