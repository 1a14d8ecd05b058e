// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Opens the listeners of an endpoint: one on every lane, all at the same IP address and port.

use crate::error::{Error, Result, errno};
use crate::prov::Reach;
use crate::prov::info::Info;
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::parts::listeners::Acceptor;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Number of attempts to find a port that is free on every lane, if the program asked for no port.
const TRIES: usize = 64;

/// Listens on every lane, at one address. Returns the address and the listeners.
pub fn listen(domain: &Domain, wanted: Option<SocketAddr>) -> Result<(SocketAddr, Vec<Acceptor>)> {
    let fixed = wanted.is_some_and(|at| at.port() != 0);
    let mut last = Error::fixed(errno::EADDRINUSE, "ep: no free port was found");
    for _ in 0..TRIES {
        match try_listen(domain, wanted) {
            Err(e) if !fixed && e.errno == errno::EADDRINUSE => last = e,
            done => return done,
        }
    }
    Err(last)
}

fn try_listen(domain: &Domain, wanted: Option<SocketAddr>) -> Result<(SocketAddr, Vec<Acceptor>)> {
    let mut at = wanted.or_else(|| domain.device_address());
    let mut acceptors = Vec::new();
    // Lanes that listen on ports come first: the system chooses a free port for them, and the other lanes take the same
    // number.
    let of_reach = |reach: Reach| domain.lanes.iter().enumerate().filter(move |(_, lane)| lane.provider.reach() == reach);
    for (lane_index, lane) in [Reach::Ports, Reach::Devices, Reach::Host].into_iter().flat_map(of_reach) {
        let reach = lane.provider.reach();
        if reach != Reach::Ports {
            let address = at.get_or_insert(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
            if address.port() == 0 {
                address.set_port(20_000 + (domain.draw() % 40_000) as u16);
            }
        }
        let src_addr = at.map(|at| lane.provider.lane_address(&lane.info, at));
        let opened = lane.provider.open_listener(&Info { src_addr, ..lane.info.clone() }).and_then(|mut listener| {
            if reach == Reach::Ports {
                let told = listener.address();
                let bound: Option<SocketAddr> = told.split_once("://").and_then(|(_, rest)| rest.parse().ok());
                at = Some(bound.ok_or_else(|| Error::new(errno::EPROTO, format!("ep: {told:?} is no socket address")))?);
            }
            listener.listen()?;
            Ok(listener)
        });
        match opened {
            Ok(listener) => acceptors.push(Acceptor { lane_index, listener }),
            // The device does not have the wanted address. The endpoint can still dial over the device; peers dial it
            // over another lane.
            Err(e) if reach == Reach::Devices && !acceptors.is_empty() && e.errno != errno::EADDRINUSE => {
                crate::log!(Info, "{} does not listen: {e}", lane.provider.name());
            }
            Err(e) => return Err(e),
        }
    }
    match at {
        Some(at) => Ok((at, acceptors)),
        None => Err(Error::fixed(errno::ENODEV, "ep: its domain has no lanes")),
    }
}

/// Parses `rdm://IP:PORT`; port 0 stands for any port.
pub fn source_of(text: &str) -> Result<SocketAddr> {
    let rest = text.strip_prefix(crate::prov::av::SCHEME);
    let at = rest.and_then(|rest| rest.split('/').next()).and_then(|at| at.parse::<SocketAddr>().ok());
    let at = at.ok_or_else(|| Error::invalid(format!("info->src_addr: {text:?} is not {}IP:PORT", crate::prov::av::SCHEME)))?;
    match at.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => {
            Err(Error::invalid("info->src_addr: name one address of this host, by which peers find it"))
        }
        IpAddr::V6(ip) if ip.is_unspecified() => {
            Err(Error::invalid("info->src_addr: name one address of this host, by which peers find it"))
        }
        _ => Ok(at),
    }
}
