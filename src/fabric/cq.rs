// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Completion queues: the provider's queue of entries, the endpoints and the source that fill it, and ways to read it and to
//! wait for entries. `read.rs` has the entries of the queue's table of operations.

use super::Context;
use super::descriptor::Descriptor;
use super::domain::Domain;
use super::drive::EpRef;
use super::progress_set::ProgressSet;
use super::users::ObjectKind;
use super::wait::{Driven, Step, Wait, wait};
use crate::error::{Error, Result, errno};
use crate::prov::CompletionSource;
use crate::prov::ops::{CqEntry, CqFallback, CqFormat, CqHead, CqOps, EpHead, ReadSole};
use crate::prov::queue::{Completion, Failure, Origin, Queue, Taken, Waiter};
use crate::reserve;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A completion queue. The object begins with its head, by which gdrfab_cq_read() finds the table of operations.
#[repr(C)]
pub struct Cq {
    head: CqHead,
    pub context: Context,
    domain: Arc<Domain>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) source: Option<Arc<dyn CompletionSource>>,
    pub format: CqFormat,
    /// True if a read that finds nothing pauses the CPU. So it is if arrivals show in a cache line, without a system
    /// call.
    pauses: bool,
    descriptor: Descriptor,
    /// The number of reads that found entries, of which every 64th also makes progress. The number is approximate,
    /// because threads add without a lock.
    reads_with_entries: AtomicU32,
    set: ProgressSet,
}

impl Cq {
    /// Opens a queue with the given table; a source of the provider may bring its own table, which then gets `rest` for the
    /// cases it does not handle.
    pub(super) fn with_tables(
        domain: &Arc<Domain>,
        size: usize,
        format: CqFormat,
        wait_fd: bool,
        (own, rest): (&'static CqOps, &'static CqFallback),
    ) -> Result<Arc<Cq>> {
        domain.owner.check()?;
        let waiter = if wait_fd { Waiter::with_descriptor()? } else { Waiter::default() };
        let queue = Arc::new(Queue::new(size, domain.threading)?.with_waiter(waiter));
        let source = domain.prov.clone().open_source(size, &queue)?;
        domain.users.add(ObjectKind::CompletionQueue);
        let of_set = queue.clone();
        let set = ProgressSet::new(domain.threading, move || of_set.waiter.notify());
        let (ops, of) = match &source {
            // A source's table has no tags; only the queue has them.
            Some(source) if format != CqFormat::Tagged => source.ops(format),
            _ => (own, std::ptr::null()),
        };
        Ok(Arc::new(Cq {
            head: CqHead { ops, of, rest, queue: Arc::as_ptr(&queue) },
            context: Context::default(),
            domain: domain.clone(),
            queue,
            source,
            format,
            pauses: domain.prov.polls_memory(),
            descriptor: Descriptor::new("cq"),
            reads_with_entries: AtomicU32::new(0),
            set,
        }))
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    pub(crate) fn attach(&self, ep: &EpRef) {
        self.set.attach(ep);
    }

    pub(crate) fn detach(&self, ep: &EpRef) {
        self.set.detach(ep);
    }

    pub fn close(&self) -> Result<()> {
        self.domain.owner.check()?;
        let bound = self.set.len();
        if bound > 0 {
            return Err(Error::new(errno::EBUSY, format!("cq: {bound} open endpoint(s) are bound to it")));
        }
        self.domain.users.remove(ObjectKind::CompletionQueue);
        Ok(())
    }

    /// Makes progress on the source and the endpoints, unless another thread does.
    #[inline]
    fn progress(&self) {
        if let Some(source) = &self.source {
            source.poll(false);
        }
        self.set.glance();
    }

    /// As [`Cq::read`], for entries that are ready in a queue without a lock. `None`: nothing was done, and `read` is to be
    /// used.
    #[inline(always)]
    pub fn read_ready(&self, count: usize, each: impl FnMut(usize, &Completion)) -> Option<Taken> {
        // SAFETY: the domain has no locks, so calls do not overlap. No function of a queue keeps its access to the
        // entries after its return, and `each` gets one entry at a time.
        let mut entries = unsafe { self.queue.promised() }?;
        let reads = self.reads_with_entries.load(Ordering::Relaxed).wrapping_add(1);
        if entries.is_empty() || reads & 63 == 0 || count == 0 || self.descriptor.is_armed() {
            return None;
        }
        self.reads_with_entries.store(reads, Ordering::Relaxed);
        Some(entries.take(count, each))
    }

    /// As `read_ready`, with the origin of each entry.
    #[inline(always)]
    pub(super) fn read_ready_from(&self, count: usize, each: impl FnMut(usize, &Completion, Origin)) -> Option<Taken> {
        // SAFETY: the domain has no locks, so calls do not overlap, and no function of a queue keeps its access to the
        // entries after its return.
        let mut entries = unsafe { self.queue.promised() }?;
        let reads = self.reads_with_entries.load(Ordering::Relaxed).wrapping_add(1);
        if entries.is_empty() || reads & 63 == 0 || count == 0 || self.descriptor.is_armed() {
            return None;
        }
        self.reads_with_entries.store(reads, Ordering::Relaxed);
        Some(entries.take_from(count, each))
    }

    /// Makes progress on the endpoints. A source calls this function every so many reads, even if the source always has
    /// entries.
    #[cold]
    #[inline(never)]
    pub fn due(&self) {
        if self.descriptor.is_armed() {
            self.disarm();
        }
        if !reserve::is_lowest() {
            self.set.glance();
        }
    }

    /// The second half of `read`, for a source that had no entries.
    #[inline]
    pub fn read_after(&self, count: usize, each: impl FnMut(usize, &Completion)) -> Taken {
        self.due();
        self.queue.take(count, each)
    }

    /// Hands out up to `count` entries. If there are none, makes progress on the source and the endpoints first.
    #[inline(always)]
    pub fn read(&self, count: usize, mut each: impl FnMut(usize, &Completion)) -> Taken {
        self.read_by(count, || self.queue.take(count, &mut each))
    }

    /// As `read`, with the origin of each entry.
    pub fn read_from(&self, count: usize, mut each: impl FnMut(usize, &Completion, Origin)) -> Taken {
        self.read_by(count, || self.queue.take_from(count, &mut each))
    }

    #[inline(always)]
    fn read_by(&self, count: usize, mut take: impl FnMut() -> Taken) -> Taken {
        if self.descriptor.is_armed() {
            self.disarm();
        }
        // A count of 0 asks for progress only, whatever is in the queue.
        if count > 0 {
            match take() {
                Taken::Empty => {}
                taken => {
                    // Every 64th read makes progress even if the queue never runs empty. Otherwise the death of a peer
                    // would not be noticed.
                    let reads = self.reads_with_entries.load(Ordering::Relaxed).wrapping_add(1);
                    self.reads_with_entries.store(reads, Ordering::Relaxed);
                    if reads & 63 == 0 {
                        self.progress();
                    }
                    return taken;
                }
            }
        }
        if reserve::is_lowest() {
            return Taken::ErrorFirst;
        }
        self.progress();
        let taken = take();
        if taken == Taken::Empty {
            self.pause();
        }
        taken
    }

    /// True if `read_arrivals` is worth trying.
    #[inline(always)]
    pub fn may_arrive(&self, count: usize) -> bool {
        // SAFETY: the domain has no locks, so calls do not overlap, and no function of a queue keeps its access to the
        // entries after its return.
        let open = unsafe { self.queue.promised() }.is_some_and(|entries| entries.has_room_for(1));
        open && self.pauses && count > 0 && !self.descriptor.is_armed()
    }

    /// The queue's endpoint, if there is only one and its arrivals can bypass the queue.
    #[inline(always)]
    pub(super) fn sole<E: CqEntry>(&self) -> Option<(&EpHead, ReadSole)> {
        // SAFETY: the domain has no locks, so calls do not overlap. Only the calls that bind or close an endpoint
        // change the list.
        let members = unsafe { self.set.promised() }?;
        // SAFETY: no other call changes the list while the slice is used: the caller lets one thread at a time in.
        let eps: &[EpRef] = unsafe { std::slice::from_raw_parts(members.active().as_ptr(), members.active().len()) };
        match eps {
            [ep] if !members.are_many() => Some((ep.head(), ep.head().ops().arrive.as_ref()?[E::FORMAT as usize].sole)),
            _ => None,
        }
    }

    /// As [`Cq::read`], only after `may_arrive`, for messages that are written into the reader's array without passing
    /// through the empty queue. `None`: nothing was read, and the caller is to use `read`.
    ///
    /// # Safety
    /// The domain is one without locks, and `buf` holds `count` entries.
    #[inline(always)]
    pub(super) unsafe fn read_arrivals<E: CqEntry>(&self, buf: *mut c_void, count: usize) -> Option<Taken> {
        // SAFETY: the domain has no locks, so calls do not overlap. Only the calls that bind or close an endpoint
        // change the list.
        let members = unsafe { self.set.promised() }?;
        let (mut n, mut all) = (0, !members.are_many());
        for ep in members.active() {
            if n == count {
                break;
            }
            let turn = ep.head().ops().arrive.as_ref().map(|arrivals| arrivals[E::FORMAT as usize].turn);
            // SAFETY: the caller promises that the domain has no locks and that `buf` holds `count` entries, of which `n` are
            // filled; the endpoint is open, since it is bound to the queue.
            let came = turn.map_or(-1, |turn| unsafe { turn(ep.head(), &self.queue, buf.byte_add(n * size_of::<E>()), count - n) });
            match usize::try_from(came) {
                Ok(k) => n += k,
                Err(_) => all = false,
            }
        }
        if !all {
            if n == 0 {
                return None;
            }
            self.progress();
        }
        if n > 0 {
            return Some(Taken::Some(n));
        }
        self.pause();
        Some(Taken::Empty)
    }

    /// Pauses the CPU: the other hardware thread of the core runs meanwhile, and a polled cache line stays with its writer
    /// for longer, so that it is written whole before it is fetched.
    #[inline(always)]
    fn pause(&self) {
        if self.pauses {
            std::hint::spin_loop();
        }
    }

    /// The error of a read that found a failed entry first: EAVAIL with that entry's words. ENOMEM: no memory is left to go
    /// on.
    #[cold]
    pub fn error_first(&self) -> Error {
        match self.queue.peek_error() {
            Some(why) => Error::new(errno::EAVAIL, why.words),
            None if reserve::is_lowest() => reserve::NONE_LEFT,
            // Another thread has read the failed entry, or has given memory back.
            None => Error::AGAIN,
        }
    }

    pub fn read_error(&self) -> Option<(Completion, Failure)> {
        self.read_error_from().map(|(entry, why, _)| (entry, why))
    }

    /// As `read_error`, with the origin of the entry.
    pub fn read_error_from(&self) -> Option<(Completion, Failure, Origin)> {
        if let Some(c) = self.queue.take_error() {
            return Some(c);
        }
        self.progress();
        self.queue.take_error()
    }

    fn driven(&self) -> Option<Driven<'_>> {
        if self.domain.is_auto() {
            return None;
        }
        Some(Driven::new(&self.set, Vec::new()))
    }

    /// As `read`, but waits up to `timeout_ms` (-1: for ever). `Empty`: the time is over, or signal() was called.
    pub fn sread(&self, count: usize, timeout_ms: i32, mut each: impl FnMut(usize, &Completion)) -> Result<Taken> {
        let _wait = self.begin_wait(timeout_ms)?;
        let ready = || self.take_waited(count, &mut |i, c, _| each(i, c));
        Ok(wait(&self.queue.waiter, || self.driven(), timeout_ms, ready)?.unwrap_or(Taken::Empty))
    }

    /// Begins a wait for `step_from`.
    pub fn begin_wait(&self, timeout_ms: i32) -> Result<Wait<'_>> {
        self.domain.owner.check()?;
        if self.descriptor.is_armed() {
            self.disarm();
        }
        self.fetch();
        Ok(Wait::new(&self.queue.waiter, timeout_ms))
    }

    /// The next step of a wait for entries, with the origin of each. `Empty`: signal() was called.
    pub fn step_from<'a>(
        &'a self,
        wait: &mut Wait<'a>,
        count: usize,
        mut each: impl FnMut(usize, &Completion, Origin),
    ) -> Result<Step<Taken>> {
        wait.step(|| self.driven(), || self.take_waited(count, &mut each))
    }

    fn take_waited(&self, count: usize, each: &mut impl FnMut(usize, &Completion, Origin)) -> Option<Taken> {
        match self.queue.take_from(count, each) {
            Taken::Empty if self.queue.take_signal() => Some(Taken::Empty),
            Taken::Empty => None,
            taken => Some(taken),
        }
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

    /// Arms the descriptor for the caller's own poll. `EAGAIN`: there is an entry to read, or signal() was called.
    pub fn trywait(&self) -> Result<()> {
        self.domain.owner.check()?;
        self.fetch();
        let has_news = || !self.queue.is_empty() || self.queue.take_signal();
        self.descriptor.prepare(&self.queue.waiter, || self.driven(), has_news)
    }

    /// Fetches arrivals that found the queue full and so wait in the transport. The progress thread would fetch them
    /// only when something else arrives.
    fn fetch(&self) {
        if self.domain.is_auto() && self.queue.is_empty() {
            self.progress();
        }
    }

    #[cold]
    fn disarm(&self) {
        self.descriptor.disarm(&self.queue.waiter);
    }
}
