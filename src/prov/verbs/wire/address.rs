// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses as text. A program gets the text from getname and hands it to its peer by a bootstrap of its own.
//!
//! - `verbs://192.0.2.1:7471`, `verbs://[2001:db8::1]:7471`, `verbs://[fe80::1%3]:7471`: connected by rdma_cm.
//! - `verbs+qp://?lid=0&gid=<32 hex digits>&qpn=17&psn=4711&mtu=1024`: a queue pair; both sides exchange this text and
//!   connect to each other's queue pair. `svc=18` is a second queue pair beside it (the service queue pair), whose
//!   first packet sequence number is its own number. `rd=16` is the number of reads and atomics that the NIC serves at
//!   once. `access=0` are bits that have a meaning only for the provider that wrote them and for its peer.
//!
//! Addresses come from outside the process. So each field is checked here, once, against its bounds, and an unknown
//! field is refused.

use crate::error::{Error, Result};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::str::FromStr;

/// Prefix of addresses for rdma_cm.
pub const CM: &str = "verbs://";
/// Prefix of addresses of queue pairs.
pub const QP: &str = "verbs+qp://";
/// Queue pair and packet sequence numbers have 24 bits.
const BITS_24: u64 = (1 << 24) - 1;
/// Longest accepted address.
const MAX: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Cm(SocketAddr),
    Qp(QpAddress),
}

/// One side of a connection made without rdma_cm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAddress {
    /// The LID of the port; 0 on Ethernet.
    pub lid: u16,
    pub gid: [u8; 16],
    pub qpn: u32,
    /// The first packet sequence number that this side sends.
    pub psn: u32,
    /// The port's active MTU in bytes; the connection uses the smaller one.
    pub mtu: u32,
    /// The number of the service queue pair, which is connected in the same way.
    pub service: Option<u32>,
    /// Reads and atomics of the peer that this side serves at once.
    pub reads: u8,
    /// Bits that have a meaning only for the provider.
    pub access: u32,
}

fn invalid(field: &str, why: impl fmt::Display) -> Error {
    Error::invalid(format!("address: {field}: {why}"))
}

fn decimal(field: &str, text: &str, min: u64, max: u64) -> Result<u64> {
    // `parse` would accept a sign.
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(n) if digits && (min..=max).contains(&n) => Ok(n),
        _ => Err(invalid(field, format_args!("{text:?} is not a number from {min} to {max}"))),
    }
}

fn gid(text: &str) -> Result<[u8; 16]> {
    let wrong = || invalid("gid", format_args!("{text:?} is not 32 hexadecimal digits"));
    if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    u128::from_str_radix(text, 16).map(u128::to_be_bytes).map_err(|_| wrong())
}

fn mtu(text: &str) -> Result<u32> {
    match decimal("mtu", text, 256, 4096)? {
        n if n.is_power_of_two() => Ok(n as u32),
        _ => Err(invalid("mtu", format_args!("{text:?} is not 256, 512, 1024, 2048 or 4096"))),
    }
}

/// Sets a field, which may be given only once.
fn once<T>(field: &str, slot: &mut Option<T>, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(invalid(field, "given twice")),
    }
}

impl FromStr for QpAddress {
    type Err = Error;

    /// Parses the text after the prefix.
    fn from_str(text: &str) -> Result<QpAddress> {
        let query = text.strip_prefix('?').ok_or_else(|| invalid("verbs+qp", "no '?' before the fields"))?;
        let (mut lid, mut raw, mut qpn, mut psn, mut size, mut service, mut reads, mut access) =
            (None, None, None, None, None, None, None, None);
        for pair in query.split('&') {
            let (key, value) = pair.split_once('=').ok_or_else(|| invalid(pair, "no '=' and value"))?;
            match key {
                "lid" => once(key, &mut lid, decimal(key, value, 0, u16::MAX.into())? as u16)?,
                "gid" => once(key, &mut raw, gid(value)?)?,
                "qpn" => once(key, &mut qpn, decimal(key, value, 1, BITS_24)? as u32)?,
                "psn" => once(key, &mut psn, decimal(key, value, 0, BITS_24)? as u32)?,
                "mtu" => once(key, &mut size, mtu(value)?)?,
                "svc" => once(key, &mut service, decimal(key, value, 1, BITS_24)? as u32)?,
                "rd" => once(key, &mut reads, decimal(key, value, 0, u8::MAX.into())? as u8)?,
                "access" => once(key, &mut access, decimal(key, value, 0, u32::MAX.into())? as u32)?,
                _ => return Err(invalid(key, "no such field")),
            }
        }
        let missing = |field: &'static str| move || invalid(field, "missing");
        let address = QpAddress {
            lid: lid.ok_or_else(missing("lid"))?,
            gid: raw.ok_or_else(missing("gid"))?,
            qpn: qpn.ok_or_else(missing("qpn"))?,
            psn: psn.ok_or_else(missing("psn"))?,
            mtu: size.ok_or_else(missing("mtu"))?,
            service,
            reads: reads.unwrap_or(1),
            access: access.unwrap_or(0),
        };
        if address.lid == 0 && address.gid == [0; 16] {
            return Err(invalid("gid", "gid and lid are both zero; one must name the port"));
        }
        if address.service == Some(address.qpn) {
            return Err(invalid("svc", "the same queue pair number as qpn"));
        }
        Ok(address)
    }
}

/// Parses `192.0.2.1:7471`, `[2001:db8::1]:7471` or `[fe80::1%3]:7471`. The port may be left out, which means port 0.
fn socket(text: &str) -> Result<SocketAddr> {
    let port = |text: &str| -> Result<u16> {
        match text.strip_prefix(':') {
            None if text.is_empty() => Ok(0),
            Some(digits) => Ok(decimal("port", digits, 0, u16::MAX.into())? as u16),
            None => Err(invalid("port", format_args!("{text:?} after the host is not :PORT"))),
        }
    };
    if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or_else(|| invalid("host", "no ']'"))?;
        let (host, scope) = match host.split_once('%') {
            Some((host, scope)) => (host, decimal("scope", scope, 1, u32::MAX.into())? as u32),
            None => (host, 0),
        };
        let ip: Ipv6Addr = host.parse().map_err(|_| invalid("host", format_args!("{host:?} is not an IPv6 address")))?;
        return Ok(SocketAddr::V6(SocketAddrV6::new(ip, port(after)?, 0, scope)));
    }
    let (host, after) = text.split_at(text.find(':').unwrap_or(text.len()));
    let ip: Ipv4Addr =
        host.parse().map_err(|_| invalid("host", format_args!("{host:?} is not an IPv4 address, or an IPv6 address in []")))?;
    Ok(SocketAddr::V4(SocketAddrV4::new(ip, port(after)?)))
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address> {
        if text.len() > MAX {
            return Err(Error::invalid(format!("address: longer than {MAX} characters")));
        }
        if let Some(rest) = text.strip_prefix(QP) {
            return rest.parse().map(Address::Qp);
        }
        match text.strip_prefix(CM) {
            Some(rest) => socket(rest).map(Address::Cm),
            None => Err(Error::invalid(format!("address: {text:?} begins neither with {CM} nor with {QP}"))),
        }
    }
}

impl fmt::Display for QpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QpAddress { lid, gid, qpn, psn, mtu, service, reads, access } = self;
        write!(f, "{QP}?lid={lid}&gid={:032x}&qpn={qpn}&psn={psn}&mtu={mtu}", u128::from_be_bytes(*gid))?;
        if let Some(service) = service {
            write!(f, "&svc={service}")?;
        }
        write!(f, "&rd={reads}&access={access}")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Cm(at) => write!(f, "{CM}{at}"),
            Address::Qp(at) => at.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "verbs+qp://?lid=0&gid=00000000000000000000ffff0a000001&qpn=17&psn=4711&mtu=1024";

    fn parse(text: &str) -> Result<Address> {
        text.parse()
    }

    #[test]
    fn addresses_survive_the_round_trip() {
        for text in ["verbs://192.0.2.1:7471", "verbs://[2001:db8::1]:7471", "verbs://[fe80::1%3]:1", "verbs://0.0.0.0:0"] {
            let address = parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(address.to_string(), text);
        }
        for service in [None, Some(18)] {
            let qp = QpAddress {
                lid: 3,
                gid: std::array::from_fn(|i| i as u8 * 17),
                qpn: 0xff_ffff,
                psn: 0,
                mtu: 4096,
                service,
                reads: 16,
                access: u32::MAX,
            };
            let text = qp.to_string();
            assert_eq!(parse(&text).map_err(|e| e.to_string()), Ok(Address::Qp(qp)), "{text}");
        }
    }

    #[test]
    fn optional_fields_have_defaults() {
        assert_eq!(parse("verbs://192.0.2.1").map(|a| a.to_string()).ok().as_deref(), Some("verbs://192.0.2.1:0"));
        let Ok(Address::Qp(qp)) = parse(GOOD) else { panic!("{GOOD}") };
        assert_eq!((qp.service, qp.reads, qp.access, qp.qpn, qp.mtu), (None, 1, 0, 17, 1024));
    }

    #[test]
    fn an_error_names_the_field() {
        let gid = "gid=00000000000000000000ffff0a000001";
        for (from, to, field) in [
            ("lid=0", "lid=65536", "lid"),
            ("lid=0&", "", "lid"),
            (gid, "gid=xyz", "gid"),
            (gid, "gid=+0000000000000000000ffff0a000001", "gid"),
            (gid, "gid=00000000000000000000000000000000", "gid"),
            ("qpn=17", "qpn=0", "qpn"),
            ("qpn=17", "qpn=16777216", "qpn"),
            ("qpn=17", "qpn=+17", "qpn"),
            ("qpn=17", "qpn=17&qpn=17", "qpn"),
            ("psn=4711", "psn=", "psn"),
            ("psn=4711", "psn=-1", "psn"),
            ("mtu=1024", "mtu=1500", "mtu"),
            ("mtu=1024", "mtu=8192", "mtu"),
            ("&mtu=1024", "", "mtu"),
            ("mtu=1024", "mtu=1024&svc=17", "svc"),
            ("mtu=1024", "mtu=1024&svc=0", "svc"),
            ("mtu=1024", "mtu=1024&rd=256", "rd"),
            ("mtu=1024", "mtu=1024&access=4294967296", "access"),
            ("mtu=1024", "mtu=1024&color=red", "color"),
            ("mtu=1024", "mtu=1024&", ""),
            ("://?", "://", "verbs+qp"),
        ] {
            let text = GOOD.replace(from, to);
            let e = parse(&text).expect_err(&text);
            assert!(e.words.starts_with(&format!("address: {field}: ")), "{text}: {e}");
        }
        for (text, field) in [
            ("verbs://", "host"),
            ("verbs://host:1", "host"),
            ("verbs://1.2.3:1", "host"),
            ("verbs://[::1", "host"),
            ("verbs://[1.2.3.4]:1", "host"),
            ("verbs://[fe80::1%eth0]:1", "scope"),
            ("verbs://1.2.3.4:65536", "port"),
            ("verbs://1.2.3.4:", "port"),
            ("verbs://1.2.3.4:+1", "port"),
            ("verbs://[::1]1", "port"),
        ] {
            let e = parse(text).expect_err(text);
            assert!(e.words.starts_with(&format!("address: {field}: ")), "{text}: {e}");
        }
    }

    #[test]
    fn garbage_is_refused() {
        for text in
            ["", "verbs", "shm://x", "verbs:/1.2.3.4:1", "VERBS://1.2.3.4:1", "verbs+qp:", "verbs+qp://?", "verbs+qp://?=", "verbs://\u{0}"]
        {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert!(parse(&format!("{GOOD}{}", "&svc=1".repeat(200))).is_err());
        // Every one-byte change of a good address either fails or reads as another good one, and never panics.
        for i in 0..GOOD.len() {
            for c in ["", "&", "=", "?", "0", "f", "é", "\u{0}", "%", "["] {
                let text = format!("{}{c}{}", &GOOD[..i], &GOOD[i + 1..]);
                if let Ok(address) = parse(&text) {
                    assert_eq!(parse(&address.to_string()).ok(), Some(address), "{text}");
                }
            }
        }
    }
}
