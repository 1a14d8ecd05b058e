// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of operations of a tcp endpoint: RMA of one short piece of host memory has entries of its own. What they do not
//! take, and messages, go the general way (`prov/general.rs`).

use super::endpoint::Endpoint;
use crate::error::errno;
use crate::guard::attempt;
use crate::prov::bind::{INJECT_FLAGS, Quick};
use crate::prov::general;
use crate::prov::ops::{EpHead, EpOps, on_host};
use crate::sync::serial::Threading;
use std::ffi::c_void;

static LOCKED: EpOps = of_lock::<true>();
static UNLOCKED: EpOps = of_lock::<false>();

const fn of_lock<const LOCKED: bool>() -> EpOps {
    EpOps { write: rma::<true, LOCKED>, read: rma::<false, LOCKED>, inject_write: inject_write::<LOCKED>, ..general::GENERAL_ENTRIES }
}

pub fn choose(threading: Threading) -> &'static EpOps {
    match threading {
        Threading::Safe => &LOCKED,
        Threading::Promised => &UNLOCKED,
    }
}

fn answer(quick: Quick) -> Option<isize> {
    match quick {
        Quick::Done => Some(0),
        Quick::Again => Some(-errno::EAGAIN as isize),
        Quick::NotOrdinary => None,
    }
}

/// # Safety
/// `ep` is open, and has a table of this file; so for all that follow, which are entries of [`EpOps`].
#[inline(always)]
unsafe fn endpoint<'a>(ep: *const EpHead) -> (&'a EpHead, &'a Endpoint) {
    // SAFETY: `Endpoint::ops` gave both, and `of` lives as long as the head.
    unsafe { (&*ep, &*(*ep).of().cast::<Endpoint>()) }
}

/// # Safety
/// As for `endpoint`.
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
            true => answer(own.rma_fast::<WRITE, LOCKED>(buf as usize, len, addr, key, context as usize, flags)),
            false => None,
        };
        match attempt(post) {
            Some(rc) => rc,
            None if WRITE => general::write(ep, buf, len, desc, dest_addr, addr, key, context),
            None => general::read(ep, buf, len, desc, dest_addr, addr, key, context),
        }
    }
}

/// # Safety
/// As for `endpoint`.
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
            true => answer(own.rma_fast::<true, LOCKED>(buf as usize, len, addr, key, 0, flags)),
            false => None,
        };
        match attempt(post) {
            Some(rc) => rc,
            None => general::inject_write(ep, buf, len, dest_addr, addr, key),
        }
    }
}
