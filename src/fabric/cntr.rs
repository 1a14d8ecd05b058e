// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters, and the endpoints on which reading or awaiting them makes progress.

use super::Context;
use super::descriptor::Descriptor;
use super::domain::{Domain, Mr};
use super::drive::EpRef;
use super::progress_set::ProgressSet;
use super::users::ObjectKind;
use super::wait::{Driven, Step, Wait};
use crate::error::{Error, Result, errno};
use crate::prov::queue::{Counter, Waiter};
use crate::reserve;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub struct Cntr {
    pub context: Context,
    domain: Arc<Domain>,
    pub counter: Arc<Counter>,
    descriptor: Descriptor,
    set: ProgressSet,
    /// The counter is bound to a region; any endpoint of the domain may then increment it.
    of_region: AtomicBool,
}

/// The end of a wait for a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitEnd {
    Threshold,
    ErrorsChanged,
}

impl Cntr {
    pub fn open(domain: &Arc<Domain>, wait_fd: bool) -> Result<Arc<Cntr>> {
        domain.owner.check()?;
        let waiter = if wait_fd { Waiter::with_descriptor()? } else { Waiter::default() };
        let counter = Arc::new(Counter { waiter, ..Counter::default() });
        // A weak reference, since a strong one would keep the counter from being closed.
        let of_set = Arc::downgrade(&counter);
        let wake = move || of_set.upgrade().iter().for_each(|counter| counter.waiter.notify());
        domain.users.add(ObjectKind::Counter);
        Ok(Arc::new(Cntr {
            context: Context::default(),
            domain: domain.clone(),
            counter,
            descriptor: Descriptor::new("cntr"),
            set: ProgressSet::new(domain.threading, wake),
            of_region: AtomicBool::new(false),
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
        // One reference is this object's; another would be a region's.
        if bound > 0 || Arc::strong_count(&self.counter) > 1 {
            return Err(Error::new(errno::EBUSY, "cntr: open endpoints or regions are bound to it"));
        }
        self.domain.users.remove(ObjectKind::Counter);
        Ok(())
    }

    /// The endpoints on which this counter makes progress.
    fn progress_set(&self) -> &ProgressSet {
        if self.of_region.load(Ordering::Relaxed) { self.domain.progress_set() } else { &self.set }
    }

    fn progress(&self) {
        if !reserve::is_lowest() {
            self.progress_set().glance();
        }
    }

    fn driven(&self) -> Option<Driven<'_>> {
        if self.domain.is_auto() {
            return None;
        }
        Some(Driven::new(self.progress_set(), Vec::new()))
    }

    fn disarm(&self) {
        if self.descriptor.is_armed() {
            self.descriptor.disarm(&self.counter.waiter);
        }
    }

    pub fn read(&self) -> u64 {
        self.disarm();
        self.progress();
        self.counter.value.hand_out()
    }

    pub fn read_error(&self) -> u64 {
        self.progress();
        self.counter.errors.hand_out()
    }

    /// Begins a wait for `step`, and returns the present error count.
    pub fn begin_wait(&self, timeout_ms: i32) -> Result<(Wait<'_>, u64)> {
        self.domain.owner.check()?;
        Ok((Wait::new(&self.counter.waiter, timeout_ms), self.counter.errors.get()))
    }

    /// The next step of a wait until the count reaches `threshold` or the error count is not `errors`.
    pub fn step<'a>(&'a self, wait: &mut Wait<'a>, threshold: u64, errors: u64) -> Result<Step<WaitEnd>> {
        let ready = || match (self.counter.value.get() >= threshold, self.counter.errors.get() != errors) {
            (true, _) => Some(WaitEnd::Threshold),
            (_, true) => Some(WaitEnd::ErrorsChanged),
            _ => None,
        };
        wait.step(|| self.driven(), ready)
    }

    /// The error of a wait whose time is over.
    #[cold]
    pub fn too_late(&self, threshold: u64, timeout_ms: i32) -> Error {
        Error::new(errno::ETIMEDOUT, format!("cntr: reached {} of {threshold} in {timeout_ms} ms", self.counter.value.get()))
    }

    pub fn fd(&self) -> Result<i32> {
        self.domain.owner.check()?;
        self.descriptor.fd(&self.counter.waiter)
    }

    /// Arms the descriptor for the caller's own poll. `EAGAIN`: the count is not the one that was read last, or there are
    /// failures that were not reported yet.
    pub fn trywait(&self) -> Result<()> {
        self.domain.owner.check()?;
        let has_news = || self.counter.value.is_news() | self.counter.errors.take_news();
        self.descriptor.prepare(&self.counter.waiter, || self.driven(), has_news)
    }
}

impl Mr {
    /// Binds a counter of peers' writes into the region.
    pub fn bind_cntr(&self, cntr: &Cntr) -> Result<()> {
        self.domain.owner.check()?;
        if !Arc::ptr_eq(cntr.domain(), &self.domain) {
            return Err(Error::invalid("cntr: belongs to another domain than the region"));
        }
        self.domain.prov.bind_counter(self.id, cntr.counter.clone())?;
        cntr.of_region.store(true, Ordering::Relaxed);
        self.domain.drivers.add(&cntr.counter);
        // Threads that wait for the counter have more endpoints to make progress on than before.
        cntr.counter.waiter.notify();
        Ok(())
    }
}
