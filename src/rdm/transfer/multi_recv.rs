// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The receive that a message takes: a whole posted receive, or the next part of a buffer for several messages
//! (`GDRFAB_MULTI_RECV`).

use crate::error::Error;
use crate::rdm::matching::matcher::EntryId;
use crate::rdm::peers::outstanding::{Recv, RecvExtra};
use crate::rdm::peers::peer::UNKNOWN;
use crate::rdm::state::State;
use crate::rdm::wire::parcel::Label;

impl State {
    /// Counts a message as being in place. True if it was the last of a multi-receive buffer: nothing writes to the
    /// buffer any more, and the message's entry is the last entry of the buffer.
    pub fn finish_part(&mut self, recv: &Recv) -> bool {
        let Some((at, _)) = recv.multi() else { return false };
        let Some(place) = self.multi.get_mut(at as usize) else { return false };
        let Some(multi) = place else { return false };
        multi.arriving = multi.arriving.saturating_sub(1);
        let over = multi.full && multi.arriving == 0 && multi.fails_with.is_none();
        if over {
            *place = None;
        }
        over
    }

    /// Called after the entry of a message was written. If the message was the last one arriving in a multi-receive
    /// buffer that has to fail, the buffer fails now.
    pub fn end_if_last(&mut self, recv: &Recv) {
        let Some((at, _)) = recv.multi() else { return };
        if let Some(Some(multi)) = self.multi.get_mut(at as usize)
            && multi.arriving == 0
            && let Some(end) = multi.fails_with.take()
        {
            let (recv, why) = *end;
            self.fail_recv(recv, why, UNKNOWN);
        }
    }

    /// Fails a receive. A multi-receive buffer fails only when all messages that are arriving in it are in place.
    pub fn fail_recv(&mut self, recv: Recv, why: Error, source: u64) {
        if let Some((at, _)) = recv.multi()
            && let Some(Some(multi)) = self.multi.get_mut(at as usize)
        {
            multi.full = true;
            if multi.arriving > 0 {
                multi.fails_with = Some(Box::new((recv, why)));
                return;
            }
            // The entry of the failure itself counts as an arriving message, so that it becomes the last entry.
            multi.arriving = 1;
        }
        self.complete_failed_recv(&recv, why, &Label::default(), source);
    }

    /// Takes a posted receive for a message of `len` bytes from `source`. A multi-receive buffer gives its next part, and
    /// stays posted until it is full.
    pub fn take_recv(&mut self, tagged: bool, at: EntryId, len: usize, source: u64) -> Option<Recv> {
        let (slot, used) = match self.space(tagged).posted(at)?.multi() {
            Some(multi) => multi,
            None => return self.space(tagged).remove_posted(at, source),
        };
        let min = self.multi.get(slot as usize).and_then(Option::as_ref).map_or(1, |m| m.min_room.max(1));
        if let Some((number, _)) = self.space(tagged).position_of(at) {
            self.space(tagged).record_fill(number, source);
        }
        let recv = self.space(tagged).posted(at)?;
        let room = recv.room - used;
        let now = used + len.min(room);
        let more = recv.more.as_ref().map(|m| Box::new(RecvExtra { deadline: 0, ..RecvExtra::clone(m) }));
        let part = Recv { first: recv.first.part(used, room), room, context: recv.context, wants_entry: recv.wants_entry, tagged, more };
        if let Some(more) = &mut recv.more {
            more.multi = Some((slot, now));
        }
        let full = recv.room - now < min;
        if full {
            self.space(tagged).remove_posted(at, source);
        }
        if let Some(Some(multi)) = self.multi.get_mut(slot as usize) {
            multi.arriving += 1;
            multi.full |= full;
        }
        Some(part)
    }

    /// Takes back a posted receive that no message will fill.
    pub fn withdraw_recv(&mut self, tagged: bool, at: EntryId) -> Option<Recv> {
        self.space(tagged).withdraw_posted(at)
    }
}
