// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fast path of posting, for an operation of one piece that the device reaches, whose entry only says that the
//! operation is done. The fast path fills in a prepared work request (`queue/template.rs`) instead of building one. All
//! other operations take the slow path (`post.rs`, `recv.rs`). The completions of the fast path are handled in
//! `poll.rs`.
//!
//! `make bench-verbs-count` counts the instructions of both paths.

use crate::error::{Error, errno};
use crate::mr::Paths;
use crate::prov::flags;
use crate::prov::op::{Iov, One};
use crate::prov::verbs::memory::mr;
use crate::prov::verbs::queue::retransmit::{post_recv_retained, post_send_retained};
use crate::prov::verbs::queue::template::NO_REQUEST;
use crate::prov::verbs::queue::work::{ENTRY_ONLY, SIGNALED};
use crate::prov::verbs::shared::Shared;
use crate::prov::verbs::state::{Phase, State};
use crate::prov::verbs::sys::abi::*;
use crate::prov::verbs::sys::status;
use crate::sync::serial::Reached;
use std::ptr::null_mut;
use std::sync::Arc;

const INLINED: u32 = ibv_send_flags::IBV_SEND_INLINE;
/// The longest operation of the fast path. The number fits the immediate operand of a compare instruction.
const LONGEST: usize = i32::MAX as usize;
/// The flags that an operation on the fast path may have: they ask for the default behaviour, or say whether an entry
/// is wanted.
const FAST_FLAGS: u64 = flags::COMPLETION | flags::INJECT_COMPLETE | flags::TRANSMIT_COMPLETE;
pub const WRITE: u8 = 0;
pub const READ: u8 = 1;
pub const SEND: u8 = 2;

/// An operation that is prepared and not yet posted. Posting needs none of the call's arguments, so posting can be the
/// last thing that the call does.
pub struct PreparedPost<'a, const LOCKED: bool>(Reached<'a, State, LOCKED>);

impl<const LOCKED: bool> PreparedPost<'_, LOCKED> {
    /// Posts the operation; returns the result of the device's post function, 0 or an errno.
    #[inline(always)]
    pub fn post(&mut self) -> i32 {
        self.0.post_prepared()
    }

    /// Removes the operation after `post` has failed; returns the error.
    #[cold]
    pub fn refused(&mut self, rc: i32) -> Error {
        self.0.post_failed(rc)
    }
}

impl State {
    /// Closes the fast path: operations take the slow path until the slow path finds that the fast path can be opened
    /// again.
    pub fn close_fast(&mut self) {
        let t = &mut self.fast;
        (t.open, t.default_wants_entry, t.recv_open) = (false, false, false);
        (t.next_sent, t.next_received) = (NO_REQUEST, NO_REQUEST);
    }

    /// Opens the fast path of operations if no property of the endpoint rules it out.
    #[inline(always)]
    pub fn try_open_fast(&mut self) {
        if !self.fast.open {
            self.open_fast();
        }
    }

    #[cold]
    fn open_fast(&mut self) {
        let free = self.options.policy.allowed().contains(Paths::NIC | Paths::DMABUF | Paths::PEER_MEM);
        let fits = !self.unordered && !self.signal_all && self.op_flags & !FAST_FLAGS == 0 && self.options.deadline_ns == 0 && free;
        let idle = matches!(self.phase, Phase::Connected)
            && self.peer_end.is_none()
            && !self.must_wait()
            && self.batch.is_empty()
            && self.faults.is_none()
            && !self.is_failing_over();
        let Some(qp) = self.qp.as_ref().filter(|_| fits && idle && self.bind.tx.is_some()) else { return };
        // Fault injection acts on the slow path only.
        if qp.retransmit.as_ref().is_some_and(|queue| queue.lock().fault_every != 0) {
            return;
        }
        let every = self.bind.wants_entry(self.op_flags);
        let t = &mut self.fast;
        // The pointer stays valid, because the state does not move while the endpoint is open.
        t.wr.sg_list = &raw mut t.piece;
        t.wr.num_sge = 1;
        t.inline = qp.capacity.inline as usize;
        t.longest = self.rails.as_ref().map_or(LONGEST, |rails| rails.min_striped.min(LONGEST) - 1);
        t.qp = qp.raw();
        // SAFETY: the queue pair lives, and its context does as long as the queue pair.
        if let Some(post) = unsafe { (*(*t.qp).context).ops.post_send } {
            let keeper = qp.retransmit.as_ref().map(Arc::as_ptr);
            t.wr.next = keeper.map_or(null_mut(), |keeper| keeper.cast_mut().cast());
            (t.post, t.open, t.default_wants_entry) = (if keeper.is_some() { post_send_retained } else { post }, true, every);
            self.update_expected();
        }
    }

    /// Opens the fast path of receives if no property of the endpoint rules it out.
    #[inline(always)]
    pub fn try_open_fast_receive(&mut self) {
        if !self.fast.recv_open {
            self.open_fast_receive();
        }
    }

    #[cold]
    fn open_fast_receive(&mut self) {
        let bind = &self.bind;
        let counted = bind.counters.recv.is_some() || bind.counters.remote_write.is_some();
        let fits = !self.unordered && !counted && bind.wants_plain_receive() && self.options.recv_deadline_ns == 0;
        let idle =
            matches!(self.phase, Phase::Enabled | Phase::Connecting(_) | Phase::Connected) && !self.must_wait() && !self.is_failing_over();
        let Some(qp) = self.qp.as_ref().filter(|_| fits && idle && self.faults.is_none() && !self.own_receives) else { return };
        let t = &mut self.fast;
        t.recv_wr.sg_list = &raw mut t.recv_piece;
        t.recv_wr.num_sge = 1;
        t.qp = qp.raw();
        // SAFETY: the queue pair lives, and its context does as long as the queue pair.
        if let Some(post) = unsafe { (*(*t.qp).context).ops.post_recv } {
            let keeper = qp.retransmit.as_ref().map(Arc::as_ptr);
            t.recv_wr.next = keeper.map_or(null_mut(), |keeper| keeper.cast_mut().cast());
            (t.post_recv, t.recv_open) = (if keeper.is_some() { post_recv_retained } else { post }, true);
            self.update_expected();
        }
    }

    /// Updates the numbers of the oldest operation and of the oldest receive, with which `poll.rs` compares
    /// completions.
    #[inline]
    pub fn update_expected(&mut self) {
        if self.fast.open {
            self.fast.next_sent = self.tx_tag.send(self.tx.first());
        }
        if self.fast.recv_open {
            self.fast.next_received = self.rx_tag.recv(self.rx.first());
        }
    }

    /// Fills in the work request for an operation. False: the operation has to take the slow path.
    #[inline(always)]
    fn prepare<const KIND: u8, const LOCKED: bool>(&mut self, one: One, wanted: bool) -> bool {
        // The order of these checks is deliberate: the compiler would merge two neighbours with the same result into
        // longer code.
        if KIND != SEND && one.key >> 32 != 0 {
            return false;
        }
        // Two specialised bodies are shorter than one body that distinguishes the cases later.
        if KIND != READ
            && let Some(lkey) = mr::on_host(one.desc)
            && one.local.len().wrapping_sub(1) < self.fast.inline
        {
            return one.local.addr() != 0 && self.prepare_sized::<KIND, LOCKED, true>(one, lkey, wanted);
        }
        let Some(lkey) = mr::local_key(one.desc) else { return false };
        one.local.addr() != 0
            && one.local.len().wrapping_sub(1) < self.fast.longest
            && self.prepare_sized::<KIND, LOCKED, false>(one, lkey, wanted)
    }

    /// The second half of `prepare`, after its checks.
    #[inline(always)]
    fn prepare_sized<const KIND: u8, const LOCKED: bool, const INLINE: bool>(&mut self, one: One, lkey: u32, wanted: bool) -> bool {
        let One { local, addr, key, context, desc, .. } = one;
        let (buf, len) = (local.addr(), local.len());
        if self.tx.is_full() {
            return false;
        }
        let mut signalled = SIGNALED;
        if wanted {
            // SAFETY: the fast path is open only if a completion queue is bound.
            let queue = unsafe { self.bind.tx.as_ref().unwrap_unchecked() };
            // SAFETY: the queue belongs to the same domain as the state, so the same `LOCKED` is right for it.
            if !unsafe { queue.reach::<LOCKED>() }.reserve() {
                return false;
            }
        } else if self.unsignalled >= self.tx.limit() / 4 {
            self.unsignalled = 0;
        } else {
            self.unsignalled += 1;
            signalled = 0;
        }
        let kind = match KIND {
            WRITE => flags::RMA | flags::WRITE,
            READ => flags::RMA | flags::READ,
            _ => flags::MSG | flags::SEND,
        };
        let seq = self.tx.next();
        let place = self.tx.place();
        (place.end.context, place.end.kind, place.end.len, place.end.buf) = (context, kind, len, buf);
        // Paths are counted for RMA only.
        let how = if INLINE || KIND == SEND { 0 } else { mr::path_bits(desc) };
        if wanted {
            place.path_bits = ENTRY_ONLY | how;
        } else {
            (place.path_bits, place.end.wanted) = (how, false);
        }
        self.tx.advance();
        let t = &mut self.fast;
        t.wr.wr_id = self.tx_tag.send(seq);
        t.wr.opcode = match KIND {
            WRITE => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            READ => ibv_wr_opcode::IBV_WR_RDMA_READ,
            _ => ibv_wr_opcode::IBV_WR_SEND,
        };
        t.wr.send_flags = if INLINE { signalled | INLINED } else { signalled };
        if KIND != SEND {
            t.wr.wr.rdma.remote_addr = addr;
            t.wr.wr.rdma.rkey = key as u32;
        }
        t.piece = ibv_sge { addr: buf as u64, length: len as u32, lkey };
        true
    }

    #[inline(always)]
    fn post_prepared(&mut self) -> i32 {
        let t = &mut self.fast;
        // SAFETY: request and piece are part of `self`, and the queue pair lives while the path is open; the caller keeps the buffer
        // until the operation completes.
        unsafe { (t.post)(t.qp, &raw mut t.wr, &raw mut t.bad) }
    }

    #[cold]
    fn post_failed(&mut self, rc: i32) -> Error {
        let op = self.tx.unpush();
        if let Some(queue) = self.bind.tx.as_ref().filter(|_| op.end.wanted) {
            queue.release();
        }
        // Earlier operations may have been posted without asking for a completion, so the next operation has to ask for
        // one.
        self.unsignalled = self.tx.limit();
        match rc.saturating_abs() {
            errno::ENOMEM => Error::AGAIN,
            err => status::call_error("posting a work request", err),
        }
    }

    /// Posts an operation with `flags` if the fast path takes it. `None`: the operation has to take the slow path.
    #[inline(always)]
    pub fn try_fast<const KIND: u8, const LOCKED: bool>(&mut self, one: One, flags: u64) -> Option<Result<(), Error>> {
        if !self.fast.open || flags & !FAST_FLAGS != 0 {
            return None;
        }
        let wanted = self.fast.default_wants_entry || self.bind.wants_entry(flags);
        if !self.prepare::<KIND, LOCKED>(one, wanted) {
            return None;
        }
        match self.post_prepared() {
            0 => Some(Ok(())),
            rc => Some(Err(self.post_failed(rc))),
        }
    }

    /// Posts a receive if the fast path takes it. `None`: the receive has to take the slow path, which also handles a
    /// refusal by the device.
    #[inline(always)]
    pub fn try_fast_receive(&mut self, local: Iov, desc: u64, context: usize) -> Option<()> {
        let lkey = mr::local_key(desc)?;
        let (buf, room) = (local.addr(), local.len());
        if !self.fast.recv_open || buf == 0 || room.wrapping_sub(1) >= LONGEST || self.rx.is_full() {
            return None;
        }
        let t = &mut self.fast;
        t.recv_wr.wr_id = self.rx_tag.recv(self.rx.next());
        t.recv_piece = ibv_sge { addr: buf as u64, length: room as u32, lkey };
        // SAFETY: request and piece are part of `self`, and the queue pair lives while the path is open; the caller keeps the buffer
        // until the receive completes.
        if unsafe { (t.post_recv)(t.qp, &raw mut t.recv_wr, &raw mut t.recv_bad) } != 0 {
            return None;
        }
        // The other fields of the slot keep the values of an earlier fast receive, which are right for this receive
        // too.
        let place = self.rx.place();
        (place.context, place.buf, place.room, place.deadline) = (context, buf, room, 0);
        (place.wanted, place.own, place.entry_only) = (true, false, true);
        self.rx.advance();
        Some(())
    }
}

impl Shared {
    /// Prepares an operation without flags that gives an entry. `None`: the operation has to take the slow path.
    ///
    /// # Safety
    /// `LOCKED`, or the domain was opened without locks.
    #[inline(always)]
    pub unsafe fn prepare_fast<const KIND: u8, const LOCKED: bool>(&self, one: One) -> Option<PreparedPost<'_, LOCKED>> {
        // SAFETY: the caller's table of operations is that of the domain, so `LOCKED` agrees with the domain.
        let mut s = unsafe { self.state.reach::<LOCKED>() };
        if s.fast.default_wants_entry && s.prepare::<KIND, LOCKED>(one, true) { Some(PreparedPost(s)) } else { None }
    }
}
