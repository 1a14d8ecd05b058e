// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tcp endpoint's table of operations. RMA with one short piece of host memory has entries of its own. Operations
//! that these entries decline take the general path (`prov::general`), and so do messages.

use crate::prov::bind::INJECT_FLAGS;
use crate::prov::fast::{FastPath, fast_inject_write, fast_rma};
use crate::prov::general;
use crate::prov::op::One;
use crate::prov::ops::{EpHead, EpOps, InjectWrite, Rma};
use crate::prov::tcp::locked::Endpoint;
use crate::sync::serial::Threading;

static LOCKED: EpOps = of_lock::<true>();
static UNLOCKED: EpOps = of_lock::<false>();

const fn of_lock<const LOCKED: bool>() -> EpOps {
    EpOps {
        write: fast_rma::<RmaPath<true, LOCKED>>,
        read: fast_rma::<RmaPath<false, LOCKED>>,
        inject_write: fast_inject_write::<InjectCopy<LOCKED>>,
        ..general::GENERAL_ENTRIES
    }
}

/// The table of endpoints in a domain with this threading.
pub fn choose(threading: Threading) -> &'static EpOps {
    match threading {
        Threading::Safe => &LOCKED,
        Threading::Promised(_) => &UNLOCKED,
    }
}

/// gdrfab_write() and gdrfab_read() with one piece of host memory.
struct RmaPath<const WRITE: bool, const LOCKED: bool>;

impl<const WRITE: bool, const LOCKED: bool> FastPath<Rma> for RmaPath<WRITE, LOCKED> {
    type Of = Endpoint;
    const NEXT: Rma = if WRITE { general::write } else { general::read };

    #[inline(always)]
    unsafe fn post(head: &EpHead, of: &Endpoint, one: One) -> Option<isize> {
        if !one.is_on_host() {
            return None;
        }
        let One { local, addr, key, context, .. } = one;
        // SAFETY: `choose` selects the table by the domain's threading, so `LOCKED` matches it.
        unsafe { of.rma_fast::<WRITE, LOCKED>(local, addr, key, context, head.tx_op_flags()) }.result()
    }
}

/// gdrfab_inject_write().
struct InjectCopy<const LOCKED: bool>;

impl<const LOCKED: bool> FastPath<InjectWrite> for InjectCopy<LOCKED> {
    type Of = Endpoint;
    const NEXT: InjectWrite = general::inject_write;

    #[inline(always)]
    unsafe fn post(head: &EpHead, of: &Endpoint, one: One) -> Option<isize> {
        let One { local, addr, key, .. } = one;
        // SAFETY: `choose` selects the table by the domain's threading, so `LOCKED` matches it.
        unsafe { of.rma_fast::<true, LOCKED>(local, addr, key, 0, INJECT_FLAGS | head.tx_op_flags()) }.result()
    }
}
