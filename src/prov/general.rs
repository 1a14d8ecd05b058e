// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations of an endpoint whose provider has no table of its own, or that is not enabled: they call the provider's
//! `rma`, `send` and `recv`. Where a provider's own entry finds what it is not made for, it jumps here.

use super::bind::INJECT_FLAGS;
use super::contract::Endpoint;
use super::op::{Common, Dir, Iov, RmaIov};
use super::ops::{EpHead, EpOps, Owner};
use crate::error::Result;
use crate::guard::{null, posting};
use std::ffi::c_void;
use std::slice::from_ref;

/// What an endpoint is to the operations: its head, and the provider's endpoint behind it.
#[repr(C)]
pub struct Posting {
    head: EpHead,
    prov: Box<dyn Endpoint>,
}

impl Posting {
    pub fn new(prov: Box<dyn Endpoint>, owner: Owner, tx_op_flags: u64) -> Posting {
        Posting { head: EpHead::new(&GENERAL, owner, tx_op_flags), prov }
    }

    pub fn head(&self) -> &EpHead {
        &self.head
    }

    /// The provider's endpoint.
    #[inline]
    pub fn prov(&self) -> &dyn Endpoint {
        &*self.prov
    }

    /// Enables the endpoint; from now on its operations are those of the table that the provider chooses.
    pub fn enable(&self) -> Result<()> {
        self.prov.enable(self.head.tx_op_flags())?;
        let (ops, of) = self.prov.ops().unwrap_or((&GENERAL, std::ptr::null()));
        self.head.enable(ops, of);
        Ok(())
    }

    /// The endpoint that a head begins.
    ///
    /// # Safety
    /// The head is an open endpoint's: every one begins a `Posting`.
    #[inline(always)]
    unsafe fn of<'a>(head: *const EpHead) -> &'a Posting {
        // SAFETY: the head is an open endpoint's, and a `Posting`'s first field.
        unsafe { &*head.cast::<Posting>() }
    }

    fn check(&self, local: Iov) -> Result<()> {
        self.head.owner().check()?;
        if local.is_missing() { Err(null("buf")) } else { Ok(()) }
    }
}

pub static GENERAL: EpOps = GENERAL_ENTRIES;
/// The same, for tables that have a part of them.
pub const GENERAL_ENTRIES: EpOps = EpOps { write, read, inject_write, send, inject, recv, tsend, tinject, trecv, arrive: None };

/// Out of line: what `hold` runs in line goes through memory.
#[inline(never)]
fn rma(ep: &Posting, dir: Dir, local: Iov, addr: u64, key: u64, c: &Common) -> Result<()> {
    ep.check(local)?;
    let c = Common { flags: c.flags | ep.head.tx_op_flags(), ..*c };
    ep.prov.rma(dir, &[local], &[RmaIov { addr, len: local.len(), key }], &c, from_ref(&c.desc))
}

/// # Safety
/// As for [`EpOps`]; so for all that follow.
#[inline(never)]
pub unsafe extern "C" fn write(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let c = Common { context: context as usize, desc: desc as u64, peer: dest_addr, ..Common::default() };
    // SAFETY: as `EpOps` has it: the C caller's handle is open, and the buffer is there for this operation.
    let (ep, local) = unsafe { (Posting::of(ep), Iov::new(buf as usize, len)) };
    posting(|| rma(ep, Dir::Write, local, addr, key, &c))
}

/// # Safety
/// As for [`EpOps`].
#[inline(never)]
pub unsafe extern "C" fn read(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let c = Common { context: context as usize, desc: desc as u64, peer: src_addr, ..Common::default() };
    // SAFETY: as `EpOps` has it: the C caller's handle is open, and the buffer is there for this operation.
    let (ep, local) = unsafe { (Posting::of(ep), Iov::new(buf as usize, len)) };
    posting(|| rma(ep, Dir::Read, local, addr, key, &c))
}

/// # Safety
/// As for [`EpOps`].
#[inline(never)]
pub unsafe extern "C" fn inject_write(ep: *const EpHead, buf: *mut c_void, len: usize, dest_addr: u64, addr: u64, key: u64) -> isize {
    let c = Common { flags: INJECT_FLAGS, peer: dest_addr, ..Common::default() };
    // SAFETY: as `EpOps` has it: the C caller's handle is open, and the buffer is there for this operation.
    let (ep, local) = unsafe { (Posting::of(ep), Iov::new(buf as usize, len)) };
    posting(|| rma(ep, Dir::Write, local, addr, key, &c))
}

#[inline(never)]
fn message(ep: &Posting, local: Iov, c: &Common) -> Result<()> {
    ep.check(local)?;
    let c = Common { flags: c.flags | ep.head.tx_op_flags(), ..*c };
    ep.prov.send(&[local], &c, from_ref(&c.desc))
}

/// # Safety
/// As for [`EpOps`].
#[inline(never)]
pub unsafe extern "C" fn send(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    context: *mut c_void,
) -> isize {
    let c = Common { context: context as usize, desc: desc as u64, peer: dest_addr, ..Common::default() };
    // SAFETY: as `EpOps` has it: the C caller's handle is open, and the buffer is there for this operation.
    let (ep, local) = unsafe { (Posting::of(ep), Iov::new(buf as usize, len)) };
    posting(|| message(ep, local, &c))
}

/// # Safety
/// As for [`EpOps`].
#[inline(never)]
pub unsafe extern "C" fn inject(ep: *const EpHead, buf: *mut c_void, len: usize, dest_addr: u64) -> isize {
    let c = Common { flags: INJECT_FLAGS, peer: dest_addr, ..Common::default() };
    // SAFETY: as `EpOps` has it: the C caller's handle is open, and the buffer is there for this operation.
    let (ep, local) = unsafe { (Posting::of(ep), Iov::new(buf as usize, len)) };
    posting(|| message(ep, local, &c))
}

/// # Safety
/// As for [`EpOps`].
#[inline(never)]
pub unsafe extern "C" fn recv(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: u64,
    context: *mut c_void,
) -> isize {
    let c = Common { context: context as usize, desc: desc as u64, peer: src_addr, ..Common::default() };
    // SAFETY: as `EpOps` has it: the C caller's handle is open, and the buffer is there for this operation.
    let (ep, local) = unsafe { (Posting::of(ep), Iov::new(buf as usize, len)) };
    posting(|| ep.check(local).and_then(|()| ep.prov.recv(&[local], &c, from_ref(&c.desc))))
}

#[inline(never)]
fn tagged(ep: &Posting, local: Iov, c: &Common, tag: u64) -> Result<()> {
    ep.check(local)?;
    let c = Common { flags: c.flags | ep.head.tx_op_flags(), ..*c };
    ep.prov.tsend(&[local], &c, from_ref(&c.desc), tag)
}

/// # Safety
/// As for [`EpOps`].
#[inline(never)]
pub unsafe extern "C" fn tsend(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let c = Common { context: context as usize, desc: desc as u64, peer: dest_addr, ..Common::default() };
    // SAFETY: as `EpOps` has it: the C caller's handle is open, and the buffer is there for this operation.
    let (ep, local) = unsafe { (Posting::of(ep), Iov::new(buf as usize, len)) };
    posting(|| tagged(ep, local, &c, tag))
}

/// # Safety
/// As for [`EpOps`].
#[inline(never)]
pub unsafe extern "C" fn tinject(ep: *const EpHead, buf: *mut c_void, len: usize, dest_addr: u64, tag: u64) -> isize {
    let c = Common { flags: INJECT_FLAGS, peer: dest_addr, ..Common::default() };
    // SAFETY: as `EpOps` has it: the C caller's handle is open, and the buffer is there for this operation.
    let (ep, local) = unsafe { (Posting::of(ep), Iov::new(buf as usize, len)) };
    posting(|| tagged(ep, local, &c, tag))
}

/// # Safety
/// As for [`EpOps`].
#[inline(never)]
pub unsafe extern "C" fn trecv(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let c = Common { context: context as usize, desc: desc as u64, peer: src_addr, ..Common::default() };
    // SAFETY: as `EpOps` has it: the C caller's handle is open, and the buffer is there for this operation.
    let (ep, local) = unsafe { (Posting::of(ep), Iov::new(buf as usize, len)) };
    posting(|| ep.check(local).and_then(|()| ep.prov.trecv(&[local], &c, from_ref(&c.desc), tag, ignore)))
}
