// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that was lent to a peer comes back: when the offer is done, when it is taken back, and when the peer is gone. Nothing
//! here waits: what cannot be closed now is tried again later, for one peer that does not go on must not hold up the others.

use crate::error::{Code, Error, Result, errno};
use crate::prov::flags;
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::outstanding::{Op, RevokedOffer};
use crate::rdm::peers::peer::{CompletionInfo, Id, OfferState};
use crate::rdm::peers::unexpected::Unexpected;
use crate::rdm::state::{State, UNKNOWN};
use crate::rdm::wire::parcel::ParcelWords;

/// Regions that one turn tries again to close.
const RETRIES: usize = 32;
/// Nanoseconds between two such turns.
const RETRY_MIN: u64 = 20_000;
const RETRY_MAX: u64 = 5_000_000;

impl State {
    /// Closes regions of offers that the peer has done with, or never heard of; those that cannot be closed now are tried again
    /// later.
    pub fn close_returned(&mut self, domain: &Domain) {
        for region in std::mem::take(&mut self.returned) {
            if domain.release_is_busy(region) {
                self.pending_close.push_back(region);
            }
        }
    }

    /// Tries a part of the regions again that could not be closed.
    pub fn retry_closes(&mut self, domain: &Domain, now: u64) {
        if (self.pending_close.is_empty() && self.revoked.is_empty()) || now < self.retry_at {
            return;
        }
        let mut closed = false;
        for region in self.pending_close.drain(..self.pending_close.len().min(RETRIES)).collect::<Vec<_>>() {
            match domain.close_is_busy(region) {
                true => self.pending_close.push_back(region),
                false => closed = true,
            }
        }
        for revoked in self.revoked.drain(..self.revoked.len().min(RETRIES)).collect::<Vec<_>>() {
            closed |= self.end_revoked(domain, revoked);
        }
        self.retry_pause = if closed { 0 } else { (2 * self.retry_pause).clamp(RETRY_MIN, RETRY_MAX) };
        self.retry_at = now + self.retry_pause;
    }

    /// Ends an offer that was taken back, if the peer can read it no more. False: it stays.
    pub fn end_revoked(&mut self, domain: &Domain, mut revoked: RevokedOffer) -> bool {
        // What would end more than the read stays until the peer has said its word.
        revoked.exposed.retain(|region| revoked.in_callers_regions && !domain.can_revoke(region.0) || domain.close_is_busy(*region));
        let over = revoked.exposed.is_empty() && !revoked.in_callers_regions;
        match over {
            true => self.fail(&revoked.end, revoked.why),
            false => self.revoked.push_back(revoked),
        }
        over
    }

    /// Cancels the first receive with this context, or else the first operation that still can be.
    pub fn cancel(&mut self, domain: &Domain, context: usize) -> Result<()> {
        let why = Error::coded(errno::ECANCELED, Code::Canceled, "cancelled by the caller");
        let first = self.find_receives(|r| r.context == context).first().copied();
        if let Some(recv) = first.and_then(|(tagged, at)| self.withdraw_recv(tagged, at)) {
            self.fail_recv(recv, why, UNKNOWN);
            return Ok(());
        }
        if self.end_delayed(&why, 1, |held| held.recv.context == context) > 0 {
            return Ok(());
        }
        let (mut result, mut after) = (Err(nothing_to_cancel()), None);
        // What the peer has may refuse, and then it is the next one's turn.
        while result.is_err() {
            let can_repost = |end: &CompletionInfo, found: CancelOrder| end.context == context && after.is_none_or(|after| found > after);
            let mut first = None;
            for id in self.active() {
                let Some(peer) = self.peers.get(id as usize).and_then(Option::as_deref) else { continue };
                let mut waiting = peer.waiting.iter().enumerate().map(|(at, w)| (&w.end, (w.end.post, false, at as u64, id)));
                first = earlier(first, waiting.find(|(end, found)| can_repost(end, *found)).map(|(_, found)| found));
            }
            for (number, op) in self.ops.each() {
                if let Op::Offered { end, .. } | Op::Loopback { end, .. } | Op::Rma { end, .. } = op
                    && can_repost(end, (end.post, true, number, 0))
                {
                    first = earlier(first, Some((end.post, true, number, 0)));
                }
            }
            let Some((_, is_under_way, number, id)) = first else { break };
            after = first;
            if is_under_way {
                result = self.cancel_op(domain, number, why.clone());
            } else if let Some(waiting) = self.peer(id).and_then(|p| p.waiting.remove(number as usize)) {
                self.fail_pending(waiting, why.clone());
                result = Ok(());
            }
        }
        result
    }

    fn cancel_op(&mut self, domain: &Domain, number: u64, why: Error) -> Result<()> {
        let id = match self.ops.get(number) {
            Some(Op::Rma { peer, .. }) => *peer,
            Some(Op::Offered { .. }) => {
                self.withdraw(domain, number, why);
                self.run_deferred(domain);
                return Ok(());
            }
            _ => return if self.withdraw_loopback(number, why) { Ok(()) } else { Err(nothing_to_cancel()) },
        };
        let link = self.peer(id).and_then(|p| p.link().cloned()).ok_or_else(nothing_to_cancel)?;
        link.ep.cancel(number as usize)
    }

    /// Takes an offer back: the peer does not match it from now on, and if it reads it already, that read fails.
    pub fn withdraw(&mut self, domain: &Domain, number: u64, why: Error) {
        let Some(op) = self.ops.get(number) else { return };
        let Op::Offered { peer, .. } = op else { return };
        let id = *peer;
        let Op::Offered { end, exposed, in_callers_regions, _owned, .. } = std::mem::replace(op, Op::Withdrawn { peer: id }) else {
            return;
        };
        if let Some(peer) = self.peer(id) {
            peer.exposed = peer.exposed.saturating_sub(exposed.len());
            peer.control.push_back(ParcelWords::withdraw(number));
        }
        self.mark_busy(id);
        if !self.end_revoked(domain, RevokedOffer { end, number, exposed, in_callers_regions, why, _owned })
            && let Some(revoked) = self.revoked.back_mut()
        {
            revoked.why.words =
                format!("{}; the peer may have been reading its buffer, which was kept until that was over", revoked.why.words).into();
        }
    }

    /// Takes a message to this very endpoint back that no receive has got.
    pub fn withdraw_loopback(&mut self, number: u64, why: Error) -> bool {
        let Some(Op::Loopback { end, .. }) = self.ops.get(number) else { return false };
        let (end, space) = (*end, if end.kind & flags::TAGGED != 0 { &mut self.tagged } else { &mut self.untagged });
        let mut waiting = space.each_unexpected();
        let found = waiting.find(|(.., m)| matches!(m, Unexpected::Loopback { number: n, .. } if *n == number)).map(|(at, ..)| at);
        drop(waiting);
        let Some(at) = found else { return false };
        space.remove_unexpected(at);
        self.ops.take(number);
        self.fail(&end, why);
        true
    }

    /// The peer takes an offer back. One that was matched or claimed ends with its read.
    pub fn on_withdraw(&mut self, id: Id, number: u64) {
        // What is done already is unknown here.
        match self.peer(id).and_then(|p| p.offer_state(number)) {
            Some(OfferState::Unmatched { tagged, at }) => {
                let space = self.space(tagged);
                let is_it = |m: &Unexpected| matches!(m, Unexpected::Offered { from, offer, .. } if *from == id && offer.number == number);
                if space.unexpected(at).is_some_and(|(.., m)| is_it(m)) {
                    space.remove_unexpected(at);
                    self.send_done(id, number, Code::Canceled);
                }
            }
            // The peer's `reads` may name it still, where nothing is found then.
            Some(OfferState::Reading(read)) if matches!(self.ops.get(read), Some(Op::Reading { queued: true, .. })) => {
                self.read_ended(read, Err(Error::coded(errno::EKEYREJECTED, Code::Key, "it was not read yet")));
            }
            _ => {}
        }
    }
}

/// When an operation was posted (parts of a list: 0), whether it is under way, its number or else its place in what waits for this
/// peer.
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
