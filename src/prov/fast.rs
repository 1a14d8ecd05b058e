// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entries of the tables of operations (`ops.rs`) that try a provider's fast path first, and pass the call on to
//! another entry if the path declines. The entries are generic over the fast path, so that each provider writes only
//! the path.

use super::op::{Iov, One};
use super::ops::{EpHead, Inject, InjectTagged, InjectTaggedData, InjectWrite, Message, RecvTagged, Rma, Tagged, TaggedData};
use crate::error::errno;
use crate::guard::attempt;
use std::ffi::c_void;

/// The outcome of a fast path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fast {
    Done,
    /// The call returns `-EAGAIN`.
    Again,
    /// The path does not handle this operation, and has done nothing.
    Declined,
}

impl Fast {
    /// The result of the call, unless the path has declined.
    #[inline(always)]
    pub fn result(self) -> Option<isize> {
        match self {
            Fast::Done => Some(0),
            Fast::Again => Some(-errno::EAGAIN as isize),
            Fast::Declined => None,
        }
    }
}

/// A fast path for a table entry of type `F` (`Rma`, `Message` and so on), for operations of one piece on each side;
/// `NEXT` is the entry that gets the calls that the path declines. `fast_rma`, `fast_inject_write`, `fast_message` and
/// the others below are the entries. For a message, `One` holds the peer as its address and the tag as its key.
pub trait FastPath<F> {
    /// The provider's data behind `Dispatch::of`.
    type Of;
    const NEXT: F;

    /// Posts the operation and returns the call's result. `None`: nothing was done.
    ///
    /// # Safety
    /// As for [`EpOps`](super::ops::EpOps); also, the endpoint's table is this provider's, so that `of` is its data.
    unsafe fn post(head: &EpHead, of: &Self::Of, one: One) -> Option<isize>;
}

/// Runs a fast path, if this is the process that opened the endpoint and not a fork of it.
///
/// # Safety
/// As for `FastPath::post`.
#[inline(always)]
unsafe fn post_fast<F, P: FastPath<F>>(ep: *const EpHead, one: One) -> Option<isize> {
    // SAFETY: the caller promises an open endpoint with the provider's table; the data that came with the table lives as long
    // as the head.
    unsafe {
        let (head, of) = (&*ep, &*(*ep).of().cast::<P::Of>());
        attempt(|| if head.is_here() { P::post(head, of, one) } else { None })
    }
}

/// gdrfab_write() and gdrfab_read().
///
/// # Safety
/// As for `FastPath::post`. The same holds for all entries below.
#[inline(never)]
pub unsafe extern "C" fn fast_rma<P: FastPath<Rma>>(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller promises that the head is an open endpoint's, and that the buffer stays until the completion.
    unsafe {
        let one = One { local: Iov::new(buf as usize, len), addr, key, desc: desc as u64, context: context as usize, data: 0 };
        match post_fast::<Rma, P>(ep, one) {
            Some(rc) => rc,
            None => P::NEXT(ep, buf, len, desc, dest_addr, addr, key, context),
        }
    }
}

/// # Safety
/// As for `fast_rma`.
#[inline(never)]
pub unsafe extern "C" fn fast_inject_write<P: FastPath<InjectWrite>>(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    dest_addr: u64,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: the caller promises that the head is an open endpoint's, and that the buffer stays until the completion.
    unsafe {
        let one = One { local: Iov::new(buf as usize, len), addr, key, desc: 0, context: 0, data: 0 };
        match post_fast::<InjectWrite, P>(ep, one) {
            Some(rc) => rc,
            None => P::NEXT(ep, buf, len, dest_addr, addr, key),
        }
    }
}

/// gdrfab_send() or gdrfab_recv().
///
/// # Safety
/// As for `fast_rma`.
#[inline(never)]
pub unsafe extern "C" fn fast_message<P: FastPath<Message>>(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    peer_addr: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller promises that the head is an open endpoint's, and that the buffer stays until the completion.
    unsafe {
        let one =
            One { local: Iov::new(buf as usize, len), addr: peer_addr, key: 0, desc: desc as u64, context: context as usize, data: 0 };
        match post_fast::<Message, P>(ep, one) {
            Some(rc) => rc,
            None => P::NEXT(ep, buf, len, desc, peer_addr, context),
        }
    }
}

/// # Safety
/// As for `fast_rma`.
#[inline(never)]
pub unsafe extern "C" fn fast_inject<P: FastPath<Inject>>(ep: *const EpHead, buf: *mut c_void, len: usize, dest_addr: u64) -> isize {
    // SAFETY: the caller promises that the head is an open endpoint's, and that the buffer stays until the completion.
    unsafe {
        let one = One { local: Iov::new(buf as usize, len), addr: dest_addr, key: 0, desc: 0, context: 0, data: 0 };
        match post_fast::<Inject, P>(ep, one) {
            Some(rc) => rc,
            None => P::NEXT(ep, buf, len, dest_addr),
        }
    }
}

/// gdrfab_tsend().
///
/// # Safety
/// As for `fast_rma`.
#[inline(never)]
pub unsafe extern "C" fn fast_tagged<P: FastPath<Tagged>>(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller promises that the head is an open endpoint's, and that the buffer stays until the completion.
    unsafe {
        let one =
            One { local: Iov::new(buf as usize, len), addr: dest_addr, key: tag, desc: desc as u64, context: context as usize, data: 0 };
        match post_fast::<Tagged, P>(ep, one) {
            Some(rc) => rc,
            None => P::NEXT(ep, buf, len, desc, dest_addr, tag, context),
        }
    }
}

/// # Safety
/// As for `fast_rma`.
#[inline(never)]
pub unsafe extern "C" fn fast_inject_tagged<P: FastPath<InjectTagged>>(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    dest_addr: u64,
    tag: u64,
) -> isize {
    // SAFETY: the caller promises that the head is an open endpoint's, and that the buffer stays until the completion.
    unsafe {
        let one = One { local: Iov::new(buf as usize, len), addr: dest_addr, key: tag, desc: 0, context: 0, data: 0 };
        match post_fast::<InjectTagged, P>(ep, one) {
            Some(rc) => rc,
            None => P::NEXT(ep, buf, len, dest_addr, tag),
        }
    }
}

/// gdrfab_tsenddata().
///
/// # Safety
/// As for `fast_rma`.
#[inline(never)]
pub unsafe extern "C" fn fast_tagged_data<P: FastPath<TaggedData>>(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest_addr: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller promises that the head is an open endpoint's, and that the buffer stays until the completion.
    unsafe {
        let one = One { local: Iov::new(buf as usize, len), addr: dest_addr, key: tag, desc: desc as u64, context: context as usize, data };
        match post_fast::<TaggedData, P>(ep, one) {
            Some(rc) => rc,
            None => P::NEXT(ep, buf, len, desc, data, dest_addr, tag, context),
        }
    }
}

/// # Safety
/// As for `fast_rma`.
#[inline(never)]
pub unsafe extern "C" fn fast_inject_tagged_data<P: FastPath<InjectTaggedData>>(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    data: u64,
    dest_addr: u64,
    tag: u64,
) -> isize {
    // SAFETY: the caller promises that the head is an open endpoint's, and that the buffer stays until the completion.
    unsafe {
        let one = One { local: Iov::new(buf as usize, len), addr: dest_addr, key: tag, desc: 0, context: 0, data };
        match post_fast::<InjectTaggedData, P>(ep, one) {
            Some(rc) => rc,
            None => P::NEXT(ep, buf, len, data, dest_addr, tag),
        }
    }
}

/// The fast path of gdrfab_trecv(), which also gets the bits of the tag to ignore.
pub trait FastRecv {
    /// The provider's data behind `Dispatch::of`.
    type Of;
    const NEXT: RecvTagged;

    /// # Safety
    /// As for `FastPath::post`.
    unsafe fn post(of: &Self::Of, one: One, ignore: u64) -> Option<isize>;
}

/// # Safety
/// As for `fast_rma`.
#[inline(never)]
pub unsafe extern "C" fn fast_recv_tagged<P: FastRecv>(
    ep: *const EpHead,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller promises that the head is an open endpoint's, and that the buffer stays until the completion.
    unsafe {
        let one =
            One { local: Iov::new(buf as usize, len), addr: src_addr, key: tag, desc: desc as u64, context: context as usize, data: 0 };
        let (head, of) = (&*ep, &*(*ep).of().cast::<P::Of>());
        match attempt(|| if head.is_here() { P::post(of, one, ignore) } else { None }) {
            Some(rc) => rc,
            None => P::NEXT(ep, buf, len, desc, src_addr, tag, ignore, context),
        }
    }
}
