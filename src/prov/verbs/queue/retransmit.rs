// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the first rail's queue pair was given and has not ended, kept where there are further rails: when the rail is lost
//! (`first`), the next queue pair gets it. Until then what is posted is kept and goes no further, which who posts does not notice.

use crate::guard::hold;
use crate::prov::verbs::sys::abi::*;
use parking_lot::Mutex;
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::{null_mut, read};
use std::sync::Arc;

/// Where the posting queue pair and the fast path find it.
pub type RetransmitHandle = Arc<Mutex<RetransmitQueue>>;

struct Sent {
    wr: ibv_send_wr,
    pieces: Vec<ibv_sge>,
    /// Those that travel inside the work request.
    bytes: Vec<u8>,
    /// How many before it took a receive of the peer's, or will.
    number: u32,
}

// SAFETY: the pointers in it are followed only when it is posted, and lead to its own pieces and bytes by then.
unsafe impl Send for Sent {}

#[derive(Default)]
pub struct RetransmitQueue {
    /// By their numbers, as the endpoint's rings have them.
    sends: Vec<Sent>,
    receives: Vec<Vec<ibv_sge>>,
    masks: [u32; 2],
    /// No operations go to the device; nor receives, which a next queue pair gets before.
    pub suspended: bool,
    pub receives_suspended: bool,
    /// Operations so far that take a receive of the peer's.
    messages: u32,
    /// After so many work requests the rail is lost on demand, 0: never; those so far; whether another one lasts.
    pub fault_every: u64,
    posted: u64,
    pub other_rail_up: bool,
}

fn takes_receive(opcode: ibv_wr_opcode::Type) -> bool {
    matches!(opcode, ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM)
}

/// What became of a work request that had not ended, once the peer has said how many receives it has used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// It goes again.
    Repost,
    /// The peer has it: it ends well, and is not done again.
    Delivered,
    /// Nobody knows, and doing it twice is not doing it once.
    Unknown,
}

impl RetransmitQueue {
    /// For rings of so many operations and receives.
    pub fn new(tx: u32, rx: u32, breaks: u64) -> RetransmitQueue {
        RetransmitQueue { masks: [tx, rx].map(|n| n.max(1).next_power_of_two() - 1), fault_every: breaks, ..RetransmitQueue::default() }
    }

    fn keep(&mut self, wr: &ibv_send_wr) {
        let messages = self.messages;
        let sent = self.send_slot(wr.wr_id as u32);
        // SAFETY: plain numbers and pointers, of which none is followed.
        sent.wr = unsafe { read(wr) };
        sent.number = messages;
        sent.pieces.clear();
        sent.bytes.clear();
        // SAFETY: who posts gives so many pieces, and bytes that are readable now where they travel inside.
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

    /// Keeps a chain, and posts it if the device gets anything now; an errno.
    ///
    /// # Safety
    /// As for `ibv_post_send`.
    pub unsafe fn send(&mut self, qp: *mut ibv_qp, first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
        let mut next = first;
        // SAFETY: who posts gives a chain that is live for the call.
        while let Some(wr) = unsafe { next.as_ref() } {
            self.keep(wr);
            self.posted += 1;
            next = wr.next;
        }
        if self.suspended {
            return 0;
        }
        // SAFETY: as above.
        let rc = unsafe { ibv_post_send(qp, first, bad) };
        // SAFETY: where it fails the device names a request of the chain.
        let mut refused = if rc == 0 { null_mut() } else { unsafe { *bad } };
        // SAFETY: as above.
        while let Some(wr) = unsafe { refused.as_ref() } {
            self.messages = self.messages.wrapping_sub(u32::from(takes_receive(wr.opcode)));
            refused = wr.next;
        }
        rc
    }

    /// The same of one receive.
    ///
    /// # Safety
    /// As for `ibv_post_recv`.
    pub unsafe fn receive(&mut self, qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
        // SAFETY: who posts gives a request that is live for the call, and so many pieces.
        unsafe {
            let kept = self.recv_slot((*wr).wr_id);
            kept.clear();
            kept.extend((0..(*wr).num_sge.max(0) as usize).map(|i| *(*wr).sg_list.add(i)));
            if self.receives_suspended { 0 } else { ibv_post_recv(qp, wr, bad) }
        }
    }

    /// Whether the rail is to be lost now, on demand.
    pub fn is_fault_due(&self) -> bool {
        self.fault_every != 0 && self.other_rail_up && !self.suspended && self.posted.is_multiple_of(self.fault_every)
    }

    #[inline(never)]
    fn send_slot(&mut self, seq: u32) -> &mut Sent {
        let at = (seq & self.masks[0]) as usize;
        while self.sends.len() <= at {
            // SAFETY: plain numbers and pointers.
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

    /// Operations that take a receive, as far as the device was given them.
    pub fn messages(&self) -> u32 {
        self.messages
    }

    /// Finds out what became of operations `first..end`, which the device had: the peer has used `used` receives in all, of which
    /// it has taken `given` at most. What the peer has is done no more. None: the peer lies.
    pub fn resolve(&mut self, first: u32, end: u32, given: u32, used: u32) -> Option<Vec<Delivery>> {
        let count = end.wrapping_sub(first);
        // What had ended before took its receive, so the peer has used so many at least.
        let (mut ended, mut arrived) = (None, 0);
        for i in 0..count {
            let sent = self.send_slot(first.wrapping_add(i));
            if takes_receive(sent.wr.opcode) {
                let ended = *ended.get_or_insert(sent.number);
                if sent.number.wrapping_sub(ended) < used.wrapping_sub(ended) {
                    // The peer's device carries out in order, and so all before it.
                    arrived = i + 1;
                }
            }
        }
        let ended = ended.unwrap_or(given);
        if used.wrapping_sub(ended) > given.wrapping_sub(ended) {
            return None;
        }
        let mut fates = vec![Delivery::Repost; count as usize];
        for (i, fate) in (0..).zip(&mut fates) {
            let seq = first.wrapping_add(i);
            *fate = match self.send_slot(seq).wr.opcode {
                ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP | ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => Delivery::Unknown,
                ibv_wr_opcode::IBV_WR_RDMA_READ => continue,
                _ if i < arrived => Delivery::Delivered,
                _ => continue,
            };
            self.replace_by_empty_write(seq);
        }
        Some(fates)
    }

    /// In the place of an operation goes a write of nothing, which ends as that one would.
    pub fn replace_by_empty_write(&mut self, seq: u32) {
        let sent = self.send_slot(seq);
        sent.wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        sent.wr.send_flags &= ibv_send_flags::IBV_SEND_SIGNALED;
        sent.wr.wr.rdma = ibv_send_wr_rdma { remote_addr: 0, rkey: 0 };
        sent.pieces.clear();
        sent.bytes.clear();
    }

    /// Posts an operation that was kept; an errno.
    ///
    /// # Safety
    /// The pair lives, and what the operation names is kept until it ends.
    pub unsafe fn repost_send(&mut self, qp: *mut ibv_qp, seq: u32) -> c_int {
        let sent = self.send_slot(seq);
        let mut inside = ibv_sge { addr: sent.bytes.as_ptr() as u64, length: sent.bytes.len() as u32, lkey: 0 };
        sent.wr.next = null_mut();
        (sent.wr.sg_list, sent.wr.num_sge) = match sent.bytes.is_empty() {
            true => (sent.pieces.as_mut_ptr(), sent.pieces.len() as c_int),
            false => (&raw mut inside, 1),
        };
        let mut bad = null_mut();
        // SAFETY: who calls it keeps pair and buffers; the request is live, and so are its pieces.
        unsafe { ibv_post_send(qp, &mut sent.wr, &mut bad) }
    }

    /// The same of a receive, with its number.
    ///
    /// # Safety
    /// As for `repeat`.
    pub unsafe fn repost_recv(&mut self, qp: *mut ibv_qp, wr_id: u64) -> c_int {
        let pieces = self.recv_slot(wr_id);
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: pieces.as_mut_ptr(), num_sge: pieces.len() as c_int };
        let mut bad = null_mut();
        // SAFETY: as for `repeat`.
        unsafe { ibv_post_recv(qp, &mut wr, &mut bad) }
    }
}

/// Posts by the keeper that `next` of a work request names, which is the end of its chain meanwhile.
///
/// # Safety
/// `next` is live, and a [`RetransmitHandle`]'s, which lives.
unsafe fn with_queue_of<T>(next: *mut *mut T, post: impl FnOnce(&mut RetransmitQueue) -> c_int) -> c_int {
    // SAFETY: as above.
    unsafe {
        let keeper = next.replace(null_mut());
        let rc = post(&mut (*keeper.cast::<Mutex<RetransmitQueue>>()).lock());
        next.write(keeper);
        rc
    }
}

/// What the fast path posts with.
///
/// # Safety
/// As for `ibv_post_send`; and `next` is a [`RetransmitHandle`]'s, which lives.
pub unsafe extern "C" fn post_send_retained(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: as above.
    hold(|rc| rc, || unsafe { with_queue_of(&raw mut (*wr).next, |kept| kept.send(qp, wr, bad)) })
}

/// The same of receives.
///
/// # Safety
/// As for `send_kept`.
pub unsafe extern "C" fn post_recv_retained(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: as above.
    hold(|rc| rc, || unsafe { with_queue_of(&raw mut (*wr).next, |kept| kept.receive(qp, wr, bad)) })
}

#[cfg(test)]
mod tests {
    use super::Delivery::*;
    use super::ibv_wr_opcode::*;
    use super::*;

    /// Operations from number `first` on, of a connection that has ended `before` messages.
    fn kept(first: u32, before: u32, opcodes: &[ibv_wr_opcode::Type]) -> RetransmitQueue {
        let mut kept = RetransmitQueue { suspended: true, messages: before, ..RetransmitQueue::new(8, 8, 0) };
        for (i, opcode) in opcodes.iter().enumerate() {
            // SAFETY: plain numbers and pointers; the request is live, and nothing is posted.
            unsafe {
                let mut wr: ibv_send_wr = zeroed();
                (wr.wr_id, wr.opcode) = (u64::from(first.wrapping_add(i as u32)), *opcode);
                assert_eq!(kept.send(null_mut(), &mut wr, null_mut()), 0);
            }
        }
        kept
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
    fn what_the_peer_has_is_not_done_again() {
        for before in [0, 7, u32::MAX - 1] {
            for first in [0, u32::MAX - 3] {
                let fates = |used: u32| {
                    let mut kept = kept(first, before, &ALL);
                    let given = kept.messages();
                    let fates = kept.resolve(first, first.wrapping_add(7), given, before.wrapping_add(used))?;
                    // A second loss before anything went again finds the same.
                    let again = kept.resolve(first, first.wrapping_add(7), given, before.wrapping_add(used))?;
                    assert!(again.iter().zip(&fates).all(|(a, b)| *a == Repost || a == b));
                    Some(fates)
                };
                assert_eq!(fates(0), Some(vec![Repost, Repost, Repost, Unknown, Repost, Repost, Repost]));
                assert_eq!(fates(1), Some(vec![Delivered, Delivered, Repost, Unknown, Repost, Repost, Repost]));
                assert_eq!(fates(2), Some(vec![Delivered, Delivered, Repost, Unknown, Delivered, Repost, Repost]));
                assert_eq!(fates(3), Some(vec![Delivered, Delivered, Repost, Unknown, Delivered, Delivered, Delivered]));
                // More than it was given, or fewer than it has acknowledged.
                for lie in [4, 5, 1 << 31, u32::MAX] {
                    assert_eq!(fates(lie), None, "{lie}");
                }
            }
        }
    }

    #[test]
    fn without_anything_under_way_there_is_one_number_that_is_right() {
        let mut kept = kept(0, 9, &[]);
        assert_eq!(kept.resolve(3, 3, 9, 9), Some(Vec::new()));
        assert_eq!((kept.resolve(3, 3, 9, 8), kept.resolve(3, 3, 9, 10)), (None, None));
    }

    #[test]
    fn bytes_that_travel_inside_are_kept() {
        let mut kept = kept(0, 0, &[]);
        let mut bytes = [1u8, 2, 3];
        let mut pieces = [ibv_sge { addr: bytes.as_ptr() as u64, length: 3, lkey: 0 }; 2];
        // SAFETY: plain numbers and pointers; request, pieces and bytes are live.
        unsafe {
            let mut wr: ibv_send_wr = zeroed();
            (wr.sg_list, wr.num_sge, wr.send_flags) = (pieces.as_mut_ptr(), 2, ibv_send_flags::IBV_SEND_INLINE);
            kept.send(null_mut(), &mut wr, null_mut());
        }
        bytes.fill(9);
        assert_eq!(kept.sends[0].bytes, [1, 2, 3, 1, 2, 3]);
    }
}
