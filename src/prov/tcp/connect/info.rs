// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Discovery: the provider's one candidate, with its addresses, and the facts about this host that `gdrfab-info` prints.

use crate::config;
use crate::error::{Error, Result, errno};
use crate::prov::info::{Ask, Info, check_permitted, permitted};
use crate::prov::tcp::limits::{INJECT_SIZE, MAX_MSG, PATHS, RX_SIZE, TX_SIZE};
use crate::prov::tcp::memory::mr::MAX_REGIONS;
use crate::prov::tcp::rail::connector;
use crate::prov::tcp::secure::auth;
use crate::prov::tcp::secure::auth::Keys;
use crate::prov::tcp::wire::address::{Address, Host, SCHEME, host};
use crate::prov::tcp::wire::hello::DATA_MAX;
use crate::prov::{Offer, flags};
use crate::sys::tcp;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

const NAME: &str = "tcp";

/// The address of this host for an object that names none: an address of the interface of `GDRFAB_TCP_IFACE`, else the
/// loopback address. `like`: an address whose family the result shall have.
pub fn own_ip(like: Option<IpAddr>) -> Result<IpAddr> {
    let v6 = like.is_some_and(|ip| ip.is_ipv6());
    match (&config::get().tcp.iface, v6) {
        (None, false) => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        (None, true) => Ok(IpAddr::V6(Ipv6Addr::LOCALHOST)),
        (Some(name), _) => {
            let words = |e: Error| e.context("GDRFAB_TCP_IFACE");
            match tcp::interface_address(name, v6) {
                // No peer demands a family, so an interface that has only IPv6 serves as well.
                Err(e) if like.is_none() && e.errno == errno::EADDRNOTAVAIL => tcp::interface_address(name, true).map_err(words),
                found => found.map_err(words),
            }
        }
    }
}

fn info() -> Info {
    let info = Info::of_cpu(NAME);
    Info {
        caps: info.caps | flags::RMA_EVENT | flags::ATOMIC | flags::HMEM | flags::LOCAL_COMM | flags::REMOTE_COMM,
        msg_order: flags::ORDER_UNLESS_READ | flags::ORDER_ATOMICS,
        paths: permitted(PATHS),
        list_paths: permitted(PATHS),
        inject_size: INJECT_SIZE,
        tx_size: TX_SIZE,
        rx_size: RX_SIZE,
        max_msg_size: MAX_MSG,
        mr_cnt: MAX_REGIONS,
        cm_data_size: DATA_MAX,
        ..info
    }
}

/// Parses a port number, or finds the number of a service that this host knows by name.
fn port(service: &str) -> Result<u16> {
    let number = service.bytes().all(|b| b.is_ascii_digit()).then(|| service.parse::<u16>().ok());
    number.unwrap_or_else(|| tcp::service_port(service)).ok_or_else(|| {
        Error::new(
            errno::ENODATA,
            format!("service {service:?} is not a port number, a service name that this host knows or a {SCHEME} address"),
        )
    })
}

/// The address that node and service name. `None`: the caller gave neither.
fn named(ask: &Ask<'_>) -> Result<Option<Address>> {
    if let Some(whole) = ask.service.filter(|s| s.starts_with(SCHEME)) {
        return whole.parse().map(Some).map_err(|e: Error| e.context("service"));
    }
    let port = match ask.service {
        None if ask.node.is_none() => return Ok(None),
        None => 0,
        Some(service) => port(service)?,
    };
    let Some(node) = ask.node else { return own_ip(None).map(|ip| Some(Address::of(SocketAddr::new(ip, port), None))) };
    let host = host(node, port).map_err(|e| Error::new(errno::EADDRNOTAVAIL, format!("node {node:?}: {}", e.words)))?;
    Ok(Some(Address { host, token: None }))
}

/// Fills in the addresses that were asked for. An error is the reason for which this candidate cannot serve.
fn answer(info: &mut Info, ask: &Ask<'_>) -> Result<()> {
    let named = named(ask)?;
    usable()?;
    let found = match (&named, ask.node) {
        // The name is resolved here only to report an unknown name early. The address keeps the name, so that all of
        // the host's addresses are tried later.
        (Some(address), Some(node)) => address.resolve().map_err(|e| e.context(format_args!("node {node:?}")))?,
        _ => Vec::new(),
    };
    let Some(address) = named else {
        return own(info, None);
    };
    if !ask.source {
        let like = match (&address.host, found.first()) {
            (Host::Ip(at), _) => Some(at.ip()),
            (_, first) => first.map(SocketAddr::ip),
        };
        info.dest_addr = Some(address.to_string());
        return own(info, like);
    }
    // An address is this host's if a socket can be bound to it.
    let ours = |at: &SocketAddr| {
        let mut any = *at;
        any.set_port(0);
        tcp::bind(any).is_ok()
    };
    if !found.is_empty() && !found.iter().any(ours) {
        return Err(Error::new(errno::EADDRNOTAVAIL, format!("node {}: no address of this host", ask.node.unwrap_or_default())));
    }
    info.src_addr = Some(address.to_string());
    Ok(())
}

/// Makes connections leave from the configured interface. Without such an interface the routes decide.
fn own(info: &mut Info, like: Option<IpAddr>) -> Result<()> {
    if config::get().tcp.iface.is_some() {
        info.src_addr = Some(Address::of(SocketAddr::new(own_ip(like)?, 0), None).to_string());
    }
    Ok(())
}

/// The provider's one candidate.
pub fn candidates(ask: &Ask<'_>) -> Vec<Info> {
    let mut info = info();
    if let Err(e) = check_congestion().and_then(|()| connector::usual()).and_then(|_| answer(&mut info, ask)) {
        info.reason = Some(e);
    }
    vec![info]
}

pub fn check_address(address: &str) -> Result<()> {
    address.parse::<Address>().map(|_| ())
}

/// Fails if this host has no sockets of either family, or the configuration rules out all paths.
fn usable() -> Result<()> {
    check_permitted(PATHS)?;
    let of = |ip: IpAddr| tcp::bind(SocketAddr::new(ip, 0)).map(|_| ());
    of(IpAddr::V4(Ipv4Addr::UNSPECIFIED)).or_else(|e| of(IpAddr::V6(Ipv6Addr::UNSPECIFIED)).map_err(|_| e))
}

/// Fails if the kernel does not let this user choose the configured congestion control.
fn check_congestion() -> Result<()> {
    let Some(name) = &config::get().tcp.congestion else { return Ok(()) };
    let any = tcp::bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0))
        .or_else(|_| tcp::bind(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0)))?;
    tcp::set_congestion(any.as_fd(), name).map_err(|e| e.context("GDRFAB_TCP_CONGESTION"))
}

type Fact = std::result::Result<String, String>;

fn sockets() -> Fact {
    let of = |ip: IpAddr| tcp::bind(SocketAddr::new(ip, 0));
    match (of(IpAddr::V4(Ipv4Addr::LOCALHOST)), of(IpAddr::V6(Ipv6Addr::LOCALHOST))) {
        (Ok(_), Ok(_)) => Ok("IPv4 and IPv6".into()),
        (Ok(_), Err(e)) => Ok(format!("IPv4 only: {e}")),
        (Err(e), Ok(_)) => Ok(format!("IPv6 only: {e}")),
        (Err(e), Err(_)) => Err(e.to_string()),
    }
}

fn interfaces() -> Fact {
    let mut all: Vec<(String, String)> = Vec::new();
    for i in tcp::interfaces().map_err(|e| e.to_string())? {
        let ip = if i.up { i.ip.to_string() } else { format!("{} (down)", i.ip) };
        match all.iter_mut().find(|(name, _)| *name == i.name) {
            Some((_, ips)) => *ips = format!("{ips} {ip}"),
            None => all.push((i.name, ip)),
        }
    }
    let chosen = match &config::get().tcp.iface {
        None => "endpoints listen on the loopback address unless an address or GDRFAB_TCP_IFACE is given".to_string(),
        Some(_) => format!("GDRFAB_TCP_IFACE: {}", own_ip(None).map_err(|e| e.to_string())?),
    };
    let all: Vec<String> = all.into_iter().map(|(name, ips)| format!("{name} {ips}")).collect();
    Ok(format!("{}; {chosen}", all.join(", ")))
}

fn authentication() -> Fact {
    match auth::of_file() {
        Ok(Some(Keys::Shared(_))) => {
            Ok("peers must have the key of GDRFAB_TCP_KEY_FILE or auth_key; GDRFAB_TCP_SECURITY decides whether data is encrypted".into())
        }
        Ok(Some(Keys::Hosts(known))) => Ok(format!(
            "owners of {} public keys in GDRFAB_TCP_KEY_FILE may connect; this host's key is {}; GDRFAB_TCP_SECURITY decides whether data \
             is encrypted",
            known.peers(),
            known.public()
        )),
        Ok(None) => Ok("none, unless auth_key is given: GDRFAB_TCP_KEY_FILE names no file".into()),
        Err(e) => Err(e.to_string()),
    }
}

/// The kernel's limits for the buffers that it sizes itself: minimum, initial, maximum.
fn buffers() -> Fact {
    let read = |name: &str| {
        let path = format!("/proc/sys/net/ipv4/{name}");
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        Ok::<_, String>(text.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    Ok(format!("tcp_rmem {}; tcp_wmem {}", read("tcp_rmem")?, read("tcp_wmem")?))
}

/// The facts about this host that decide what the provider can do.
pub fn offer() -> Offer {
    let facts: [(&str, Fact); 4] =
        [("sockets", sockets()), ("interfaces", interfaces()), ("authentication", authentication()), ("buffers", buffers())];
    Offer { name: NAME, usable: usable(), facts: facts.map(|(name, fact)| (name.to_string(), fact)).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask<'a>(node: Option<&'a str>, service: Option<&'a str>, source: bool) -> Info {
        let mut all = candidates(&Ask { node, service, source, domain: None, near: None });
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    #[test]
    fn node_and_service_become_addresses() {
        for (node, service, source, src, dest) in [
            (None, None, false, None, None),
            (None, None, true, None, None),
            (None, Some("7000"), true, Some("tcp://127.0.0.1:7000"), None),
            (None, Some("7000"), false, None, Some("tcp://127.0.0.1:7000")),
            (Some("127.0.0.1"), Some("7000"), false, None, Some("tcp://127.0.0.1:7000")),
            (Some("127.0.0.1"), None, true, Some("tcp://127.0.0.1:0"), None),
            (Some("0.0.0.0"), Some("0"), true, Some("tcp://0.0.0.0:0"), None),
            (Some("::1"), Some("7000"), false, None, Some("tcp://[::1]:7000")),
            (Some("[::1]"), Some("7000"), false, None, Some("tcp://[::1]:7000")),
            (Some("localhost"), Some("7000"), false, None, Some("tcp://localhost:7000")),
            (None, Some("tcp://[::1]:7000"), false, None, Some("tcp://[::1]:7000")),
            (None, Some("tcp://127.0.0.1:7000"), true, Some("tcp://127.0.0.1:7000"), None),
        ] {
            let info = ask(node, service, source);
            let why = format!("{node:?} {service:?} {source}: {:?}", info.reason);
            assert!(info.reason.is_none(), "{why}");
            assert_eq!((info.src_addr.as_deref(), info.dest_addr.as_deref()), (src, dest), "{why}");
        }
    }

    #[test]
    fn a_candidate_that_cannot_serve_has_a_reason() {
        for (node, service, source, errno, words) in [
            (None, Some("no-such-service"), false, errno::ENODATA, "no-such-service"),
            (None, Some("65536"), false, errno::ENODATA, "65536"),
            (None, Some("shm://x"), false, errno::ENODATA, "shm://x"),
            (None, Some("tcp://x:y"), false, errno::EINVAL, "service: addr: port"),
            (Some("1.2.3"), Some("1"), false, errno::EADDRNOTAVAIL, "node"),
            (Some("a b"), None, false, errno::EADDRNOTAVAIL, "node"),
            (Some("192.0.2.1"), Some("7000"), true, errno::EADDRNOTAVAIL, "192.0.2.1"),
        ] {
            let e = ask(node, service, source).reason.unwrap_or_else(|| panic!("{node:?} {service:?}"));
            assert!(e.errno == errno && e.words.contains(words), "{node:?} {service:?}: {e}");
        }
    }

    #[test]
    fn the_offer_tells_of_this_host() {
        let offer = offer();
        offer.usable.unwrap();
        let fact = |name: &str| offer.facts.iter().find(|(n, _)| n == name).unwrap().1.clone();
        assert!(fact("interfaces").unwrap().contains("127.0.0.1"));
        assert!(fact("sockets").is_ok() && fact("authentication").unwrap().starts_with("none"));
    }
}
