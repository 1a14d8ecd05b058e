// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fault injection on one endpoint: accepted operations that start late, or that lose the connection.

use super::recv::Recv;
use crate::error::Result;
use crate::hmem::Site;
use crate::prov::bind::Ending;
use crate::prov::fault::{FaultOp, Plan, Verdict};
use crate::prov::flags;
use crate::prov::op::{Common, Dir, Iov, Pieces, RmaIov};
use crate::prov::tcp::memory::source::{gather, load};
use crate::prov::tcp::wire::segment::RAILS_MAX;
use std::collections::VecDeque;

/// An accepted operation, with all that is needed to start it later.
pub enum AcceptedOp {
    Rma { dir: Dir, remote: Box<[RmaIov]>, posted: PostedOp },
    Send(PostedOp),
    Recv(Recv),
}

/// The parts that an RMA operation and a message have in common.
pub struct PostedOp {
    pub pieces: Pieces,
    pub site: Site,
    pub c: Common,
    pub end: Ending,
    /// A copy of the bytes of an inject call, whose buffer belongs to the caller again.
    _owned: Option<Box<[u8]>>,
}

impl PostedOp {
    pub fn new(pieces: Pieces, site: Site, c: &Common, end: Ending) -> PostedOp {
        PostedOp { pieces, site, c: *c, end, _owned: None }
    }

    /// For an inject call, copies the bytes; from now on the operation uses the copy.
    pub(super) fn own(mut self) -> Result<PostedOp> {
        if self.c.flags & flags::INJECT != 0 && self.end.kind & flags::READ == 0 {
            let bytes = match self.site.is_host() {
                true => gather(self.pieces.as_slice(), 0, self.end.len as u64),
                false => load(self.site, self.pieces.as_slice(), self.end.len)?,
            };
            // SAFETY: the bytes are on the heap, and `_owned` keeps them as long as the operation.
            self.pieces = Pieces::One(unsafe { Iov::of(&bytes) });
            (self.site, self._owned) = (Site::HOST, Some(bytes));
        }
        Ok(self)
    }
}

/// The faults that `GDRFAB_FAULT` asks of an endpoint.
pub struct Faults {
    plan: Box<Plan>,
    /// Accepted operations that have not started, each with the time at which it may start.
    pub(super) held: VecDeque<(u64, AcceptedOp)>,
}

impl Faults {
    /// The faults, if `GDRFAB_FAULT` asks some of this provider.
    pub fn wanted() -> Option<Box<Faults>> {
        Plan::of("tcp").map(|plan| Box::new(Faults { plan, held: VecDeque::new() }))
    }

    /// The most bytes of one system call, if there is such a limit.
    pub fn short(&self) -> Option<usize> {
        self.plan.short()
    }

    /// The number of segments after which each rail is lost; 0: never.
    pub fn rails(&self) -> [u64; RAILS_MAX] {
        std::array::from_fn(|number| self.plan.rail(number))
    }

    /// Number of held operations.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// The time at which the next held operation may start; 0: none is held.
    pub fn next(&self) -> u64 {
        self.held.front().map_or(0, |(until, _)| *until)
    }

    /// The deadlines of held operations; 0 for an operation without a deadline.
    pub fn deadlines(&self) -> impl Iterator<Item = u64> {
        self.held.iter().map(|(_, accepted)| match accepted {
            AcceptedOp::Rma { posted, .. } | AcceptedOp::Send(posted) => posted.end.deadline,
            AcceptedOp::Recv(recv) => recv.deadline,
        })
    }

    /// Decides whether an accepted operation starts now, late, or never.
    pub(super) fn judge(&mut self, op: FaultOp, connected: bool) -> Verdict {
        match (if connected { self.plan.post(op) } else { self.plan.early(op) }, self.held.back()) {
            // An operation without a delay of its own stays behind the operations that are held.
            (Verdict::Go, Some((until, _))) => Verdict::Hold(*until),
            (Verdict::Hold(until), Some((before, _))) => Verdict::Hold(until.max(*before)),
            (verdict, _) => verdict,
        }
    }

    /// Removes the held operations and receives that the predicates pick, up to `most` in all.
    pub fn take(&mut self, operation: impl Fn(&Ending) -> bool, receive: impl Fn(&Recv) -> bool, most: usize) -> (Vec<Ending>, Vec<Recv>) {
        let (mut ends, mut receives) = (Vec::new(), Vec::new());
        for (until, accepted) in std::mem::take(&mut self.held) {
            let room = ends.len() + receives.len() < most;
            match accepted {
                AcceptedOp::Rma { posted, .. } | AcceptedOp::Send(posted) if room && operation(&posted.end) => ends.push(posted.end),
                AcceptedOp::Recv(recv) if room && receive(&recv) => receives.push(recv),
                accepted => self.held.push_back((until, accepted)),
            }
        }
        (ends, receives)
    }
}
