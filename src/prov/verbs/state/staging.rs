// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Staged transfers, and the queue in which later operations wait behind them.

use super::stripe::Stripe;
use crate::error::Error;
use crate::prov::bind::Ending;
use crate::prov::flags;
use crate::prov::op::{Dir, IOV_LIMIT};
use crate::prov::verbs::memory::bounce::Bounce;
use crate::prov::verbs::queue::service::SLOTS;
use crate::prov::verbs::queue::work::UnpostedRequest;
use crate::prov::verbs::sys::abi::ibv_sge;
use std::collections::VecDeque;
use std::mem::zeroed;

/// The peer's buffers for staged transfers.
#[derive(Clone, Copy)]
pub(in crate::prov::verbs) struct RemoteSlots {
    pub(in crate::prov::verbs) addr: u64,
    pub(in crate::prov::verbs) rkey: u32,
    pub(in crate::prov::verbs) count: usize,
    pub(in crate::prov::verbs) size: usize,
}

/// The part of a transfer that occupies a slot.
#[derive(Clone, Copy)]
pub(in crate::prov::verbs) struct Chunk {
    pub(in crate::prov::verbs) offset: usize,
    pub(in crate::prov::verbs) len: usize,
}

/// A read or write through the peer's slots.
pub struct StagedTransfer {
    pub dir: Dir,
    pub key: u64,
    pub addr: u64,
    pub pieces: [ibv_sge; IOV_LIMIT],
    pub count: usize,
    pub bounce: Option<Box<Bounce>>,
    pub data: Option<u32>,
    pub end: Ending,
    /// Bytes for which a request was sent.
    pub(in crate::prov::verbs) begun: usize,
    /// Requests without an answer.
    pub(in crate::prov::verbs) open: usize,
    /// A request was sent.
    pub(in crate::prov::verbs) asked: bool,
    pub(in crate::prov::verbs) failed: Option<Error>,
    /// Fault injection: the transfer does not start before this time; 0: no delay.
    pub held_until: u64,
}

// SAFETY: the pieces hold addresses as integers; the code that follows them justifies it.
unsafe impl Send for StagedTransfer {}

/// An operation in the staging queue.
pub enum WaitingOp {
    Staged(Box<StagedTransfer>),
    /// An operation of the endpoint's own queue pair.
    Plain(Box<UnpostedRequest>),
    /// A striped operation that has not begun.
    Striped(Box<Stripe>),
}

#[derive(Default)]
pub struct StagingQueue {
    pub jobs: VecDeque<WaitingOp>,
    pub(in crate::prov::verbs) remote_slots: Option<RemoteSlots>,
    /// The peer was asked for its slots.
    pub(in crate::prov::verbs) asked: bool,
    /// For each slot of the peer: the part of a transfer that occupies the slot.
    pub(in crate::prov::verbs) busy: [Option<Chunk>; SLOTS],
    /// The peer's announcements of its staged writes with data: the number of the write with data, and its bytes.
    pub(in crate::prov::verbs) staged_arrivals: VecDeque<(u64, usize)>,
}

impl StagingQueue {
    /// The length of the peer's staged write whose data arrives as number `seen`.
    #[inline(always)]
    pub fn staged_len(&mut self, seen: u64) -> Option<usize> {
        if self.staged_arrivals.front()?.0 != seen {
            return None;
        }
        self.staged_arrivals.pop_front().map(|n| n.1)
    }
}

/// Most entries of `staged_arrivals`; the bound protects this side from a hostile peer.
pub(in crate::prov::verbs) const MAX_STAGED_ARRIVALS: usize = 4096;

impl StagedTransfer {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        dir: Dir,
        key: u64,
        addr: u64,
        pieces: [ibv_sge; IOV_LIMIT],
        count: usize,
        bounce: Option<Box<Bounce>>,
        data: Option<u32>,
        end: Ending,
    ) -> StagedTransfer {
        StagedTransfer { dir, key, addr, pieces, count, bounce, data, end, begun: 0, open: 0, asked: false, failed: None, held_until: 0 }
    }

    /// The local pieces of the `len` bytes from byte `skip` on.
    pub(in crate::prov::verbs) fn cut(&self, mut skip: usize, mut len: usize) -> ([ibv_sge; IOV_LIMIT], usize) {
        // SAFETY: integers, for all of which zero is a valid value.
        let mut out: [ibv_sge; IOV_LIMIT] = unsafe { zeroed() };
        let mut n = 0;
        for p in &self.pieces[..self.count] {
            let have = p.length as usize;
            if skip >= have {
                skip -= have;
                continue;
            }
            let take = (have - skip).min(len);
            if take == 0 {
                break;
            }
            out[n] = ibv_sge { addr: p.addr + skip as u64, length: take as u32, lkey: p.lkey };
            (n, len, skip) = (n + 1, len - take, 0);
        }
        (out, n)
    }
}

impl WaitingOp {
    pub fn ending(&self) -> &Ending {
        match self {
            WaitingOp::Staged(t) => &t.end,
            WaitingOp::Plain(p) => &p.op.end,
            WaitingOp::Striped(s) => &s.end,
        }
    }

    /// Fault injection: the operation does not start before this time; 0: no delay.
    pub fn held_until(&self) -> u64 {
        match self {
            WaitingOp::Staged(t) => t.held_until,
            WaitingOp::Plain(p) => p.held_until,
            WaitingOp::Striped(s) => s.held_until,
        }
    }

    pub(in crate::prov::verbs) fn hold(&mut self, until: u64) {
        match self {
            WaitingOp::Staged(t) => t.held_until = until,
            WaitingOp::Plain(p) => p.held_until = until,
            WaitingOp::Striped(s) => s.held_until = until,
        }
    }
}

/// Completion flags of RMA by direction.
pub fn kind_of(dir: Dir) -> u64 {
    flags::RMA | if dir == Dir::Write { flags::WRITE } else { flags::READ }
}
