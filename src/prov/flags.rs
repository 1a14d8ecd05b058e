// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Capability, operation and completion bits. The values are libfabric's; the header repeats them as
//! literals, and a compile-time check in `capi` keeps the two equal.

pub const MSG: u64 = 1 << 1;
pub const RMA: u64 = 1 << 2;
pub const READ: u64 = 1 << 8;
pub const WRITE: u64 = 1 << 9;
pub const RECV: u64 = 1 << 10;
pub const SEND: u64 = 1 << 11;
pub const REMOTE_READ: u64 = 1 << 12;
pub const REMOTE_WRITE: u64 = 1 << 13;
pub const REMOTE_CQ_DATA: u64 = 1 << 17;
pub const MORE: u64 = 1 << 18;
pub const FENCE: u64 = 1 << 21;
pub const COMPLETION: u64 = 1 << 24;
pub const INJECT: u64 = 1 << 25;
pub const INJECT_COMPLETE: u64 = 1 << 26;
pub const TRANSMIT_COMPLETE: u64 = 1 << 27;
pub const DELIVERY_COMPLETE: u64 = 1 << 28;
pub const MR_DMABUF: u64 = 1 << 40;
pub const HMEM: u64 = 1 << 47;
pub const LOCAL_COMM: u64 = 1 << 51;
pub const REMOTE_COMM: u64 = 1 << 52;
pub const RMA_EVENT: u64 = 1 << 56;
pub const SOURCE: u64 = 1 << 57;
pub const SELECTIVE_COMPLETION: u64 = 1 << 59;
pub const GETINFO_ALL: u64 = 1 << 60;

/// What an operation may be posted with.
pub const OP_FLAGS: u64 = REMOTE_CQ_DATA | MORE | FENCE | COMPLETION | INJECT | INJECT_COMPLETE | TRANSMIT_COMPLETE | DELIVERY_COMPLETE;

pub const MR_MODE_VIRT_ADDR: u32 = 1 << 4;
pub const MR_MODE_PROV_KEY: u32 = 1 << 6;

/// Message order that a connected endpoint keeps: everything after everything (FI_ORDER_STRICT
/// less the atomics).
pub const ORDER_ALL: u64 = 0x1ff;
