// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Private data that two endpoints exchange in the connection request of a lane and in its answer: introductions of
//! connectionless endpoints, refusals, and the grant of connected endpoints with tags.

use super::protocol_error;
use crate::error::{Code, Error, Result, errno};
use crate::prov::av::Name;

const MAGIC: [u8; 4] = *b"gRDM";
pub const VERSION: u8 = 1;
/// Kinds of private data after `MAGIC` and `VERSION`.
const REFUSAL: u8 = 2;
const TAGS: u8 = 3;

/// Introduction of a connectionless endpoint: its name, and the endpoint that it wants to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intro {
    pub name: Name,
    /// The nonce of the wanted endpoint, as far as the caller knows the nonce; 0 if any endpoint at the address will do.
    pub expected_nonce: u64,
    /// The first grant of the endpoint that introduces itself, in bytes.
    pub grant: u64,
}

/// Length of an introduction, in bytes. The connection manager of every provider carries this much private data.
const INTRO_LEN: usize = 48;
/// First byte of an introduction. The byte stands for the kind and the version.
const INTRO: u8 = 0xd2;

/// Reasons for refusing a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Both sides called each other, and the other call counts. Also the answer to a caller to whom a lane already leads
    /// or is being connected.
    Crossed = 1,
    /// The caller wants an earlier endpoint at this address.
    Stale = 2,
    Closing = 3,
    /// This side has no room for more callers that the address vector does not name.
    Full = 4,
    /// The caller did not name the wanted endpoint in full, which the option `GDRFAB_OPT_WHOLE_NAME` requires.
    Unnamed = 5,
}

fn head(kind: u8) -> [u8; 8] {
    let [a, b, c, d] = MAGIC;
    [a, b, c, d, VERSION, kind, 0, 0]
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl Intro {
    pub fn encode(&self) -> Vec<u8> {
        // The grant is sent as an exponent of two, rounded down.
        let grant = self.grant.checked_ilog2().unwrap_or(0) as u8;
        [&[INTRO, grant][..], &self.name.pack(), &self.expected_nonce.to_le_bytes()].concat()
    }

    pub fn decode(bytes: &[u8]) -> Result<Intro> {
        let wrong = || protocol_error("the peer introduced itself as no connectionless endpoint of this version does");
        let Some((&[INTRO, grant @ ..64], rest)) = bytes.split_first_chunk::<2>().filter(|_| bytes.len() == INTRO_LEN) else {
            return Err(wrong());
        };
        let name = Name::unpack(&rest[..38]).map_err(|e| e.context("the peer's name"))?;
        if name.nonce == 0 {
            return Err(protocol_error("the peer's name has no nonce"));
        }
        Ok(Intro { name, expected_nonce: word_at(bytes, 40), grant: 1 << grant })
    }
}

impl Refusal {
    pub fn encode(self) -> Vec<u8> {
        [&head(REFUSAL)[..], &[self as u8]].concat()
    }

    pub fn decode(bytes: &[u8]) -> Option<Refusal> {
        match bytes.strip_prefix(&head(REFUSAL))? {
            [1] => Some(Refusal::Crossed),
            [2] => Some(Refusal::Stale),
            [3] => Some(Refusal::Closing),
            [4] => Some(Refusal::Full),
            [5] => Some(Refusal::Unnamed),
            _ => None,
        }
    }
}

/// Encodes the private data of a connected endpoint with tags: a head, this side's first grant, then the program's data.
pub fn encode_matched(grant: u64, data: &[u8]) -> Vec<u8> {
    [&head(TAGS)[..], &grant.to_le_bytes(), data].concat()
}

/// Bytes in front of the program's private data.
pub const MATCHED_LEN: usize = 16;

/// The other side's grant, and its program's private data.
pub fn decode_matched(bytes: &[u8]) -> Result<(u64, &[u8])> {
    let words = "the other end does not match messages: it was opened without GDRFAB_TAGGED, or with another version";
    match bytes.strip_prefix(&head(TAGS)).and_then(|rest| Some((word_at(bytes, 8), rest.get(8..)?))) {
        Some(found) => Ok(found),
        None => Err(Error::coded(errno::EPROTO, Code::PeerBroke, words)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_stand_in_front_of_private_data() {
        let bytes = encode_matched(7, b"data");
        assert_eq!((decode_matched(&bytes).unwrap(), bytes.len()), ((7, &b"data"[..]), MATCHED_LEN + 4));
        assert!((0..MATCHED_LEN).all(|n| decode_matched(&bytes[..n]).is_err()));
        assert!((0..8).all(|at| decode_matched(&[&bytes[..at], &[99], &bytes[at + 1..]].concat()).is_err()));
    }

    #[test]
    fn introductions_survive_and_lies_do_not() {
        let name: Name = "rdm://192.0.2.1:7000/0123456789abcdef/fedcba9876543210".parse().unwrap();
        let intro = Intro { name, expected_nonce: 5, grant: 64 };
        let bytes = intro.encode();
        assert_eq!(Intro::decode(&bytes).unwrap(), intro);
        for n in 0..bytes.len() {
            assert!(Intro::decode(&bytes[..n]).is_err());
        }
        assert!(Intro::decode(&Intro { name: Name::at(name.socket()), ..intro }.encode()).is_err());
        for why in [Refusal::Crossed, Refusal::Stale, Refusal::Closing, Refusal::Full, Refusal::Unnamed] {
            assert_eq!(Refusal::decode(&why.encode()), Some(why));
        }
        assert_eq!(Refusal::decode(&bytes), None);
        assert_eq!(Refusal::decode(b""), None);
    }
}
