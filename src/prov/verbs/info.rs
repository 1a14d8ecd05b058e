// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Discovery: one candidate (an `Info`) per device, port and type of address, and the way back from a candidate to its
//! device and port.

use super::limits::{INLINE_MAX, MAX_MSG, PATHS, RX_SIZE, TX_SIZE};
use crate::config;
use crate::error::{Error, Result, errno};
use crate::mr::MR_IOV_LIMIT;
use crate::mr::Paths;
use crate::prov::info::{ADDR_STR, Ask, EP_MSG, EP_RDM, Info, Limits, PROGRESS_MANUAL, THREAD_SAFE, check_permitted, permitted};
use crate::prov::op::IOV_LIMIT;
use crate::prov::verbs::device::context::{Context, Devices, Port, Transport};
use crate::prov::verbs::device::distance;
use crate::prov::verbs::device::gid::{Gid, GidKind};
use crate::prov::verbs::device::rail_names;
use crate::prov::verbs::memory::mr::MAX_REGIONS;
use crate::prov::verbs::sys::library;
use crate::prov::verbs::wire::address::Address;
use crate::prov::verbs::wire::credit::RECEIVES;
use crate::prov::verbs::wire::greeting::DATA_MAX;
use crate::prov::{Offer, flags};
use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

const NAME: &str = "verbs";
/// The fabric name of iWARP ports.
const IWARP: &str = "iWARP";
/// The bit in which the port number of a lane over iWARP differs from the port number of a lane over tcp
/// (`lane_address`).
const IWARP_PORT_BIT: u16 = 1 << 14;
/// Work requests that the device can hold for a lane.
const LANE_TX: usize = 128;
/// The directory in which the kernel lists its RDMA devices.
const SYSFS: &str = "/sys/class/infiniband";

/// The device, port and address that a candidate stands for.
pub struct DevicePort {
    pub context: Arc<Context>,
    pub port: Port,
    pub gid: Gid,
}

/// The name of a domain: "rxe0:1:roce-v2".
fn domain_name(context: &Context, port: &Port, kind: GidKind) -> String {
    format!("{}:{}:{}", context.name, port.number, kind.name())
}

/// The address to use among a port's addresses of one type: the entry that the configuration names, else the wanted IP
/// address. Without either, an IPv4 address is preferred, then a routable IPv6 address.
fn best_gid(port: &Port, kind: GidKind, ip: Option<IpAddr>) -> Option<&Gid> {
    let mut of_kind = port.gids.iter().filter(|g| g.kind == kind);
    if let Some(index) = config::get().verbs.gid_index {
        return of_kind.find(|g| g.index == index);
    }
    if let Some(ip) = ip.filter(|ip| !ip.is_unspecified()) {
        return of_kind.find(|g| g.ip == Some(ip));
    }
    let rank = |g: &&Gid| match g.ip {
        Some(IpAddr::V4(_)) => 0,
        Some(IpAddr::V6(v6)) if v6.segments()[0] & 0xffc0 != 0xfe80 => 1,
        Some(_) => 2,
        None => 3,
    };
    of_kind.min_by_key(rank)
}

impl DevicePort {
    /// Opens the device and reads the port that the candidate names.
    pub fn of(info: &Info) -> Result<DevicePort> {
        let name =
            info.domain_name.as_deref().ok_or_else(|| Error::invalid("info->domain_name: missing; pass an info that getinfo returned"))?;
        let wrong = || Error::invalid(format!("info->domain_name: {name:?} is not device:port:type"));
        let mut parts = name.rsplitn(3, ':');
        let (Some(kind), Some(port), Some(device)) = (parts.next(), parts.next(), parts.next()) else { return Err(wrong()) };
        let context = Context::open(device)?;
        let port = context.port(port.parse().map_err(|_| wrong())?)?;
        let kind = GidKind::ALL.into_iter().find(|k| k.name() == kind).ok_or_else(wrong)?;
        let ip = match info.src_addr.as_deref().map(str::parse::<Address>).transpose()? {
            Some(Address::Cm(at)) => Some(at.ip()),
            _ => None,
        };
        let gid = best_gid(&port, kind, ip).cloned();
        let gid = gid.ok_or_else(|| {
            Error::new(
                errno::EADDRNOTAVAIL,
                format!("{name}: the port does not have the address that the domain name was made for; call gdrfab_getinfo() again"),
            )
        })?;
        Ok(DevicePort { context, port, gid })
    }

    /// A port with its preferred address of this type.
    pub fn of_port(device: &str, port: u8, kind: GidKind) -> Result<DevicePort> {
        let context = Context::open(device)?;
        let port = context.port(port)?;
        let gid = best_gid(&port, kind, None).cloned();
        let gid = gid.ok_or_else(|| {
            Error::new(errno::EADDRNOTAVAIL, format!("info->domain_name: the port has no address of the type {}", kind.name()))
        })?;
        Ok(DevicePort { context, port, gid })
    }

    /// All active ports of a device, each with its preferred address of this type.
    pub fn of_device(list: &Devices, device: &str, kind: GidKind) -> Result<Vec<DevicePort>> {
        let context = Context::open_of(list, device)?;
        let active = context.ports().flatten().filter(|port| port.active);
        Ok(active
            .filter_map(|port| Some(DevicePort { gid: best_gid(&port, kind, None)?.clone(), context: context.clone(), port }))
            .collect())
    }
}

fn attributes(context: &Context, port: &Port, gid: &Gid) -> Info {
    let iwarp = context.transport == Transport::Iwarp;
    let config = &config::get().verbs;
    let rma = flags::RMA | flags::READ | flags::WRITE | flags::REMOTE_READ | flags::REMOTE_WRITE;
    let sge = (context.attr.max_sge.max(1) as usize).min(IOV_LIMIT);
    let work = context.attr.max_qp_wr.max(1) as usize;
    // With further rails, one work request of the queue is reserved for the marker that comes back last after a
    // failure.
    let sends = work - usize::from(!config.rails.is_empty() && work > 1);
    let inline = context.inline(config::get().debug.inline);
    Info {
        caps: flags::MSG | flags::SEND | flags::RECV | rma | flags::HMEM | flags::LOCAL_COMM | flags::REMOTE_COMM,
        mode: if iwarp { 0 } else { flags::RX_CQ_DATA },
        msg_order: flags::ORDER_UNLESS_READ,
        // The device completes the requests of a queue pair in order, and staged operations wait in order in the library.
        comp_order: flags::ORDER_ALL,
        paths: permitted(PATHS),
        list_paths: permitted(PATHS) - Paths::STAGED,
        mr_mode: flags::MR_MODE_LOCAL | flags::MR_MODE_VIRT_ADDR | flags::MR_MODE_PROV_KEY,
        ep_type: EP_MSG,
        threading: THREAD_SAFE,
        progress: PROGRESS_MANUAL,
        addr_format: ADDR_STR,
        // iWARP has no immediate data.
        cq_data_size: if iwarp { 0 } else { 4 },
        inject_size: inline,
        tx_size: TX_SIZE.min(sends),
        rx_size: RX_SIZE.min(work),
        // The answer to an iWARP read goes into one scatter/gather entry.
        tx_iov_limit: if iwarp { 1 } else { sge },
        rx_iov_limit: sge,
        rma_iov_limit: 1,
        mr_iov_limit: MR_IOV_LIMIT,
        max_msg_size: (port.max_message as usize).clamp(1, MAX_MSG),
        mr_key_size: 8,
        mr_cnt: (context.attr.max_mr.max(1) as usize).min(MAX_REGIONS),
        cm_data_size: DATA_MAX,
        prov_name: Some(NAME.into()),
        fabric_name: Some(fabric_name(gid)),
        domain_name: Some(domain_name(context, port, gid.kind)),
        limits: Limits {
            tx_op_flags: flags::COMPLETION | flags::INJECT | flags::INJECT_COMPLETE | flags::TRANSMIT_COMPLETE,
            mr_mode: flags::MR_MODE_LOCAL | flags::MR_MODE_PROV_KEY | if iwarp { flags::MR_MODE_VIRT_ADDR } else { 0 },
            tx_size: sends,
            rx_size: work,
            inject_size: context.inline(INLINE_MAX),
        },
        ..Info::default()
    }
}

/// The name of the network in which ports reach each other: an InfiniBand subnet, all of RoCE, or all of iWARP.
fn fabric_name(gid: &Gid) -> String {
    match gid.kind {
        GidKind::Ib => format!("IB-{}", &gid.hex()[..16]),
        GidKind::Iwarp => IWARP.into(),
        _ => "RoCE".into(),
    }
}

/// The address of `node` with this port number, in the address family of `like`.
fn lookup(node: &str, port: u16, like: Option<IpAddr>) -> Result<SocketAddr> {
    let found: Vec<SocketAddr> =
        (node, port).to_socket_addrs().map_err(|e| Error::new(errno::EADDRNOTAVAIL, format!("node {node:?}: {e}")))?.collect();
    let same = |a: &&SocketAddr| like.is_none_or(|ip| ip.is_ipv4() == a.is_ipv4());
    found
        .iter()
        .find(same)
        .copied()
        .ok_or_else(|| Error::new(errno::EADDRNOTAVAIL, format!("node {node:?} has no address of this device's family")))
}

/// Fills in the addresses that were asked for. An error says why this candidate cannot serve them.
fn fill_addresses(info: &mut Info, gid: &Gid, port: &Port, ask: &Ask<'_>) -> Result<()> {
    if !port.active {
        return Err(Error::new(errno::ENETDOWN, format!("port {} is {}", port.number, port.state)));
    }
    let own = gid.ip.map(|ip| Address::Cm(SocketAddr::new(ip, 0)).to_string());
    info.src_addr = own;
    let service = match ask.service {
        None if ask.node.is_none() => return Ok(()),
        None => 0,
        Some(s) if s.starts_with(crate::prov::verbs::wire::address::CM) => {
            let address = s.parse::<Address>().map_err(|e| e.context("service"))?;
            *(if ask.source { &mut info.src_addr } else { &mut info.dest_addr }) = Some(address.to_string());
            return Ok(());
        }
        Some(s) => s.parse::<u16>().map_err(|_| {
            Error::new(
                errno::ENODATA,
                format!("service {s:?} is neither a port number nor a {} address", crate::prov::verbs::wire::address::CM),
            )
        })?,
    };
    library::cm().map_err(|e| e.context("addresses of hosts need rdma_cm"))?;
    let Some(ip) = gid.ip else {
        return Err(Error::fixed(errno::EADDRNOTAVAIL, "the port has no IP address, which rdma_cm needs; connect by exchanged addresses"));
    };
    let named = ask.node.map(|node| lookup(node, service, Some(ip))).transpose()?;
    match (ask.source, named) {
        (true, Some(at)) if at.ip() != ip => {
            return Err(Error::new(errno::EADDRNOTAVAIL, format!("node {} is not this device's address, {ip}", at.ip())));
        }
        (true, _) => info.src_addr = Some(Address::Cm(SocketAddr::new(ip, service)).to_string()),
        (false, at) => info.dest_addr = Some(Address::Cm(at.unwrap_or(SocketAddr::new(ip, service))).to_string()),
    }
    Ok(())
}

/// The source address that was asked for, if any. The address selects the entry of the GID table.
fn wanted_ip(ask: &Ask<'_>) -> Option<IpAddr> {
    if !ask.source {
        return None;
    }
    match ask.service.and_then(|s| s.parse::<Address>().ok()) {
        Some(Address::Cm(at)) => Some(at.ip()),
        _ => ask.node.and_then(|n| lookup(n, 0, None).ok()).map(|a| a.ip()),
    }
}

/// A candidate that cannot be used, with the reason.
fn left_out(domain: Option<String>, why: Error) -> Info {
    Info { prov_name: Some(NAME.into()), domain_name: domain, reason: Some(why), ..Info::default() }
}

/// The names of the devices that may be used, the nearest first if an accelerator's PCI address is given. An error says why there is
/// none.
fn devices(near: Option<&str>) -> Result<(Devices, Vec<String>)> {
    check_permitted(PATHS)?;
    let config = &config::get().verbs;
    if config::get().debug.ibverbs.is_none() && std::fs::read_dir(SYSFS).map_or(true, |mut d| d.next().is_none()) {
        return Err(Error::new(errno::ENODEV, format!("this host has no RDMA device ({SYSFS} is missing or empty)")));
    }
    let list = Devices::list()?;
    let mut names = list.names();
    if names.is_empty() {
        return Err(Error::fixed(
            errno::ENODEV,
            "libibverbs finds no RDMA device of this host: its drivers may be missing, or this user may not open /dev/infiniband",
        ));
    }
    rail_names::check(&names)?;
    if !config.devices.is_empty() {
        names.retain(|n| config.devices.contains(n));
    }
    if names.is_empty() {
        return Err(Error::new(errno::ENODEV, format!("GDRFAB_VERBS_DEVICE={} names no device of this host", config.devices.join(","))));
    }
    let position = near.map(distance::of_pci);
    names.sort_by_cached_key(|name| distance::order(name, position.as_ref()));
    Ok((list, names))
}

/// The candidates of a device, each with its port's speed.
fn of_device(list: &Devices, name: &str, ask: &Ask<'_>) -> Result<Vec<(u64, Info)>> {
    let context = Context::open_of(list, name)?;
    let wanted = wanted_ip(ask);
    let mut all = Vec::new();
    for port in context.ports() {
        let port = match port {
            Ok(port) => port,
            Err(e) => {
                all.push((0, left_out(Some(name.to_string()), e)));
                continue;
            }
        };
        let before = all.len();
        for kind in GidKind::ALL {
            let Some(usual) = best_gid(&port, kind, None) else { continue };
            let gid = best_gid(&port, kind, wanted).unwrap_or(usual);
            let mut info = attributes(&context, &port, gid);
            if let Err(e) = fill_addresses(&mut info, gid, &port, ask) {
                info.reason = Some(e);
            }
            all.push((port.speed, info));
        }
        if all.len() == before {
            let why = if port.active { "has no address (GID) yet".to_string() } else { format!("is {}", port.state) };
            let why = Error::new(errno::ENETDOWN, format!("port {} {why}", port.number));
            all.push((port.speed, left_out(Some(format!("{name}:{}", port.number)), why)));
        }
    }
    Ok(all)
}

/// All candidates, or one that says why there is none: the nearest first, then the fastest, then by name.
pub fn candidates(ask: &Ask<'_>) -> Vec<Info> {
    let (list, names) = match devices(ask.near) {
        Err(e) => return vec![left_out(None, e)],
        Ok(found) => found,
    };
    let position = ask.near.map(distance::of_pci);
    let mut all = Vec::new();
    for name in &names {
        // Opening a device takes long. If the caller asked for another device, the name of this one is enough to leave
        // it out.
        if ask.domain.is_some_and(|attr| attr.split(':').next() != Some(name)) {
            all.push((None, 0, all.len(), Info { prov_name: Some(NAME.into()), domain_name: Some(name.clone()), ..Info::default() }));
            continue;
        }
        let near = distance::of_device(name, position.as_ref());
        match of_device(&list, name, ask) {
            Ok(found) => found.into_iter().for_each(|(speed, info)| all.push((near, speed, all.len(), info))),
            Err(e) => all.push((near, 0, all.len(), left_out(Some(name.clone()), e))),
        }
    }
    // The index comes last, so that the order of names and of a port's address types is kept.
    all.sort_unstable_by_key(|(near, speed, place, _)| (*near, Reverse(*speed), *place));
    all.into_iter().map(|(.., info)| info).collect()
}

pub fn check_address(address: &str) -> Result<()> {
    address.parse::<Address>().map(|_| ())
}

/// The facts for the user: the libraries, and whether each can be used.
pub fn offer() -> Offer {
    let usable = devices(None);
    let mut facts = Vec::new();
    match library::verbs() {
        Ok(v) => facts.push(("libibverbs".to_string(), Ok(v.library().to_string()))),
        Err(e) => facts.push(("libibverbs".to_string(), Err(e.to_string()))),
    }
    match library::cm() {
        Ok(c) => facts.push(("librdmacm".to_string(), Ok(c.library().to_string()))),
        Err(e) => facts.push(("librdmacm".to_string(), Err(format!("{e}; only connections by exchanged addresses are possible")))),
    }
    Offer { name: NAME, usable: usable.map(|_| ()), facts }
}

/// The candidates for lanes of connectionless endpoints: one for each port with an IP address, by which peers find it.
pub fn lanes(near: Option<&str>) -> Vec<Info> {
    let mut all: Vec<Info> = Vec::new();
    for info in candidates(&Ask { node: None, service: None, source: false, domain: None, near }) {
        let port = |info: &Info| info.domain_name.as_deref().and_then(|d| d.rsplit_once(':')).map(|(port, _)| port.to_string());
        // Once a candidate of a port can be used, the port's other types of address are left out.
        if !all.iter().any(|other| other.reason.is_none() && port(other) == port(&info)) {
            all.push(connectionless(as_lane(info)));
        }
    }
    all
}

/// A candidate for a lane of a connectionless endpoint, or the reason against it.
fn connectionless(lane: Info) -> Info {
    let why = match &lane.reason {
        Some(why) => Some(why.clone()),
        None if config::get().tcp.key_file.is_some() => Some(Error::fixed(errno::EOPNOTSUPP, NO_KEYS)),
        None if lane.src_addr.is_none() => Some(Error::fixed(
            errno::EADDRNOTAVAIL,
            "the port has no IP address, which peers need to connect; give its network interface one",
        )),
        None => library::cm().err(),
    };
    Info { reason: why, ..lane }
}

const NO_KEYS: &str = "auth_key, GDRFAB_TCP_KEY_FILE: RDMA devices cannot authenticate a peer by a key; use tcp, or set neither";

/// The attributes of a candidate as a lane. A lane asks its peer for the meaning of a key, and accepts unregistered
/// memory. The peers' CPUs execute atomics, except in regions for the card.
pub fn as_lane(info: Info) -> Info {
    let cpu = Info::of_cpu(NAME);
    Info {
        caps: cpu.caps | flags::RMA_EVENT | flags::ATOMIC | flags::HMEM | flags::LOCAL_COMM | flags::REMOTE_COMM,
        msg_order: info.msg_order | flags::ORDER_ATOMICS,
        paths: info.paths & (Paths::NIC | Paths::DMABUF | Paths::PEER_MEM),
        tx_size: LANE_TX.min(info.limits.tx_size),
        rx_size: RECEIVES as usize,
        inject_size: info.inject_size,
        max_msg_size: info.max_msg_size,
        mr_cnt: info.mr_cnt,
        cm_data_size: info.cm_data_size,
        fabric_name: info.fabric_name,
        domain_name: info.domain_name,
        src_addr: info.src_addr,
        dest_addr: info.dest_addr,
        reason: info.reason,
        ..cpu
    }
}

/// The address at which a lane listens. iWARP shares its port numbers with TCP, and a lane over tcp listens there as
/// well. So a lane over iWARP takes another number, far from those that other endpoints are likely to use.
pub fn lane_address(info: &Info, at: SocketAddr) -> String {
    let port = match info.fabric_name.as_deref() {
        Some(IWARP) if at.port() != IWARP_PORT_BIT => at.port() ^ IWARP_PORT_BIT,
        _ => at.port(),
    };
    Address::Cm(SocketAddr::new(at.ip(), port)).to_string()
}

/// The candidate for the domain and the endpoints that are the lanes of `info`. The domain name in `info` names the
/// device, the port and the type of address.
pub fn lane_info(info: &Info) -> Result<Info> {
    let is_rdm = info.ep_type == EP_RDM;
    // A key is refused for connectionless endpoints only: the caller of a connected endpoint has accepted its peer.
    if is_rdm && info.auth_key.is_some() {
        return Err(Error::fixed(errno::EOPNOTSUPP, NO_KEYS));
    }
    let domain = info.domain_name.as_deref();
    let all = candidates(&Ask { node: None, service: None, source: false, domain, near: None });
    let found = all.into_iter().find(|found| found.domain_name == info.domain_name).map(as_lane);
    let lane =
        found.ok_or_else(|| Error::new(errno::ENODEV, format!("info->domain_name: {domain:?} is not an RDMA device of this host")))?;
    let lane = if is_rdm { connectionless(lane) } else { lane };
    match lane.reason {
        Some(why) => Err(why),
        None => {
            let own = info.src_addr.clone().filter(|at| at.starts_with(crate::prov::verbs::wire::address::CM));
            let mr_mode = info.mr_mode & !flags::MR_MODE_PROV_KEY;
            Ok(Info { mr_mode, ep_type: info.ep_type, src_addr: own.or(lane.src_addr), ..lane })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lane over tcp listens at the port number by which the peer is known, so iWARP needs another number.
    #[test]
    fn lanes_over_iwarp_keep_off_the_ports_of_others() {
        let of = |fabric: &str, port: u16| {
            let info = Info { fabric_name: Some(fabric.into()), ..Info::default() };
            lane_address(&info, SocketAddr::new(IpAddr::from([192, 0, 2, 1]), port))
        };
        assert_eq!((of("RoCE", 7471), of(IWARP, 7471)), ("verbs://192.0.2.1:7471".into(), "verbs://192.0.2.1:23855".into()));
        let ports: std::collections::HashSet<String> = (1..=u16::MAX).map(|port| of(IWARP, port)).collect();
        assert!(ports.len() == usize::from(u16::MAX) && !ports.contains(&of("RoCE", 0)), "each has one of its own, and none has any");
    }
}
