// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Closes the regions that offers have exposed. A region is closed when the peer has read the offered message, when this
//! side takes the offer back (cancel, deadline), or when the peer is gone. No function here waits: this part tries again
//! later to close a region that is busy, so that a peer that makes no progress does not delay the others.

use crate::error::Error;
use crate::mr::RegionId;
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::peer::CompletionInfo;
use std::collections::{HashSet, VecDeque};

/// One attempt tries to close so many busy regions, and to end so many revoked offers.
const RETRIES: usize = 32;
/// Pause between two attempts, in nanoseconds: after the first attempt that closes nothing, and at most. The pause doubles
/// with each further attempt that closes nothing.
const RETRY_MIN: u64 = 20_000;
const RETRY_MAX: u64 = 5_000_000;

/// An exposed region, with the index of its lane.
pub type LaneRegion = (usize, RegionId);

/// An offer that this side took back, or whose peer is gone. The completion entry of the offer is written when the peer can
/// no longer read the memory.
pub struct RevokedOffer {
    pub completion: CompletionInfo,
    /// Number of the offer, while the peer may still answer it; 0 afterwards.
    pub number: u64,
    pub exposed: Vec<LaneRegion>,
    /// As in `OutstandingOp::Offered`: nothing but the peer's answer shows that the peer no longer reads.
    pub needs_answer: bool,
    pub why: Error,
    /// The library's copy of the message's bytes, if there is one, kept until the peer can no longer read them.
    pub _owned: Option<Box<[u8]>>,
}

/// The completion of a revoked offer that is over, and the error that it gets.
pub type EndedOffer = (CompletionInfo, Error);

impl RevokedOffer {
    /// Closes the regions of the offer as far as possible. True if the peer can no longer read any of the memory.
    fn is_over(&mut self, domain: &Domain) -> bool {
        // If the offer needs an answer and the lane cannot revoke a region while the peer reads, the region stays open until
        // the answer. If the lane can revoke, its regions close now, and the answer is needed only for the part of the
        // message that lies in the program's own regions.
        self.exposed.retain(|region| self.needs_answer && !domain.can_revoke(region.0) || domain.close_is_busy(*region));
        self.exposed.is_empty() && !self.needs_answer
    }
}

/// Regions of offers that the peer has answered or that this side has revoked, until the regions are closed.
#[derive(Default)]
pub struct ExposedRegions {
    /// Regions that the peer no longer reads or was never told of. The end of the turn closes these regions.
    returned: Vec<LaneRegion>,
    /// Regions that could not be closed, because a peer may still be reading them.
    busy: VecDeque<LaneRegion>,
    /// Offers that are not over, because a peer may still be reading their memory.
    revoked: VecDeque<RevokedOffer>,
    /// Time of the next attempt to close these regions, and the pause before this attempt, in nanoseconds.
    retry_at: u64,
    retry_pause: u64,
}

impl ExposedRegions {
    /// Takes regions that the peer no longer reads or was never told of. `close_returned` closes these regions.
    pub fn give_back(&mut self, regions: Vec<LaneRegion>) {
        self.returned.extend(regions);
    }

    /// Number of regions that `close_returned` would close.
    #[inline(always)]
    pub fn returned(&self) -> usize {
        self.returned.len()
    }

    /// Closes the regions that were given back. Busy regions are tried again later.
    pub fn close_returned(&mut self, domain: &Domain) {
        self.busy.extend(std::mem::take(&mut self.returned).into_iter().filter(|region| domain.release_is_busy(*region)));
    }

    /// Tries again to close some of the busy regions, and to end some of the revoked offers, unless the pause is not over.
    /// Returns the offers that have ended.
    pub fn retry(&mut self, domain: &Domain, now: u64) -> Vec<EndedOffer> {
        if now < self.retry_at {
            return Vec::new();
        }
        let mut closed = false;
        for region in self.busy.drain(..self.busy.len().min(RETRIES)).collect::<Vec<_>>() {
            match domain.close_is_busy(region) {
                true => self.busy.push_back(region),
                false => closed = true,
            }
        }
        let mut ended = Vec::new();
        for mut revoked in self.revoked.drain(..self.revoked.len().min(RETRIES)).collect::<Vec<_>>() {
            match revoked.is_over(domain) {
                true => ended.push((revoked.completion, revoked.why)),
                false => self.revoked.push_back(revoked),
            }
        }
        self.retry_pause = if closed || !ended.is_empty() { 0 } else { (2 * self.retry_pause).clamp(RETRY_MIN, RETRY_MAX) };
        self.retry_at = now + self.retry_pause;
        ended
    }

    /// Ends the pause, so that the next `retry` makes an attempt.
    pub fn retry_soon(&mut self) {
        self.retry_at = 0;
    }

    /// Adds an offer that this side took back. If the peer can no longer read the memory, returns the offer as ended.
    /// Otherwise the offer waits, and its error says so.
    pub fn revoke(&mut self, domain: &Domain, mut revoked: RevokedOffer) -> Option<EndedOffer> {
        if revoked.is_over(domain) {
            return Some((revoked.completion, revoked.why));
        }
        revoked.why.words =
            format!("{}; the peer may have been reading its buffer, which was kept until that was over", revoked.why.words).into();
        self.revoked.push_back(revoked);
        None
    }

    /// Handles the peer's answer to a revoked offer. Returns the offer as ended if the offer still waited.
    pub fn answered(&mut self, number: u64) -> Option<EndedOffer> {
        let at = self.revoked.iter().position(|revoked| revoked.number == number)?;
        let revoked = self.revoked.remove(at)?;
        self.returned.extend(revoked.exposed);
        Some((revoked.completion, revoked.why))
    }

    /// Handles the loss of a peer, which will answer none of the offers with these numbers. `open`: the offers among them
    /// that were not revoked before.
    pub fn peer_gone(&mut self, numbers: &HashSet<u64>, open: impl Iterator<Item = RevokedOffer>) {
        let revoked = self.revoked.iter_mut().filter(|revoked| numbers.contains(&revoked.number));
        revoked.for_each(|revoked| (revoked.number, revoked.needs_answer) = (0, false));
        self.revoked.extend(open);
        self.retry_soon();
    }

    /// True if regions or offers wait until a peer no longer reads.
    pub fn is_closing(&self) -> bool {
        self.has_revoked() || !self.busy.is_empty()
    }

    /// True if offers wait to be completed.
    pub fn has_revoked(&self) -> bool {
        !self.revoked.is_empty()
    }

    /// Hands out the busy regions, because the endpoint closes.
    pub fn take_busy(&mut self) -> impl IntoIterator<Item = LaneRegion> + use<> {
        std::mem::take(&mut self.busy)
    }
}
