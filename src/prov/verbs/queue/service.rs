// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A second queue pair beside the caller's, for the library's own words: that the other side is there, that it goes,
//! and transfers to memory that its device does not reach (`staged.rs`). It has receives of its own, so nothing here
//! ever takes one of the caller's.
//!
//! Messages have 64 bytes. Each request has one answer, and no side has more requests out than the other has receives,
//! so none is ever turned away for want of one. A peer that asks on and takes no answers breaks the protocol.

use super::qp::{Capacity, LocalPort, Qp, RemoteQp, RetryPolicy};
use super::tag::Tag;
use crate::error::{Code, Error, Result, errno};
use crate::mr::Access;
use crate::prov::verbs::device::context::Context;
use crate::prov::verbs::device::object::RawCq;
use crate::prov::verbs::memory::mr::Staged;
use crate::prov::verbs::memory::registered::{Buffer, Registered};
use crate::prov::verbs::sys::abi::*;
use std::collections::VecDeque;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::Arc;

/// Words of a message.
pub type Message = [u64; 8];
const MESSAGE: usize = size_of::<Message>();
/// Receives that are always posted.
const RECEIVES: usize = 32;
/// Messages that may be on their way.
const SENDS: usize = 32;
/// Answers that wait, of a peer that keeps to what it may ask.
const ANSWERS: usize = 1024;
/// Work requests beside them: bulk of staged transfers.
const BULK: usize = 32;
/// A target's buffers for staged transfers, which the initiator fills and empties.
pub const SLOTS: usize = 4;
pub const SLOT_BYTES: usize = 256 << 10;

/// First byte of a message.
pub mod kind {
    /// Nothing but a sign of life: its arrival is acknowledged by the device.
    pub const HELLO: u8 = 1;
    pub const BYE: u8 = 2;
    /// Asks for the slots; the answer names them.
    pub const OPEN: u8 = 3;
    pub const OPENED: u8 = 4;
    /// A slot holds bytes for a region.
    pub const PUT: u8 = 5;
    /// A slot is to get bytes of a region.
    pub const GET: u8 = 6;
    /// What became of a PUT or GET.
    pub const DONE: u8 = 7;
    /// Of rails; the second byte has the number, the upper half the life of the sender's queue pair. OFFER: GID, number of
    /// the queue pair, LID and MTU. READY: the life of the receiver's to which it is connected. GONE: it is destroyed.
    pub const RAIL_OFFER: u8 = 8;
    pub const RAIL_READY: u8 = 9;
    pub const RAIL_GONE: u8 = 10;
    /// Of keys: asks for the further rails' keys of a region; the rails that have one, and those; one is gone; it is forgotten.
    pub const KEYS_ASK: u8 = 11;
    pub const KEYS_TOLD: u8 = 12;
    pub const KEYS_GONE: u8 = 13;
    pub const KEYS_FORGOT: u8 = 14;
    /// Over a further rail: the first is lost for the so-manieth time (upper half), and its queue pair has stopped. How many
    /// receives it has used, and those of the service. OFFER and READY of the number 0 follow.
    pub const FIRST_LOST: u8 = 15;
}

/// Kinds of work requests, in their numbers.
pub mod work {
    pub const SEND: u8 = 1;
    pub const BULK: u8 = 2;
    pub const READ: u8 = 3;
}

/// What a completion of the service's was.
pub enum ServiceEvent {
    Nothing,
    Message(Message),
    /// The message that is there was acknowledged by the peer's device.
    Sent(u8),
    /// Bytes of this slot have been read.
    Read(usize),
    /// The peer does not answer, or the queue pair failed otherwise.
    Failed(u32),
}

pub struct Service {
    pub qp: Qp,
    tag: Tag,
    /// Receives first, then messages to send.
    area: Buffer,
    /// Messages that wait for a place; whether each is an answer, and how many are.
    waiting: VecDeque<(Message, bool)>,
    answers_waiting: usize,
    /// Places of messages that are on their way.
    sending: [Option<u8>; SENDS],
    /// Work requests that the device holds, receives left out.
    pub outstanding: u32,
    /// Counts restarts: completions of an earlier life are told by it.
    epoch: u8,
    /// Connected to the peer's.
    pub up: bool,
    /// The slots that this side offers.
    slots: Option<Buffer>,
    /// With further rails: work requests that have not ended, which go again if the port is lost.
    unacked: Option<Vec<UnackedRequest>>,
    /// Nothing goes to the device.
    suspended: bool,
    /// Work requests that the device holds, receives too.
    pub with_device: u32,
    /// Messages that arrived, and that were sent.
    pub received: u32,
    sent: u32,
}

struct UnackedRequest {
    what: u8,
    index: usize,
    opcode: ibv_wr_opcode::Type,
    pieces: Vec<ibv_sge>,
    addr: u64,
    rkey: u32,
    /// Messages sent before it.
    number: u32,
}

// SAFETY: numbers.
unsafe impl Send for UnackedRequest {}

/// Forgets what the peer has, which has received `used` of `sent` messages. False: it lies.
fn discard_received(kept: &mut Vec<UnackedRequest>, sent: u32, used: u32) -> bool {
    let ended = kept.iter().find(|k| k.what == work::SEND).map_or(sent, |k| k.number);
    let used = used.wrapping_sub(ended);
    if used > sent.wrapping_sub(ended) {
        return false;
    }
    let arrived = |k: &UnackedRequest| k.what == work::SEND && k.number.wrapping_sub(ended) < used;
    let mut left = kept.iter().rposition(arrived).map_or(0, |last| last + 1);
    kept.retain(|k| {
        let is_over = left > 0 && k.what != work::READ;
        left = left.saturating_sub(1);
        !is_over
    });
    true
}

impl Service {
    /// One that completes in `cq`, whose work requests have up to `pieces` pieces; `keeps`: there are further rails.
    pub fn new(memory: &Registered, cq: &RawCq, port: u8, pieces: u32, keeps: bool) -> Result<Service> {
        let asked = Capacity { tx: (SENDS + BULK) as u32, rx: RECEIVES as u32, tx_pieces: pieces, rx_pieces: 1, inline: 0 };
        let qp = Qp::new(&memory.pd, cq, cq, asked)?;
        qp.init(port)?;
        let area = memory.buffer((RECEIVES + SENDS) * MESSAGE)?;
        Ok(Service {
            qp,
            tag: Tag::default(),
            area,
            waiting: VecDeque::new(),
            answers_waiting: 0,
            sending: [None; SENDS],
            outstanding: 0,
            epoch: 0,
            up: false,
            slots: None,
            unacked: keeps.then(Vec::new),
            suspended: false,
            with_device: 0,
            received: 0,
            sent: 0,
        })
    }

    /// Completions that it can have outstanding.
    pub const CHARGE: usize = RECEIVES + SENDS + BULK;

    /// From now on its completions are told by `tag`; posts the receives.
    pub fn begin(&mut self, tag: Tag) -> Result<()> {
        self.tag = tag;
        (0..RECEIVES).try_for_each(|i| self.post_receive(i))
    }

    /// Both sides count their packets from their queue pair's number on.
    pub fn psn(number: u32) -> u32 {
        number & 0xff_ffff
    }

    fn seq(&self, what: u8, index: usize) -> u32 {
        u32::from(self.epoch) << 24 | u32::from(what) << 16 | index as u32
    }

    fn piece(&self, place: usize) -> ibv_sge {
        ibv_sge { addr: (self.area.address() + place * MESSAGE) as u64, length: MESSAGE as u32, lkey: self.area.lkey() }
    }

    fn words_at(&self, place: usize) -> *mut Message {
        (self.area.address() + place * MESSAGE) as *mut Message
    }

    fn post_receive(&mut self, place: usize) -> Result<()> {
        if self.suspended {
            return Ok(());
        }
        let mut piece = self.piece(place);
        let mut wr = ibv_recv_wr { wr_id: self.tag.recv(self.seq(0, place)), next: null_mut(), sg_list: &mut piece, num_sge: 1 };
        // SAFETY: the request is live, and the buffer ours.
        unsafe { self.qp.post_recv(&mut wr)? };
        self.with_device += 1;
        Ok(())
    }

    /// Posts a work request that gives a completion, or keeps it until it may be.
    fn post(&mut self, what: u8, index: usize, opcode: ibv_wr_opcode::Type, pieces: &mut [ibv_sge], addr: u64, rkey: u32) -> Result<()> {
        if let Some(kept) = &mut self.unacked {
            kept.push(UnackedRequest { what, index, opcode, pieces: pieces.to_vec(), addr, rkey, number: self.sent });
            self.sent = self.sent.wrapping_add(u32::from(what == work::SEND));
        }
        if self.suspended {
            self.outstanding += 1;
            return Ok(());
        }
        let posted = self.post_now(what, index, opcode, pieces, addr, rkey);
        if posted.is_err()
            && let Some(k) = self.unacked.as_mut().and_then(Vec::pop)
        {
            self.sent = k.number;
        }
        posted
    }

    fn post_now(
        &mut self,
        what: u8,
        index: usize,
        opcode: ibv_wr_opcode::Type,
        pieces: &mut [ibv_sge],
        addr: u64,
        rkey: u32,
    ) -> Result<()> {
        // SAFETY: plain numbers and pointers.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        wr.wr_id = self.tag.send(self.seq(what, index));
        wr.sg_list = pieces.as_mut_ptr();
        wr.num_sge = pieces.len() as i32;
        wr.opcode = opcode;
        wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED;
        wr.wr.rdma.remote_addr = addr;
        wr.wr.rdma.rkey = rkey;
        // SAFETY: the request is live; whoever gave the pieces keeps their bytes until the completion.
        match unsafe { self.qp.post_send(&mut wr) } {
            Ok(()) => {
                self.outstanding += 1;
                self.with_device += 1;
                Ok(())
            }
            Err((_, err)) => Err(crate::prov::verbs::sys::status::call_error("posting a work request of the library's own", err)),
        }
    }

    /// Sends a message, now or when there is room.
    pub fn send(&mut self, words: Message) -> Result<()> {
        self.waiting.push_back((words, false));
        self.flush()
    }

    /// The same of an answer.
    pub fn answer(&mut self, words: Message) -> Result<()> {
        if self.answers_waiting >= ANSWERS {
            return Err(Error::coded(errno::EPROTO, Code::PeerBroke, "the peer asks on without taking the answers"));
        }
        self.answers_waiting += 1;
        self.waiting.push_back((words, true));
        self.flush()
    }

    /// Many messages wait for a place: what can be left unsaid is.
    pub fn is_behind(&self) -> bool {
        self.waiting.len() > ANSWERS
    }

    fn flush(&mut self) -> Result<()> {
        while !self.suspended
            && let Some(place) = self.sending.iter().position(Option::is_none)
            && let Some((words, is_answer)) = self.waiting.pop_front()
        {
            self.answers_waiting -= usize::from(is_answer);
            // SAFETY: the place is ours, aligned, and no message in it is on its way.
            unsafe { self.words_at(RECEIVES + place).write(words) };
            self.sending[place] = Some(words[0] as u8);
            let mut piece = [self.piece(RECEIVES + place)];
            self.post(work::SEND, place, ibv_wr_opcode::IBV_WR_SEND, &mut piece, 0, 0)?;
        }
        Ok(())
    }

    /// Writes into a slot of the peer's.
    pub fn write(&mut self, pieces: &mut [ibv_sge], addr: u64, rkey: u32) -> Result<()> {
        self.post(work::BULK, 0, ibv_wr_opcode::IBV_WR_RDMA_WRITE, pieces, addr, rkey)
    }

    /// Reads out of slot `slot` of the peer's.
    pub fn read(&mut self, slot: usize, pieces: &mut [ibv_sge], addr: u64, rkey: u32) -> Result<()> {
        self.post(work::READ, slot, ibv_wr_opcode::IBV_WR_RDMA_READ, pieces, addr, rkey)
    }

    /// Room for one bulk request more.
    pub fn has_room(&self) -> bool {
        (self.outstanding as usize) < BULK
    }

    /// One completion.
    pub fn complete(&mut self, wc: &ibv_wc, recv: bool, seq: u32) -> ServiceEvent {
        if (seq >> 24) as u8 != self.epoch {
            return ServiceEvent::Nothing;
        }
        let (what, index) = ((seq >> 16) as u8, (seq & 0xffff) as usize);
        let good = wc.status == ibv_wc_status::IBV_WC_SUCCESS;
        self.with_device = self.with_device.saturating_sub(1);
        if self.suspended && !good {
            return ServiceEvent::Nothing;
        }
        if recv {
            if !good || index >= RECEIVES {
                return ServiceEvent::Nothing;
            }
            self.received = self.received.wrapping_add(1);
            // SAFETY: a place of ours, aligned, that the device has filled and let go of.
            let words = unsafe { self.words_at(index).read() };
            if let Err(e) = self.post_receive(index) {
                crate::log!(Warn, "{e}");
            }
            return if wc.byte_len as usize == MESSAGE { ServiceEvent::Message(words) } else { ServiceEvent::Nothing };
        }
        self.outstanding = self.outstanding.saturating_sub(1);
        if let Some(kept) = self.unacked.as_mut().filter(|kept| good && !kept.is_empty()) {
            kept.remove(0);
        }
        if what == work::SEND
            && let Some(sent) = self.sending.get_mut(index).and_then(Option::take)
            && good
        {
            if let Err(e) = self.flush() {
                crate::log!(Warn, "{e}");
            }
            return ServiceEvent::Sent(sent);
        }
        match (good, what) {
            (false, _) => ServiceEvent::Failed(wc.status),
            (true, work::READ) => ServiceEvent::Read(index),
            _ => ServiceEvent::Nothing,
        }
    }

    /// Begins anew with the same number, for a peer that was not there yet.
    pub fn restart(&mut self, port: u8) -> Result<()> {
        self.epoch = self.epoch.wrapping_add(1);
        (self.outstanding, self.sending) = (0, [None; SENDS]);
        self.waiting.clear();
        (self.answers_waiting, self.with_device, self.received, self.sent) = (0, 0, 0, 0);
        self.unacked.iter_mut().for_each(Vec::clear);
        self.qp.reset()?;
        self.qp.init(port)?;
        (0..RECEIVES).try_for_each(|i| self.post_receive(i))
    }

    // ---- the loss of the port, and its return

    /// Gives the device nothing more, and has it give back what it holds.
    pub fn suspend(&mut self) -> Result<()> {
        self.suspended = true;
        self.qp.fail()
    }

    /// The peer has received so many messages: those, and what was posted before, need not go again. False: it lies.
    pub fn discard_received(&mut self, used: u32) -> bool {
        self.unacked.as_mut().is_none_or(|kept| discard_received(kept, self.sent, used))
    }

    /// Connects it anew; what is sent is still kept.
    pub fn reconnect(&mut self, port: u8, context: &Context, local: &LocalPort, remote: &RemoteQp, patience: &RetryPolicy) -> Result<()> {
        self.epoch = self.epoch.wrapping_add(1);
        self.with_device = 0;
        self.qp.reset()?;
        self.qp.init(port)?;
        let patience = RetryPolicy { rnr_retries: 7, ..*patience };
        self.qp.ready_to_receive(context, local, remote, &patience)?;
        self.qp.ready_to_send(context, local, remote, &patience)?;
        self.suspended = false;
        let posted = (0..RECEIVES).try_for_each(|i| self.post_receive(i));
        self.suspended = true;
        posted
    }

    /// What was kept goes, and what waits behind it.
    pub fn resume(&mut self) -> Result<()> {
        self.suspended = false;
        (self.outstanding, self.sending) = (0, [None; SENDS]);
        let mut kept = self.unacked.take();
        let posted = kept.iter_mut().flatten().try_for_each(|k| {
            if k.what == work::SEND {
                // SAFETY: a place of ours, aligned, with a message of ours.
                self.sending[k.index] = Some(unsafe { self.words_at(RECEIVES + k.index).read()[0] as u8 });
            }
            self.post_now(k.what, k.index, k.opcode, &mut k.pieces, k.addr, k.rkey)
        });
        self.unacked = kept;
        posted?;
        self.flush()
    }

    // ---- the target's side of staged transfers

    /// The slots for the peer, made when it first asks.
    pub fn open_slots(&mut self, memory: &Registered) -> Result<Message> {
        if self.slots.is_none() {
            self.slots = Some(memory.shared_buffer(SLOTS * SLOT_BYTES)?);
        }
        let (addr, rkey) = self.slots.as_ref().map_or((0, 0), |s| (s.address() as u64, s.rkey()));
        Ok([u64::from(kind::OPENED), addr, u64::from(rkey), SLOTS as u64, SLOT_BYTES as u64, 0, 0, 0])
    }

    /// Carries out a PUT or GET, and gives the answer. Everything in it is the peer's and is checked.
    pub fn serve(&self, memory: &Registered, words: &Message) -> Message {
        let [head, id, key, addr, len, ..] = *words;
        let slot = (head >> 8 & 0xff) as usize;
        let outcome = self.transfer(memory, head as u8 == kind::PUT, slot, key, addr, len);
        let (err, code) = outcome.map_or_else(|e| (e.errno, if e.code == Code::None { Code::Fault } else { e.code }), |()| (0, Code::None));
        [u64::from(kind::DONE) | (slot as u64) << 8, id, err as u64, code.0 as u64, 0, 0, 0, 0]
    }

    fn transfer(&self, memory: &Registered, put: bool, slot: usize, key: u64, addr: u64, len: u64) -> Result<()> {
        let slots = self.slots.as_ref().filter(|_| slot < SLOTS && len <= SLOT_BYTES as u64);
        let slots = slots.ok_or(Error::coded(errno::EPROTO, Code::PeerBroke, "no such slot"))?;
        let region = memory.regions.lock().by_key(key);
        let region: Arc<Staged> = region.ok_or(Error::coded(errno::EKEYREJECTED, Code::Key, "no such key"))?;
        let need = if put { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        if !region.access.contains(need) {
            return Err(Error::coded(errno::EACCES, Code::Access, "no such right"));
        }
        let end = addr.checked_add(len).filter(|end| addr >= region.base && *end <= region.base + region.len);
        end.ok_or(Error::coded(errno::ERANGE, Code::Bounds, "out of bounds"))?;
        // SAFETY: a slot of ours, of this length; the peer writes it only between its answers, and what it scribbles
        // meanwhile is bytes like others.
        let bytes = unsafe { std::slice::from_raw_parts_mut((slots.address() + slot * SLOT_BYTES) as *mut u8, len as usize) };
        if put { region.backing.store(addr, bytes) } else { region.backing.load(addr, bytes) }
    }
}

/// The error that a DONE tells of, whose code says which; none: it went well.
pub fn outcome(words: &Message) -> Option<Error> {
    (words[2] != 0).then(|| Error::reported(Code(words[3] as i32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_number_a_peer_gives_an_error_is_one_of_this_library() {
        let told = |err, code| outcome(&[0, 0, err, code, 0, 0, 0, 0]).map(|e| (e.errno, e.code));
        assert_eq!(told(0, 1), None);
        assert_eq!(told(1 << 32, 1), Some((errno::EKEYREJECTED, Code::Key)));
        assert_eq!(
            (told(u64::MAX, 0), told(2, u64::MAX)),
            (Some((errno::EPROTO, Code::PeerBroke)), Some((errno::EPROTO, Code::PeerBroke)))
        );
    }

    #[test]
    fn a_word_that_the_peer_has_is_not_said_again() {
        for before in [0, u32::MAX - 1] {
            let left = |used: u32| {
                let kept = [(work::BULK, 0), (work::SEND, 0), (work::READ, 1), (work::SEND, 1), (work::BULK, 2)];
                let keep = |(i, (what, n)): (usize, (u8, u32))| {
                    let opcode = ibv_wr_opcode::IBV_WR_SEND;
                    UnackedRequest { what, index: i, opcode, pieces: Vec::new(), addr: 0, rkey: 0, number: before.wrapping_add(n) }
                };
                let mut kept = kept.into_iter().enumerate().map(keep).collect();
                discard_received(&mut kept, before.wrapping_add(2), before.wrapping_add(used))
                    .then(|| kept.iter().map(|k| k.index).collect::<Vec<_>>())
            };
            assert_eq!((left(0), left(1), left(2)), (Some(vec![0, 1, 2, 3, 4]), Some(vec![2, 3, 4]), Some(vec![2, 4])));
            assert_eq!((left(3), left(u32::MAX)), (None, None), "more than it was sent, or fewer than it has acknowledged");
        }
    }
}
