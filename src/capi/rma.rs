// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Remote memory access. `dest_addr` and `src_addr` are there for unconnected endpoints to come; connected
//! ones ignore them.

use super::boundary::{Sized0, descs, hold, iovecs, null, object, object_if, posted, posting, read_sized, short};
use super::objects::gdrfab_ep;
use super::types::*;
use crate::error::{Error, Result, errno};
use crate::fabric::{Armed, Endpoint, Quick};
use crate::mr::DEVICE_DESC;
use crate::prov::flags::OP_FLAGS;
use crate::prov::op::{Common, Dir, IOV_LIMIT, Iov, One, RmaIov, total};
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
    /// Not used on connected endpoints.
    pub addr: u64,
    /// Remote pieces; their lengths sum to those of the local ones.
    pub rma_iov: *const gdrfab_rma_iov,
    /// Number of remote pieces.
    pub rma_iov_count: usize,
    /// Returned in the completion.
    pub context: *mut c_void,
    /// For the peer, with GDRFAB_REMOTE_CQ_DATA.
    pub data: u64,
    /// Nanoseconds until the operation fails with ETIMEDOUT; UINT64_MAX: never; 0: the endpoint's
    /// GDRFAB_OPT_DEADLINE.
    pub timeout_ns: u64,
}

// SAFETY: repr(C), size first; pointers are checked at use.
unsafe impl Sized0 for gdrfab_msg_rma {
    const FIRST: usize = 80;
}

const _: () = assert!(size_of::<gdrfab_rma_iov>() == size_of::<RmaIov>() && align_of::<gdrfab_rma_iov>() == align_of::<RmaIov>());

/// One local range against one remote range.
///
/// # Safety
/// `ep` is open and the buffer is as the operation needs it until its completion.
#[inline(always)]
unsafe fn single<const WRITE: bool>(ep: *mut gdrfab_ep, buf: usize, len: usize, addr: u64, key: u64, c: Common) -> ssize_t {
    // SAFETY: handed on.
    hold(|rc| rc as ssize_t, || unsafe { single_held::<WRITE>(ep, buf, len, addr, key, &c) })
}

/// The body of `single`, out of line: what `hold` runs in line goes through memory.
///
/// # Safety
/// As for `single`.
#[inline(never)]
unsafe fn single_held<const WRITE: bool>(ep: *mut gdrfab_ep, buf: usize, len: usize, addr: u64, key: u64, c: &Common) -> ssize_t {
    // SAFETY: the C caller says that the handle is open.
    let ep = match unsafe { object(ep, "ep") } {
        Ok(ep) => ep,
        Err(e) => return posted(Err(e)),
    };
    if c.desc & DEVICE_DESC != 0 {
        return general(ep, if WRITE { Dir::Write } else { Dir::Read }, buf, len, addr, key, c);
    }
    let short = match c.flags {
        0 => ep.rma_short::<WRITE, true, false>(buf, len, addr, key, c.context),
        Endpoint::INJECT => ep.rma_short::<WRITE, false, false>(buf, len, addr, key, c.context),
        _ => false,
    };
    if short {
        return 0;
    }
    match ep.rma_quick::<WRITE>(buf, len, addr, key, c.context, c.flags | ep.tx_op_flags()) {
        Quick::Done => 0,
        Quick::Again => -errno::EAGAIN as ssize_t,
        Quick::NotOrdinary => general(ep, if WRITE { Dir::Write } else { Dir::Read }, buf, len, addr, key, c),
    }
}

/// Whether a descriptor, or none, stands for memory that the CPU reaches.
#[inline(always)]
pub(super) fn on_host(desc: *mut c_void) -> bool {
    desc as u64 & DEVICE_DESC == 0
}

/// `single` for one word in a domain without locks: a leaf function. False: nothing was posted.
///
/// # Safety
/// As for `single`.
#[inline(always)]
unsafe fn word<const WRITE: bool, const ENTRY: bool>(
    ep: *mut gdrfab_ep,
    buf: usize,
    len: usize,
    addr: u64,
    key: u64,
    context: usize,
) -> bool {
    // SAFETY: the C caller says that the handle is open.
    match unsafe { object_if(ep) } {
        Some(ep) => ep.rma_short::<WRITE, ENTRY, true>(buf, len, addr, key, context),
        None => false,
    }
}

/// What is not ordinary about an operation is found out, and said, here.
#[inline(never)]
fn general(ep: &Endpoint, dir: Dir, buf: usize, len: usize, addr: u64, key: u64, c: &Common) -> ssize_t {
    if buf == 0 && len != 0 {
        return posted(Err(null("buf")));
    }
    let c = Common { flags: c.flags | ep.tx_op_flags(), ..*c };
    posted(ep.rma(dir, &[Iov { addr: buf, len }], &[RmaIov { addr, len, key }], &c, from_ref(&c.desc)))
}

/// Several local ranges against one remote range.
///
/// # Safety
/// As for `single`; the arrays are live for the call.
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
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and the arrays live.
    posting(|| unsafe {
        object(ep, "ep").and_then(|ep| {
            let local = iovecs(iov, count, "iov")?;
            let len = total(local).ok_or_else(|| Error::invalid("iov: the lengths overflow"))?;
            let c = Common { context: context as usize, flags: ep.tx_op_flags(), ..Common::default() };
            ep.rma(dir, local, &[RmaIov { addr, len, key }], &c, descs(desc, count))
        })
    })
}

/// # Safety
/// As for `single`; the struct and its arrays are live for the call.
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
        let c = Common { context: m.context as usize, flags, data: m.data, desc: 0, timeout_ns: m.timeout_ns };
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
    let _ = dest_addr;
    // SAFETY: the C caller's promises, handed on.
    unsafe {
        if object_if(ep).is_some_and(Endpoint::is_nic) {
            return write_nic(ep, buf, len, desc, dest_addr, addr, key, context);
        }
        match short(|| (on_host(desc) && word::<true, true>(ep, buf as usize, len, addr, key, context as usize)).then_some(0)) {
            Some(rc) => rc,
            None => write_longer(ep, buf, len, desc, addr, addr, key, context),
        }
    }
}

/// Posts; the call's end.
#[inline(always)]
pub(super) fn fire<const LOCKED: bool>(mut armed: Armed<'_, LOCKED>) -> ssize_t {
    match armed.post() {
        0 => 0,
        rc => misfired(armed, rc),
    }
}

#[cold]
#[inline(never)]
fn misfired<const LOCKED: bool>(mut armed: Armed<'_, LOCKED>, rc: i32) -> ssize_t {
    posted(Err(armed.refused(rc)))
}

/// gdrfab_write() by a device. Apart, so that it saves no registers for the way of the CPU, nor that for it.
///
/// # Safety
/// As for gdrfab_write(), which has checked `ep`, and that it `is_nic`.
#[inline(never)]
unsafe extern "C" fn write_nic(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    let one = One { buf: buf as usize, len, addr, key, desc: desc as u64, context: context as usize };
    // SAFETY: the C caller's promises, handed on.
    unsafe {
        let open = &*ep.cast::<Endpoint>();
        if !open.is_short() {
            return write_locked(ep, buf, len, desc, dest_addr, addr, key, context);
        }
        match short(|| open.nic_quick::<true, false>(one).map(fire)) {
            Some(rc) => rc,
            None => write_longer(ep, buf, len, desc, dest_addr, addr, key, context),
        }
    }
}

/// gdrfab_write() by a device, where the library locks. It takes the same parameters, so that the call is a jump.
///
/// # Safety
/// As for `write_nic`.
#[inline(never)]
unsafe extern "C" fn write_locked(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    let one = One { buf: buf as usize, len, addr, key, desc: desc as u64, context: context as usize };
    // SAFETY: the C caller's promises, handed on.
    unsafe {
        match short(|| (*ep.cast::<Endpoint>()).nic_quick::<true, true>(one).map(fire)) {
            Some(rc) => rc,
            None => write_longer(ep, buf, len, desc, dest_addr, addr, key, context),
        }
    }
}

/// gdrfab_write() of anything but one word. It takes and uses the same parameters, so that the call is a jump.
///
/// # Safety
/// As for gdrfab_write().
#[inline(never)]
unsafe extern "C" fn write_longer(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    std::hint::black_box(dest_addr);
    let c = Common { context: context as usize, desc: desc as u64, ..Common::default() };
    // SAFETY: the C caller's promises, handed on.
    unsafe { single::<true>(ep, buf as usize, len, addr, key, c) }
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
    let _ = dest_addr;
    // SAFETY: the C caller's promises, handed on.
    unsafe { vector(ep, Dir::Write, iov, desc, count, addr, key, context) }
}

/// Posts a write with pieces on both sides, flags, data and a deadline. Mirrors fi_writemsg.
///
/// @param msg   the operation; read during the call only
/// @param flags operation flags, all of them; the endpoint's tx_op_flags do not apply
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_writemsg(ep: *mut gdrfab_ep, msg: *const gdrfab_msg_rma, flags: u64) -> ssize_t {
    // SAFETY: the C caller's promises, handed on.
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
    let _ = dest_addr;
    let c = Common { context: context as usize, flags: GDRFAB_REMOTE_CQ_DATA, data, desc: desc as u64, timeout_ns: 0 };
    // SAFETY: the C caller's promises, handed on.
    unsafe { single::<true>(ep, buf as usize, len, addr, key, c) }
}

/// Posts a write of up to inject_size bytes. The buffer is the caller's again at once, and only a failure
/// gives an entry (the loss of the connection none). Mirrors fi_inject_write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_inject_write(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    dest_addr: u64,
    addr: u64,
    key: u64,
) -> ssize_t {
    // SAFETY: the C caller's promises, handed on.
    unsafe {
        match short(|| word::<true, false>(ep, buf as usize, len, addr, key, 0).then_some(0)) {
            Some(rc) => rc,
            None => inject_write_longer(ep, buf, len, dest_addr, addr, key),
        }
    }
}

/// gdrfab_inject_write() of anything but one word. It takes and uses the same parameters, so that the call is a jump.
///
/// # Safety
/// As for gdrfab_inject_write().
#[inline(never)]
unsafe extern "C" fn inject_write_longer(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    dest_addr: u64,
    addr: u64,
    key: u64,
) -> ssize_t {
    std::hint::black_box(dest_addr);
    let c = Common { flags: Endpoint::INJECT, ..Common::default() };
    // SAFETY: the C caller's promises, handed on.
    unsafe { single::<true>(ep, buf as usize, len, addr, key, c) }
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
    let _ = dest_addr;
    let c = Common { flags: Endpoint::INJECT | GDRFAB_REMOTE_CQ_DATA, data, ..Common::default() };
    // SAFETY: the C caller's promises, handed on.
    unsafe { single::<true>(ep, buf as usize, len, addr, key, c) }
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
    let _ = src_addr;
    // SAFETY: the C caller's promises, handed on.
    unsafe {
        if object_if(ep).is_some_and(Endpoint::is_nic) {
            return read_nic(ep, buf, len, desc, src_addr, addr, key, context);
        }
        match short(|| (on_host(desc) && word::<false, true>(ep, buf as usize, len, addr, key, context as usize)).then_some(0)) {
            Some(rc) => rc,
            None => read_longer(ep, buf, len, desc, addr, addr, key, context),
        }
    }
}

/// gdrfab_read() by a device. Apart, so that it saves no registers for the way of the CPU, nor that for it.
///
/// # Safety
/// As for gdrfab_read(), which has checked `ep`, and that it `is_nic`.
#[inline(never)]
unsafe extern "C" fn read_nic(
    ep: *mut gdrfab_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    let one = One { buf: buf as usize, len, addr, key, desc: desc as u64, context: context as usize };
    // SAFETY: the C caller's promises, handed on.
    unsafe {
        let open = &*ep.cast::<Endpoint>();
        if !open.is_short() {
            return read_locked(ep, buf, len, desc, src_addr, addr, key, context);
        }
        match short(|| open.nic_quick::<false, false>(one).map(fire)) {
            Some(rc) => rc,
            None => read_longer(ep, buf, len, desc, src_addr, addr, key, context),
        }
    }
}

/// gdrfab_read() by a device, where the library locks. It takes the same parameters, so that the call is a jump.
///
/// # Safety
/// As for `read_nic`.
#[inline(never)]
unsafe extern "C" fn read_locked(
    ep: *mut gdrfab_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    let one = One { buf: buf as usize, len, addr, key, desc: desc as u64, context: context as usize };
    // SAFETY: the C caller's promises, handed on.
    unsafe {
        match short(|| (*ep.cast::<Endpoint>()).nic_quick::<false, true>(one).map(fire)) {
            Some(rc) => rc,
            None => read_longer(ep, buf, len, desc, src_addr, addr, key, context),
        }
    }
}

/// gdrfab_read() of anything but one word. It takes and uses the same parameters, so that the call is a jump.
///
/// # Safety
/// As for gdrfab_read().
#[inline(never)]
unsafe extern "C" fn read_longer(
    ep: *mut gdrfab_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    std::hint::black_box(src_addr);
    let c = Common { context: context as usize, desc: desc as u64, ..Common::default() };
    // SAFETY: the C caller's promises, handed on.
    unsafe { single::<false>(ep, buf as usize, len, addr, key, c) }
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
    let _ = src_addr;
    // SAFETY: the C caller's promises, handed on.
    unsafe { vector(ep, Dir::Read, iov, desc, count, addr, key, context) }
}

/// Posts a read with pieces on both sides, flags and a deadline. Mirrors fi_readmsg.
///
/// @param msg   the operation; read during the call only
/// @param flags GDRFAB_COMPLETION, GDRFAB_FENCE, GDRFAB_MORE, and the completion levels (*_COMPLETE)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_readmsg(ep: *mut gdrfab_ep, msg: *const gdrfab_msg_rma, flags: u64) -> ssize_t {
    let never = flags & (GDRFAB_REMOTE_CQ_DATA | GDRFAB_INJECT);
    if never != 0 {
        return posting(|| Err(Error::new(GDRFAB_EBADFLAGS, format!("flags: {never:#x} have no meaning for a read"))));
    }
    // SAFETY: the C caller's promises, handed on.
    posting(|| unsafe { message(ep, Dir::Read, msg, flags) })
}
