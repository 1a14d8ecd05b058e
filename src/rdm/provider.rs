// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sets of lanes. `fabric` sees each set as a provider, which discovers endpoints and opens domains.

use super::limits::{INJECT_SIZE, MAX_MSG, QUEUE_SIZE};
use crate::error::{Error, Result, errno};
use crate::prov::av::{Name, SCHEME};
use crate::prov::info::{Ask, EP_RDM, Info, Nic};
use crate::prov::{self, Offer, Provider, Reach, flags};
use crate::rdm::connect::listen::source_of;
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::memory::region_quota::program_share;
use crate::sync::serial::Threading;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

/// A set of lanes under one name. A peer is dialed over the lanes in this order, until one leads to it.
pub struct LaneSet {
    name: &'static str,
    lanes: &'static [&'static str],
}

/// All sets, in the order of preference.
pub static SETS: &[LaneSet] = &[
    LaneSet { name: "shm+verbs+tcp", lanes: &["shm", "verbs", "tcp"] },
    LaneSet { name: "shm+tcp", lanes: &["shm", "tcp"] },
    LaneSet { name: "verbs", lanes: &["verbs"] },
    LaneSet { name: "shm", lanes: &["shm"] },
    LaneSet { name: "tcp", lanes: &["tcp"] },
];

/// The set of this name, which is the provider name (`prov_name`) in the set's infos.
pub fn get(name: Option<&str>) -> Result<&'static dyn Provider> {
    match SETS.iter().find(|set| Some(set.name) == name) {
        Some(set) => Ok(set),
        None => Err(Error::new(errno::ENODEV, format!("info->prov_name: no connectionless endpoints of {name:?}"))),
    }
}

/// Candidates of all sets, in the order of preference. Sets that are not `wanted` are skipped.
pub fn candidates(ask: &Ask<'_>, wanted: impl Fn(&str) -> bool) -> Vec<Info> {
    SETS.iter().filter(|set| wanted(set.name)).flat_map(|set| set.candidates(ask)).collect()
}

/// The address for the node and the service of a request; `None` if the request has neither. `default_ip_of`: the IP address
/// for a request without a node.
fn address_of(ask: &Ask<'_>, default_ip_of: impl FnOnce() -> IpAddr) -> Result<Option<String>> {
    if let Some(whole) = ask.service.filter(|s| s.contains("://")) {
        return match whole.starts_with(SCHEME) {
            true => Ok(Some(whole.into())),
            false => Err(Error::new(errno::ENODATA, format!("service {whole:?} is the address of a connected endpoint"))),
        };
    }
    let port = match ask.service {
        None if ask.node.is_none() => return Ok(None),
        None => 0,
        Some(text) => text.parse::<u16>().map_err(|_| Error::new(errno::ENODATA, format!("service {text:?} is no port number")))?,
    };
    let at = match ask.node {
        None => SocketAddr::new(default_ip_of(), port),
        Some(node) => {
            let unknown = |why: String| Error::new(errno::EADDRNOTAVAIL, format!("node {node:?}: {why}"));
            let bare = node.trim_start_matches('[').trim_end_matches(']');
            let found: Vec<SocketAddr> = match bare.parse::<IpAddr>() {
                Ok(ip) => vec![SocketAddr::new(ip, port)],
                Err(_) => (node, port).to_socket_addrs().map_err(|e| unknown(e.to_string()))?.collect(),
            };
            let first = found.iter().find(|at| at.is_ipv4()).or(found.first());
            *first.ok_or_else(|| unknown("has no IP address".into()))?
        }
    };
    Ok(Some(format!("{SCHEME}{at}")))
}

impl LaneSet {
    fn providers(&self) -> Result<Vec<&'static dyn Provider>> {
        self.lanes.iter().map(|name| prov::get(Some(name))).collect()
    }

    /// The IP address at which an endpoint listens if the program gives none: the address of its device, or else of the
    /// lane that listens on ports.
    fn default_ip(&self, info: &Info) -> IpAddr {
        // Any port will do, because only the IP address of the answer is used.
        let ask = Ask { node: None, service: Some("1"), source: true, domain: None, near: None };
        let by_ports = self.providers().unwrap_or_default().into_iter().flat_map(|p| p.candidates(&ask)).filter_map(|info| info.src_addr);
        let mut found =
            info.src_addr.iter().cloned().chain(by_ports).filter_map(|text| text.split_once("://")?.1.parse::<SocketAddr>().ok());
        found.next().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |at| at.ip())
    }

    /// Returns one info per device with the device's address, if a lane has devices; otherwise one info. Fails if one of the
    /// lanes offers nothing on this host.
    fn infos(&self, near: Option<&str>) -> Result<Vec<Info>> {
        let mut all: Vec<Option<Info>> = vec![None];
        for provider in self.providers()? {
            let (lanes, refused): (Vec<Info>, Vec<Info>) = provider.lanes(near).into_iter().partition(|lane| lane.reason.is_none());
            if lanes.is_empty() {
                let why = refused.into_iter().find_map(|lane| lane.reason);
                let none = || Error::new(errno::ENODATA, format!("{} offers nothing here", provider.name()));
                return Err(why.unwrap_or_else(none).context(provider.name()));
            }
            let with = |all: &Option<Info>, lane: &Info| Some(join(all.clone(), lane.clone(), provider.reach()));
            all = all.iter().flat_map(|all| lanes.iter().map(move |lane| with(all, lane))).collect();
        }
        Ok(all.into_iter().flatten().map(|lane| self.info(lane)).collect())
    }

    /// Makes the info of the set from the attributes that all lanes have in common.
    fn info(&self, lane: Info) -> Info {
        let name = || Some(self.name.to_string());
        Info {
            caps: lane.caps | flags::TAGGED | flags::DIRECTED_RECV | flags::SOURCE | flags::MULTI_RECV,
            msg_order: lane.msg_order & !flags::BEHIND_SENDS,
            ep_type: EP_RDM,
            inject_size: INJECT_SIZE,
            tx_size: QUEUE_SIZE,
            rx_size: QUEUE_SIZE,
            max_msg_size: MAX_MSG,
            cm_data_size: 0,
            dest_addr: None,
            prov_name: name(),
            fabric_name: name(),
            domain_name: if lane.src_addr.is_some() { lane.domain_name } else { name() },
            ..lane
        }
    }
}

/// Adds one more lane to the info of a set. Capabilities, orders, modes and limits become those that all lanes have; paths
/// and the reach (`LOCAL_COMM`, `REMOTE_COMM`) become those of all lanes together. The lane with a device gives the domain
/// its name and address.
fn join(all: Option<Info>, lane: Info, reach: Reach) -> Info {
    let has_device = reach == Reach::Devices;
    let lane = Info { mr_cnt: program_share(reach, lane.mr_cnt), ..lane };
    let Some(all) = all else {
        return if has_device { lane } else { Info { src_addr: None, ..lane } };
    };
    Info {
        caps: all.caps & lane.caps | (all.caps | lane.caps) & (flags::LOCAL_COMM | flags::REMOTE_COMM),
        msg_order: all.msg_order & lane.msg_order,
        paths: all.paths | lane.paths,
        list_paths: all.list_paths | lane.list_paths,
        mr_mode: all.mr_mode & lane.mr_mode,
        tx_iov_limit: all.tx_iov_limit.min(lane.tx_iov_limit),
        rx_iov_limit: all.rx_iov_limit.min(lane.rx_iov_limit),
        rma_iov_limit: all.rma_iov_limit.min(lane.rma_iov_limit),
        mr_iov_limit: all.mr_iov_limit.min(lane.mr_iov_limit),
        mr_cnt: all.mr_cnt.min(lane.mr_cnt),
        src_addr: if has_device { lane.src_addr } else { all.src_addr },
        domain_name: if has_device { lane.domain_name } else { all.domain_name },
        ..all
    }
}

impl Provider for LaneSet {
    fn name(&self) -> &'static str {
        self.name
    }

    fn offer(&self) -> Offer {
        let usable = self.providers().and_then(|all| all.iter().try_for_each(|p| p.offer().usable));
        Offer { name: self.name, usable, facts: Vec::new() }
    }

    fn enforces_auth_key(&self) -> bool {
        self.providers().is_ok_and(|all| all.iter().all(|p| p.enforces_auth_key()))
    }

    fn candidates(&self, ask: &Ask<'_>) -> Vec<Info> {
        let stub = |why| Info { prov_name: Some(self.name.into()), ep_type: EP_RDM, reason: Some(why), ..Info::default() };
        let infos = match self.infos(ask.near) {
            Ok(infos) => infos,
            Err(why) => return vec![stub(why)],
        };
        let mut all: Vec<(bool, Info)> = Vec::new();
        for info in infos {
            let device = info.src_addr.as_deref().and_then(|text| text.split_once("://")?.1.parse().ok()).map(|at: SocketAddr| at.ip());
            let at = |ip: IpAddr| format!("{SCHEME}{}", SocketAddr::new(ip, 0));
            match address_of(ask, || self.default_ip(&info)) {
                Ok(address) => {
                    let (src, dest_addr) = if ask.source { (address, None) } else { (None, address) };
                    let asked = src.as_deref().and_then(|text| source_of(text).ok()).map(|at| at.ip());
                    all.push((asked.is_some() && asked != device, Info { src_addr: src.or(device.map(at)), dest_addr, ..info }));
                }
                Err(why) => all.push((true, stub(why))),
            }
        }
        // The device with the requested address comes first.
        let (asked, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|(elsewhere, _)| !elsewhere);
        asked.into_iter().chain(others).map(|(_, info)| info).collect()
    }

    fn check_address(&self, address: &str) -> Result<()> {
        address.parse::<Name>().map(|_| ())
    }

    fn nic(&self, info: &Info, near: Option<&str>) -> Result<Nic> {
        match self.providers()?.into_iter().find(|p| p.reach() == Reach::Devices) {
            Some(provider) => {
                let at = info.src_addr.as_deref().and_then(|text| source_of(text).ok());
                provider.nic(&Info { src_addr: at.map(|at| provider.lane_address(info, at)), ..info.clone() }, near)
            }
            None => Err(Error::new(errno::ENODATA, format!("info: provider {} has no NIC", self.name))),
        }
    }

    fn open_domain(&self, info: &Info, threading: Threading) -> Result<Arc<dyn prov::Domain>> {
        Ok(Arc::new(Domain::open(&self.providers()?, info, threading)?))
    }

    fn open_listener(&self, _info: &Info) -> Result<Box<dyn prov::Listener>> {
        Err(Error::new(errno::EOPNOTSUPP, "pep: connectionless endpoints need none"))
    }
}
