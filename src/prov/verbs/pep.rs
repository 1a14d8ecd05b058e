// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A passive endpoint: listens with rdma_cm and turns connection requests into events.

use super::address::Address;
use super::cm_id::{Channel, CmEventKind, Id};
use super::greeting::{self, DATA_MAX, Greeting};
use crate::error::{Error, Result, errno};
use crate::prov::event::{self, Event, EventKind, EventQueue};
use crate::sys::epoll::Poller;
use parking_lot::Mutex;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

const BACKLOG: i32 = 1024;

/// A peer that wants to connect. Dropped, it is rejected.
pub struct Request {
    id: Option<Id>,
    service: Option<u32>,
    data: Vec<u8>,
}

impl Request {
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The peer's service queue pair.
    pub fn service(&self) -> Option<u32> {
        self.service
    }

    /// The device and port that it came through.
    pub fn place(&self) -> Option<(String, u8)> {
        let id = self.id.as_ref()?;
        Some((id.device()?, id.port()))
    }

    /// Makes a passive endpoint's info that of the device which the request came through.
    pub fn adjust(&self, info: &mut crate::prov::info::Info) {
        let (Some((device, port)), Some(name)) = (self.place(), info.domain_name.as_deref()) else { return };
        if let Some(kind) = name.rsplit(':').next().filter(|_| !name.starts_with(&format!("{device}:{port}:"))) {
            info.domain_name = Some(format!("{device}:{port}:{kind}"));
            info.src_addr = self.id.as_ref().and_then(Id::local).map(|at| Address::Cm(at).to_string());
        }
    }

    /// The peer's address.
    pub fn from(&self) -> String {
        self.id.as_ref().and_then(Id::peer).map_or_else(String::new, |at| Address::Cm(at).to_string())
    }

    pub fn into_id(mut self) -> Option<Id> {
        self.id.take()
    }

    /// Sends the peer away with `data`.
    pub fn reject(mut self, data: &[u8]) -> Result<()> {
        match self.id.take() {
            Some(id) => id.reject(&Greeting { service: None, data }.encode()),
            None => Ok(()),
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(id) = self.id.take()
            && let Err(e) = id.reject(&Greeting { service: None, data: &[] }.encode())
        {
            crate::log!(Debug, "{e}");
        }
    }
}

struct Listener {
    /// Before its channel: it is destroyed first.
    id: Id,
    channel: Arc<Channel>,
}

struct Inner {
    bound: Option<Listener>,
    listens: bool,
    eq: Option<Arc<EventQueue>>,
    object: usize,
}

pub struct PassiveEndpoint {
    address: SocketAddr,
    context: usize,
    inner: Mutex<Inner>,
}

fn bind(address: SocketAddr) -> Result<Listener> {
    let channel = Channel::new()?;
    let id = Id::new(&channel)?;
    id.set_reuse_address()?;
    id.bind(address).map_err(|e| e.context(format_args!("listening on {address}")))?;
    Ok(Listener { id, channel })
}

impl PassiveEndpoint {
    /// `address`: where to listen; none: any port of any address.
    pub fn open(address: Option<&str>, context: usize) -> Result<PassiveEndpoint> {
        let address = match address.map(str::parse::<Address>).transpose()? {
            Some(Address::Cm(address)) => address,
            Some(Address::Qp(_)) => return Err(Error::invalid("info->src_addr: a passive endpoint listens on verbs://host:port")),
            None => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        };
        let bound = bind(address)?;
        let address = bound.id.local().unwrap_or(address);
        let inner = Inner { bound: Some(bound), listens: false, eq: None, object: 0 };
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
        if inner.listens {
            return Err(Error::new(errno::EOPBADSTATE, "pep: listens already"));
        }
        let Some(bound) = &inner.bound else { return Err(Error::fixed(errno::EOPBADSTATE, "pep: closed")) };
        bound.id.listen(BACKLOG).map_err(|e| e.context(format_args!("listening on {}", self.address)))?;
        inner.listens = true;
        Ok(())
    }

    /// Listens no more: the name is free, what waits is rejected, and nothing is announced any more, whoever still holds
    /// this one.
    pub fn close(&self) {
        let mut inner = self.inner.lock();
        inner.bound = None;
        inner.eq = None;
    }

    pub fn address(&self) -> String {
        Address::Cm(self.address).to_string()
    }

    /// Takes connection requests that have come; `announce` makes them events.
    pub fn poll(&self) -> Vec<Request> {
        let inner = self.inner.lock();
        let mut requests = Vec::new();
        let Some(bound) = inner.bound.as_ref().filter(|_| inner.listens) else { return requests };
        loop {
            match bound.channel.next() {
                Ok(Some(event)) => {
                    if let CmEventKind::ConnectRequest { id } = event.kind {
                        let greeting = greeting::decode(&event.private_data);
                        let service = greeting.as_ref().and_then(|g| g.service);
                        let data = greeting.map_or(event.private_data.clone(), |g| g.data.to_vec());
                        requests.push(Request { id: Some(id), service, data });
                    }
                }
                Ok(None) => return requests,
                Err(e) => {
                    crate::log!(Warn, "{e}");
                    return requests;
                }
            }
        }
    }

    pub fn announce(&self, requests: Vec<Request>) {
        let inner = self.inner.lock();
        let Some(eq) = &inner.eq else { return };
        for request in requests {
            let mut event = Event::new(EventKind::ConnReq, inner.object, self.context);
            event.data = request.data().to_vec();
            event.request = Some(Box::new(event::Request::Verbs(request)));
            eq.push(event);
        }
    }

    /// Changes when there is something else to watch than before.
    pub fn watched(&self) -> u64 {
        u64::from(self.inner.lock().bound.is_some())
    }

    pub fn watch(&self, poller: &Poller) -> Result<()> {
        match &self.inner.lock().bound {
            Some(bound) => poller.add(bound.channel.as_fd()),
            None => Ok(()),
        }
    }
}
