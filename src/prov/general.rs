// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The general table of operations: it serves an endpoint whose provider has no table of its own or that is not enabled, and
//! every call that a provider's entry does not handle. Its entries check the arguments and call the provider's `rma`, `send`
//! and `recv`.
//!
//! `EndpointCore` is the part of an endpoint that the entries work on.

use super::bind::{Binding, INJECT_FLAGS};
use super::contract::Endpoint;
use super::described::Described;
use super::flags::REMOTE_CQ_DATA;
use super::idle_set::IdleSet;
use super::list::List;
use super::lists::Lists;
use super::op::{Common, Dir, Iov, RmaIov};
use super::ops::{Dispatch, EpHead, EpOps, OpFlags, Owner};
use crate::error::Result;
use crate::guard::{null, posting};
use crate::sys::time;
use std::ffi::c_void;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The beginning of every endpoint object: its head, which the entries get as a handle, and the provider's endpoint behind
/// it.
#[repr(C)]
pub struct EndpointCore {
    head: EpHead,
    prov: Box<dyn Endpoint>,
    lists: Lists,
    /// The open regions against which local descriptors are checked, with GDRFAB_DEBUG=desc only.
    described: Option<Arc<Described>>,
    /// The provider's table, while the general table stands in for it because lists are pending: the provider's entries
    /// for arrivals would not advance the lists. NULL at other times.
    replaced: AtomicPtr<EpOps>,
}

impl EndpointCore {
    /// `iov_limit` is the most pieces that an operation may have on either side.
    pub fn new(prov: Box<dyn Endpoint>, owner: Owner, op_flags: OpFlags, iov_limit: usize) -> Result<EndpointCore> {
        let lists = Lists::new(iov_limit);
        prov.bind(lists.ends())?;
        Ok(EndpointCore { head: EpHead::new(&GENERAL, owner, op_flags), prov, lists, described: None, replaced: AtomicPtr::default() })
    }

    /// Has the local descriptors of every operation checked against these regions.
    pub fn checks(self, described: Option<Arc<Described>>) -> EndpointCore {
        EndpointCore { described, ..self }
    }

    /// The regions against which local descriptors are checked, with GDRFAB_DEBUG=desc only.
    #[inline(always)]
    pub fn described(&self) -> Option<&Described> {
        self.described.as_deref()
    }

    pub fn head(&self) -> &EpHead {
        &self.head
    }

    /// The provider's endpoint.
    #[inline]
    pub fn prov(&self) -> &dyn Endpoint {
        &*self.prov
    }

    /// Enables the endpoint, and takes the table of operations that the provider chooses.
    pub fn enable(&self) -> Result<()> {
        self.prov.enable(self.head.op_flags())?;
        self.take_table();
        Ok(())
    }

    fn take_table(&self) {
        let general = Dispatch { ops: &GENERAL, of: std::ptr::null(), tx: std::ptr::null() };
        // A provider's own entries would not check descriptors that they do not need.
        let own = if self.described.is_none() { self.prov.dispatch() } else { None };
        self.head.enable(own.unwrap_or(general));
    }

    pub fn bind(&self, what: Binding) -> Result<()> {
        self.prov.bind(what.clone())?;
        self.lists.bind(what);
        // The endpoint is enabled, and with the new counter the provider may choose another table.
        if !self.head.of().is_null() {
            self.replaced.store(std::ptr::null_mut(), Ordering::Relaxed);
            self.take_table();
            self.choose_table();
        }
        Ok(())
    }

    /// Posts a list of blocks.
    pub fn list(&self, dir: Dir, list: Arc<List>, c: &Common) -> Result<()> {
        let posted = self.lists.post(self.prov(), dir, list, c);
        self.choose_table();
        if !self.lists.is_idle() {
            self.prov.leave_idle_sets();
        }
        posted
    }

    /// Chooses between the provider's table and the general one: if the provider's table lets arrivals bypass the queue, the
    /// general table takes its place while lists are pending.
    fn choose_table(&self) {
        match self.lists.is_idle() {
            false if self.head.ops().arrive.is_some() => {
                self.replaced.store((&raw const *self.head.ops()).cast_mut(), Ordering::Relaxed);
                self.head.enable(Dispatch { ops: &GENERAL, of: self.head.of(), tx: self.head.tx() });
            }
            true => {
                // SAFETY: `replaced` holds a provider's table, which lives as long as the library.
                if let Some(ops) = unsafe { self.replaced.swap(std::ptr::null_mut(), Ordering::Relaxed).as_ref() } {
                    self.head.enable(Dispatch { ops, of: self.head.of(), tx: self.head.tx() });
                }
            }
            false => {}
        }
    }

    /// One turn of progress.
    #[inline]
    pub fn progress(&self, force: bool) {
        self.prov.progress(force);
        if !self.lists.is_idle() {
            self.go_on();
        }
    }

    /// The part of a turn of progress that lists have.
    #[cold]
    fn go_on(&self) {
        self.lists.progress(self.prov());
        self.choose_table();
    }

    /// As the provider's `join_idle_set`; an endpoint with pending lists does not become idle.
    pub fn join_idle_set(&self, at: &Arc<IdleSet>, number: u64) -> Option<u64> {
        if self.lists.is_idle() { self.prov.join_idle_set(at, number) } else { None }
    }

    /// As the provider's `may_sleep`, but also false if parts of lists have ended and wait to be taken.
    pub fn may_sleep(&self) -> bool {
        self.prov.may_sleep() && !self.lists.has_news()
    }

    pub fn is_stalled(&self) -> bool {
        self.prov.is_stalled() || (!self.lists.is_idle() && self.lists.next_look().1)
    }

    pub fn sleep_limit_ns(&self) -> u64 {
        let nap = self.prov.sleep_limit_ns();
        if self.lists.is_idle() {
            return nap;
        }
        nap.min(self.lists.next_look().0.saturating_sub(time::now_ns()).max(1_000_000))
    }

    pub fn cancel(&self, context: usize) -> Result<()> {
        match self.prov.cancel(context) {
            Err(e) if !self.lists.is_idle() => match self.lists.cancel(self.prov(), context) {
                Ok(false) => Err(e),
                Ok(true) => {
                    self.choose_table();
                    self.prov.leave_idle_sets();
                    Ok(())
                }
                Err(e) => Err(e),
            },
            done => done,
        }
    }

    pub fn close(&self) -> Result<()> {
        self.prov.close()?;
        self.lists.close();
        Ok(())
    }

    /// The endpoint of a handle.
    ///
    /// # Safety
    /// As for [`ops_of`].
    #[inline(always)]
    unsafe fn from_handle<'a>(ep: *const EpHead) -> Result<&'a EndpointCore> {
        if !is_handle(ep) {
            return Err(null("ep"));
        }
        // SAFETY: the caller promises an open endpoint, which begins with its `EndpointCore`, and that with its head.
        Ok(unsafe { &*ep.cast::<EndpointCore>() })
    }

    fn check(&self, local: Iov, desc: u64) -> Result<()> {
        self.head.owner().check()?;
        if local.is_missing() {
            return Err(null("buf"));
        }
        self.described().map_or(Ok(()), |described| described.check_one(local, desc))
    }
}

#[inline(always)]
fn is_handle(ep: *const EpHead) -> bool {
    !ep.is_null() && ep.is_aligned()
}

/// The table of the handle that a C caller gave. NULL and misaligned handles get the general table, whose entries
/// report the error. The exported function must not return the error itself: a function with a return beside the jump
/// would have to push its stack arguments again before the jump.
///
/// # Safety
/// `ep` is an open endpoint, NULL, or misaligned.
#[inline(always)]
pub unsafe fn ops_of(ep: *const EpHead) -> &'static EpOps {
    // SAFETY: the handle is neither NULL nor misaligned, so the caller promises an open endpoint, which begins with its head.
    if is_handle(ep) { unsafe { (*ep).ops() } } else { &GENERAL }
}

pub static GENERAL: EpOps = GENERAL_ENTRIES;
/// The entries of `GENERAL`, for tables that use some of them.
pub const GENERAL_ENTRIES: EpOps =
    EpOps { write, read, inject_write, send, inject, recv, tsend, tinject, tsenddata, tinjectdata, trecv, arrive: None };

/// Not inlined, because the compiler keeps the values of a closure that `hold` runs in memory instead of registers.
#[inline(never)]
fn rma(ep: &EndpointCore, dir: Dir, local: Iov, addr: u64, key: u64, c: &Common) -> Result<()> {
    ep.check(local, c.desc)?;
    let c = Common { flags: c.flags | ep.head.tx_op_flags(), ..*c };
    ep.prov.rma(dir, &[local], &[RmaIov { addr, len: local.len(), key }], &c, from_ref(&c.desc))
}

/// # Safety
/// As for [`EpOps`]. The same holds for all entries below.
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
    // SAFETY: the caller of an `EpOps` entry promises that the handle is open and that the buffer is there for the operation.
    posting(|| unsafe {
        let local = Iov::new(buf as usize, len);
        rma(EndpointCore::from_handle(ep)?, Dir::Write, local, addr, key, &c)
    })
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
    // SAFETY: the caller of an `EpOps` entry promises that the handle is open and that the buffer is there for the operation.
    posting(|| unsafe {
        let local = Iov::new(buf as usize, len);
        rma(EndpointCore::from_handle(ep)?, Dir::Read, local, addr, key, &c)
    })
}

/// # Safety
/// As for [`EpOps`].
#[inline(never)]
pub unsafe extern "C" fn inject_write(ep: *const EpHead, buf: *mut c_void, len: usize, dest_addr: u64, addr: u64, key: u64) -> isize {
    let c = Common { flags: INJECT_FLAGS, peer: dest_addr, ..Common::default() };
    // SAFETY: the caller of an `EpOps` entry promises that the handle is open and that the buffer is there for the operation.
    posting(|| unsafe {
        let local = Iov::new(buf as usize, len);
        rma(EndpointCore::from_handle(ep)?, Dir::Write, local, addr, key, &c)
    })
}

#[inline(never)]
fn message(ep: &EndpointCore, local: Iov, c: &Common) -> Result<()> {
    ep.check(local, c.desc)?;
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
    // SAFETY: the caller of an `EpOps` entry promises that the handle is open and that the buffer is there for the operation.
    posting(|| unsafe {
        let local = Iov::new(buf as usize, len);
        message(EndpointCore::from_handle(ep)?, local, &c)
    })
}

/// # Safety
/// As for [`EpOps`].
#[inline(never)]
pub unsafe extern "C" fn inject(ep: *const EpHead, buf: *mut c_void, len: usize, dest_addr: u64) -> isize {
    let c = Common { flags: INJECT_FLAGS, peer: dest_addr, ..Common::default() };
    // SAFETY: the caller of an `EpOps` entry promises that the handle is open and that the buffer is there for the operation.
    posting(|| unsafe {
        let local = Iov::new(buf as usize, len);
        message(EndpointCore::from_handle(ep)?, local, &c)
    })
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
    posting(|| {
        // SAFETY: the caller of an `EpOps` entry promises that the handle is open and that the buffer is there for the
        // operation.
        let (ep, local) = unsafe { (EndpointCore::from_handle(ep)?, Iov::new(buf as usize, len)) };
        ep.check(local, c.desc)?;
        let c = Common { flags: ep.head.op_flags().rx, ..c };
        ep.prov.recv(&[local], &c, from_ref(&c.desc))
    })
}

#[inline(never)]
fn tagged(ep: &EndpointCore, local: Iov, c: &Common, tag: u64) -> Result<()> {
    ep.check(local, c.desc)?;
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
    // SAFETY: the caller of an `EpOps` entry promises that the handle is open and that the buffer is there for the operation.
    posting(|| unsafe {
        let local = Iov::new(buf as usize, len);
        tagged(EndpointCore::from_handle(ep)?, local, &c, tag)
    })
}

/// # Safety
/// As for [`EpOps`].
#[inline(never)]
pub unsafe extern "C" fn tinject(ep: *const EpHead, buf: *mut c_void, len: usize, dest_addr: u64, tag: u64) -> isize {
    let c = Common { flags: INJECT_FLAGS, peer: dest_addr, ..Common::default() };
    // SAFETY: the caller of an `EpOps` entry promises that the handle is open and that the buffer is there for the operation.
    posting(|| unsafe {
        let local = Iov::new(buf as usize, len);
        tagged(EndpointCore::from_handle(ep)?, local, &c, tag)
    })
}

/// # Safety
/// As for [`EpOps`].
#[inline(never)]
pub unsafe extern "C" fn tsenddata(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest_addr: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let c = Common { context: context as usize, flags: REMOTE_CQ_DATA, data, desc: desc as u64, peer: dest_addr, ..Common::default() };
    // SAFETY: the caller of an `EpOps` entry promises that the handle is open and that the buffer is there for the operation.
    posting(|| unsafe {
        let local = Iov::new(buf as usize, len);
        tagged(EndpointCore::from_handle(ep)?, local, &c, tag)
    })
}

/// # Safety
/// As for [`EpOps`].
#[inline(never)]
pub unsafe extern "C" fn tinjectdata(ep: *const EpHead, buf: *mut c_void, len: usize, data: u64, dest_addr: u64, tag: u64) -> isize {
    let c = Common { flags: INJECT_FLAGS | REMOTE_CQ_DATA, data, peer: dest_addr, ..Common::default() };
    // SAFETY: the caller of an `EpOps` entry promises that the handle is open and that the buffer is there for the operation.
    posting(|| unsafe {
        let local = Iov::new(buf as usize, len);
        tagged(EndpointCore::from_handle(ep)?, local, &c, tag)
    })
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
    posting(|| {
        // SAFETY: the caller of an `EpOps` entry promises that the handle is open and that the buffer is there for the
        // operation.
        let (ep, local) = unsafe { (EndpointCore::from_handle(ep)?, Iov::new(buf as usize, len)) };
        ep.check(local, c.desc)?;
        let c = Common { flags: ep.head.op_flags().rx, ..c };
        ep.prov.trecv(&[local], &c, from_ref(&c.desc), tag, ignore)
    })
}
