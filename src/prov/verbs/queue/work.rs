// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Posted operations and receives, and work requests that are not posted yet.

use crate::error::Error;
use crate::prov::bind::Ending;
use crate::prov::op::IOV_LIMIT;
use crate::prov::verbs::memory::bounce::Bounce;
use crate::prov::verbs::sys::abi::*;
use std::mem::zeroed;

/// A posted operation.
pub struct TxOp {
    pub end: Ending,
    /// The library's registered buffer between the caller's memory and the device.
    pub bounce: Option<Box<Bounce>>,
    /// The end of the operation is not reported, because the operation is the library's own, or a work request of a
    /// chain before the last one.
    pub internal: bool,
    /// In a chain: the index of its first run in the part of the list. In a striped operation: the index of the part.
    pub run: u16,
    /// This is the last work request of a part of a striped operation, whose number is in `end.context`.
    pub striped: bool,
    /// Over iWARP: the operation has ended, and an older operation may not have.
    pub ended: bool,
    /// The error, if the operation has failed.
    pub error: Option<Box<Error>>,
    /// The path to the local memory (`mr::path_of`). With [`ENTRY_ONLY`], success gives an entry and nothing else: all
    /// fields but context, kind, length and buffer have their default values.
    pub path_bits: u8,
}

/// In [`TxOp::path_bits`]: a lane's read of a long message that the peer has offered.
pub const FETCH: u8 = 1 << 5;
/// In [`TxOp::path_bits`]: a parcel that occupies a send slot of the lane.
pub const PARCEL: u8 = 1 << 6;
/// In [`TxOp::path_bits`]: success gives an entry and nothing else.
pub const ENTRY_ONLY: u8 = 1 << 7;

impl Default for TxOp {
    /// The values of most operations, so that the fast path does not have to set them.
    fn default() -> TxOp {
        let end = Ending { wanted: true, ..Ending::default() };
        TxOp { end, bounce: None, internal: false, run: 0, striped: false, ended: false, error: None, path_bits: 0 }
    }
}

/// A posted receive.
#[derive(Default)]
pub struct RxOp {
    pub context: usize,
    pub buf: usize,
    pub room: usize,
    /// Success gives an entry.
    pub wanted: bool,
    /// A receive of the provider, for writes with data where the caller posts no receives, or for the parcels of a
    /// lane.
    pub own: bool,
    /// Absolute time; 0: none.
    pub deadline: u64,
    pub bounce: Option<Box<Bounce>>,
    /// A message in this receive gives an entry and nothing else.
    pub entry_only: bool,
}

/// Most work requests in a batch.
pub const CHAIN: usize = 32;

/// Work requests of calls with `GDRFAB_MORE`, which wait for the last request of their batch, and their pieces.
pub struct Batch {
    pub(in crate::prov::verbs) wrs: [ibv_send_wr; CHAIN],
    pub(in crate::prov::verbs) pieces: [[ibv_sge; IOV_LIMIT]; CHAIN],
    pub(in crate::prov::verbs) len: usize,
}

// SAFETY: its pointers lead into itself or to the caller's buffers, and are used only while a call posts.
unsafe impl Send for Batch {}

impl Batch {
    pub fn new() -> Box<Batch> {
        // SAFETY: integers and pointers, for all of which zero is a valid value.
        unsafe { Box::new(zeroed()) }
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The work requests of the part of a list that is being posted; and the error of a part of a list that has failed and
/// whose last request has not ended, with the context of that part.
#[derive(Default)]
pub struct Chain {
    pub wrs: Vec<ibv_send_wr>,
    pub pieces: Vec<ibv_sge>,
    pub ops: Vec<TxOp>,
    pub failed: Option<(usize, Error)>,
}

// SAFETY: its pointers lead to its own pieces, and are used only while a call posts.
unsafe impl Send for Chain {}

pub const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED;

/// The remote address and key; 0 for messages.
#[derive(Clone, Copy, Default)]
pub struct RemoteAddr {
    pub addr: u64,
    pub key: u32,
}

/// An atomic operation that the peer's card executes. The operands: the value to compare or add, and the value to swap
/// in.
pub struct NicAtomic {
    pub opcode: ibv_wr_opcode::Type,
    pub operands: [u64; 2],
}

/// A work request that is not posted yet.
pub struct UnpostedRequest {
    pub(in crate::prov::verbs) opcode: ibv_wr_opcode::Type,
    pub(in crate::prov::verbs) pieces: [ibv_sge; IOV_LIMIT],
    pub(in crate::prov::verbs) count: usize,
    pub(in crate::prov::verbs) target: RemoteAddr,
    /// As in `NicAtomic`.
    pub(in crate::prov::verbs) operands: [u64; 2],
    pub(in crate::prov::verbs) data: Option<u32>,
    pub(in crate::prov::verbs) send_flags: u32,
    /// The bytes of an inject call, to which the only piece points.
    pub(in crate::prov::verbs) _owned: Option<Box<[u8]>>,
    pub op: TxOp,
    /// Fault injection: the request is not posted before this time; 0: no delay.
    pub held_until: u64,
}

// SAFETY: the pieces hold addresses as integers; the code that follows them justifies it.
unsafe impl Send for UnpostedRequest {}

impl UnpostedRequest {
    /// A request without bytes that asks for a completion.
    pub fn empty(opcode: ibv_wr_opcode::Type, data: Option<u32>) -> UnpostedRequest {
        // SAFETY: integers, for all of which zero is a valid value.
        let pieces = unsafe { zeroed() };
        UnpostedRequest {
            opcode,
            pieces,
            count: 0,
            target: RemoteAddr::default(),
            operands: [0; 2],
            data,
            send_flags: SIGNALED,
            _owned: None,
            op: TxOp::default(),
            held_until: 0,
        }
    }
}

/// A receive that fault injection delays.
pub struct HeldReceive {
    pub pieces: [ibv_sge; IOV_LIMIT],
    pub count: usize,
    pub op: RxOp,
}

// SAFETY: the pieces hold addresses as integers; the code that follows them justifies it.
unsafe impl Send for HeldReceive {}
