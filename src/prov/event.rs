// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The event queue: events about connections, and errors between them, in the order in which they happened.

use super::info::Info;
use super::request::Request;
use super::waiter::Waiter;
use crate::error::Error;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Kinds of events; the numbers are libfabric's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EventKind {
    Notify = 0,
    ConnReq = 1,
    Connected = 2,
    Shutdown = 3,
}

/// One event. `object` is the caller's handle of the endpoint that the event is about, and `context` that endpoint's context;
/// both are opaque numbers here.
pub struct Event {
    pub kind: u32,
    pub object: usize,
    pub context: usize,
    pub data: Vec<u8>,
    pub request: Option<Box<dyn Request>>,
    /// The info with which the accepting endpoint is opened. The field is set when a reader takes the event.
    pub info: Option<Box<Info>>,
    pub error: Option<Error>,
}

impl Event {
    pub fn new(kind: EventKind, object: usize, context: usize) -> Event {
        Event { kind: kind as u32, object, context, data: Vec::new(), request: None, info: None, error: None }
    }
}

/// Logs how an endpoint's attempt to connect ended. `peer` gives the peer's address and the paths to it.
pub fn tell(kind: EventKind, object: usize, error: Option<&Error>, peer: impl FnOnce() -> String) {
    match (kind, error) {
        (EventKind::Connected, None) => crate::log!(Debug, "ep {object:#x}: connected to {}", peer()),
        (EventKind::Connected, Some(why)) => crate::log!(Info, "ep {object:#x}: could not connect: {why}"),
        _ => {}
    }
}

/// Logs the end of a connection. An end that this side asked for is the result of that call, and not logged here.
pub fn tell_end(object: usize, peer: &str, why: &Error) {
    crate::log!(Info, "ep {object:#x}: the connection to {peer} is over: {why}");
}

#[derive(Default)]
pub struct EventQueue {
    list: Mutex<VecDeque<Event>>,
    pub waiter: Waiter,
}

impl EventQueue {
    pub fn with_waiter(waiter: Waiter) -> EventQueue {
        EventQueue { list: Mutex::default(), waiter }
    }

    pub fn push(&self, event: Event) {
        self.list.lock().push_back(event);
        self.waiter.notify();
    }

    pub fn len(&self) -> usize {
        self.list.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.lock().is_empty()
    }

    /// Shows the first event to `decide`, and takes it if `decide` says so.
    pub fn take_if<R>(&self, decide: impl FnOnce(&Event) -> (bool, R)) -> Option<(R, Option<Event>)> {
        let mut list = self.list.lock();
        let (take, result) = decide(list.front()?);
        let event = if take { list.pop_front() } else { None };
        Some((result, event))
    }

    /// Removes every event about `object`, which is being closed.
    pub fn forget(&self, object: usize) {
        self.list.lock().retain(|e| e.object != object);
    }
}
