// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shortest way of the usual operation: one piece on each side, an entry for every success, no locks. Whatever is
//! not usual about an operation or a completion sends it the long way (`post.rs`, `state.rs`), which finds out what.

use super::cq::{BATCH, Cq, Tag};
use super::mr;
use super::state::{Phase, Shared, State};
use super::status;
use crate::error::{Error, errno};
use crate::prov::bind::Ending;
use crate::prov::flags;
use crate::prov::queue::Completion;
use crate::prov::wish::DEVICE_DESC;
use crate::sync::serial::{Promised, Threading};
use rdma_sys::*;
use std::mem::{MaybeUninit, zeroed};
use std::ptr::null_mut;

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
/// The longest that takes this way; a number that a comparison holds.
const LONGEST: usize = i32::MAX as usize;

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> i32;

/// A work request of one piece, made once, and what posts it.
pub struct Template {
    wr: ibv_send_wr,
    piece: ibv_sge,
    /// Bytes that travel in it.
    inline: usize,
    qp: *mut ibv_qp,
    /// False: something about the endpoint keeps operations from this way. Whoever changes that takes it back; the next
    /// operation that went the long way looks anew.
    open: bool,
    post: PostSend,
}

// SAFETY: the pointers lead into the endpoint itself and to its queue pair, and are used under its serialisation.
unsafe impl Send for Template {}

/// What posts while the way is closed.
unsafe extern "C" fn nothing(_: *mut ibv_qp, _: *mut ibv_send_wr, _: *mut *mut ibv_send_wr) -> i32 {
    errno::EINVAL
}

impl Default for Template {
    fn default() -> Template {
        // SAFETY: plain numbers and pointers.
        let (wr, piece) = unsafe { (zeroed(), zeroed()) };
        Template { wr, piece, inline: 0, qp: null_mut(), open: false, post: nothing }
    }
}

/// An operation that is written down, and not posted yet. Nothing of the call's is needed beyond here, so that posting
/// is the call's end.
pub struct Armed<'a>(Promised<'a, State>);

impl Armed<'_> {
    /// Posts it; gives the device's answer, an errno.
    #[inline(always)]
    pub fn post(&mut self) -> i32 {
        let s: &mut State = &mut self.0;
        let t = &mut s.quick;
        let mut bad = MaybeUninit::uninit();
        // SAFETY: request and piece are live; the buffer is the C caller's promise.
        let rc = unsafe { (t.post)(t.qp, &raw mut t.wr, bad.as_mut_ptr()) };
        if rc == 0 {
            s.unsignalled = 0;
            s.tx.advance();
        }
        rc
    }

    /// Takes it back after `post` failed; gives the words.
    #[cold]
    pub fn refused(&mut self, rc: i32) -> Error {
        self.0.tx.place().plain = false;
        if let Some(queue) = &self.0.bind.tx {
            queue.release();
        }
        match rc.saturating_abs() {
            errno::ENOMEM => Error::AGAIN,
            err => status::call_error("posting a work request", err),
        }
    }
}

impl State {
    /// From now on operations go the long way, until one finds everything as it should be.
    #[inline]
    pub fn close_quick(&mut self) {
        self.quick.open = false;
    }

    /// Opens the short way if nothing speaks against it.
    #[inline(always)]
    pub fn look_quick(&mut self, threading: Threading) {
        if !self.quick.open && threading == Threading::Promised {
            self.open_quick();
        }
    }

    #[cold]
    fn open_quick(&mut self) {
        let usual =
            !self.unordered && !self.signal_all && !self.bind.tx_selective && self.bind.tx.is_some() && self.options.deadline_ns == 0;
        let idle = matches!(self.phase, Phase::Connected) && !self.must_wait() && self.batch.is_empty();
        let Some(qp) = self.qp.as_ref().filter(|_| usual && idle) else { return };
        let t = &mut self.quick;
        // The state stays where it is as long as the endpoint is open.
        t.wr.sg_list = &raw mut t.piece;
        t.wr.num_sge = 1;
        t.inline = qp.capacity.inline as usize;
        t.qp = qp.raw();
        // SAFETY: the pair lives, and so does its context.
        if let Some(post) = unsafe { (*(*t.qp).context).ops.post_send } {
            (t.post, t.open) = (post, true);
        }
    }
}

impl Shared {
    /// Writes down a write or a read. `None`: it is not that simple, the long way is to be taken.
    #[inline(always)]
    pub fn arm_quick<const WRITE: bool>(
        &self,
        buf: usize,
        len: usize,
        addr: u64,
        key: u64,
        desc: u64,
        context: usize,
    ) -> Option<Armed<'_>> {
        let mut guard = self.state.promised()?;
        let s: &mut State = &mut guard;
        let odd = !mr::is_plain(desc) || key >> 32 != 0 || buf == 0 || len.wrapping_sub(1) >= LONGEST;
        if odd || !s.quick.open || s.tx.is_full() {
            return None;
        }
        let seq = s.tx.next();
        let (queue, place) = (s.bind.tx.as_ref()?, s.tx.place());
        // SAFETY: of the same domain as the state, which is reached by the same promise.
        if !unsafe { queue.promised_unchecked() }.reserve_open() {
            return None;
        }
        let kind = if WRITE { flags::RMA | flags::WRITE } else { flags::RMA | flags::READ };
        place.end = Ending { context, kind, len, buf, wanted: true, deadline: 0 };
        place.plain = true;
        let t = &mut s.quick;
        t.wr.wr_id = s.tx_tag.send(seq);
        t.wr.opcode = if WRITE { ibv_wr_opcode::IBV_WR_RDMA_WRITE } else { ibv_wr_opcode::IBV_WR_RDMA_READ };
        t.wr.send_flags = if WRITE && len <= t.inline && desc & DEVICE_DESC == 0 { SIGNALED | INLINE } else { SIGNALED };
        t.wr.wr.rdma.remote_addr = addr;
        t.wr.wr.rdma.rkey = key as u32;
        t.piece = ibv_sge { addr: buf as u64, length: len as u32, lkey: mr::local_key(desc) };
        Some(Armed(guard))
    }

    /// A completion whose operation has nothing to do but give its entry.
    #[inline(always)]
    fn end_quick(&self, wc: &ibv_wc) -> Option<Completion> {
        // SAFETY: of the same domain as the queue that gave the completion, which is reached by the same promise.
        let mut guard = unsafe { self.state.promised_unchecked() };
        let s: &mut State = &mut guard;
        if !s.quick.open || wc.status != ibv_wc_status::IBV_WC_SUCCESS {
            return None;
        }
        let op = s.tx.oldest(wc.wr_id as u32)?;
        // The flag of a vacant place is down.
        if !op.plain {
            return None;
        }
        op.plain = false;
        let end = &op.end;
        let done = Completion { context: end.context, flags: end.kind, len: end.len, buf: end.buf, data: 0 };
        s.tx.forget();
        if done.flags & flags::SEND != 0 {
            s.stats.sends += 1;
        } else {
            s.stats.ops_nic += 1;
            s.stats.bytes_nic += done.len as u64;
        }
        Some(done)
    }
}

impl Cq {
    /// Hands completions to `each` as the device gives them, while the caller's queue is empty. `None`: none came, or
    /// they lie in the queue now.
    ///
    /// # Safety
    /// The domain is one without locks.
    #[inline(always)]
    pub unsafe fn take_quick(&self, count: usize, mut each: impl FnMut(usize, &Completion)) -> Option<usize> {
        let queue = self.queue.as_ref()?;
        let most = count.min(BATCH);
        // SAFETY: the caller's promise; so for the rest.
        let (mut inner, mut entries) = unsafe { (self.inner.promised_unchecked(), queue.promised_unchecked()) };
        if !entries.has_room_for(most) {
            return None;
        }
        // SAFETY: the queue lives and there is room for so many.
        let n = unsafe { ibv_poll_cq(self.raw.raw(), most as i32, inner.wcs.as_mut_ptr()) };
        if n <= 0 || n as usize > BATCH {
            return None;
        }
        let n = n as usize;
        let mut taken = 0;
        for wc in &inner.wcs[..n] {
            let Some(member) = inner.members.get(Tag::member(wc.wr_id)) else { break };
            let Some(ep) = &member.ep else { break };
            if !member.tag.sent(wc.wr_id) {
                break;
            }
            let Some(done) = ep.end_quick(wc) else { break };
            each(taken, &done);
            taken += 1;
        }
        entries.unreserve(taken);
        if taken < n {
            self.hand_over(&inner.wcs[taken..n], &inner.members);
        }
        if taken == 0 { None } else { Some(taken) }
    }
}
