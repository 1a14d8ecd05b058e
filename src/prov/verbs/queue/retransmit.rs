// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies of the work requests that the first rail's queue pair was given and that have not ended. The copies exist
//! only where a connection has further rails: if the first rail is lost (`rail/failover.rs`), a new queue pair posts
//! the copies again. While the rail is lost (`suspended`), a posted request is only stored and the device does not get
//! it; the code that posts does not notice the difference.

use crate::guard::hold;
use crate::prov::verbs::sys::abi::*;
use parking_lot::Mutex;
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::{null_mut, read};
use std::sync::Arc;

/// A handle that two owners share: the queue pair, and the fast path, which posts without the queue pair's functions.
pub type RetransmitHandle = Arc<Mutex<RetransmitQueue>>;

struct Sent {
    wr: ibv_send_wr,
    pieces: Vec<ibv_sge>,
    /// The bytes of a request that carries its data inside (`IBV_SEND_INLINE`).
    bytes: Vec<u8>,
    /// The number of earlier requests that use a receive of the peer.
    number: u32,
}

// SAFETY: the pointers in it are followed only when the request is posted, and before that `repost_send` sets them to
// the request's own pieces and bytes.
unsafe impl Send for Sent {}

#[derive(Default)]
pub struct RetransmitQueue {
    /// The copies by sequence number modulo ring size, as in the endpoint's rings.
    sends: Vec<Sent>,
    receives: Vec<Vec<ibv_sge>>,
    /// The sizes of the two rings, minus 1.
    masks: [u32; 2],
    /// Operations are only stored.
    pub suspended: bool,
    /// Receives are only stored. This flag is cleared before `suspended`: receives go to the device again as soon as a
    /// new queue pair is connected.
    pub receives_suspended: bool,
    /// Number of operations so far that use a receive of the peer.
    messages: u32,
    /// Fault injection: the rail is lost after each `fault_every` work requests; 0: never.
    pub fault_every: u64,
    /// Work requests posted so far.
    posted: u64,
    /// Another rail is up, so the connection would survive the loss of the first one.
    pub other_rail_up: bool,
}

fn takes_receive(opcode: ibv_wr_opcode::Type) -> bool {
    matches!(opcode, ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM)
}

/// The fate of a work request that had not ended, decided once the peer has said how many receives it has used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// The request has not arrived; it is posted again.
    Repost,
    /// The request has arrived. The operation ends with success, and an empty write is posted in its place.
    Delivered,
    /// It is unknown whether the request was executed, and it must not be executed twice.
    Unknown,
}

impl RetransmitQueue {
    /// For rings of `tx` operations and `rx` receives.
    pub fn new(tx: u32, rx: u32, fault_every: u64) -> RetransmitQueue {
        RetransmitQueue { masks: [tx, rx].map(|n| n.max(1).next_power_of_two() - 1), fault_every, ..RetransmitQueue::default() }
    }

    fn keep(&mut self, wr: &ibv_send_wr) {
        let messages = self.messages;
        let sent = self.send_slot(wr.wr_id as u32);
        // SAFETY: `wr` is a reference, and the copy's pointers are not followed.
        sent.wr = unsafe { read(wr) };
        sent.number = messages;
        sent.pieces.clear();
        sent.bytes.clear();
        // SAFETY: the caller of `send` promises `num_sge` pieces, and for an inline request that its bytes are readable during the call.
        unsafe {
            for i in 0..wr.num_sge.max(0) as usize {
                let piece = *wr.sg_list.add(i);
                if wr.send_flags & ibv_send_flags::IBV_SEND_INLINE == 0 {
                    sent.pieces.push(piece);
                } else {
                    sent.bytes.extend_from_slice(std::slice::from_raw_parts(piece.addr as *const u8, piece.length as usize));
                }
            }
        }
        self.messages = self.messages.wrapping_add(u32::from(takes_receive(wr.opcode)));
    }

    /// Stores a chain of work requests, and posts the chain unless the rail is lost. Returns 0 or an errno, as
    /// `ibv_post_send` does.
    ///
    /// # Safety
    /// As for `ibv_post_send`.
    pub unsafe fn send(&mut self, qp: *mut ibv_qp, first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
        let mut next = first;
        // SAFETY: the caller promises a chain that is live for the call.
        while let Some(wr) = unsafe { next.as_ref() } {
            self.keep(wr);
            self.posted += 1;
            next = wr.next;
        }
        if self.suspended {
            return 0;
        }
        // SAFETY: the caller promises the chain for the call, and a queue pair that lives.
        let rc = unsafe { ibv_post_send(qp, first, bad) };
        // SAFETY: if the call fails, the device has set `bad` to the first refused request of the chain.
        let mut refused = if rc == 0 { null_mut() } else { unsafe { *bad } };
        // SAFETY: a request of the caller's chain, or null at its end.
        while let Some(wr) = unsafe { refused.as_ref() } {
            self.messages = self.messages.wrapping_sub(u32::from(takes_receive(wr.opcode)));
            refused = wr.next;
        }
        rc
    }

    /// Stores one receive, and posts it unless receives are suspended.
    ///
    /// # Safety
    /// As for `ibv_post_recv`.
    pub unsafe fn receive(&mut self, qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
        // SAFETY: the caller promises a request that is live for the call, with `num_sge` pieces, and a queue pair that lives.
        unsafe {
            let slot = self.recv_slot((*wr).wr_id);
            slot.clear();
            slot.extend((0..(*wr).num_sge.max(0) as usize).map(|i| *(*wr).sg_list.add(i)));
            if self.receives_suspended { 0 } else { ibv_post_recv(qp, wr, bad) }
        }
    }

    /// True if fault injection loses the rail now.
    pub fn is_fault_due(&self) -> bool {
        self.fault_every != 0 && self.other_rail_up && !self.suspended && self.posted.is_multiple_of(self.fault_every)
    }

    #[inline(never)]
    fn send_slot(&mut self, seq: u32) -> &mut Sent {
        let at = (seq & self.masks[0]) as usize;
        while self.sends.len() <= at {
            // SAFETY: integers and pointers, for all of which zero is a valid value.
            self.sends.push(Sent { wr: unsafe { zeroed() }, pieces: Vec::new(), bytes: Vec::new(), number: 0 });
        }
        &mut self.sends[at]
    }

    #[inline(never)]
    fn recv_slot(&mut self, wr_id: u64) -> &mut Vec<ibv_sge> {
        let at = (wr_id as u32 & self.masks[1]) as usize;
        while self.receives.len() <= at {
            self.receives.push(Vec::new());
        }
        &mut self.receives[at]
    }

    /// The number of operations that use a receive, among all operations that were stored so far.
    pub fn messages(&self) -> u32 {
        self.messages
    }

    /// Decides which of the operations `first..end`, which the device had, have arrived. The peer has used `used`
    /// receives since the connection began, and the operations before `end` use `given` receives at most. An operation
    /// that arrived is replaced by an empty write. `None`: `used` is impossible.
    pub fn resolve(&mut self, first: u32, end: u32, given: u32, used: u32) -> Option<Vec<Delivery>> {
        let count = end.wrapping_sub(first);
        // Messages that ended before `first` have used their receives, so `used` is at least the number of those
        // messages.
        let (mut ended, mut arrived) = (None, 0);
        for i in 0..count {
            let sent = self.send_slot(first.wrapping_add(i));
            if takes_receive(sent.wr.opcode) {
                let ended = *ended.get_or_insert(sent.number);
                if sent.number.wrapping_sub(ended) < used.wrapping_sub(ended) {
                    // The peer's device executes in order, so all operations before this one have arrived too.
                    arrived = i + 1;
                }
            }
        }
        let ended = ended.unwrap_or(given);
        if used.wrapping_sub(ended) > given.wrapping_sub(ended) {
            return None;
        }
        let mut deliveries = vec![Delivery::Repost; count as usize];
        for (i, delivery) in (0..).zip(&mut deliveries) {
            let seq = first.wrapping_add(i);
            *delivery = match self.send_slot(seq).wr.opcode {
                ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP | ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => Delivery::Unknown,
                ibv_wr_opcode::IBV_WR_RDMA_READ => continue,
                _ if i < arrived => Delivery::Delivered,
                _ => continue,
            };
            self.replace_by_empty_write(seq);
        }
        Some(deliveries)
    }

    /// Replaces an operation by a write of no bytes, which gives the same completion.
    pub fn replace_by_empty_write(&mut self, seq: u32) {
        let sent = self.send_slot(seq);
        sent.wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        sent.wr.send_flags &= ibv_send_flags::IBV_SEND_SIGNALED;
        sent.wr.wr.rdma = ibv_send_wr_rdma { remote_addr: 0, rkey: 0 };
        sent.pieces.clear();
        sent.bytes.clear();
    }

    /// Posts a stored operation again. Returns 0 or an errno.
    ///
    /// # Safety
    /// The queue pair lives, and the memory that the operation names stays until it ends.
    pub unsafe fn repost_send(&mut self, qp: *mut ibv_qp, seq: u32) -> c_int {
        let sent = self.send_slot(seq);
        let mut inside = ibv_sge { addr: sent.bytes.as_ptr() as u64, length: sent.bytes.len() as u32, lkey: 0 };
        sent.wr.next = null_mut();
        (sent.wr.sg_list, sent.wr.num_sge) = match sent.bytes.is_empty() {
            true => (sent.pieces.as_mut_ptr(), sent.pieces.len() as c_int),
            false => (&raw mut inside, 1),
        };
        let mut bad = null_mut();
        // SAFETY: the caller keeps queue pair and buffers; request and pieces live for the call.
        unsafe { ibv_post_send(qp, &mut sent.wr, &mut bad) }
    }

    /// Posts a stored receive again, with the same number. Returns 0 or an errno.
    ///
    /// # Safety
    /// The queue pair lives, and the memory of the receive stays until it ends.
    pub unsafe fn repost_recv(&mut self, qp: *mut ibv_qp, wr_id: u64) -> c_int {
        let pieces = self.recv_slot(wr_id);
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: pieces.as_mut_ptr(), num_sge: pieces.len() as c_int };
        let mut bad = null_mut();
        // SAFETY: the caller keeps queue pair and buffers; request and pieces live for the call.
        unsafe { ibv_post_recv(qp, &mut wr, &mut bad) }
    }
}

/// Calls `post` with the retransmit queue to which the `next` pointer of a fast-path request leads. During the call
/// `next` is null, because the device would take it for the next request of the chain.
///
/// # Safety
/// `next` is live and was set from a [`RetransmitHandle`] that lives.
unsafe fn with_queue_of<T>(next: *mut *mut T, post: impl FnOnce(&mut RetransmitQueue) -> c_int) -> c_int {
    // SAFETY: the caller promises that `next` is live and leads to a living `RetransmitQueue`.
    unsafe {
        let keeper = next.replace(null_mut());
        let rc = post(&mut (*keeper.cast::<Mutex<RetransmitQueue>>()).lock());
        next.write(keeper);
        rc
    }
}

/// The post function of the fast path where a connection has further rails. The `next` pointer of the request leads to
/// the retransmit queue.
///
/// # Safety
/// As for `ibv_post_send`; and `next` leads to a [`RetransmitHandle`] that lives.
pub unsafe extern "C" fn post_send_retained(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller promises the request for the call, and a living queue behind `next`.
    hold(|rc| rc, || unsafe { with_queue_of(&raw mut (*wr).next, |queue| queue.send(qp, wr, bad)) })
}

/// The same as `post_send_retained`, for receives.
///
/// # Safety
/// As for `ibv_post_recv`; and `next` leads to a [`RetransmitHandle`] that lives.
pub unsafe extern "C" fn post_recv_retained(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the caller promises the request for the call, and a living queue behind `next`.
    hold(|rc| rc, || unsafe { with_queue_of(&raw mut (*wr).next, |queue| queue.receive(qp, wr, bad)) })
}

#[cfg(test)]
mod tests {
    use super::Delivery::*;
    use super::ibv_wr_opcode::*;
    use super::*;

    /// Operations from the number `first` on, of a connection on which `before` messages have ended.
    fn queue(first: u32, before: u32, opcodes: &[ibv_wr_opcode::Type]) -> RetransmitQueue {
        let mut queue = RetransmitQueue { suspended: true, messages: before, ..RetransmitQueue::new(8, 8, 0) };
        for (i, opcode) in opcodes.iter().enumerate() {
            // SAFETY: zero is valid for the request, which is live; nothing is posted while the queue is suspended.
            unsafe {
                let mut wr: ibv_send_wr = zeroed();
                (wr.wr_id, wr.opcode) = (u64::from(first.wrapping_add(i as u32)), *opcode);
                assert_eq!(queue.send(null_mut(), &mut wr, null_mut()), 0);
            }
        }
        queue
    }

    const ALL: [ibv_wr_opcode::Type; 7] = [
        IBV_WR_RDMA_WRITE,
        IBV_WR_SEND,
        IBV_WR_RDMA_READ,
        IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_WR_RDMA_WRITE,
        IBV_WR_SEND_WITH_IMM,
    ];

    #[test]
    fn delivered_operations_are_not_repeated() {
        for before in [0, 7, u32::MAX - 1] {
            for first in [0, u32::MAX - 3] {
                let deliveries = |used: u32| {
                    let mut queue = queue(first, before, &ALL);
                    let given = queue.messages();
                    let deliveries = queue.resolve(first, first.wrapping_add(7), given, before.wrapping_add(used))?;
                    // A second loss before anything was posted again gives the same result.
                    let again = queue.resolve(first, first.wrapping_add(7), given, before.wrapping_add(used))?;
                    assert!(again.iter().zip(&deliveries).all(|(a, b)| *a == Repost || a == b));
                    Some(deliveries)
                };
                assert_eq!(deliveries(0), Some(vec![Repost, Repost, Repost, Unknown, Repost, Repost, Repost]));
                assert_eq!(deliveries(1), Some(vec![Delivered, Delivered, Repost, Unknown, Repost, Repost, Repost]));
                assert_eq!(deliveries(2), Some(vec![Delivered, Delivered, Repost, Unknown, Delivered, Repost, Repost]));
                assert_eq!(deliveries(3), Some(vec![Delivered, Delivered, Repost, Unknown, Delivered, Delivered, Delivered]));
                // More messages than were sent, or fewer than were acknowledged.
                for lie in [4, 5, 1 << 31, u32::MAX] {
                    assert_eq!(deliveries(lie), None, "{lie}");
                }
            }
        }
    }

    #[test]
    fn without_anything_under_way_there_is_one_number_that_is_right() {
        let mut queue = queue(0, 9, &[]);
        assert_eq!(queue.resolve(3, 3, 9, 9), Some(Vec::new()));
        assert_eq!((queue.resolve(3, 3, 9, 8), queue.resolve(3, 3, 9, 10)), (None, None));
    }

    #[test]
    fn bytes_that_travel_inside_are_kept() {
        let mut queue = queue(0, 0, &[]);
        let mut bytes = [1u8, 2, 3];
        let mut pieces = [ibv_sge { addr: bytes.as_ptr() as u64, length: 3, lkey: 0 }; 2];
        // SAFETY: zero is valid for the request; request, pieces and bytes are live.
        unsafe {
            let mut wr: ibv_send_wr = zeroed();
            (wr.sg_list, wr.num_sge, wr.send_flags) = (pieces.as_mut_ptr(), 2, ibv_send_flags::IBV_SEND_INLINE);
            queue.send(null_mut(), &mut wr, null_mut());
        }
        bytes.fill(9);
        assert_eq!(queue.sends[0].bytes, [1, 2, 3, 1, 2, 3]);
    }
}
