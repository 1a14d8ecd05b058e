// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tables of operations of a verbs endpoint and of its completion queues: what the device gets in one work request, and
//! what it gives straight to the reader. The rest goes the general way (`prov/general.rs`).

use super::cq::Cq;
use super::quick::{Armed, READ, SEND, WRITE};
use super::state::Shared;
use crate::guard::{attempt, failed, hold};
use crate::prov::general;
use crate::prov::op::One;
use crate::prov::ops::{ContextEntry, CqFormat, CqHead, CqOps, DataEntry, Entry, EpHead, EpOps, MsgEntry, TaggedEntry};
use crate::prov::queue::Found;
use crate::sync::serial::Threading;
use std::ffi::c_void;

static LOCKED: EpOps = of_lock::<true>();
static UNLOCKED: EpOps = of_lock::<false>();

const fn of_lock<const LOCKED: bool>() -> EpOps {
    EpOps { write: rma::<WRITE, LOCKED>, read: rma::<READ, LOCKED>, send: send::<LOCKED>, recv: recv::<LOCKED>, ..general::GENERAL_ENTRIES }
}

pub fn choose(threading: Threading) -> &'static EpOps {
    match threading {
        Threading::Safe => &LOCKED,
        Threading::Promised => &UNLOCKED,
    }
}

/// # Safety
/// `ep` is open, and has a table of this file; so for all that follow, which are entries of [`EpOps`].
#[inline(always)]
unsafe fn endpoint<'a>(ep: *const EpHead) -> (&'a EpHead, &'a Shared) {
    // SAFETY: `Endpoint::ops` gave both, and `of` lives as long as the head.
    unsafe { (&*ep, &*(*ep).of().cast::<Shared>()) }
}

/// Posts; the call's end.
#[inline(always)]
fn fire<const LOCKED: bool>(mut armed: Armed<'_, LOCKED>) -> isize {
    match armed.post() {
        0 => 0,
        rc => misfired(armed, rc),
    }
}

#[cold]
#[inline(never)]
fn misfired<const LOCKED: bool>(mut armed: Armed<'_, LOCKED>, rc: i32) -> isize {
    failed(&armed.refused(rc)) as isize
}

/// # Safety
/// As for `endpoint`.
unsafe extern "C" fn rma<const KIND: u8, const LOCKED: bool>(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let one = One { buf: buf as usize, len, addr, key, desc: desc as u64, context: context as usize };
    // SAFETY: the caller's promise, handed on; the table is that of the domain's threading.
    unsafe {
        let (head, own) = endpoint(ep);
        match attempt(|| if head.is_here() { own.arm_quick::<KIND, LOCKED>(one).map(fire) } else { None }) {
            Some(rc) => rc,
            None if KIND == WRITE => general::write(ep, buf, len, desc, dest_addr, addr, key, context),
            None => general::read(ep, buf, len, desc, dest_addr, addr, key, context),
        }
    }
}

/// # Safety
/// As for `endpoint`.
unsafe extern "C" fn send<const LOCKED: bool>(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    context: *mut c_void,
) -> isize {
    let one = One { buf: buf as usize, len, addr: 0, key: 0, desc: desc as u64, context: context as usize };
    // SAFETY: as in `rma`.
    unsafe {
        let (head, own) = endpoint(ep);
        match attempt(|| if head.is_here() { own.arm_quick::<SEND, LOCKED>(one).map(fire) } else { None }) {
            Some(rc) => rc,
            None => general::send(ep, buf, len, desc, dest_addr, context),
        }
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
    // SAFETY: as in `rma`.
    unsafe {
        let (head, own) = endpoint(ep);
        let post = || match head.is_here() {
            true => own.state.reach::<LOCKED>().try_quick_receive(buf as usize, len, desc as u64, context as usize).map(|()| 0),
            false => None,
        };
        match attempt(post) {
            Some(rc) => rc,
            None => general::recv(ep, buf, len, desc, src_addr, context),
        }
    }
}

/// How a queue is read that the device fills.
pub fn of_cq(threading: Threading, format: CqFormat) -> &'static CqOps {
    match (threading, format) {
        (Threading::Safe, CqFormat::Context) => &CqOps { read: read::<ContextEntry, true> },
        (Threading::Safe, CqFormat::Msg) => &CqOps { read: read::<MsgEntry, true> },
        (Threading::Safe, CqFormat::Data) => &CqOps { read: read::<DataEntry, true> },
        (Threading::Safe, CqFormat::Tagged) => &CqOps { read: read::<TaggedEntry, true> },
        (Threading::Promised, CqFormat::Context) => &CqOps { read: read::<ContextEntry, false> },
        (Threading::Promised, CqFormat::Msg) => &CqOps { read: read::<MsgEntry, false> },
        (Threading::Promised, CqFormat::Data) => &CqOps { read: read::<DataEntry, false> },
        (Threading::Promised, CqFormat::Tagged) => &CqOps { read: read::<TaggedEntry, false> },
    }
}

/// gdrfab_cq_read(): from the device into the caller's array, while the queue is empty.
///
/// # Safety
/// `cq` is open, and has a table of `of_cq`; `buf` is NULL or holds `count` entries.
unsafe extern "C" fn read<E: Entry, const LOCKED: bool>(cq: *const CqHead, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller's promise; `Source::ops` gave `of`, which lives as long as the queue.
    unsafe {
        let (head, own) = (&*cq, &*(*cq).of.cast::<Cq>());
        if buf.is_null() {
            return (head.rest.queue)(cq, buf, count);
        }
        match hold(Err, || Ok(own.take_quick::<LOCKED>(count, |i, c| E::put(buf, i, c)))) {
            Ok(Found::Some(n)) => n as isize,
            Ok(Found::Due(n)) => (head.rest.due)(cq, buf, n),
            Ok(Found::Nothing) => (head.rest.after)(cq, buf, count),
            Ok(Found::Elsewhere) => (head.rest.queue)(cq, buf, count),
            Err(rc) => rc as isize,
        }
    }
}
