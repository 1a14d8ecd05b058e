// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults on demand of a tcp endpoint: operations that were accepted and start late, or take the connection along.

use super::recv::Recv;
use crate::error::Result;
use crate::hmem::Site;
use crate::prov::bind::Ending;
use crate::prov::fault::{Op, Plan, Verdict};
use crate::prov::flags;
use crate::prov::op::{Common, Dir, Iov, Pieces, RmaIov};
use crate::prov::tcp::memory::source::{gather, load};
use crate::prov::tcp::wire::segment::RAILS_MAX;
use std::collections::VecDeque;

/// An operation as it was accepted.
pub enum AcceptedOp {
    Rma { dir: Dir, remote: Box<[RmaIov]>, posted: PostedOp },
    Send(PostedOp),
    Recv(Recv),
}

/// What RMA and messages have in common.
pub struct PostedOp {
    pub pieces: Pieces,
    pub site: Site,
    pub c: Common,
    pub end: Ending,
    /// The bytes of an inject call, whose buffer the caller has again.
    _owned: Option<Box<[u8]>>,
}

impl PostedOp {
    pub fn new(pieces: Pieces, site: Site, c: &Common, end: Ending) -> PostedOp {
        PostedOp { pieces, site, c: *c, end, _owned: None }
    }

    /// Works on a copy of the bytes of an inject call from now on.
    pub(super) fn own(mut self) -> Result<PostedOp> {
        if self.c.flags & flags::INJECT != 0 && self.end.kind & flags::READ == 0 {
            let bytes = match self.site.is_host() {
                true => gather(self.pieces.as_slice(), 0, self.end.len as u64),
                false => load(self.site, self.pieces.as_slice(), self.end.len)?,
            };
            // SAFETY: the bytes stay with the operation.
            self.pieces = Pieces::One(unsafe { Iov::of(&bytes) });
            (self.site, self._owned) = (Site::HOST, Some(bytes));
        }
        Ok(self)
    }
}

/// Faults on demand of an endpoint.
pub struct Faults {
    plan: Box<Plan>,
    /// What has been accepted and has not started, and when it may.
    pub(super) held: VecDeque<(u64, AcceptedOp)>,
}

impl Faults {
    pub fn wanted() -> Option<Box<Faults>> {
        Plan::of("tcp").map(|plan| Box::new(Faults { plan, held: VecDeque::new() }))
    }

    pub fn short(&self) -> Option<usize> {
        self.plan.short()
    }

    /// After how many segments each rail is lost; 0: never.
    pub fn rails(&self) -> [u64; RAILS_MAX] {
        std::array::from_fn(|number| self.plan.rail(number))
    }

    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// When something is to be started.
    pub fn next(&self) -> u64 {
        self.held.front().map_or(0, |(until, _)| *until)
    }

    /// The deadlines of what is held, 0 where there is none.
    pub fn deadlines(&self) -> impl Iterator<Item = u64> {
        self.held.iter().map(|(_, job)| match job {
            AcceptedOp::Rma { posted, .. } | AcceptedOp::Send(posted) => posted.end.deadline,
            AcceptedOp::Recv(recv) => recv.deadline,
        })
    }

    pub(super) fn judge(&mut self, op: Op, connected: bool) -> Verdict {
        match (if connected { self.plan.post(op) } else { self.plan.early(op) }, self.held.back()) {
            // Behind what is held.
            (Verdict::Go, Some((until, _))) => Verdict::Hold(*until),
            (Verdict::Hold(until), Some((before, _))) => Verdict::Hold(until.max(*before)),
            (verdict, _) => verdict,
        }
    }

    /// Takes up to `most` operations and receives away.
    pub fn take(&mut self, operation: impl Fn(&Ending) -> bool, receive: impl Fn(&Recv) -> bool, most: usize) -> (Vec<Ending>, Vec<Recv>) {
        let (mut ends, mut receives) = (Vec::new(), Vec::new());
        for (until, job) in std::mem::take(&mut self.held) {
            let room = ends.len() + receives.len() < most;
            match job {
                AcceptedOp::Rma { posted, .. } | AcceptedOp::Send(posted) if room && operation(&posted.end) => ends.push(posted.end),
                AcceptedOp::Recv(recv) if room && receive(&recv) => receives.push(recv),
                job => self.held.push_back((until, job)),
            }
        }
        (ends, receives)
    }
}
