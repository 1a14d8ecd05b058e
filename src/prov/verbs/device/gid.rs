// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The addresses of a port: its GIDs and their types, their network interfaces, and the IP address by which rdma_cm
//! reaches the port.

use super::netdev::{self, Netdev};
use crate::error::Result;
use crate::prov::verbs::sys::abi::{GidEntry, ibv_context, ibv_gid};
use crate::prov::verbs::sys::library::{newer, verbs};
use crate::prov::verbs::sys::status::returned;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

/// The type of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand: subnet prefix and port GUID.
    Ib,
    /// RoCE version 1: an Ethernet frame of its own type.
    RoceV1,
    /// RoCE version 2: UDP over the IP address in the GID.
    RoceV2,
    /// iWARP: the GID holds a hardware address and is not used on the wire.
    Iwarp,
}

impl GidKind {
    /// All types, in the order of preference: RoCE v2, which can be routed, comes first.
    pub const ALL: [GidKind; 4] = [GidKind::RoceV2, GidKind::RoceV1, GidKind::Ib, GidKind::Iwarp];

    /// The type as it appears in the name of a domain.
    pub fn name(self) -> &'static str {
        match self {
            GidKind::Ib => "ib",
            GidKind::RoceV1 => "roce-v1",
            GidKind::RoceV2 => "roce-v2",
            GidKind::Iwarp => "iwarp",
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            GidKind::Ib => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
            GidKind::Iwarp => "iWARP",
        }
    }
}

/// One entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    pub index: u8,
    pub raw: [u8; 16],
    pub kind: GidKind,
    /// The network interface, if known.
    pub netdev: Option<String>,
    /// The IP address of this host by which rdma_cm finds this port, if there is one.
    pub ip: Option<IpAddr>,
    /// The index of the interface, which a link-local `ip` needs as its scope; 0 if unknown.
    pub scope: u32,
}

impl Gid {
    /// The GID as 32 hexadecimal digits.
    pub fn hex(&self) -> String {
        self.raw.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The 16 bytes of a GID, read as an IP address.
pub fn ip_in(raw: &[u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(*raw)).to_canonical()
}

/// The type for the number that the kernel gives (by ioctl).
fn kind_of(number: u32, ethernet: bool, iwarp: bool) -> GidKind {
    match number {
        _ if iwarp => GidKind::Iwarp,
        2 => GidKind::RoceV2,
        1 => GidKind::RoceV1,
        // RoCE v1 had no number of its own in the beginning.
        _ if ethernet => GidKind::RoceV1,
        _ => GidKind::Ib,
    }
}

/// The kernel's number for the text that sysfs gives.
fn kind_of_text(text: &str) -> u32 {
    match text.trim() {
        "RoCE v2" => 2,
        _ => 0,
    }
}

/// Completes an entry of the GID table with facts about the host's network interfaces.
fn placed(entry: &GidEntry, kind: GidKind, netdev: Option<String>, devs: &[Netdev]) -> Gid {
    let raw = entry.gid;
    let holds = |dev: &&Netdev| match kind {
        // The hardware address of IP over InfiniBand: four bytes of flags and queue pair number, then the GID.
        GidKind::Ib => dev.hardware.len() == 20 && dev.hardware.get(4..) == Some(&raw[..]),
        GidKind::Iwarp => dev.hardware.len() == 6 && dev.hardware.get(..) == raw.get(..6) && raw.iter().skip(6).all(|b| *b == 0),
        GidKind::RoceV1 | GidKind::RoceV2 => false,
    };
    let dev = match &netdev {
        Some(name) => devs.iter().find(|dev| dev.name == *name),
        None => devs.iter().find(holds),
    };
    let ip = match kind {
        // The GID is an IP address. The one that is made from the hardware address need not be configured on the
        // interface.
        GidKind::RoceV1 | GidKind::RoceV2 => Some(ip_in(&raw)).filter(|ip| dev.is_some_and(|dev| dev.ips.contains(ip))),
        GidKind::Ib | GidKind::Iwarp => dev.and_then(Netdev::preferred),
    };
    let netdev = netdev.or_else(|| dev.map(|dev| dev.name.clone()));
    let scope = netdev.as_deref().map_or(0, netdev::index_of);
    Gid { index: entry.index as u8, raw, kind, netdev, ip, scope }
}

/// The parameters for reading a port's table.
pub struct GidTable<'a> {
    /// An open device.
    pub context: *mut ibv_context,
    /// The device's directory in sysfs.
    pub sysfs: &'a Path,
    pub port: u8,
    /// `gid_tbl_len` of the port, times the number of ports.
    pub entries: usize,
    pub ethernet: bool,
    pub iwarp: bool,
}

impl GidTable<'_> {
    /// The entries of the table that are in use.
    ///
    /// # Safety
    /// `context` is an open device.
    pub unsafe fn read(&self) -> Result<Vec<Gid>> {
        // SAFETY: the caller has the device open.
        let entries = match unsafe { self.table() } {
            Some(entries) => entries,
            // SAFETY: the caller has the device open.
            None => unsafe { self.one_by_one()? },
        };
        let devs = netdev::all();
        let used = entries.iter().filter(|e| e.port == u32::from(self.port) && e.index < 256 && e.gid != [0; 16]);
        let place = |e: &GidEntry| {
            let netdev = netdev::name_of(e.ifindex).or_else(|| self.attribute("ndevs", e.index));
            placed(e, kind_of(e.kind, self.ethernet, self.iwarp), netdev, &devs)
        };
        Ok(used.map(place).collect())
    }

    /// The whole table by one call, if library and kernel support that call.
    unsafe fn table(&self) -> Option<Vec<GidEntry>> {
        let mut entries = vec![GidEntry::default(); self.entries.clamp(1, 1 << 16)];
        let newer = newer().ok()?;
        // SAFETY: there is room for that many entries of this size; the caller of `read` has the device open.
        let n = unsafe { newer._ibv_query_gid_table(self.context, entries.as_mut_ptr(), entries.len(), 0, size_of::<GidEntry>()).ok()? };
        entries.truncate(usize::try_from(n).ok()?);
        Some(entries)
    }

    /// The table by one call per entry, with the types from sysfs, for libraries before rdma-core 32.
    unsafe fn one_by_one(&self) -> Result<Vec<GidEntry>> {
        let verbs = verbs()?;
        let mut found = Vec::new();
        for index in 0..self.entries.min(256) {
            let mut gid = ibv_gid { raw: [0; 16] };
            // SAFETY: the caller of `read` has the device open.
            let rc = unsafe { verbs.ibv_query_gid(self.context, self.port, index as i32, &mut gid)? };
            if rc != 0 {
                // The index is beyond the end of this port's table. A failure at the first entry is an error.
                if index == 0 {
                    returned(rc, format_args!("reading GID 0 of port {}", self.port))?;
                }
                break;
            }
            let kind = self.attribute("types", index as u32).map_or(0, |text| kind_of_text(&text));
            // SAFETY: every pattern of 16 bytes is a GID.
            found.push(GidEntry { gid: unsafe { gid.raw }, index: index as u32, port: u32::from(self.port), kind, ifindex: 0 });
        }
        Ok(found)
    }

    fn attribute(&self, what: &str, index: u32) -> Option<String> {
        let path = self.sysfs.join(format!("ports/{}/gid_attrs/{what}/{index}", self.port));
        std::fs::read_to_string(path).ok().map(|text| text.trim().to_string()).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn bytes(text: &str) -> [u8; 16] {
        text.parse::<Ipv6Addr>().expect("an address").octets()
    }

    fn dev(name: &str, hardware: &[u8], ips: &[&str]) -> Netdev {
        Netdev { name: name.to_string(), hardware: hardware.to_vec(), ips: ips.iter().map(|t| ip(t)).collect() }
    }

    #[test]
    fn roce_gids_are_ip_addresses() {
        assert_eq!(ip_in(&bytes("::ffff:10.1.2.3")), ip("10.1.2.3"));
        assert_eq!(ip_in(&bytes("2001:db8::7")), ip("2001:db8::7"));
    }

    #[test]
    fn kinds_by_number_by_text_and_by_transport() {
        assert_eq!(kind_of(2, true, false), GidKind::RoceV2);
        assert_eq!(kind_of(1, true, false), GidKind::RoceV1);
        assert_eq!(kind_of(0, true, false), GidKind::RoceV1);
        assert_eq!(kind_of(0, false, false), GidKind::Ib);
        assert_eq!(kind_of(0, true, true), GidKind::Iwarp);
        assert_eq!(kind_of(kind_of_text("RoCE v2\n"), true, false), GidKind::RoceV2);
        assert_eq!(kind_of(kind_of_text("IB/RoCE v1\n"), true, false), GidKind::RoceV1);
        assert_eq!(kind_of(kind_of_text("IB/RoCE v1\n"), false, false), GidKind::Ib);
    }

    #[test]
    fn a_roce_gid_has_an_address_only_if_its_interface_has() {
        let devs = [dev("eth0", &[2, 0, 0, 0, 0, 1], &["10.0.0.1"])];
        let entry = GidEntry { gid: bytes("::ffff:10.0.0.1"), index: 1, port: 1, kind: 2, ifindex: 0 };
        let gid = placed(&entry, GidKind::RoceV2, Some("eth0".into()), &devs);
        assert_eq!((gid.index, gid.ip), (1, Some(ip("10.0.0.1"))));
        let entry = GidEntry { gid: bytes("fe80::ff:fe00:1"), ..entry };
        let gid = placed(&entry, GidKind::RoceV2, Some("eth0".into()), &devs);
        assert_eq!(gid.ip, None);
        assert_eq!(gid.hex(), "fe8000000000000000".to_string() + "0000fffe000001");
    }

    #[test]
    fn an_iwarp_gid_finds_its_interface_by_hardware_address() {
        let devs = [dev("lo", &[0; 6], &["127.0.0.1"]), dev("eth1", &[2, 0, 0, 0, 0, 9], &["fe80::9", "10.0.0.9"])];
        let mut raw = [0; 16];
        raw[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        let entry = GidEntry { gid: raw, port: 1, ..GidEntry::default() };
        let gid = placed(&entry, GidKind::Iwarp, None, &devs);
        assert_eq!((gid.netdev.as_deref(), gid.ip), (Some("eth1"), Some(ip("10.0.0.9"))));
    }

    #[test]
    fn an_infiniband_gid_finds_its_ip_over_infiniband() {
        let raw = bytes("fe80::2:c903:11:2233");
        let hardware: Vec<u8> = [0x80, 0, 2, 8].into_iter().chain(raw).collect();
        let gid = placed(&GidEntry { gid: raw, ..GidEntry::default() }, GidKind::Ib, None, &[dev("ib0", &hardware, &["192.168.1.5"])]);
        assert_eq!((gid.netdev.as_deref(), gid.ip), (Some("ib0"), Some(ip("192.168.1.5"))));
        assert_eq!(placed(&GidEntry { gid: raw, ..GidEntry::default() }, GidKind::Ib, None, &[]).ip, None);
    }
}
