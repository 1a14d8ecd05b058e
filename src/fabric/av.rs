// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Address vectors: they number the names of connectionless endpoints. This file turns a caller's address into a name;
//! `prov/av.rs` keeps the numbers.

use super::Context;
use super::domain::Domain;
use super::users::ObjectKind;
use crate::error::{Error, Result, errno};
use crate::prov::av::{self, Name};
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub struct Av {
    pub context: Context,
    domain: Arc<Domain>,
    pub(super) names: Arc<av::Av>,
    /// The number of endpoints that are bound to it.
    bound: AtomicUsize,
}

impl Av {
    pub fn open(domain: &Arc<Domain>) -> Result<Arc<Av>> {
        domain.owner.check()?;
        domain.users.add(ObjectKind::AddressVector);
        let names = Arc::new(av::Av::default());
        Ok(Arc::new(Av { context: Context::default(), domain: domain.clone(), names, bound: AtomicUsize::new(0) }))
    }

    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    pub(super) fn attach(&self) {
        self.bound.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn detach(&self) {
        self.bound.fetch_sub(1, Ordering::Release);
    }

    pub fn close(&self) -> Result<()> {
        self.domain.owner.check()?;
        match self.bound.load(Ordering::Acquire) {
            0 => self.domain.users.remove(ObjectKind::AddressVector),
            n => return Err(Error::new(errno::EBUSY, format!("av: {n} open endpoint(s) are bound to it"))),
        }
        Ok(())
    }

    /// Inserts an endpoint by its binary name, and returns its index.
    pub fn insert(&self, name: &[u8]) -> Result<u64> {
        self.names.insert(Name::decode(name)?)
    }

    /// Inserts the endpoint that listens at a port of a host, and returns its index. If the host has several addresses, the
    /// first is taken.
    pub fn insert_service(&self, node: Option<&str>, service: &str) -> Result<u64> {
        self.names.insert(named(node, service)?)
    }

    pub fn remove(&self, peer: u64) -> Result<()> {
        self.names.remove(peer)
    }

    pub fn lookup(&self, peer: u64) -> Result<[u8; av::NAME_LEN]> {
        Ok(self.names.lookup(peer)?.encode())
    }
}

fn named(node: Option<&str>, service: &str) -> Result<Name> {
    if service.starts_with(av::SCHEME) {
        return match node {
            None => service.parse(),
            Some(_) => Err(Error::invalid("node: must be NULL if service is a whole address")),
        };
    }
    let digits = service.bytes().all(|b| b.is_ascii_digit());
    let Some(port) = service.parse().ok().filter(|port| digits && *port != 0) else {
        return Err(Error::invalid(format!("service: {service:?} is neither a port nor {}IP:PORT", av::SCHEME)));
    };
    let Some(node) = node else { return Ok(Name::at(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))) };
    let host = node.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(node);
    let unknown = |why: String| Error::new(errno::EADDRNOTAVAIL, format!("node: {node:?}: {why}"));
    let mut found = (host, port).to_socket_addrs().map_err(|e| unknown(e.to_string()))?;
    found.next().map(Name::at).ok_or_else(|| unknown("has no IP address".into()))
}
