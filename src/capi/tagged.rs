// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tagged messages.

use super::boundary::{ExtensibleStruct, descs, ep_ops, iovecs, object, posting, read_sized};
use super::msg::check_recv_flags;
use super::objects::gdrfab_ep;
use super::rma::check_op_flags;
use super::types::*;
use crate::error::Result;
use crate::prov::flags::TRECV_FLAGS;
use crate::prov::op::Common;
use libc::{c_void, iovec, ssize_t};

// == Tagged messages ==

/// A tagged message or a receive of one with all its parameters (mirrors fi_msg_tagged).
#[repr(C)]
pub struct gdrfab_msg_tagged {
    /// sizeof(gdrfab_msg_tagged)
    pub struct_size: usize,
    /// Pieces of the buffer.
    pub msg_iov: *const iovec,
    /// One for each piece, or NULL.
    pub desc: *mut *mut c_void,
    /// Number of pieces.
    pub iov_count: usize,
    /// dest_addr; of a receive src_addr.
    pub addr: u64,
    /// The tag.
    pub tag: u64,
    /// Of a receive: bits of the tag that are not compared.
    pub ignore: u64,
    /// Returned in the completion.
    pub context: *mut c_void,
    /// For the peer, with GDRFAB_REMOTE_CQ_DATA.
    pub data: u64,
    /// ns to ETIMEDOUT; UINT64_MAX: never; 0: the endpoint's.
    pub timeout_ns: u64,
}

// SAFETY: repr(C), size first; pointers are checked at use.
unsafe impl ExtensibleStruct for gdrfab_msg_tagged {
    const FIRST: usize = 80;
}

/// # Safety
/// The struct is live for the call.
unsafe fn parse(msg: *const gdrfab_msg_tagged, flags: u64) -> Result<(gdrfab_msg_tagged, Common)> {
    // SAFETY: the caller says that the struct is live.
    let m = unsafe { read_sized(msg, "msg")? };
    let c = Common { context: m.context as usize, flags, data: m.data, desc: 0, timeout_ns: m.timeout_ns, peer: m.addr };
    Ok((m, c))
}

/// Posts a tagged message; when it completes, the buffer may be reused. Mirrors fi_tsend.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_tsend(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    tag: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    unsafe { (ep_ops(ep).tsend)(ep.cast(), buf.cast_mut(), len, desc, dest_addr, tag, context) }
}

/// Posts several pieces as one tagged message. Mirrors fi_tsendv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_tsendv(
    ep: *mut gdrfab_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest_addr: u64,
    tag: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and the arrays live.
    posting(|| unsafe {
        object(ep, "ep").and_then(|ep| {
            let c = Common { context: context as usize, flags: ep.tx_op_flags(), peer: dest_addr, ..Common::default() };
            ep.tsend(iovecs(iov, count, "iov")?, &c, descs(desc, count), tag)
        })
    })
}

/// Posts a tagged message with pieces, flags, data and a deadline. Mirrors fi_tsendmsg.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_tsendmsg(ep: *mut gdrfab_ep, msg: *const gdrfab_msg_tagged, flags: u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and the structs live.
    posting(|| unsafe {
        object(ep, "ep").and_then(|ep| {
            check_op_flags(flags)?;
            let (m, c) = parse(msg, flags)?;
            ep.tsend(iovecs(m.msg_iov, m.iov_count, "msg->msg_iov")?, &c, descs(m.desc, m.iov_count), m.tag)
        })
    })
}

/// Posts a tagged message with 64 bits of data for the peer's completion entry. Mirrors fi_tsenddata.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_tsenddata(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest_addr: u64,
    tag: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    unsafe { (ep_ops(ep).tsenddata)(ep.cast(), buf.cast_mut(), len, desc, data, dest_addr, tag, context) }
}

/// Posts a tagged message of at most inject_size bytes, which are copied. Mirrors fi_tinject.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_tinject(ep: *mut gdrfab_ep, buf: *const c_void, len: usize, dest_addr: u64, tag: u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    unsafe { (ep_ops(ep).tinject)(ep.cast(), buf.cast_mut(), len, dest_addr, tag) }
}

/// gdrfab_tinject() with data for the peer's completion entry. Mirrors fi_tinjectdata.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_tinjectdata(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest_addr: u64,
    tag: u64,
) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    unsafe { (ep_ops(ep).tinjectdata)(ep.cast(), buf.cast_mut(), len, data, dest_addr, tag) }
}

/// Posts a receive of one tagged message. Any number may be posted, as memory allows. Mirrors fi_trecv.
///
/// @return 0, -EINVAL, -GDRFAB_ENOCQ (none is bound for receives), -GDRFAB_EOPBADSTATE (not enabled),
///   -EOPNOTSUPP (opened without GDRFAB_TAGGED)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_trecv(
    ep: *mut gdrfab_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    unsafe { (ep_ops(ep).trecv)(ep.cast(), buf, len, desc, src_addr, tag, ignore, context) }
}

/// Posts a tagged receive into several pieces. Results as of gdrfab_trecv(). Mirrors fi_trecvv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_trecvv(
    ep: *mut gdrfab_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    src_addr: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and the arrays live.
    posting(|| unsafe {
        object(ep, "ep").and_then(|ep| {
            let c = Common { context: context as usize, flags: ep.rx_op_flags(), peer: src_addr, ..Common::default() };
            ep.trecv(iovecs(iov, count, "iov")?, &c, descs(desc, count), tag, ignore)
        })
    })
}

/// Posts a receive of a tagged message with pieces, flags and a deadline; or looks for one that has come
/// already, or drops it. Mirrors fi_trecvmsg.
///
/// With GDRFAB_PEEK nothing is received and the pieces are not used: an entry has tag, whole length, data and
/// sender of the first message that matches and has come, or an error entry ENOMSG says that there is none.
///
/// - GDRFAB_PEEK | GDRFAB_CLAIM: the message that is found matches no other receive from then on, and waits
///   for gdrfab_trecvmsg() of the same context with GDRFAB_CLAIM, which receives it, or GDRFAB_CLAIM |
///   GDRFAB_DISCARD, which drops it.
/// - GDRFAB_PEEK | GDRFAB_DISCARD: the message that is found is dropped, and the entry tells of it.
///
/// @param flags any of GDRFAB_COMPLETION, GDRFAB_MORE, GDRFAB_PEEK, GDRFAB_CLAIM, GDRFAB_DISCARD
/// @return as gdrfab_trecv(); -E2BIG; -GDRFAB_EBADFLAGS (also: GDRFAB_DISCARD alone); -EINVAL also: nothing is
///   claimed by this context
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_trecvmsg(ep: *mut gdrfab_ep, msg: *const gdrfab_msg_tagged, flags: u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and the structs live.
    posting(|| unsafe {
        object(ep, "ep").and_then(|ep| {
            let looks = flags & (GDRFAB_PEEK | GDRFAB_CLAIM);
            check_recv_flags(flags, if looks == 0 { TRECV_FLAGS & !GDRFAB_DISCARD } else { TRECV_FLAGS })?;
            let (m, c) = parse(msg, flags)?;
            let drops = looks & GDRFAB_PEEK != 0 || flags & GDRFAB_DISCARD != 0;
            let count = if drops { 0 } else { m.iov_count };
            ep.trecv(iovecs(m.msg_iov, count, "msg->msg_iov")?, &c, descs(m.desc, count), m.tag, m.ignore)
        })
    })
}
