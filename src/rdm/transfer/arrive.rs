// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parcels that arrive on a lane. As in `deliver`, no function here sends on a lane.

use crate::error::{Code, Error, Result, errno};
use crate::mr::parts;
use crate::mr::piece::store;
use crate::prov::{Parcel, ParcelSink};
use crate::rdm::peers::link::Link;
use crate::rdm::peers::outstanding::OutstandingOp;
use crate::rdm::peers::peer::{Id, OfferState, PendingKind};
use crate::rdm::peers::unexpected::{Unexpected, UnexpectedData};
use crate::rdm::state::State;
use crate::rdm::transfer::deliver::read_failure;
use crate::rdm::transfer::fast_arrive::FastOutcome;
use crate::rdm::wire::parcel::{Label, MessageOffer, ParcelHead};
use crate::sync::cursor::ShortMessage;
use std::sync::Arc;

/// Receives the parcels of one lane.
struct LaneSink<'a> {
    state: &'a mut State,
    id: Id,
    link: &'a Link,
    /// The lane has brought something in this poll.
    progressed: bool,
    /// In this poll, a message without a receive may stay with the lane if a receive was filled just before: the program is
    /// about to post the next receive, and a message that need not be stored costs half as much.
    may_defer: bool,
    /// A receive was filled just before, so the next message without a receive stays with the lane.
    defers: bool,
}

impl<'a> LaneSink<'a> {
    #[inline(always)]
    fn new(state: &'a mut State, id: Id, link: &'a Link, may_defer: bool) -> LaneSink<'a> {
        let defers = may_defer && state.turns.may_defer(link);
        LaneSink { state, id, link, progressed: false, may_defer, defers }
    }

    #[inline(always)]
    fn take_parcel<P: Parcel + ?Sized>(&mut self, parcel: &P, all: &dyn Parcel) -> bool {
        self.progressed = true;
        match self.state.on_fast(self.id, self.link.number, parcel, self.defers) {
            FastOutcome::Filled => {
                self.state.turns.filled(self.link);
                self.defers = self.may_defer;
                true
            }
            FastOutcome::Stored => {
                // The message had to be stored, so deferring is not tried again in this turn.
                self.may_defer = false;
                true
            }
            FastOutcome::Deferred => false,
            FastOutcome::Declined => self.state.on_parcel(self.id, self.link.number, all),
        }
    }
}

impl ParcelSink for LaneSink<'_> {
    fn take(&mut self, parcel: &dyn Parcel) -> bool {
        self.take_parcel(parcel, parcel)
    }

    fn take_short(&mut self, parcel: ShortMessage<'_>) -> bool {
        self.take_parcel(&parcel, &parcel)
    }
}

impl State {
    /// Polls a lane and handles the parcels. True if the lane brought something or is working on something.
    #[inline(always)]
    pub fn poll_lane(&mut self, id: Id, link: &Link, force: bool) -> bool {
        // Nothing is deferred when a thread is about to sleep or a deadline is set, because both rely on nothing being
        // left in the lane.
        let may_defer = !force && self.sleepers == 0 && self.earliest == 0;
        let mut sink = LaneSink::new(self, id, link, may_defer);
        let is_working = link.lane().is_some_and(|lane| lane.take(force, &mut sink));
        is_working || sink.progressed
    }

    /// Handles everything that the peer has sent by now.
    pub fn drain_lane(&mut self, id: Id, link: &Link) {
        let mut sink = LaneSink::new(self, id, link, false);
        if let Some(lane) = link.lane() {
            lane.take_all(&mut sink);
        }
    }

    /// Handles the messages that were left with their lanes.
    pub fn drain_deferred(&mut self) {
        if !self.reports.polls_lanes() || !self.turns.any_deferred() {
            return;
        }
        let has_deferred = |(_, link): &&(Id, Arc<Link>)| self.turns.has_deferred(link);
        let lanes: Vec<_> = self.lanes.connected_lanes().iter().filter(has_deferred).cloned().collect();
        lanes.iter().for_each(|(id, link)| self.drain_lane(*id, link));
    }

    /// Handles a parcel. False if the parcel breaks the protocol: then the parcel stays with the lane, and `violations` gets
    /// the reason.
    pub fn on_parcel(&mut self, id: Id, link: usize, parcel: &dyn Parcel) -> bool {
        match self.handle(id, link, parcel) {
            Ok(()) => true,
            Err(e) => {
                self.violations.push((link, e));
                false
            }
        }
    }

    #[inline]
    fn handle(&mut self, id: Id, link: usize, parcel: &dyn Parcel) -> Result<()> {
        match ParcelHead::of(parcel)? {
            ParcelHead::Eager(label) => self.on_eager(id, link, label, parcel),
            ParcelHead::Offer(label, offer) => self.on_offer(id, link, label, offer),
            ParcelHead::Done(number, status) => self.on_done(id, number, status),
            ParcelHead::Withdraw(number) => {
                self.on_withdraw(id, number);
                Ok(())
            }
            ParcelHead::Credit(consumed, grant) => self.peers.credit_returned(id, consumed, grant),
        }
    }

    /// Handles a message that came with its bytes: copies it into a receive, or stores it.
    #[inline]
    fn on_eager(&mut self, id: Id, link: usize, label: Label, parcel: &dyn Parcel) -> Result<()> {
        let Some(peer) = self.peers.get_mut(id) else { return Ok(()) };
        let (len, source) = (parcel.len(), peer.source);
        peer.credit.receive(len)?;
        let (tagged, tag) = (label.tag.is_some(), label.tag.unwrap_or(0));
        let Some(recv) =
            self.matching.matcher(tagged).find_posted(source, tag).and_then(|at| self.matching.take_recv(tagged, at, len, source))
        else {
            let bytes = UnexpectedData::of(parcel);
            self.reports.stats().unexpected += 1;
            self.matching.matcher(tagged).keep(source, tag, Unexpected::Eager { from: id, link, bytes, data: label.data });
            return Ok(());
        };
        let n = len.min(recv.room);
        let placed = if recv.site().is_host() {
            let mut at = 0;
            for part in parts(recv.pieces(), 0, n) {
                parcel.copy(at, part);
                at += part.len();
            }
            Ok(())
        } else {
            store(recv.site(), recv.pieces(), 0, &parcel.bytes(n))
        };
        self.peers.consumed(id, link, len);
        self.complete_placed(&recv, placed, n, len - n, &label, source);
        Ok(())
    }

    /// Handles an offer: reads the message into a receive, or stores the offer. A peer that exceeds the limits for offers
    /// is disconnected.
    fn on_offer(&mut self, id: Id, link: usize, label: Label, offer: MessageOffer) -> Result<()> {
        let Some(source) = self.peers.get(id).map(|p| p.source) else { return Ok(()) };
        self.peers.offered(id, &offer)?;
        let (tagged, tag) = (label.tag.is_some(), label.tag.unwrap_or(0));
        let at = self.matching.matcher(tagged).find_posted(source, tag);
        let position = at.and_then(|at| self.matching.matcher(tagged).position_of(at));
        match at.and_then(|at| self.matching.take_recv(tagged, at, offer.len as usize, source)) {
            Some(recv) => {
                let position = position.filter(|_| recv.multi().is_none());
                self.read_offer(id, None, offer, label, recv, source, position);
            }
            None => {
                self.reports.stats().unexpected += 1;
                let number = offer.number;
                let at = self.matching.matcher(tagged).keep(source, tag, Unexpected::Offered { from: id, link, offer, data: label.data });
                if let Some(peer) = self.peers.get_mut(id) {
                    peer.set_offer_state(number, OfferState::Unmatched { tagged, at });
                }
            }
        }
        Ok(())
    }

    /// Handles a peer's WITHDRAW. If the lane has the read of the offer, the offer stays until the read ends. If a peek has
    /// claimed the offer, the offer stays until the program receives or discards it.
    pub fn on_withdraw(&mut self, id: Id, number: u64) {
        // An offer that is finished has no state any more; its answer DONE is on the way.
        match self.peers.get_mut(id).and_then(|p| p.offer_state(number)) {
            Some(OfferState::Unmatched { tagged, at }) => {
                let removed = self.matching.remove_offer(tagged, at, id, number);
                if removed {
                    self.peers.send_done(id, number, Code::Canceled);
                }
            }
            // `Peer::reads` may still contain this number; `post_reads_of` skips numbers without an operation.
            Some(OfferState::Reading(read)) if matches!(self.ops.get(read), Some(OutstandingOp::Reading { queued: true, .. })) => {
                self.read_ended(read, Err(Error::coded(errno::EKEYREJECTED, Code::Key, "it was not read yet")));
            }
            _ => {}
        }
    }

    /// Handles the peer's answer to an offer (DONE): the peer has read the message, or could not or need not read it.
    pub fn on_done(&mut self, id: Id, number: u64, status: Code) -> Result<()> {
        // The peer has not been told of an offer that still waits for room in the lane, so it cannot answer the offer.
        let first = self.peers.get_mut(id).and_then(|p| p.waiting.front());
        let waits = first.is_some_and(|w| matches!(w.kind, PendingKind::Message { offered: Some((n, _)), .. } if n == number));
        match self.ops.get(number) {
            Some(OutstandingOp::Offered { peer, .. } | OutstandingOp::Withdrawn { peer }) if *peer == id && !waits => {}
            _ => return Err(Error::coded(errno::EPROTO, Code::PeerBroke, "the peer took an offer that was never made")),
        }
        let op = self.ops.take(number);
        if let Some(peer) = self.peers.get_mut(id) {
            (peer.open_offers, peer.in_flight) = (peer.open_offers.saturating_sub(1), peer.in_flight.saturating_sub(1));
        }
        match op {
            Some(OutstandingOp::Offered { completion, exposed, pieces, .. }) => {
                if let Some(peer) = self.peers.get_mut(id) {
                    peer.exposed = peer.exposed.saturating_sub(exposed.len());
                }
                self.exposed.give_back(exposed);
                self.reports.finish(
                    &self.bind,
                    &completion,
                    if status == Code::None { Ok(()) } else { Err(read_failure(&self.user_copy, status, &pieces)) },
                );
            }
            // This side took the offer back. The offer's completion entry is written now if the entry still waits.
            _ => {
                if let Some((completion, why)) = self.exposed.answered(number) {
                    self.reports.finish(&self.bind, &completion, if status == Code::None { Ok(()) } else { Err(why) });
                }
            }
        }
        self.peers.mark_busy(id);
        Ok(())
    }
}
