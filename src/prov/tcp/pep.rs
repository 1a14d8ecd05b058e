// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A passive endpoint: listens on a port and turns introductions into events.

use super::address::Address;
use super::greeter::{Greeter, Request};
use super::hello::{DATA_MAX, Purpose};
use super::{auth, info as discovery};
use crate::error::{Error, Result, errno};
use crate::prov::event::{self, Event, EventKind, EventQueue};
use crate::prov::info::{Info, Secret};
use crate::sys::epoll::Poller;
use crate::sys::tcp;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

struct Inner {
    /// Has its port from the beginning, so that it can be told, and listens when it is told to.
    bound: Option<(OwnedFd, Option<Secret>)>,
    greeter: Option<Greeter>,
    eq: Option<Arc<EventQueue>>,
    object: usize,
}

pub struct PassiveEndpoint {
    address: SocketAddr,
    context: usize,
    inner: Mutex<Inner>,
}

/// The first of the host's addresses that is this host's.
fn bind(address: &Address) -> Result<OwnedFd> {
    if address.token.is_some() {
        return Err(Error::invalid(format!("info->src_addr: {address} is an endpoint's own address; nobody else can listen there")));
    }
    let mut result = Err(Error::fixed(errno::EADDRNOTAVAIL, "info->src_addr: leads nowhere"));
    for at in address.resolve().map_err(|e| e.context("info->src_addr"))? {
        result = tcp::bind(at);
        if result.is_ok() {
            break;
        }
    }
    result
}

impl PassiveEndpoint {
    /// Takes the port of `info->src_addr`; without one, any port of the interface of `GDRFAB_TCP_IFACE` or else of the
    /// loopback, which nobody outside this host can reach.
    pub fn open(info: &Info, context: usize) -> Result<PassiveEndpoint> {
        let key = auth::key(info)?;
        let fd = match info.src_addr.as_deref() {
            Some(text) => bind(&text.parse().map_err(|e: Error| e.context("info->src_addr"))?)?,
            None => tcp::bind(SocketAddr::new(discovery::usual(None)?, 0))?,
        };
        let address = tcp::local(fd.as_fd())?;
        let inner = Inner { bound: Some((fd, key)), greeter: None, eq: None, object: 0 };
        Ok(PassiveEndpoint { address, context, inner: Mutex::new(inner) })
    }

    /// The handle that events name.
    pub fn set_object(&self, object: usize) {
        self.inner.lock().object = object;
    }

    /// Bytes of private data that accept and reject take.
    pub fn cm_data_size(&self) -> usize {
        DATA_MAX
    }

    pub fn bind(&self, eq: Arc<EventQueue>) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.eq.is_some() {
            return Err(Error::new(errno::EBUSY, "pep: an event queue is bound already"));
        }
        inner.eq = Some(eq);
        Ok(())
    }

    pub fn listen(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.eq.is_none() {
            return Err(Error::new(errno::ENOEQ, "pep: bind an event queue before pep_listen"));
        }
        if inner.greeter.is_some() {
            return Err(Error::new(errno::EOPBADSTATE, "pep: listens already"));
        }
        let Some((fd, key)) = inner.bound.take() else {
            return Err(Error::new(errno::EOPBADSTATE, "pep: an earlier pep_listen failed; open another one"));
        };
        inner.greeter = Some(Greeter::start(fd, Purpose::Passive, 0, key)?);
        Ok(())
    }

    /// Listens no more: the name is free, what waits is rejected, and nothing is announced any more, whoever still holds
    /// this one.
    pub fn close(&self) {
        let mut inner = self.inner.lock();
        inner.bound = None;
        inner.greeter = None;
        inner.eq = None;
    }

    pub fn address(&self) -> String {
        Address::of(self.address, None).to_string()
    }

    /// Takes connection requests that have come; `announce` makes them events.
    pub fn poll(&self) -> Vec<Request> {
        let mut inner = self.inner.lock();
        let Some(greeter) = &mut inner.greeter else { return Vec::new() };
        let (requests, trouble) = (greeter.poll(), greeter.trouble());
        if let (Some(error), Some(eq)) = (trouble, &inner.eq) {
            eq.push(Event { error: Some(error), ..Event::new(EventKind::ConnReq, inner.object, self.context) });
        }
        requests
    }

    pub fn announce(&self, requests: Vec<Request>) {
        let inner = self.inner.lock();
        let Some(eq) = &inner.eq else { return };
        for request in requests {
            let mut event = Event::new(EventKind::ConnReq, inner.object, self.context);
            event.data = request.data().to_vec();
            event.request = Some(Box::new(event::Request::Tcp(request)));
            eq.push(event);
        }
    }

    /// Changes when there is something else to watch than before: a greeter watches its strangers itself.
    pub fn watched(&self) -> u64 {
        u64::from(self.inner.lock().greeter.is_some())
    }

    pub fn watch(&self, poller: &Poller) -> Result<()> {
        match &self.inner.lock().greeter {
            Some(greeter) => greeter.watch(poller),
            None => Ok(()),
        }
    }
}
