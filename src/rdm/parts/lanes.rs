// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lanes of one endpoint: lanes that are being connected, connected lanes in the order of polling, and lanes that have
//! ended and cannot be closed yet. Also the queues into which all these lanes write their results and events.

use crate::error::{Error, Result, errno};
use crate::prov::Endpoint;
use crate::prov::EventQueue;
use crate::prov::bind::{Binding, Ends};
use crate::prov::drivers::Drivers;
use crate::prov::event::Event;
use crate::prov::queue::Queue;
use crate::rdm::limits::UNLISTED_MAX;
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::link::Link;
use crate::rdm::peers::peer::Id;
use crate::rdm::peers::poll_schedule::PollSchedule;
use crate::sync::serial::Threading;
use crate::sys::time;
use std::collections::HashMap;
use std::sync::Arc;

/// Largest number of entries of the queue for the lanes' results. The queue begins small and grows.
const RESULTS: usize = 1 << 30;
/// One poll drives so many of the lanes that are being connected, and no more, because each lane costs system calls.
const CONNECTING_PER_POLL: usize = 16;
/// Time in which an unlisted caller has to finish connecting, in nanoseconds. The limit applies once `UNLISTED_MAX` leaves
/// no room for another unlisted caller.
const SLOW_CALLER_NS: u64 = 100_000_000;

pub struct Lanes {
    schedule: PollSchedule,
    connecting: Vec<(Id, Arc<Link>)>,
    /// Number of calls of `poll_connecting` so far; wraps around.
    polls: u32,
    /// Lanes that have ended and cannot be closed yet.
    closing: Vec<Arc<Link>>,
    /// The peer of each link, by `Link::number`.
    peers: HashMap<usize, Id>,
    /// `Link::number` of the newest link.
    newest: usize,
    /// `unlisted`: number of lanes to unlisted callers. `counted_at`: change count of the address vector when callers that
    /// the vector names by now were last taken off this number.
    unlisted: usize,
    counted_at: u64,
    /// `results`: completion queue for the operations that the lanes carry out. `list_ends`: queue for the results of
    /// block lists. `events`: event queue of the lanes. `drivers`: the threads that make progress on the endpoints of the
    /// domain.
    results: Arc<Queue>,
    list_ends: Arc<Ends>,
    events: Arc<EventQueue>,
    drivers: Arc<Drivers>,
}

impl Lanes {
    pub fn new(threading: Threading) -> Result<Lanes> {
        Ok(Lanes {
            schedule: PollSchedule::default(),
            connecting: Vec::new(),
            polls: 0,
            closing: Vec::new(),
            peers: HashMap::new(),
            newest: 0,
            unlisted: 0,
            counted_at: u64::MAX,
            results: Arc::new(Queue::new(RESULTS, threading)?),
            list_ends: Arc::default(),
            events: Arc::default(),
            drivers: Arc::default(),
        })
    }

    /// Sets the threads that make progress (`prov::drivers`). Each lane that is opened from now on gets them.
    pub fn set_drivers(&mut self, drivers: Arc<Drivers>) {
        self.drivers = drivers;
    }

    /// Opens an endpoint of a lane, without enabling it.
    pub fn open(&mut self, domain: &Domain, lane_index: usize) -> Result<Arc<Link>> {
        let Some(lane) = domain.lanes.get(lane_index) else { return Err(Error::fixed(errno::ENODEV, "ep: no such lane")) };
        let ep: Box<dyn Endpoint> = lane.domain.clone().open_endpoint(&lane.info, 0)?;
        self.newest += 1;
        let number = self.newest;
        ep.set_object(number);
        let queue = self.results.clone();
        ep.bind(Binding::Cq { queue, source: None, transmit: true, receive: true, selective: false })?;
        ep.bind(Binding::Eq(self.events.clone()))?;
        ep.bind(Binding::Arrivals(number))?;
        ep.bind(Binding::Drivers(self.drivers.clone()))?;
        ep.bind(Binding::Ends(self.list_ends.clone()))?;
        Ok(Arc::new(Link::new(ep, lane_index, number)))
    }

    /// Adds a lane that is being connected to a peer.
    pub fn connecting(&mut self, id: Id, link: &Arc<Link>) {
        self.peers.insert(link.number, id);
        self.connecting.push((id, link.clone()));
    }

    /// Counts the caller behind a lane as an unlisted caller.
    pub fn count_unlisted(&mut self, link: &Link) {
        link.set_unlisted(time::now_ns());
        self.unlisted += 1;
    }

    /// Moves a lane from the lanes that are being connected to the connected lanes. Turns poll the lane from now on.
    pub fn connected(&mut self, id: Id, link: &Arc<Link>) {
        self.connecting.retain(|(_, l)| l.number != link.number);
        self.schedule.push(id, link.clone());
    }

    /// Ends a lane: the lane leads to no peer any more, and is closed as soon as the provider permits.
    pub fn end(&mut self, link: &Arc<Link>) {
        if link.unlisted_since() != 0 {
            self.unlisted = self.unlisted.saturating_sub(1);
        }
        self.peers.remove(&link.number);
        self.connecting.retain(|(_, l)| l.number != link.number);
        self.schedule.remove(link);
        self.closing.push(link.clone());
    }

    /// Ends the lanes that are being connected, because the endpoint closes.
    pub fn end_connecting(&mut self) {
        self.closing.extend(self.connecting.drain(..).map(|(_, link)| link));
    }

    /// Closes the lanes that have ended, as far as the providers permit.
    pub fn close_ended(&mut self) {
        self.closing.retain(|link| link.ep.close().is_err_and(|e| e.errno == errno::EBUSY));
    }

    /// True if lanes have ended and are not closed yet.
    pub fn is_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// The peer of the link with this number (`Link::number`); `None` if the link has ended.
    pub fn peer_of(&self, link: usize) -> Option<Id> {
        self.peers.get(&link).copied()
    }

    /// The connected lanes.
    #[inline(always)]
    pub fn connected_lanes(&self) -> &[(Id, Arc<Link>)] {
        &self.schedule
    }

    /// The order in which the connected lanes are polled.
    #[inline(always)]
    pub fn schedule(&mut self) -> &mut PollSchedule {
        &mut self.schedule
    }

    #[inline(always)]
    pub fn is_connecting(&self) -> bool {
        !self.connecting.is_empty()
    }

    /// Peers whose lanes are being connected.
    pub fn connecting_peers(&self) -> impl Iterator<Item = Id> {
        self.connecting.iter().map(|(id, _)| *id)
    }

    /// All lanes that are connected or being connected.
    pub fn each(&self) -> impl Iterator<Item = &Link> {
        self.schedule.iter().chain(&self.connecting).map(|(_, link)| &**link)
    }

    /// Drives some of the lanes that are being connected, or all if `force` is set. Each poll starts at another lane, so that
    /// peers that dial and then stay silent do not delay the others.
    pub fn poll_connecting(&mut self, force: bool) {
        self.polls = self.polls.wrapping_add(1);
        let (all, most) = (self.connecting.len(), if force { usize::MAX } else { CONNECTING_PER_POLL });
        let from = (self.polls as usize).wrapping_mul(CONNECTING_PER_POLL).checked_rem(all).unwrap_or(0);
        for at in (0..all.min(most)).map(|k| (from + k) % all) {
            if let Some((_, link)) = self.connecting.get(at) {
                link.ep.progress(true);
            }
        }
    }

    /// The next event of a lane, with the lane's peer.
    pub fn next_event(&mut self) -> Option<(Id, Event)> {
        while let Some((_, Some(event))) = self.events.take_if(|_| (true, ())) {
            if let Some(id) = self.peer_of(event.object) {
                return Some((id, event));
            }
        }
        None
    }

    /// The queue of the results of the lanes' operations.
    #[inline(always)]
    pub fn results(&self) -> &Queue {
        &self.results
    }

    /// Takes the results of block lists, and of parts of lists. A result is the number of the operation, and the error if
    /// the operation has failed.
    pub fn take_list_ends(&self) -> Vec<(usize, Option<Error>)> {
        self.list_ends.take()
    }

    /// True if no result and no event waits to be handled.
    pub fn is_handled(&self) -> bool {
        self.events.is_empty() && self.results.is_empty() && self.list_ends.is_empty()
    }

    /// True if one more unlisted caller may connect. At the limit, callers that were inserted into the address vector
    /// meanwhile are taken off the count. `changes`: change count of the vector. `is_named`: says whether the vector names
    /// a peer.
    pub fn has_room_for_unlisted(&mut self, changes: u64, is_named: impl Fn(Id) -> bool) -> bool {
        if self.unlisted >= UNLISTED_MAX && self.counted_at != changes {
            self.counted_at = changes;
            let unlisted = self.schedule.iter().chain(&self.connecting).filter(|(_, link)| link.unlisted_since() != 0);
            let count = unlisted.filter(|(id, _)| is_named(*id)).map(|(_, link)| link.set_unlisted(0)).count();
            self.unlisted -= count.min(self.unlisted);
        }
        self.unlisted < UNLISTED_MAX
    }

    /// An unlisted caller that has been connecting for longer than `SLOW_CALLER_NS`.
    pub fn slow_caller(&self) -> Option<(Id, Arc<Link>)> {
        let late = time::now_ns().saturating_sub(SLOW_CALLER_NS);
        self.connecting.iter().find(|(_, link)| (1..late).contains(&link.unlisted_since())).cloned()
    }
}
