// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses as text, which `gdrfab_ep_getname()` returns and programs exchange by means of their own.
//!
//! - `tcp://192.0.2.1:7000`, `tcp://[2001:db8::1]:7000`, `tcp://[fe80::1%3]:7000`, `tcp://host.example:7000`: a passive
//!   endpoint. A host name is resolved when the address is used, so that all of the host's addresses can be tried.
//! - `tcp://192.0.2.1:41234/0123456789abcdef`: an endpoint's own address. The address ends with a random token; the
//!   endpoint refuses a caller that does not name the token.
//!
//! Addresses come from outside the process, so the length and form of each part are checked here.

use crate::error::{Error, Result, errno};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::str::FromStr;

/// The beginning of every address.
pub const SCHEME: &str = "tcp://";
/// Most bytes of an address.
pub const MAX: usize = super::hello::ADDRESS_MAX;
/// Most bytes of a DNS name.
const NAME_MAX: usize = 253;

/// The host of an address, with the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An IP address and the address's port.
    Ip(SocketAddr),
    /// A host name, or an IPv6 address with an interface name; and the port.
    Name(String, u16),
}

/// A parsed address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub host: Host,
    /// The token of an endpoint's own address; never 0.
    pub token: Option<u64>,
}

fn invalid(part: &str, why: impl fmt::Display) -> Error {
    Error::invalid(format!("addr: {part}: {why}"))
}

fn number(part: &str, text: &str, max: u64) -> Result<u64> {
    // `parse` would accept a sign.
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(n) if digits && n <= max => Ok(n),
        _ => Err(invalid(part, format_args!("{text:?} is not a number up to {max}"))),
    }
}

/// Parses the text behind the host: a colon and the port, or nothing, which means port 0.
fn port(text: &str) -> Result<u16> {
    match text.strip_prefix(':') {
        None if text.is_empty() => Ok(0),
        Some(digits) => Ok(number("port", digits, u16::MAX.into())? as u16),
        None => Err(invalid("port", format_args!("{text:?} after the host is not :PORT"))),
    }
}

/// Parses an IPv6 address without its brackets, perhaps with an interface. With an interface's name the result is
/// `Host::Name`, because only this host's resolver knows the interface's number.
fn v6(text: &str, port: u16) -> Result<Host> {
    let (ip, scope) = match text.split_once('%') {
        Some((ip, scope)) => (ip, Some(scope)),
        None => (text, None),
    };
    let ip: Ipv6Addr = ip.parse().map_err(|_| invalid("host", format_args!("{ip:?} is not an IPv6 address")))?;
    match scope {
        None => Ok(Host::Ip(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, 0)))),
        Some(s) if !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit()) => {
            let scope = number("host", s, u32::MAX.into())? as u32;
            Ok(Host::Ip(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope))))
        }
        Some(s) if (1..16).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.@".contains(&b)) => {
            Ok(Host::Name(text.to_string(), port))
        }
        Some(s) => Err(invalid("host", format_args!("{s:?} is not the name of an interface"))),
    }
}

/// Parses a host as a user types it: an IP address, with or without brackets, or a name.
pub fn host(text: &str, port: u16) -> Result<Host> {
    if let Some(inner) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        return v6(inner, port);
    }
    if text.contains(':') {
        return v6(text, port);
    }
    if let Ok(ip) = text.parse::<Ipv4Addr>() {
        return Ok(Host::Ip(SocketAddr::new(IpAddr::V4(ip), port)));
    }
    let good = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    // A malformed IPv4 address must not become a DNS query.
    let numeric = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if text.is_empty() || text.len() > NAME_MAX || !text.bytes().all(good) || numeric {
        return Err(invalid("host", format_args!("{text:?} is neither an IP address nor a host's name")));
    }
    Ok(Host::Name(text.to_string(), port))
}

impl Address {
    pub fn of(at: SocketAddr, token: Option<u64>) -> Address {
        Address { host: Host::Ip(at), token: token.filter(|t| *t != 0) }
    }

    pub fn port(&self) -> u16 {
        match &self.host {
            Host::Ip(at) => at.port(),
            Host::Name(_, port) => *port,
        }
    }

    /// Fails for port 0, which cannot be dialed.
    pub fn check_port(&self) -> Result<()> {
        match self.port() {
            0 => Err(Error::invalid(format!("addr: {self} has no port"))),
            _ => Ok(()),
        }
    }

    /// The IP addresses of the host, best first. For a host name the call lasts until the name servers have answered.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>> {
        match &self.host {
            Host::Ip(at) => Ok(vec![*at]),
            Host::Name(name, port) => {
                let unknown = |why: String| Error::new(errno::EADDRNOTAVAIL, format!("addr: host {name:?}: {why}"));
                let mut found: Vec<SocketAddr> = Vec::new();
                for at in (name.as_str(), *port).to_socket_addrs().map_err(|e| unknown(e.to_string()))? {
                    if !found.contains(&at) {
                        found.push(at);
                    }
                }
                if found.is_empty() { Err(unknown("has no IP address".into())) } else { Ok(found) }
            }
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address> {
        if text.len() > MAX {
            return Err(Error::invalid(format!("addr: longer than {MAX} bytes")));
        }
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return Err(Error::invalid(format!("addr: {text:?} does not begin with {SCHEME:?}")));
        };
        let (place, token) = match rest.split_once('/') {
            None => (rest, None),
            Some((place, token)) => (place, Some(token)),
        };
        let host = match place.strip_prefix('[') {
            Some(rest) => {
                let (inner, after) = rest.split_once(']').ok_or_else(|| invalid("host", "no ']'"))?;
                v6(inner, port(after)?)?
            }
            None => {
                let (name, after) = place.split_at(place.find(':').unwrap_or(place.len()));
                if after.matches(':').count() > 1 {
                    return Err(invalid("host", format_args!("{place:?}: write an IPv6 address in []")));
                }
                host(name, port(after)?)?
            }
        };
        let token = token.map(parse_token).transpose()?;
        let address = Address { host, token };
        if address.token.is_some() && address.port() == 0 {
            return Err(invalid("port", "the address of an endpoint needs a port"));
        }
        // The printed address always has a port, so it can be longer than the parsed text.
        if address.to_string().len() > MAX {
            return Err(Error::invalid(format!("addr: longer than {MAX} bytes with its port")));
        }
        Ok(address)
    }
}

/// Parses a token: 16 hexadecimal digits in lower case, not all of them 0.
fn parse_token(text: &str) -> Result<u64> {
    let digits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    match u64::from_str_radix(text, 16) {
        Ok(token) if digits && token != 0 => Ok(token),
        _ => Err(invalid("token", format_args!("{text:?} is not 16 lower-case hexadecimal digits other than 0"))),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(at) => write!(f, "{SCHEME}{at}")?,
            Host::Name(name, port) if name.contains(':') => write!(f, "{SCHEME}[{name}]:{port}")?,
            Host::Name(name, port) => write!(f, "{SCHEME}{name}:{port}")?,
        }
        match self.token {
            Some(token) => write!(f, "/{token:016x}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "tcp://127.0.0.1:41234/0123456789abcdef";

    fn parse(text: &str) -> Result<Address> {
        text.parse()
    }

    #[test]
    fn addresses_survive_the_round_trip() {
        for text in [
            "tcp://127.0.0.1:7000",
            "tcp://[::1]:7000",
            "tcp://[fe80::1%3]:1",
            "tcp://[fe80::1%eth0]:1",
            "tcp://host.example:7000",
            "tcp://localhost:0",
            "tcp://0.0.0.0:0",
            OWN,
            "tcp://[2001:db8::1]:1/ffffffffffffffff",
        ] {
            let address = parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(address.to_string(), text);
        }
        assert_eq!(parse("tcp://192.0.2.1").unwrap().to_string(), "tcp://192.0.2.1:0");
        assert_eq!(parse(OWN).unwrap().token, Some(0x0123_4567_89ab_cdef));
    }

    #[test]
    fn an_error_names_the_part() {
        for (text, part) in [
            ("tcp://", "host"),
            ("tcp://:7000", "host"),
            ("tcp://1.2.3:1", "host"),
            ("tcp://1.2.3.4.5:1", "host"),
            ("tcp://a b:1", "host"),
            ("tcp://::1:7000", "host"),
            ("tcp://[::1:7000", "host"),
            ("tcp://[1.2.3.4]:1", "host"),
            ("tcp://[fe80::1%]:1", "host"),
            ("tcp://[fe80::1%a/b]:1", "host"),
            ("tcp://1.2.3.4:65536", "port"),
            ("tcp://1.2.3.4:", "port"),
            ("tcp://1.2.3.4:+1", "port"),
            ("tcp://[::1]1", "port"),
            ("tcp://1.2.3.4:0/0123456789abcdef", "port"),
            ("tcp://1.2.3.4:1/", "token"),
            ("tcp://1.2.3.4:1/0000000000000000", "token"),
            ("tcp://1.2.3.4:1/0123456789ABCDEF", "token"),
            ("tcp://1.2.3.4:1/0123456789abcde", "token"),
            ("tcp://1.2.3.4:1/0123456789abcdef0", "token"),
            ("tcp://1.2.3.4:1/+123456789abcdef", "token"),
        ] {
            let e = parse(text).expect_err(text);
            assert!(e.errno == errno::EINVAL && e.words.starts_with(&format!("addr: {part}: ")), "{text}: {e}");
        }
    }

    #[test]
    fn garbage_is_refused() {
        for text in ["", "tcp", "shm://x", "tcp:/1.2.3.4:1", "TCP://1.2.3.4:1", "tcp://\u{0}", "tcp://é:1"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert!(parse(&format!("tcp://{}:1", "a".repeat(254))).is_err());
        assert!(parse(&format!("tcp://{}", "a".repeat(247))).is_ok() && parse(&format!("tcp://{}", "a".repeat(248))).is_err());
        // Every one-byte change of a valid address either fails or parses as another valid address, and never panics.
        for i in 0..OWN.len() {
            for c in ["", "&", "=", "/", "0", "f", "é", "\u{0}", "%", "[", ":"] {
                let text = format!("{}{c}{}", &OWN[..i], &OWN[i + 1..]);
                if let Ok(address) = parse(&text) {
                    assert_eq!(parse(&address.to_string()).ok(), Some(address), "{text}");
                }
            }
        }
    }

    #[test]
    fn names_are_looked_up_when_used() {
        let found = parse("tcp://localhost:7000").unwrap().resolve().unwrap();
        assert!(found.iter().all(|at| at.ip().is_loopback() && at.port() == 7000), "{found:?}");
        let e = parse("tcp://no-such-host.invalid:1").unwrap().resolve().unwrap_err();
        assert!(e.errno == errno::EADDRNOTAVAIL && e.words.contains("no-such-host.invalid"), "{e}");
    }
}
