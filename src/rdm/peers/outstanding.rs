// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is outstanding at an endpoint: receives; and operations that the lanes or a peer has, by number. A number that was used
//! names nothing afterwards.

use super::peer::{CompletionInfo, Id};
use crate::error::{Error, Result};
use crate::fallible::MakeRoom;
use crate::hmem::Site;
use crate::mr::RegionId;
use crate::prov::fault::Plan;
use crate::prov::op::{Iov, Pieces};
use crate::rdm::matching::matcher::{RecvFilter, RecvPosition};
use crate::rdm::wire::parcel::{Label, MessageOffer};
use crate::room::Room;
use std::collections::VecDeque;

/// A buffer for several messages.
pub struct MultiRecv {
    /// Messages that are on their way into it.
    pub arriving: usize,
    /// Nothing more is placed in it.
    pub full: bool,
    /// It is full when fewer bytes are left.
    pub min_room: usize,
    /// The receive and its error, if it ends when those messages are in place.
    pub end: Option<Box<(Recv, Error)>>,
}

/// A posted receive, or the part of one that a message goes to.
pub struct Recv {
    /// The first piece, nearly always the only one.
    pub first: Iov,
    pub room: usize,
    pub context: usize,
    pub wants_entry: bool,
    pub tagged: bool,
    /// None: one piece of host memory, and nothing special.
    pub more: Option<Box<RecvExtra>>,
}

/// What few receives have.
#[derive(Clone)]
pub struct RecvExtra {
    /// None: one piece.
    pub pieces: Option<Box<[Iov]>>,
    pub descs: Vec<u64>,
    pub site: Site,
    pub deadline: u64,
    /// Its place among buffers for several messages, and how much of it is used.
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

/// Faults on demand of an endpoint.
pub struct FaultInjection {
    /// Of receives for whoever sends, and for peers that are not connected: those are late, and count for nobody.
    pub plan: Box<Plan>,
    pub delayed: VecDeque<DelayedRecv>,
}

/// A receive that was accepted, and when messages may find it.
pub struct DelayedRecv {
    pub until: u64,
    /// The only peer that can fill it, whose index may change meanwhile.
    pub from: Option<Id>,
    pub want: RecvFilter,
    pub recv: Recv,
}

/// What the lanes or a peer has.
pub enum Op {
    Rma {
        peer: Id,
        end: CompletionInfo,
        _owned: Option<Box<[u8]>>,
    },
    /// Lent to the peer until it says that it has it.
    Offered {
        peer: Id,
        end: CompletionInfo,
        exposed: Vec<(usize, RegionId)>,
        /// Some of it lies in regions of the caller's, which only the peer's word ends.
        in_callers_regions: bool,
        /// Its bytes, if they are in host memory.
        pieces: Pieces,
        _owned: Option<Box<[u8]>>,
    },
    /// An offer that was taken back: its number stays until the peer knows.
    Withdrawn {
        peer: Id,
    },
    Reading {
        peer: Id,
        /// The lane by which it was offered.
        link: usize,
        recv: Recv,
        /// As what the receive was posted, if it waits on when the sender takes the message back.
        posted: Option<RecvPosition>,
        offer: MessageOffer,
        label: Label,
        source: u64,
        /// The lane has not got the read yet.
        queued: bool,
    },
    /// A message to this endpoint itself, whose receive is still to come.
    Loopback {
        end: CompletionInfo,
        pieces: Pieces,
        site: Site,
        _owned: Option<Box<[u8]>>,
    },
}

/// An offer that was taken back, or whose peer is gone: its entry comes when the peer can read the memory no more.
pub struct RevokedOffer {
    pub end: CompletionInfo,
    /// Of the offer, while the peer may say that it is done.
    pub number: u64,
    pub exposed: Vec<(usize, RegionId)>,
    pub in_callers_regions: bool,
    pub why: Error,
    pub _owned: Option<Box<[u8]>>,
}

#[derive(Default)]
pub struct Ops {
    all: Vec<(u32, Option<Op>)>,
    free: Vec<u32>,
}

impl Ops {
    /// Room for one more, and for all among those that are free.
    pub fn room(&mut self) -> Result<()> {
        if self.free.is_empty() {
            self.all.room(1)?;
            self.free.room(self.all.len() + 1)?;
        }
        Ok(())
    }

    pub fn add(&mut self, op: Op) -> u64 {
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

    pub fn get(&mut self, number: u64) -> Option<&mut Op> {
        self.all.get_mut(number as u32 as usize).filter(|place| place.0 == (number >> 32) as u32)?.1.as_mut()
    }

    pub fn take(&mut self, number: u64) -> Option<Op> {
        let op = self.all.get_mut(number as u32 as usize).filter(|place| place.0 == (number >> 32) as u32)?.1.take()?;
        self.free.push(number as u32);
        Some(op)
    }

    pub fn each(&self) -> impl Iterator<Item = (u64, &Op)> {
        self.all.iter().enumerate().filter_map(|(at, (g, op))| Some((u64::from(*g) << 32 | at as u64, op.as_ref()?)))
    }
}
