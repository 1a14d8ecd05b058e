// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The event queue: what happens to connections, in order, with errors in between.

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

/// One event. `object` and `context` are the caller's handle and context of the endpoint that it
/// belongs to: opaque numbers here.
pub struct Event {
    pub kind: u32,
    pub object: usize,
    pub context: usize,
    pub data: Vec<u8>,
    pub request: Option<Box<dyn Request>>,
    /// What to open the endpoint with that answers the request, once the event was taken.
    pub info: Option<Box<Info>>,
    pub error: Option<Error>,
}

impl Event {
    pub fn new(kind: EventKind, object: usize, context: usize) -> Event {
        Event { kind: kind as u32, object, context, data: Vec::new(), request: None, info: None, error: None }
    }
}

/// How a connection attempt of an endpoint ended, for the log. `peer`: whom it has reached, and by which paths.
pub fn tell(kind: EventKind, object: usize, error: Option<&Error>, peer: impl FnOnce() -> String) {
    match (kind, error) {
        (EventKind::Connected, None) => crate::log!(Debug, "ep {object:#x}: connected to {}", peer()),
        (EventKind::Connected, Some(why)) => crate::log!(Info, "ep {object:#x}: could not connect: {why}"),
        _ => {}
    }
}

/// The same of its end. What this side has asked for is told of by the call.
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

    /// Looks at the head and takes it if `decide` says so.
    pub fn take_if<R>(&self, decide: impl FnOnce(&Event) -> (bool, R)) -> Option<(R, Option<Event>)> {
        let mut list = self.list.lock();
        let (take, result) = decide(list.front()?);
        let event = if take { list.pop_front() } else { None };
        Some((result, event))
    }

    /// Forgets everything that concerns `object`, which is being closed.
    pub fn forget(&self, object: usize) {
        self.list.lock().retain(|e| e.object != object);
    }
}
