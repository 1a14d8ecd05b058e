// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations that this side posts. An operation starts at once if the lane and the peer's credit have room; otherwise it
//! waits in the peer's queue, in order. Short messages are sent as eager parcels. Longer messages, and short ones without
//! credit, are offered: their memory is exposed, and the receiver reads it.

use crate::error::{Error, Result, errno};
use crate::fallible::{MakeRoom, zeroed};
use crate::hmem::Site;
use crate::mr::RegionId;
use crate::mr::piece::load;
use crate::prov::atomic::{AtomicOp, Operands};
use crate::prov::bind::BY_CARD;
use crate::prov::op::{Common, Dir, IOV_LIMIT, Iov, Pieces, RmaIov, measure, total};
use crate::prov::{Reach, flags};
use crate::rdm::limits::{INJECT_SIZE, MAX_MSG, OFFERS_MAX};
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::memory::region_quota::is_out_of_room;
use crate::rdm::peers::link::Link;
use crate::rdm::peers::outstanding::OutstandingOp;
use crate::rdm::peers::peer::{Id, PendingKind, PendingOp, Phase};
use crate::rdm::state::State;
use crate::rdm::transfer::atomic::only_by_card;
use crate::rdm::wire::parcel::{Label, ParcelWords, eager};
use crate::sys::time;
use std::sync::Arc;

/// Result of an attempt to start an operation. A blocked operation stays in the peer's queue, and a later turn tries again.
enum StartOutcome {
    Started,
    Blocked,
    Failed(Error),
}

#[inline]
fn put_eager(link: &Link, label: &Label, pieces: &[Iov]) -> Result<bool> {
    let (words, count) = eager(label);
    put(link, words.get(..count).unwrap_or_default(), pieces)
}

fn put(link: &Link, words: &[u64], pieces: &[Iov]) -> Result<bool> {
    let lane = link.lane().ok_or_else(|| Error::fixed(errno::EOPNOTSUPP, "a provider whose endpoints are no lanes"))?;
    lane.put(words, pieces)
}

/// The descriptors as an operation stores them. If all are 0, as usual, the list is empty and needs no allocation.
pub fn stored_descs(descs: &[u64]) -> Vec<u64> {
    if descs.iter().all(|d| *d == 0) { Vec::new() } else { descs.to_vec() }
}

impl State {
    /// Posts a message.
    pub fn send(&mut self, domain: &Domain, local: &[Iov], c: &Common, descs: &[u64], tag: Option<u64>) -> Result<()> {
        self.check_enabled()?;
        if self.bind.tx.is_none() && self.bind.counters.send.is_none() {
            return Err(Error::new(errno::ENOCQ, "ep: no completion queue or counter is bound for transmits"));
        }
        let len = measure(local, MAX_MSG)?;
        if c.flags & flags::INJECT != 0 && len > INJECT_SIZE {
            return Err(Error::new(errno::EMSGSIZE, format!("len: {len} bytes, an inject call takes up to inject_size {INJECT_SIZE}")));
        }
        let id = self.route(c.peer)?;
        let label = Label { tag, data: (c.flags & flags::REMOTE_CQ_DATA != 0).then_some(c.data) };
        let kind = flags::SEND | if tag.is_some() { flags::TAGGED } else { flags::MSG };
        let completion = self.completion_of(c, kind, local, len, tag.unwrap_or(0));
        let on_host = descs.iter().all(|d| d & crate::mr::DEVICE_DESC == 0);
        // An inject call has no entry that could report the delivery.
        let flags = match (completion.silent, self.delivery_complete) {
            (true, _) => c.flags & !flags::DELIVERY_COMPLETE,
            (false, true) => c.flags | flags::DELIVERY_COMPLETE,
            (false, false) => c.flags,
        };
        self.reports.stats().sends += 1;
        if on_host
            && self.faults.is_none()
            && flags & (flags::FENCE | flags::DELIVERY_COMPLETE) == 0
            && let Some(peer) = self.peers.get_mut(id)
            && let Phase::Ready(link) = &peer.phase
            && peer.waiting.is_empty()
            && peer.control.is_empty()
            && len <= link.eager_max
            && peer.credit.may_send(len)
            && let Ok(true) = put_eager(link, &label, local)
        {
            peer.credit.sent(len);
            self.reports.succeed(&self.bind, &completion);
            return Ok(());
        }
        let site = domain.site(descs.first().copied().unwrap_or(0))?;
        self.reserve_pending(id)?;
        self.matching.matcher(tag.is_some()).room_to_keep()?;
        let pieces = Pieces::from(local).ok_or(Error::invalid("iov_count"))?;
        let mut waiting = PendingOp {
            completion,
            delayed_until: 0,
            flags,
            pieces,
            descs: stored_descs(descs),
            site,
            owned: None,
            kind: PendingKind::Message { label, offered: None },
        };
        waiting.take_copy(flags & flags::INJECT != 0)?;
        if self.peers.get_mut(id).is_some_and(|p| matches!(p.phase, Phase::Loopback)) {
            self.send_loopback(waiting, label);
            return Ok(());
        }
        self.queue(domain, id, waiting);
        Ok(())
    }

    /// Posts an RMA operation.
    pub fn rma(&mut self, domain: &Domain, dir: Dir, local: &[Iov], remote: &[RmaIov], c: &Common, descs: &[u64]) -> Result<()> {
        self.check_enabled()?;
        let len = measure(local, MAX_MSG)?;
        let there = remote.iter().try_fold(0usize, |sum, r| sum.checked_add(r.len));
        if there != Some(len) || remote.len() > IOV_LIMIT {
            return Err(Error::invalid("rma_iov: the lengths do not sum to those of the local pieces, or there are too many"));
        }
        // INJECT has no meaning for a read, because the buffer of a read is filled later.
        let injected = c.flags & flags::INJECT != 0 && dir == Dir::Write;
        if injected && len > INJECT_SIZE {
            return Err(Error::new(errno::EMSGSIZE, format!("len: {len} bytes, an inject call takes up to inject_size {INJECT_SIZE}")));
        }
        let id = self.route(c.peer)?;
        let kind = flags::RMA | if dir == Dir::Write { flags::WRITE } else { flags::READ };
        let completion = self.completion_of(c, kind, local, len, 0);
        let site = domain.site(descs.first().copied().unwrap_or(0))?;
        if self.peers.is_loopback(id) {
            self.rma_loopback(domain, dir, (site, local), remote, c, &completion);
            return Ok(());
        }
        self.reserve_pending(id)?;
        let pieces = Pieces::from(local).ok_or(Error::invalid("iov_count"))?;
        let what = PendingKind::Rma { dir, remote: remote.to_vec(), data: c.data };
        let mut waiting =
            PendingOp { completion, delayed_until: 0, flags: c.flags, pieces, descs: stored_descs(descs), site, owned: None, kind: what };
        waiting.take_copy(injected)?;
        self.queue(domain, id, waiting);
        Ok(())
    }

    /// Reserves memory for an operation that waits for a peer or is under way.
    pub(in crate::rdm) fn reserve_pending(&mut self, id: Id) -> Result<()> {
        self.ops.room()?;
        self.peers.get_mut(id).map_or(Ok(()), |peer| peer.waiting.room(1))
    }

    /// Queues an operation for its peer, and starts it if possible.
    pub(in crate::rdm) fn queue(&mut self, domain: &Domain, id: Id, waiting: PendingOp) {
        if let Some(peer) = self.peers.get_mut(id) {
            let last = peer.waiting.len();
            peer.waiting.push_back(waiting);
            match self.faults.is_none() || self.apply_faults(id, last) {
                true => self.flush(domain, id),
                false => self.inject_loss(id),
            }
            // Results that the lane produced during the call are completed now.
            self.take_results();
        }
    }

    /// Sends the parcels without message and then starts the operations that wait for a peer, as far as the lane has room.
    /// If the peer has no lane, dials the peer.
    pub fn flush(&mut self, domain: &Domain, id: Id) {
        if self.peers.get_mut(id).is_some_and(|p| matches!(p.phase, Phase::Unconnected) && !p.waiting.is_empty()) {
            self.dial(domain, id, 0);
        }
        loop {
            let Some(peer) = self.peers.get_mut(id) else { return };
            let Phase::Ready(link) = &peer.phase else { return };
            let link = link.clone();
            self.lanes.schedule().promote(&link);
            let Some(peer) = self.peers.get_mut(id) else { return };
            if let Some(words) = peer.control.front() {
                match put(&link, words.as_slice(), &[]) {
                    Ok(true) => {
                        self.peers.control_sent(id);
                        continue;
                    }
                    // If the lane has ended, an event will report the end.
                    Ok(false) | Err(_) => return self.peers.mark_busy(id),
                }
            }
            let Some(mut waiting) = peer.waiting.pop_front() else { return };
            match self.start(domain, id, &link, &mut waiting) {
                StartOutcome::Started => {}
                StartOutcome::Blocked => {
                    if let Some(peer) = self.peers.get_mut(id) {
                        peer.waiting.push_front(waiting);
                    }
                    return self.peers.mark_busy(id);
                }
                StartOutcome::Failed(e) => self.fail_pending(waiting, e),
            }
        }
    }

    /// Starts an operation: sends a message at once, offers it, or posts RMA on the lane. Blocked if the lane has no room, if
    /// credit or quota is missing, while a fence waits for earlier operations, or while fault injection delays the operation.
    fn start(&mut self, domain: &Domain, id: Id, link: &Arc<Link>, w: &mut PendingOp) -> StartOutcome {
        let sleepers = self.sleepers;
        let Some(peer) = self.peers.get_mut(id) else { return StartOutcome::Blocked };
        if w.flags & flags::FENCE != 0 && peer.in_flight > 0 || w.delayed_until != 0 && w.delayed_until > time::now_ns() {
            return StartOutcome::Blocked;
        }
        if !matches!(w.kind, PendingKind::Message { .. }) {
            return self.start_rma(domain, id, link, w);
        }
        let PendingKind::Message { label, offered } = &w.kind else { return StartOutcome::Blocked };
        let (label, not_offered) = (*label, offered.is_none());
        let fits_eager = w.site.is_host() && w.completion.len <= link.eager_max && w.flags & flags::DELIVERY_COMPLETE == 0;
        let has_credit = fits_eager && not_offered && peer.credit.may_send(w.completion.len);
        // A message waits for credit only if the program will make progress meanwhile. After an injected message the program
        // may make none, because it expects no entry, and a sleeping thread makes none either.
        if fits_eager && not_offered && !has_credit && w.owned.is_none() && sleepers == 0 && peer.credit.is_worth_waiting() {
            return StartOutcome::Blocked;
        }
        if has_credit {
            return match put_eager(link, &label, w.pieces.as_slice()) {
                Ok(true) => {
                    peer.credit.sent(w.completion.len);
                    let completion = w.completion;
                    self.reports.succeed(&self.bind, &completion);
                    StartOutcome::Started
                }
                _ => StartOutcome::Blocked,
            };
        }
        if not_offered {
            if peer.open_offers >= OFFERS_MAX || !domain.quota.may_expose(w.pieces.as_slice().len(), peer.exposed) {
                return StartOutcome::Blocked;
            }
            let exposed = match expose(domain, link.lane_index, w.pieces.as_slice(), w.site, &w.descs) {
                // Memory that the lane cannot reach is copied, and the copy is exposed.
                Err(e) if e.errno == errno::EOPNOTSUPP && !w.site.is_host() => {
                    w.expose_copy(domain, link.lane_index).map_err(|more| more.context(e))
                }
                exposed => exposed,
            };
            let (exposed, remote) = match exposed {
                // Exposed regions that are closed later may make room. A short message needs no region at all once the
                // receiver returns credit.
                Err(e) if is_out_of_room(&e) && (fits_eager || domain.quota.exposed() > 0) => return StartOutcome::Blocked,
                Err(e) => return StartOutcome::Failed(e),
                Ok(exposed) => exposed,
            };
            peer.exposed += exposed.len();
            let number = self.ops.add(OutstandingOp::Offered {
                peer: id,
                completion: w.completion,
                needs_answer: exposed.len() != remote.len() || !domain.can_revoke(link.lane_index),
                exposed,
                pieces: if w.site.is_host() { w.pieces.clone() } else { Pieces::One(Iov::EMPTY) },
                _owned: None,
            });
            w.kind = PendingKind::Message { label, offered: Some((number, remote)) };
        }
        let PendingKind::Message { offered: Some((number, remote)), .. } = &w.kind else { return StartOutcome::Blocked };
        let number = *number;
        let words = ParcelWords::offer(&label, number, w.completion.len as u64, remote);
        match put(link, words.as_slice(), &[]) {
            Ok(true) => {
                if let Some(OutstandingOp::Offered { _owned, .. }) = self.ops.get(number) {
                    *_owned = w.owned.take();
                }
                if let Some(peer) = self.peers.get_mut(id) {
                    (peer.open_offers, peer.in_flight) = (peer.open_offers + 1, peer.in_flight + 1);
                }
                StartOutcome::Started
            }
            _ => StartOutcome::Blocked,
        }
    }

    /// Posts RMA or an atomic on the peer's lane.
    fn start_rma(&mut self, domain: &Domain, id: Id, link: &Arc<Link>, w: &mut PendingOp) -> StartOutcome {
        let (descs, count) = match domain.descs_of(link.lane_index, &w.descs) {
            Ok(found) => found,
            Err(e) => return StartOutcome::Failed(e),
        };
        let timeout_ns = time::left(w.completion.deadline);
        let number = self.ops.add(OutstandingOp::Rma { peer: id, completion: w.completion, _owned: None });
        // COMPLETION makes the lane write an entry when the operation is complete. For an injected operation, the flag
        // INJECT makes the lane copy the bytes during the call as well.
        let how = w.flags & flags::OP_FLAGS & !flags::MORE | flags::COMPLETION;
        let c = Common { context: number as usize, flags: how, desc: descs[0], timeout_ns, ..Common::default() };
        let posted = match &w.kind {
            PendingKind::Rma { dir, remote, data } => {
                let c = Common { data: *data, ..c };
                link.ep.rma(*dir, w.pieces.as_slice(), remote, &c, descs.get(..count).unwrap_or_default())
            }
            PendingKind::Atomic(op) => {
                let with = Operands::joined(op.what, w.pieces.as_slice().first().copied().unwrap_or_default(), op.with.old);
                let op = AtomicOp { with, ..**op };
                match domain.lanes.get(link.lane_index) {
                    Some(lane) if domain.is_card_key(op.key) => match lane.provider.reach() {
                        Reach::Devices => link.ep.atomic(&op, &Common { flags: how | BY_CARD, ..c }),
                        _ => Err(only_by_card(op.key, lane.provider.name())),
                    },
                    _ => link.ep.atomic(&op, &c),
                }
            }
            PendingKind::Message { .. } => Err(Error::AGAIN),
        };
        match posted {
            Ok(()) => {
                if let Some(OutstandingOp::Rma { _owned, .. }) = self.ops.get(number) {
                    *_owned = w.owned.take();
                }
                if let Some(peer) = self.peers.get_mut(id) {
                    peer.in_flight += 1;
                }
                StartOutcome::Started
            }
            Err(e) => {
                self.ops.take(number);
                // If the lane has ended, an event will report the end and fail the operation.
                if e.is_again() || matches!(e.errno, errno::ESHUTDOWN | errno::ENOTCONN) {
                    StartOutcome::Blocked
                } else {
                    StartOutcome::Failed(e)
                }
            }
        }
    }
}

impl PendingOp {
    /// Exposes a copy of the program's bytes.
    #[cold]
    fn expose_copy(&mut self, domain: &Domain, lane: usize) -> Result<Exposed> {
        self.take_copy(true)?;
        expose(domain, lane, self.pieces.as_slice(), self.site, &self.descs)
    }

    /// Replaces the program's buffers by a copy that the operation owns, if `inject` is set and no copy exists yet.
    fn take_copy(&mut self, inject: bool) -> Result<()> {
        if !inject || self.owned.is_some() {
            return Ok(());
        }
        let mut bytes = zeroed(total(self.pieces.as_slice()).unwrap_or(0))?;
        load(self.site, self.pieces.as_slice(), 0, &mut bytes)?;
        // SAFETY: the bytes are on the heap and stay with the operation, in `owned`.
        self.pieces = Pieces::One(unsafe { Iov::of(&bytes) });
        (self.site, self.descs) = (Site::HOST, Vec::new());
        self.owned = Some(bytes);
        Ok(())
    }
}

/// Memory that is exposed to a peer: the regions to close afterwards, each with the index of the lane; and the address,
/// length and key of each piece, of which the peer is told.
type Exposed = (Vec<(usize, RegionId)>, Vec<RmaIov>);

/// Exposes the pieces of a message to the peer of a lane.
fn expose(domain: &Domain, lane: usize, pieces: &[Iov], site: Site, descs: &[u64]) -> Result<Exposed> {
    let (mut exposed, mut remote): Exposed = (Vec::new(), Vec::new());
    for (i, piece) in pieces.iter().enumerate().filter(|(_, p)| !p.is_empty()) {
        // The program's own registration is used where the peer may read it. The path of this registration may be faster,
        // and the driver need not be asked about each buffer of device memory.
        let desc = descs.get(i).copied().unwrap_or(0);
        match if desc == 0 { Ok(None) } else { domain.remote_name(lane, desc, *piece) } {
            Ok(Some((addr, key))) => {
                remote.push(RmaIov { addr, len: piece.len(), key });
                continue;
            }
            Err(e) if !site.is_host() => return Err(e),
            _ => {}
        }
        match domain.expose(lane, site, *piece, desc) {
            Ok((id, addr, key)) => {
                exposed.push((lane, id));
                remote.push(RmaIov { addr, len: piece.len(), key });
            }
            Err(e) => {
                domain.adopt(exposed);
                domain.close_orphans();
                return Err(e);
            }
        }
    }
    Ok((exposed, remote))
}
