// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Event queues with the endpoints whose connections they drive.

use super::domain::Fabric;
use super::endpoint::Endpoint;
use super::info::Info;
use super::pep::Pep;
use super::requests;
use super::wait::{Driven, wait};
use crate::error::{Error, Result, errno};
#[cfg(feature = "verbs")]
use crate::prov::event::Request;
use crate::prov::event::{Event, EventQueue};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
struct Attached {
    eps: Vec<Arc<Endpoint>>,
    peps: Vec<Arc<Pep>>,
}

pub struct Eq {
    fabric: Arc<Fabric>,
    pub(crate) events: Arc<EventQueue>,
    wait_fd: bool,
    fd_armed: AtomicBool,
    attached: Mutex<Attached>,
}

impl Eq {
    pub fn open(fabric: &Arc<Fabric>, wait_fd: bool) -> Result<Arc<Eq>> {
        fabric.owner.check()?;
        let events = EventQueue::default();
        if wait_fd {
            events.waiter.poller()?;
        }
        fabric.users.add();
        Ok(Arc::new(Eq {
            fabric: fabric.clone(),
            events: Arc::new(events),
            wait_fd,
            fd_armed: AtomicBool::new(false),
            attached: Mutex::new(Attached::default()),
        }))
    }

    pub(crate) fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    pub(crate) fn attach_ep(&self, ep: &Arc<Endpoint>) {
        self.attached.lock().eps.push(ep.clone());
    }

    pub(crate) fn detach_ep(&self, ep: &Arc<Endpoint>) {
        self.attached.lock().eps.retain(|e| !Arc::ptr_eq(e, ep));
    }

    pub(crate) fn attach_pep(&self, pep: &Arc<Pep>) {
        self.attached.lock().peps.push(pep.clone());
    }

    pub(crate) fn detach_pep(&self, pep: &Arc<Pep>) {
        self.attached.lock().peps.retain(|p| !Arc::ptr_eq(p, pep));
    }

    pub fn close(&self) -> Result<()> {
        self.fabric.owner.check()?;
        let attached = self.attached.lock();
        let bound = attached.eps.len() + attached.peps.len();
        if bound > 0 {
            return Err(Error::new(errno::EBUSY, format!("eq: {bound} open endpoint(s) are bound to it")));
        }
        self.fabric.users.remove();
        Ok(())
    }

    fn driven(&self) -> Driven {
        let attached = self.attached.lock();
        Driven { eps: attached.eps.clone(), peps: attached.peps.clone() }
    }

    /// Looks at the next event and takes it if `decide` says so, driving connections first if none
    /// is there. `None`: no event.
    pub fn read<R>(&self, mut decide: impl FnMut(&Event) -> (bool, R)) -> Option<(R, Option<Event>)> {
        self.disarm();
        if let Some(got) = self.events.take_if(&mut decide) {
            return Some(got);
        }
        self.driven().progress(true);
        self.events.take_if(&mut decide)
    }

    pub fn sread<R>(&self, timeout_ms: i32, mut decide: impl FnMut(&Event) -> (bool, R)) -> Result<Option<(R, Option<Event>)>> {
        self.fabric.owner.check()?;
        self.disarm();
        let ready = || self.events.take_if(&mut decide);
        // The first look at the sockets is worth its system calls: connections change rarely.
        self.driven().progress(true);
        wait(&self.events.waiter, || Some(self.driven()), timeout_ms, ready)
    }

    /// What to open the endpoint with that answers a connection request: the passive endpoint's info, the peer's address
    /// and the request under a number that the caller can hold.
    pub fn request_info(&self, event: &mut Event) -> Option<Info> {
        let request = event.request.take()?;
        let attached = self.attached.lock();
        let pep = attached.peps.iter().find(|p| Arc::as_ptr(p) as usize == event.object)?;
        let mut info = pep.info.clone();
        #[cfg(feature = "verbs")]
        if let Request::Verbs(r) = &*request {
            r.adjust(&mut info);
        }
        // Who asks.
        info.dest_addr = Some(request.from());
        info.request = Some(requests::keep(event.object, request));
        Some(info)
    }

    pub fn write(&self, event: Event) -> Result<()> {
        self.fabric.owner.check()?;
        self.events.push(event);
        Ok(())
    }

    pub fn fd(&self) -> Result<i32> {
        self.fabric.owner.check()?;
        if !self.wait_fd {
            return Err(Error::new(errno::ENOSYS, "eq: was not opened with wait_obj GDRFAB_WAIT_FD"));
        }
        Ok(self.events.waiter.poller()?.raw_fd())
    }

    pub fn trywait(&self) -> Result<()> {
        self.fabric.owner.check()?;
        self.fd()?;
        self.disarm();
        let poller = self.events.waiter.poller()?;
        poller.drain();
        self.events.waiter.arm();
        let d = self.driven();
        d.sleep(poller).inspect_err(|_| self.events.waiter.disarm())?;
        self.fd_armed.store(true, Ordering::Relaxed);
        let quiet = d.look_for_caller(poller).inspect_err(|_| self.disarm())?;
        if quiet && self.events.is_empty() {
            return Ok(());
        }
        self.disarm();
        poller.wake();
        Err(Error::AGAIN)
    }

    fn disarm(&self) {
        if self.fd_armed.swap(false, Ordering::Relaxed) {
            let d = self.driven();
            d.awake(self.events.waiter.poller().ok());
            self.events.waiter.disarm();
            d.progress(true);
        }
    }
}
