// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names of connectionless endpoints: a socket address, and a nonce that distinguishes the endpoints that have listened there
//! one after another.
//!
//! The second part of the file is about connected endpoints with tags: their addresses say that they match messages.

use crate::error::{Error, Result};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The length of every name in bytes.
pub const NAME_LEN: usize = 48;
/// The beginning of a name's text form.
pub const SCHEME: &str = "rdm://";

const VERSION: u8 = 1;
const MAGIC: [u8; 3] = *b"gRD";

/// The address at which an endpoint listens, and the nonce of this endpoint among all that ever listened there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// An IPv4 address in its mapped IPv6 form.
    ip: Ipv6Addr,
    port: u16,
    /// The scope of a link-local address.
    scope: u32,
    /// A random number, drawn when the endpoint was opened. 0: not known, so the name means any endpoint that listens at the
    /// address.
    pub nonce: u64,
    /// Equal for endpoints of one host and network namespace; 0: not known.
    pub host: u64,
}

/// The parts by which names differ: all but `host`.
pub type Key = (Ipv6Addr, u16, u32, u64);

impl Name {
    /// The name of no endpoint: port 0.
    pub const NOBODY: Name = Name { ip: Ipv6Addr::UNSPECIFIED, port: 0, scope: 0, nonce: 0, host: 0 };

    /// The name of any endpoint that listens at this address.
    pub fn at(at: SocketAddr) -> Name {
        let (ip, scope) = match at {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        Name { ip, port: at.port(), scope, nonce: 0, host: 0 }
    }

    /// The same address with this nonce.
    pub fn of(self, nonce: u64) -> Name {
        Name { nonce, ..self }
    }

    /// The same address without a nonce.
    pub fn bare(self) -> Name {
        self.of(0)
    }

    pub fn socket(&self) -> SocketAddr {
        match self.ip.to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), self.port),
            None => SocketAddr::V6(std::net::SocketAddrV6::new(self.ip, self.port, 0, self.scope)),
        }
    }

    pub fn key(&self) -> Key {
        (self.ip, self.port, self.scope, self.nonce)
    }

    /// True if both names have the same address, whatever the nonces.
    pub fn is_beside(&self, other: &Name) -> bool {
        (self.ip, self.port, self.scope) == (other.ip, other.port, other.scope)
    }

    /// True if this name, which may lack a nonce, means the endpoint that `other` names in full.
    pub fn means(&self, other: &Name) -> bool {
        self.is_beside(other) && (self.nonce == 0 || self.nonce == other.nonce)
    }

    pub fn encode(&self) -> [u8; NAME_LEN] {
        let mut b = [0u8; NAME_LEN];
        b[..3].copy_from_slice(&MAGIC);
        b[3] = VERSION;
        b[4..6].copy_from_slice(&self.port.to_be_bytes());
        b[8..24].copy_from_slice(&self.ip.octets());
        b[24..32].copy_from_slice(&self.nonce.to_le_bytes());
        b[32..40].copy_from_slice(&self.host.to_le_bytes());
        b[40..44].copy_from_slice(&self.scope.to_le_bytes());
        b
    }

    pub fn decode(bytes: &[u8]) -> Result<Name> {
        let wrong = |why: &str| Err(Error::invalid(format!("addr: not the name of a connectionless endpoint: {why}")));
        let Ok(b) = <&[u8; NAME_LEN]>::try_from(bytes) else {
            return wrong(&format!("it has {} bytes instead of {NAME_LEN}", bytes.len()));
        };
        if b[..3] != MAGIC {
            return wrong("it does not begin with the bytes of such a name");
        }
        if b[3] != VERSION {
            return wrong(&format!("it has version {}, and this library supports {VERSION}", b[3]));
        }
        if b[6..8] != [0; 2] || b[44..] != [0; 4] {
            return wrong("reserved bytes are not 0");
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| b[at + i]));
        let name = Name {
            ip: Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| b[8 + i])),
            port: u16::from_be_bytes([b[4], b[5]]),
            scope: word(40) as u32,
            nonce: word(24),
            host: word(32),
        };
        name.check()
    }

    /// The bytes of an encoded name without those that are equal in all names.
    pub fn pack(&self) -> Vec<u8> {
        let b = self.encode();
        [&b[4..6], &b[8..44]].concat()
    }

    pub fn unpack(packed: &[u8]) -> Result<Name> {
        let (port, rest) = packed.split_at_checked(2).unwrap_or_default();
        Name::decode(&[&MAGIC[..], &[VERSION], port, &[0; 2], rest, &[0; 4]].concat())
    }

    pub fn check(self) -> Result<Name> {
        let ip = self.socket().ip();
        if self.port == 0 {
            return Err(Error::invalid("addr: port 0 is not a listener's port"));
        }
        if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return Err(Error::invalid(format!("addr: {ip} is not the address of one host")));
        }
        if ip.is_ipv4() && self.scope != 0 {
            return Err(Error::invalid(format!("addr: {ip} has a scope, which only IPv6 addresses can have")));
        }
        Ok(self)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.socket())?;
        match self.nonce | self.host {
            0 => Ok(()),
            _ => write!(f, "/{:016x}/{:016x}", self.nonce, self.host),
        }
    }
}

impl FromStr for Name {
    type Err = Error;

    /// Parses `rdm://192.0.2.1:7000`, optionally followed by nonce and host.
    fn from_str(text: &str) -> Result<Name> {
        let wrong = || Error::invalid(format!("addr: {text:?} is not {SCHEME}IP:PORT or {SCHEME}IP:PORT/NONCE/HOST"));
        let rest = text.strip_prefix(SCHEME).ok_or_else(wrong)?;
        let mut parts = rest.split('/');
        let mut name = Name::at(parts.next().and_then(|at| at.parse().ok()).ok_or_else(wrong)?);
        let mut number = |missing: Option<u64>| match parts.next() {
            None => missing.ok_or_else(wrong),
            Some(hex) if hex.len() == 16 && !hex.starts_with('+') => u64::from_str_radix(hex, 16).map_err(|_| wrong()),
            Some(_) => Err(wrong()),
        };
        if rest.contains('/') {
            (name.nonce, name.host) = (number(None)?, number(None)?);
            if parts.next().is_some() {
                return Err(wrong());
            }
        }
        name.check()
    }
}

/// The text behind the plain address of a connected endpoint that matches messages; the version of the matching
/// protocol follows. The address has to tell the version, because endpoints that connect by exchanged addresses
/// exchange nothing else before.
const MATCHED: &str = "?tagged=";

/// Marks the address of an endpoint that matches messages.
pub fn matched(address: &str, version: u8) -> String {
    format!("{address}{MATCHED}{version}")
}

/// The plain address of an endpoint that matches messages by this version.
pub fn unmatched(address: &str, version: u8) -> Result<&str> {
    match address.split_once(MATCHED) {
        Some((plain, of)) if of == version.to_string() => Ok(plain),
        Some(_) => Err(Error::invalid(format!("addr: {address:?} uses the tag matching of another version of this library"))),
        None => Err(Error::invalid(format!(
            "addr: {address:?} names an endpoint without GDRFAB_TAGGED, but this endpoint has it; open both alike"
        ))),
    }
}

/// Checks a peer's address for an endpoint that does not match messages: refuses the address of an endpoint that does.
pub fn check_plain(address: &str) -> Result<()> {
    if address.contains(MATCHED) {
        return Err(Error::invalid(format!(
            "addr: {address:?} names an endpoint with GDRFAB_TAGGED, but this endpoint lacks it; open both alike"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    const FULL: &str = "rdm://192.0.2.1:7000/0123456789abcdef/fedcba9876543210";

    #[test]
    fn names_survive_both_forms() {
        for text in ["rdm://192.0.2.1:7000", "rdm://[2001:db8::1]:1", "rdm://[fe80::1%3]:65535", FULL] {
            let one = name(text);
            assert_eq!(one.to_string(), text);
            assert_eq!(Name::decode(&one.encode()).unwrap(), one);
        }
        assert_eq!(name(FULL).socket(), "192.0.2.1:7000".parse().unwrap());
    }

    #[test]
    fn invalid_names_are_refused_in_words() {
        let good = name(FULL).encode();
        for n in 0..NAME_LEN {
            assert!(Name::decode(&good[..n]).is_err_and(|e| e.words.contains("bytes")), "{n}");
        }
        assert!(Name::decode(&[&good[..], &[0]].concat()).is_err());
        let with = |at: usize, value: u8| {
            let mut b = good;
            b[at] = value;
            Name::decode(&b)
        };
        assert!(with(0, 0).is_err() && with(6, 1).is_err() && with(47, 1).is_err());
        assert!(with(43, 1).is_err_and(|e| e.words.contains("scope")));
        assert!(with(3, 2).is_err_and(|e| e.words.contains("version 2")));
        let mut b = good;
        b[4..6].fill(0);
        assert!(Name::decode(&b).is_err_and(|e| e.words.contains("port 0")));
        for text in [
            "",
            "rdm://",
            "tcp://1.2.3.4:5",
            "rdm://1.2.3.4",
            "rdm://1.2.3.4:0",
            "rdm://0.0.0.0:5",
            "rdm://[ff02::1]:5",
            "rdm://[::ffff:1.2.3.4%3]:5",
            "rdm://1.2.3.4:5/",
            "rdm://1.2.3.4:5/0123456789abcdef",
            "rdm://1.2.3.4:5/0123456789abcdef/fedcba987654321",
            "rdm://1.2.3.4:5/+123456789abcdef/fedcba9876543210",
            "rdm://1.2.3.4:5/0123456789abcdef/fedcba9876543210/0",
        ] {
            assert!(text.parse::<Name>().is_err(), "{text}");
        }
    }
}
