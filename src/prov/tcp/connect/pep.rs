// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The passive endpoint: a port on which connection requests arrive.

use super::info as discovery;
use crate::error::{Error, Result, errno};
use crate::prov;
use crate::prov::info::Info;
use crate::prov::tcp::handshake::acceptor::HandshakeAcceptor;
use crate::prov::tcp::secure::auth;
use crate::prov::tcp::secure::auth::Key;
use crate::prov::tcp::wire::address::Address;
use crate::prov::tcp::wire::hello::{DATA_MAX, Purpose};
use crate::sys::epoll::Poller;
use crate::sys::tcp;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

/// A passive endpoint, which is bound from the beginning, and listens after `listen`.
pub struct Listener {
    address: SocketAddr,
    /// The bound socket, until `listen` takes it. The socket is bound early, so that the port can be named.
    bound: Option<OwnedFd>,
    key: Option<Key>,
    acceptor: Option<HandshakeAcceptor>,
}

/// Binds a socket to the first of the address's IP addresses that belongs to this host.
fn bind(address: &Address) -> Result<OwnedFd> {
    if address.token.is_some() {
        return Err(Error::invalid(format!(
            "info->src_addr: {address} is the address of an endpoint; a passive endpoint needs a host and port"
        )));
    }
    let mut result = Err(Error::fixed(errno::EADDRNOTAVAIL, "info->src_addr: resolves to no IP address"));
    for at in address.resolve().map_err(|e| e.context("info->src_addr"))? {
        result = tcp::bind(at);
        if result.is_ok() {
            break;
        }
    }
    result
}

impl Listener {
    /// Binds to `info->src_addr`. Without `src_addr`, binds to a free port of the interface of `GDRFAB_TCP_IFACE`, or
    /// else of the loopback, which no other host can reach.
    pub fn open(info: &Info) -> Result<Listener> {
        let key = auth::key(info)?;
        let fd = match info.src_addr.as_deref() {
            Some(text) => bind(&text.parse().map_err(|e: Error| e.context("info->src_addr"))?)?,
            None => tcp::bind(SocketAddr::new(discovery::own_ip(None)?, 0))?,
        };
        let address = tcp::local(fd.as_fd())?;
        Ok(Listener { address, bound: Some(fd), key, acceptor: None })
    }
}

impl prov::Listener for Listener {
    fn address(&self) -> String {
        Address::of(self.address, None).to_string()
    }

    fn cm_data_size(&self) -> usize {
        DATA_MAX
    }

    fn listen(&mut self) -> Result<()> {
        // If an earlier `listen` has failed, it has closed the socket, so the port is bound again.
        let fd = self.bound.take().map_or_else(|| tcp::bind(self.address), Ok)?;
        self.acceptor = Some(HandshakeAcceptor::start(fd, Purpose::Passive, 0, self.key.clone())?);
        Ok(())
    }

    fn poll(&mut self) -> (Vec<Box<dyn prov::Request>>, Option<Error>) {
        let Some(acceptor) = &mut self.acceptor else { return (Vec::new(), None) };
        let requests = acceptor.poll().into_iter().map(|r| Box::new(r) as Box<dyn prov::Request>).collect();
        (requests, acceptor.trouble())
    }

    /// The acceptor watches its own attempts, so the set of descriptors changes only once.
    fn watch_version(&self) -> u64 {
        u64::from(self.acceptor.is_some())
    }

    fn watch(&self, poller: &Poller) -> Result<()> {
        match &self.acceptor {
            Some(acceptor) => acceptor.watch(poller),
            None => Ok(()),
        }
    }
}
