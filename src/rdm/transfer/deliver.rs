// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Joins a message and its receive, and gets the bytes into the receive. Lanes call these functions while they hand out
//! parcels, so no function here touches a lane: reads are queued in `Peer::reads`, and answers in `Peer::control`.

use crate::error::{Code, Error, Result, errno};
use crate::fallible::zeroed;
use crate::hmem::Site;
use crate::mr::parts;
use crate::mr::piece::{load, store};
use crate::prov::av::UNSPEC;
use crate::prov::op::{Dir, Iov, Pieces};
use crate::rdm::limits::EAGER_MAX;
use crate::rdm::matching::matcher::{EntryId, RecvFilter, RecvPosition};
use crate::rdm::peers::outstanding::{OutstandingOp, Recv};
use crate::rdm::peers::peer::{Id, OfferState, PendingOp};
use crate::rdm::peers::unexpected::Unexpected;
use crate::rdm::state::State;
use crate::rdm::transfer::loopback::copy_pieces;
use crate::rdm::wire::parcel::{Label, MessageOffer};
use crate::sys::usercopy::UserCopy;

impl State {
    /// Posts a receive whose arguments the caller has checked.
    pub(in crate::rdm) fn post_recv(&mut self, want: RecvFilter, recv: Recv) -> Result<()> {
        let tagged = recv.tagged;
        let Some(first) = self.matching.matcher(tagged).find_unexpected(&want) else {
            self.check_enabled()?;
            let number = self.matching.next_post();
            self.matching.matcher(tagged).post(number, want, || recv);
            return Ok(());
        };
        let number = self.matching.next_post();
        if recv.multi().is_none() {
            self.match_unexpected(tagged, first, recv, Some((number, want)));
            return Ok(());
        }
        let at = self.matching.matcher(tagged).post(number, want, || recv);
        let mut next = Some(first);
        while let Some(message) = next {
            let (len, source) =
                (self.len_of(tagged, message), self.matching.matcher(tagged).unexpected(message).map_or(UNSPEC, |(source, ..)| source));
            let Some(part) = self.matching.take_recv(tagged, at, len, source) else { break };
            self.match_unexpected(tagged, message, part, None);
            next = match self.matching.matcher(tagged).posted(at) {
                Some(_) => self.matching.matcher(tagged).find_unexpected(&want),
                None => None,
            };
        }
        Ok(())
    }

    /// Length of an unexpected message.
    pub(in crate::rdm) fn len_of(&mut self, tagged: bool, at: EntryId) -> usize {
        match self.matching.matcher(tagged).unexpected(at) {
            Some((_, _, Unexpected::Eager { bytes, .. })) => bytes.len(),
            Some((_, _, Unexpected::Offered { offer, .. })) => offer.len as usize,
            Some((_, _, Unexpected::Loopback { number, .. })) => {
                let number = *number;
                self.ops.get(number).map_or(0, |op| if let OutstandingOp::Loopback { completion, .. } = op { completion.len } else { 0 })
            }
            None => 0,
        }
    }

    /// Gives an unexpected message its receive. `position` is as in `deliver`.
    fn match_unexpected(&mut self, tagged: bool, at: EntryId, recv: Recv, position: Option<RecvPosition>) {
        let Some((source, tag, _)) = self.matching.matcher(tagged).unexpected(at) else { return };
        if let Some((number, _)) = position {
            self.matching.matcher(tagged).record_fill(number, source);
        }
        if let Some(message) = self.matching.matcher(tagged).remove_unexpected(at) {
            self.deliver(message, recv, tagged.then_some(tag), source, position);
        }
    }

    /// Puts a message into a receive. `position`: the position to which the receive may return if the sender takes the message
    /// back before it was read; `None` if the receive fails in this case.
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
                let Some(OutstandingOp::Loopback { completion, pieces, site, _owned }) = self.ops.take(number) else { return };
                let n = completion.len.min(recv.room);
                let (from, to) = ((site, pieces.as_slice()), (recv.site(), recv.pieces()));
                let placed = match n {
                    ..=EAGER_MAX => copy_short(from, to, n),
                    _ => copy_pieces(&self.user_copy, Dir::Write, from, 0, (to.0, parts(to.1, 0, n))),
                };
                let on_host = if site.is_host() { pieces } else { Pieces::One(Iov::EMPTY) };
                let sent = placed.as_ref().copied().map_err(|_| read_failure(&self.user_copy, Code::Fault, &on_host));
                self.complete_placed(&recv, placed, n, completion.len - n, &Label { tag, data }, source);
                self.reports.finish(&self.bind, &completion, sent);
            }
        }
    }

    /// Completes a receive whose bytes were copied, or could not be copied.
    pub fn complete_placed(&mut self, recv: &Recv, placed: Result<()>, n: usize, lost: usize, label: &Label, source: u64) {
        match placed {
            Ok(()) => self.received(recv, n, lost, label, source),
            Err(e) => self.complete_failed_recv(recv, Error::coded(e.errno, Code::Fault, e.words), label, source),
        }
    }

    /// Queues the read of an offered message into its receive, as far as the message fits. `link`: the number of the link by
    /// which the message was offered, if the offer was stored since; `None` if the offer is arriving now.
    #[allow(clippy::too_many_arguments)]
    pub fn read_offer(
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
        let number = self.ops.add(OutstandingOp::Reading { peer: from, link, recv, position, offer, label, source, queued: true });
        if let Some(peer) = self.peers.get_mut(from) {
            peer.set_offer_state(offered, OfferState::Reading(number));
        }
        self.peers.queue_read(from, number);
    }

    /// Handles the end of the read of an offer: the read is complete or has failed.
    pub fn read_ended(&mut self, number: u64, result: Result<()>) {
        let Some(OutstandingOp::Reading { peer, link, recv, position, offer, label, source, .. }) = self.ops.take(number) else { return };
        let status = result.as_ref().map_or_else(|e| if e.code == Code::None { Code::Fault } else { e.code }, |()| Code::None);
        // Another lane may lead to the peer by now. The process behind that lane has offered nothing.
        let there = self.peers.get_mut(peer).filter(|p| p.link().is_some_and(|l| l.number == link)).map(|p| p.source);
        let is_there = there.is_some();
        if is_there {
            self.peers.send_done(peer, offer.number, status);
        }
        let position =
            position.filter(|position| there.is_some_and(|source| self.matching.matcher(recv.tagged).can_repost(position, source)));
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

    /// Gives a receive another stored message, or posts the receive again at its old position, because the sender has taken
    /// back the message that the receive was matched with.
    fn repost_unmatched(&mut self, recv: Recv, (number, want): RecvPosition, from: Id) {
        // The sender's index may have changed since the receive was posted.
        let source = self.peers.get_mut(from).map(|p| p.source).filter(|_| want.source != UNSPEC).unwrap_or(UNSPEC);
        let (want, tagged) = (RecvFilter { source, ..want }, recv.tagged);
        self.note_deadline(recv.deadline());
        match self.matching.matcher(tagged).find_unexpected(&want) {
            Some(message) => self.match_unexpected(tagged, message, recv, Some((number, want))),
            None => self.matching.matcher(tagged).repost(want.source, vec![(number, want, recv)]),
        }
    }

    /// Sends a message of this endpoint to itself.
    pub fn send_loopback(&mut self, waiting: PendingOp, label: Label) {
        let PendingOp { completion, pieces, site, owned, .. } = waiting;
        let (tagged, tag) = (label.tag.is_some(), label.tag.unwrap_or(0));
        let source = self.peers.loopback_source();
        let number = self.ops.add(OutstandingOp::Loopback { completion, pieces, site, _owned: owned });
        let message = Unexpected::Loopback { number, data: label.data };
        match self
            .matching
            .matcher(tagged)
            .find_posted(source, tag)
            .and_then(|at| self.matching.take_recv(tagged, at, completion.len, source))
        {
            Some(recv) => self.deliver(message, recv, label.tag, source, None),
            None => {
                self.reports.stats().unexpected += 1;
                self.matching.matcher(tagged).keep(source, tag, message);
            }
        }
    }
}

/// Copies the first `len` bytes by way of a buffer. The caller uses this function only for short messages: host memory is
/// read and written directly, without system calls, so both of the program's buffers have to be there.
fn copy_short((here, from): (Site, &[Iov]), (there, to): (Site, &[Iov]), len: usize) -> Result<()> {
    let mut bytes = zeroed(len)?;
    load(here, from, 0, &mut bytes)?;
    store(there, to, 0, &bytes)
}

pub fn sender_gone() -> Error {
    Error::coded(errno::ECONNRESET, Code::PeerGone, "the peer that offered the message is gone")
}

/// The error of a message that the receiver could not read. If memory of this side is missing, the error says so;
/// otherwise the error gives the receiver's reason.
#[cold]
pub(in crate::rdm) fn read_failure(user: &UserCopy, code: Code, pieces: &Pieces) -> Error {
    if code == Code::Fault
        && let Some(at) = user.unreadable(pieces.as_slice())
    {
        let argument = if let Pieces::One(_) = pieces { "buf".into() } else { format!("iov[{at}]") };
        return Error::coded(errno::EFAULT, code, format!("{argument}: memory of the message is not there, or may not be read"));
    }
    Error::coded(errno::EIO, code, format!("the receiver could not read the message: {}", Code::words(code.0)))
}
