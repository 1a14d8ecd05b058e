// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters with the endpoints that they drive.

use super::Context;
use super::descriptor::Descriptor;
use super::domain::{Domain, Mr};
use super::drive::EpRef;
use super::progress_set::ProgressSet;
use super::users::Kind;
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
    /// A region reports to it: then any endpoint of the domain may bring the report.
    of_region: AtomicBool,
}

/// How a wait for a counter ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reached {
    Threshold,
    ErrorsChanged,
}

impl Cntr {
    pub fn open(domain: &Arc<Domain>, wait_fd: bool) -> Result<Arc<Cntr>> {
        domain.owner.check()?;
        let waiter = if wait_fd { Waiter::with_descriptor()? } else { Waiter::default() };
        let counter = Arc::new(Counter { waiter, ..Counter::default() });
        // Who has a share of it keeps it from being closed.
        let of_set = Arc::downgrade(&counter);
        let wake = move || of_set.upgrade().iter().for_each(|counter| counter.waiter.notify());
        domain.users.add(Kind::Counter);
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
        // One reference is ours and one may be a region's.
        if bound > 0 || Arc::strong_count(&self.counter) > 1 {
            return Err(Error::new(errno::EBUSY, "cntr: open endpoints or regions are bound to it"));
        }
        self.domain.users.remove(Kind::Counter);
        Ok(())
    }

    /// Whom it drives.
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

    /// Begins a wait for `step`, and gives the error count.
    pub fn begin_wait(&self, timeout_ms: i32) -> Result<(Wait<'_>, u64)> {
        self.domain.owner.check()?;
        Ok((Wait::new(&self.counter.waiter, timeout_ms), self.counter.errors.get()))
    }

    /// The next step of a wait until the count reaches `threshold` or the error count is not `errors`.
    pub fn step<'a>(&'a self, wait: &mut Wait<'a>, threshold: u64, errors: u64) -> Result<Step<Reached>> {
        let ready = || match (self.counter.value.get() >= threshold, self.counter.errors.get() != errors) {
            (true, _) => Some(Reached::Threshold),
            (_, true) => Some(Reached::ErrorsChanged),
            _ => None,
        };
        wait.step(|| self.driven(), ready)
    }

    /// The error of a wait whose time is over.
    #[cold]
    pub fn too_late(&self, threshold: u64, timeout_ms: i32) -> Error {
        Error::new(errno::ETIMEDOUT, format!("cntr: {} of {threshold} after {timeout_ms} ms", self.counter.value.get()))
    }

    pub fn fd(&self) -> Result<i32> {
        self.domain.owner.check()?;
        self.descriptor.fd(&self.counter.waiter)
    }

    /// Prepares for the caller's own poll on the descriptor; `EAGAIN` if the count is not what was read last, or failures
    /// came that nobody was told of.
    pub fn trywait(&self) -> Result<()> {
        self.domain.owner.check()?;
        let has_news = || self.counter.value.is_news() | self.counter.errors.take_news();
        self.descriptor.prepare(&self.counter.waiter, || self.driven(), has_news)
    }
}

impl Mr {
    /// Counts peers' writes into the region.
    pub fn bind_cntr(&self, cntr: &Cntr) -> Result<()> {
        self.domain.owner.check()?;
        if !Arc::ptr_eq(cntr.domain(), &self.domain) {
            return Err(Error::invalid("cntr: belongs to another domain than the region"));
        }
        self.domain.prov.bind_counter(self.id, cntr.counter.clone())?;
        cntr.of_region.store(true, Ordering::Relaxed);
        self.domain.drivers.add(&cntr.counter);
        // Who waits for it drives more than before.
        cntr.counter.waiter.notify();
        Ok(())
    }
}
