// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Remote memory access. `dest_addr` and `src_addr` are indexes of the address vector; connected endpoints
//! ignore them.

use super::boundary::{ExtensibleStruct, descs, ep_ops, iovecs, null, object, posting, read_sized};
use super::objects::gdrfab_ep;
use super::types::*;
use crate::error::{Error, Result};
use crate::fabric::Endpoint;
use crate::prov::flags::OP_FLAGS;
use crate::prov::op::{Common, Dir, IOV_LIMIT, Iov, RmaIov, total};
use libc::{c_void, iovec, ssize_t};
use std::slice::from_ref;

// == RMA ==

/// A piece of a peer's region (mirrors fi_rma_iov).
#[repr(C)]
pub struct gdrfab_rma_iov {
    /// Remote address.
    pub addr: u64,
    /// Bytes.
    pub len: usize,
    /// The region's key.
    pub key: u64,
}

/// An RMA operation with all its parameters (mirrors fi_msg_rma).
#[repr(C)]
pub struct gdrfab_msg_rma {
    /// sizeof(gdrfab_msg_rma)
    pub struct_size: usize,
    /// Local pieces.
    pub msg_iov: *const iovec,
    /// One for each local piece, or NULL.
    pub desc: *mut *mut c_void,
    /// Number of local pieces.
    pub iov_count: usize,
    /// dest_addr.
    pub addr: u64,
    /// Remote pieces, together as long as the local.
    pub rma_iov: *const gdrfab_rma_iov,
    /// Number of remote pieces.
    pub rma_iov_count: usize,
    /// Returned in the completion.
    pub context: *mut c_void,
    /// For the peer, with GDRFAB_REMOTE_CQ_DATA.
    pub data: u64,
    /// ns to ETIMEDOUT; UINT64_MAX: never; 0: the endpoint's.
    pub timeout_ns: u64,
}

// SAFETY: repr(C), size first; pointers are checked at use.
unsafe impl ExtensibleStruct for gdrfab_msg_rma {
    const FIRST: usize = 80;
}

const _: () = assert!(size_of::<gdrfab_rma_iov>() == size_of::<RmaIov>() && align_of::<gdrfab_rma_iov>() == align_of::<RmaIov>());

/// One local range against one remote range, with data.
///
/// # Safety
/// `ep` is open and the buffer is as the operation needs it until its completion.
#[inline(always)]
unsafe fn with_data(ep: *mut gdrfab_ep, buf: *const c_void, len: usize, addr: u64, key: u64, c: Common) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and keeps the buffer until the completion.
    posting(|| unsafe {
        let ep: &Endpoint = object(ep, "ep")?;
        if buf.is_null() && len != 0 {
            return Err(null("buf"));
        }
        let c = Common { flags: c.flags | GDRFAB_REMOTE_CQ_DATA | ep.tx_op_flags(), ..c };
        ep.rma(Dir::Write, &[Iov::new(buf as usize, len)], &[RmaIov { addr, len, key }], &c, from_ref(&c.desc))
    })
}

/// Several local ranges against one remote range.
///
/// # Safety
/// As for `with_data`; the arrays are live for the call.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn vector(
    ep: *mut gdrfab_ep,
    dir: Dir,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    addr: u64,
    key: u64,
    (peer, context): (u64, *mut c_void),
) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and the arrays live.
    posting(|| unsafe {
        object(ep, "ep").and_then(|ep| {
            let local = iovecs(iov, count, "iov")?;
            let len = total(local).ok_or_else(|| Error::invalid("iov: the lengths overflow"))?;
            let c = Common { context: context as usize, flags: ep.tx_op_flags(), peer, ..Common::default() };
            ep.rma(dir, local, &[RmaIov { addr, len, key }], &c, descs(desc, count))
        })
    })
}

/// # Safety
/// As for `with_data`; the struct and its arrays are live for the call.
unsafe fn message(ep: *mut gdrfab_ep, dir: Dir, msg: *const gdrfab_msg_rma, flags: u64) -> Result<()> {
    // SAFETY: the C caller says that the handle is open and the structs live.
    unsafe {
        let ep: &Endpoint = object(ep, "ep")?;
        let m = read_sized(msg, "msg")?;
        check_op_flags(flags)?;
        let local = iovecs(m.msg_iov, m.iov_count, "msg->msg_iov")?;
        if m.rma_iov_count == 0 || m.rma_iov_count > IOV_LIMIT {
            return Err(Error::invalid(format!("msg->rma_iov_count: {}, must be 1 to {IOV_LIMIT}", m.rma_iov_count)));
        }
        if m.rma_iov.is_null() || !m.rma_iov.is_aligned() {
            return Err(null("msg->rma_iov"));
        }
        let remote = std::slice::from_raw_parts(m.rma_iov.cast::<RmaIov>(), m.rma_iov_count);
        let c = Common { context: m.context as usize, flags, data: m.data, desc: 0, timeout_ns: m.timeout_ns, peer: m.addr };
        ep.rma(dir, local, remote, &c, descs(m.desc, m.iov_count))
    }
}

pub(super) fn check_op_flags(flags: u64) -> Result<()> {
    match flags & !OP_FLAGS {
        0 => Ok(()),
        unknown => Err(Error::new(GDRFAB_EBADFLAGS, format!("flags: {unknown:#x} are not flags of operations"))),
    }
}

/// Posts a write of local memory into a peer's region. Mirrors fi_write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_write(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    unsafe { (ep_ops(ep).write)(ep.cast(), buf.cast_mut(), len, desc, dest_addr, addr, key, context) }
}

/// Posts a write of several local pieces, joined. Mirrors fi_writev.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_writev(
    ep: *mut gdrfab_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    unsafe { vector(ep, Dir::Write, iov, desc, count, addr, key, (dest_addr, context)) }
}

/// Posts a write with pieces on both sides, flags, data and a deadline. Mirrors fi_writemsg.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_writemsg(ep: *mut gdrfab_ep, msg: *const gdrfab_msg_rma, flags: u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    posting(|| unsafe { message(ep, Dir::Write, msg, flags) })
}

/// Posts a write that then puts an entry with `data` into the peer's completion queue for receives. Mirrors
/// fi_writedata.
///
/// The entry (GDRFAB_REMOTE_WRITE | GDRFAB_RMA | GDRFAB_REMOTE_CQ_DATA) never overtakes the bytes. Over verbs
/// it consumes a posted receive, if info->mode has GDRFAB_RX_CQ_DATA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_writedata(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    let c = Common { context: context as usize, data, desc: desc as u64, peer: dest_addr, ..Common::default() };
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    unsafe { with_data(ep, buf, len, addr, key, c) }
}

/// Posts a write of at most inject_size bytes, which are copied. Mirrors fi_inject_write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_inject_write(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    dest_addr: u64,
    addr: u64,
    key: u64,
) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    unsafe { (ep_ops(ep).inject_write)(ep.cast(), buf.cast_mut(), len, dest_addr, addr, key) }
}

/// gdrfab_inject_write() with the data of gdrfab_writedata(). Mirrors fi_inject_writedata.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_inject_writedata(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest_addr: u64,
    addr: u64,
    key: u64,
) -> ssize_t {
    let c = Common { flags: Endpoint::INJECT, data, peer: dest_addr, ..Common::default() };
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    unsafe { with_data(ep, buf, len, addr, key, c) }
}

/// Posts a read of a peer's region into local memory. Mirrors fi_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_read(
    ep: *mut gdrfab_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    unsafe { (ep_ops(ep).read)(ep.cast(), buf, len, desc, src_addr, addr, key, context) }
}

/// Posts a read of one remote range into several local pieces. Mirrors fi_readv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_readv(
    ep: *mut gdrfab_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    src_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    unsafe { vector(ep, Dir::Read, iov, desc, count, addr, key, (src_addr, context)) }
}

/// Posts a read with pieces on both sides, flags and a deadline. Mirrors fi_readmsg.
///
/// @param flags GDRFAB_COMPLETION, GDRFAB_FENCE, GDRFAB_MORE, and the completion levels (*_COMPLETE)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_readmsg(ep: *mut gdrfab_ep, msg: *const gdrfab_msg_rma, flags: u64) -> ssize_t {
    let never = flags & (GDRFAB_REMOTE_CQ_DATA | GDRFAB_INJECT);
    if never != 0 {
        return posting(|| Err(Error::new(GDRFAB_EBADFLAGS, format!("flags: {never:#x} are not flags of reads"))));
    }
    // SAFETY: the C caller says that the handle is open, and that the buffers stay until the completion.
    posting(|| unsafe { message(ep, Dir::Read, msg, flags) })
}
