// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sending and receiving the parcels of a lane. A parcel is a message from a registered slot of the library. A side
//! sends a parcel only while the peer has a receive for it (`wire/credit.rs`).

use crate::error::{Code, Error, Result, errno};
use crate::prov::op::{IOV_LIMIT, Iov, total};
use crate::prov::parcel::Flat;
use crate::prov::verbs::endpoint::Endpoint;
use crate::prov::verbs::ops::post::aim;
use crate::prov::verbs::queue::work::{PARCEL, RemoteAddr, RxOp, SIGNALED, TxOp};
use crate::prov::verbs::state::lane::{HEADER, INLINE_WORDS, LaneMessage, LaneRma, MAX_ANSWERS, MAX_BYTES, kind};
use crate::prov::verbs::state::{Phase, State};
use crate::prov::verbs::sys::abi::*;
use crate::prov::verbs::sys::status;
use crate::prov::verbs::wire::credit::Class;
use crate::prov::{Lane, ParcelSink};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

/// Most words at the beginning of a parcel.
const WORDS: usize = 32;
/// Work requests that the operations of the caller leave free for the lane's own parcels.
const SPARE: u32 = 16;

/// The error about a peer that broke the protocol of lanes, which ends the connection.
#[cold]
pub(in crate::prov::verbs) fn protocol_error(words: &'static str) -> Error {
    Error::coded(errno::EPROTO, Code::PeerBroke, format!("the peer sent {words}"))
}

impl State {
    /// Posts the first receives of a lane.
    pub(in crate::prov::verbs) fn post_receives(&mut self) -> Result<()> {
        let all = self.lane.as_ref().map_or(0, |lane| lane.receives());
        (0..all).try_for_each(|place| self.repost(place))
    }

    /// Posts further receives if the peer has earned some. Without memory for more, the lane goes on with the existing
    /// receives.
    fn grow_receives(&mut self) -> Result<()> {
        let Some(lane) = &mut self.lane else { return Ok(()) };
        let (first, more) = (lane.receives(), lane.credit.take_earned());
        if more == 0 || lane.more_receives(more).inspect_err(|e| crate::log!(Debug, "posting more receives of a lane: {e}")).is_err() {
            return Ok(());
        }
        for place in first..first + more {
            self.repost(place)?;
            if let Some(lane) = &mut self.lane {
                lane.credit.on_growth(1);
            }
        }
        Ok(())
    }

    /// Posts the receive slot `place`.
    fn repost(&mut self, place: u32) -> Result<()> {
        let Some(lane) = &self.lane else { return Ok(()) };
        // SAFETY: integers, for all of which zero is a valid value.
        let mut pieces: [ibv_sge; IOV_LIMIT] = unsafe { zeroed() };
        pieces[0] = lane.receive(place);
        self.post_receive(&mut pieces, 1, RxOp { own: true, context: place as usize, ..RxOp::default() })
    }

    /// True if an operation of the caller may post another work request.
    pub(in crate::prov::verbs) fn has_room_for_request(&self) -> bool {
        self.tx.len() + SPARE < self.tx.limit()
    }

    /// Posts one work request with a completion. A failure ends the connection.
    pub(in crate::prov::verbs) fn post_request(
        &mut self,
        opcode: ibv_wr_opcode::Type,
        pieces: &mut [ibv_sge],
        target: RemoteAddr,
        operands: [u64; 2],
        inline: bool,
        op: TxOp,
    ) -> Result<()> {
        // SAFETY: integers and pointers, for all of which zero is a valid value.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        wr.wr_id = self.tx_tag.send(self.tx.next());
        wr.next = null_mut();
        wr.sg_list = pieces.as_mut_ptr();
        wr.num_sge = pieces.len() as i32;
        wr.opcode = opcode;
        wr.send_flags = SIGNALED | if inline { ibv_send_flags::IBV_SEND_INLINE } else { 0 };
        aim(&mut wr, target, operands);
        let Some(qp) = &self.qp else { return Err(self.not_connected()) };
        // SAFETY: request and pieces live until the call returns, and inline bytes are copied during it. Other bytes stay until the
        // completion: a parcel's slot belongs to the lane, and an operation's buffers to its caller (the promise of `Iov::new`) or to
        // `op.bounce`.
        match unsafe { qp.post_send(&mut wr) } {
            Ok(()) => {
                self.tx.push(op);
                Ok(())
            }
            Err((_, err)) => {
                let error = status::call_error("posting a work request", err);
                self.begin_teardown(error.clone(), false);
                Err(error)
            }
        }
    }

    /// Sends a parcel if there is room for the parcel. False: there is no room.
    pub(in crate::prov::verbs) fn send_parcel(&mut self, kind: u8, class: Class, words: &[u64], bytes: &[Iov]) -> Result<bool> {
        self.send_parcel_of(kind, class, words, bytes, None)
    }

    /// Sends a parcel if there is room for the parcel. If `of` names an operation, that operation ends when the parcel
    /// has been sent.
    pub(in crate::prov::verbs) fn send_parcel_of(
        &mut self,
        kind: u8,
        class: Class,
        words: &[u64],
        bytes: &[Iov],
        of: Option<&mut LaneRma>,
    ) -> Result<bool> {
        if !matches!(self.phase, Phase::Connected) {
            return Err(self.not_connected());
        }
        let inline = self.qp.as_ref().map_or(0, |qp| qp.capacity.inline as usize);
        let (room, Some(lane)) = (if class == Class::Caller { self.has_room_for_request() } else { !self.tx.is_full() }, &mut self.lane)
        else {
            return Err(Error::fixed(errno::EOPNOTSUPP, "internal error: the endpoint is not a lane"));
        };
        let Some(len) = total(bytes).map(|len| len.saturating_add(8 * words.len())).filter(|len| *len <= MAX_BYTES) else {
            return Err(Error::fixed(errno::EMSGSIZE, "internal error: a lane parcel does not fit into one message"));
        };
        // A parcel inside the work request needs no slot, so such a parcel does not wait for a free slot.
        let mut small = [0; INLINE_WORDS];
        let inline = HEADER + len <= inline.min(8 * INLINE_WORDS);
        if !room {
            return Ok(false);
        }
        let Some(at) = lane.room(class, inline.then_some(&mut small)) else { return Ok(false) };
        let mut piece = lane.write(at, kind, words, bytes);
        let how = if inline { 0 } else { PARCEL };
        let op = match &of {
            Some(m) => TxOp { end: m.end, path_bits: m.path_bits | how, ..TxOp::default() },
            None => TxOp { internal: true, path_bits: how, ..TxOp::default() },
        };
        let seq = self.tx.next();
        self.post_request(ibv_wr_opcode::IBV_WR_SEND, std::slice::from_mut(&mut piece), RemoteAddr::default(), [0; 2], inline, op)?;
        if let (Some(m), Some(op)) = (of, self.tx.get_mut(seq)) {
            op.bounce = m.hold.take();
        }
        Ok(true)
    }

    /// Sends an answer, now or when there is room. After the end of the connection the answer is dropped without an
    /// error: no caller waits for the answer, and the parcels that arrived after the question still have to be handled.
    pub(in crate::prov::verbs) fn queue_answer(&mut self, kind: u8, words: &[u64], bytes: &[u8]) -> Result<()> {
        if !matches!(self.phase, Phase::Connected) {
            return Ok(());
        }
        let Some(lane) = &mut self.lane else { return Ok(()) };
        if lane.answers_waiting >= MAX_ANSWERS {
            return Err(protocol_error("more requests than it may have outstanding"));
        }
        lane.answers_waiting += 1;
        lane.outbox.push_back(LaneMessage { is_answer: true, kind, words: words.into(), bytes: bytes.into() });
        self.flush_outbox()
    }

    /// Sends a message of the lane that answers nothing, now or when there is room. The caller bounds the number of
    /// queued messages.
    pub(in crate::prov::verbs) fn queue_message(&mut self, kind: u8, words: &[u64]) -> Result<()> {
        let (Phase::Connected, Some(lane)) = (&self.phase, &mut self.lane) else { return Ok(()) };
        lane.outbox.push_back(LaneMessage { is_answer: false, kind, words: words.into(), bytes: Box::default() });
        self.flush_outbox()
    }

    fn flush_outbox(&mut self) -> Result<()> {
        while let Some(own) = self.lane.as_mut().and_then(|lane| lane.outbox.pop_front()) {
            // SAFETY: `own` keeps the bytes until `send_parcel` has copied them.
            let bytes = unsafe { Iov::of(&own.bytes) };
            let sent = self.send_parcel(own.kind, Class::Own, &own.words, &[bytes])?;
            let Some(lane) = &mut self.lane else { return Ok(()) };
            if !sent {
                lane.outbox.push_front(own);
                return Ok(());
            }
            lane.answers_waiting -= usize::from(own.is_answer);
        }
        Ok(())
    }

    /// Hands out the parcels that have arrived, advances operations, and sends the messages that wait.
    fn lane_turn(&mut self, domain: &crate::prov::verbs::Domain, each: &mut dyn ParcelSink) -> Result<()> {
        while let Some((place, len)) = self.lane.as_ref().and_then(|lane| lane.inbox.front().copied()) {
            let Some(lane) = &mut self.lane else { return Ok(()) };
            let Some((head, rest)) = lane.bytes(place, len).split_first_chunk::<8>() else {
                return Err(protocol_error("a lane parcel without a header"));
            };
            let head = u64::from_le_bytes(*head);
            let words = (head >> 8 & 0xff) as usize;
            if words > WORDS || 8 * words > rest.len() || head >> 16 & 0xffff != 0 {
                return Err(protocol_error("a lane parcel with more header words than bytes"));
            }
            let parcel = Flat { words, bytes: rest };
            match head as u8 {
                kind::PARCEL if !each.take(&parcel) => return Ok(()),
                kind::PARCEL | kind::CREDIT => lane.credit.on_report((head >> 32) as u32)?,
                own => {
                    let copy: Box<[u8]> = rest.into();
                    lane.credit.on_report((head >> 32) as u32)?;
                    self.on_request(domain, own, &Flat { words, bytes: &copy })?;
                }
            }
            if let Some(lane) = &mut self.lane {
                lane.inbox.pop_front();
            }
            if matches!(self.phase, Phase::Connected | Phase::Connecting(_)) {
                self.repost(place)?;
                if let Some(lane) = &mut self.lane {
                    lane.credit.on_receive_posted();
                }
                self.grow_receives()?;
            }
        }
        if !matches!(self.phase, Phase::Connected) {
            return Ok(());
        }
        self.advance_jobs();
        self.flush_outbox()?;
        if self.lane.as_ref().is_some_and(|lane| lane.credit.must_report()) {
            self.send_parcel(kind::CREDIT, Class::Credit, &[], &[])?;
        }
        Ok(())
    }

    /// Handles the end of a work request of the library's own.
    pub(in crate::prov::verbs) fn internal_op_ended(&mut self, op: &TxOp) {
        if op.striped {
            return self.part_done(op);
        }
        if let Some(lane) = self.lane.as_mut().filter(|_| op.path_bits == PARCEL) {
            lane.sent();
        }
    }

    /// Handles a receive that has completed with a parcel.
    pub(in crate::prov::verbs) fn on_parcel_received(&mut self, place: usize, len: usize) {
        if let Some(lane) = &mut self.lane {
            lane.inbox.push_back((place as u32, len));
            if !std::mem::replace(&mut lane.has_received, true) {
                self.first_parcel_received();
            }
        }
    }

    /// True if received parcels wait to be handed out.
    pub(in crate::prov::verbs) fn has_parcels(&self) -> bool {
        self.lane.as_ref().is_some_and(|lane| !lane.inbox.is_empty())
    }
}

impl Lane for Endpoint {
    fn max(&self) -> usize {
        MAX_BYTES
    }

    fn put(&self, words: &[u64], bytes: &[Iov]) -> Result<bool> {
        if words.len() > WORDS {
            return Err(Error::fixed(errno::EMSGSIZE, "internal error: a lane parcel has too many header words"));
        }
        let mut s = self.shared.state.lock();
        match &s.lane {
            // A parcel must not overtake operations that were posted before it.
            Some(lane) if !lane.jobs.is_empty() || !lane.outbox.is_empty() => Ok(false),
            _ => s.send_parcel(kind::PARCEL, Class::Caller, words, bytes),
        }
    }

    fn take(&self, force: bool, each: &mut dyn ParcelSink) -> bool {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        if force || turn & self.mask == 0 {
            self.progress_all(force);
        } else if let Some(cq) = self.lane_cq.get() {
            cq.poll(false);
            self.poll_rails();
        }
        let Some(mut s) = (if force { Some(self.shared.state.lock()) } else { self.shared.state.try_lock() }) else { return true };
        let works = s.lane.as_ref().is_some_and(|lane| !lane.inbox.is_empty() || !lane.jobs.is_empty() || !lane.outbox.is_empty());
        if let Err(e) = s.lane_turn(&self.domain, each) {
            s.discard_inbox();
            s.begin_teardown(e, false);
        }
        s.finish_if_drained();
        works
    }

    fn lose(&self, why: Error) {
        let mut s = self.shared.state.lock();
        s.discard_inbox();
        s.begin_teardown(why, false);
        s.finish_if_drained();
    }
}

impl State {
    /// Drops the received parcels, which nobody will take any more.
    pub(in crate::prov::verbs) fn discard_inbox(&mut self) {
        if let Some(lane) = &mut self.lane {
            lane.inbox.clear();
        }
    }
}
