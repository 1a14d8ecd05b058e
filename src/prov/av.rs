// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names of connectionless endpoints, and the address vector that numbers them: data, as `queue.rs` is. Nothing here connects.

use crate::error::{Error, Result, errno};
use parking_lot::RwLock;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// No index: any peer, or one that is not in the vector.
pub const UNSPEC: u64 = u64::MAX;
/// Bytes of every name.
pub const NAME_LEN: usize = 48;
/// The text of a name begins so.
pub const SCHEME: &str = "rdm://";

const VERSION: u8 = 1;
const MAGIC: [u8; 3] = *b"gRD";

/// Where an endpoint listens, and which of those that listened there one after the other it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// An IPv4 address as it is mapped into IPv6.
    ip: Ipv6Addr,
    port: u16,
    /// Of a link-local address.
    scope: u32,
    /// Drawn when the endpoint was opened; 0: not known, whoever listens there is meant.
    pub nonce: u64,
    /// Two endpoints of one host and network namespace have the same; 0: not known.
    pub host: u64,
}

impl Name {
    /// A bare socket address.
    pub fn at(at: SocketAddr) -> Name {
        let (ip, scope) = match at {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        Name { ip, port: at.port(), scope, nonce: 0, host: 0 }
    }

    pub fn socket(&self) -> SocketAddr {
        match self.ip.to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), self.port),
            None => SocketAddr::V6(std::net::SocketAddrV6::new(self.ip, self.port, 0, self.scope)),
        }
    }

    /// Whether two names lead to the same place, whoever listens there.
    pub fn is_beside(&self, other: &Name) -> bool {
        (self.ip, self.port, self.scope) == (other.ip, other.port, other.scope)
    }

    /// Whether this name means whom `other` names in full.
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
            return wrong(&format!("it has {} bytes, and each has {NAME_LEN}", bytes.len()));
        };
        if b[..3] != MAGIC {
            return wrong("it does not begin as one");
        }
        if b[3] != VERSION {
            return wrong(&format!("it is of version {}, and this library knows {VERSION}", b[3]));
        }
        if b[6..8] != [0; 2] || b[44..] != [0; 4] {
            return wrong("bytes that must be 0 are not");
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

    fn check(self) -> Result<Name> {
        let ip = self.socket().ip();
        if self.port == 0 {
            return Err(Error::invalid("addr: port 0, where nobody listens"));
        }
        if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return Err(Error::invalid(format!("addr: {ip} is not the address of one host")));
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

    /// `rdm://192.0.2.1:7000`, perhaps with nonce and host behind it.
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

/// A place of the vector.
struct Place {
    name: Option<Name>,
    /// Counts who had the index, so that nothing meant for one of them reaches the next.
    generation: u32,
}

#[derive(Default)]
struct Inner {
    places: Vec<Place>,
    /// Indexes of those removed, the last first.
    free: Vec<u32>,
    index: Index,
}

/// Numbers peers: the same numbers in every process that inserts and removes the same names in the same order.
#[derive(Default)]
pub struct Av {
    inner: RwLock<Inner>,
    changes: AtomicU64,
}

impl Av {
    /// Its index: that of the name removed last, or the next one.
    pub fn insert(&self, name: Name) -> Result<u64> {
        let name = name.check()?;
        let mut av = self.inner.write();
        let Inner { places, free, index } = &mut *av;
        let at = match free.pop() {
            Some(at) => at,
            None => {
                let at = u32::try_from(places.len()).ok().filter(|at| *at < Index::GONE);
                let at = at.ok_or_else(|| Error::new(errno::ENOSPC, "av: it is full"))?;
                places.push(Place { name: None, generation: 0 });
                at
            }
        };
        if let Some(place) = places.get_mut(at as usize) {
            place.name = Some(name);
            index.insert(&name, at, |at| places.get(at as usize)?.name);
        }
        self.changes.fetch_add(1, Ordering::Release);
        Ok(u64::from(at))
    }

    pub fn remove(&self, peer: u64) -> Result<()> {
        let mut av = self.inner.write();
        let Inner { places, free, index } = &mut *av;
        let place = usize::try_from(peer).ok().and_then(|at| places.get_mut(at));
        let Some((place, name)) = place.and_then(|place| place.name.take().map(|name| (place, name))) else {
            return Err(Error::invalid(format!("fi_addr: {peer} names no peer of this address vector")));
        };
        place.generation = place.generation.wrapping_add(1);
        index.remove(&name, peer as u32);
        free.push(peer as u32);
        self.changes.fetch_add(1, Ordering::Release);
        Ok(())
    }

    pub fn lookup(&self, peer: u64) -> Result<Name> {
        self.get(peer).map(|(name, _)| name)
    }

    /// The name, and which one it is that has the index.
    pub fn get(&self, peer: u64) -> Result<(Name, u32)> {
        let av = self.inner.read();
        let place = usize::try_from(peer).ok().and_then(|at| av.places.get(at));
        match place.and_then(|place| place.name.map(|name| (name, place.generation))) {
            Some(found) => Ok(found),
            None => Err(Error::invalid(format!("fi_addr: {peer} names no peer of the address vector"))),
        }
    }

    /// The index of the endpoint that `name` names in full: a name of its own before a bare address, the first before others.
    pub fn find(&self, name: &Name) -> Option<u64> {
        let av = self.inner.read();
        let name_of = |at: u32| av.places.get(at as usize).and_then(|place| place.name);
        let found = av.index.candidates(name).filter_map(|at| Some((at, name_of(at)?)));
        found.filter(|(_, n)| n.means(name)).min_by_key(|(at, n)| (n.nonce == 0, *at)).map(|(at, _)| u64::from(at))
    }

    /// Changes when a name was inserted or removed.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub fn len(&self) -> usize {
        let av = self.inner.read();
        av.places.len() - av.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Finds indexes by the place of their names: open addressing, at most half full, 8 bytes a name.
#[derive(Default)]
struct Index {
    slots: Vec<u32>,
    /// Slots that are not empty.
    taken: usize,
    hasher: RandomState,
}

impl Index {
    const GONE: u32 = u32::MAX - 1;
    const EMPTY: u32 = u32::MAX;

    fn hash(&self, name: &Name) -> usize {
        self.hasher.hash_one((name.ip, name.port, name.scope)) as usize
    }

    /// Indexes whose names may lead to the place of `name`.
    fn candidates(&self, name: &Name) -> impl Iterator<Item = u32> {
        let mask = self.slots.len().wrapping_sub(1);
        let start = self.hash(name);
        let slots = (0..self.slots.len()).filter_map(move |i| self.slots.get(start.wrapping_add(i) & mask));
        slots.copied().take_while(|at| *at != Index::EMPTY).filter(|at| *at != Index::GONE)
    }

    fn put(&mut self, name: &Name, at: u32) {
        let (start, mask) = (self.hash(name), self.slots.len().wrapping_sub(1));
        for i in 0..self.slots.len() {
            if let Some(slot) = self.slots.get_mut(start.wrapping_add(i) & mask)
                && *slot == Index::EMPTY
            {
                *slot = at;
                self.taken += 1;
                return;
            }
        }
    }

    fn insert(&mut self, name: &Name, at: u32, name_of: impl Fn(u32) -> Option<Name>) {
        if 2 * (self.taken + 1) > self.slots.len() {
            let kept: Vec<u32> = self.slots.iter().copied().filter(|at| *at < Index::GONE).collect();
            self.slots = vec![Index::EMPTY; (2 * (kept.len() + 1)).next_power_of_two().max(16)];
            self.taken = 0;
            for at in kept {
                if let Some(name) = name_of(at) {
                    self.put(&name, at);
                }
            }
        }
        self.put(name, at);
    }

    fn remove(&mut self, name: &Name, at: u32) {
        let (start, mask) = (self.hash(name), self.slots.len().wrapping_sub(1));
        for i in 0..self.slots.len() {
            match self.slots.get_mut(start.wrapping_add(i) & mask) {
                Some(slot) if *slot == at => return *slot = Index::GONE,
                Some(slot) if *slot == Index::EMPTY => return,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

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
    fn what_is_no_name_is_refused_in_words() {
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
            "rdm://1.2.3.4:5/",
            "rdm://1.2.3.4:5/0123456789abcdef",
            "rdm://1.2.3.4:5/0123456789abcdef/fedcba987654321",
            "rdm://1.2.3.4:5/+123456789abcdef/fedcba9876543210",
            "rdm://1.2.3.4:5/0123456789abcdef/fedcba9876543210/0",
        ] {
            assert!(text.parse::<Name>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_bare_address_means_whoever_listens_there() {
        let av = Av::default();
        let full = name(FULL);
        let other = Name { nonce: 1, ..full };
        let bare = Name::at(full.socket());
        assert_eq!(av.insert(other).unwrap(), 0);
        assert_eq!(av.find(&full), None);
        assert_eq!(av.insert(bare).unwrap(), 1);
        assert_eq!((av.find(&full), av.find(&other)), (Some(1), Some(0)));
        assert_eq!(av.insert(full).unwrap(), 2);
        assert_eq!(av.find(&full), Some(2));
        av.remove(2).unwrap();
        assert_eq!(av.find(&full), Some(1));
        assert!(av.get(2).is_err() && av.remove(2).is_err() && av.get(UNSPEC).is_err());
    }

    #[test]
    fn indexes_are_dense_and_reused_with_a_new_generation() {
        let (one, other) = (Av::default(), Av::default());
        let mut model: BTreeMap<u64, Name> = BTreeMap::new();
        let mut random = 7u64;
        for step in 0..20_000u32 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = random >> 33;
            if model.len() < 300 && at % 5 < 3 {
                let nonce = at % 3;
                let name = Name { nonce, ..Name::at(SocketAddr::from(([10, 0, (at >> 8) as u8 & 3, at as u8 | 1], 7000))) };
                let index = one.insert(name).unwrap();
                assert_eq!(other.insert(name).unwrap(), index);
                assert!(model.insert(index, name).is_none() && index < 300);
            } else if let Some(index) = model.keys().nth(at as usize % model.len().max(1)).copied() {
                let (name, generation) = one.get(index).unwrap();
                assert_eq!(Some(name), model.remove(&index));
                one.remove(index).unwrap();
                other.remove(index).unwrap();
                if step % 7 == 0 {
                    assert_eq!(one.insert(name).unwrap(), index);
                    assert_eq!(one.get(index).unwrap(), (name, generation + 1));
                    one.remove(index).unwrap();
                }
                let best = model.iter().filter(|(_, n)| n.means(&name)).min_by_key(|(at, n)| (n.nonce == 0, **at));
                assert_eq!(one.find(&name), best.map(|(at, _)| *at));
            }
        }
        assert_eq!(one.len(), model.len());
    }

    #[test]
    fn a_name_costs_at_most_64_bytes() {
        assert!(size_of::<Place>() + 8 <= 64, "{}", size_of::<Place>());
    }
}
