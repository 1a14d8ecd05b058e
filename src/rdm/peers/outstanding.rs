// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Outstanding work of an endpoint: posted receives, and operations that a lane or a peer works on. Each operation has a
//! number. After the operation has ended, its number names nothing, and no later operation gets it.

use super::peer::{CompletionInfo, Id};
use crate::error::{Error, Result};
use crate::fallible::MakeRoom;
use crate::hmem::Site;
use crate::mr::RegionId;
use crate::prov::fault::Plan;
use crate::prov::op::{Iov, Pieces};
use crate::rdm::matching::matcher::{RecvFilter, RecvPosition};
use crate::rdm::wire::parcel::{Label, MessageOffer};
use std::collections::VecDeque;

/// A buffer that takes several messages (`GDRFAB_MULTI_RECV`).
pub struct MultiRecv {
    /// Number of messages whose bytes are still being written into the buffer.
    pub arriving: usize,
    /// No further message is placed in the buffer.
    pub full: bool,
    /// The buffer is full when fewer bytes than this are left.
    pub min_room: usize,
    /// The receive, and the error with which it fails once the arriving messages are in place.
    pub fails_with: Option<Box<(Recv, Error)>>,
}

/// A posted receive, or the part of a multi-receive that one message fills.
pub struct Recv {
    /// The first piece, nearly always the only one.
    pub first: Iov,
    /// Bytes that the receive can take.
    pub room: usize,
    pub context: usize,
    pub wants_entry: bool,
    pub tagged: bool,
    /// `None` for one piece of host memory without deadline or multi-receive.
    pub more: Option<Box<RecvExtra>>,
}

/// Attributes that few receives have.
#[derive(Clone)]
pub struct RecvExtra {
    /// `None` for a single piece.
    pub pieces: Option<Box<[Iov]>>,
    pub descs: Vec<u64>,
    pub site: Site,
    pub deadline: u64,
    /// Index in `Matching::multi`, and how many bytes of the buffer are used.
    pub multi: Option<(u32, usize)>,
}

impl Recv {
    pub fn pieces(&self) -> &[Iov] {
        self.more.as_ref().and_then(|m| m.pieces.as_deref()).unwrap_or(std::slice::from_ref(&self.first))
    }

    pub fn descs(&self) -> &[u64] {
        self.more.as_ref().map_or(&[], |m| &m.descs)
    }

    pub fn site(&self) -> Site {
        self.more.as_ref().map_or(Site::HOST, |m| m.site)
    }

    pub fn deadline(&self) -> u64 {
        self.more.as_ref().map_or(0, |m| m.deadline)
    }

    pub fn multi(&self) -> Option<(u32, usize)> {
        self.more.as_ref().and_then(|m| m.multi)
    }
}

/// Fault injection for one endpoint (`GDRFAB_FAULT`).
pub struct FaultInjection {
    /// Plan for receives from any source and for receives from peers that are not connected. The plan can delay such a
    /// receive; it counts the receive for no lane and breaks no connection.
    pub plan: Box<Plan>,
    pub delayed: VecDeque<DelayedRecv>,
}

/// A receive that was accepted, but is posted only at time `until`.
pub struct DelayedRecv {
    pub until: u64,
    /// The only peer whose messages can fill the receive. The record names the peer, because its index may change before
    /// `until`.
    pub from: Option<Id>,
    pub want: RecvFilter,
    pub recv: Recv,
}

/// An operation that a lane or a peer works on.
pub enum OutstandingOp {
    /// An RMA operation, an atomic or a part of a block list that a lane carries out. `_owned`: the library's copy of the
    /// program's bytes, kept as long as the operation; the same in the other variants.
    Rma { peer: Id, completion: CompletionInfo, _owned: Option<Box<[u8]>> },
    /// A message that this side offered. The peer may read the memory until it answers with DONE.
    Offered {
        peer: Id,
        completion: CompletionInfo,
        exposed: Vec<(usize, RegionId)>,
        /// Nothing but the peer's answer shows that the peer no longer reads: some of the message lies in regions that
        /// the program registered, or the lane cannot revoke a region while the peer reads it.
        needs_answer: bool,
        /// The message's bytes, if they are in host memory.
        pieces: Pieces,
        _owned: Option<Box<[u8]>>,
    },
    /// An offer that this side took back. The number stays reserved until the peer answers.
    Withdrawn { peer: Id },
    /// An offer of the peer that is being read into a receive.
    Reading {
        peer: Id,
        /// Number of the link by which the message was offered.
        link: usize,
        recv: Recv,
        /// Position of the receive in the order of posting, if the receive is posted again when the sender takes the
        /// message back.
        position: Option<RecvPosition>,
        offer: MessageOffer,
        label: Label,
        source: u64,
        /// The read still waits in `Peer::reads`; the lane does not have it.
        queued: bool,
    },
    /// A message of this endpoint to itself that waits for its receive.
    Loopback { completion: CompletionInfo, pieces: Pieces, site: Site, _owned: Option<Box<[u8]>> },
}

/// Outstanding operations by number. The low half of a number is the index of its slot, the high half counts the uses of
/// the slot.
#[derive(Default)]
pub struct Ops {
    all: Vec<(u32, Option<OutstandingOp>)>,
    free: Vec<u32>,
}

impl Ops {
    /// Reserves memory for one more operation, and for the list of free slots to hold all of them.
    pub fn room(&mut self) -> Result<()> {
        if self.free.is_empty() {
            self.all.room(1)?;
            self.free.room(self.all.len() + 1)?;
        }
        Ok(())
    }

    pub fn add(&mut self, op: OutstandingOp) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.all.push((0, None));
            (self.all.len() - 1) as u32
        });
        match self.all.get_mut(at as usize) {
            Some(place) => {
                place.0 = place.0.wrapping_add(1);
                place.1 = Some(op);
                u64::from(place.0) << 32 | u64::from(at)
            }
            None => 0,
        }
    }

    pub fn get(&mut self, number: u64) -> Option<&mut OutstandingOp> {
        self.all.get_mut(number as u32 as usize).filter(|place| place.0 == (number >> 32) as u32)?.1.as_mut()
    }

    pub fn take(&mut self, number: u64) -> Option<OutstandingOp> {
        let op = self.all.get_mut(number as u32 as usize).filter(|place| place.0 == (number >> 32) as u32)?.1.take()?;
        self.free.push(number as u32);
        Some(op)
    }

    pub fn each(&self) -> impl Iterator<Item = (u64, &OutstandingOp)> {
        self.all.iter().enumerate().filter_map(|(at, (g, op))| Some((u64::from(*g) << 32 | at as u64, op.as_ref()?)))
    }
}
