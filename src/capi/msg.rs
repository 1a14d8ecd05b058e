// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages.

use super::boundary::{ExtensibleStruct, descs, ep_ops, iovecs, null, object, posting, read_sized};
use super::objects::gdrfab_ep;
use super::rma::check_op_flags;
use super::types::*;
use crate::error::{Error, Result};
use crate::fabric::Endpoint;
use crate::prov::flags::RECV_FLAGS;
use crate::prov::op::{Common, Iov};
use libc::{c_void, iovec, ssize_t};
use std::slice::from_ref;

// == Messages ==

/// A message or a receive with all its parameters (mirrors fi_msg).
#[repr(C)]
pub struct gdrfab_msg {
    /// sizeof(gdrfab_msg)
    pub struct_size: usize,
    /// Pieces of the buffer.
    pub msg_iov: *const iovec,
    /// One for each piece, or NULL.
    pub desc: *mut *mut c_void,
    /// Number of pieces.
    pub iov_count: usize,
    /// dest_addr; of a receive src_addr.
    pub addr: u64,
    /// Returned in the completion.
    pub context: *mut c_void,
    /// For the peer, with GDRFAB_REMOTE_CQ_DATA.
    pub data: u64,
    /// ns to ETIMEDOUT; UINT64_MAX: never; 0: the endpoint's.
    pub timeout_ns: u64,
}

// SAFETY: repr(C), size first; pointers are checked at use.
unsafe impl ExtensibleStruct for gdrfab_msg {
    const FIRST: usize = 64;
}

/// One piece, with data.
///
/// # Safety
/// `ep` is open and the buffer as the operation needs it until its completion.
#[inline(always)]
unsafe fn with_data(ep: *mut gdrfab_ep, buf: *const c_void, len: usize, c: Common) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and keeps the buffer until the completion.
    posting(|| unsafe {
        let ep: &Endpoint = object(ep, "ep")?;
        if buf.is_null() && len != 0 {
            return Err(null("buf"));
        }
        let c = Common { flags: c.flags | GDRFAB_REMOTE_CQ_DATA | ep.tx_op_flags(), ..c };
        ep.send(&[Iov::new(buf as usize, len)], &c, from_ref(&c.desc))
    })
}

/// Posts a message; when it completes, the buffer may be reused. Mirrors fi_send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_send(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    unsafe { (ep_ops(ep).send)(ep.cast(), buf.cast_mut(), len, desc, dest_addr, context) }
}

/// Posts several pieces as one message. Mirrors fi_sendv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_sendv(
    ep: *mut gdrfab_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest_addr: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and the arrays live.
    posting(|| unsafe {
        object(ep, "ep").and_then(|ep| {
            let c = Common { context: context as usize, flags: ep.tx_op_flags(), peer: dest_addr, ..Common::default() };
            ep.send(iovecs(iov, count, "iov")?, &c, descs(desc, count))
        })
    })
}

/// # Safety
/// The struct and its arrays are live for the call.
unsafe fn parse<'a>(msg: *const gdrfab_msg, flags: u64) -> Result<(&'a [Iov], Common, &'a [u64])> {
    // SAFETY: the caller says that the struct and its arrays are live.
    unsafe {
        let m = read_sized(msg, "msg")?;
        let c = Common { context: m.context as usize, flags, data: m.data, desc: 0, timeout_ns: m.timeout_ns, peer: m.addr };
        Ok((iovecs(m.msg_iov, m.iov_count, "msg->msg_iov")?, c, descs(m.desc, m.iov_count)))
    }
}

pub(super) fn check_recv_flags(flags: u64, known: u64) -> Result<()> {
    match flags & !known {
        0 => Ok(()),
        unknown => Err(Error::new(GDRFAB_EBADFLAGS, format!("flags: {unknown:#x} are not flags of receives"))),
    }
}

/// Posts a message with pieces, flags, data and a deadline. Mirrors fi_sendmsg.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_sendmsg(ep: *mut gdrfab_ep, msg: *const gdrfab_msg, flags: u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and the structs live.
    posting(|| unsafe {
        object(ep, "ep").and_then(|ep| {
            check_op_flags(flags)?;
            let (iov, c, descs) = parse(msg, flags)?;
            ep.send(iov, &c, descs)
        })
    })
}

/// Posts a message with 64 bits of data for the peer's completion entry. Mirrors fi_senddata.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_senddata(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest_addr: u64,
    context: *mut c_void,
) -> ssize_t {
    let c = Common { context: context as usize, data, desc: desc as u64, peer: dest_addr, ..Common::default() };
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    unsafe { with_data(ep, buf, len, c) }
}

/// Posts a message of at most inject_size bytes, which leave with the call. Mirrors fi_inject.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_inject(ep: *mut gdrfab_ep, buf: *const c_void, len: usize, dest_addr: u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    unsafe { (ep_ops(ep).inject)(ep.cast(), buf.cast_mut(), len, dest_addr) }
}

/// gdrfab_inject() with data for the peer's completion entry. Mirrors fi_injectdata.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_injectdata(ep: *mut gdrfab_ep, buf: *const c_void, len: usize, data: u64, dest_addr: u64) -> ssize_t {
    let c = Common { flags: Endpoint::INJECT, data, peer: dest_addr, ..Common::default() };
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    unsafe { with_data(ep, buf, len, c) }
}

/// Posts a receive: a buffer for one message. Mirrors fi_recv.
///
/// A longer message fills the buffer and gives an error entry, GDRFAB_ETRUNC, with the lost bytes in olen.
/// When the connection ends, the receive completes with ECONNRESET (by the peer) or ECANCELED (by this side).
///
/// @return 0, -EAGAIN (info->rx_size receives are posted), -EINVAL, -GDRFAB_ENOCQ (none is bound for
///   receives), -GDRFAB_EOPBADSTATE (not enabled), -ESHUTDOWN (not connected any more)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_recv(
    ep: *mut gdrfab_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    unsafe { (ep_ops(ep).recv)(ep.cast(), buf, len, desc, src_addr, context) }
}

/// Posts a receive into several pieces. Results as of gdrfab_recv(). Mirrors fi_recvv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_recvv(
    ep: *mut gdrfab_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    src_addr: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and the arrays live.
    posting(|| unsafe {
        object(ep, "ep").and_then(|ep| {
            let iov = iovecs(iov, count, "iov")?;
            let c = Common { context: context as usize, flags: ep.rx_op_flags(), peer: src_addr, ..Common::default() };
            ep.recv(iov, &c, descs(desc, count))
        })
    })
}

/// Posts a receive with pieces, flags and a deadline. Mirrors fi_recvmsg.
///
/// With GDRFAB_MULTI_RECV the buffer, of one piece, takes messages one behind the other. Each gives an
/// entry, whose buf tells where it lies (GDRFAB_CQ_FORMAT_DATA or TAGGED). The last one has
/// GDRFAB_MULTI_RECV in its flags: fewer than GDRFAB_OPT_MIN_MULTI_RECV bytes are left, or the receive was
/// cancelled, and the buffer is the caller's again. A message longer than the rest of the buffer is cut off.
///
/// @param flags any of GDRFAB_COMPLETION, GDRFAB_MORE, GDRFAB_MULTI_RECV
/// @return as gdrfab_recv(); -E2BIG; -GDRFAB_EBADFLAGS; -EOPNOTSUPP (GDRFAB_MULTI_RECV, without that
///   capability)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_recvmsg(ep: *mut gdrfab_ep, msg: *const gdrfab_msg, flags: u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and the structs live.
    posting(|| unsafe {
        object(ep, "ep").and_then(|ep| {
            check_recv_flags(flags, RECV_FLAGS)?;
            let (iov, c, descs) = parse(msg, flags)?;
            ep.recv(iov, &c, descs)
        })
    })
}

/// Cancels the first receive with this context, tagged or not; if there is none, the first waiting operation
/// or unmatched message, in the order of posting. It completes with ECANCELED, and its buffer is not touched
/// after the call. Mirrors fi_cancel.
///
/// @return 0, -EINVAL, -ENOENT (none with that context can still be cancelled), -EOPNOTSUPP (verbs: a queue
///   pair returns no single request; shut the endpoint down, or give operations a deadline, which ends the
///   connection)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cancel(ep: *mut gdrfab_ep, context: *mut c_void) -> ssize_t {
    // SAFETY: the C caller says that the handle is open.
    posting(|| unsafe { object(ep, "ep").and_then(|ep| ep.cancel(context as usize)) })
}
