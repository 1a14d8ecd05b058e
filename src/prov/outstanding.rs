// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is outstanding at an endpoint: operations of this side, and receives.

use super::flags;
use super::op::{Common, Pieces};
use super::order::Ticket;
use crate::hmem::Site;

/// This operation gives no entry when it succeeds (inject calls).
pub const SILENT: u64 = 1 << 63;
/// This operation is a part of a list: its end goes to `Ends`, and `context` says of which.
pub const PART: u64 = 1 << 62;
/// Any path does, whatever the endpoint's options say: they are about RMA, and this reads a message.
pub const ANY_PATH: u64 = 1 << 61;
/// This atomic operation is the peer's card's, whose key is of a region that was declared so.
pub const BY_CARD: u64 = 1 << 60;
/// Flags of inject calls: no entry on success, and the buffer is the caller's again on return.
pub const INJECT_FLAGS: u64 = flags::INJECT | SILENT;

/// How an outstanding operation of this side ends: what its entry says and what it holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ending {
    pub context: usize,
    /// Completion flags: SEND|MSG and the like.
    pub kind: u64,
    pub len: usize,
    pub buf: usize,
    /// A success gives an entry, which is reserved in the queue.
    pub wanted: bool,
    /// Absolute; 0 = none.
    pub deadline: u64,
    /// An inject call, which has nobody who waits for it: lost with the connection, it gives no entry.
    pub silent: bool,
    /// A part of a list.
    pub part: bool,
    /// Its place, where entries come in the order of posting.
    pub ticket: Option<Ticket>,
}

impl Ending {
    /// Of an operation as it is posted, before it has its place.
    #[inline(always)]
    pub fn of(c: &Common, kind: u64, len: usize, buf: usize, wanted: bool, deadline: u64) -> Ending {
        let (silent, part) = (c.flags & SILENT != 0, c.flags & PART != 0);
        Ending { context: c.context, kind, len, buf, wanted, deadline, silent, part, ticket: None }
    }
}

/// A posted receive.
pub struct Recv {
    pub pieces: Pieces,
    pub site: Site,
    pub room: usize,
    pub context: usize,
    pub wanted: bool,
    pub deadline: u64,
    /// Its place among arrivals, once it is matched.
    pub ticket: Option<Ticket>,
}
