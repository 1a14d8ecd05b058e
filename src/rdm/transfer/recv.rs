// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Receives and arriving messages: this file matches the two, and gets the bytes into the receive. Lanes call these
//! functions while they hand out parcels, so no function here touches a lane: reads are queued in `Peer::reads`, and
//! answers in `Peer::control`.

use super::loopback::copy_pieces;
use super::send::{read_failure, stored_descs};
use crate::error::{Code, Error, Result, errno};
use crate::fallible::zeroed;
use crate::hmem::Site;
use crate::mr::parts;
use crate::mr::piece::{load, store};
use crate::prov::Parcel;
use crate::prov::av::UNSPEC;
use crate::prov::bind::ANY_PATH;
use crate::prov::flags::{self, CLAIM, DISCARD, PEEK};
use crate::prov::op::{Common, Dir, Iov, Pieces, RmaIov, measure};
use crate::rdm::limits::{EAGER_MAX, MAX_MSG};
use crate::rdm::matching::matcher::{EntryId, RecvFilter, RecvPosition};
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::outstanding::{Op, Recv, RecvExtra};
use crate::rdm::peers::peer::{Id, OfferState, PendingOp};
use crate::rdm::peers::unexpected::{Unexpected, UnexpectedData};
use crate::rdm::state::State;
use crate::rdm::wire::parcel::{Label, MessageOffer, ParcelHead};
use crate::sys::time;

impl State {
    /// Posts a receive. `tag`: the tag, and the bits of the tag that are ignored; `None` for an untagged receive.
    pub fn recv(&mut self, domain: &Domain, local: &[Iov], c: &Common, descs: &[u64], tag: Option<(u64, u64)>) -> Result<()> {
        // Messages that arrived before the connection ended can still be received.
        let drains_closed = self.connection.is_some() && self.closed && self.matching.space(tag.is_some()).unexpected_count() != 0;
        if !drains_closed {
            self.check_enabled()?;
        }
        if self.bind.rx.is_none() && self.bind.counters.recv.is_none() {
            return Err(Error::new(errno::ENOCQ, "ep: no completion queue or counter is bound for receives"));
        }
        let from = match c.peer {
            peer if peer == UNSPEC || !self.directed => None,
            peer => Some(self.route(peer)?),
        };
        self.matching.space(tag.is_some()).room_to_post()?;
        self.ops.room()?;
        let source = from.and_then(|id| self.peers.get_mut(id)).map_or(UNSPEC, |p| p.source);
        let (tag, ignore) = tag.map_or((None, 0), |(tag, ignore)| (Some(tag), ignore));
        let want = RecvFilter { source, tag: tag.unwrap_or(0), ignore };
        let room = measure(local, MAX_MSG)?;
        let first = local.first().copied().unwrap_or_default();
        let site = domain.site(descs.first().copied().unwrap_or(0))?;
        let mut more = RecvExtra {
            pieces: if local.len() > 1 { Some(local.into()) } else { None },
            // No lane needs the descriptor of host memory, and an empty vector allocates nothing.
            descs: if site.is_host() && local.len() == 1 { Vec::new() } else { stored_descs(descs) },
            site,
            deadline: 0,
            multi: None,
        };
        let (wants_entry, tagged) = (self.bind.wants_receive(c.flags), tag.is_some());
        let mut recv = Recv { first, room, context: c.context, wants_entry, tagged, more: None };
        if c.flags & PEEK != 0 {
            self.drain_deferred();
        }
        self.drain_before_match(tagged, &want);
        if c.flags & (PEEK | CLAIM | DISCARD) != 0 {
            if c.flags & PEEK == 0 {
                more.deadline = self.recv_deadline(c);
            }
            recv.more = Some(Box::new(more));
            return self.probe(&want, recv, c.flags);
        }
        more.deadline = self.recv_deadline(c);
        // MULTI_RECV may be set by default for all receives; then it concerns untagged receives only.
        if c.flags & flags::MULTI_RECV != 0 && !tagged {
            if local.len() != 1 {
                return Err(Error::invalid("iov_count: a buffer for several messages has one piece"));
            }
            more.multi = Some((self.matching.begin_multi(self.options.min_multi_recv), 0));
        }
        let is_plain = more.pieces.is_none() && more.descs.is_empty() && more.site.is_host() && more.deadline == 0 && more.multi.is_none();
        recv.more = if is_plain { None } else { Some(Box::new(more)) };
        match self.faults.is_none() || self.closed {
            true => self.post_recv(want, recv),
            false => self.post_faulty(from, want, recv),
        }
    }

    /// Posts a receive whose arguments the caller has checked.
    pub(in crate::rdm) fn post_recv(&mut self, want: RecvFilter, recv: Recv) -> Result<()> {
        let tagged = recv.tagged;
        let Some(first) = self.matching.space(tagged).find_unexpected(&want) else {
            self.check_enabled()?;
            let number = self.matching.next_post();
            self.matching.space(tagged).post(number, want, || recv);
            return Ok(());
        };
        let number = self.matching.next_post();
        if recv.multi().is_none() {
            self.match_unexpected(tagged, first, recv, Some((number, want)));
            return Ok(());
        }
        let at = self.matching.space(tagged).post(number, want, || recv);
        let mut next = Some(first);
        while let Some(message) = next {
            let (len, source) =
                (self.len_of(tagged, message), self.matching.space(tagged).unexpected(message).map_or(UNSPEC, |(source, ..)| source));
            let Some(part) = self.matching.take_recv(tagged, at, len, source) else { break };
            self.match_unexpected(tagged, message, part, None);
            next = match self.matching.space(tagged).posted(at) {
                Some(_) => self.matching.space(tagged).find_unexpected(&want),
                None => None,
            };
        }
        Ok(())
    }

    /// Handles what a peer has sent since its offer, if the oldest message that fits is that offer, because the peer may
    /// have taken the offer back.
    fn drain_before_match(&mut self, tagged: bool, want: &RecvFilter) {
        let polls_lanes = self.polls_lanes;
        let space = self.matching.space(tagged);
        let Some(at) = space.find_unexpected(want).filter(|_| polls_lanes) else { return };
        if let Some((_, _, Unexpected::Offered { from, .. })) = space.unexpected(at) {
            let id = *from;
            if let Some(link) = self.peers.get_mut(id).and_then(|p| p.ready().cloned()) {
                self.drain_lane(id, &link);
            }
        }
    }

    /// Length of an unexpected message.
    pub(in crate::rdm) fn len_of(&mut self, tagged: bool, at: EntryId) -> usize {
        match self.matching.space(tagged).unexpected(at) {
            Some((_, _, Unexpected::Eager { bytes, .. })) => bytes.len(),
            Some((_, _, Unexpected::Offered { offer, .. })) => offer.len as usize,
            Some((_, _, Unexpected::Loopback { number, .. })) => {
                let number = *number;
                self.ops.get(number).map_or(0, |op| if let Op::Loopback { completion, .. } = op { completion.len } else { 0 })
            }
            None => 0,
        }
    }

    /// Gives an unexpected message its receive. `position` is as in `deliver`.
    fn match_unexpected(&mut self, tagged: bool, at: EntryId, recv: Recv, position: Option<RecvPosition>) {
        let Some((source, tag, _)) = self.matching.space(tagged).unexpected(at) else { return };
        if let Some((number, _)) = position {
            self.matching.space(tagged).record_fill(number, source);
        }
        if let Some(message) = self.matching.space(tagged).remove_unexpected(at) {
            self.deliver(message, recv, tagged.then_some(tag), source, position);
        }
    }

    /// Puts a message into a receive. `position`: the position of the receive, if another message may fill the receive
    /// after the sender has taken this one back.
    pub(in crate::rdm) fn deliver(
        &mut self,
        message: Unexpected,
        recv: Recv,
        tag: Option<u64>,
        source: u64,
        position: Option<RecvPosition>,
    ) {
        match message {
            Unexpected::Eager { from, link, bytes, data } => {
                let (label, bytes) = (Label { tag, data }, bytes.as_slice());
                let n = bytes.len().min(recv.room);
                let placed = store(recv.site(), recv.pieces(), 0, bytes.get(..n).unwrap_or_default());
                self.peers.consumed(from, link, bytes.len());
                self.complete_placed(&recv, placed, n, bytes.len() - n, &label, source);
            }
            Unexpected::Offered { from, link, offer, data } => {
                self.read_offer(from, Some(link), offer, Label { tag, data }, recv, source, position);
            }
            Unexpected::Loopback { number, data } => {
                let Some(Op::Loopback { completion, pieces, site, _owned }) = self.ops.take(number) else { return };
                let n = completion.len.min(recv.room);
                let (from, to) = ((site, pieces.as_slice()), (recv.site(), recv.pieces()));
                let placed = match n {
                    ..=EAGER_MAX => copy_short(from, to, n),
                    _ => copy_pieces(&self.user_copy, Dir::Write, from, 0, (to.0, parts(to.1, 0, n))),
                };
                let on_host = if site.is_host() { pieces } else { Pieces::One(Iov::EMPTY) };
                let sent = placed.as_ref().copied().map_err(|_| read_failure(&self.user_copy, Code::Fault, &on_host));
                self.complete_placed(&recv, placed, n, completion.len - n, &Label { tag, data }, source);
                self.finish(&completion, sent);
            }
        }
    }

    /// Completes a receive whose bytes were copied, or could not be copied.
    fn complete_placed(&mut self, recv: &Recv, placed: Result<()>, n: usize, lost: usize, label: &Label, source: u64) {
        match placed {
            Ok(()) => self.received(recv, n, lost, label, source),
            Err(e) => self.complete_failed_recv(recv, Error::coded(e.errno, Code::Fault, e.words), label, source),
        }
    }

    /// Handles a parcel. False if the parcel broke the protocol: the parcel stays with the lane, and `violations` has the
    /// reason.
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
            self.matching.space(tagged).find_posted(source, tag).and_then(|at| self.matching.take_recv(tagged, at, len, source))
        else {
            let bytes = UnexpectedData::of(parcel);
            self.stats.unexpected += 1;
            self.matching.space(tagged).keep(source, tag, Unexpected::Eager { from: id, link, bytes, data: label.data });
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
        let at = self.matching.space(tagged).find_posted(source, tag);
        let position = at.and_then(|at| self.matching.space(tagged).position_of(at));
        match at.and_then(|at| self.matching.take_recv(tagged, at, offer.len as usize, source)) {
            Some(recv) => {
                let position = position.filter(|_| recv.multi().is_none());
                self.read_offer(id, None, offer, label, recv, source, position);
            }
            None => {
                self.stats.unexpected += 1;
                let number = offer.number;
                let at = self.matching.space(tagged).keep(source, tag, Unexpected::Offered { from: id, link, offer, data: label.data });
                if let Some(peer) = self.peers.get_mut(id) {
                    peer.set_offer_state(number, OfferState::Unmatched { tagged, at });
                }
            }
        }
        Ok(())
    }

    /// Handles a peer's WITHDRAW. An offer whose read the lane has, or which a peek has claimed, stays until that read
    /// ends.
    pub fn on_withdraw(&mut self, id: Id, number: u64) {
        // An offer that is finished has no state any more; the answer DONE to it is on the way.
        match self.peers.get_mut(id).and_then(|p| p.offer_state(number)) {
            Some(OfferState::Unmatched { tagged, at }) => {
                if self.matching.remove_offer(tagged, at, id, number) {
                    self.peers.send_done(id, number, Code::Canceled);
                }
            }
            // `Peer::reads` may still contain this number; `post_reads_of` skips numbers without an operation.
            Some(OfferState::Reading(read)) if matches!(self.ops.get(read), Some(Op::Reading { queued: true, .. })) => {
                self.read_ended(read, Err(Error::coded(errno::EKEYREJECTED, Code::Key, "it was not read yet")));
            }
            _ => {}
        }
    }

    /// Queues the read of an offered message into its receive, as far as the message fits. `link`: the lane by which the
    /// message was offered, if the offer was stored meanwhile.
    #[allow(clippy::too_many_arguments)]
    fn read_offer(
        &mut self,
        from: Id,
        link: Option<usize>,
        offer: MessageOffer,
        label: Label,
        recv: Recv,
        source: u64,
        position: Option<RecvPosition>,
    ) {
        let here = self.peers.get_mut(from).and_then(|p| p.link()).map(|l| l.number);
        let Some(link) = here.filter(|here| link.is_none_or(|link| link == *here)) else {
            return self.complete_failed_recv(&recv, sender_gone(), &label, source);
        };
        if offer.len == 0 || recv.room == 0 {
            self.received(&recv, 0, offer.len as usize, &label, source);
            return self.peers.send_done(from, offer.number, Code::None);
        }
        let offered = offer.number;
        let number = self.ops.add(Op::Reading { peer: from, link, recv, position, offer, label, source, queued: true });
        if let Some(peer) = self.peers.get_mut(from) {
            peer.set_offer_state(offered, OfferState::Reading(number));
        }
        self.peers.queue_read(from, number);
    }

    /// Posts the queued reads, as far as the lanes have room.
    pub fn post_reads(&mut self, domain: &Domain) {
        for id in self.peers.take_reading() {
            if self.post_reads_of(domain, id) {
                self.peers.keep_reading(id);
            }
        }
    }

    /// Posts one peer's reads. True if its lane has no room for all of them.
    fn post_reads_of(&mut self, domain: &Domain, id: Id) -> bool {
        while let Some(number) = self.peers.get_mut(id).and_then(|p| p.reads.pop_front()) {
            let Some(Op::Reading { recv, offer, .. }) = self.ops.get(number) else { continue };
            let want = recv.room.min(offer.len as usize);
            let (local, descs, deadline) = (clip(recv.pieces(), want), recv.descs().to_vec(), recv.deadline());
            let remote = clip_remote(&offer.pieces, want);
            let Some(link) = self.peers.get_mut(id).and_then(|p| p.ready().cloned()) else {
                self.read_ended(number, Err(sender_gone()));
                continue;
            };
            self.lanes.schedule().promote(&link);
            let posted = domain.descs_of(link.lane_index, &descs).and_then(|(descs, count)| {
                let timeout_ns = time::left(deadline);
                let c = Common {
                    context: number as usize,
                    flags: flags::COMPLETION | ANY_PATH,
                    desc: descs[0],
                    timeout_ns,
                    ..Common::default()
                };
                link.ep.rma(Dir::Read, &local, &remote, &c, descs.get(..count).unwrap_or_default())
            });
            match posted {
                Ok(()) => {
                    if let Some(Op::Reading { queued, .. }) = self.ops.get(number) {
                        *queued = false;
                    }
                }
                Err(e) if e.is_again() => {
                    if let Some(peer) = self.peers.get_mut(id) {
                        peer.reads.push_front(number);
                    }
                    return true;
                }
                Err(e) => self.read_ended(number, Err(e)),
            }
        }
        false
    }

    /// Handles the end of the read of an offer: the read is complete or has failed.
    pub fn read_ended(&mut self, number: u64, result: Result<()>) {
        let Some(Op::Reading { peer, link, recv, position, offer, label, source, .. }) = self.ops.take(number) else { return };
        let status = result.as_ref().map_or_else(|e| if e.code == Code::None { Code::Fault } else { e.code }, |()| Code::None);
        // Another lane may lead to the peer by now. The process behind that lane has offered nothing.
        let there = self.peers.get_mut(peer).filter(|p| p.link().is_some_and(|l| l.number == link)).map(|p| p.source);
        let is_there = there.is_some();
        if is_there {
            self.peers.send_done(peer, offer.number, status);
        }
        let position =
            position.filter(|position| there.is_some_and(|source| self.matching.space(recv.tagged).can_repost(position, source)));
        match (result, position) {
            (Ok(()), _) => {
                let n = recv.room.min(offer.len as usize);
                self.received(&recv, n, offer.len as usize - n, &label, source);
            }
            (Err(e), Some(position)) if e.code == Code::Key => self.repost_unmatched(recv, position, peer),
            (Err(e), None) if e.code == Code::Key => {
                self.complete_failed_recv(&recv, e.context("the sender has taken the message back"), &label, source)
            }
            (Err(e), _) => self.complete_failed_recv(&recv, e, &label, source),
        }
    }

    /// Gives a receive another message, or posts it again, because the sender has taken back the message that the receive
    /// was matched with.
    fn repost_unmatched(&mut self, recv: Recv, (number, want): RecvPosition, from: Id) {
        // The sender's index may have changed since the receive was posted.
        let source = self.peers.get_mut(from).map(|p| p.source).filter(|_| want.source != UNSPEC).unwrap_or(UNSPEC);
        let (want, tagged) = (RecvFilter { source, ..want }, recv.tagged);
        self.note_deadline(recv.deadline());
        match self.matching.space(tagged).find_unexpected(&want) {
            Some(message) => self.match_unexpected(tagged, message, recv, Some((number, want))),
            None => self.matching.space(tagged).repost(want.source, vec![(number, want, recv)]),
        }
    }

    /// Sends a message of this endpoint to itself.
    pub fn send_loopback(&mut self, waiting: PendingOp, label: Label) {
        let PendingOp { completion, pieces, site, owned, .. } = waiting;
        let (tagged, tag) = (label.tag.is_some(), label.tag.unwrap_or(0));
        let source = self.peers.loopback_source();
        let number = self.ops.add(Op::Loopback { completion, pieces, site, _owned: owned });
        let message = Unexpected::Loopback { number, data: label.data };
        match self
            .matching
            .space(tagged)
            .find_posted(source, tag)
            .and_then(|at| self.matching.take_recv(tagged, at, completion.len, source))
        {
            Some(recv) => self.deliver(message, recv, label.tag, source, None),
            None => {
                self.stats.unexpected += 1;
                self.matching.space(tagged).keep(source, tag, message);
            }
        }
    }
}

/// Copies the first `len` bytes by way of a buffer. The caller uses this function only for short messages, whose memory
/// is known to be there.
fn copy_short((here, from): (Site, &[Iov]), (there, to): (Site, &[Iov]), len: usize) -> Result<()> {
    let mut bytes = zeroed(len)?;
    load(here, from, 0, &mut bytes)?;
    store(there, to, 0, &bytes)
}

fn sender_gone() -> Error {
    Error::coded(errno::ECONNRESET, Code::PeerGone, "the peer that offered the message is gone")
}

/// The first `len` bytes of `pieces`.
fn clip(pieces: &[Iov], len: usize) -> Vec<Iov> {
    parts(pieces, 0, len).collect()
}

fn clip_remote(pieces: &[RmaIov], len: usize) -> Vec<RmaIov> {
    let mut left = len;
    let mut out = Vec::with_capacity(pieces.len());
    for p in pieces.iter().filter(|p| p.len > 0) {
        let n = p.len.min(left);
        if n > 0 {
            out.push(RmaIov { len: n, ..*p });
        }
        left -= n;
    }
    out
}
