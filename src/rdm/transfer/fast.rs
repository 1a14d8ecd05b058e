// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fast path of posting: small messages that the program sends, and receives. Each function checks all conditions before
//! it changes anything. If a function declines (returns false), `send` or `recv` handles the operation.

use crate::prov::av::UNSPEC;
use crate::prov::flags;
use crate::prov::op::One;
use crate::prov::queue::Completion;
use crate::rdm::limits::{INJECT_SIZE, MAX_MSG};
use crate::rdm::matching::matcher::{EntryId, RecvFilter};
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::peers::outstanding::Recv;
use crate::rdm::peers::peer::Phase;
use crate::rdm::peers::unexpected::Unexpected;
use crate::rdm::state::State;
use crate::rdm::transfer::fast_arrive::{PLAIN, PLAIN_TAGGED, TAGGED_DATA};
use crate::rdm::wire::parcel::Label;

impl State {
    /// Sends a short message from one piece of host memory, if nothing waits to be sent before it. `WORDS` is the number
    /// of words of the parcel: first word, tag, data, in this order. `how` is the flags of the operation. False if nothing
    /// was done.
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
        if !lane.put_short(words, one.local) && !matches!(lane.put(words, &[one.local]), Ok(true)) {
            return false;
        }
        peer.credit.sent(one.local.len());
        self.reports.stats().sends += 1;
        if self.bind.wants_entry(how)
            && let Some(q) = &self.bind.tx
        {
            let kind = flags::SEND | if WORDS > 1 { flags::TAGGED } else { flags::MSG };
            q.push(Completion { context: one.context, flags: kind, len: one.local.len(), buf: one.local.addr(), data: 0 });
        }
        true
    }

    /// Posts a receive into one piece of host memory, or fills the receive at once from an unexpected message whose bytes
    /// have arrived. `TAG`: the receive has a tag (`one.key`), of which the bits `ignore` are ignored. False if nothing was
    /// done.
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
        let matcher = self.matching.matcher(TAG);
        let want = RecvFilter { source, tag: one.key, ignore };
        let (first, context) = (one.local, one.context);
        let recv = move || Recv { first, room: first.len(), context, wants_entry, tagged: TAG, more: None };
        if matcher.room_to_post().is_err() {
            return false;
        }
        match matcher.find_unexpected(&want) {
            None => {
                let number = self.matching.next_post();
                self.matching.matcher(TAG).post(number, want, recv);
                true
            }
            Some(at) => self.fill_from_unexpected(domain, TAG, at, recv()),
        }
    }

    /// Copies an unexpected message into a receive of one piece of host memory. False if the message is an offer or a
    /// loopback message, or is longer than the receive; then nothing was done.
    #[inline(never)]
    fn fill_from_unexpected(&mut self, domain: &Domain, tagged: bool, at: EntryId, recv: Recv) -> bool {
        let matcher = self.matching.matcher(tagged);
        let Some((source, tag, Unexpected::Eager { from, link, bytes, data })) = matcher.unexpected(at) else { return false };
        let (from, link, len) = (*from, *link, bytes.len());
        let label = Label { tag: tagged.then_some(tag), data: *data };
        if len > recv.room {
            return false;
        }
        recv.first.put(bytes.as_slice());
        let number = self.matching.next_post();
        let matcher = self.matching.matcher(tagged);
        matcher.record_fill(number, source);
        matcher.remove_unexpected(at);
        self.peers.consumed(from, link, len);
        self.received(&recv, len, 0, &label, source);
        // Returned credit is sent now, because the peer may wait for it and the program may not call again soon.
        self.run_queued_work(domain);
        true
    }
}
