// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A passive endpoint: listens under a name and turns introductions into events.

use super::cm::{SCHEME, check_address, fresh_name};
use super::greeter::Greeter;
use crate::error::{Error, Result, errno};
use crate::prov::event::{Event, EventKind, EventQueue, Request};
use crate::sys::epoll::Poller;
use parking_lot::Mutex;
use std::sync::Arc;

struct Inner {
    greeter: Option<Greeter>,
    eq: Option<Arc<EventQueue>>,
    object: usize,
}

pub struct PassiveEndpoint {
    name: String,
    context: usize,
    inner: Mutex<Inner>,
}

impl PassiveEndpoint {
    /// `address`: where to listen; none: a name of its own.
    pub fn open(address: Option<&str>, context: usize) -> Result<PassiveEndpoint> {
        let name = match address {
            Some(a) => check_address(a)?.to_string(),
            None => fresh_name()?,
        };
        Ok(PassiveEndpoint { name, context, inner: Mutex::new(Inner { greeter: None, eq: None, object: 0 }) })
    }

    /// The handle that events name.
    pub fn set_object(&self, object: usize) {
        self.inner.lock().object = object;
    }

    /// Bytes of private data that accept and reject take.
    pub fn cm_data_size(&self) -> usize {
        super::DATA_MAX
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
        if inner.greeter.is_some() {
            return Err(Error::new(errno::EOPBADSTATE, "pep: listens already"));
        }
        inner.greeter = Some(Greeter::listen(self.name.clone(), true)?);
        Ok(())
    }

    /// Listens no more: the name is free, what waits is rejected, and nothing is announced any more, whoever still holds
    /// this one.
    pub fn close(&self) {
        let mut inner = self.inner.lock();
        inner.greeter = None;
        inner.eq = None;
    }

    pub fn address(&self) -> String {
        format!("{SCHEME}{}", self.name)
    }

    /// Takes connection requests that have come; `announce` makes them events.
    pub fn poll(&self) -> Vec<super::Request> {
        let mut inner = self.inner.lock();
        let Some(greeter) = &mut inner.greeter else { return Vec::new() };
        let (requests, trouble) = (greeter.poll(false), greeter.trouble());
        if let (Some(error), Some(eq)) = (trouble, &inner.eq) {
            eq.push(Event { error: Some(error), ..Event::new(EventKind::ConnReq, inner.object, self.context) });
        }
        requests
    }

    pub fn announce(&self, requests: Vec<super::Request>) {
        let inner = self.inner.lock();
        let Some(eq) = &inner.eq else { return };
        for request in requests {
            let mut event = Event::new(EventKind::ConnReq, inner.object, self.context);
            event.data = request.data().to_vec();
            event.request = Some(Box::new(Request::Shm(request)));
            eq.push(event);
        }
    }

    /// Changes when there is something else to watch than before: a greeter watches who has come itself.
    pub fn watched(&self) -> u64 {
        u64::from(self.inner.lock().greeter.is_some())
    }

    pub fn watch(&self, poller: &Poller) -> Result<()> {
        match &self.inner.lock().greeter {
            Some(greeter) => poller.add(greeter.fd()),
            None => Ok(()),
        }
    }
}
