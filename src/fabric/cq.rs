// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Completion queues: a provider queue, the endpoints that it drives, and ways to wait.

use super::domain::Domain;
use super::endpoint::Endpoint;
use super::wait::{Driven, wait};
use crate::error::{Error, Result, errno};
use crate::prov::Source;
use crate::prov::queue::{Completion, Failure, Queue, Taken};
use crate::sync::serial::Serial;
#[cfg(feature = "verbs")]
use crate::sync::serial::Threading;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Shape of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqFormat {
    Context,
    Msg,
    Data,
}

/// The shortest way of reading: by the format where entries are put into the queue, and straight from the device where
/// one gives them and no lock is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Context,
    Msg,
    Data,
    Device,
}

pub struct Cq {
    domain: Arc<Domain>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) source: Source,
    pub format: CqFormat,
    pub gate: Gate,
    /// A read that finds nothing pauses: where what comes is a line of memory, and not the result of a system call.
    pauses: bool,
    wait_fd: bool,
    /// `trywait` has put the endpoints to sleep for the caller's own poll.
    fd_armed: AtomicBool,
    /// Reads that found entries; a rough count.
    full_turns: AtomicU32,
    eps: Serial<Vec<Arc<Endpoint>>>,
}

impl Cq {
    pub fn open(domain: &Arc<Domain>, size: usize, format: CqFormat, wait_fd: bool) -> Result<Arc<Cq>> {
        domain.owner.check()?;
        let queue = Arc::new(Queue::new(size, domain.threading));
        if wait_fd {
            queue.waiter.poller()?;
        }
        let source = domain.prov.open_source(size, &queue)?;
        domain.users.add();
        let eps = Serial::new(domain.threading, Vec::new());
        let gate = match (&source, format) {
            #[cfg(feature = "verbs")]
            (Source::Verbs(_), _) if domain.threading == Threading::Promised => Gate::Device,
            (_, CqFormat::Context) => Gate::Context,
            (_, CqFormat::Msg) => Gate::Msg,
            (_, CqFormat::Data) => Gate::Data,
        };
        Ok(Arc::new(Cq {
            domain: domain.clone(),
            queue,
            source,
            format,
            gate,
            pauses: matches!(domain.prov, crate::prov::Domain::Shm(_)),
            wait_fd,
            fd_armed: AtomicBool::new(false),
            full_turns: AtomicU32::new(0),
            eps,
        }))
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    pub(crate) fn attach(&self, ep: &Arc<Endpoint>) {
        let mut eps = self.eps.lock();
        if !eps.iter().any(|e| Arc::ptr_eq(e, ep)) {
            eps.push(ep.clone());
        }
    }

    pub(crate) fn detach(&self, ep: &Arc<Endpoint>) {
        self.eps.lock().retain(|e| !Arc::ptr_eq(e, ep));
    }

    pub fn close(&self) -> Result<()> {
        self.domain.owner.check()?;
        let bound = self.eps.lock().len();
        if bound > 0 {
            return Err(Error::new(errno::EBUSY, format!("cq: {bound} open endpoint(s) are bound to it")));
        }
        self.domain.users.remove();
        Ok(())
    }

    /// Drives the endpoints; if another thread does, that is enough.
    #[inline]
    fn progress(&self, force: bool) {
        #[cfg(feature = "verbs")]
        if let Source::Verbs(cq) = &self.source {
            cq.poll(force);
        }
        if let Some(eps) = self.eps.try_lock() {
            for ep in eps.iter() {
                ep.progress(force);
            }
        }
    }

    /// As [`Cq::read`] for what lies ready in a queue that needs no lock; `None` leaves everything to it.
    #[inline(always)]
    pub fn read_ready(&self, count: usize, each: impl FnMut(usize, &Completion)) -> Option<Taken> {
        let mut entries = self.queue.promised()?;
        let turn = self.full_turns.load(Ordering::Relaxed).wrapping_add(1);
        if entries.is_empty() || turn & 63 == 0 || count == 0 || self.fd_armed.load(Ordering::Relaxed) {
            return None;
        }
        self.full_turns.store(turn, Ordering::Relaxed);
        Some(entries.take(count, each))
    }

    /// As [`Cq::read`] behind [`Gate::Device`]: what the device gives while the queue is empty; `None` leaves everything
    /// to `read`.
    #[inline(always)]
    pub fn read_device(&self, count: usize, each: impl FnMut(usize, &Completion)) -> Option<usize> {
        // Now and then the endpoints get their turn, even if the device always has something.
        let turn = self.full_turns.load(Ordering::Relaxed).wrapping_add(1);
        self.full_turns.store(turn, Ordering::Relaxed);
        if turn & 63 == 0 || self.fd_armed.load(Ordering::Relaxed) {
            return None;
        }
        match &self.source {
            // SAFETY: the gate is one of domains without locks.
            #[cfg(feature = "verbs")]
            Source::Verbs(cq) if self.gate == Gate::Device => unsafe { cq.take_quick(count, each) },
            _ => {
                let _ = (count, each);
                None
            }
        }
    }

    /// Hands out up to `count` entries, driving the endpoints first if none is there.
    #[inline(always)]
    pub fn read(&self, count: usize, mut each: impl FnMut(usize, &Completion)) -> Taken {
        if self.fd_armed.load(Ordering::Relaxed) {
            self.disarm();
        }
        // A count of 0 asks for progress alone, whatever waits in the queue.
        if count > 0 {
            match self.queue.take(count, &mut each) {
                Taken::Empty => {}
                taken => {
                    // A queue that never runs dry must not keep a peer's death from being noticed.
                    let full_turns = self.full_turns.load(Ordering::Relaxed).wrapping_add(1);
                    self.full_turns.store(full_turns, Ordering::Relaxed);
                    if full_turns & 63 == 0 {
                        self.progress(false);
                    }
                    return taken;
                }
            }
        }
        self.progress(false);
        let taken = self.queue.take(count, &mut each);
        if taken == Taken::Empty && self.pauses {
            // Gives way to a sibling thread of the core, and keeps a polled line with its writer a
            // little longer, which shortens the hand-over.
            std::hint::spin_loop();
        }
        taken
    }

    pub fn read_error(&self) -> Option<(Completion, Failure)> {
        if let Some(c) = self.queue.take_error() {
            return Some(c);
        }
        self.progress(false);
        self.queue.take_error()
    }

    fn driven(&self) -> Option<Driven> {
        if self.domain.is_auto() {
            return None;
        }
        Some(Driven { eps: self.eps.lock().clone(), peps: Vec::new() })
    }

    /// As `read`, but waits up to `timeout_ms` (-1 = for ever); `Empty` on timeout or signal().
    pub fn sread(&self, count: usize, timeout_ms: i32, mut each: impl FnMut(usize, &Completion)) -> Result<Taken> {
        self.domain.owner.check()?;
        if self.fd_armed.load(Ordering::Relaxed) {
            self.disarm();
        }
        let ready = || match self.queue.take(count, &mut each) {
            Taken::Empty if self.queue.take_signal() => Some(Taken::Empty),
            Taken::Empty => None,
            taken => Some(taken),
        };
        Ok(wait(&self.queue.waiter, || self.driven(), timeout_ms, ready)?.unwrap_or(Taken::Empty))
    }

    pub fn signal(&self) -> Result<()> {
        self.domain.owner.check()?;
        self.queue.signal();
        Ok(())
    }

    pub fn fd(&self) -> Result<i32> {
        self.domain.owner.check()?;
        if !self.wait_fd {
            return Err(Error::new(errno::ENOSYS, "cq: was not opened with wait_obj GDRFAB_WAIT_FD"));
        }
        Ok(self.queue.waiter.poller()?.raw_fd())
    }

    /// Prepares for the caller's own poll on the descriptor; `EAGAIN` if there is something to read.
    pub fn trywait(&self) -> Result<()> {
        self.domain.owner.check()?;
        self.fd()?;
        if self.fd_armed.load(Ordering::Relaxed) {
            self.disarm();
        }
        let poller = self.queue.waiter.poller()?;
        self.queue.waiter.arm();
        let driven = self.driven();
        if let Some(d) = &driven {
            d.sleep_for_caller(poller).inspect_err(|_| self.queue.waiter.disarm())?;
        }
        self.fd_armed.store(true, Ordering::Relaxed);
        if driven.is_none_or(|d| d.look()) && self.queue.is_empty() {
            return Ok(());
        }
        self.disarm();
        // Whoever polls all the same finds the descriptor readable.
        poller.wake();
        Err(Error::AGAIN)
    }

    #[cold]
    fn disarm(&self) {
        if !self.fd_armed.swap(false, Ordering::Relaxed) {
            return;
        }
        if let Some(d) = self.driven() {
            d.awake(self.queue.waiter.poller().ok());
            d.progress(true);
        }
        self.queue.waiter.disarm();
    }
}
