// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fast path of a completion: from the device into the caller's array, while its queue is empty. Whatever else there is to
//! it takes the slow path (`state.rs`), into the queue.

use crate::prov::flags;
use crate::prov::queue::{Completion, Found};
use crate::prov::verbs::cq::{BATCH, Cq, Inner};
use crate::prov::verbs::memory::mr;
use crate::prov::verbs::queue::tag::Tag;
use crate::prov::verbs::queue::work::ENTRY_ONLY;
use crate::prov::verbs::state::State;
use crate::prov::verbs::sys::abi::*;
use std::ptr::NonNull;

/// Of the numbers of work requests one in so many, less one, is an occasion to look at what changes rarely.
const DUE: u64 = 63;

impl State {
    /// A completion whose operation has nothing to do but give its entry.
    #[inline(always)]
    fn sent_fast(&mut self, wc: &ibv_wc) -> Option<Completion> {
        if wc.status != ibv_wc_status::IBV_WC_SUCCESS || wc.wr_id != self.fast.next_sent {
            return None;
        }
        let op = self.tx.oldest();
        let how = op.how;
        let end = &op.end;
        let done = Completion { context: end.context, flags: end.kind, len: end.len, buf: end.buf, data: 0 };
        if how != ENTRY_ONLY {
            // The flag of a vacant place is down.
            if how & ENTRY_ONLY == 0 {
                return None;
            }
            self.stats.not_by_nic(mr::path_of(how), done.len);
        }
        self.tx.oldest().how = 0;
        self.tx.forget();
        self.fast.next_sent += 1;
        if done.flags & flags::SEND != 0 {
            self.stats.sends += 1;
        } else {
            // Wrapping, because `not_by_nic` has taken it off before.
            self.stats.ops_nic = self.stats.ops_nic.wrapping_add(1);
            self.stats.bytes_nic = self.stats.bytes_nic.wrapping_add(done.len as u64);
        }
        Some(done)
    }

    /// As `sent_fast`, for a message in a receive. A function of its own, so that both find registers for what they hold.
    #[inline(never)]
    fn received_fast(&mut self, wc: &ibv_wc) -> Option<Completion> {
        let well = wc.status == ibv_wc_status::IBV_WC_SUCCESS && wc.wr_id == self.fast.next_received;
        if !well || wc.opcode != ibv_wc_opcode::IBV_WC_RECV {
            return None;
        }
        let op = self.rx.oldest();
        if !op.entry_only {
            return None;
        }
        op.entry_only = false;
        let mut done = Completion { context: op.context, flags: flags::RECV | flags::MSG, len: wc.byte_len as usize, buf: op.buf, data: 0 };
        self.rx.forget();
        self.fast.next_received += 1;
        self.stats.recvs += 1;
        if wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM != 0 {
            done.flags |= flags::REMOTE_CQ_DATA;
            done.data = u64::from(u32::from_be(wc.imm_data));
        }
        Some(done)
    }
}

impl Inner {
    /// The endpoint that a completion is of, if it is another than the last one's.
    #[cold]
    fn turn_to(&mut self, wr_id: u64) -> bool {
        let of = self.members.get(Tag::member(wr_id)).and_then(|m| m.ep.as_ref()).map(|ep| NonNull::from(ep.as_ref()));
        let other = of.is_some() && of != self.last;
        if other {
            self.last = of;
        }
        other
    }
}

impl Cq {
    /// Hands completions to `each` as the device gives them, while the caller's queue is empty.
    ///
    /// # Safety
    /// `LOCKED`, or the domain is one without locks; and the queue is one of `open`.
    #[inline(always)]
    pub unsafe fn poll_fast<const LOCKED: bool>(&self, count: usize, mut each: impl FnMut(usize, &Completion)) -> Found {
        // SAFETY: `open` has set it.
        let queue = unsafe { self.queue.as_ref().unwrap_unchecked() };
        let most = if count > BATCH { BATCH } else { count };
        // SAFETY: `LOCKED` is what the domain was opened with, so who calls promised; so for all that is reached here.
        let Some(mut inner) = (unsafe { self.inner.try_reach::<LOCKED>() }) else { return Found::Elsewhere };
        // SAFETY: a queue of the same domain.
        if !unsafe { queue.reach::<LOCKED>() }.has_room_for(most) {
            return Found::Elsewhere;
        }
        let wc = inner.wcs.as_mut_ptr();
        // SAFETY: the queue lives and there is room for so many.
        let n = unsafe { (inner.poll)(self.raw.raw(), most as i32, wc) };
        if n.wrapping_sub(1) as u32 >= BATCH as u32 {
            return if n == 0 && most > 0 { Found::Nothing } else { Found::Elsewhere };
        }
        // One alone is what a caller gets who waits for each; without a loop it is half as long.
        if n == 1
            && let Some(ep) = inner.last
        {
            // SAFETY: a member's endpoint lives as long as the member, and is of the same domain, and so reached in the
            // same way; the first completion is filled.
            let done = unsafe { ep.as_ref().state.reach::<LOCKED>().sent_fast(&*wc) };
            if let Some(done) = done {
                each(0, &done);
                // SAFETY: a queue of the same domain.
                unsafe { queue.reach::<LOCKED>() }.release(1);
                // SAFETY: the first completion is filled.
                return if unsafe { (*wc).wr_id } & DUE == 0 { Found::Due(1) } else { Found::Some(1) };
            }
        }
        // SAFETY: so many are filled.
        match unsafe { self.take_all::<LOCKED>(&mut inner, n as usize, each) } {
            0 => Found::Elsewhere,
            taken if inner.wcs[0].wr_id & DUE < BATCH as u64 => Found::Due(taken),
            taken => Found::Some(taken),
        }
    }

    /// Hands `n` completions to `each`, or from the first on that is not so simple into the queue.
    ///
    /// # Safety
    /// As for `poll_fast`; and so many are in `inner`.
    #[inline(never)]
    unsafe fn take_all<const LOCKED: bool>(&self, inner: &mut Inner, n: usize, mut each: impl FnMut(usize, &Completion)) -> usize {
        // SAFETY: `open` has set it.
        let queue = unsafe { self.queue.as_ref().unwrap_unchecked() };
        let mut wc = inner.wcs.as_ptr();
        let (mut taken, mut arrivals) = (0, 0);
        'all: loop {
            // SAFETY: a member's endpoint lives as long as the member, which `inner` has.
            if let Some(ep) = inner.last.map(|ep| unsafe { ep.as_ref() }) {
                // SAFETY: of the same domain as the queue, so `LOCKED` is right for it.
                let mut s = unsafe { ep.state.reach::<LOCKED>() };
                // SAFETY: the first `n` completions are filled, and `taken` is below.
                while let Some(done) = s.sent_fast(unsafe { &*wc }) {
                    each(taken, &done);
                    taken += 1;
                    if taken == n {
                        break 'all;
                    }
                    // SAFETY: below `n`.
                    wc = unsafe { wc.add(1) };
                }
                // SAFETY: the first `n` completions are filled, and `taken` is below.
                if let Some(done) = s.received_fast(unsafe { &*wc }) {
                    each(taken, &done);
                    (taken, arrivals) = (taken + 1, arrivals + 1);
                    if taken == n {
                        break 'all;
                    }
                    // SAFETY: below `n`.
                    wc = unsafe { wc.add(1) };
                    continue;
                }
            }
            // SAFETY: the first `n` completions are filled, and `taken` is below.
            let wr_id = unsafe { (*wc).wr_id };
            if !inner.turn_to(wr_id) {
                break;
            }
        }
        // SAFETY: a queue of the same domain.
        unsafe { queue.reach::<LOCKED>() }.release(taken - arrivals);
        if taken < n {
            // SAFETY: both are at most the array's length.
            let rest = unsafe { inner.wcs.get_unchecked(taken..n) };
            self.hand_over(rest, &inner.members);
        }
        taken
    }
}
