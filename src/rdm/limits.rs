// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits of connectionless endpoints: sizes that discovery reports and posting checks, and bounds on the memory that peers can take.

/// `tx_size` and `rx_size` that discovery reports. Queues grow beyond them.
pub const QUEUE_SIZE: usize = 65536;
/// Longest message or RMA operation, in bytes.
pub const MAX_MSG: usize = 1 << 40;
/// Longest buffer of an inject call, in bytes (`inject_size`).
pub const INJECT_SIZE: usize = 1024;
/// Longest message, in bytes, that is sent at once; longer ones are offered, and the receiver reads them.
pub const EAGER_MAX: usize = 8 << 10;
/// Bytes of a parcel that its words can take.
pub const PARCEL_HEAD: usize = 64;
/// Offers of one peer that may wait for their receives. A sender of this library holds back further messages; a peer that offers more is
/// disconnected.
pub const OFFERS_MAX: usize = 1 << 16;
/// `EXPOSED_MAX`: regions of a domain that its messages may expose at once, in addition to the program's own. `EXPOSED_FLOOR`: regions that
/// each peer may have exposed even if slow peers hold the other half of them.
pub const EXPOSED_MAX: usize = 3 << 16;
pub const EXPOSED_FLOOR: usize = 32;
/// Unanswered offers of all peers together. Beyond this number, a peer that the address vector does not name is limited to a fair share.
pub const OFFERS_ALL: usize = if cfg!(test) { 1 << 12 } else { 1 << 20 };
/// `ENDED_MAX`: bytes of unexpected messages, per domain, whose senders are gone. `ENDED_PEERS_MAX`: records of gone peers that have no
/// index. Beyond either, callers that the address vector does not name are refused.
pub const ENDED_MAX: u64 = if cfg!(test) { 256 << 10 } else { 64 << 20 };
pub const ENDED_PEERS_MAX: usize = if cfg!(test) { 128 } else { 1 << 14 };
/// Grant of a peer, in bytes of unexpected messages: at first, and at most.
pub const FIRST_GRANT: u64 = 64 << 10;
pub const MOST_GRANT: u64 = 1 << 20;
/// Turns for which a short message waits for credit, counted from the last credit that arrived, before it is offered instead. A receiver
/// that is only behind returns credit in time; if the receiver wants other messages first, the delay is small.
pub const CREDIT_WAIT_TURNS: u32 = 1024;
/// Bytes of grants beyond the first grants, for all peers of a domain together.
pub const GRANTS_MAX: u64 = if cfg!(test) { 1 << 20 } else { 64 << 20 };
/// Connected callers that the address vector does not name, per endpoint.
pub const UNLISTED_MAX: usize = if cfg!(test) { 4 } else { 1024 };
/// Upper bound that is applied to a grant announced by a peer. A peer of this library never grants as much.
pub const GRANT_LIMIT: u64 = 1 << 30;
