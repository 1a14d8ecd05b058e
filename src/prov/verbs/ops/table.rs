// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tables of entry points for a verbs endpoint and its completion queues. The entry points handle operations that
//! are one work request, and completions that go straight to the caller's array. All other cases go the general way
//! (`prov/general.rs`).

use super::fast::{PreparedPost, READ, SEND, WRITE};
use crate::guard::{failed, hold};
use crate::prov::fast::{FastPath, fast_message, fast_rma};
use crate::prov::general;
use crate::prov::op::One;
use crate::prov::ops::{ContextEntry, CqEntry, CqFormat, CqHead, CqOps, DataEntry, EpHead, EpOps, MsgEntry, TaggedEntry};
use crate::prov::ops::{Message, Rma};
use crate::prov::queue::Found;
use crate::prov::verbs::cq::Cq;
use crate::prov::verbs::shared::Shared;
use crate::sync::serial::Threading;
use std::ffi::c_void;

static LOCKED: EpOps = of_lock::<true>();
static UNLOCKED: EpOps = of_lock::<false>();

const fn of_lock<const LOCKED: bool>() -> EpOps {
    EpOps {
        write: fast_rma::<RequestPath<WRITE, LOCKED>>,
        read: fast_rma::<RequestPath<READ, LOCKED>>,
        send: fast_message::<RequestPath<SEND, LOCKED>>,
        recv: fast_message::<RecvPath<LOCKED>>,
        ..general::GENERAL_ENTRIES
    }
}

pub fn choose(threading: Threading) -> &'static EpOps {
    match threading {
        Threading::Safe => &LOCKED,
        Threading::Promised(_) => &UNLOCKED,
    }
}

/// Posts the prepared operation as the last thing that the call does.
#[inline(always)]
fn post<const LOCKED: bool>(mut armed: PreparedPost<'_, LOCKED>) -> isize {
    match armed.post() {
        0 => 0,
        rc => post_failed(armed, rc),
    }
}

#[cold]
#[inline(never)]
fn post_failed<const LOCKED: bool>(mut armed: PreparedPost<'_, LOCKED>, rc: i32) -> isize {
    failed(&armed.refused(rc)) as isize
}

/// gdrfab_write(), gdrfab_read() and gdrfab_send() as one work request.
struct RequestPath<const KIND: u8, const LOCKED: bool>;

impl<const KIND: u8, const LOCKED: bool> FastPath<Rma> for RequestPath<KIND, LOCKED> {
    type Of = Shared;
    const NEXT: Rma = if KIND == WRITE { general::write } else { general::read };

    #[inline(always)]
    unsafe fn post(_: &EpHead, of: &Shared, one: One) -> Option<isize> {
        // SAFETY: `choose` gave the table for the threading that the domain was opened with.
        unsafe { of.prepare_fast::<KIND, LOCKED>(one) }.map(post)
    }
}

impl<const LOCKED: bool> FastPath<Message> for RequestPath<SEND, LOCKED> {
    type Of = Shared;
    const NEXT: Message = general::send;

    #[inline(always)]
    unsafe fn post(_: &EpHead, of: &Shared, one: One) -> Option<isize> {
        // SAFETY: `choose` gave the table for the threading that the domain was opened with.
        unsafe { of.prepare_fast::<SEND, LOCKED>(one) }.map(post)
    }
}

/// gdrfab_recv() as one work request.
struct RecvPath<const LOCKED: bool>;

impl<const LOCKED: bool> FastPath<Message> for RecvPath<LOCKED> {
    type Of = Shared;
    const NEXT: Message = general::recv;

    #[inline(always)]
    unsafe fn post(_: &EpHead, of: &Shared, one: One) -> Option<isize> {
        // SAFETY: `choose` gave the table for the threading that the domain was opened with.
        unsafe { of.state.reach::<LOCKED>() }.try_fast_receive(one.local, one.desc, one.context).map(|()| 0)
    }
}

/// The read function of a completion queue of the device.
pub fn cq_ops(threading: Threading, format: CqFormat) -> &'static CqOps {
    match (threading, format) {
        (Threading::Safe, CqFormat::Context) => &CqOps { read: read::<ContextEntry, true> },
        (Threading::Safe, CqFormat::Msg) => &CqOps { read: read::<MsgEntry, true> },
        (Threading::Safe, CqFormat::Data) => &CqOps { read: read::<DataEntry, true> },
        (Threading::Safe, CqFormat::Tagged) => &CqOps { read: read::<TaggedEntry, true> },
        (Threading::Promised(_), CqFormat::Context) => &CqOps { read: read::<ContextEntry, false> },
        (Threading::Promised(_), CqFormat::Msg) => &CqOps { read: read::<MsgEntry, false> },
        (Threading::Promised(_), CqFormat::Data) => &CqOps { read: read::<DataEntry, false> },
        (Threading::Promised(_), CqFormat::Tagged) => &CqOps { read: read::<TaggedEntry, false> },
    }
}

/// gdrfab_cq_read(): while the queue of entries is empty, completions go from the device into the caller's array.
///
/// # Safety
/// `cq` is open and has a table of `cq_ops`; `buf` is NULL or has room for `count` entries.
unsafe extern "C" fn read<E: CqEntry, const LOCKED: bool>(cq: *const CqHead, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller of the C API has the queue open and the array; `Source::ops` gave `of`, which lives as long as the queue, and
    // the table for its threading.
    unsafe {
        let (head, own) = (&*cq, &*(*cq).of.cast::<Cq>());
        if buf.is_null() {
            return (head.rest.queue)(cq, buf, count);
        }
        match hold(Err, || Ok(own.poll_fast::<LOCKED>(count, |i, c| E::put(buf, i, c)))) {
            Ok(Found::Some(n)) => n as isize,
            Ok(Found::Due(n)) => (head.rest.due)(cq, buf, n),
            Ok(Found::Nothing) => (head.rest.after)(cq, buf, count),
            Ok(Found::Elsewhere) => (head.rest.queue)(cq, buf, count),
            Err(rc) => rc as isize,
        }
    }
}
