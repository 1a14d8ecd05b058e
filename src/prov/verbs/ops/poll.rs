// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fast path of completions: while the library's own queue of entries is empty, completions go from the device
//! directly into the caller's array. A completion that needs more work takes the slow path (`state/mod.rs`, `recv.rs`),
//! which puts its entry into that queue.

use crate::mr::Paths;
use crate::prov::flags;
use crate::prov::queue::{Completion, Found};
use crate::prov::verbs::cq::{BATCH, Cq, Inner};
use crate::prov::verbs::memory::mr;
use crate::prov::verbs::queue::tag::Tag;
use crate::prov::verbs::queue::work::ENTRY_ONLY;
use crate::prov::verbs::state::State;
use crate::prov::verbs::sys::abi::*;
use std::ptr::NonNull;

/// After the completion of a work request whose number has none of these bits, the caller looks at rare events.
const DUE: u64 = 63;

impl State {
    /// Handles a completion of the oldest operation if the operation only has to give its entry. `None`: the completion
    /// has to take the slow path.
    #[inline(always)]
    fn sent_fast(&mut self, wc: &ibv_wc) -> Option<Completion> {
        if wc.status != ibv_wc_status::IBV_WC_SUCCESS || wc.wr_id != self.fast.next_sent {
            return None;
        }
        let op = self.tx.oldest();
        let how = op.path_bits;
        let end = &op.end;
        let done = Completion { context: end.context, flags: end.kind, len: end.len, buf: end.buf, data: 0 };
        if how != ENTRY_ONLY {
            // In an empty slot of the ring, `ENTRY_ONLY` is not set.
            if how & ENTRY_ONLY == 0 {
                return None;
            }
            self.stats.not_by_nic(mr::path_of(how), done.len);
        }
        self.tx.oldest().path_bits = 0;
        self.tx.forget();
        self.fast.next_sent += 1;
        if done.flags & flags::SEND != 0 {
            self.stats.sends += 1;
        } else {
            // Wrapping, because `not_by_nic` may have subtracted this operation before.
            let nic = self.stats.of_mut(Paths::NIC);
            nic.ops = nic.ops.wrapping_add(1);
            nic.bytes = nic.bytes.wrapping_add(done.len as u64);
        }
        Some(done)
    }

    /// Handles a message in the oldest receive if the receive only has to give its entry. This function is not inlined,
    /// so that the compiler keeps the values of both functions in registers.
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
    /// Makes the endpoint of this completion the current one. False: it already is the current one, or the completion
    /// has no endpoint.
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
    /// Takes completions directly from the device and passes them to `each`, while the queue of entries is empty.
    ///
    /// # Safety
    /// `LOCKED`, or the domain was opened without locks; and the queue was made by `open`.
    #[inline(always)]
    pub unsafe fn poll_fast<const LOCKED: bool>(&self, count: usize, mut each: impl FnMut(usize, &Completion)) -> Found {
        // SAFETY: `open`, which made this queue, has set it.
        let queue = unsafe { self.queue.as_ref().unwrap_unchecked() };
        let most = if count > BATCH { BATCH } else { count };
        // SAFETY: `LOCKED` agrees with the domain, as the caller promises; this holds for all objects of the domain below.
        let Some(mut inner) = (unsafe { self.inner.try_reach::<LOCKED>() }) else { return Found::Elsewhere };
        // SAFETY: a queue of the same domain, so `LOCKED` is right for it.
        if !unsafe { queue.reach::<LOCKED>() }.has_room_for(most) {
            return Found::Elsewhere;
        }
        let wc = inner.wcs.as_mut_ptr();
        // SAFETY: the queue lives, and `wcs` has room for `most` completions.
        let n = unsafe { (inner.poll)(self.raw.raw(), most as i32, wc) };
        if n.wrapping_sub(1) as u32 >= BATCH as u32 {
            return if n == 0 && most > 0 { Found::Nothing } else { Found::Elsewhere };
        }
        // A caller that waits for each operation gets one completion at a time. Without the loop, the path of that case
        // is half as long.
        if n == 1
            && let Some(ep) = inner.last
        {
            // SAFETY: a member's endpoint lives as long as the member and belongs to the same domain, so `LOCKED` is right for it; the
            // first completion is filled.
            let done = unsafe { ep.as_ref().state.reach::<LOCKED>().sent_fast(&*wc) };
            if let Some(done) = done {
                each(0, &done);
                // SAFETY: a queue of the same domain, so `LOCKED` is right for it.
                unsafe { queue.reach::<LOCKED>() }.release(1);
                // SAFETY: the first completion is filled.
                return if unsafe { (*wc).wr_id } & DUE == 0 { Found::Due(1) } else { Found::Some(1) };
            }
        }
        // SAFETY: as the caller promises for this function; the first `n` completions are filled.
        match unsafe { self.take_all::<LOCKED>(&mut inner, n as usize, each) } {
            0 => Found::Elsewhere,
            taken if inner.wcs[0].wr_id & DUE < BATCH as u64 => Found::Due(taken),
            taken => Found::Some(taken),
        }
    }

    /// Passes up to `n` completions to `each`. The first completion that needs the slow path, and all completions after
    /// it, go into the queue of entries.
    ///
    /// # Safety
    /// As for `poll_fast`; and `inner` holds `n` completions.
    #[inline(never)]
    unsafe fn take_all<const LOCKED: bool>(&self, inner: &mut Inner, n: usize, mut each: impl FnMut(usize, &Completion)) -> usize {
        // SAFETY: `open`, which made this queue, has set it.
        let queue = unsafe { self.queue.as_ref().unwrap_unchecked() };
        let mut wc = inner.wcs.as_ptr();
        let (mut taken, mut arrivals) = (0, 0);
        'all: loop {
            // SAFETY: a member's endpoint lives as long as the member, which `inner` holds.
            if let Some(ep) = inner.last.map(|ep| unsafe { ep.as_ref() }) {
                // SAFETY: the endpoint is of the same domain as the queue, so `LOCKED` is right for it.
                let mut s = unsafe { ep.state.reach::<LOCKED>() };
                // SAFETY: the first `n` completions are filled, and `taken` is below.
                while let Some(done) = s.sent_fast(unsafe { &*wc }) {
                    each(taken, &done);
                    taken += 1;
                    if taken == n {
                        break 'all;
                    }
                    // SAFETY: `taken` is below `n`.
                    wc = unsafe { wc.add(1) };
                }
                // SAFETY: the first `n` completions are filled, and `taken` is below.
                if let Some(done) = s.received_fast(unsafe { &*wc }) {
                    each(taken, &done);
                    (taken, arrivals) = (taken + 1, arrivals + 1);
                    if taken == n {
                        break 'all;
                    }
                    // SAFETY: `taken` is below `n`.
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
        // SAFETY: a queue of the same domain, so `LOCKED` is right for it.
        unsafe { queue.reach::<LOCKED>() }.release(taken - arrivals);
        if taken < n {
            // SAFETY: `taken` and `n` are at most the array's length.
            let rest = unsafe { inner.wcs.get_unchecked(taken..n) };
            self.hand_over(rest, &inner.members);
        }
        taken
    }
}
