// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters with the endpoints that they drive.

use super::domain::Domain;
use super::endpoint::Endpoint;
use super::wait::{Driven, wait};
use crate::error::{Error, Result, errno};
use crate::prov::queue::Counter;
use crate::sync::serial::Serial;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub struct Cntr {
    domain: Arc<Domain>,
    pub counter: Arc<Counter>,
    wait_fd: bool,
    fd_armed: AtomicBool,
    eps: Serial<Vec<Arc<Endpoint>>>,
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
        let counter = Counter::default();
        if wait_fd {
            counter.waiter.poller()?;
        }
        domain.users.add();
        let eps = Serial::new(domain.threading, Vec::new());
        Ok(Arc::new(Cntr {
            domain: domain.clone(),
            counter: Arc::new(counter),
            wait_fd,
            fd_armed: AtomicBool::new(false),
            eps,
            of_region: AtomicBool::new(false),
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
        // One reference is ours and one may be a region's.
        if bound > 0 || Arc::strong_count(&self.counter) > 1 {
            return Err(Error::new(errno::EBUSY, "cntr: open endpoints or regions are bound to it"));
        }
        self.domain.users.remove();
        Ok(())
    }

    pub(crate) fn count_for_region(&self) {
        self.of_region.store(true, Ordering::Relaxed);
    }

    fn progress(&self) {
        if self.of_region.load(Ordering::Relaxed) {
            return self.domain.endpoints().iter().for_each(|ep| ep.progress(false));
        }
        if let Some(eps) = self.eps.try_lock() {
            eps.iter().for_each(|ep| ep.progress(false));
        }
    }

    fn driven(&self) -> Option<Driven> {
        if self.domain.is_auto() {
            return None;
        }
        let eps = if self.of_region.load(Ordering::Relaxed) { self.domain.endpoints() } else { self.eps.lock().clone() };
        Some(Driven { eps, peps: Vec::new() })
    }

    fn disarm(&self) {
        if !self.fd_armed.swap(false, Ordering::Relaxed) {
            return;
        }
        if let Some(d) = self.driven() {
            d.awake(self.counter.waiter.poller().ok());
            d.progress(true);
        }
        self.counter.waiter.disarm();
    }

    pub fn read(&self) -> u64 {
        if self.fd_armed.load(Ordering::Relaxed) {
            self.disarm();
        }
        self.progress();
        self.counter.read()
    }

    pub fn read_error(&self) -> u64 {
        self.progress();
        self.counter.read_error()
    }

    /// Waits until the count reaches `threshold` or the error count changes.
    pub fn wait(&self, threshold: u64, timeout_ms: i32) -> Result<Reached> {
        self.domain.owner.check()?;
        let errors = self.counter.read_error();
        let ready = || match (self.counter.read() >= threshold, self.counter.read_error() != errors) {
            (true, _) => Some(Reached::Threshold),
            (_, true) => Some(Reached::ErrorsChanged),
            _ => None,
        };
        match wait(&self.counter.waiter, || self.driven(), timeout_ms, ready)? {
            Some(r) => Ok(r),
            None => Err(Error::new(errno::ETIMEDOUT, format!("cntr: {} of {threshold} after {timeout_ms} ms", self.counter.read()))),
        }
    }

    pub fn fd(&self) -> Result<i32> {
        self.domain.owner.check()?;
        if !self.wait_fd {
            return Err(Error::new(errno::ENOSYS, "cntr: was not opened with wait_obj GDRFAB_WAIT_FD"));
        }
        Ok(self.counter.waiter.poller()?.raw_fd())
    }

    /// Prepares for the caller's own poll; the caller compares the count afterwards.
    pub fn trywait(&self) -> Result<()> {
        self.domain.owner.check()?;
        self.fd()?;
        let before = self.counter.read();
        self.disarm();
        let poller = self.counter.waiter.poller()?;
        self.counter.waiter.arm();
        let driven = self.driven();
        if let Some(d) = &driven {
            d.sleep(poller).inspect_err(|_| self.counter.waiter.disarm())?;
        }
        self.fd_armed.store(true, Ordering::Relaxed);
        let quiet = match &driven {
            Some(d) => d.look_for_caller(poller).inspect_err(|_| self.disarm())?,
            None => true,
        };
        if quiet && self.counter.read() == before {
            return Ok(());
        }
        self.disarm();
        poller.wake();
        Err(Error::AGAIN)
    }
}
