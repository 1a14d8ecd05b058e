// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fast path of small messages, between a lane's ring and the program's completion queue. Each function checks all
//! conditions before it changes anything. If a function declines, `send`, `recv` or `progress` handles the message.

use crate::prov::av::UNSPEC;
use crate::prov::op::One;
use crate::prov::queue::Completion;
use crate::prov::{Parcel, flags};
use crate::rdm::limits::{INJECT_SIZE, MAX_MSG};
use crate::rdm::matching::matcher::{EntryId, RecvFilter};
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::outstanding::Recv;
use crate::rdm::peers::peer::{Id, Phase};
use crate::rdm::peers::unexpected::{Unexpected, UnexpectedData};
use crate::rdm::state::State;
use crate::rdm::wire::parcel::{DATA, Label, TAGGED, kind};

/// First words of the eager messages that the fast path handles: without tag and data, with a tag, and with both.
const PLAIN: u64 = kind::EAGER as u64;
const PLAIN_TAGGED: u64 = PLAIN | TAGGED;
const TAGGED_DATA: u64 = PLAIN_TAGGED | DATA;

/// Result of handing an arrived message to the fast path.
pub enum FastOutcome {
    /// The message filled a receive.
    Filled,
    /// No receive fits; the message is stored as unexpected.
    Stored,
    /// No receive fits; the message stays with the lane for now.
    Deferred,
    /// The fast path does not apply; nothing was done.
    Declined,
}

impl State {
    /// Sends a short message from one piece of host memory, if nothing waits to be sent before it. `WORDS` is the number
    /// of words of the parcel: first word, tag, data, in this order. False if nothing was done.
    #[inline(always)]
    pub fn send_fast<const WORDS: usize>(&mut self, one: &One, how: u64) -> bool {
        let special = how & (flags::FENCE | flags::DELIVERY_COMPLETE) != 0;
        let too_long = how & flags::INJECT != 0 && one.local.len() > INJECT_SIZE;
        if !self.fast_send || special || too_long || one.local.is_missing() {
            return false;
        }
        let Some(id) = self.peers.known(one.addr) else { return false };
        let Some(peer) = self.peers.get_mut(id) else { return false };
        let Phase::Ready(link) = &peer.phase else { return false };
        // The length is checked before anything is added to it, because the program may pass any number.
        if one.local.len() > link.eager_max || !peer.waiting.is_empty() || !peer.control.is_empty() {
            return false;
        }
        let Some(lane) = link.lane().filter(|_| peer.credit.may_send(one.local.len())) else { return false };
        let all = [[PLAIN, PLAIN_TAGGED, TAGGED_DATA][WORDS - 1], one.key, one.data];
        let words = &all[..WORDS];
        if !lane.put_brief(words, one.local) && !matches!(lane.put(words, &[one.local]), Ok(true)) {
            return false;
        }
        peer.credit.sent(one.local.len());
        self.stats.sends += 1;
        if self.bind.wants_entry(how)
            && let Some(q) = &self.bind.tx
        {
            let kind = flags::SEND | if WORDS > 1 { flags::TAGGED } else { flags::MSG };
            q.push(Completion { context: one.context, flags: kind, len: one.local.len(), buf: one.local.addr(), data: 0 });
        }
        true
    }

    /// Posts a receive into one piece of host memory, or fills the receive at once from an unexpected message whose bytes
    /// have arrived. False if nothing was done.
    #[inline(always)]
    pub fn recv_fast<const TAG: bool>(&mut self, domain: &Domain, one: &One, ignore: u64) -> bool {
        let fast = if TAG { self.fast_recv } else { self.fast_untagged };
        if !fast || one.local.is_missing() || one.local.len() > MAX_MSG {
            return false;
        }
        let source = match one.addr {
            UNSPEC => UNSPEC,
            _ if !self.directed => UNSPEC,
            index => match self.peers.known(index).and_then(|id| self.peers.get(id)) {
                Some(peer) => peer.source,
                _ => return false,
            },
        };
        let wants_entry = self.entry_by_default;
        let space = self.matching.space(TAG);
        let want = RecvFilter { source, tag: one.key, ignore };
        let (first, context) = (one.local, one.context);
        let recv = move || Recv { first, room: first.len(), context, wants_entry, tagged: TAG, more: None };
        if space.room_to_post().is_err() {
            return false;
        }
        match space.find_unexpected(&want) {
            None => {
                let number = self.matching.next_post();
                self.matching.space(TAG).post(number, want, recv);
                true
            }
            Some(at) => self.fill_from_unexpected(domain, TAG, at, recv()),
        }
    }

    /// Copies an unexpected message into a receive of one piece of host memory. False if the message is an offer or a
    /// loopback message, or is longer than the receive; then nothing was done.
    #[inline(never)]
    fn fill_from_unexpected(&mut self, domain: &Domain, tagged: bool, at: EntryId, recv: Recv) -> bool {
        let space = self.matching.space(tagged);
        let Some((source, tag, Unexpected::Eager { from, link, bytes, data })) = space.unexpected(at) else { return false };
        let (from, link, len) = (*from, *link, bytes.len());
        let label = Label { tag: tagged.then_some(tag), data: *data };
        if len > recv.room {
            return false;
        }
        recv.first.put(bytes.as_slice());
        let number = self.matching.next_post();
        let space = self.matching.space(tagged);
        space.record_fill(number, source);
        space.remove_unexpected(at);
        self.peers.consumed(from, link, len);
        self.received(&recv, len, 0, &label, source);
        // Returned credit is sent now, because the peer may wait for it and the program may not call again soon.
        self.run_queued_work(domain);
        true
    }

    /// Delivers an eager message to the receive that fits. Without such a receive, the message is stored, or left with
    /// the lane if `defer` is set.
    #[inline(always)]
    pub fn on_fast<P: Parcel + ?Sized>(&mut self, id: Id, link: usize, parcel: &P, defer: bool) -> FastOutcome {
        let first = parcel.word(0);
        match parcel.words() {
            2 if first == PLAIN_TAGGED => self.match_fast::<2, P>(id, link, parcel, parcel.word(1), defer),
            3 if first == TAGGED_DATA => self.match_fast::<3, P>(id, link, parcel, parcel.word(1), defer),
            1 if first == PLAIN => self.match_fast::<1, P>(id, link, parcel, 0, defer),
            _ => FastOutcome::Declined,
        }
    }

    #[inline(always)]
    fn match_fast<const WORDS: usize, P: Parcel + ?Sized>(
        &mut self,
        id: Id,
        link: usize,
        parcel: &P,
        tag: u64,
        defer: bool,
    ) -> FastOutcome {
        let Some(peer) = self.peers.get_mut(id) else { return FastOutcome::Declined };
        let (len, source) = (parcel.len(), peer.source);
        let space = self.matching.space(WORDS > 1);
        let Some(at) = space.find_posted(source, tag) else {
            if defer || space.room_to_keep().is_err() {
                return FastOutcome::Deferred;
            }
            let data = (WORDS > 2).then(|| parcel.word(2));
            return self.store_fast(WORDS > 1, (source, tag, data), (id, link), parcel);
        };
        let Some(recv) = space.posted(at) else { return FastOutcome::Declined };
        if recv.more.is_some() || len > recv.room || !self.fast_recv || !peer.credit.receive_and_consume(len) {
            return FastOutcome::Declined;
        }
        let (to, context, wants_entry) = (recv.first, recv.context, recv.wants_entry);
        space.forget_posted(at, source);
        parcel.copy_all(to);
        self.stats.recvs += 1;
        if wants_entry && let Some(q) = &self.bind.rx {
            let kind = flags::RECV | [flags::MSG, flags::TAGGED, flags::TAGGED | flags::REMOTE_CQ_DATA][WORDS - 1];
            let entry = Completion { context, flags: kind, len, buf: to.addr(), data: if WORDS > 2 { parcel.word(2) } else { 0 } };
            if !self.reader.push(q, &entry, tag) {
                q.push_from(entry, State::origin((WORDS > 1).then_some(tag), source));
            }
        }
        FastOutcome::Filled
    }

    /// Stores a message that no receive fits.
    #[inline(never)]
    fn store_fast<P: Parcel + ?Sized>(
        &mut self,
        tagged: bool,
        (source, tag, data): (u64, u64, Option<u64>),
        (from, link): (Id, usize),
        parcel: &P,
    ) -> FastOutcome {
        let Some(peer) = self.peers.get_mut(from) else { return FastOutcome::Declined };
        if !peer.credit.try_receive(parcel.len()) {
            return FastOutcome::Declined;
        }
        let bytes = UnexpectedData::of(parcel);
        self.stats.unexpected += 1;
        self.matching.space(tagged).keep(source, tag, Unexpected::Eager { from, link, bytes, data });
        FastOutcome::Stored
    }

    /// Decides which operations may take the fast path, from what is bound and which options are set.
    pub fn settle_fast(&mut self) {
        let open = self.bind.enabled && !self.closed && self.faults.is_none();
        let b = &self.bind;
        self.fast_send = open && b.tx.is_some() && b.counters.send.is_none() && !self.deliver;
        self.entry_by_default = b.wants_plain_receive();
        self.fast_recv = open && b.rx.is_some() && b.counters.recv.is_none() && self.options.recv_deadline_ns == 0;
        self.fast_untagged = self.fast_recv && !b.receives_several();
    }
}
