// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The parts of the handshake that dialer (`dial`) and listener (`pending`) share: reading and writing messages on sockets that
//! never block, and `Link`, the result. Neither side reads a byte beyond the handshake: the next byte belongs to the connection.

use crate::error::{Code, Error, Result, errno};
use crate::prov::tcp::secure::auth::Key;
use crate::prov::tcp::secure::noise::Noise;
use crate::prov::tcp::secure::seal::Seal;
use crate::prov::tcp::wire::hello::{EPHEMERAL, HEAD_LEN, HEAD_WORDS, Head, NONCE_LEN, Status};
use crate::sys::usercopy::GatherBuffer;
use crate::sys::{process, tcp};
use std::os::fd::{BorrowedFd, OwnedFd};

/// The error for a peer that violates the handshake.
pub fn handshake_error(words: &'static str) -> Error {
    Error::coded(errno::EPROTO, Code::PeerBroke, words)
}

pub fn nonce() -> Result<[u8; NONCE_LEN]> {
    let mut nonce = [0; NONCE_LEN];
    process::random(&mut nonce)?;
    Ok(nonce)
}

/// Receives one message: exactly as many bytes as are expected, and none of those behind them.
pub struct Inbox {
    pub bytes: Vec<u8>,
    pub have: usize,
}

impl Inbox {
    pub fn of(len: usize) -> Inbox {
        Inbox { bytes: vec![0; len], have: 0 }
    }

    /// Reads bytes that have arrived; true: all expected bytes are here.
    pub fn fill(&mut self, fd: BorrowedFd<'_>) -> Result<bool> {
        while self.have < self.bytes.len() {
            match tcp::recv(fd, &mut self.bytes[self.have..])? {
                Some(n) => self.have += n,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The received bytes as an array.
    pub fn array<const N: usize>(&self) -> Result<[u8; N]> {
        self.bytes.as_slice().try_into().map_err(|_| Error::fixed(errno::EIO, "internal error: a handshake message has a wrong length"))
    }
}

/// A connection whose handshake has succeeded.
pub struct Link {
    pub socket: OwnedFd,
    /// The version of the format that both sides speak.
    pub version: u16,
    /// The ciphers, if the connection is sealed.
    pub seal: Option<Box<Seal>>,
    /// The key that applies to this peer. Further connections to the peer use this key.
    pub key: Option<Key>,
    /// The buffer for sealed records to send, if it was allocated before ANSWER.
    pub room: Option<GatherBuffer>,
}

impl Link {
    /// The link of a handshake that has succeeded. If `key` demands sealing, the ciphers come from `noise`.
    pub fn new(socket: OwnedFd, version: u16, noise: Option<Box<Noise>>, key: Option<Key>) -> Result<Link> {
        let noise = noise.filter(|_| key.as_ref().is_some_and(|key| key.seal));
        Ok(Link { socket, version, seal: noise.map(|noise| noise.split()).transpose()?.map(Box::new), key, room: None })
    }
}

/// Encodes an INTRO or ANSWER (head and body), encrypted if there is a key.
pub fn write_message(noise: Option<&mut Noise>, status: Status, token: u64, body: &[u8]) -> Result<Vec<u8>> {
    let plain = |len, status, token| Head { body: len, status, token, ephemeral: [0; EPHEMERAL] };
    let Some(noise) = noise else { return Ok([&plain(body.len(), status, token).encode(), body].concat()) };
    let message = noise.write(&[&plain(0, status, token).words(), body].concat())?;
    let Some((ephemeral, sealed)) = message.split_first_chunk::<EPHEMERAL>() else {
        return Err(handshake_error("internal error: a handshake message lacks its ephemeral key"));
    };
    Ok([&Head { ephemeral: *ephemeral, ..plain(sealed.len(), Status::Good, 0) }.encode(), sealed].concat())
}

/// Decodes an INTRO or ANSWER: (status, token, body). `None`: the message does not decrypt, because the peer has
/// another key or has seen another transcript.
pub fn read_message(noise: Option<&mut Noise>, head: &Head, body: &[u8]) -> Result<Option<(Status, u64, Vec<u8>)>> {
    let Some(noise) = noise else { return Ok(Some((head.status, head.token, body.to_vec()))) };
    let Ok(said) = noise.read(&[&head.ephemeral, body].concat()) else { return Ok(None) };
    let Some((words, terms)) = said.split_first_chunk::<HEAD_WORDS>() else {
        return Err(handshake_error("a handshake message is too short"));
    };
    let mut bytes = [0; HEAD_LEN];
    bytes[..HEAD_WORDS].copy_from_slice(words);
    let inner = Head::decode(&bytes)?;
    Ok(Some((inner.status, inner.token, terms.to_vec())))
}
