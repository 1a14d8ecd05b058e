// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an endpoint is bound to, and the one way in which its operations end there: the same for every provider.

use super::Source;
use super::event::{Event, EventKind, EventQueue};
use super::flags;
use super::queue::{Completion, Counter, Failure, Queue};
use crate::error::{Error, Result, errno};
use crate::mr::{PathPolicy, Paths};
use crate::sync::serial::Threading;
use std::sync::Arc;

/// This operation gives no entry when it succeeds (inject calls).
pub const SILENT: u64 = 1 << 63;
/// Flags of inject calls: no entry on success, and the buffer is the caller's again on return.
pub const INJECT_FLAGS: u64 = flags::INJECT | SILENT;

/// What a caller binds to an endpoint.
pub enum Binding {
    Cq { queue: Arc<Queue>, source: Source, transmit: bool, receive: bool, selective: bool },
    Eq(Arc<EventQueue>),
    Counter { counter: Arc<Counter>, flags: u64 },
}

/// Which operations a counter counts.
#[derive(Default)]
pub struct Counters {
    pub send: Option<Arc<Counter>>,
    pub recv: Option<Arc<Counter>>,
    pub read: Option<Arc<Counter>>,
    pub write: Option<Arc<Counter>>,
    pub remote_write: Option<Arc<Counter>>,
}

#[derive(Default)]
pub struct Bindings {
    pub tx: Option<Arc<Queue>>,
    pub rx: Option<Arc<Queue>>,
    pub tx_selective: bool,
    pub rx_selective: bool,
    pub eq: Option<Arc<EventQueue>>,
    pub counters: Counters,
}

/// Options that `setopt` changes.
#[derive(Clone, Copy)]
pub struct Options {
    pub deadline_ns: u64,
    pub connect_timeout_ns: u64,
    pub policy: PathPolicy,
    pub coop: bool,
    /// The caller's stream behind which device copies go; 0: none.
    pub stream: u64,
}

impl Options {
    pub fn new(coop: bool) -> Options {
        Options { deadline_ns: 0, connect_timeout_ns: 10_000_000_000, policy: PathPolicy::default(), coop, stream: 0 }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub ops_direct: u64,
    pub ops_cma: u64,
    pub ops_staged: u64,
    pub ops_ipc: u64,
    pub ops_nic: u64,
    pub ops_socket: u64,
    pub bytes_direct: u64,
    pub bytes_cma: u64,
    pub bytes_staged: u64,
    pub bytes_ipc: u64,
    pub bytes_nic: u64,
    pub bytes_socket: u64,
    pub bytes_helped: u64,
    pub sends: u64,
    pub recvs: u64,
    pub errors: u64,
    pub unexpected: u64,
}

impl Stats {
    #[inline]
    pub fn moved(&mut self, path: Paths, bytes: usize) {
        let (ops, sum) = match path {
            Paths::DIRECT => (&mut self.ops_direct, &mut self.bytes_direct),
            Paths::CMA => (&mut self.ops_cma, &mut self.bytes_cma),
            Paths::IPC => (&mut self.ops_ipc, &mut self.bytes_ipc),
            Paths::STAGED => (&mut self.ops_staged, &mut self.bytes_staged),
            Paths::SOCKET => (&mut self.ops_socket, &mut self.bytes_socket),
            _ => (&mut self.ops_nic, &mut self.bytes_nic),
        };
        *ops += 1;
        *sum += bytes as u64;
    }
}

/// How an outstanding operation of this side ends: what its entry says and what it holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ending {
    pub context: usize,
    /// Completion flags: SEND|MSG and the like.
    pub kind: u64,
    pub len: usize,
    pub buf: usize,
    /// A success gives an entry, which is reserved in the queue.
    pub wanted: bool,
    /// Absolute; 0 = none.
    pub deadline: u64,
}

/// What the short way of an operation came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quick {
    Done,
    Again,
    NotOrdinary,
}

/// Why each path of shm cannot be taken to a region; `None` = it can.
#[derive(Default, Debug, Clone)]
pub struct Verdicts {
    pub direct: Option<Error>,
    pub ipc: Option<Error>,
    pub cma: Option<Error>,
    pub staged: Option<Error>,
}

impl Verdicts {
    /// The paths that nothing speaks against.
    pub fn possible(&self) -> Paths {
        let all = [(Paths::DIRECT, &self.direct), (Paths::IPC, &self.ipc), (Paths::CMA, &self.cma), (Paths::STAGED, &self.staged)];
        all.iter().filter(|(_, no)| no.is_none()).fold(Paths::empty(), |sum, (p, _)| sum | *p)
    }
}

/// Which path an endpoint would take to a region, and why not the others.
pub struct PathReport {
    pub path: Paths,
    /// Possible and permitted.
    pub paths: Paths,
    pub offered: Paths,
    pub verdicts: Verdicts,
    pub text: String,
}

impl Bindings {
    /// Binds one thing more; `EBUSY` if its place is taken.
    pub fn bind(&mut self, what: Binding) -> Result<()> {
        let taken = |what: &str| Err(Error::new(errno::EBUSY, format!("ep: {what} is bound already")));
        match what {
            Binding::Cq { queue, transmit, receive, selective, .. } => {
                if (transmit && self.tx.is_some()) || (receive && self.rx.is_some()) {
                    return taken("a completion queue for these operations");
                }
                if transmit {
                    self.tx = Some(queue.clone());
                    self.tx_selective = selective;
                }
                if receive {
                    self.rx = Some(queue);
                    self.rx_selective = selective;
                }
            }
            Binding::Eq(eq) => {
                if self.eq.is_some() {
                    return taken("an event queue");
                }
                self.eq = Some(eq);
            }
            Binding::Counter { counter, flags } => {
                let c = &mut self.counters;
                let places = [
                    (flags::SEND, &mut c.send),
                    (flags::RECV, &mut c.recv),
                    (flags::READ, &mut c.read),
                    (flags::WRITE, &mut c.write),
                    (flags::REMOTE_WRITE, &mut c.remote_write),
                ];
                for (bit, place) in places {
                    if flags & bit != 0 {
                        *place = Some(counter.clone());
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether what is bound is enough for posting operations.
    pub fn check_complete(&self) -> Result<()> {
        let c = &self.counters;
        if self.tx.is_none() && c.send.is_none() && c.write.is_none() && c.read.is_none() {
            return Err(Error::new(errno::ENOCQ, "ep: bind a completion queue or a counter for transmits before ep_enable"));
        }
        Ok(())
    }

    /// Whether every RMA operation gives an entry without a lock, and nothing else.
    pub fn is_short(&self) -> bool {
        let counted = self.counters.write.is_some() || self.counters.read.is_some();
        !counted && !self.tx_selective && self.tx.as_ref().is_some_and(|q| q.threading() == Threading::Promised)
    }

    #[inline]
    pub fn wants_entry(&self, flags: u64) -> bool {
        self.tx.is_some() && flags & SILENT == 0 && (!self.tx_selective || flags & flags::COMPLETION != 0)
    }

    /// Whether a receive posted with `flags` gives an entry when it succeeds.
    #[inline]
    pub fn wants_receive(&self, flags: u64) -> bool {
        self.rx.is_some() && (!self.rx_selective || flags & flags::COMPLETION != 0)
    }

    /// Reserves the entry of an operation that wants one.
    #[inline]
    pub fn reserve(&self, wanted: bool) -> bool {
        match &self.tx {
            Some(q) if wanted => q.reserve(),
            _ => true,
        }
    }

    fn counter_of(&self, kind: u64) -> Option<&Arc<Counter>> {
        let c = &self.counters;
        match kind {
            k if k & flags::RECV != 0 => c.recv.as_ref(),
            k if k & flags::SEND != 0 => c.send.as_ref(),
            k if k & flags::READ != 0 => c.read.as_ref(),
            _ => c.write.as_ref(),
        }
    }

    /// An operation of this side ended well.
    #[inline]
    pub fn succeed(&self, end: &Ending) {
        if end.wanted
            && let Some(q) = &self.tx
        {
            q.fill(Completion { context: end.context, flags: end.kind, len: end.len, buf: end.buf, data: 0 });
        }
        if let Some(counter) = self.counter_of(end.kind) {
            counter.add(1);
        }
    }

    /// An operation of this side failed: always an entry.
    #[cold]
    pub fn fail(&self, end: &Ending, error: Error) {
        if let Some(counter) = self.counter_of(end.kind) {
            counter.add_error(1);
        }
        if let Some(q) = &self.tx {
            let entry = Completion { context: end.context, flags: end.kind, len: 0, buf: end.buf, data: 0 };
            q.fail(entry, Failure { error, olen: 0 }, end.wanted);
        }
    }

    /// A receive ended well.
    #[inline]
    pub fn received(&self, entry: Completion, wanted: bool) {
        if let Some(counter) = &self.counters.recv {
            counter.add(1);
        }
        if let Some(q) = &self.rx
            && wanted
        {
            q.push(entry);
        }
    }

    /// A receive ended badly.
    #[cold]
    pub fn spoiled(&self, entry: Completion, failure: Failure) {
        if let Some(counter) = &self.counters.recv {
            counter.add_error(1);
        }
        if let Some(q) = &self.rx {
            q.fail(entry, failure, false);
        }
    }

    /// Something happened to the connection of the caller's `object`.
    pub fn event(&self, kind: EventKind, object: usize, context: usize, data: Vec<u8>, error: Option<Error>) {
        if let Some(eq) = &self.eq {
            let mut event = Event::new(kind, object, context);
            event.data = data;
            event.error = error;
            eq.push(event);
        }
    }
}
