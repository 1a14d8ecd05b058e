// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Posting of operations that are repeated, through any of the endpoints.

use crate::io::Link;
use gdrfab::error::Result;
use gdrfab::prov::flags;
use gdrfab::prov::op::{Common, Dir, Iov, RmaIov};

/// A local and a remote range that repeated operations use.
#[derive(Clone, Copy)]
pub struct Op {
    pub dir: Dir,
    pub local: Iov,
    pub remote: RmaIov,
    /// Flags besides the one that asks for a completion.
    flags: u64,
    /// The bytes travel with the request.
    inject: bool,
}

impl Op {
    /// The operation completes at the level of `flag`.
    pub fn complete(self, flag: u64) -> Op {
        Op { flags: flag, ..self }
    }
}

/// The endpoint and the flags of one operation of a window.
#[derive(Clone, Copy)]
pub struct Turn {
    pub lane: usize,
    pub signal: bool,
    /// Another operation of the same list follows.
    pub more: bool,
}

/// An operation outside any list.
pub const ALONE: Turn = Turn { lane: 0, signal: false, more: false };

impl Link {
    pub fn op(&self, dir: Dir, size: usize) -> Op {
        let (local, remote) = match dir {
            Dir::Write => (self.layout.source(size), self.layout.target(size)),
            Dir::Read => (self.layout.target(size), self.layout.source(size)),
        };
        Op {
            dir,
            local: self.memory.iov(local, size),
            remote: RmaIov { addr: self.peer.base.wrapping_add(remote as u64), len: size, key: self.peer.key },
            flags: 0,
            inject: dir == Dir::Write && size <= self.inline,
        }
    }

    /// Posts an operation. False: there is no room; make progress first.
    #[inline]
    pub fn rma(&self, op: &Op, signal: bool) -> Result<bool> {
        self.rma_by(op, Turn { signal, ..ALONE })
    }

    #[inline(always)]
    pub fn rma_by(&self, op: &Op, turn: Turn) -> Result<bool> {
        let flags = flags_of(turn, op.inject) | op.flags;
        let common =
            Common { context: turn.lane, flags, desc: self.desc, timeout_ns: self.timeout_ns, peer: turn.lane as u64, ..Common::default() };
        posted(self.eps[turn.lane].rma(op.dir, &[op.local], &[op.remote], &common, &[common.desc]))
    }

    /// Sends the first `size` bytes of the source.
    #[inline]
    pub fn send(&self, size: usize, signal: bool) -> Result<bool> {
        self.send_by(size, Turn { signal, ..ALONE })
    }

    #[inline(always)]
    pub fn send_by(&self, size: usize, turn: Turn) -> Result<bool> {
        let flags = flags_of(turn, size <= self.inline);
        let common =
            Common { context: turn.lane, flags, desc: self.desc, timeout_ns: self.timeout_ns, peer: turn.lane as u64, ..Common::default() };
        self.send_from(turn.lane, self.memory.iov(self.layout.source(size), size), &common)
    }

    #[inline(always)]
    pub fn send_from(&self, lane: usize, local: Iov, common: &Common) -> Result<bool> {
        posted(match self.tag {
            None => self.eps[lane].send(&[local], common, &[common.desc]),
            Some(tag) => self.eps[lane].tsend(&[local], common, &[common.desc], tag),
        })
    }
}

/// A list of work requests is posted as a whole, so only its last operation may ask for its buffer back at once.
#[inline(always)]
fn flags_of(turn: Turn, inject: bool) -> u64 {
    let signal = if turn.signal { flags::COMPLETION } else { 0 };
    signal | if turn.more { flags::MORE } else { 0 } | if inject && !turn.more { flags::INJECT } else { 0 }
}

#[inline]
pub fn posted(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(e) if e.is_again() => Ok(false),
        Err(e) => Err(e),
    }
}
