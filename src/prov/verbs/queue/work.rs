// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations and receives as the device has them, and as work requests that it does not have yet.

use crate::error::Error;
use crate::prov::bind::Ending;
use crate::prov::op::IOV_LIMIT;
use crate::prov::verbs::memory::bounce::Bounce;
use crate::prov::verbs::sys::abi::*;
use std::mem::zeroed;

/// A posted operation.
pub struct TxOp {
    pub end: Ending,
    /// Registered memory of ours between the caller's and the device.
    pub bounce: Option<Box<Bounce>>,
    /// Nobody hears of its end: it is not the caller's, or one of a chain before the last.
    pub internal: bool,
    /// Of a chain: the first run that it has of the list's part. Of an operation over several rails: which part.
    pub run: u16,
    /// The last work request of a part of an operation over several rails, which `end.context` names.
    pub striped: bool,
    /// Ended, while an older one has not.
    pub ended: bool,
    /// And how, if not well.
    pub error: Option<Box<Error>>,
    /// How the device reaches this side's memory (`mr::path_of`); with [`ENTRY_ONLY`], its success is an entry and nothing
    /// else: but for context, kind, length and buffer it is a default.
    pub how: u8,
}

/// In [`TxOp::how`]: a lane's read of what the peer has offered.
pub const FETCH: u8 = 1 << 5;
/// In [`TxOp::how`]: a parcel of a lane's.
pub const PARCEL: u8 = 1 << 6;
/// In [`TxOp::how`].
pub const ENTRY_ONLY: u8 = 1 << 7;

impl Default for TxOp {
    /// As most are, so that the fast path need not say so.
    fn default() -> TxOp {
        let end = Ending { wanted: true, ..Ending::default() };
        TxOp { end, bounce: None, internal: false, run: 0, striped: false, ended: false, error: None, how: 0 }
    }
}

/// A posted receive.
#[derive(Default)]
pub struct RxOp {
    pub context: usize,
    pub buf: usize,
    pub room: usize,
    /// A success gives an entry.
    pub wanted: bool,
    /// The provider's own, for writes with data where the caller posts none.
    pub own: bool,
    /// Absolute; 0 = none.
    pub deadline: u64,
    pub bounce: Option<Box<Bounce>>,
    /// A message in it is an entry and nothing else.
    pub entry_only: bool,
}

/// Work requests that wait for the last of their chain.
pub const CHAIN: usize = 32;

/// Work requests with room for their pieces.
pub struct Batch {
    pub(in crate::prov::verbs) wrs: [ibv_send_wr; CHAIN],
    pub(in crate::prov::verbs) pieces: [[ibv_sge; IOV_LIMIT]; CHAIN],
    pub(in crate::prov::verbs) len: usize,
}

// SAFETY: the pointers in it point into itself or at the caller's buffers, and are used only while a call posts.
unsafe impl Send for Batch {}

impl Batch {
    pub fn new() -> Box<Batch> {
        // SAFETY: plain numbers and pointers.
        unsafe { Box::new(zeroed()) }
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Work requests of a list that are being made, and how those failed whose last one has not ended: of which part, and why.
#[derive(Default)]
pub struct Chain {
    pub wrs: Vec<ibv_send_wr>,
    pub pieces: Vec<ibv_sge>,
    pub ops: Vec<TxOp>,
    pub failed: Option<(usize, Error)>,
}

// SAFETY: the pointers in it lead to its own pieces, and are used only while a call posts.
unsafe impl Send for Chain {}

pub const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED;

/// What is asked of the peer's memory; 0 for messages.
#[derive(Clone, Copy, Default)]
pub struct Target {
    pub addr: u64,
    pub key: u32,
}

/// An atomic operation of the peer's card: what is compared or added, and what is swapped in.
pub struct NicAtomic {
    pub opcode: ibv_wr_opcode::Type,
    pub operands: [u64; 2],
}

/// A work request that is not posted yet.
pub struct UnpostedRequest {
    pub(in crate::prov::verbs) opcode: ibv_wr_opcode::Type,
    pub(in crate::prov::verbs) pieces: [ibv_sge; IOV_LIMIT],
    pub(in crate::prov::verbs) count: usize,
    pub(in crate::prov::verbs) target: Target,
    /// As of `NicAtomic`.
    pub(in crate::prov::verbs) operands: [u64; 2],
    pub(in crate::prov::verbs) data: Option<u32>,
    pub(in crate::prov::verbs) send_flags: u32,
    /// The bytes of an inject call, to which the only piece points.
    pub(in crate::prov::verbs) _owned: Option<Box<[u8]>>,
    pub op: TxOp,
    /// A fault on demand keeps it until then; 0 = none does.
    pub held_until: u64,
}

// SAFETY: the pieces are numbers; who touches what is behind them says why it may.
unsafe impl Send for UnpostedRequest {}

impl UnpostedRequest {
    /// One without bytes, that asks for a completion.
    pub fn empty(opcode: ibv_wr_opcode::Type, data: Option<u32>) -> UnpostedRequest {
        // SAFETY: plain numbers.
        let pieces = unsafe { zeroed() };
        UnpostedRequest {
            opcode,
            pieces,
            count: 0,
            target: Target::default(),
            operands: [0; 2],
            data,
            send_flags: SIGNALED,
            _owned: None,
            op: TxOp::default(),
            held_until: 0,
        }
    }
}

/// A receive that a fault keeps from the device.
pub struct HeldReceive {
    pub pieces: [ibv_sge; IOV_LIMIT],
    pub count: usize,
    pub op: RxOp,
}

// SAFETY: the pieces are numbers; who touches what is behind them says why it may.
unsafe impl Send for HeldReceive {}
