// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queues and counters that an endpoint is bound to. Every provider reports the ends of operations and arrivals
//! through this file: as completions, in counters, and in order where an order was promised.

use super::av::Av;
use super::drivers::Drivers;
use super::event::{Event, EventKind, EventQueue};
use super::flags;
use super::ops::OpFlags;
use super::order::{Order, Ticket};
use super::queue::{Completion, Counter, Failure, Queue, Waiter};
use super::source::CompletionSource;
use crate::error::{Code, Error, Result, errno};

pub use super::options::{Coop, Effort, Options, RAILS_MAX, RailList};
pub use super::outstanding::{ANY_PATH, BY_CARD, Ending, INJECT_FLAGS, PART, SILENT};
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of unread events above which only connection ends and requests are added to an event queue.
pub const EVENTS: usize = 1024;

/// An object or a property that is bound to an endpoint.
#[derive(Clone)]
pub enum Binding {
    Cq {
        queue: Arc<Queue>,
        source: Option<Arc<dyn CompletionSource>>,
        transmit: bool,
        receive: bool,
        selective: bool,
    },
    Eq(Arc<EventQueue>),
    Counter {
        counter: Arc<Counter>,
        flags: u64,
    },
    /// No object: completions of this side's operations come in the order of posting.
    Order,
    Drivers(Arc<Drivers>),
    /// Makes the endpoint a lane: completions of peers' writes have this context.
    Arrivals(usize),
    /// The address vector that the indexes of peers refer to; connectionless endpoints only.
    Av(Arc<Av>),
    /// The place where a provider reports the ends of parts of lists.
    Ends(Arc<Ends>),
}

/// The ends of parts of lists: a provider puts them here, and the list that posted the parts takes them.
#[derive(Default)]
pub struct Ends {
    ended: Mutex<Vec<(usize, Option<Error>)>>,
    /// The number of ends, for reading without the lock.
    count: AtomicUsize,
}

impl Ends {
    #[cold]
    pub fn put(&self, context: usize, why: Option<Error>) {
        let mut ended = self.ended.lock();
        ended.push((context, why));
        self.count.store(ended.len(), Ordering::Release);
    }

    pub fn take(&self) -> Vec<(usize, Option<Error>)> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut ended = self.ended.lock();
        self.count.store(0, Ordering::Relaxed);
        std::mem::take(&mut *ended)
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}

/// The stage of an endpoint's life, as far as it is common to all providers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stage {
    #[default]
    Fresh,
    Enabled,
    /// Connecting, or connected.
    Connected,
    Over,
}

/// The counters of an endpoint, by kind of operation.
#[derive(Default)]
pub struct Counters {
    pub send: Option<Arc<Counter>>,
    pub recv: Option<Arc<Counter>>,
    pub read: Option<Arc<Counter>>,
    pub write: Option<Arc<Counter>>,
    pub remote_write: Option<Arc<Counter>>,
}

/// The objects and properties that are bound to an endpoint, and the operations that wait for their turn to be
/// reported.
#[derive(Default)]
pub struct Bindings {
    /// The endpoint is enabled, and only counters may still be bound.
    pub enabled: bool,
    pub tx: Option<Arc<Queue>>,
    pub rx: Option<Arc<Queue>>,
    pub tx_selective: bool,
    rx_selective: bool,
    /// The flags of receives that are posted without flags.
    rx_op_flags: u64,
    pub eq: Option<Arc<EventQueue>>,
    pub counters: Counters,
    drivers: Arc<Drivers>,
    /// The context of completions of peers' writes; not 0 for a lane.
    arrivals: usize,
    pub ends: Arc<Ends>,
    /// The latest time until which a thread sleeps on the endpoint.
    sleeps_until: Cell<u64>,
    /// The operations of this side that have not been reported yet, if completions are to come in the order of posting.
    sent: Option<Box<RefCell<Order<Ended>>>>,
    /// Receives that were matched and are not complete, and the later arrivals, which are reported after them.
    arrived: RefCell<Order<Arrival>>,
}

/// An operation of this side that has ended, and the reason if it failed.
type Ended = (Ending, Option<Error>);

/// An arrival that is reported when its turn comes.
struct Arrival {
    entry: Completion,
    wanted: bool,
    lost: Option<Failure>,
}

/// The most peers' writes with data whose report waits for an earlier message. The bound is needed because a peer may
/// never complete that message.
const BEHIND_MAX: usize = 16384;

impl Bindings {
    /// Binds one more object. `EBUSY`: another object is bound in its place.
    pub fn bind(&mut self, what: Binding) -> Result<()> {
        self.check_can_bind(&what)?;
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
            Binding::Order => self.sent = Some(Box::default()),
            Binding::Drivers(drivers) => self.drivers = drivers,
            Binding::Arrivals(number) => self.arrivals = number,
            Binding::Ends(ends) => self.ends = ends,
            Binding::Av(_) => return Err(Error::invalid("ep: only an endpoint of ep_type GDRFAB_EP_RDM takes an address vector")),
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
                if places.iter().any(|(bit, place)| flags & bit != 0 && place.is_some()) {
                    return taken("a counter for these operations");
                }
                for (_, place) in places.into_iter().filter(|(bit, _)| flags & bit != 0) {
                    *place = Some(counter.clone());
                }
            }
        }
        Ok(())
    }

    /// Queues are bound before `enable`, since operations report there. Counters may come later, since they only count.
    pub fn check_can_bind(&self, what: &Binding) -> Result<()> {
        match self.enabled && !matches!(what, Binding::Counter { .. }) {
            true => Err(Error::fixed(errno::EOPBADSTATE, "ep: only counters can be bound after gdrfab_ep_enable()")),
            false => Ok(()),
        }
    }

    /// Refuses to enable an endpoint that is enabled already, or that has neither a queue nor a counter for the operations
    /// that it posts.
    pub fn check_can_enable(&self) -> Result<()> {
        if self.enabled {
            return Err(Error::fixed(errno::EOPBADSTATE, "ep: enabled already"));
        }
        let c = &self.counters;
        if self.tx.is_none() && c.send.is_none() && c.write.is_none() && c.read.is_none() {
            return Err(Error::new(errno::ENOCQ, "ep: bind a completion queue or a counter for transmits before ep_enable"));
        }
        Ok(())
    }

    /// The endpoint is enabled, and only counters may still be bound.
    pub fn enable(&mut self, op_flags: OpFlags) {
        (self.enabled, self.rx_op_flags) = (true, op_flags.rx);
    }

    /// True if the endpoint is a lane, one of many of a connectionless endpoint.
    pub fn is_lane(&self) -> bool {
        self.arrivals != 0
    }

    /// Refuses to connect an endpoint that is not at the right stage, or that has no event queue.
    pub fn check_can_connect(&self, stage: Stage) -> Result<()> {
        if self.eq.is_none() {
            return Err(Error::fixed(errno::ENOEQ, "ep: bind an event queue before connecting"));
        }
        match stage {
            Stage::Enabled => Ok(()),
            Stage::Fresh => Err(Error::fixed(errno::EOPBADSTATE, "ep: call ep_enable before connecting")),
            Stage::Connected => Err(Error::fixed(errno::EISCONN, "ep: connecting or connected already")),
            Stage::Over => Err(Error::fixed(errno::EOPBADSTATE, "ep: the connection is over; open another endpoint")),
        }
    }

    /// Wakes the threads that sleep on the endpoint, because there is something to watch or to do that was not there when
    /// they fell asleep.
    #[cold]
    pub fn wake_sleepers(&self) {
        let c = &self.counters;
        let counters = [&c.send, &c.recv, &c.read, &c.write, &c.remote_write].into_iter().flatten().map(|c| &c.waiter);
        let queues = [&self.tx, &self.rx].into_iter().flatten().map(|q| &q.waiter);
        let events = self.eq.iter().map(|eq| &eq.waiter);
        counters.chain(queues).chain(events).for_each(Waiter::notify);
        self.drivers.notify();
    }

    /// Remembers that threads sleep on the endpoint for at most `limit_ns`, which the endpoint has worked out itself.
    pub fn sleeps(&self, now: u64, limit_ns: u64) -> u64 {
        self.sleeps_until.set(now.saturating_add(limit_ns));
        limit_ns
    }

    /// An operation with this deadline was posted: wakes sleeping threads that would sleep beyond it.
    #[inline]
    pub fn expires(&self, deadline: u64) {
        if deadline < self.sleeps_until.get() {
            self.wake_sleepers();
        }
    }

    /// True if every RMA operation gives a completion and increments no counter, in a queue without a lock.
    pub fn is_fast(&self) -> bool {
        let counted = self.counters.write.is_some() || self.counters.read.is_some();
        !counted && !self.tx_selective && self.tx.as_ref().is_some_and(|q| q.threading().is_promised())
    }

    /// True if an operation with these flags gives an entry when it succeeds.
    #[inline]
    pub fn wants_entry(&self, flags: u64) -> bool {
        self.tx.is_some() && flags & (SILENT | PART) == 0 && (!self.tx_selective || flags & flags::COMPLETION != 0)
    }

    /// True if a receive posted with `flags` gives an entry when it succeeds.
    #[inline]
    pub fn wants_receive(&self, flags: u64) -> bool {
        self.rx.is_some() && (!self.rx_selective || flags & flags::COMPLETION != 0)
    }

    /// As `wants_receive`, for a receive posted without flags.
    pub fn wants_plain_receive(&self) -> bool {
        self.wants_receive(self.rx_op_flags)
    }

    /// True if untagged receives without flags take several messages.
    pub fn receives_several(&self) -> bool {
        self.rx_op_flags & flags::MULTI_RECV != 0
    }

    /// Reserves the completion of an operation that wants one. False: the queue has no room.
    #[inline]
    pub fn reserve(&self, wanted: bool) -> bool {
        match &self.tx {
            Some(q) if wanted => q.reserve(),
            _ => true,
        }
    }

    /// True if no earlier operation is outstanding, so that an operation that ends now may be reported now.
    #[inline(always)]
    pub fn is_calm(&self) -> bool {
        self.sent.as_ref().is_none_or(|order| order.borrow().is_calm())
    }

    /// Gives an accepted operation its place in the order.
    #[inline]
    pub fn place(&self, end: Ending) -> Ending {
        match &self.sent {
            Some(order) if end.wanted => Ending { ticket: Some(order.borrow_mut().begin()), ..end },
            _ => end,
        }
    }

    /// Ends an operation that has a place in the order. Reports the operation if all earlier ones have ended, and then
    /// the later ones that have waited for it.
    #[cold]
    fn take_turns(&self, ticket: Ticket, end: &Ending, why: Option<Error>) {
        let Some(order) = &self.sent else { return };
        let mut order = order.borrow_mut();
        if let Some((end, why)) = order.end(ticket, (*end, why)) {
            self.tell(&end, why);
        }
        while let Some((end, why)) = order.take() {
            self.tell(&end, why);
        }
    }

    fn tell(&self, end: &Ending, why: Option<Error>) {
        match why {
            None => self.tell_success(end),
            Some(error) => self.tell_failure(end, error),
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

    /// Reports the success of an operation of this side.
    #[inline]
    pub fn succeed(&self, end: &Ending) {
        match end.ticket {
            None => self.tell_success(end),
            Some(ticket) => self.take_turns(ticket, end, None),
        }
    }

    #[inline]
    fn tell_success(&self, end: &Ending) {
        if end.part {
            return self.ends.put(end.context, None);
        }
        if end.wanted
            && let Some(q) = &self.tx
        {
            q.fill(Completion { context: end.context, flags: end.kind, len: end.len, buf: end.buf, data: 0 });
        }
        if let Some(counter) = self.counter_of(end.kind) {
            counter.add(1);
        }
    }

    /// Reports the failure of an operation of this side, which always gives an entry.
    #[cold]
    pub fn fail(&self, end: &Ending, error: Error) {
        match end.ticket {
            None => self.tell_failure(end, error),
            Some(ticket) => self.take_turns(ticket, end, Some(error)),
        }
    }

    #[cold]
    fn tell_failure(&self, end: &Ending, error: Error) {
        if end.part {
            return self.ends.put(end.context, Some(error));
        }
        self.tell_failed_block(end, error, 0);
    }

    /// As `fail`, for a list whose block of this index failed.
    #[cold]
    pub fn tell_failed_block(&self, end: &Ending, error: Error, block: usize) {
        if let Some(counter) = self.counter_of(end.kind) {
            counter.add_error(1);
        }
        // An inject call has no context, so the caller could not tell the operation from others. If the connection has
        // ended, an event says so, and an error entry would say no more.
        if end.silent && matches!(error.code, Code::Canceled | Code::PeerGone) {
            return;
        }
        if let Some(q) = &self.tx {
            let entry = Completion { context: end.context, flags: end.kind, len: 0, buf: end.buf, data: 0 };
            q.fail(entry, Failure { error, olen: 0, block }, end.wanted);
        }
    }

    /// True if no matched message is incomplete, so that an arrival may be reported at once.
    #[inline(always)]
    pub fn none_arriving(&self) -> bool {
        self.arrived.borrow().is_calm()
    }

    /// Notes that a message was matched with a receive; `later` says that the message's bytes are still to come.
    /// Returns the receive's place among arrivals, if the receive cannot be reported at once.
    #[inline]
    pub fn matched(&self, later: bool) -> Option<Ticket> {
        if !later && self.none_arriving() {
            return None;
        }
        Some(self.arrived.borrow_mut().begin())
    }

    /// Reports a receive that was filled, or whose message was longer than its buffer (`lost`).
    #[inline]
    pub fn received(&self, ticket: Option<Ticket>, entry: Completion, wanted: bool, lost: Option<Failure>) {
        match ticket {
            None => self.tell_arrival(Arrival { entry, wanted, lost }),
            Some(ticket) => self.arrive(ticket, Arrival { entry, wanted, lost }),
        }
    }

    #[cold]
    fn arrive(&self, ticket: Ticket, arrival: Arrival) {
        if let Some(arrival) = self.arrived.borrow_mut().end(ticket, arrival) {
            self.tell_arrival(arrival);
        }
        self.tell_arrivals();
    }

    fn tell_arrivals(&self) {
        while let Some(arrival) = self.arrived.borrow_mut().take() {
            self.tell_arrival(arrival);
        }
    }

    /// Counts an arrival, and adds its entry to the queue.
    #[inline]
    fn tell_arrival(&self, arrival: Arrival) {
        let Arrival { entry, wanted, lost } = arrival;
        if entry.flags & flags::REMOTE_WRITE != 0 {
            if let Some(counter) = &self.counters.remote_write {
                counter.add(1);
            }
        } else if let Some(counter) = &self.counters.recv {
            match &lost {
                None => counter.add(1),
                Some(_) => counter.add_error(1),
            }
        }
        let Some(q) = &self.rx else { return };
        match lost {
            None if wanted => q.push(entry),
            None => {}
            Some(failure) => q.fail(entry, failure, false),
        }
    }

    /// Reports a receive that will not be filled. The report comes at once, and later receives do not wait for this one
    /// any more.
    #[cold]
    pub fn spoiled(&self, ticket: Option<Ticket>, entry: Completion, failure: Failure) {
        self.tell_arrival(Arrival { entry, wanted: true, lost: Some(failure) });
        if let Some(ticket) = ticket {
            self.arrived.borrow_mut().leave(ticket);
            self.tell_arrivals();
        }
    }

    /// Reports a peer's write of `len` bytes with data.
    pub fn remote_data(&self, len: usize, data: u64) {
        let kind = flags::REMOTE_WRITE | flags::RMA | flags::REMOTE_CQ_DATA;
        let entry = Completion { context: self.arrivals, flags: kind, len, buf: 0, data };
        let behind = self.arrived.borrow().under_way();
        let ticket = if behind < BEHIND_MAX { self.matched(false) } else { None };
        self.received(ticket, entry, true, None);
    }

    /// True if an event other than the connection's end may be added. The bound keeps peers from filling an event queue
    /// that nobody reads.
    pub fn has_event_room(&self) -> bool {
        self.eq.as_ref().is_none_or(|eq| eq.len() < EVENTS)
    }

    /// Adds an event about the connection of the caller's endpoint `object`.
    pub fn event(&self, kind: EventKind, object: usize, context: usize, data: Vec<u8>, error: Option<Error>) {
        if let Some(eq) = &self.eq {
            let mut event = Event::new(kind, object, context);
            event.data = data;
            event.error = error;
            eq.push(event);
        }
        if kind == EventKind::Connected {
            // Threads that fell asleep before watch the sockets of that time, and the new peer does not know that it
            // has to wake them.
            self.wake_sleepers();
        }
    }
}
