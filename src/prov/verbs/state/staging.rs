// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What waits in line behind transfers through the peer's slots, and those transfers.

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

/// The peer's slots.
#[derive(Clone, Copy)]
pub(in crate::prov::verbs) struct RemoteSlots {
    pub(in crate::prov::verbs) addr: u64,
    pub(in crate::prov::verbs) rkey: u32,
    pub(in crate::prov::verbs) count: usize,
    pub(in crate::prov::verbs) size: usize,
}

/// What a slot is used for.
#[derive(Clone, Copy)]
pub(in crate::prov::verbs) struct Chunk {
    pub(in crate::prov::verbs) offset: usize,
    pub(in crate::prov::verbs) len: usize,
}

/// A transfer through the slots.
pub struct StagedTransfer {
    pub dir: Dir,
    pub key: u64,
    pub addr: u64,
    pub pieces: [ibv_sge; IOV_LIMIT],
    pub count: usize,
    pub bounce: Option<Box<Bounce>>,
    pub data: Option<u32>,
    pub end: Ending,
    /// Bytes begun and bytes arrived; requests without an answer.
    pub(in crate::prov::verbs) begun: usize,
    pub(in crate::prov::verbs) open: usize,
    pub(in crate::prov::verbs) asked: bool,
    pub(in crate::prov::verbs) failed: Option<Error>,
    /// A fault on demand keeps it until then; 0 = none does.
    pub held_until: u64,
}

// SAFETY: the pieces are numbers; who touches what is behind them says why it may.
unsafe impl Send for StagedTransfer {}

/// What waits in line.
pub enum WaitingOp {
    Staged(Box<StagedTransfer>),
    /// An operation of the caller's queue pair.
    Plain(Box<UnpostedRequest>),
    /// One over several rails, that has not begun.
    Striped(Box<Stripe>),
}

#[derive(Default)]
pub struct StagingQueue {
    pub jobs: VecDeque<WaitingOp>,
    pub(in crate::prov::verbs) remote_slots: Option<RemoteSlots>,
    pub(in crate::prov::verbs) asked: bool,
    pub(in crate::prov::verbs) busy: [Option<Chunk>; SLOTS],
    /// Of the peer's staged writes with data: which arrival it will be, and how many bytes.
    pub(in crate::prov::verbs) staged_arrivals: VecDeque<(u64, usize)>,
}

impl StagingQueue {
    /// The bytes of the peer's staged write whose data arrives as number `seen`.
    #[inline(always)]
    pub fn staged_len(&mut self, seen: u64) -> Option<usize> {
        if self.staged_arrivals.front()?.0 != seen {
            return None;
        }
        self.staged_arrivals.pop_front().map(|n| n.1)
    }
}

/// Notes of a hostile peer that are kept.
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

    /// The local pieces of a run.
    pub(in crate::prov::verbs) fn cut(&self, mut skip: usize, mut len: usize) -> ([ibv_sge; IOV_LIMIT], usize) {
        // SAFETY: plain numbers.
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

    /// Until when a fault on demand keeps it from starting; 0 = none does.
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
