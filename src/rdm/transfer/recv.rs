// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Receives that the program posts, and the reads of offered messages that the lanes carry out for them.

use crate::error::{Error, Result, errno};
use crate::mr::parts;
use crate::prov::av::UNSPEC;
use crate::prov::bind::ANY_PATH;
use crate::prov::fault::Plan;
use crate::prov::flags;
use crate::prov::flags::{CLAIM, DISCARD, PEEK};
use crate::prov::op::{Common, Dir, Iov, RmaIov, measure};
use crate::rdm::limits::MAX_MSG;
use crate::rdm::matching::matcher::RecvFilter;
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::outstanding::{OutstandingOp, Recv, RecvExtra};
use crate::rdm::peers::peer::{Id, UNKNOWN};
use crate::rdm::peers::unexpected::Unexpected;
use crate::rdm::state::State;
use crate::rdm::transfer::deliver::sender_gone;
use crate::rdm::transfer::send::stored_descs;
use crate::sys::time;

impl State {
    /// Posts a receive. `tag`: the tag, and the bits of the tag that are ignored; `None` for an untagged receive.
    pub fn recv(&mut self, domain: &Domain, local: &[Iov], c: &Common, descs: &[u64], tag: Option<(u64, u64)>) -> Result<()> {
        // Messages that arrived before the connection ended can still be received.
        let drains_closed = self.connection.is_some() && self.closed && self.matching.matcher(tag.is_some()).unexpected_count() != 0;
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
        self.matching.matcher(tag.is_some()).room_to_post()?;
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
                more.deadline = self.start_recv_deadline(c);
            }
            recv.more = Some(Box::new(more));
            return self.probe(&want, recv, c.flags);
        }
        more.deadline = self.start_recv_deadline(c);
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
            false => {
                if let Some((id, recv)) = self.post_faulty(from, want, recv)? {
                    self.inject_loss(id);
                    self.fail_recv(recv, Plan::gone(), UNKNOWN);
                }
                Ok(())
            }
        }
    }

    /// If the oldest message that fits is an offer, handles everything that its sender has sent since, because the sender
    /// may have taken the offer back.
    fn drain_before_match(&mut self, tagged: bool, want: &RecvFilter) {
        let polls_lanes = self.reports.polls_lanes();
        let matcher = self.matching.matcher(tagged);
        let Some(at) = matcher.find_unexpected(want).filter(|_| polls_lanes) else { return };
        if let Some((_, _, Unexpected::Offered { from, .. })) = matcher.unexpected(at) {
            let id = *from;
            if let Some(link) = self.peers.get_mut(id).and_then(|p| p.ready().cloned()) {
                self.drain_lane(id, &link);
            }
        }
    }

    /// Posts the queued reads of offers on their lanes, as far as the lanes have room.
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
            let Some(OutstandingOp::Reading { recv, offer, .. }) = self.ops.get(number) else { continue };
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
                    if let Some(OutstandingOp::Reading { queued, .. }) = self.ops.get(number) {
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
