// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists of an endpoint that are under way. A provider moves a list by means of its own; where it has none, the list is worked
//! off as operations of one block, so many at a time, from progress. Either way one entry tells of the end.

use super::bind::{Binding, Bindings, Ending, Ends};
use super::contract::Endpoint;
use super::flags;
use super::list::List;
use super::list_work::{Stage, Waiting, Work};
use super::op::{Common, Dir, IOV_LIMIT};
use crate::error::{Code, Error, Result, errno};
use crate::sys::time;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Lists that wait or are under way, and their runs.
const WAITING: usize = 1024;
const WAITING_RUNS: usize = 4 << 20;

pub struct Lists {
    waiting: Mutex<Waiting>,
    /// Lists that wait or are under way; asked without the lock.
    pending: AtomicUsize,
    ends: Arc<Ends>,
    /// Runs that an operation takes.
    pack: usize,
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
            parts: false,
            by_key: false,
            again: Vec::new(),
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
