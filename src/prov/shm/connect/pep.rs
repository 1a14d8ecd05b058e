// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A passive endpoint: a name, and the socket that listens under the name for introductions.

use crate::error::{Error, Result};
use crate::prov::shm::handshake::acceptor::HandshakeAcceptor;
use crate::prov::shm::wire::address::{SCHEME, check_address, fresh_name};
use crate::prov::{self, Request};
use crate::sys::epoll::Poller;

pub struct Listener {
    name: String,
    acceptor: Option<HandshakeAcceptor>,
}

impl Listener {
    /// Opens a passive endpoint that will listen at `address` or, without one, under a fresh name.
    pub fn open(address: Option<&str>) -> Result<Listener> {
        let name = match address {
            Some(a) => check_address(a)?.to_string(),
            None => fresh_name()?,
        };
        Ok(Listener { name, acceptor: None })
    }
}

impl prov::Listener for Listener {
    fn address(&self) -> String {
        format!("{SCHEME}{}", self.name)
    }

    fn listen(&mut self) -> Result<()> {
        self.acceptor = Some(HandshakeAcceptor::listen(self.name.clone(), true)?);
        Ok(())
    }

    fn poll(&mut self) -> (Vec<Box<dyn Request>>, Option<Error>) {
        let Some(acceptor) = &mut self.acceptor else { return (Vec::new(), None) };
        let requests = acceptor.poll(false).into_iter().map(|r| Box::new(r) as Box<dyn Request>).collect();
        (requests, acceptor.trouble())
    }

    /// Changes when the acceptor is made. The acceptor's one descriptor watches all connections without an
    /// introduction.
    fn watch_version(&self) -> u64 {
        u64::from(self.acceptor.is_some())
    }

    fn watch(&self, poller: &Poller) -> Result<()> {
        match &self.acceptor {
            Some(acceptor) => poller.add(acceptor.fd()),
            None => Ok(()),
        }
    }
}
