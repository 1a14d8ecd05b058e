// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Posted receives and unexpected messages of one endpoint, tagged and untagged; messages that a peek has claimed; and
//! multi-receive buffers (`GDRFAB_MULTI_RECV`). Each message in such a buffer takes the next part of the buffer.

use crate::error::Error;
use crate::prov::av::UNSPEC;
use crate::rdm::matching::matcher::{EntryId, Matcher, in_order};
use crate::rdm::peers::outstanding::{MultiRecv, Recv, RecvExtra};
use crate::rdm::peers::peer::{Id, UNKNOWN};
use crate::rdm::peers::unexpected::Unexpected;
use std::collections::{HashMap, HashSet};

/// A matcher for one kind of messages. An endpoint has one matcher for tagged messages, and another for untagged messages.
pub type MessageMatcher = Matcher<Recv, Unexpected>;

#[derive(Default)]
pub struct Matching {
    tagged: MessageMatcher,
    untagged: MessageMatcher,
    /// Messages that a peek has claimed, by the context of the peek. A value is the source, the tag, whether the message
    /// is tagged, and the message.
    claimed: HashMap<usize, (u64, u64, bool, Unexpected)>,
    /// Multi-receive buffers, each until its last message is in place.
    multi: Vec<Option<MultiRecv>>,
    /// Number of the newest post. Receives (tagged and untagged together) and operations are numbered in the order of
    /// posting, except sends of the fast path and block lists.
    posts: u64,
}

impl Matching {
    /// The matcher of tagged or of untagged messages.
    #[inline(always)]
    pub fn matcher(&mut self, tagged: bool) -> &mut MessageMatcher {
        if tagged { &mut self.tagged } else { &mut self.untagged }
    }

    /// The next number in the order of posting.
    #[inline(always)]
    pub fn next_post(&mut self) -> u64 {
        self.posts += 1;
        self.posts
    }

    /// Files the receives and the messages of peers under their new indexes. `moved`: the old and the new index of each
    /// peer. All receives are removed before any is posted again, because an index may have moved from one peer to
    /// another.
    pub fn moved(&mut self, moved: &[(u64, u64)], source_of: impl Fn(Id) -> Option<u64> + Copy) {
        let mut receives = Vec::new();
        for (before, source) in moved {
            receives.extend([true, false].map(|tagged| (tagged, *source, self.matcher(tagged).take_posted_for(*before))));
        }
        self.refile(source_of);
        for (tagged, source, receives) in receives {
            self.matcher(tagged).repost(source, receives);
        }
    }

    /// Files unexpected messages under the current indexes of their peers.
    pub fn refile(&mut self, source_of: impl Fn(Id) -> Option<u64> + Copy) {
        let source_of = |message: &Unexpected| message.from().and_then(source_of);
        for matcher in [&mut self.tagged, &mut self.untagged] {
            matcher.refile(source_of);
        }
        for (source, .., message) in self.claimed.values_mut() {
            *source = source_of(message).unwrap_or(*source);
        }
    }

    /// The peers from which stored messages came, and the peers without an index for whose messages receives are posted.
    pub fn peers(&self) -> HashSet<Id> {
        let matchers = [&self.tagged, &self.untagged];
        let waiting = matchers.iter().flat_map(|matcher| matcher.each_unexpected()).filter_map(|(.., message)| message.from());
        let for_it = |source: u64| (source >= UNKNOWN && source != UNSPEC).then_some(source as Id);
        let posted = matchers.iter().flat_map(|matcher| matcher.posted_sources()).filter_map(for_it);
        waiting.chain(posted).chain(self.claimed.values().filter_map(|(.., message)| message.from())).collect()
    }

    /// Takes back up to `most` posted receives for which `which` holds, tagged and untagged, in the order of posting.
    pub fn take_receives(&mut self, most: usize, mut which: impl FnMut(&Recv) -> bool) -> Vec<Recv> {
        let mut found: Vec<_> = self.tagged.search_posted(&mut which).map(|(number, at)| (number, (true, at))).collect();
        found.extend(self.untagged.search_posted(which).map(|(number, at)| (number, (false, at))));
        in_order(found).into_iter().take(most).filter_map(|(tagged, at)| self.matcher(tagged).withdraw_posted(at)).collect()
    }

    /// Takes back the receives that only messages of `source` can fill.
    pub fn take_receives_for(&mut self, source: u64) -> Vec<Recv> {
        let all = [true, false].into_iter().flat_map(|tagged| self.matcher(tagged).take_posted_for(source));
        all.map(|(.., recv)| recv).collect()
    }

    /// Removes the unmatched offers that came by the link with this number, because the link has ended.
    pub fn remove_offers_of(&mut self, link: usize) {
        for matcher in [&mut self.tagged, &mut self.untagged] {
            let is_its_offer = |m: &Unexpected| matches!(m, Unexpected::Offered { link: l, .. } if *l == link);
            let gone: Vec<_> = matcher.each_unexpected().filter(|(.., m)| is_its_offer(m)).map(|(at, ..)| at).collect();
            gone.into_iter().for_each(|at| drop(matcher.remove_unexpected(at)));
        }
    }

    /// Removes an unmatched offer that its sender takes back. False if the offer is no longer stored at `at`.
    pub fn remove_offer(&mut self, tagged: bool, at: EntryId, id: Id, number: u64) -> bool {
        let matcher = self.matcher(tagged);
        let is_it = |m: &Unexpected| matches!(m, Unexpected::Offered { from, offer, .. } if *from == id && offer.number == number);
        matcher.unexpected(at).is_some_and(|(.., m)| is_it(m)) && matcher.remove_unexpected(at).is_some()
    }

    /// Removes an unmatched message of this endpoint to itself. False if the message is not stored.
    pub fn remove_loopback(&mut self, tagged: bool, number: u64) -> bool {
        let matcher = self.matcher(tagged);
        let mut waiting = matcher.each_unexpected();
        let found = waiting.find(|(.., m)| matches!(m, Unexpected::Loopback { number: n, .. } if *n == number)).map(|(at, ..)| at);
        drop(waiting);
        found.is_some_and(|at| matcher.remove_unexpected(at).is_some())
    }

    /// Keeps a message that a peek with this context has claimed.
    pub fn claim(&mut self, context: usize, (source, tag, tagged): (u64, u64, bool), message: Unexpected) {
        self.claimed.insert(context, (source, tag, tagged, message));
    }

    pub fn has_claimed(&self, context: usize) -> bool {
        self.claimed.contains_key(&context)
    }

    /// The source and the tag of a claimed message, and the message.
    pub fn take_claimed(&mut self, context: usize, tagged: bool) -> Option<(u64, u64, Unexpected)> {
        self.claimed.get(&context).filter(|(.., of_tagged, _)| *of_tagged == tagged)?;
        self.claimed.remove(&context).map(|(source, tag, _, message)| (source, tag, message))
    }

    pub fn drop_claimed(&mut self) {
        self.claimed.clear();
    }

    /// Adds a multi-receive buffer, which is full when fewer than `min_room` bytes are left. Returns the buffer's number.
    pub fn begin_multi(&mut self, min_room: usize) -> u32 {
        let slot = self.multi.iter().position(Option::is_none).unwrap_or_else(|| {
            self.multi.push(None);
            self.multi.len() - 1
        });
        if let Some(place) = self.multi.get_mut(slot) {
            *place = Some(MultiRecv { arriving: 0, full: false, min_room, fails_with: None });
        }
        slot as u32
    }

    fn multi_of(&mut self, recv: &Recv) -> Option<&mut MultiRecv> {
        self.multi.get_mut(recv.multi()?.0 as usize)?.as_mut()
    }

    /// Takes a posted receive for a message of `len` bytes from `source`. If the receive is a multi-receive buffer, takes
    /// the buffer's next part; the buffer stays posted until it is full.
    pub fn take_recv(&mut self, tagged: bool, at: EntryId, len: usize, source: u64) -> Option<Recv> {
        let (slot, used) = match self.matcher(tagged).posted(at)?.multi() {
            Some(multi) => multi,
            None => return self.matcher(tagged).remove_posted(at, source),
        };
        let min = self.multi.get(slot as usize).and_then(Option::as_ref).map_or(1, |m| m.min_room.max(1));
        let matcher = self.matcher(tagged);
        if let Some((number, _)) = matcher.position_of(at) {
            matcher.record_fill(number, source);
        }
        let recv = matcher.posted(at)?;
        let room = recv.room - used;
        let now = used + len.min(room);
        let more = recv.more.as_ref().map(|m| Box::new(RecvExtra { deadline: 0, ..RecvExtra::clone(m) }));
        let part = Recv { first: recv.first.part(used, room), room, context: recv.context, wants_entry: recv.wants_entry, tagged, more };
        if let Some(more) = &mut recv.more {
            more.multi = Some((slot, now));
        }
        let full = recv.room - now < min;
        if full {
            matcher.remove_posted(at, source);
        }
        if let Some(multi) = self.multi_of(&part) {
            multi.arriving += 1;
            multi.full |= full;
        }
        Some(part)
    }

    /// Counts a message as being in place. True if the message was the last of a multi-receive buffer: nothing writes to
    /// the buffer any more, and the message's entry is the last entry of the buffer.
    #[inline]
    pub fn finish_part(&mut self, recv: &Recv) -> bool {
        let Some((at, _)) = recv.multi() else { return false };
        let Some(multi) = self.multi_of(recv) else { return false };
        multi.arriving = multi.arriving.saturating_sub(1);
        let over = multi.full && multi.arriving == 0 && multi.fails_with.is_none();
        if over && let Some(place) = self.multi.get_mut(at as usize) {
            *place = None;
        }
        over
    }

    /// The caller has written the entry of a message. If no other message is arriving in the same multi-receive buffer, and
    /// the buffer has to fail, returns the receive that fails now, and its error.
    #[inline]
    pub fn end_if_last(&mut self, recv: &Recv) -> Option<(Recv, Error)> {
        let multi = self.multi_of(recv).filter(|multi| multi.arriving == 0)?;
        multi.fails_with.take().map(|failed| *failed)
    }

    /// Returns the receive and the error if the receive fails now. A multi-receive buffer in which messages are arriving
    /// fails later, when these messages are in place (`end_if_last`).
    pub fn fail(&mut self, recv: Recv, why: Error) -> Option<(Recv, Error)> {
        if let Some(multi) = self.multi_of(&recv) {
            multi.full = true;
            if multi.arriving > 0 {
                multi.fails_with = Some(Box::new((recv, why)));
                return None;
            }
            // The entry of the failure counts as an arriving message, so that this entry becomes the last of the buffer.
            multi.arriving = 1;
        }
        Some((recv, why))
    }
}
