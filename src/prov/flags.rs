// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Capability, operation and completion bits. The values are libfabric's; the header repeats them as
//! literals, and a compile-time check in `capi` keeps the two equal.

pub const MSG: u64 = 1 << 1;
pub const RMA: u64 = 1 << 2;
pub const TAGGED: u64 = 1 << 3;
pub const ATOMIC: u64 = 1 << 4;
pub const READ: u64 = 1 << 8;
pub const WRITE: u64 = 1 << 9;
pub const RECV: u64 = 1 << 10;
pub const SEND: u64 = 1 << 11;
pub const REMOTE_READ: u64 = 1 << 12;
pub const REMOTE_WRITE: u64 = 1 << 13;
pub const MULTI_RECV: u64 = 1 << 16;
pub const REMOTE_CQ_DATA: u64 = 1 << 17;
pub const MORE: u64 = 1 << 18;
pub const PEEK: u64 = 1 << 19;
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
/// A capability; operations use the same bit as CLAIM.
pub const DIRECTED_RECV: u64 = 1 << 59;
/// A flag of receives, with PEEK or after it.
pub const CLAIM: u64 = 1 << 59;
pub const DISCARD: u64 = 1 << 58;
pub const GETINFO_ALL: u64 = 1 << 60;

/// The flags of receives, and those of tagged receives.
pub const RECV_FLAGS: u64 = COMPLETION | MORE | MULTI_RECV;
pub const TRECV_FLAGS: u64 = COMPLETION | MORE | PEEK | CLAIM | DISCARD;

/// The flags of operations other than receives.
pub const OP_FLAGS: u64 = REMOTE_CQ_DATA | MORE | FENCE | COMPLETION | INJECT | INJECT_COMPLETE | TRANSMIT_COMPLETE | DELIVERY_COMPLETE;

/// A bit of `info->mode`: a write with data consumes a posted receive of its target (libfabric's FI_RX_CQ_DATA).
pub const RX_CQ_DATA: u64 = 1 << 56;

pub const MR_MODE_LOCAL: u32 = 1 << 2;
pub const MR_MODE_VIRT_ADDR: u32 = 1 << 4;
pub const MR_MODE_PROV_KEY: u32 = 1 << 6;

/// All operations keep their order (FI_ORDER_STRICT without the atomics).
pub const ORDER_ALL: u64 = 0x1ff;

/// The order that reliable queue pairs and tcp keep: all operations keep theirs, except that an operation may overtake a read
/// before it, without GDRFAB_FENCE. (libfabric's RAR, RAW, RAS, WAW, WAS, SAW, SAS.)
pub const ORDER_UNLESS_READ: u64 = 0x1ff & !(1 << 3) & !(1 << 6);

/// The orders that do not hold if a message is announced and read later: an operation behind such a message may be done
/// before the message.
pub const BEHIND_SENDS: u64 = 1 << 2 | 1 << 5;

/// Atomics keep their order among each other, whatever RMA does (libfabric's FI_ORDER_ATOMIC_*).
pub const ORDER_ATOMICS: u64 = 0xf << 36;

/// The capabilities that come with matching by source and tag. A connected endpoint has them only if its info asks for one of
/// them.
pub const MATCHED: u64 = TAGGED | MULTI_RECV;

/// If hints ask for one of these capabilities, connectionless endpoints are offered first.
pub const CONNECTIONLESS: u64 = MATCHED | DIRECTED_RECV | SOURCE;

/// All capabilities that an info may have.
pub const CAPS: u64 = CONNECTIONLESS
    | MSG
    | RMA
    | ATOMIC
    | READ
    | WRITE
    | RECV
    | SEND
    | REMOTE_READ
    | REMOTE_WRITE
    | HMEM
    | LOCAL_COMM
    | REMOTE_COMM
    | RMA_EVENT;

/// Names of capabilities and operation flags, without their prefix GDRFAB_.
pub const NAMES: &[(u64, &str)] = &[
    (MSG, "MSG"),
    (RMA, "RMA"),
    (TAGGED, "TAGGED"),
    (ATOMIC, "ATOMIC"),
    (READ, "READ"),
    (WRITE, "WRITE"),
    (RECV, "RECV"),
    (SEND, "SEND"),
    (REMOTE_READ, "REMOTE_READ"),
    (REMOTE_WRITE, "REMOTE_WRITE"),
    (REMOTE_CQ_DATA, "REMOTE_CQ_DATA"),
    (MORE, "MORE"),
    (FENCE, "FENCE"),
    (COMPLETION, "COMPLETION"),
    (INJECT, "INJECT"),
    (INJECT_COMPLETE, "INJECT_COMPLETE"),
    (TRANSMIT_COMPLETE, "TRANSMIT_COMPLETE"),
    (DELIVERY_COMPLETE, "DELIVERY_COMPLETE"),
    (HMEM, "HMEM"),
    (LOCAL_COMM, "LOCAL_COMM"),
    (REMOTE_COMM, "REMOTE_COMM"),
    (RMA_EVENT, "RMA_EVENT"),
    (MULTI_RECV, "MULTI_RECV"),
    (PEEK, "PEEK"),
    (SOURCE, "SOURCE"),
    (DISCARD, "DISCARD"),
    (DIRECTED_RECV, "DIRECTED_RECV"),
];

/// Names of the bits of `mr_mode`.
pub const MR_MODE_NAMES: &[(u64, &str)] = &[
    (MR_MODE_LOCAL as u64, "MR_LOCAL"),
    (MR_MODE_VIRT_ADDR as u64, "MR_VIRT_ADDR"),
    (MR_MODE_PROV_KEY as u64, "MR_PROV_KEY"),
    (1 << 10, "MR_HMEM"),
];

/// Names of the bits of `msg_order` and `comp_order`.
pub const ORDER_NAMES: &[(u64, &str)] = &[
    (1 << 0, "ORDER_RAR"),
    (1 << 1, "ORDER_RAW"),
    (1 << 2, "ORDER_RAS"),
    (1 << 3, "ORDER_WAR"),
    (1 << 4, "ORDER_WAW"),
    (1 << 5, "ORDER_WAS"),
    (1 << 6, "ORDER_SAR"),
    (1 << 7, "ORDER_SAW"),
    (1 << 8, "ORDER_SAS"),
    (1 << 36, "ORDER_ATOMIC_RAR"),
    (1 << 37, "ORDER_ATOMIC_RAW"),
    (1 << 38, "ORDER_ATOMIC_WAR"),
    (1 << 39, "ORDER_ATOMIC_WAW"),
];

/// "MSG | RMA | 0x8000": the names of known bits, and the others as a number.
pub fn words(bits: u64, names: &[(u64, &str)]) -> String {
    let named = names.iter().filter(|(bit, _)| bits & bit != 0);
    let left = named.clone().fold(bits, |left, (bit, _)| left & !bit);
    let mut words: Vec<String> = named.map(|(_, name)| (*name).into()).collect();
    if left != 0 {
        words.push(format!("{left:#x}"));
    }
    words.join(" | ")
}
