// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long messages are and how many there can be: what discovery tells and posting checks.

/// Operations and receives that discovery speaks of; there may be more.
pub const QUEUE_SIZE: usize = 65536;
/// Longest message or RMA operation.
pub const MAX_MSG: usize = 1 << 40;
/// Bytes that an inject call takes.
pub const INJECT_SIZE: usize = 1024;
/// Bytes up to which a message is not offered.
pub const EAGER_MAX: usize = 8 << 10;
/// Bytes of a parcel's words.
pub const PARCEL_HEAD: usize = 64;
/// Offers of one peer's that wait for their receives; messages behind them wait at the sender, and who offers more is cut off.
pub const OFFERS_MAX: usize = 1 << 16;
/// Regions of a domain that its messages may have lent at once, beside the program's; and how many a peer gets though others, which
/// are late, have half of them.
pub const EXPOSED_MAX: usize = 3 << 16;
pub const EXPOSED_FLOOR: usize = 32;
/// Offers of all peers, beyond which one that the address vector does not name has a fair share.
pub const OFFERS_ALL: usize = if cfg!(test) { 1 << 12 } else { 1 << 20 };
/// Bytes of messages that wait in a domain though their peers have ended, and records of such peers that have no index: with more of
/// either, callers that the address vector does not name are refused.
pub const ENDED_MAX: u64 = if cfg!(test) { 256 << 10 } else { 64 << 20 };
pub const ENDED_PEERS_MAX: usize = if cfg!(test) { 128 } else { 1 << 14 };
/// Bytes of unexpected messages that a peer may send at first, and at most.
pub const FIRST_GRANT: u64 = 64 << 10;
pub const MOST_GRANT: u64 = 1 << 20;
/// Turns in which a short message waits for credit, after the last that came, before it is offered: a receiver that is merely
/// behind returns some in time, and to one that wants other messages first it costs little.
pub const CREDIT_WAIT_TURNS: u32 = 1024;
/// Bytes of grants beyond the first, of all peers of a domain together.
pub const GRANTS_MAX: u64 = if cfg!(test) { 1 << 20 } else { 64 << 20 };
/// Callers with a lane that the address vector does not name.
pub const UNLISTED_MAX: usize = if cfg!(test) { 4 } else { 1024 };
/// More than a peer of this library grants.
pub const GRANT_LIMIT: u64 = 1 << 30;
