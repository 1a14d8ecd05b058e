// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Making, connecting and probing the queue pair of a rail; and the few messages that a further rail carries while the
//! first rail is lost (`failover.rs`). Such a message is a send of its own, beside the parts of striped operations.

use crate::config;
use crate::error::{Error, Result, errno};
use crate::prov::verbs::cq::Cq;
use crate::prov::verbs::memory::registered::{Buffer, LOCAL};
use crate::prov::verbs::queue::qp::{Capacity, Qp, RetryPolicy};
use crate::prov::verbs::queue::service::{Message, Service, kind};
use crate::prov::verbs::state::rail::{ConnectingQp, DEPTH, InFlightPart, Rail, RailOffer, RailStage};

use crate::prov::verbs::sys::abi::*;
use crate::prov::verbs::sys::status;
use crate::sys::time::now_ns;
use crate::sys::workqueue::{Work, WorkQueue};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::Arc;

/// Most messages in flight on a rail, and the number of receives for the peer's messages.
const MESSAGES: usize = 8;
/// Completions that a rail can have outstanding.
pub const CHARGE: usize = DEPTH + 2 * MESSAGES;
/// The part number of an `InFlightPart` that is a message or a sign of life.
pub const NO_PART: u16 = u16::MAX;

/// The threads that connect queue pairs. Each attempt takes about a second at most.
static CONNECTORS: WorkQueue = WorkQueue::new("gdrfab-rail", 8);

/// A message about the rail `number`, with the generation of this side's queue pair.
pub fn rail_message(kind: u8, number: usize, generation: u32) -> Message {
    [u64::from(kind) | (number as u64) << 8 | u64::from(generation) << 32, 0, 0, 0, 0, 0, 0, 0]
}

impl RailOffer {
    pub fn parse(generation: u32, message: &Message) -> RailOffer {
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&message[1].to_be_bytes());
        gid[8..].copy_from_slice(&message[2].to_be_bytes());
        // A peer that gives no number of reads serves one read at a time.
        let (lid, reads, mtu) = (message[4] as u16, ((message[4] >> 16) as u8).max(1), (message[4] >> 32) as u32);
        RailOffer { generation, gid, lid, qpn: message[3] as u32 & 0xff_ffff, mtu, reads }
    }
}

impl Rail {
    /// Makes the queue pair of a further rail and posts the receives for messages. Returns the offer for the peer.
    pub(in crate::prov::verbs) fn create_qp(&mut self, cq: &Arc<Cq>, number: usize, pieces: u32) -> Result<Message> {
        let (tx, rx) = ((DEPTH + MESSAGES) as u32, MESSAGES as u32);
        let asked = Capacity { tx, rx, tx_pieces: pieces, rx_pieces: 1, inline: size_of::<Message>() as u32 };
        let message = self.create_qp_with(&[cq.clone(), cq.clone()], number, asked)?;
        (0..MESSAGES).try_for_each(|place| self.post_message_receive(place))?;
        Ok(message)
    }

    /// Makes a queue pair that completes in `cqs`. Returns the offer for the peer.
    pub(in crate::prov::verbs) fn create_qp_with(&mut self, cqs: &[Arc<Cq>; 2], number: usize, asked: Capacity) -> Result<Message> {
        let qp = Qp::new(&self.port.pd, &cqs[0].raw, &cqs[1].raw, asked)?;
        qp.init(self.port.number)?;
        self.generation += 1;
        let mut message = rail_message(kind::RAIL_OFFER, number, self.generation);
        let (high, low) = self.port.gid.raw.split_at(8);
        message[1] = u64::from_be_bytes(high.try_into().unwrap_or_default());
        message[2] = u64::from_be_bytes(low.try_into().unwrap_or_default());
        message[3] = u64::from(qp.number);
        let reads = self.port.context().reads_in();
        message[4] = u64::from(self.port.lid) | u64::from(reads) << 16 | u64::from(self.port.mtu) << 32;
        self.qp = Some(qp);
        self.stage = RailStage::Offered;
        Ok(message)
    }

    /// Lets a thread connect the queue pair to the peer's. During that call the kernel resolves the peer's address,
    /// which takes about a second if nobody answers. The thread keeps the completion queues alive.
    pub(in crate::prov::verbs) fn connect(&mut self, cqs: [Arc<Cq>; 2], patience: RetryPolicy) -> Result<()> {
        let (Some(qp), Some(peer)) = (self.qp.take(), &self.peer) else { return Ok(()) };
        let config = &config::get().verbs;
        let remote = peer.remote(&self.port, Service::psn(peer.qpn), config.service_level, config.traffic_class);
        let (card, cqs, process) = (self.port.clone(), cqs, std::process::id());
        let joining = ConnectingQp::default();
        let wanted = Arc::downgrade(&joining);
        (self.stage, self.joining) = (RailStage::Connecting, Some(joining));
        let work = move || {
            if std::process::id() != process {
                // This is a child of fork(): the queue pair belongs to the parent.
                return std::mem::forget((qp, cqs));
            }
            let local = card.local(Service::psn(qp.number));
            let connect = || {
                qp.ready_to_receive(card.context(), &local, &remote, &patience)?;
                qp.ready_to_send(card.context(), &local, &remote, &patience)
            };
            let joined = if wanted.strong_count() > 0 { connect() } else { Ok(()) };
            match wanted.upgrade() {
                Some(joining) => *joining.lock() = Some((qp, joined)),
                None => drop(qp),
            }
            // The completion queues go after the queue pair, which completes there.
            drop(cqs);
        };
        match CONNECTORS.give([Box::new(work) as Work]) {
            true => Ok(()),
            false => Err(Error::fixed(errno::EAGAIN, "no thread could be started to connect the rail")),
        }
    }

    /// The result of the attempt to connect. `None`: the thread has not finished.
    pub(in crate::prov::verbs) fn connect_result(&mut self) -> Option<Result<()>> {
        let (qp, joined) = self.joining.as_ref()?.lock().take()?;
        (self.qp, self.joining) = (Some(qp), None);
        Some(joined)
    }

    /// Posts a write of no bytes, whose completion shows that the rail works.
    pub(in crate::prov::verbs) fn probe(&mut self) -> Result<()> {
        let Some(qp) = &self.qp else { return Ok(()) };
        status::returned(qp.post_empty_write(self.tag.send(self.seq())), "posting the first write of a rail")?;
        self.begin(InFlightPart { seq: self.seq(), stripe: 0, part: 0, len: 0, requests: 1 }, now_ns());
        self.stage = RailStage::Probing;
        Ok(())
    }

    /// Asks the peer's card, by a write of no bytes, whether the peer's queue pair still exists, unless something else
    /// is in flight on the rail. A message would need a receive of the peer, and a sleeping peer does not post receives
    /// again.
    pub(in crate::prov::verbs) fn ask_alive(&mut self) -> Result<()> {
        let Some(qp) = self.qp.as_ref().filter(|_| self.is_up() && self.in_flight.is_empty()) else { return Ok(()) };
        status::returned(qp.post_empty_write(self.tag.send(self.seq())), "posting a keepalive write")?;
        self.begin(InFlightPart { seq: self.seq(), stripe: 0, part: NO_PART, len: 0, requests: 1 }, now_ns());
        Ok(())
    }

    /// Posts a receive for a message of the peer.
    fn post_message_receive(&mut self, place: usize) -> Result<()> {
        let size = size_of::<Message>();
        let ear = self.message_buffer.take().map_or_else(|| Buffer::new(&self.port.pd, MESSAGES * size, LOCAL), Ok)?;
        let mut piece = ibv_sge { addr: (ear.address() + place * size) as u64, length: size as u32, lkey: ear.lkey() };
        self.message_buffer = Some(ear);
        let Some(qp) = &self.qp else { return Ok(()) };
        let wr_id = self.tag.recv(self.generation << 24 | place as u32);
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: &mut piece, num_sge: 1 };
        // SAFETY: the request lives for the call and the buffer is ours; the queue pair, and with it the device's access, goes before the
        // buffer does.
        unsafe { qp.post_recv(&mut wr) }
    }

    /// Returns the message in a completed receive, and posts the receive again.
    pub(in crate::prov::verbs) fn take_message(&mut self, seq: u32, len: u32) -> Result<Option<Message>> {
        let place = (seq & 0xff_ffff) as usize;
        let Some(ear) = self.message_buffer.as_ref().filter(|_| place < MESSAGES && len as usize == size_of::<Message>()) else {
            return Ok(None);
        };
        // SAFETY: a slot of our buffer, aligned, that the device has filled and no longer accesses.
        let message = unsafe { (ear.address() as *const Message).add(place).read() };
        self.post_message_receive(place)?;
        Ok(Some(message))
    }

    /// True if the rail is up and can carry messages, which travel inside the work request.
    pub(in crate::prov::verbs) fn can_send_messages(&self) -> bool {
        self.is_up() && self.qp.as_ref().is_some_and(|qp| qp.capacity.inline as usize >= size_of::<Message>())
    }

    /// Sends a message to the peer.
    pub(in crate::prov::verbs) fn send_message(&mut self, message: &Message) -> Result<()> {
        let Some(qp) = self.qp.as_ref().filter(|_| self.can_send_messages()) else { return Ok(()) };
        // A peer that follows the protocol has acknowledged earlier messages by now.
        if self.in_flight.iter().filter(|f| f.part == NO_PART).count() >= MESSAGES {
            return Err(Error::fixed(errno::ETIMEDOUT, "the peer's RDMA device has stopped acknowledging rail messages"));
        }
        let mut piece = ibv_sge { addr: message.as_ptr().addr() as u64, length: size_of::<Message>() as u32, lkey: 0 };
        // SAFETY: integers and pointers, for all of which zero is a valid value.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        wr.wr_id = self.tag.send(self.seq());
        (wr.sg_list, wr.num_sge) = (&mut piece, 1);
        wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
        wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED | ibv_send_flags::IBV_SEND_INLINE;
        // SAFETY: the request lives for the call, and its bytes are copied into the work request.
        unsafe { qp.post_send(&mut wr) }.map_err(|(_, err)| status::call_error("reporting the loss of the first rail to the peer", err))?;
        self.begin(InFlightPart { seq: self.seq(), stripe: 0, part: NO_PART, len: 0, requests: 1 }, now_ns());
        Ok(())
    }
}
