// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Completion queues: a provider queue, the endpoints that it drives, and ways to wait.

use super::Context;
use super::descriptor::Descriptor;
use super::domain::Domain;
use super::endpoint::Endpoint;
use super::wait::{Driven, wait};
use crate::error::{Error, Result, errno};
use crate::prov::Source;
use crate::prov::queue::{Completion, Failure, Found, Queue, Taken, Waiter};
use crate::sync::serial::{Serial, Threading};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Shape of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqFormat {
    Context,
    Msg,
    Data,
}

/// The shortest way of reading: by the format where entries are put into the queue, and straight from the device where
/// one gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Context,
    Msg,
    Data,
    DeviceContext,
    DeviceMsg,
    DeviceData,
    DeviceLocked,
}

pub struct Cq {
    pub context: Context,
    domain: Arc<Domain>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) source: Source,
    pub format: CqFormat,
    pub gate: Gate,
    /// A read that finds nothing pauses: where what comes is a line of memory, and not the result of a system call.
    pauses: bool,
    descriptor: Descriptor,
    /// Reads that found entries; a rough count.
    full_turns: AtomicU32,
    eps: Serial<Vec<Arc<Endpoint>>>,
}

impl Cq {
    pub fn open(domain: &Arc<Domain>, size: usize, format: CqFormat, wait_fd: bool) -> Result<Arc<Cq>> {
        domain.owner.check()?;
        let waiter = if wait_fd { Waiter::with_descriptor()? } else { Waiter::default() };
        let queue = Arc::new(Queue::new(size, domain.threading).with_waiter(waiter));
        let source = domain.prov.open_source(size, &queue)?;
        domain.users.add();
        let eps = Serial::new(domain.threading, Vec::new());
        let gate = match (&source, format) {
            (Source::Verbs(_), format) => match (domain.threading, format) {
                (Threading::Safe, _) => Gate::DeviceLocked,
                (_, CqFormat::Context) => Gate::DeviceContext,
                (_, CqFormat::Msg) => Gate::DeviceMsg,
                (_, CqFormat::Data) => Gate::DeviceData,
            },
            (_, CqFormat::Context) => Gate::Context,
            (_, CqFormat::Msg) => Gate::Msg,
            (_, CqFormat::Data) => Gate::Data,
        };
        Ok(Arc::new(Cq {
            context: Context::default(),
            domain: domain.clone(),
            queue,
            source,
            format,
            gate,
            pauses: matches!(domain.prov, crate::prov::Domain::Shm(_)),
            descriptor: Descriptor::new("cq"),
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
        drop(eps);
        self.queue.waiter.notify();
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
        if let Source::Verbs(cq) = &self.source {
            cq.poll(force);
        }
        self.turn(force);
    }

    /// The endpoints' part of it.
    #[inline]
    fn turn(&self, force: bool) {
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
        if entries.is_empty() || turn & 63 == 0 || count == 0 || self.descriptor.is_armed() {
            return None;
        }
        self.full_turns.store(turn, Ordering::Relaxed);
        Some(entries.take(count, each))
    }

    /// What the device gives while the queue is empty.
    ///
    /// # Safety
    /// The gate is one of a device, and the one without locks if not `LOCKED`.
    #[inline(always)]
    pub unsafe fn look<const LOCKED: bool>(&self, count: usize, each: impl FnMut(usize, &Completion)) -> Found {
        let _ = (count, &each); // of no interest without a device
        match &self.source {
            // SAFETY: handed on; a source is made by `open`.
            Source::Verbs(cq) => unsafe { cq.take_quick::<LOCKED>(count, each) },
            // SAFETY: the caller has looked at the gate.
            Source::Endpoints => unsafe { std::hint::unreachable_unchecked() },
        }
    }

    /// The endpoints' turn, even if the device always has something.
    #[cold]
    #[inline(never)]
    pub fn due(&self) {
        if self.descriptor.is_armed() {
            self.disarm();
        }
        self.turn(false);
    }

    /// Hands out up to `count` entries, driving the endpoints first if none is there.
    #[inline]
    pub fn read(&self, count: usize, mut each: impl FnMut(usize, &Completion)) -> Taken {
        // SAFETY: by the gate.
        let found = unsafe {
            match self.gate {
                Gate::Context | Gate::Msg | Gate::Data => Found::Elsewhere,
                Gate::DeviceLocked => self.look::<true>(count, &mut each),
                _ => self.look::<false>(count, &mut each),
            }
        };
        match found {
            Found::Some(n) => Taken::Some(n),
            Found::Due(n) => {
                self.due();
                Taken::Some(n)
            }
            Found::Nothing => self.read_after(count, each),
            Found::Elsewhere => self.read_queue(count, each),
        }
    }

    /// The rest of `read` after a device that had nothing.
    #[inline]
    pub fn read_after(&self, count: usize, each: impl FnMut(usize, &Completion)) -> Taken {
        self.due();
        self.queue.take(count, each)
    }

    /// `read` without a look at the device before.
    #[inline(always)]
    pub fn read_queue(&self, count: usize, mut each: impl FnMut(usize, &Completion)) -> Taken {
        if self.descriptor.is_armed() {
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
        if taken == Taken::Empty {
            self.pause();
        }
        taken
    }

    /// Whether `read_arrivals` is worth trying.
    #[inline(always)]
    pub fn may_arrive(&self, count: usize) -> bool {
        let open = self.queue.promised().is_some_and(|entries| entries.has_room_for(1));
        open && self.pauses && count > 0 && !self.descriptor.is_armed()
    }

    /// As [`Cq::read`] after `may_arrive`, for messages that go straight to the reader, past the empty queue. `None`:
    /// nothing was read, and something wants the long way.
    #[inline(always)]
    pub fn read_arrivals(&self, count: usize, mut each: impl FnMut(usize, &Completion)) -> Option<Taken> {
        let eps = self.eps.promised()?;
        let (mut n, mut all) = (0, true);
        for ep in eps.iter() {
            if n == count {
                break;
            }
            match ep.arrive_short(&self.queue, count - n, |i, c| each(n + i, c)) {
                Some(k) => n += k,
                None => all = false,
            }
        }
        if !all {
            if n == 0 {
                return None;
            }
            self.progress(false);
        }
        if n > 0 {
            return Some(Taken::Some(n));
        }
        self.pause();
        Some(Taken::Empty)
    }

    /// Gives way to a sibling thread of the core, and keeps a polled line with its writer a little longer, which shortens
    /// the hand-over.
    #[inline(always)]
    fn pause(&self) {
        if self.pauses {
            std::hint::spin_loop();
        }
    }

    /// What the error entry that is next says.
    pub fn peek_error(&self) -> Option<Error> {
        self.queue.peek_error()
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
        if self.descriptor.is_armed() {
            self.disarm();
        }
        self.fetch();
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
        self.descriptor.fd(&self.queue.waiter)
    }

    /// Prepares for the caller's own poll on the descriptor; `EAGAIN` if there is something to read, or a signal.
    pub fn trywait(&self) -> Result<()> {
        self.domain.owner.check()?;
        self.fetch();
        let has_news = || !self.queue.is_empty() || self.queue.take_signal();
        self.descriptor.prepare(&self.queue.waiter, || self.driven(), has_news)
    }

    /// What had no room in the queue while it was full waits where no thread of the library looks for it before something
    /// else comes.
    fn fetch(&self) {
        if self.domain.is_auto() && self.queue.is_empty() {
            self.progress(false);
        }
    }

    #[cold]
    fn disarm(&self) {
        self.descriptor.disarm(&self.queue.waiter);
    }
}
