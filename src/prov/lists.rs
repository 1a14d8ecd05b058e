// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The list operations of one endpoint, as `gdrfab_writelist()` and `gdrfab_readlist()` post them. A provider may move a
//! whole list by its own means (`Endpoint::list`); if it cannot, progress posts the list's blocks as ordinary operations, a
//! bounded number at a time. Either way the list ends with one completion.
//!
//! `list.rs` has the checked blocks of a list, and `list_work.rs` the state of the lists that are queued or in progress.

use super::bind::{Binding, Bindings, Ending, Ends};
use super::contract::Endpoint;
use super::flags;
use super::list::List;
use super::list_work::{ListWork, PendingLists, Stage};
use super::op::{Common, Dir, IOV_LIMIT};
use crate::error::{Code, Error, Result, errno};
use crate::sys::time;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most lists that an endpoint holds, queued or in progress.
const WAITING: usize = 1024;
/// The most runs of all lists of an endpoint. A list that is the only one may have more.
const WAITING_RUNS: usize = 4 << 20;

/// The lists of one endpoint.
pub struct Lists {
    waiting: Mutex<PendingLists>,
    /// The number of lists in `waiting`, for reading without the lock.
    pending: AtomicUsize,
    ends: Arc<Ends>,
    /// The most runs that one operation moves.
    pack: usize,
}

impl Lists {
    pub fn new(iov_limit: usize) -> Lists {
        Lists { waiting: Mutex::default(), pending: AtomicUsize::new(0), ends: Arc::default(), pack: iov_limit.clamp(1, IOV_LIMIT) }
    }

    /// Remembers the queues and counters that the endpoint is bound to: lists report their completions there.
    pub fn bind(&self, what: Binding) {
        // The provider has refused invalid bindings before. The address vector and the order of completions do not concern
        // lists.
        if !matches!(what, Binding::Av(_) | Binding::Order) {
            let _ = self.waiting.lock().bind.bind(what);
        }
    }

    /// The place where the provider reports the ends of parts; bound to the provider's endpoint.
    pub fn ends(&self) -> Binding {
        Binding::Ends(self.ends.clone())
    }

    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.pending.load(Ordering::Relaxed) == 0
    }

    /// True if parts have ended that `progress` has not taken yet.
    pub fn has_news(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Posts a list, and begins it if no other list is before it. The list may be complete when this returns.
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
        let work = ListWork {
            number: w.turn,
            dir,
            end,
            flags: c.flags,
            data: c.data,
            peer: c.peer,
            stage: Stage::Fresh,
            parts: false,
            by_key: false,
            refused: Vec::new(),
            next: 0,
            outstanding: 0,
            failed: None,
            probes: Vec::new(),
            list,
        };
        w.runs += work.list.runs.len();
        w.works.push_back(work);
        let at = w.works.len() - 1;
        let first = if at == 0 || w.may_start(at) { w.advance(prov, at, self.pack) } else { Ok(()) };
        let posted = w.works[at].next > 0 || w.works[at].outstanding > 0;
        if let Err(e) = first.as_ref()
            && posted
        {
            w.works[at].stop(e.clone());
        } else if let Err(e) = first {
            // Nothing was posted, so the error is the call's result.
            if let Some(work) = w.works.pop_back() {
                w.runs -= work.list.runs.len();
            }
            if let Some(q) = w.bind.tx.as_ref().filter(|_| wanted) {
                q.release();
            }
            return Err(e);
        }
        w.report_finished();
        self.pending.store(w.works.len(), Ordering::Relaxed);
        if w.works.iter().any(|work| work.number == w.turn) && (deadline != 0 || w.needs_polling()) {
            w.bind.wake_sleepers();
        }
        Ok(())
    }

    /// Takes the parts that have ended, and posts further ones.
    #[cold]
    pub fn progress(&self, prov: &dyn Endpoint) {
        // The thread that holds the lock does everything that this call would.
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
        w.report_finished();
        self.pending.store(w.works.len(), Ordering::Relaxed);
    }

    /// The earliest deadline of a list (nanoseconds, `u64::MAX` for none), and true if some list needs polling, because
    /// no completion will announce that the list can go on.
    pub fn next_look(&self) -> (u64, bool) {
        let w = self.waiting.lock();
        let deadline = w.works.iter().map(|work| work.end.deadline).filter(|d| *d != 0).min().unwrap_or(u64::MAX);
        (deadline, w.needs_polling())
    }

    /// Cancels the list with this context. False: there is none.
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
        if work.outstanding > 0 && work.stage == Stage::Notified {
            return Err(Error::new(errno::ENOENT, "context: all operations of the list are posted already and cannot be cancelled"));
        }
        work.stop(why);
        w.report_finished();
        self.pending.store(w.works.len(), Ordering::Relaxed);
        Ok(true)
    }

    /// Ends all lists, once the endpoint is closed: the provider has ended its operations, and nothing more can be posted.
    pub fn close(&self) {
        let mut w = self.waiting.lock();
        for (context, why) in self.ends.take() {
            w.ended(context, why);
        }
        let why = Error::coded(errno::ECANCELED, Code::Canceled, "this side closed the endpoint");
        for work in &mut w.works {
            work.outstanding = 0;
            work.stop(why.clone());
        }
        w.report_finished();
        w.bind = Bindings::default();
        self.pending.store(0, Ordering::Relaxed);
    }
}
