// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tables of entry points of a shm endpoint. Each entry is a fast path for operations of a certain kind, and passes
//! all other operations to the entry `NEXT`. The last entry of such a chain is the general one (`prov/general.rs`),
//! which calls `Endpoint::rma`, `send` or `recv`.

use super::fast::{COPY_8, COPY_SHORT, LOCKED, SEND_LINE, SEND_OUT_OF_LINE, UNLOCKED, is_generic};
use crate::error::errno;
use crate::guard::{attempt, hold};
use crate::prov::bind::INJECT_FLAGS;
use crate::prov::fast::{Fast, FastPath, fast_inject, fast_inject_write, fast_message, fast_rma};
use crate::prov::general;
use crate::prov::op::{Common, Iov, One};
use crate::prov::ops::{Arrivals, ContextEntry, CqEntry, CqHead, DataEntry, EpHead, EpOps, MsgEntry, TaggedEntry};
use crate::prov::ops::{Inject, InjectWrite, Message, Rma};
use crate::prov::queue::Queue;
use crate::prov::shm::domain::Domain;
use crate::prov::shm::state::State;
use crate::sync::serial::{Reached, Serial, Threading};
use std::ffi::c_void;
use std::sync::Arc;

/// Entries for endpoints of a domain with locks.
static LOCKED_OPS: EpOps = table::<LOCKED>();
/// Entries for endpoints of a domain without locks.
static UNLOCKED_OPS: EpOps = table::<UNLOCKED>();
/// Entries for endpoints of a domain without locks on which each operation gives one completion entry and has no other
/// effect.
///
/// The entry points for one word, for a few bytes and for one line are leaf functions. A few bytes have an entry point
/// of their own, because the longer copy would make the entry point for a word save registers. For the same reason,
/// messages out of line and messages of one line have separate entry points.
static FAST_OPS: EpOps = EpOps {
    write: fast_rma::<RmaPath<true, COPY_8>>,
    read: fast_rma::<RmaPath<false, COPY_8>>,
    inject_write: fast_inject_write::<InjectCopy<COPY_8>>,
    send: fast_message::<SendPath<SEND_LINE>>,
    inject: fast_inject::<InjectSend<SEND_LINE>>,
    ..table::<UNLOCKED>()
};

const fn table<const VARIANT: u8>() -> EpOps {
    let arrive = if VARIANT == LOCKED {
        None
    } else {
        Some([arrivals::<ContextEntry>(), arrivals::<MsgEntry>(), arrivals::<DataEntry>(), arrivals::<TaggedEntry>()])
    };
    EpOps {
        write: fast_rma::<RmaPath<true, VARIANT>>,
        read: fast_rma::<RmaPath<false, VARIANT>>,
        inject_write: fast_inject_write::<InjectCopy<VARIANT>>,
        send: fast_message::<SendPath<VARIANT>>,
        inject: fast_inject::<InjectSend<VARIANT>>,
        recv: fast_message::<RecvPath<VARIANT>>,
        arrive,
        ..general::GENERAL_ENTRIES
    }
}

/// Chooses the table of an endpoint. `fast`: the endpoint's options, flags and bindings permit the fastest table
/// (`State::fast`).
pub fn choose(threading: Threading, fast: bool) -> &'static EpOps {
    match (threading, fast) {
        (Threading::Safe, _) => &LOCKED_OPS,
        (Threading::Promised(_), false) => &UNLOCKED_OPS,
        (Threading::Promised(_), true) => &FAST_OPS,
    }
}

pub struct Endpoint {
    pub domain: Arc<Domain>,
    pub state: Serial<State>,
}

impl Endpoint {
    /// # Safety
    /// `LOCKED`, or the domain is one without locks.
    #[inline(always)]
    unsafe fn reach<const LOCKED: bool>(&self) -> Reached<'_, State, LOCKED> {
        // SAFETY: without `LOCKED`, the caller promises that the domain is one without locks.
        unsafe { self.state.reach() }
    }

    /// Posts RMA by a generic variant. Out of line, because code that is inlined into `guard::hold`, which catches panics,
    /// keeps its values in memory.
    ///
    /// # Safety
    /// As for `State::rma_fast`; `VARIANT` is generic and fits the domain's threading.
    #[inline(never)]
    unsafe fn rma_any<const WRITE: bool, const VARIANT: u8>(&self, one: &One, flags: u64) -> Fast {
        let &One { local, addr, key, context, .. } = one;
        // SAFETY: the caller promises that `VARIANT` fits the domain's threading; a generic variant has no other precondition.
        unsafe {
            match VARIANT {
                LOCKED => self.reach::<true>().rma_fast::<WRITE, VARIANT, false>(None, local, addr, key, context, flags),
                _ => self.reach::<false>().rma_fast::<WRITE, VARIANT, false>(None, local, addr, key, context, flags),
            }
        }
    }

    /// As `rma_any`, for messages.
    ///
    /// # Safety
    /// As for `State::send_fast`; `VARIANT` is generic and fits the domain's threading.
    #[inline(never)]
    unsafe fn send_any<const VARIANT: u8>(&self, one: Iov, c: &Common) -> Fast {
        // SAFETY: the caller promises that `VARIANT` fits the domain's threading; a generic variant has no other precondition.
        unsafe {
            match VARIANT {
                LOCKED => self.reach::<true>().send_fast::<VARIANT, false>(&self.domain, None, &one, c),
                _ => self.reach::<false>().send_fast::<VARIANT, false>(&self.domain, None, &one, c),
            }
        }
    }
}

/// The completion queue of an endpoint's sends and RMA.
///
/// # Safety
/// The endpoint is open and has a table of this file.
#[inline(always)]
unsafe fn tx(head: &EpHead) -> Option<&Queue> {
    // SAFETY: `Endpoint::dispatch` set the pointer to the queue, and the queue lives as long as the head.
    unsafe { head.tx().as_ref() }
}

/// gdrfab_write() and gdrfab_read() of one piece of host memory.
struct RmaPath<const WRITE: bool, const VARIANT: u8>;

impl<const WRITE: bool, const VARIANT: u8> FastPath<Rma> for RmaPath<WRITE, VARIANT> {
    type Of = Endpoint;
    const NEXT: Rma = match VARIANT {
        COPY_8 => fast_rma::<RmaPath<WRITE, COPY_SHORT>>,
        COPY_SHORT => fast_rma::<RmaPath<WRITE, UNLOCKED>>,
        _ if WRITE => general::write,
        _ => general::read,
    };

    #[inline(always)]
    unsafe fn post(head: &EpHead, of: &Endpoint, one: One) -> Option<isize> {
        if !one.is_on_host() {
            return None;
        }
        let One { local, addr, key, context, .. } = one;
        // SAFETY: `choose` picks the table by the domain's threading, and the fast table only for endpoints whose
        // operations want one completion entry and have no other effect.
        let fast = unsafe {
            match const { is_generic(VARIANT) } {
                true => of.rma_any::<WRITE, VARIANT>(&one, head.tx_op_flags()),
                false => of.reach::<false>().rma_fast::<WRITE, VARIANT, false>(tx(head), local, addr, key, context, 0),
            }
        };
        fast.result()
    }
}

/// gdrfab_inject_write().
struct InjectCopy<const VARIANT: u8>;

impl<const VARIANT: u8> FastPath<InjectWrite> for InjectCopy<VARIANT> {
    type Of = Endpoint;
    const NEXT: InjectWrite = match VARIANT {
        COPY_8 => fast_inject_write::<InjectCopy<COPY_SHORT>>,
        COPY_SHORT => fast_inject_write::<InjectCopy<UNLOCKED>>,
        _ => general::inject_write,
    };

    #[inline(always)]
    unsafe fn post(head: &EpHead, of: &Endpoint, one: One) -> Option<isize> {
        let One { local, addr, key, .. } = one;
        // SAFETY: `choose` picks the table by the domain's threading, and the fast table only for endpoints whose
        // operations want one completion entry and have no other effect.
        let fast = unsafe {
            match const { is_generic(VARIANT) } {
                true => of.rma_any::<true, VARIANT>(&one, INJECT_FLAGS | head.tx_op_flags()),
                false => of.reach::<false>().rma_fast::<true, VARIANT, true>(tx(head), local, addr, key, 0, 0),
            }
        };
        fast.result()
    }
}

/// gdrfab_send() of one piece of host memory.
struct SendPath<const VARIANT: u8>;

impl<const VARIANT: u8> FastPath<Message> for SendPath<VARIANT> {
    type Of = Endpoint;
    const NEXT: Message = match VARIANT {
        SEND_LINE => fast_message::<SendPath<SEND_OUT_OF_LINE>>,
        SEND_OUT_OF_LINE => fast_message::<SendPath<UNLOCKED>>,
        _ => general::send,
    };

    #[inline(always)]
    unsafe fn post(head: &EpHead, of: &Endpoint, one: One) -> Option<isize> {
        if !one.is_on_host() {
            return None;
        }
        let c = Common { context: one.context, ..Common::default() };
        // SAFETY: `choose` picks the table by the domain's threading, and the fast table only for endpoints whose
        // operations want one completion entry and have no other effect.
        let fast = unsafe {
            match const { is_generic(VARIANT) } {
                true => of.send_any::<VARIANT>(one.local, &Common { flags: head.tx_op_flags(), desc: one.desc, ..c }),
                false => of.reach::<false>().send_fast::<VARIANT, false>(&of.domain, tx(head), &one.local, &c),
            }
        };
        fast.result()
    }
}

/// gdrfab_inject().
struct InjectSend<const VARIANT: u8>;

impl<const VARIANT: u8> FastPath<Inject> for InjectSend<VARIANT> {
    type Of = Endpoint;
    const NEXT: Inject = match VARIANT {
        SEND_LINE => fast_inject::<InjectSend<UNLOCKED>>,
        _ => general::inject,
    };

    #[inline(always)]
    unsafe fn post(head: &EpHead, of: &Endpoint, one: One) -> Option<isize> {
        // SAFETY: `choose` picks the table by the domain's threading, and the fast table only for endpoints whose
        // operations want one completion entry and have no other effect.
        let fast = unsafe {
            match const { is_generic(VARIANT) } {
                true => of.send_any::<VARIANT>(one.local, &Common { flags: INJECT_FLAGS | head.tx_op_flags(), ..Common::default() }),
                false => of.reach::<false>().send_fast::<VARIANT, true>(&of.domain, tx(head), &one.local, &Common::default()),
            }
        };
        fast.result()
    }
}

/// gdrfab_recv() of one piece of host memory.
struct RecvPath<const VARIANT: u8>;

impl<const VARIANT: u8> FastPath<Message> for RecvPath<VARIANT> {
    type Of = Endpoint;
    const NEXT: Message = general::recv;

    #[inline(always)]
    unsafe fn post(_: &EpHead, of: &Endpoint, one: One) -> Option<isize> {
        // SAFETY: `choose` picks the table by the domain's threading.
        let posted = unsafe {
            one.is_on_host()
                && match VARIANT {
                    LOCKED => of.reach::<true>().recv_fast(one.local, one.context),
                    _ => of.reach::<false>().recv_fast(one.local, one.context),
                }
        };
        posted.then_some(0)
    }
}

/// The endpoint of a head.
///
/// # Safety
/// `ep` is open and has a table of this file.
#[inline(always)]
unsafe fn endpoint<'a>(ep: *const EpHead) -> &'a Endpoint {
    // SAFETY: `Endpoint::dispatch` set the pointer to the endpoint, and the endpoint lives as long as the head.
    unsafe { &*(*ep).of().cast::<Endpoint>() }
}

/// Looks for messages for the reader of `queue`, and writes up to `most` entries into `buf`; returns their count, or -1
/// if a full turn of progress is needed. A leaf function, because most looks find nothing.
///
/// # Safety
/// `ep` is open and has a table of this file; the domain is one without locks, and `buf` holds `most` entries.
unsafe fn arrive<E: CqEntry>(ep: *const EpHead, queue: &Queue, buf: *mut c_void, most: usize) -> isize {
    // SAFETY: the caller promises that the endpoint is open and has a table of this file without locks, and that `buf` holds `most`
    // entries.
    unsafe {
        // A statement of its own ends this access to the endpoint before the next one begins.
        let arrival = endpoint(ep).reach::<false>().may_arrive(queue);
        match arrival {
            Some(true) => arrive_some::<E>(ep, queue, buf, most),
            Some(false) => 0,
            None => -1,
        }
    }
}

/// The part of `arrive` that receives messages.
///
/// # Safety
/// As for `arrive`.
#[inline(never)]
unsafe fn arrive_some<E: CqEntry>(ep: *const EpHead, _queue: &Queue, buf: *mut c_void, most: usize) -> isize {
    // SAFETY: the caller promises that the endpoint is open and without locks, and that `buf` holds `most` entries.
    unsafe { endpoint(ep).reach::<false>().arrive(most, |i, c| E::put(buf, i, c)).map_or(-1, |n| n as isize) }
}

const fn arrivals<E: CqEntry>() -> Arrivals {
    Arrivals { sole: read_sole::<E>, turn: arrive::<E> }
}

/// As `arrive`, as the read call of a queue that belongs to this endpoint alone.
///
/// # Safety
/// As for `arrive`; `cq` is open.
unsafe extern "C" fn read_sole<E: CqEntry>(cq: *const CqHead, buf: *mut c_void, count: usize, ep: *const EpHead) -> isize {
    // SAFETY: the caller promises that queue and endpoint are open and without locks, and that `buf` holds `count` entries.
    unsafe {
        let (head, own) = (&*cq, endpoint(ep));
        match hold(|_| None, || own.reach::<false>().may_arrive(&*head.queue)) {
            Some(true) => read_some::<E>(cq, buf, count, ep),
            Some(false) => {
                // The pause lets a sibling thread of the core run, and leaves the ring's cache line with the writing
                // core for longer.
                std::hint::spin_loop();
                -errno::EAGAIN as isize
            }
            None => (head.rest.queue)(cq, buf, count),
        }
    }
}

/// The part of `read_sole` that receives messages.
///
/// # Safety
/// As for `read_sole`.
#[inline(never)]
unsafe extern "C" fn read_some<E: CqEntry>(cq: *const CqHead, buf: *mut c_void, count: usize, ep: *const EpHead) -> isize {
    // SAFETY: the caller promises that queue and endpoint are open and without locks, and that `buf` holds `count` entries.
    unsafe {
        let (head, own) = (&*cq, endpoint(ep));
        let take = || own.reach::<false>().arrive(count, |i, c| E::put(buf, i, c)).map(|n| n as isize);
        match attempt(take) {
            Some(n) => n,
            None => (head.rest.queue)(cq, buf, count),
        }
    }
}
