// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Event queues, and the endpoints and passive endpoints whose connections they drive: a read or a wait makes progress on
//! connecting, and takes the next event.

use super::descriptor::Descriptor;
use super::drive::EpRef;
use super::info::Info;
use super::pep::{Announces, Pep};
use super::progress_set::ProgressSet;
use super::requests;
use super::root::Fabric;
use super::users::ObjectKind;
use super::wait::{Driven, Step, Wait, wait};
use super::{Context, no_flags};
use crate::error::{Error, Result, errno};
use crate::prov::Request;
use crate::prov::event::{Event, EventQueue};
use crate::prov::queue::Waiter;
use crate::sync::serial::Threading;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The result of a reader's `decide` on an event, and the event if `decide` took it.
pub type Got<R> = (R, Option<Event>);

pub struct Eq {
    pub context: Context,
    fabric: Arc<Fabric>,
    pub(crate) events: Arc<EventQueue>,
    descriptor: Descriptor,
    set: ProgressSet,
    peps: Mutex<Vec<Arc<Pep>>>,
    /// The number of passive endpoints that were closed. A wait that began before such a close returns, since the event that
    /// it waits for may never come.
    closes: AtomicUsize,
}

impl Eq {
    pub fn open(fabric: &Arc<Fabric>, wait_fd: bool) -> Result<Arc<Eq>> {
        fabric.owner.check()?;
        let waiter = if wait_fd { Waiter::with_descriptor()? } else { Waiter::default() };
        let events = Arc::new(EventQueue::with_waiter(waiter));
        let of_set = events.clone();
        fabric.users.add(ObjectKind::EventQueue);
        Ok(Arc::new(Eq {
            context: Context::default(),
            fabric: fabric.clone(),
            events,
            descriptor: Descriptor::new("eq"),
            set: ProgressSet::new(Threading::Safe, move || of_set.waiter.notify()),
            peps: Mutex::default(),
            closes: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    /// Wakes the threads that sleep on this queue, because the set of sockets to watch has changed.
    pub(crate) fn look_again(&self) {
        self.events.waiter.notify();
    }

    pub(crate) fn attach_ep(&self, ep: &EpRef) {
        self.set.attach(ep);
    }

    pub(crate) fn detach_ep(&self, ep: &EpRef) {
        self.set.detach(ep);
    }

    pub fn close(&self) -> Result<()> {
        self.fabric.owner.check()?;
        let bound = self.set.len() + self.peps.lock().len();
        if bound > 0 {
            return Err(Error::new(errno::EBUSY, format!("eq: {bound} open endpoint(s) are bound to it")));
        }
        self.fabric.users.remove(ObjectKind::EventQueue);
        Ok(())
    }

    fn driven(&self) -> Driven<'_> {
        let peps = self.peps.lock().clone();
        Driven::new(&self.set, peps)
    }

    /// Makes progress on connections. If that changes the set of sockets, threads that sleep on the old set are woken.
    fn drive(&self) {
        let driven = self.driven();
        let before = self.events.waiter.is_armed().then(|| driven.watch_version());
        driven.progress();
        if before.is_some_and(|before| driven.watch_version() != before) {
            self.events.waiter.notify();
        }
    }

    /// Shows the next event to `decide`, and takes it if `decide` says so. If there is none, makes progress on connections
    /// first. `None`: no event.
    pub fn read<R>(&self, mut decide: impl FnMut(&Event) -> (bool, R)) -> Option<(R, Option<Event>)> {
        self.disarm();
        if let Some(got) = self.take_if(&mut decide) {
            return Some(got);
        }
        self.drive();
        self.take_if(&mut decide)
    }

    /// As `read`, but waits up to `timeout_ms` (-1 = for ever).
    pub fn sread<R>(&self, timeout_ms: i32, mut decide: impl FnMut(&Event) -> (bool, R)) -> Result<Option<Got<R>>> {
        let (_wait, closes) = self.begin_wait(timeout_ms)?;
        wait(&self.events.waiter, || Some(self.driven()), timeout_ms, || self.take_waited(closes, &mut decide)).map(Option::flatten)
    }

    /// Begins a wait for `step`, and returns the present number of closed passive endpoints.
    pub fn begin_wait(&self, timeout_ms: i32) -> Result<(Wait<'_>, usize)> {
        self.fabric.owner.check()?;
        self.disarm();
        let closes = self.closes.load(Ordering::Acquire);
        // Connections change rarely, so one look at the sockets before polling is worth its system calls.
        self.drive();
        Ok((Wait::new(&self.events.waiter, timeout_ms), closes))
    }

    /// The next step of a wait for an event. The wait ends without an event if the number of closed passive endpoints is no
    /// longer `closes`.
    pub fn step<'a, R>(
        &'a self,
        wait: &mut Wait<'a>,
        closes: usize,
        mut decide: impl FnMut(&Event) -> (bool, R),
    ) -> Result<Step<Option<Got<R>>>> {
        wait.step(|| Some(self.driven()), || self.take_waited(closes, &mut decide))
    }

    fn take_waited<R>(&self, closes: usize, decide: &mut impl FnMut(&Event) -> (bool, R)) -> Option<Option<Got<R>>> {
        let closed = || self.closes.load(Ordering::Acquire) != closes;
        self.take_if(decide).map(Some).or_else(|| closed().then_some(None))
    }

    /// Takes the next event if `decide` says so. A connection request comes with an info that opens the accepting
    /// endpoint: a copy of the passive endpoint's info, with the peer's address and the number of the request. The info
    /// is made before the passive endpoint can be detached, so that the close of that endpoint finds the request either
    /// in the queue or in the list of requests.
    fn take_if<R>(&self, decide: impl FnOnce(&Event) -> (bool, R)) -> Option<(R, Option<Event>)> {
        let peps = self.peps.lock();
        let mut got = self.events.take_if(decide)?;
        if let Some(event) = &mut got.1
            && let Some(request) = event.request.take()
        {
            let pep = peps.iter().find(|p| Arc::as_ptr(p) as usize == event.object);
            event.info = pep.map(|pep| Box::new(answer_with(pep, event.object, request)));
        }
        Some(got)
    }

    pub fn write(&self, event: Event) -> Result<()> {
        self.fabric.owner.check()?;
        self.events.push(event);
        Ok(())
    }

    pub fn fd(&self) -> Result<i32> {
        self.fabric.owner.check()?;
        self.descriptor.fd(&self.events.waiter)
    }

    /// Arms the descriptor for the caller's own poll. `EAGAIN`: there is an event to read.
    pub fn trywait(&self) -> Result<()> {
        self.fabric.owner.check()?;
        self.descriptor.prepare(&self.events.waiter, || Some(self.driven()), || !self.events.is_empty())
    }

    fn disarm(&self) {
        if self.descriptor.is_armed() {
            self.descriptor.disarm(&self.events.waiter);
        }
    }
}

impl Announces for Eq {
    fn events(&self) -> &Arc<EventQueue> {
        &self.events
    }

    fn detach_pep(&self, pep: &Arc<Pep>) {
        let mut peps = self.peps.lock();
        peps.retain(|p| !Arc::ptr_eq(p, pep));
        // Under the lock, which a waiting thread takes after it was counted as asleep: it sees the new number, or is woken.
        self.closes.fetch_add(1, Ordering::Release);
        drop(peps);
        self.look_again();
    }
}

impl Pep {
    pub fn bind_eq(self: &Arc<Self>, eq: &Arc<Eq>, bits: u64) -> Result<()> {
        self.fabric.owner.check()?;
        no_flags(bits)?;
        if !Arc::ptr_eq(&eq.fabric, &self.fabric) {
            return Err(Error::invalid("eq: belongs to another fabric than the passive endpoint"));
        }
        self.bind(eq.clone())?;
        eq.peps.lock().push(self.clone());
        eq.look_again();
        Ok(())
    }
}

fn answer_with(pep: &Pep, object: usize, request: Box<dyn Request>) -> Info {
    let mut info = pep.info.clone();
    request.adjust(&mut info);
    // The peer that asks to connect.
    info.dest_addr = Some(request.from());
    info.request = Some(requests::keep(object, request));
    info
}
