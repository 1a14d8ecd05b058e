// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The messages of the handshake as bytes; `docs/tcp-wire.md` has their layout. Decoding checks everything that does not depend on
//! the connection attempt's state.

use super::segment::RAILS_MAX;
use crate::error::{Code, Error, Result, errno};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The lowest version of the format that this library speaks.
pub const LOWEST: u16 = 1;
/// The highest version of the format that this library speaks.
pub const HIGHEST: u16 = 7;
/// The first version with several streams.
pub const STREAMS_SINCE: u16 = 2;
/// The first version with the Noise handshake, and therefore with keys.
pub const NOISE_SINCE: u16 = 3;
/// The first version with atomic operations.
pub const ATOMICS_SINCE: u16 = 3;
/// The first version with lists.
pub const LISTS_SINCE: u16 = 4;
/// The first version with rails.
pub const RAILS_SINCE: u16 = 5;
/// The first version in which hosts have keys of their own.
pub const STATIC_SINCE: u16 = 6;
/// The first version in which a side can ask for further streams after the handshake (`Terms::later`).
pub const LATER_SINCE: u16 = 7;
/// Most further streams of a connection.
pub const STREAMS_MAX: u32 = 16;
/// Bytes of HELLO and of CHALLENGE.
pub const HELLO_LEN: usize = 64;
/// Bytes of the head of INTRO and of ANSWER, which stands before the body.
pub const HEAD_LEN: usize = 48;
/// Bytes of the head in front of the ephemeral key.
pub const HEAD_WORDS: usize = 16;
/// Most bytes of a body.
pub const BODY_MAX: usize = 1024;
/// Most bytes of an address in a body.
pub const ADDRESS_MAX: usize = 255;
/// Most bytes of private data in connect, accept and reject.
pub const DATA_MAX: usize = 256;
pub const NONCE_LEN: usize = 32;
/// Bytes of an ephemeral key, with which each message of a Noise handshake begins.
pub const EPHEMERAL: usize = 32;
pub const ID_LEN: usize = 16;
/// The id of a public key: the first half of its SHA-256.
pub type Id = [u8; ID_LEN];

const MAGIC: [u8; 8] = *b"GDRFABt\0";
/// Flag of HELLO and CHALLENGE: the sender has a key, and demands one of its peer.
const KEYED: u8 = 1;
/// Flag of HELLO and CHALLENGE: the sender seals the connection, and demands the same of its peer.
const SEALED: u8 = 2;
/// Flag. HELLO: the dialer's CPU is fast at AES. CHALLENGE: the CPUs of both sides are fast, so the cipher is AES.
const AES: u8 = 4;
/// Flag of HELLO and CHALLENGE: the sender's key is its host's own key pair, and the sender demands the same of its peer.
const STATIC: u8 = 8;

fn handshake_error(words: &'static str) -> Error {
    Error::coded(errno::EPROTO, Code::PeerBroke, words)
}

/// The object that a dialer wants to reach, as HELLO names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// A passive endpoint.
    Passive = 0,
    /// An endpoint whose address was exchanged.
    Endpoint = 1,
    /// An existing connection, of which the dialed connection becomes a further stream.
    Stream = 2,
    /// An existing connection, of which the dialed connection becomes a rail.
    Rail = 3,
}

/// The reason for which a side ends a handshake, or `Good`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    Good = 0,
    /// The listener's program rejected the request.
    Rejected = 1,
    /// The two sides have no version in common, or none that knows their kind of key.
    Version = 2,
    /// One side has a key, and the other has none.
    KeyNeeded = 3,
    /// The listener does not know the caller's key, or the caller has another shared key.
    KeyWrong = 4,
    /// The listener serves another purpose, or its token is another one.
    WrongDoor = 5,
    /// The listener has too many attempts or unanswered requests, or lacks a descriptor.
    Busy = 6,
    /// One side seals the connection, and the other does not.
    SealNeeded = 7,
    /// One side has a shared key, and the other its host's own key pair.
    KeyKind = 8,
}

impl Status {
    const ALL: [Status; 9] = [
        Status::Good,
        Status::Rejected,
        Status::Version,
        Status::KeyNeeded,
        Status::KeyWrong,
        Status::WrongDoor,
        Status::Busy,
        Status::SealNeeded,
        Status::KeyKind,
    ];

    fn decode(raw: u16) -> Result<Status> {
        Status::ALL.get(usize::from(raw)).copied().ok_or_else(|| handshake_error("the handshake has an unknown status"))
    }
}

/// The fields of HELLO, and of CHALLENGE, which is the listener's answer to HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The lowest version that the sender speaks. In a CHALLENGE with status `Good`, `lowest` and `highest` are the
    /// version that the listener chose.
    pub lowest: u16,
    /// The highest version that the sender speaks.
    pub highest: u16,
    pub keyed: bool,
    pub sealed: bool,
    pub aes: bool,
    /// A `Purpose`, or a number that this version of the format does not know.
    pub purpose: u8,
    pub status: Status,
    pub nonce: [u8; NONCE_LEN],
    /// The id of the sender's public key, if the sender's host has a key pair of its own.
    pub id: Option<Id>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Hello {
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let mut out = [0; HELLO_LEN];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&self.lowest.to_le_bytes());
        out[10..12].copy_from_slice(&self.highest.to_le_bytes());
        let flags = [(self.keyed, KEYED), (self.sealed, SEALED), (self.aes, AES), (self.id.is_some(), STATIC)];
        out[12] = flags.iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum();
        out[13] = self.purpose;
        out[14..16].copy_from_slice(&(self.status as u16).to_le_bytes());
        out[16..48].copy_from_slice(&self.nonce);
        out[48..].copy_from_slice(&self.id.unwrap_or_default());
        out
    }

    /// Decodes and checks the message. Without a common version only the version fields are checked, because other
    /// versions may use bytes that must be zero in ours.
    pub fn decode(bytes: &[u8; HELLO_LEN]) -> Result<Hello> {
        if bytes[..8] != MAGIC {
            return Err(handshake_error("the peer does not speak the protocol of gdrfab's tcp provider"));
        }
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&bytes[16..48]);
        let mut id = [0; ID_LEN];
        id.copy_from_slice(&bytes[48..]);
        let mut hello = Hello {
            lowest: u16_at(bytes, 8),
            highest: u16_at(bytes, 10),
            keyed: bytes[12] & KEYED != 0,
            sealed: bytes[12] & SEALED != 0,
            aes: bytes[12] & AES != 0,
            purpose: bytes[13],
            status: Status::Version,
            nonce,
            id: (bytes[12] & STATIC != 0).then_some(id),
        };
        if hello.lowest > hello.highest {
            return Err(handshake_error("the handshake has an invalid range of versions"));
        }
        if !hello.speaks_ours() {
            return Ok(hello);
        }
        hello.status = Status::decode(u16_at(bytes, 14))?;
        let flags = match hello.keyed {
            true if hello.highest >= STATIC_SINCE => KEYED | SEALED | AES | STATIC,
            true => KEYED | SEALED | AES,
            false => 0,
        };
        if bytes[12] & !flags != 0 || (hello.id.is_none() && id != [0; ID_LEN]) {
            return Err(handshake_error("the handshake has unknown flags, or reserved bytes that are not zero"));
        }
        Ok(hello)
    }

    /// True if the two sides have a common version.
    pub fn speaks_ours(&self) -> bool {
        self.lowest <= HIGHEST && self.highest >= LOWEST
    }

    /// The highest common version. Has no meaning unless `speaks_ours`.
    pub fn common(&self) -> u16 {
        self.highest.min(HIGHEST)
    }
}

/// The head of INTRO and ANSWER, which stands in front of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes of the body; at most `BODY_MAX`.
    pub body: usize,
    pub status: Status,
    /// INTRO: the token of the dialed object; 0 for a passive endpoint. ANSWER: 0.
    pub token: u64,
    /// The ephemeral key of a side that has a key; else zeros.
    pub ephemeral: [u8; EPHEMERAL],
}

impl Head {
    pub fn encode(&self) -> [u8; HEAD_LEN] {
        let mut out = [0; HEAD_LEN];
        out[..HEAD_WORDS].copy_from_slice(&self.words());
        out[16..48].copy_from_slice(&self.ephemeral);
        out
    }

    /// The bytes in front of the ephemeral key. With a key, status and token are 0 here: the encrypted payload begins
    /// with 16 such bytes of its own, which have them.
    pub fn words(&self) -> [u8; HEAD_WORDS] {
        let mut out = [0; HEAD_WORDS];
        out[..4].copy_from_slice(&(self.body as u32).to_le_bytes());
        out[4..6].copy_from_slice(&(self.status as u16).to_le_bytes());
        out[8..16].copy_from_slice(&self.token.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8; HEAD_LEN]) -> Result<Head> {
        let body = u32_at(bytes, 0) as usize;
        if body > BODY_MAX {
            return Err(handshake_error("the handshake has a body that is too long"));
        }
        if bytes[6..8] != [0, 0] {
            return Err(handshake_error("the handshake has reserved bytes that are not zero"));
        }
        let mut token = [0; 8];
        token.copy_from_slice(&bytes[8..16]);
        let mut ephemeral = [0; EPHEMERAL];
        ephemeral.copy_from_slice(&bytes[16..48]);
        Ok(Head { body, status: Status::decode(u16_at(bytes, 4))?, token: u64::from_le_bytes(token), ephemeral })
    }
}

/// The body of INTRO and ANSWER.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Most messages of the other side that may wait here for their receives.
    pub window: u32,
    /// Most bytes of these messages.
    pub budget: u32,
    /// The address of the sender's endpoint, or empty if nobody has asked for this address.
    pub address: String,
    /// The private data of the program.
    pub data: Vec<u8>,
    /// Number of further streams: wanted (INTRO) or agreed on (ANSWER).
    pub streams: u32,
    /// The streams are dialed only after one side has found that further streams would help.
    pub later: bool,
    /// In ANSWER: the port that streams dial, and the token that they name.
    pub door: (u16, u64),
    /// Addresses for rails. INTRO: the dialer's, without ports. ANSWER: the listener's, with the ports to dial; the
    /// address of rail 0 is the first.
    pub rails: Vec<SocketAddr>,
    /// The token that rails name.
    pub rail_token: u64,
}

impl Terms {
    pub fn encode(&self) -> Result<Vec<u8>> {
        if self.address.len() > ADDRESS_MAX {
            return Err(Error::invalid(format!("addr: longer than {ADDRESS_MAX} bytes")));
        }
        if self.data.len() > DATA_MAX {
            return Err(Error::invalid(format!("datalen: {}, must be at most {DATA_MAX} bytes of private data", self.data.len())));
        }
        let mut out = Vec::with_capacity(16 + self.address.len() + self.data.len());
        out.extend_from_slice(&self.window.to_le_bytes());
        out.extend_from_slice(&self.budget.to_le_bytes());
        // Bits 0 to 14: `streams`; bit 15: `later`; bits 16 to 31: the number of rails.
        out.extend_from_slice(&(self.streams | u32::from(self.later) << 15 | (self.rails.len() as u32) << 16).to_le_bytes());
        for bytes in [self.address.as_bytes(), &self.data] {
            out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
            out.extend_from_slice(bytes);
        }
        if self.streams > 0 && !self.later {
            out.extend_from_slice(&self.door.0.to_le_bytes());
            out.extend_from_slice(&self.door.1.to_le_bytes());
        }
        if !self.rails.is_empty() {
            out.extend_from_slice(&self.rail_token.to_le_bytes());
            for at in &self.rails {
                let ip = match at.ip() {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                out.extend_from_slice(&ip.octets());
                out.extend_from_slice(&at.port().to_le_bytes());
            }
        }
        Ok(out)
    }

    pub fn decode(body: &[u8]) -> Result<Terms> {
        if body.len() < 12 || body.len() > BODY_MAX {
            return Err(handshake_error("the handshake has a body of an invalid length"));
        }
        let (streams, later, rails) = (u32_at(body, 8) & 0x7fff, body[9] >> 7 != 0, (u32_at(body, 8) >> 16) as usize);
        if streams > STREAMS_MAX || (later && streams == 0) || rails > RAILS_MAX {
            return Err(handshake_error("the handshake asks for more streams or rails than the protocol permits"));
        }
        let (address, rest) = counted(&body[12..], ADDRESS_MAX)?;
        let (data, rest) = counted(rest, DATA_MAX)?;
        let (door, rest) = match rest.split_first_chunk::<DOOR>() {
            Some(([p, q, token @ ..], rest)) if streams > 0 && !later => ((u16::from_le_bytes([*p, *q]), u64::from_le_bytes(*token)), rest),
            None if streams > 0 && !later => return Err(handshake_error("the handshake has a body that ends too early")),
            _ => ((0, 0), rest),
        };
        let (rail_token, rails, rest) = match rest.split_first_chunk::<8>() {
            _ if rails == 0 => (0, Vec::new(), rest),
            Some((token, places)) if places.len() >= rails * RAIL => {
                let (places, rest) = places.split_at(rails * RAIL);
                (u64::from_le_bytes(*token), places.chunks_exact(RAIL).filter_map(rail).collect(), rest)
            }
            _ => return Err(handshake_error("the handshake has a body that ends too early")),
        };
        if !rest.is_empty() {
            return Err(handshake_error("the handshake has unexpected bytes after its body"));
        }
        let address = std::str::from_utf8(address).map_err(|_| handshake_error("the handshake has an address that is not UTF-8 text"))?;
        let (window, budget) = (u32_at(body, 0), u32_at(body, 4));
        Ok(Terms { window, budget, address: address.to_string(), data: data.to_vec(), streams, later, door, rails, rail_token })
    }
}

/// Bytes of `Terms::door`.
const DOOR: usize = 10;
/// Bytes of one address in `Terms::rails`.
const RAIL: usize = 18;

/// Decodes a rail's address: IPv6, or IPv4 mapped to IPv6, and a port.
fn rail(bytes: &[u8]) -> Option<SocketAddr> {
    let (ip, port) = bytes.split_first_chunk::<16>()?;
    Some(SocketAddr::new(Ipv6Addr::from(*ip).to_canonical(), u16::from_le_bytes(*port.first_chunk()?)))
}

/// Splits off a field in front of which two bytes have its length. Returns the field and the bytes behind the field.
fn counted(bytes: &[u8], max: usize) -> Result<(&[u8], &[u8])> {
    let Some((len, rest)) = bytes.split_first_chunk::<2>() else {
        return Err(handshake_error("the handshake has a body that ends too early"));
    };
    let len = usize::from(u16::from_le_bytes(*len));
    if len > max {
        return Err(handshake_error("the handshake has an address or private data that is too long"));
    }
    rest.split_at_checked(len).ok_or_else(|| handshake_error("the handshake has a body that ends too early"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            lowest: 1,
            highest: 3,
            keyed: true,
            sealed: false,
            aes: false,
            purpose: 1,
            status: Status::Good,
            nonce: std::array::from_fn(|i| i as u8),
            id: None,
        }
    }

    fn head() -> Head {
        Head { body: BODY_MAX, status: Status::Busy, token: 0x0123_4567_89ab_cdef, ephemeral: [7; EPHEMERAL] }
    }

    fn terms(address: usize, data: usize) -> Terms {
        Terms { window: 1024, budget: 1 << 20, address: "a".repeat(address), data: vec![9; data], ..Terms::default() }
    }

    #[test]
    fn the_layout_is_the_documents() {
        let bytes = hello().encode();
        assert_eq!(&bytes[..8], b"GDRFABt\0");
        assert_eq!(bytes[8..16], [1, 0, 3, 0, 1, 1, 0, 0]);
        assert_eq!((bytes[16], bytes[47], bytes[48]), (0, 31, 0));
        let bytes = head().encode();
        assert_eq!(bytes[..8], [0, 4, 0, 0, 6, 0, 0, 0]);
        assert_eq!(bytes[8..16], 0x0123_4567_89ab_cdef_u64.to_le_bytes());
        assert_eq!(bytes[..16], head().words());
        let all = Hello { sealed: true, aes: true, ..hello() };
        assert_eq!((all.encode()[12], Hello::decode(&all.encode()).unwrap()), (7, all));
        assert!(Hello::decode(&Hello { keyed: false, ..all }.encode()).is_err());
        let own = Hello { highest: STATIC_SINCE, id: Some([8; ID_LEN]), ..all };
        assert_eq!((own.encode()[12], &own.encode()[48..], Hello::decode(&own.encode()).unwrap()), (15, &[8; ID_LEN][..], own));
        assert!(Hello::decode(&Hello { highest: STATIC_SINCE - 1, ..own }.encode()).is_err());
        let body = Terms { window: 1, budget: 2, address: "ab".into(), data: vec![5], ..Terms::default() }.encode().unwrap();
        assert_eq!(body, [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, b'a', b'b', 1, 0, 5]);
    }

    #[test]
    fn words_survive_the_round_trip() {
        assert_eq!(Hello::decode(&hello().encode()).unwrap(), hello());
        for status in Status::ALL {
            let head = Head { status, ..head() };
            assert_eq!(Head::decode(&head.encode()).unwrap(), head);
        }
        for (address, data) in [(0, 0), (1, 0), (0, 1), (ADDRESS_MAX, DATA_MAX)] {
            let terms = terms(address, data);
            assert_eq!(Terms::decode(&terms.encode().unwrap()).unwrap(), terms);
            let more = Terms { streams: STREAMS_MAX, door: (0xabcd, u64::MAX - 1), ..terms };
            let body = more.encode().unwrap();
            assert_eq!(Terms::decode(&body).unwrap(), more);
            assert!(Terms::decode(&body[..body.len() - 1]).is_err());
            let later = Terms { later: true, door: (0, 0), ..more.clone() };
            assert_eq!(Terms::decode(&later.encode().unwrap()).unwrap(), later);
            assert!(Terms::decode(&Terms { streams: 0, ..later }.encode().unwrap()).is_err());
            let at = ["192.0.2.1:7", "[2001:db8::1]:65535"].map(|at| at.parse().unwrap());
            let rails = Terms { rails: at.to_vec(), rail_token: 1 << 63, ..more.clone() };
            let body = rails.encode().unwrap();
            assert_eq!(Terms::decode(&body).unwrap(), rails);
            assert!((1..45).all(|n| Terms::decode(&body[..body.len() - n]).is_err()));
            assert!(Terms::decode(&Terms { rails: at.repeat(RAILS_MAX), ..rails }.encode().unwrap()).is_err());
            assert!(Terms::decode(&Terms { streams: STREAMS_MAX + 1, ..more }.encode().unwrap()).is_err());
        }
    }

    #[test]
    fn nothing_longer_than_its_bound_is_sent_or_taken() {
        assert!(terms(ADDRESS_MAX + 1, 0).encode().is_err() && terms(0, DATA_MAX + 1).encode().is_err());
        for len in [BODY_MAX as u32 + 1, 1 << 16, u32::MAX] {
            let mut bytes = head().encode();
            bytes[..4].copy_from_slice(&len.to_le_bytes());
            assert_eq!(Head::decode(&bytes).unwrap_err().errno, errno::EPROTO);
        }
        let good = terms(ADDRESS_MAX, DATA_MAX).encode().unwrap();
        for at in [12, 14 + ADDRESS_MAX] {
            for len in [0u16, 1, 254, 257, 258, 4096, u16::MAX] {
                let mut body = good.clone();
                body[at..at + 2].copy_from_slice(&len.to_le_bytes());
                assert!(Terms::decode(&body).is_err(), "{len} at {at}");
            }
        }
        for len in 0..good.len() {
            assert!(Terms::decode(&good[..len]).is_err(), "{len}");
        }
        let longer: Vec<u8> = good.iter().copied().chain([0]).collect();
        assert!(Terms::decode(&longer).is_err() && Terms::decode(&[0; BODY_MAX + 1]).is_err());
    }

    #[test]
    fn reserved_bytes_are_zero() {
        for at in 48..64 {
            let mut bytes = hello().encode();
            bytes[at] = 1;
            assert!(Hello::decode(&bytes).is_err(), "{at}");
        }
        for (at, value) in [(12, 2), (12, 9), (14, 9), (15, 1), (0, b'g'), (7, 1)] {
            let mut bytes = hello().encode();
            bytes[at] = value;
            assert!(Hello::decode(&bytes).is_err(), "{at}");
        }
        for (at, value) in [(4, 9), (5, 1), (6, 1), (7, 1)] {
            let mut bytes = head().encode();
            bytes[at] = value;
            assert!(Head::decode(&bytes).is_err(), "{at}");
        }
        let mut body = terms(3, 3).encode().unwrap();
        body[8] = 1;
        assert!(Terms::decode(&body).is_err());
        body[8] = 0;
        body[14] = 0xff;
        assert!(Terms::decode(&body).is_err(), "no UTF-8");
    }

    #[test]
    fn without_a_common_version_only_the_versions_are_read() {
        let mut bytes = Hello { lowest: HIGHEST + 1, highest: 9, ..hello() }.encode();
        bytes[12] = 0xff;
        bytes[60] = 1;
        let got = Hello::decode(&bytes).unwrap();
        assert!(!got.speaks_ours() && (got.lowest, got.highest) == (HIGHEST + 1, 9));
        let upside_down = Hello { lowest: 2, highest: 1, ..hello() }.encode();
        assert!(Hello::decode(&upside_down).is_err());
    }

    #[test]
    fn garbage_never_panics() {
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        let mut byte = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        };
        for _ in 0..20_000 {
            let mut bytes = [0; HELLO_LEN];
            bytes.fill_with(&mut byte);
            let _ = Hello::decode(&bytes);
            bytes[..8].copy_from_slice(&MAGIC);
            let _ = Hello::decode(&bytes);
            let mut head = [0; HEAD_LEN];
            head.copy_from_slice(&bytes[16..]);
            let _ = Head::decode(&head);
            let body: Vec<u8> = (0..byte()).map(|i| if (8..14).contains(&i) { 0 } else { byte() }).collect();
            let _ = Terms::decode(&body);
        }
    }
}
