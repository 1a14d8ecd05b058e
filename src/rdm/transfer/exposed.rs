// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of exposed memory. A region is closed when the peer has read its offer, when the sender takes the offer back
//! (cancel, deadline), or when the peer is gone. No function here waits. A region that cannot be closed yet is tried
//! again later, so that a peer that makes no progress does not delay the others.

use crate::error::{Code, Error, errno};
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::outstanding::{Op, RevokedOffer};
use crate::rdm::peers::peer::{Id, OfferState};
use crate::rdm::peers::unexpected::Unexpected;
use crate::rdm::state::State;

/// Number of regions, and of revoked offers, that one attempt tries to close.
const RETRIES: usize = 32;
/// Pause between two attempts, in nanoseconds: after the first that closes nothing, and at most.
const RETRY_MIN: u64 = 20_000;
const RETRY_MAX: u64 = 5_000_000;

impl State {
    /// Gives back the regions of offers that the peer has finished with or was never told of. Busy regions move to
    /// `pending_close`.
    pub fn close_returned(&mut self, domain: &Domain) {
        for region in std::mem::take(&mut self.returned) {
            if domain.release_is_busy(region) {
                self.pending_close.push_back(region);
            }
        }
    }

    /// Tries again to close some of the busy regions, and to end some of the revoked offers.
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

    /// Completes a revoked offer if the peer can no longer read its memory. Otherwise the offer goes back to `revoked`,
    /// and the result is false.
    pub fn end_revoked(&mut self, domain: &Domain, mut revoked: RevokedOffer) -> bool {
        // Only the peer's answer shows that the peer is finished, if the lane cannot revoke a region without disturbing
        // other memory, or if part of the message lies in the program's own regions.
        revoked.exposed.retain(|region| revoked.needs_answer && !domain.can_revoke(region.0) || domain.close_is_busy(*region));
        let over = revoked.exposed.is_empty() && !revoked.needs_answer;
        match over {
            true => self.fail(&revoked.completion, revoked.why),
            false => self.revoked.push_back(revoked),
        }
        over
    }

    /// Handles a peer's WITHDRAW. An offer whose read the lane has, or which a peek has claimed, stays until that read
    /// ends.
    pub fn on_withdraw(&mut self, id: Id, number: u64) {
        // An offer that is finished has no state any more; the answer DONE to it is on the way.
        match self.peer(id).and_then(|p| p.offer_state(number)) {
            Some(OfferState::Unmatched { tagged, at }) => {
                let space = self.space(tagged);
                let is_it = |m: &Unexpected| matches!(m, Unexpected::Offered { from, offer, .. } if *from == id && offer.number == number);
                if space.unexpected(at).is_some_and(|(.., m)| is_it(m)) {
                    space.remove_unexpected(at);
                    self.send_done(id, number, Code::Canceled);
                }
            }
            // `Peer::reads` may still contain this number; `post_reads_of` skips numbers without an operation.
            Some(OfferState::Reading(read)) if matches!(self.ops.get(read), Some(Op::Reading { queued: true, .. })) => {
                self.read_ended(read, Err(Error::coded(errno::EKEYREJECTED, Code::Key, "it was not read yet")));
            }
            _ => {}
        }
    }
}
