// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cancelling: ends a receive before a message fills it, or an operation before the peer completes it, because the program
//! cancels it. Also takes offers back, for the same reason or because a deadline has passed.

use crate::error::{Code, Error, Result, errno};
use crate::prov::flags;
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::parts::exposed::RevokedOffer;
use crate::rdm::peers::outstanding::OutstandingOp;
use crate::rdm::peers::peer::{CompletionInfo, Id, UNKNOWN};
use crate::rdm::state::State;

/// Result of a cancel that found a receive or an operation.
#[derive(PartialEq)]
pub enum Cancelled {
    /// The receive or the operation has ended, or its lane ends it.
    Ended,
    /// An offer was taken back, and the peer has to be told.
    Withdrawn,
}

impl State {
    /// Cancels the first receive with this context. If there is none, cancels the first operation with this context that
    /// can still be cancelled.
    pub fn cancel(&mut self, domain: &Domain, context: usize) -> Result<Cancelled> {
        let why = Error::coded(errno::ECANCELED, Code::Canceled, "cancelled by the caller");
        if let Some(recv) = self.matching.take_receives(1, |r| r.context == context).pop() {
            self.fail_recv(recv, why, UNKNOWN);
            return Ok(Cancelled::Ended);
        }
        if self.end_delayed(&why, 1, |held| held.recv.context == context) > 0 {
            return Ok(Cancelled::Ended);
        }
        let (mut result, mut after) = (Err(nothing_to_cancel()), None);
        // A lane may refuse to cancel an operation that it has begun; then the next candidate is tried.
        while result.is_err() {
            let is_next =
                |completion: &CompletionInfo, found: CancelOrder| completion.context == context && after.is_none_or(|after| found > after);
            let mut first = None;
            for id in self.active() {
                let Some(peer) = self.peers.get(id) else { continue };
                let mut waiting = peer.waiting.iter().enumerate().map(|(at, w)| (&w.completion, (w.completion.post, false, at as u64, id)));
                first = earlier(first, waiting.find(|(completion, found)| is_next(completion, *found)).map(|(_, found)| found));
            }
            for (number, op) in self.ops.each() {
                if let OutstandingOp::Offered { completion, .. }
                | OutstandingOp::Loopback { completion, .. }
                | OutstandingOp::Rma { completion, .. } = op
                    && is_next(completion, (completion.post, true, number, 0))
                {
                    first = earlier(first, Some((completion.post, true, number, 0)));
                }
            }
            let Some((_, is_under_way, number, id)) = first else { break };
            after = first;
            if is_under_way {
                result = self.cancel_op(domain, number, why.clone());
            } else if let Some(waiting) = self.peers.get_mut(id).and_then(|p| p.waiting.remove(number as usize)) {
                self.fail_pending(waiting, why.clone());
                result = Ok(Cancelled::Ended);
            }
        }
        result
    }

    fn cancel_op(&mut self, domain: &Domain, number: u64, why: Error) -> Result<Cancelled> {
        let id = match self.ops.get(number) {
            Some(OutstandingOp::Rma { peer, .. }) => *peer,
            Some(OutstandingOp::Offered { .. }) => {
                self.withdraw(domain, number, why);
                return Ok(Cancelled::Withdrawn);
            }
            _ => return if self.withdraw_loopback(number, why) { Ok(Cancelled::Ended) } else { Err(nothing_to_cancel()) },
        };
        let link = self.peers.get_mut(id).and_then(|p| p.link().cloned()).ok_or_else(nothing_to_cancel)?;
        link.ep.cancel(number as usize).map(|()| Cancelled::Ended)
    }

    /// Takes an offer back, so that the peer does not match it any more. If the peer is already reading the message, the
    /// read fails where the lane can revoke the memory; elsewhere the offer waits for the peer's answer.
    pub fn withdraw(&mut self, domain: &Domain, number: u64, why: Error) {
        let Some(op) = self.ops.get(number) else { return };
        let OutstandingOp::Offered { peer, .. } = op else { return };
        let id = *peer;
        let OutstandingOp::Offered { completion, exposed, needs_answer, _owned, .. } =
            std::mem::replace(op, OutstandingOp::Withdrawn { peer: id })
        else {
            return;
        };
        self.peers.send_withdraw(id, number, exposed.len());
        let revoked = RevokedOffer { completion, number, exposed, needs_answer, why, _owned };
        if let Some((completion, why)) = self.exposed.revoke(domain, revoked) {
            self.reports.fail(&self.bind, &completion, why);
        }
    }

    /// Takes back a message of this endpoint to itself that no receive has matched. False if there is no such message.
    pub fn withdraw_loopback(&mut self, number: u64, why: Error) -> bool {
        let Some(OutstandingOp::Loopback { completion, .. }) = self.ops.get(number) else { return false };
        let completion = *completion;
        if !self.matching.remove_loopback(completion.kind & flags::TAGGED != 0, number) {
            return false;
        }
        self.ops.take(number);
        self.reports.fail(&self.bind, &completion, why);
        true
    }
}

/// The order in which operations with one context are cancelled. The fields: number in the order of posting (0 for block
/// lists); whether the operation has started; the operation's number if it has, otherwise its index in the peer's queue; and
/// the peer of the queue (0 if the operation has started).
type CancelOrder = (u64, bool, u64, Id);

fn earlier(one: Option<CancelOrder>, other: Option<CancelOrder>) -> Option<CancelOrder> {
    match (one, other) {
        (Some(one), Some(other)) if other < one => Some(other),
        (one, other) => one.or(other),
    }
}

fn nothing_to_cancel() -> Error {
    Error::new(errno::ENOENT, "context: no operation of this endpoint with it can still be cancelled")
}
