// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listening side of a connection. A passive endpoint listens with an identifier of rdma_cm, at which connection
//! requests arrive.

use crate::error::{Error, Result};
use crate::prov;
use crate::prov::info::Info;
use crate::prov::verbs::sys::cm_channel::Channel;
use crate::prov::verbs::sys::cm_event::CmEventKind;
use crate::prov::verbs::sys::cm_id::Id;
use crate::prov::verbs::wire::address::Address;
use crate::prov::verbs::wire::greeting::{self, DATA_MAX, Greeting};
use crate::sys::epoll::Poller;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

const BACKLOG: i32 = 1024;

/// A connection request of a peer. Dropping the request rejects the peer.
pub struct Request {
    id: Option<Id>,
    service: Option<u32>,
    rails: u8,
    data: Vec<u8>,
}

impl Request {
    /// The number of the peer's service queue pair.
    pub fn service(&self) -> Option<u32> {
        self.service
    }

    /// The number of rails of the peer.
    pub fn rails(&self) -> u8 {
        self.rails
    }

    /// The device and port at which the request arrived.
    pub fn place(&self) -> Option<(String, u8)> {
        let id = self.id.as_ref()?;
        Some((id.device()?, id.port()))
    }

    pub fn into_id(mut self) -> Option<Id> {
        self.id.take()
    }
}

impl prov::Request for Request {
    fn from(&self) -> String {
        self.id.as_ref().and_then(Id::peer).map_or_else(String::new, |at| Address::Cm(at).to_string())
    }

    fn data(&self) -> &[u8] {
        &self.data
    }

    /// Sets the device and port at which the request arrived.
    fn adjust(&self, info: &mut Info) {
        let (Some((device, port)), Some(name)) = (self.place(), info.domain_name.as_deref()) else { return };
        if let Some(kind) = name.rsplit(':').next().filter(|_| !name.starts_with(&format!("{device}:{port}:"))) {
            info.domain_name = Some(format!("{device}:{port}:{kind}"));
            info.src_addr = self.id.as_ref().and_then(Id::local).map(|at| Address::Cm(at).to_string());
        }
    }

    fn reject(mut self: Box<Self>, data: &[u8]) -> Result<()> {
        match self.id.take() {
            Some(id) => id.reject(&Greeting { service: None, rails: 0, data }.encode()),
            None => Ok(()),
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(id) = self.id.take()
            && let Err(e) = id.reject(&Greeting { service: None, rails: 0, data: &[] }.encode())
        {
            crate::log!(Debug, "{e}");
        }
    }
}

struct BoundId {
    /// Declared before `channel`, so that the identifier is dropped first.
    id: Id,
    channel: Arc<Channel>,
}

pub struct Listener {
    address: SocketAddr,
    bound: BoundId,
    listens: bool,
}

fn bind(address: SocketAddr) -> Result<BoundId> {
    let channel = Channel::new()?;
    let id = Id::new(&channel)?;
    id.set_reuse_address()?;
    id.bind(address).map_err(|e| e.context(format_args!("listening on {address}")))?;
    Ok(BoundId { id, channel })
}

impl Listener {
    /// Binds to `address`; `None`: any port of any address.
    pub fn open(address: Option<&str>) -> Result<Listener> {
        let address = match address.map(str::parse::<Address>).transpose()? {
            Some(Address::Cm(address)) => address,
            Some(Address::Qp(_)) => return Err(Error::invalid("info->src_addr: a passive endpoint needs an address verbs://host:port")),
            None => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        };
        let bound = bind(address)?;
        Ok(Listener { address: bound.id.local().unwrap_or(address), bound, listens: false })
    }
}

impl prov::Listener for Listener {
    fn address(&self) -> String {
        Address::Cm(self.address).to_string()
    }

    fn cm_data_size(&self) -> usize {
        DATA_MAX
    }

    fn listen(&mut self) -> Result<()> {
        self.bound.id.listen(BACKLOG).map_err(|e| e.context(format_args!("listening on {}", self.address)))?;
        self.listens = true;
        Ok(())
    }

    fn poll(&mut self) -> (Vec<Box<dyn prov::Request>>, Option<Error>) {
        let mut requests: Vec<Box<dyn prov::Request>> = Vec::new();
        if !self.listens {
            return (requests, None);
        }
        loop {
            match self.bound.channel.next() {
                Ok(Some(event)) => {
                    if let CmEventKind::ConnectRequest { id } = event.kind {
                        let greeting = greeting::decode(&event.private_data);
                        let service = greeting.as_ref().and_then(|g| g.service);
                        let rails = greeting.as_ref().map_or(0, |g| g.rails);
                        let data = greeting.map_or(event.private_data.clone(), |g| g.data.to_vec());
                        requests.push(Box::new(Request { id: Some(id), service, rails, data }));
                    }
                }
                Ok(None) => return (requests, None),
                Err(e) => {
                    crate::log!(Warn, "{e}");
                    return (requests, None);
                }
            }
        }
    }

    fn watch_version(&self) -> u64 {
        1
    }

    fn watch(&self, poller: &Poller) -> Result<()> {
        poller.add(self.bound.channel.as_fd())
    }
}
