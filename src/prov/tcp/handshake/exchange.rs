// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The handshake over sockets that never block: what the dialer's side (`dial`) and the listener's (`pending`) have in common.
//! Each is driven by calling `advance` when its socket has something, and reads not a byte more than the handshake has:
//! what follows belongs to the connection.

use crate::error::{Code, Error, Result, errno};
use crate::prov::tcp::secure::auth::Key;
use crate::prov::tcp::secure::noise::Noise;
use crate::prov::tcp::secure::seal::Seal;
use crate::prov::tcp::wire::hello::{EPHEMERAL, HEAD_LEN, HEAD_WORDS, Head, NONCE_LEN, Status};
use crate::sys::usercopy::GatherBuffer;
use crate::sys::{process, tcp};
use std::os::fd::{BorrowedFd, OwnedFd};

pub fn handshake_error(words: &'static str) -> Error {
    Error::coded(errno::EPROTO, Code::PeerBroke, words)
}

pub fn nonce() -> Result<[u8; NONCE_LEN]> {
    let mut nonce = [0; NONCE_LEN];
    process::random(&mut nonce)?;
    Ok(nonce)
}

/// Bytes that are awaited, and how many have come. Nothing behind them is read.
pub struct Inbox {
    pub bytes: Vec<u8>,
    pub have: usize,
}

impl Inbox {
    pub fn of(len: usize) -> Inbox {
        Inbox { bytes: vec![0; len], have: 0 }
    }

    /// Takes what has come. True: all of it.
    pub fn fill(&mut self, fd: BorrowedFd<'_>) -> Result<bool> {
        while self.have < self.bytes.len() {
            match tcp::recv(fd, &mut self.bytes[self.have..])? {
                Some(n) => self.have += n,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    pub fn array<const N: usize>(&self) -> Result<[u8; N]> {
        self.bytes.as_slice().try_into().map_err(|_| Error::fixed(errno::EIO, "the handshake lost count of its bytes"))
    }
}

/// A connection whose handshake is over.
pub struct Link {
    pub socket: OwnedFd,
    /// Of the format, that both speak.
    pub version: u16,
    /// Of a connection that is sealed.
    pub seal: Option<Box<Seal>>,
    /// For this peer alone: what further connections with it begin with.
    pub key: Option<Key>,
    /// A buffer for what it sends, if that was asked for before.
    pub room: Option<GatherBuffer>,
}

impl Link {
    pub fn new(socket: OwnedFd, version: u16, noise: Option<Box<Noise>>, key: Option<Key>) -> Result<Link> {
        let noise = noise.filter(|_| key.as_ref().is_some_and(|key| key.seal));
        Ok(Link { socket, version, seal: noise.map(|noise| noise.split()).transpose()?.map(Box::new), key, room: None })
    }
}

/// A head and body of this side, under its key if there is one.
pub fn write_message(noise: Option<&mut Noise>, status: Status, token: u64, body: &[u8]) -> Result<Vec<u8>> {
    let plain = |len, status, token| Head { body: len, status, token, ephemeral: [0; EPHEMERAL] };
    let Some(noise) = noise else { return Ok([&plain(body.len(), status, token).encode(), body].concat()) };
    let message = noise.write(&[&plain(0, status, token).words(), body].concat())?;
    let Some((ephemeral, sealed)) = message.split_first_chunk::<EPHEMERAL>() else {
        return Err(handshake_error("a handshake without a key"));
    };
    Ok([&Head { ephemeral: *ephemeral, ..plain(sealed.len(), Status::Good, 0) }.encode(), sealed].concat())
}

/// What a head and body of the peer say: status, token, body. `None`: it has another key, or has seen something else.
pub fn read_message(noise: Option<&mut Noise>, head: &Head, body: &[u8]) -> Result<Option<(Status, u64, Vec<u8>)>> {
    let Some(noise) = noise else { return Ok(Some((head.status, head.token, body.to_vec()))) };
    let Ok(said) = noise.read(&[&head.ephemeral, body].concat()) else { return Ok(None) };
    let Some((words, terms)) = said.split_first_chunk::<HEAD_WORDS>() else { return Err(handshake_error("the handshake says too little")) };
    let mut bytes = [0; HEAD_LEN];
    bytes[..HEAD_WORDS].copy_from_slice(words);
    let inner = Head::decode(&bytes)?;
    Ok(Some((inner.status, inner.token, terms.to_vec())))
}
