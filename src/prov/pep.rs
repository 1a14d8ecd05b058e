// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A passive endpoint, the same for every provider: it makes the connection requests of its listener into events.

use super::bind::EVENTS;
use super::contract::Listener;
use super::event::{Event, EventKind, EventQueue};
use super::request::Request;
use crate::error::{Error, Result, errno};
use crate::sys::epoll::Poller;
use parking_lot::Mutex;
use std::sync::Arc;

struct Inner {
    /// `None` once the passive endpoint is closed.
    listener: Option<Box<dyn Listener>>,
    listens: bool,
    eq: Option<Arc<EventQueue>>,
    object: usize,
}

pub struct PassiveEndpoint {
    address: String,
    cm_data_size: usize,
    context: usize,
    inner: Mutex<Inner>,
}

impl PassiveEndpoint {
    pub fn new(listener: Box<dyn Listener>, context: usize) -> PassiveEndpoint {
        PassiveEndpoint {
            address: listener.address(),
            cm_data_size: listener.cm_data_size(),
            context,
            inner: Mutex::new(Inner { listener: Some(listener), listens: false, eq: None, object: 0 }),
        }
    }

    /// Sets the caller's handle, by which events name this endpoint.
    pub fn set_object(&self, object: usize) {
        self.inner.lock().object = object;
    }

    /// The most bytes of private data that accept and reject take.
    pub fn cm_data_size(&self) -> usize {
        self.cm_data_size
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn bind(&self, eq: Arc<EventQueue>) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.eq.is_some() {
            return Err(Error::new(errno::EBUSY, "pep: an event queue is bound already"));
        }
        inner.eq = Some(eq);
        Ok(())
    }

    pub fn event_queue(&self) -> Option<Arc<EventQueue>> {
        self.inner.lock().eq.clone()
    }

    pub fn listen(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.eq.is_none() {
            return Err(Error::new(errno::ENOEQ, "pep: bind an event queue before pep_listen"));
        }
        if inner.listens {
            return Err(Error::new(errno::EOPBADSTATE, "pep: gdrfab_pep_listen() was called already"));
        }
        let Some(listener) = &mut inner.listener else { return Err(Error::fixed(errno::EOPBADSTATE, "pep: closed")) };
        listener.listen()?;
        inner.listens = true;
        Ok(())
    }

    /// Ends listening. The address becomes free, requests that wait are rejected, and nothing more is announced, even if
    /// another thread still holds this endpoint.
    pub fn close(&self) {
        let mut inner = self.inner.lock();
        inner.listener = None;
        inner.eq = None;
    }

    /// Takes the connection requests that have arrived; `announce` makes them events.
    pub fn poll(&self) -> Vec<Box<dyn Request>> {
        let mut inner = self.inner.lock();
        let Some(listener) = &mut inner.listener else { return Vec::new() };
        let (requests, trouble) = listener.poll();
        // Peers that are refused for their key must not fill a queue that is not read.
        let is_of_key = |error: &Error| matches!(error.errno, errno::EACCES | errno::EKEYREJECTED);
        let fits = |error: &Error, eq: &EventQueue| !is_of_key(error) || eq.len() < EVENTS;
        if let (Some(error), Some(eq)) = (trouble, &inner.eq)
            && fits(&error, eq)
        {
            eq.push(Event { error: Some(error), ..Event::new(EventKind::ConnReq, inner.object, self.context) });
        }
        requests
    }

    pub fn announce(&self, requests: Vec<Box<dyn Request>>) {
        let inner = self.inner.lock();
        let Some(eq) = &inner.eq else { return };
        for request in requests {
            let mut event = Event::new(EventKind::ConnReq, inner.object, self.context);
            event.data = request.data().to_vec();
            event.request = Some(request);
            eq.push(event);
        }
    }

    /// A number that changes when the set of descriptors to watch changes.
    pub fn watch_version(&self) -> u64 {
        self.inner.lock().listener.as_ref().map_or(0, |l| l.watch_version())
    }

    pub fn watch(&self, poller: &Poller) -> Result<()> {
        self.inner.lock().listener.as_ref().map_or(Ok(()), |l| l.watch(poller))
    }
}
