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

/// Of `info->mode`: a write with data takes a posted receive of its target (libfabric's FI_RX_CQ_DATA).
pub const RX_CQ_DATA: u64 = 1 << 56;

pub const MR_MODE_LOCAL: u32 = 1 << 2;
pub const MR_MODE_VIRT_ADDR: u32 = 1 << 4;
pub const MR_MODE_PROV_KEY: u32 = 1 << 6;

/// Message order that a connected endpoint keeps: everything after everything (FI_ORDER_STRICT
/// less the atomics).
pub const ORDER_ALL: u64 = 0x1ff;

/// What reliable queue pairs and tcp keep: everything after everything but what follows a read, which may overtake it
/// without GDRFAB_FENCE. (libfabric's RAR, RAW, RAS, WAW, WAS, SAW, SAS.)
pub const ORDER_UNLESS_READ: u64 = 0x1ff & !(1 << 3) & !(1 << 6);

/// Names of the bits of `mr_mode` that a provider may need.
pub fn mr_mode_words(bits: u32) -> String {
    let names = [(MR_MODE_LOCAL, "GDRFAB_MR_LOCAL"), (MR_MODE_VIRT_ADDR, "GDRFAB_MR_VIRT_ADDR"), (MR_MODE_PROV_KEY, "GDRFAB_MR_PROV_KEY")];
    names.iter().filter(|(b, _)| bits & b != 0).map(|(_, n)| *n).collect::<Vec<_>>().join(", ")
}
