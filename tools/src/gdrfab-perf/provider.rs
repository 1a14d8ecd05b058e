// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The differences between providers that a benchmark notices: the form of an address, the device that leads there, and the
//! requirements of an info on its user.

use crate::tests::Test;
use gdrfab::config;
use gdrfab::error::{Error, Result, errno};
use gdrfab::fabric::{EP_RDM, Info, getinfo};
use gdrfab::mr::{PathPolicy, Paths};
use gdrfab::prov::flags;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};

pub const SHM: &str = "shm";
pub const VERBS: &str = "verbs";
const TCP: &str = "tcp";
/// Providers whose addresses have a host and a port.
const NETWORKS: [&str; 2] = [VERBS, TCP];
/// The default address of a server.
const DEFAULT_PORT: u16 = 7471;

/// The options that choose the provider and the device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    pub provider: Option<String>,
    pub device: Option<String>,
    /// Endpoints are connectionless.
    pub rdm: bool,
}

impl Choice {
    /// The provider, if its addresses have a host and a port rather than a name.
    pub fn network(&self, address: Option<&str>) -> Option<&'static str> {
        let only = self.provider.as_deref().or(config::get().provider.as_deref());
        let named = only.or_else(|| Some(address?.split_once("://")?.0));
        NETWORKS.into_iter().find(|n| named == Some(n))
    }

    /// The info for one side, listening at or connecting to `address`.
    pub fn discover(&self, address: Option<&str>, listens: bool) -> Result<Info> {
        let network = self.network(address);
        let verbs = network == Some(VERBS);
        let known = flags::MR_MODE_VIRT_ADDR | flags::MR_MODE_PROV_KEY | if verbs { flags::MR_MODE_LOCAL } else { 0 };
        let provider = network.map(String::from).or_else(|| self.provider.clone());
        let hints = Info { prov_name: provider, mr_mode: known, ..Info::default() };
        let asked = if listens { flags::SOURCE } else { 0 };
        if network.is_none() {
            return Ok(getinfo(None, address, asked, Some(&hints))?.remove(0));
        }
        let (node, port) = address.map_or((None, None), |a| place(a, listens));
        let port = address.map(|_| port.map_or(DEFAULT_PORT.to_string(), String::from));
        let mut found = getinfo(node, port.as_deref(), asked, Some(&hints))?;
        found.retain(|info| self.takes(info));
        // The device that has the address from which the kernel would send.
        let source = node.filter(|_| verbs && !listens).and_then(leaves_from).map(|ip| format!("{VERBS}://{}", bracketed(ip)));
        let leads_there = |i: &Info| source.as_ref().is_some_and(|s| i.src_addr.as_ref().is_some_and(|a| a.starts_with(s.as_str())));
        let first = found.iter().position(leads_there).unwrap_or(0);
        found.into_iter().nth(first).ok_or_else(|| self.no_device())
    }
}

impl Choice {
    /// The info for a side that sends its own addresses to the other: on the device that has `here`, if that is given.
    pub fn discover_own(&self, here: Option<IpAddr>) -> Result<Info> {
        if self.rdm {
            return self.discover_rdm(here);
        }
        let Some(network) = self.network(None) else { return self.discover(None, false) };
        let node = here.filter(|ip| !ip.is_loopback()).map(|ip| bracketed(ip) + "0");
        match self.discover(node.as_deref(), node.is_some()) {
            // A device need not have the address by which its host is reached.
            Err(_) if network == VERBS && node.is_some() => self.discover(None, false),
            found => found,
        }
    }

    /// The set of providers of that name, or the one that the library offers first. A set with a device listens at the
    /// device's address, which need not be the one by which its host is reached.
    fn discover_rdm(&self, here: Option<IpAddr>) -> Result<Info> {
        let mr_mode = flags::MR_MODE_VIRT_ADDR | flags::MR_MODE_PROV_KEY;
        let hints = Info { prov_name: self.provider.clone(), ep_type: EP_RDM, mr_mode, ..Info::default() };
        let mut found = getinfo(None, None, 0, Some(&hints))?;
        found.retain(|info| self.takes(info));
        let Some(first) = found.first() else { return Err(self.no_device()) };
        let (set, has_device) = (first.prov_name.clone(), first.src_addr.is_some());
        if has_device {
            let at = here.map(|ip| format!("://{}", bracketed(ip)));
            let is_here =
                |info: &Info| info.prov_name == set && at.as_ref().is_some_and(|at| info.src_addr.as_ref().is_some_and(|a| a.contains(at)));
            let at = found.iter().position(is_here).unwrap_or(0);
            return Ok(found.swap_remove(at));
        }
        let hints = Info { prov_name: set, ..hints };
        let node = here.filter(|ip| !ip.is_loopback()).map(|ip| ip.to_string());
        let asked = if node.is_some() { flags::SOURCE } else { 0 };
        Ok(getinfo(node.as_deref(), None, asked, Some(&hints))?.remove(0))
    }

    /// True if the info is on the device that the command line names.
    fn takes(&self, info: &Info) -> bool {
        let named = |device: &String| info.domain_name.as_ref().is_some_and(|d| d == device || d.split(':').next() == Some(device));
        self.device.as_ref().is_none_or(named)
    }

    fn no_device(&self) -> Error {
        Error::new(errno::ENODEV, format!("--device {}: not offered", self.device.as_deref().unwrap_or("any")))
    }
}

fn bracketed(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(v4) => format!("{v4}:"),
        IpAddr::V6(v6) => format!("[{v6}]:"),
    }
}

/// Host and port of `tcp://HOST:PORT`, `HOST:PORT`, a host alone, or, for a listener, a port alone.
pub fn place(address: &str, listens: bool) -> (Option<&str>, Option<&str>) {
    let address = address.split_once("://").map_or(address, |(_, place)| place);
    let is_port = |word: &str| word.parse::<u16>().is_ok();
    if listens && is_port(address) {
        return (None, Some(address));
    }
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if is_port(port) && (!host.contains(':') || host.ends_with(']')) => (host, Some(port)),
        _ => (address, None),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (Some(host).filter(|h| !h.is_empty()), port)
}

/// The address of a server: a name, or a host and a port.
pub fn listening(choice: &Choice, name: Option<&str>, port: Option<u16>, usual: &str) -> String {
    if choice.network(name).is_none() {
        return name.unwrap_or(usual).to_string();
    }
    let port = port.unwrap_or(DEFAULT_PORT);
    match name {
        None => port.to_string(),
        Some(name) if name.parse::<Ipv6Addr>().is_ok() => format!("[{name}]:{port}"),
        Some(name) if place(name, true).1.is_none() => format!("{name}:{port}"),
        Some(name) => name.to_string(),
    }
}

/// The source address of packets to `node`.
pub fn leaves_from(node: &str) -> Option<IpAddr> {
    let to = (node, DEFAULT_PORT).to_socket_addrs().ok()?.next()?;
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(to).ok()?;
    socket.local_addr().ok().map(|a| a.ip())
}

/// The requirements of an info on its user, and the limits of its provider.
#[derive(Clone, Copy, Debug)]
pub struct ProviderTraits {
    /// Each connection has a queue pair that moves the bytes; the CPU has no path.
    pub nic: bool,
    /// No memory is shared with the peer. So there is no ring, the peer cannot help with a copy, and bytes that this side has
    /// not handed to the network when it ends are lost.
    pub network: bool,
    /// Connectionless: peers are named by index, and all short messages are sent eagerly.
    pub rdm: bool,
    /// Every local buffer lies in a region, and its descriptor is passed.
    pub local: bool,
    /// The flag of the latest completion level: in the target's memory, or acknowledged.
    pub delivered: u64,
    /// The most bytes that are sent without a region.
    pub inject: usize,
    /// Messages can carry their kind as data beside their bytes.
    pub data: bool,
    /// The most bytes of private data.
    pub private: usize,
}

impl ProviderTraits {
    pub fn of(info: &Info) -> ProviderTraits {
        let delivery = info.limits.tx_op_flags & flags::DELIVERY_COMPLETE != 0;
        ProviderTraits {
            nic: info.paths.contains(Paths::NIC) && info.ep_type != EP_RDM,
            network: info.prov_name.as_deref().is_some_and(|name| NETWORKS.contains(&name)),
            rdm: info.ep_type == EP_RDM,
            local: info.mr_mode & flags::MR_MODE_LOCAL != 0,
            delivered: if delivery { flags::DELIVERY_COMPLETE } else { flags::TRANSMIT_COMPLETE },
            inject: info.inject_size,
            data: info.cq_data_size > 0,
            private: info.cm_data_size,
        }
    }

    /// The path that a region must have, for providers that decide it at registration.
    pub fn of_region(&self, path: Paths) -> PathPolicy {
        PathPolicy { require: if self.nic { path } else { Paths::empty() }, forbid: Paths::empty() }
    }

    /// The number of receives for messages under test. If the provider keeps no message that finds no receive, the sender has
    /// to try again, which takes long; so there are enough for the window that is under way while another is looked at.
    pub fn receives(&self, test: Test, usual: usize) -> usize {
        if self.nic && test.is_message() { 2 * usual + 8 } else { usual }
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn places_are_split() {
        assert_eq!(place("verbs://10.0.0.1:5", false), (Some("10.0.0.1"), Some("5")));
        assert_eq!(place("tcp://[::1]:5", true), (Some("::1"), Some("5")));
        assert_eq!(place("host:5", false), (Some("host"), Some("5")));
        assert_eq!(place("host", false), (Some("host"), None));
        assert_eq!((place("5", true), place("5", false)), ((None, Some("5")), (Some("5"), None)));
        assert_eq!(place("[fe80::1]:5", false), (Some("fe80::1"), Some("5")));
        assert_eq!(place("fe80::1", false), (Some("fe80::1"), None));
    }

    #[test]
    fn a_listener_has_a_name_or_a_port() {
        let of = |p: &str| Choice { provider: Some(p.into()), ..Choice::default() };
        assert_eq!(listening(&of("shm"), None, Some(5), "usual"), "usual");
        assert_eq!(listening(&of("verbs"), None, None, "usual"), "7471");
        assert_eq!(listening(&of("verbs"), None, Some(0), "usual"), "0");
        assert_eq!(listening(&of("verbs"), Some("10.0.0.1"), Some(5), "usual"), "10.0.0.1:5");
        assert_eq!(listening(&of("verbs"), Some("10.0.0.1:7471"), None, "usual"), "10.0.0.1:7471");
        assert_eq!(listening(&of("tcp"), Some("::1"), Some(5), "usual"), "[::1]:5");
        assert_eq!(listening(&of("tcp"), None, None, "usual"), "7471");
        assert_eq!(Choice::default().network(Some("verbs://x:1")), Some("verbs"));
        assert_eq!(Choice::default().network(Some("tcp://x:1")), Some("tcp"));
        assert_eq!((Choice::default().network(Some("shm://x")), of("shm").network(Some("tcp://x:1"))), (None, None));
    }
}
