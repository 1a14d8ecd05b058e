// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The service queue pair: a second queue pair beside the caller's, for the library's own messages. The messages show
//! that the peer exists, say goodbye, and move bytes to memory that the peer's device does not reach
//! (`ops/staged_transfer.rs`). The service queue pair has receives of its own, so none of its messages uses a receive
//! of the caller.
//!
//! A message has 64 bytes. Each request has one answer, and no side has more requests in flight than the other side has
//! receives, so no message is refused for lack of a receive. A peer that keeps asking and does not take the answers
//! breaks the protocol.

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

/// The words of a message.
pub type Message = [u64; 8];
const MESSAGE: usize = size_of::<Message>();
/// Receives, which are always posted.
const RECEIVES: usize = 32;
/// Most messages in flight.
const SENDS: usize = 32;
/// Most answers that wait for room. A peer that follows the protocol never causes more.
const ANSWERS: usize = 1024;
/// Most work requests in flight for the data of staged transfers.
const BULK: usize = 32;
/// A target's buffers for staged transfers, which the initiator writes and reads.
pub const SLOTS: usize = 4;
pub const SLOT_BYTES: usize = 256 << 10;

/// The first byte of a message.
pub mod kind {
    /// A sign of life: the peer's device acknowledges its arrival, and there is no answer.
    pub const HELLO: u8 = 1;
    /// The sender ends the connection.
    pub const BYE: u8 = 2;
    /// Asks for the peer's slots; the answer OPENED names the slots.
    pub const OPEN: u8 = 3;
    /// Answers OPEN: address, remote key, number and size of the slots. No slots: the peer has no memory for them.
    pub const OPENED: u8 = 4;
    /// The slot holds bytes, which are to be copied into a region. The second byte is the number of the slot. The
    /// words: id, key, address, length; then, in the last PUT of a write with data, the number of that write plus 1 and
    /// its total length.
    pub const PUT: u8 = 5;
    /// Bytes of a region are to be copied into the slot. The second byte and the words are as in PUT.
    pub const GET: u8 = 6;
    /// The result of a PUT or GET: number of the slot, id, errno, code.
    pub const DONE: u8 = 7;
    /// Offers the sender's queue pair of a rail: GID, number of the queue pair, LID, reads and MTU. In all three
    /// messages about rails, the second byte is the number of the rail, and the upper half of the first word is the
    /// generation of the sender's queue pair.
    pub const RAIL_OFFER: u8 = 8;
    /// The sender's queue pair is connected to the receiver's queue pair of this generation.
    pub const RAIL_READY: u8 = 9;
    /// The sender's queue pair is destroyed.
    pub const RAIL_GONE: u8 = 10;
    /// Asks for the keys of a region on the further rails. All four messages about keys name the region by its key on
    /// the first rail.
    pub const KEYS_ASK: u8 = 11;
    /// Answers KEYS_ASK: the rails that have a key, and the keys.
    pub const KEYS_TOLD: u8 = 12;
    /// The region is closed.
    pub const KEYS_GONE: u8 = 13;
    /// Answers KEYS_GONE: the sender has forgotten the keys.
    pub const KEYS_FORGOT: u8 = 14;
    /// The first rail is lost, and the sender's queue pair has stopped; sent over a further rail. The upper half of the
    /// first word is the epoch, the number of the loss. The next words are the numbers of receives that the sender has
    /// used, of the connection and of the service queue pair. OFFER and READY for rail 0 follow.
    pub const FIRST_LOST: u8 = 15;
}

/// The purpose of a work request, which is part of its sequence number.
pub mod work {
    /// Sends a message.
    pub const SEND: u8 = 1;
    /// Writes into a slot of the peer.
    pub const BULK: u8 = 2;
    /// Reads from a slot of the peer.
    pub const READ: u8 = 3;
}

/// The meaning of a completion.
pub enum ServiceEvent {
    Nothing,
    Message(Message),
    /// The peer's device has acknowledged the message of this kind.
    Sent(u8),
    /// The read from this slot has ended.
    Read(usize),
    /// The peer does not answer, or the queue pair has failed otherwise (`ibv_wc_status`).
    Failed(u32),
}

pub struct Service {
    pub qp: Qp,
    tag: Tag,
    /// The slots of receives, then the slots of messages to send.
    area: Buffer,
    /// Messages that wait for a free slot, and whether each is an answer.
    waiting: VecDeque<(Message, bool)>,
    /// The number of answers in `waiting`.
    answers_waiting: usize,
    /// For each send slot: the kind of the message in flight.
    sending: [Option<u8>; SENDS],
    /// Work requests that have not ended, without receives.
    pub outstanding: u32,
    /// Number of restarts and reconnections. The epoch is part of sequence numbers, so completions of an earlier epoch
    /// are recognised.
    epoch: u8,
    /// The queue pair is connected to the peer's.
    pub up: bool,
    /// The slots that this side offers to the peer.
    slots: Option<Buffer>,
    /// Where the connection has further rails: work requests that have not ended, which are posted again after a loss
    /// of the port.
    unacked: Option<Vec<UnackedRequest>>,
    /// The port is lost: work requests are only stored, and the device gets none.
    suspended: bool,
    /// Work requests that the device holds, with receives.
    pub with_device: u32,
    /// Number of messages received.
    pub received: u32,
    /// Number of messages sent.
    sent: u32,
}

struct UnackedRequest {
    what: u8,
    index: usize,
    opcode: ibv_wr_opcode::Type,
    pieces: Vec<ibv_sge>,
    addr: u64,
    rkey: u32,
    /// Number of messages sent before this request.
    number: u32,
}

// SAFETY: the pieces hold addresses as integers, which any thread may carry.
unsafe impl Send for UnackedRequest {}

/// Forgets the requests that the peer has received, given that it has received `used` of `sent` messages. False: `used`
/// is impossible.
fn discard_received(unacked: &mut Vec<UnackedRequest>, sent: u32, used: u32) -> bool {
    let ended = unacked.iter().find(|k| k.what == work::SEND).map_or(sent, |k| k.number);
    let used = used.wrapping_sub(ended);
    if used > sent.wrapping_sub(ended) {
        return false;
    }
    let arrived = |k: &UnackedRequest| k.what == work::SEND && k.number.wrapping_sub(ended) < used;
    let mut left = unacked.iter().rposition(arrived).map_or(0, |last| last + 1);
    unacked.retain(|k| {
        let is_over = left > 0 && k.what != work::READ;
        left = left.saturating_sub(1);
        !is_over
    });
    true
}

impl Service {
    /// A service queue pair that completes in `cq`. Its work requests have up to `pieces` pieces. `keeps`: the
    /// connection has further rails, so unacknowledged requests are stored.
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

    /// Completions that a service queue pair can have outstanding.
    pub const CHARGE: usize = RECEIVES + SENDS + BULK;

    /// Sets the tag of the completions and posts the receives.
    pub fn begin(&mut self, tag: Tag) -> Result<()> {
        self.tag = tag;
        (0..RECEIVES).try_for_each(|i| self.post_receive(i))
    }

    /// The first packet sequence number of a queue pair, which both sides derive from the number of the queue pair.
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
        // SAFETY: the request lives for the call; the buffer belongs to `self`, as the queue pair does.
        unsafe { self.qp.post_recv(&mut wr)? };
        self.with_device += 1;
        Ok(())
    }

    /// Posts a work request with a completion; while the port is lost, only stores the request.
    fn post(&mut self, what: u8, index: usize, opcode: ibv_wr_opcode::Type, pieces: &mut [ibv_sge], addr: u64, rkey: u32) -> Result<()> {
        if let Some(unacked) = &mut self.unacked {
            unacked.push(UnackedRequest { what, index, opcode, pieces: pieces.to_vec(), addr, rkey, number: self.sent });
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
        // SAFETY: integers and pointers, for all of which zero is a valid value.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        wr.wr_id = self.tag.send(self.seq(what, index));
        wr.sg_list = pieces.as_mut_ptr();
        wr.num_sge = pieces.len() as i32;
        wr.opcode = opcode;
        wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED;
        wr.wr.rdma.remote_addr = addr;
        wr.wr.rdma.rkey = rkey;
        // SAFETY: the request lives for the call; the caller keeps the bytes of the pieces until the completion.
        match unsafe { self.qp.post_send(&mut wr) } {
            Ok(()) => {
                self.outstanding += 1;
                self.with_device += 1;
                Ok(())
            }
            Err((_, err)) => Err(crate::prov::verbs::sys::status::call_error("posting a work request of the library's own", err)),
        }
    }

    /// Sends a message, now or when a slot is free.
    pub fn send(&mut self, words: Message) -> Result<()> {
        self.waiting.push_back((words, false));
        self.flush()
    }

    /// Sends an answer, now or when a slot is free.
    pub fn answer(&mut self, words: Message) -> Result<()> {
        if self.answers_waiting >= ANSWERS {
            return Err(Error::coded(errno::EPROTO, Code::PeerBroke, "the peer sends requests without receiving the answers"));
        }
        self.answers_waiting += 1;
        self.waiting.push_back((words, true));
        self.flush()
    }

    /// True if so many messages wait that the caller should omit a message that can be omitted.
    pub fn is_behind(&self) -> bool {
        self.waiting.len() > ANSWERS
    }

    fn flush(&mut self) -> Result<()> {
        while !self.suspended
            && let Some(place) = self.sending.iter().position(Option::is_none)
            && let Some((words, is_answer)) = self.waiting.pop_front()
        {
            self.answers_waiting -= usize::from(is_answer);
            // SAFETY: the slot is part of `area`, aligned, and holds no message in flight.
            unsafe { self.words_at(RECEIVES + place).write(words) };
            self.sending[place] = Some(words[0] as u8);
            let mut piece = [self.piece(RECEIVES + place)];
            self.post(work::SEND, place, ibv_wr_opcode::IBV_WR_SEND, &mut piece, 0, 0)?;
        }
        Ok(())
    }

    /// Writes into a slot of the peer.
    pub fn write(&mut self, pieces: &mut [ibv_sge], addr: u64, rkey: u32) -> Result<()> {
        self.post(work::BULK, 0, ibv_wr_opcode::IBV_WR_RDMA_WRITE, pieces, addr, rkey)
    }

    /// Reads from the peer's slot number `slot`.
    pub fn read(&mut self, slot: usize, pieces: &mut [ibv_sge], addr: u64, rkey: u32) -> Result<()> {
        self.post(work::READ, slot, ibv_wr_opcode::IBV_WR_RDMA_READ, pieces, addr, rkey)
    }

    /// True if one more work request for data fits.
    pub fn has_room(&self) -> bool {
        (self.outstanding as usize) < BULK
    }

    /// Handles one completion.
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
            // SAFETY: the slot is part of `area`, aligned; the device has filled it and no longer accesses it.
            let words = unsafe { self.words_at(index).read() };
            if let Err(e) = self.post_receive(index) {
                crate::log!(Warn, "{e}");
            }
            return if wc.byte_len as usize == MESSAGE { ServiceEvent::Message(words) } else { ServiceEvent::Nothing };
        }
        self.outstanding = self.outstanding.saturating_sub(1);
        if let Some(unacked) = self.unacked.as_mut().filter(|unacked| good && !unacked.is_empty()) {
            unacked.remove(0);
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

    /// Starts again with the same queue pair, after an attempt that the peer did not answer.
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

    /// Stops giving requests to the device, and makes the device return the requests that it holds.
    pub fn suspend(&mut self) -> Result<()> {
        self.suspended = true;
        self.qp.fail()
    }

    /// Forgets the requests that the peer has received: `used` messages, and the requests before them. False: `used` is
    /// impossible.
    pub fn discard_received(&mut self, used: u32) -> bool {
        self.unacked.as_mut().is_none_or(|unacked| discard_received(unacked, self.sent, used))
    }

    /// Connects the queue pair again and posts its receives. Work requests are only stored until `resume`.
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

    /// Posts the stored requests and the messages that waited.
    pub fn resume(&mut self) -> Result<()> {
        self.suspended = false;
        (self.outstanding, self.sending) = (0, [None; SENDS]);
        let mut unacked = self.unacked.take();
        let posted = unacked.iter_mut().flatten().try_for_each(|k| {
            if k.what == work::SEND {
                // SAFETY: the slot is part of `area`, aligned, and holds a message.
                self.sending[k.index] = Some(unsafe { self.words_at(RECEIVES + k.index).read()[0] as u8 });
            }
            self.post_now(k.what, k.index, k.opcode, &mut k.pieces, k.addr, k.rkey)
        });
        self.unacked = unacked;
        posted?;
        self.flush()
    }

    // ---- the target's side of staged transfers

    /// The answer to OPEN: the slots of this side, which are made at the first request.
    pub fn open_slots(&mut self, memory: &Registered) -> Result<Message> {
        if self.slots.is_none() {
            self.slots = Some(memory.shared_buffer(SLOTS * SLOT_BYTES)?);
        }
        let (addr, rkey) = self.slots.as_ref().map_or((0, 0), |s| (s.address() as u64, s.rkey()));
        Ok([u64::from(kind::OPENED), addr, u64::from(rkey), SLOTS as u64, SLOT_BYTES as u64, 0, 0, 0])
    }

    /// Executes a PUT or GET and returns the answer. Every field of the message is input from the peer and is checked.
    pub fn serve(&self, memory: &Registered, words: &Message) -> Message {
        let [head, id, key, addr, len, ..] = *words;
        let slot = (head >> 8 & 0xff) as usize;
        let outcome = self.transfer(memory, head as u8 == kind::PUT, slot, key, addr, len);
        let (err, code) = outcome.map_or_else(|e| (e.errno, if e.code == Code::None { Code::Fault } else { e.code }), |()| (0, Code::None));
        [u64::from(kind::DONE) | (slot as u64) << 8, id, err as u64, code.0 as u64, 0, 0, 0, 0]
    }

    fn transfer(&self, memory: &Registered, put: bool, slot: usize, key: u64, addr: u64, len: u64) -> Result<()> {
        let slots = self.slots.as_ref().filter(|_| slot < SLOTS && len <= SLOT_BYTES as u64);
        let slots = slots.ok_or(Error::coded(errno::EPROTO, Code::PeerBroke, "the peer named an unknown slot of staged transfers"))?;
        let region = memory.regions.lock().by_key(key);
        let region: Arc<Staged> =
            region.ok_or(Error::coded(errno::EKEYREJECTED, Code::Key, "no staged region has the key of the peer's request"))?;
        let need = if put { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        if !region.access.contains(need) {
            return Err(Error::coded(
                errno::EACCES,
                Code::Access,
                "the staged region does not have the access right of the peer's request",
            ));
        }
        let end = addr.checked_add(len).filter(|end| addr >= region.base && *end <= region.base + region.len);
        end.ok_or(Error::coded(errno::ERANGE, Code::Bounds, "the range of the peer's request lies outside the staged region"))?;
        // SAFETY: a slot of our buffer, of this length. The peer writes to it only between its answers; if it writes at another time, the
        // bytes are any bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut((slots.address() + slot * SLOT_BYTES) as *mut u8, len as usize) };
        if put { region.backing.store(addr, bytes) } else { region.backing.load(addr, bytes) }
    }
}

/// The error that a DONE reports; `None`: success.
pub fn outcome(words: &Message) -> Option<Error> {
    (words[2] != 0).then(|| Error::reported(Code(words[3] as i32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_number_of_a_peer_becomes_an_error_of_this_library() {
        let told = |err, code| outcome(&[0, 0, err, code, 0, 0, 0, 0]).map(|e| (e.errno, e.code));
        assert_eq!(told(0, 1), None);
        assert_eq!(told(1 << 32, 1), Some((errno::EKEYREJECTED, Code::Key)));
        assert_eq!(
            (told(u64::MAX, 0), told(2, u64::MAX)),
            (Some((errno::EPROTO, Code::PeerBroke)), Some((errno::EPROTO, Code::PeerBroke)))
        );
    }

    #[test]
    fn messages_that_arrived_are_not_sent_again() {
        for before in [0, u32::MAX - 1] {
            let left = |used: u32| {
                let unacked = [(work::BULK, 0), (work::SEND, 0), (work::READ, 1), (work::SEND, 1), (work::BULK, 2)];
                let keep = |(i, (what, n)): (usize, (u8, u32))| {
                    let opcode = ibv_wr_opcode::IBV_WR_SEND;
                    UnackedRequest { what, index: i, opcode, pieces: Vec::new(), addr: 0, rkey: 0, number: before.wrapping_add(n) }
                };
                let mut unacked = unacked.into_iter().enumerate().map(keep).collect();
                discard_received(&mut unacked, before.wrapping_add(2), before.wrapping_add(used))
                    .then(|| unacked.iter().map(|k| k.index).collect::<Vec<_>>())
            };
            assert_eq!((left(0), left(1), left(2)), (Some(vec![0, 1, 2, 3, 4]), Some(vec![2, 3, 4]), Some(vec![2, 4])));
            assert_eq!((left(3), left(u32::MAX)), (None, None), "more than it was sent, or fewer than it has acknowledged");
        }
    }
}
