// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits of connectionless endpoints: sizes that discovery reports and posting checks, and bounds on the memory that peers
//! can take.

/// `tx_size` and `rx_size` that discovery reports. The queues grow beyond these sizes.
pub const QUEUE_SIZE: usize = 65536;
/// Longest message or RMA operation, in bytes.
pub const MAX_MSG: usize = 1 << 40;
/// Longest buffer of an inject call, in bytes (`inject_size`).
pub const INJECT_SIZE: usize = 1024;
/// Longest message, in bytes, that is sent at once as an eager message. Longer messages are offered, and the receiver
/// reads them.
pub const EAGER_MAX: usize = 8 << 10;
/// Bytes of a lane's longest parcel that are kept free for the words in front of a message (`wire::parcel`).
pub const PARCEL_HEAD: usize = 64;
/// Offers of one peer that may be without an answer (DONE). A sender of this library holds back further messages; a peer
/// that offers more is disconnected.
pub const OFFERS_MAX: usize = 1 << 16;
/// `EXPOSED_MAX`: regions that the messages of a domain may expose at once, in addition to the regions that the program
/// registered. `EXPOSED_FLOOR`: regions that may be exposed to each peer even if slow peers hold half of the limit. A peer
/// gets more regions only up to the number by which all exposed regions together fall short of half of the limit
/// (`RegionQuota::may_expose`).
pub const EXPOSED_MAX: usize = 3 << 16;
pub const EXPOSED_FLOOR: usize = 32;
/// Unanswered offers of all peers together. Beyond this number, an unlisted caller with more than its fair share,
/// `OFFERS_ALL / UNLISTED_MAX`, is disconnected.
pub const OFFERS_ALL: usize = if cfg!(test) { 1 << 12 } else { 1 << 20 };
/// `ENDED_MAX`: bytes of unexpected messages, per domain, whose senders are gone. `ENDED_PEERS_MAX`: records of gone
/// peers, per endpoint, that have no index in the address vector. Beyond either number, unlisted callers are refused.
pub const ENDED_MAX: u64 = if cfg!(test) { 256 << 10 } else { 64 << 20 };
pub const ENDED_PEERS_MAX: usize = if cfg!(test) { 128 } else { 1 << 14 };
/// Grant to a peer, in bytes of unexpected messages: at first, and at most.
pub const FIRST_GRANT: u64 = 64 << 10;
pub const MOST_GRANT: u64 = 1 << 20;
/// Turns for which short messages wait for credit, counted from the last credit that arrived, before the messages are
/// offered instead. A receiver that is merely late returns credit within these turns. A receiver that waits for a later
/// message returns none; the number is small, so that the later message is offered soon.
pub const CREDIT_WAIT_TURNS: u32 = 1024;
/// Bytes by which the grants to all peers of a domain may together exceed their first grants.
pub const GRANTS_MAX: u64 = if cfg!(test) { 1 << 20 } else { 64 << 20 };
/// Connected unlisted callers, per endpoint.
pub const UNLISTED_MAX: usize = if cfg!(test) { 4 } else { 1024 };
/// Upper bound of a grant that a peer announces; a greater number counts as this one. A peer of this library never grants
/// as much.
pub const GRANT_LIMIT: u64 = 1 << 30;
