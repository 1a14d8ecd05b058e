// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The handshake over sockets that never block: what the dialer's side (`dial`) and the listener's (`pending`) have in common.
//! Each is driven by calling `advance` when its socket has something, and reads not a byte more than the handshake has:
//! what follows belongs to the connection.

use super::auth::{Side, Transcript};
use super::hello::{Head, NONCE_LEN, PROOF_LEN, Status};
use crate::error::{Code, Error, Result, errno};
use crate::prov::info::Secret;
use crate::sys::{process, tcp};
use std::os::fd::BorrowedFd;

pub(super) fn nonsense(words: &'static str) -> Error {
    Error::coded(errno::EPROTO, Code::PeerBroke, words)
}

pub(super) fn nonce() -> Result<[u8; NONCE_LEN]> {
    let mut nonce = [0; NONCE_LEN];
    process::random(&mut nonce)?;
    Ok(nonce)
}

/// Bytes that are awaited, and how many have come. Nothing behind them is read.
pub(super) struct Inbox {
    pub(super) bytes: Vec<u8>,
    pub(super) have: usize,
}

impl Inbox {
    pub(super) fn of(len: usize) -> Inbox {
        Inbox { bytes: vec![0; len], have: 0 }
    }

    /// Takes what has come. True: all of it.
    pub(super) fn fill(&mut self, fd: BorrowedFd<'_>) -> Result<bool> {
        while self.have < self.bytes.len() {
            match tcp::recv(fd, &mut self.bytes[self.have..])? {
                Some(n) => self.have += n,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    pub(super) fn array<const N: usize>(&self) -> Result<[u8; N]> {
        self.bytes.as_slice().try_into().map_err(|_| Error::fixed(errno::EIO, "the handshake lost count of its bytes"))
    }
}

/// A head and body of this side, proven if there is a key.
pub(super) fn say(transcript: &Transcript, key: Option<&Secret>, side: Side, status: Status, token: u64, body: &[u8]) -> Result<Vec<u8>> {
    let mut head = Head { body: body.len(), status, token, proof: [0; PROOF_LEN] };
    if let Some(key) = key {
        head.proof = transcript.proof(key, side, &head.proven(), body)?;
    }
    Ok([&head.encode(), body].concat())
}
