// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The records of outstanding operations and receives, and the internal operation flags.

use super::flags;
use super::op::{Common, Pieces};
use super::order::Ticket;
use crate::hmem::Site;

/// The operation gives no completion if it succeeds (inject calls).
pub const SILENT: u64 = 1 << 63;
/// The operation is a part of a list: its end goes to `Ends`, where `context` names the part.
pub const PART: u64 = 1 << 62;
/// The operation may take any path, even one that the endpoint's options forbid: the options are about RMA, and this
/// operation reads a message.
pub const ANY_PATH: u64 = 1 << 61;
/// The peer's card carries out the atomic operation. The key names a region that was registered for atomics of the
/// card.
pub const BY_CARD: u64 = 1 << 60;
/// The flags of inject calls: no completion on success, and the buffer is the caller's again when the call returns.
pub const INJECT_FLAGS: u64 = flags::INJECT | SILENT;

/// An outstanding operation of this side: the contents of its completion, and the resources that it holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ending {
    pub context: usize,
    /// Completion flags: SEND|MSG and the like.
    pub kind: u64,
    pub len: usize,
    pub buf: usize,
    /// True if success gives a completion entry, which is reserved in the queue.
    pub wanted: bool,
    /// The time of the deadline; 0: none.
    pub deadline: u64,
    /// True if the operation comes from an inject call, for whose end no caller waits. If the connection's end fails
    /// the operation, there is no error entry.
    pub silent: bool,
    /// True if the operation is a part of a list.
    pub part: bool,
    /// The operation's place in the order, if completions come in the order of posting.
    pub ticket: Option<Ticket>,
}

impl Ending {
    /// The record of an operation that is being posted, without a place in the order.
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
    /// The receive's place among arrivals, once a message was matched with the receive.
    pub ticket: Option<Ticket>,
}
