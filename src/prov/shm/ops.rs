// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of operations of a shm endpoint. Each entry does what most operations need, and leaves the rest to the general
//! one (`prov/ops.rs`), which comes back through `Endpoint::rma`, `send` and `recv`.

use super::domain::Domain;
use super::rma::{ANY, FEW, FEW_SILENT, WORD, WORD_SILENT};
use super::state::State;
use crate::error::errno;
use crate::guard::{attempt, hold};
use crate::prov::bind::{INJECT_FLAGS, Quick};
use crate::prov::general;
use crate::prov::op::{Common, Iov};
use crate::prov::ops::{Arrivals, ContextEntry, CqHead, DataEntry, Entry, EpHead, EpOps, MsgEntry, TaggedEntry, on_host};
use crate::prov::queue::Queue;
use crate::sync::serial::{Reached, Serial, Threading};
use std::ffi::c_void;
use std::sync::Arc;

/// The endpoints of a domain with locks.
static LOCKED: EpOps = of_lock::<true>();
/// Those of one without.
static UNLOCKED: EpOps = of_lock::<false>();
/// Those about which, besides, nothing keeps operations from the shortest ways.
static SHORT: EpOps = EpOps {
    write: rma_short::<true, WORD>,
    read: rma_short::<false, WORD>,
    inject_write: inject_short::<WORD_SILENT>,
    send: send_line,
    inject: inject_line,
    recv: recv_short,
    ..of_lock::<false>()
};

const fn of_lock<const LOCKED: bool>() -> EpOps {
    let arrive = if LOCKED {
        None
    } else {
        Some([arrivals::<ContextEntry>(), arrivals::<MsgEntry>(), arrivals::<DataEntry>(), arrivals::<TaggedEntry>()])
    };
    EpOps {
        write: rma::<true, LOCKED>,
        read: rma::<false, LOCKED>,
        inject_write: inject_write::<LOCKED>,
        send: send::<LOCKED>,
        inject: inject::<LOCKED>,
        recv: recv::<LOCKED>,
        arrive,
        ..general::GENERAL_ENTRIES
    }
}

pub fn choose(threading: Threading, short: bool) -> &'static EpOps {
    match (threading, short) {
        (Threading::Safe, _) => &LOCKED,
        (Threading::Promised, false) => &UNLOCKED,
        (Threading::Promised, true) => &SHORT,
    }
}

pub struct Endpoint {
    pub domain: Arc<Domain>,
    pub state: Serial<State>,
}

impl Endpoint {
    /// The state, for the entries of the table.
    ///
    /// # Safety
    /// `LOCKED`, or the domain is one without locks.
    #[inline(always)]
    pub unsafe fn reach<const LOCKED: bool>(&self) -> Reached<'_, State, LOCKED> {
        // SAFETY: handed on.
        unsafe { self.state.reach() }
    }

    /// Out of line: what `hold` runs in line goes through memory.
    ///
    /// # Safety
    /// As for `reach`; the local range is as the C caller promised.
    #[inline(never)]
    pub unsafe fn copy_direct<const WRITE: bool, const LOCKED: bool>(
        &self,
        buf: usize,
        len: usize,
        addr: u64,
        key: u64,
        context: usize,
        flags: u64,
    ) -> Quick {
        // SAFETY: handed on.
        unsafe { self.reach::<LOCKED>().copy_direct::<WRITE, ANY>(buf, len, addr, key, context, flags) }
    }

    /// As `send` for what needs neither lock nor call; false posts nothing.
    ///
    /// # Safety
    /// `ops` chose the table for the shortest ways.
    #[inline(always)]
    pub unsafe fn send_short<const ENTRY: bool>(&self, buf: usize, len: usize, context: usize) -> bool {
        // SAFETY: handed on.
        unsafe { self.state.promised_unchecked().send_short::<ENTRY>(buf, len, context) }
    }

    /// As `send_short` for what goes beside the ring, with an entry.
    ///
    /// # Safety
    /// `ops` chose the table for the shortest ways.
    #[inline(always)]
    pub unsafe fn send_far(&self, buf: usize, len: usize, context: usize) -> bool {
        // SAFETY: handed on.
        unsafe { self.state.promised_unchecked().send_far(buf, len, context) }
    }

    /// As `send` for the ordinary case.
    ///
    /// # Safety
    /// As for `reach`.
    #[inline(never)]
    pub unsafe fn send_quick<const LOCKED: bool>(&self, one: &Iov, common: &Common) -> Quick {
        // SAFETY: handed on.
        unsafe { self.state.reach::<LOCKED>() }.send_quick(&self.domain, one, common)
    }

    /// As `recv` for the ordinary case; false posts nothing.
    ///
    /// # Safety
    /// As for `reach`.
    #[inline(always)]
    pub unsafe fn recv_short<const LOCKED: bool>(&self, buf: usize, len: usize, context: usize) -> bool {
        // SAFETY: handed on.
        unsafe { self.state.reach::<LOCKED>() }.recv_short(buf, len, context)
    }
}

/// # Safety
/// `ep` is open, and has a table of this file; so for all that follow, which are entries of [`EpOps`].
#[inline(always)]
unsafe fn endpoint<'a>(ep: *const EpHead) -> (&'a EpHead, &'a Endpoint) {
    // SAFETY: `Endpoint::ops` gave both, and `of` lives as long as the head.
    unsafe { (&*ep, &*(*ep).of().cast::<Endpoint>()) }
}

fn answer(quick: Quick) -> Option<isize> {
    match quick {
        Quick::Done => Some(0),
        Quick::Again => Some(-errno::EAGAIN as isize),
        Quick::NotOrdinary => None,
    }
}

/// gdrfab_write() and gdrfab_read() of one word, in a leaf function. A few bytes have an entry of their own: one for both
/// would save registers for the longer copy.
///
/// # Safety
/// As for `endpoint`.
unsafe extern "C" fn rma_short<const WRITE: bool, const HOW: u8>(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's promise, handed on; SHORT is chosen for what `copy_direct` asks.
    unsafe {
        let (head, own) = endpoint(ep);
        let copy = || own.reach::<false>().copy_direct::<WRITE, HOW>(buf as usize, len, addr, key, context as usize, 0);
        match attempt(|| (on_host(desc) && head.is_here() && copy() == Quick::Done).then_some(0)) {
            Some(rc) => rc,
            None if HOW == WORD => rma_few::<WRITE>(ep, buf, len, desc, dest_addr, addr, key, context),
            None => rma::<WRITE, false>(ep, buf, len, desc, dest_addr, addr, key, context),
        }
    }
}

/// # Safety
/// As for `endpoint`.
#[inline(never)]
unsafe extern "C" fn rma_few<const WRITE: bool>(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: handed on.
    unsafe { rma_short::<WRITE, FEW>(ep, buf, len, desc, dest_addr, addr, key, context) }
}

/// gdrfab_write() and gdrfab_read() of one piece that is mapped here.
///
/// # Safety
/// As for `endpoint`.
#[inline(never)]
unsafe extern "C" fn rma<const WRITE: bool, const LOCKED: bool>(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's promise, handed on.
    unsafe {
        let (head, own) = endpoint(ep);
        let flags = head.tx_op_flags();
        let post = || match on_host(desc) && head.is_here() {
            true => answer(own.copy_direct::<WRITE, LOCKED>(buf as usize, len, addr, key, context as usize, flags)),
            false => None,
        };
        match attempt(post) {
            Some(rc) => rc,
            None if WRITE => general::write(ep, buf, len, desc, dest_addr, addr, key, context),
            None => general::read(ep, buf, len, desc, dest_addr, addr, key, context),
        }
    }
}

/// gdrfab_inject_write(), as `rma_short`: 56 bytes take 131 instructions by it, and 203 by `inject_write`.
///
/// # Safety
/// As for `endpoint`.
unsafe extern "C" fn inject_short<const HOW: u8>(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    dest_addr: u64,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: as in `rma_short`.
    unsafe {
        let (head, own) = endpoint(ep);
        let copy = || own.reach::<false>().copy_direct::<true, HOW>(buf as usize, len, addr, key, 0, 0);
        match attempt(|| (head.is_here() && copy() == Quick::Done).then_some(0)) {
            Some(rc) => rc,
            None if HOW == WORD_SILENT => inject_few(ep, buf, len, dest_addr, addr, key),
            None => inject_write::<false>(ep, buf, len, dest_addr, addr, key),
        }
    }
}

/// # Safety
/// As for `endpoint`.
#[inline(never)]
unsafe extern "C" fn inject_few(ep: *const EpHead, buf: *mut c_void, len: usize, dest_addr: u64, addr: u64, key: u64) -> isize {
    // SAFETY: handed on.
    unsafe { inject_short::<FEW_SILENT>(ep, buf, len, dest_addr, addr, key) }
}

/// # Safety
/// As for `endpoint`.
#[inline(never)]
unsafe extern "C" fn inject_write<const LOCKED: bool>(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    dest_addr: u64,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: the caller's promise, handed on.
    unsafe {
        let (head, own) = endpoint(ep);
        let flags = INJECT_FLAGS | head.tx_op_flags();
        let post = || match head.is_here() {
            true => answer(own.copy_direct::<true, LOCKED>(buf as usize, len, addr, key, 0, flags)),
            false => None,
        };
        match attempt(post) {
            Some(rc) => rc,
            None => general::inject_write(ep, buf, len, dest_addr, addr, key),
        }
    }
}

/// gdrfab_send() of one line: a leaf function.
///
/// # Safety
/// As for `endpoint`.
unsafe extern "C" fn send_line(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as in `rma_short`.
    let post = || unsafe {
        let (head, own) = endpoint(ep);
        on_host(desc) && head.is_here() && own.send_short::<true>(buf as usize, len, context as usize)
    };
    match attempt(|| post().then_some(0)) {
        Some(rc) => rc,
        // SAFETY: handed on.
        None => unsafe { send_far(ep, buf, len, desc, dest_addr, context) },
    }
}

/// gdrfab_send() of what goes beside the ring.
///
/// # Safety
/// As for `endpoint`.
#[inline(never)]
unsafe extern "C" fn send_far(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as in `rma_short`.
    let post = || unsafe {
        let (head, own) = endpoint(ep);
        on_host(desc) && head.is_here() && own.send_far(buf as usize, len, context as usize)
    };
    match attempt(|| post().then_some(0)) {
        Some(rc) => rc,
        // SAFETY: handed on.
        None => unsafe { send::<false>(ep, buf, len, desc, dest_addr, context) },
    }
}

/// gdrfab_send() of one piece that the ring takes.
///
/// # Safety
/// As for `endpoint`.
#[inline(never)]
unsafe extern "C" fn send<const LOCKED: bool>(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's promise, handed on.
    unsafe {
        let (head, own) = endpoint(ep);
        let c = Common { context: context as usize, flags: head.tx_op_flags(), desc: desc as u64, ..Common::default() };
        let ready = on_host(desc) && head.is_here();
        let post = || (ready && own.send_quick::<LOCKED>(&Iov { addr: buf as usize, len }, &c) == Quick::Done).then_some(0);
        match attempt(post) {
            Some(rc) => rc,
            None => general::send(ep, buf, len, desc, dest_addr, context),
        }
    }
}

/// gdrfab_inject() of one line, as `send_line`.
///
/// # Safety
/// As for `endpoint`.
unsafe extern "C" fn inject_line(ep: *const EpHead, buf: *mut c_void, len: usize, dest_addr: u64) -> isize {
    // SAFETY: as in `rma_short`.
    let post = || unsafe {
        let (head, own) = endpoint(ep);
        head.is_here() && own.send_short::<false>(buf as usize, len, 0)
    };
    match attempt(|| post().then_some(0)) {
        Some(rc) => rc,
        // SAFETY: handed on.
        None => unsafe { inject::<false>(ep, buf, len, dest_addr) },
    }
}

/// # Safety
/// As for `endpoint`.
#[inline(never)]
unsafe extern "C" fn inject<const LOCKED: bool>(ep: *const EpHead, buf: *mut c_void, len: usize, dest_addr: u64) -> isize {
    // SAFETY: the caller's promise, handed on.
    unsafe {
        let (head, own) = endpoint(ep);
        let c = Common { flags: INJECT_FLAGS | head.tx_op_flags(), ..Common::default() };
        let post = || (head.is_here() && own.send_quick::<LOCKED>(&Iov { addr: buf as usize, len }, &c) == Quick::Done).then_some(0);
        match attempt(post) {
            Some(rc) => rc,
            None => general::inject(ep, buf, len, dest_addr),
        }
    }
}

/// gdrfab_recv() of one piece, in a leaf function.
///
/// # Safety
/// As for `endpoint`.
unsafe extern "C" fn recv_short(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as in `rma_short`.
    let post = || unsafe {
        let (head, own) = endpoint(ep);
        on_host(desc) && head.is_here() && own.recv_short::<false>(buf as usize, len, context as usize)
    };
    match attempt(|| post().then_some(0)) {
        Some(rc) => rc,
        // SAFETY: handed on.
        None => unsafe { general::recv(ep, buf, len, desc, src_addr, context) },
    }
}

/// # Safety
/// As for `endpoint`.
unsafe extern "C" fn recv<const LOCKED: bool>(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's promise, handed on.
    unsafe {
        let (head, own) = endpoint(ep);
        let ready = on_host(desc) && head.is_here();
        match attempt(|| (ready && own.recv_short::<LOCKED>(buf as usize, len, context as usize)).then_some(0)) {
            Some(rc) => rc,
            None => general::recv(ep, buf, len, desc, src_addr, context),
        }
    }
}

/// A leaf function, because most looks are in vain.
///
/// # Safety
/// As for `endpoint`; the domain is one without locks, and `buf` holds `most` entries.
unsafe fn arrive<E: Entry>(ep: *const EpHead, queue: &Queue, buf: *mut c_void, most: usize) -> isize {
    // SAFETY: the caller's promise, handed on.
    unsafe {
        match endpoint(ep).1.reach::<false>().may_arrive(queue) {
            Some(true) => arrive_some::<E>(ep, queue, buf, most),
            Some(false) => 0,
            None => -1,
        }
    }
}

/// # Safety
/// As for `arrive`.
#[inline(never)]
unsafe fn arrive_some<E: Entry>(ep: *const EpHead, _queue: &Queue, buf: *mut c_void, most: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { endpoint(ep).1.reach::<false>().arrive(most, |i, c| E::put(buf, i, c)).map_or(-1, |n| n as isize) }
}

const fn arrivals<E: Entry>() -> Arrivals {
    Arrivals { sole: read_sole::<E>, turn: arrive::<E> }
}

/// As `arrive`, straight for the reader of a queue that has no other endpoint.
///
/// # Safety
/// As for `arrive`; `cq` is open.
unsafe extern "C" fn read_sole<E: Entry>(cq: *const CqHead, buf: *mut c_void, count: usize, ep: *const EpHead) -> isize {
    // SAFETY: the caller's promise, handed on.
    unsafe {
        let (head, own) = (&*cq, endpoint(ep).1);
        match hold(|_| None, || own.reach::<false>().may_arrive(&*head.queue)) {
            Some(true) => read_some::<E>(cq, buf, count, ep),
            Some(false) => {
                // Gives way to a sibling thread of the core, and leaves the line with its writer a little longer.
                std::hint::spin_loop();
                -errno::EAGAIN as isize
            }
            None => (head.rest.queue)(cq, buf, count),
        }
    }
}

/// # Safety
/// As for `read_sole`.
#[inline(never)]
unsafe extern "C" fn read_some<E: Entry>(cq: *const CqHead, buf: *mut c_void, count: usize, ep: *const EpHead) -> isize {
    // SAFETY: the caller's promise, handed on.
    unsafe {
        let (head, own) = (&*cq, endpoint(ep).1);
        let take = || own.reach::<false>().arrive(count, |i, c| E::put(buf, i, c)).map(|n| n as isize);
        match attempt(take) {
            Some(n) => n,
            None => (head.rest.queue)(cq, buf, count),
        }
    }
}
