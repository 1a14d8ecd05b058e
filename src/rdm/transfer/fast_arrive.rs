// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fast path of small messages that arrive: from a lane straight into a receive and the program's completion queue. Each
//! function checks all conditions before it changes anything. If a function declines, `arrive` handles the message.

use crate::prov::queue::Completion;
use crate::prov::{Parcel, flags};
use crate::rdm::parts::reports::origin;
use crate::rdm::peers::peer::Id;
use crate::rdm::peers::unexpected::{Unexpected, UnexpectedData};
use crate::rdm::state::State;
use crate::rdm::wire::parcel::{DATA, TAGGED, kind};

/// First words of the eager messages that the fast path handles: without tag and data, with a tag, and with both.
pub const PLAIN: u64 = kind::EAGER as u64;
pub const PLAIN_TAGGED: u64 = PLAIN | TAGGED;
pub const TAGGED_DATA: u64 = PLAIN_TAGGED | DATA;

/// Result of handing an arrived message to the fast path.
pub enum FastOutcome {
    /// The message filled a receive.
    Filled,
    /// No receive fits; the message is stored as unexpected.
    Stored,
    /// No receive fits; the message stays with the lane for now, because a receive is expected or there is no memory to
    /// store the message.
    Deferred,
    /// The fast path does not apply; nothing was done.
    Declined,
}

impl State {
    /// Delivers an eager message to the receive that fits. Without such a receive, the message is stored; the message is left
    /// with the lane if `defer` is set or memory is missing.
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
        let matcher = self.matching.matcher(WORDS > 1);
        let Some(at) = matcher.find_posted(source, tag) else {
            if defer || matcher.room_to_keep().is_err() {
                return FastOutcome::Deferred;
            }
            let data = (WORDS > 2).then(|| parcel.word(2));
            return self.store_fast(WORDS > 1, (source, tag, data), (id, link), parcel);
        };
        let Some(recv) = matcher.posted(at) else { return FastOutcome::Declined };
        if recv.more.is_some() || len > recv.room || !self.fast_recv || !peer.credit.receive_and_consume(len) {
            return FastOutcome::Declined;
        }
        let (to, context, wants_entry) = (recv.first, recv.context, recv.wants_entry);
        matcher.forget_posted(at, source);
        parcel.copy_all(to);
        self.reports.stats().recvs += 1;
        if wants_entry && let Some(q) = &self.bind.rx {
            let kind = flags::RECV | [flags::MSG, flags::TAGGED, flags::TAGGED | flags::REMOTE_CQ_DATA][WORDS - 1];
            let entry = Completion { context, flags: kind, len, buf: to.addr(), data: if WORDS > 2 { parcel.word(2) } else { 0 } };
            if !self.reader.push(q, &entry, tag) {
                q.push_from(entry, origin((WORDS > 1).then_some(tag), source));
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
        self.reports.stats().unexpected += 1;
        self.matching.matcher(tagged).keep(source, tag, Unexpected::Eager { from, link, bytes, data });
        FastOutcome::Stored
    }
}
