// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages.

use super::boundary::{Sized0, descs, hold, iovecs, null, object, object_if, posted, posting, read_sized, short};
use super::objects::gdrfab_ep;
use super::rma::{check_op_flags, fire, on_host};
use super::types::*;
use crate::error::{Error, Result};
use crate::fabric::{Endpoint, Quick};
use crate::mr::DEVICE_DESC;
use crate::prov::op::{Common, Iov, One};
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
    /// Not used on connected endpoints.
    pub addr: u64,
    /// Returned in the completion.
    pub context: *mut c_void,
    /// For the peer, with GDRFAB_REMOTE_CQ_DATA.
    pub data: u64,
    /// Nanoseconds until it fails with ETIMEDOUT; UINT64_MAX: never; 0: GDRFAB_OPT_DEADLINE, of a receive
    /// GDRFAB_OPT_RECV_DEADLINE.
    pub timeout_ns: u64,
}

// SAFETY: repr(C), size first; pointers are checked at use.
unsafe impl Sized0 for gdrfab_msg {
    const FIRST: usize = 64;
}

/// A message of one line in a domain without locks, in a leaf function. False: nothing was posted.
///
/// # Safety
/// As for `send_one`.
#[inline(always)]
unsafe fn send_line<const ENTRY: bool>(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    context: *mut c_void,
) -> bool {
    // SAFETY: the C caller says that the handle is open.
    match unsafe { object_if(ep) } {
        Some(ep) => on_host(desc) && ep.send_short::<ENTRY>(buf as usize, len, context as usize),
        None => false,
    }
}

/// # Safety
/// `ep` is open and the buffer as the operation needs it until its completion.
#[inline(always)]
unsafe fn send_one(ep: *mut gdrfab_ep, buf: *const c_void, len: usize, c: Common) -> ssize_t {
    // SAFETY: handed on.
    hold(|rc| rc as ssize_t, || unsafe { send_held(ep, buf, len, c.desc, c.context, c.flags, c.data) })
}

/// The body of `send_one`, out of line: what `hold` runs in line goes through memory.
///
/// # Safety
/// As for `send_one`.
#[inline(never)]
unsafe fn send_held(ep: *mut gdrfab_ep, buf: *const c_void, len: usize, desc: u64, context: usize, flags: u64, data: u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open.
    let ep = match unsafe { object(ep, "ep") } {
        Ok(ep) => ep,
        Err(e) => return posted(Err(e)),
    };
    let c = Common { context, flags: flags | ep.tx_op_flags(), data, desc, timeout_ns: 0 };
    let one = Iov { addr: buf as usize, len };
    if desc & DEVICE_DESC == 0 && ep.send_quick(&one, &c) == Quick::Done {
        return 0;
    }
    general(ep, &one, &c)
}

/// What is not ordinary about a message is found out, and said, here.
#[inline(never)]
fn general(ep: &Endpoint, one: &Iov, c: &Common) -> ssize_t {
    if one.addr == 0 && one.len != 0 {
        return posted(Err(null("buf")));
    }
    posted(ep.send(from_ref(one), c, from_ref(&c.desc)))
}

/// Posts a message. The completion says that the buffer may be reused; with GDRFAB_DELIVERY_COMPLETE, that a
/// receive of the peer has it. Mirrors fi_send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_send(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the C caller's promises, handed on.
    unsafe {
        match short(|| send_line::<true>(ep, buf, len, desc, context).then_some(0)) {
            Some(rc) => rc,
            None => send_longer(ep, buf, len, desc, dest_addr, context),
        }
    }
}

/// gdrfab_send() by a device.
///
/// # Safety
/// As for gdrfab_send(); `ep` is open, and `is_nic`.
#[inline(never)]
unsafe extern "C" fn send_nic(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    context: *mut c_void,
) -> ssize_t {
    let one = One { buf: buf as usize, len, addr: 0, key: 0, desc: desc as u64, context: context as usize };
    // SAFETY: the C caller's promises, handed on.
    unsafe {
        let open = &*ep.cast::<Endpoint>();
        if !open.is_short() {
            return send_locked(ep, buf, len, desc, dest_addr, context);
        }
        match short(|| open.nic_send::<false>(one).map(fire)) {
            Some(rc) => rc,
            None => send_on(ep, buf, len, desc, dest_addr, context),
        }
    }
}

/// gdrfab_send() by a device, where the library locks.
///
/// # Safety
/// As for `send_nic`.
#[inline(never)]
unsafe extern "C" fn send_locked(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    context: *mut c_void,
) -> ssize_t {
    let one = One { buf: buf as usize, len, addr: 0, key: 0, desc: desc as u64, context: context as usize };
    // SAFETY: the C caller's promises, handed on.
    unsafe {
        match short(|| (*ep.cast::<Endpoint>()).nic_send::<true>(one).map(fire)) {
            Some(rc) => rc,
            None => send_on(ep, buf, len, desc, dest_addr, context),
        }
    }
}

/// gdrfab_send() of anything else. It takes and uses the same parameters, so that the call is a jump.
///
/// # Safety
/// As for gdrfab_send().
#[inline(never)]
unsafe extern "C" fn send_longer(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the C caller's promises, handed on.
    unsafe {
        match object_if(ep) {
            Some(open) if open.is_nic() => send_nic(ep, buf, len, desc, dest_addr, context),
            _ => send_on(ep, buf, len, desc, dest_addr, context),
        }
    }
}

/// gdrfab_send() of what no short way takes.
///
/// # Safety
/// As for gdrfab_send().
#[inline(never)]
unsafe extern "C" fn send_on(
    ep: *mut gdrfab_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: u64,
    context: *mut c_void,
) -> ssize_t {
    std::hint::black_box(dest_addr);
    // SAFETY: the C caller says that the handle is open.
    let far = || unsafe { object_if(ep) }.is_some_and(|open| on_host(desc) && open.send_far(buf as usize, len, context as usize));
    if let Some(rc) = short(|| far().then_some(0)) {
        return rc;
    }
    let c = Common { context: context as usize, desc: desc as u64, ..Common::default() };
    // SAFETY: the C caller's promises, handed on.
    unsafe { send_one(ep, buf, len, c) }
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
    let _ = dest_addr;
    // SAFETY: the C caller says that the handle is open and the arrays live.
    posting(|| unsafe {
        object(ep, "ep").and_then(|ep| {
            let c = Common { context: context as usize, flags: ep.tx_op_flags(), ..Common::default() };
            ep.send(iovecs(iov, count, "iov")?, &c, descs(desc, count))
        })
    })
}

/// # Safety
/// The struct and its arrays are live for the call.
unsafe fn parse<'a>(msg: *const gdrfab_msg, flags: u64) -> Result<(&'a [Iov], Common, &'a [u64])> {
    // SAFETY: the C caller's promise.
    unsafe {
        let m = read_sized(msg, "msg")?;
        check_op_flags(flags)?;
        let c = Common { context: m.context as usize, flags, data: m.data, desc: 0, timeout_ns: m.timeout_ns };
        Ok((iovecs(m.msg_iov, m.iov_count, "msg->msg_iov")?, c, descs(m.desc, m.iov_count)))
    }
}

/// Posts a message with pieces, flags, data and a deadline. Mirrors fi_sendmsg.
///
/// @param msg   the message; read during the call only
/// @param flags operation flags, all of them; the endpoint's tx_op_flags do not apply
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_sendmsg(ep: *mut gdrfab_ep, msg: *const gdrfab_msg, flags: u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and the structs live.
    posting(|| unsafe {
        object(ep, "ep").and_then(|ep| {
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
    let _ = dest_addr;
    let c = Common { context: context as usize, flags: GDRFAB_REMOTE_CQ_DATA, data, desc: desc as u64, timeout_ns: 0 };
    // SAFETY: the C caller's promises, handed on.
    unsafe { send_one(ep, buf, len, c) }
}

/// Posts a message of up to inject_size bytes. The buffer is the caller's again at once, and only a failure
/// gives an entry (the loss of the connection none). Mirrors fi_inject.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_inject(ep: *mut gdrfab_ep, buf: *const c_void, len: usize, dest_addr: u64) -> ssize_t {
    // SAFETY: the C caller's promises, handed on.
    unsafe {
        match short(|| send_line::<false>(ep, buf, len, std::ptr::null_mut(), std::ptr::null_mut()).then_some(0)) {
            Some(rc) => rc,
            None => inject_longer(ep, buf, len, dest_addr),
        }
    }
}

/// gdrfab_inject() of anything else, as `send_longer`.
///
/// # Safety
/// As for gdrfab_inject().
#[inline(never)]
unsafe extern "C" fn inject_longer(ep: *mut gdrfab_ep, buf: *const c_void, len: usize, dest_addr: u64) -> ssize_t {
    std::hint::black_box(dest_addr);
    let c = Common { flags: Endpoint::INJECT, ..Common::default() };
    // SAFETY: the C caller's promises, handed on.
    unsafe { send_one(ep, buf, len, c) }
}

/// gdrfab_inject() with data for the peer's completion entry. Mirrors fi_injectdata.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_injectdata(ep: *mut gdrfab_ep, buf: *const c_void, len: usize, data: u64, dest_addr: u64) -> ssize_t {
    let _ = dest_addr;
    let c = Common { flags: Endpoint::INJECT | GDRFAB_REMOTE_CQ_DATA, data, ..Common::default() };
    // SAFETY: the C caller's promises, handed on.
    unsafe { send_one(ep, buf, len, c) }
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
    // SAFETY: the C caller says that the handle is open.
    unsafe {
        let line = || object_if(ep).is_some_and(|open| on_host(desc) && open.recv_short(buf as usize, len, context as usize));
        match short(|| line().then_some(0)) {
            Some(rc) => rc,
            None => recv_longer(ep, buf, len, desc, src_addr, context),
        }
    }
}

/// gdrfab_recv() of anything else, as `send_longer`.
///
/// # Safety
/// As for gdrfab_recv().
#[inline(never)]
unsafe extern "C" fn recv_longer(
    ep: *mut gdrfab_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: u64,
    context: *mut c_void,
) -> ssize_t {
    std::hint::black_box(src_addr);
    let way = || {
        // SAFETY: the C caller says that the handle is open.
        let ep = match unsafe { object(ep, "ep") } {
            Ok(ep) => ep,
            Err(e) => return posted(Err(e)),
        };
        if ep.is_nic() {
            // SAFETY: looked at.
            let done = unsafe {
                match ep.is_short() {
                    true => ep.nic_recv::<false>(buf as usize, len, desc as u64, context as usize),
                    false => ep.nic_recv::<true>(buf as usize, len, desc as u64, context as usize),
                }
            };
            return if done { 0 } else { recv_on(ep, buf, len, desc, context) };
        }
        if on_host(desc) && ep.recv_quick(buf as usize, len, context as usize) {
            return 0;
        }
        recv_on(ep, buf, len, desc, context)
    };
    hold(|rc| rc as ssize_t, way)
}

/// gdrfab_recv() of what no short way takes.
#[inline(never)]
fn recv_on(ep: &Endpoint, buf: *mut c_void, len: usize, desc: *mut c_void, context: *mut c_void) -> ssize_t {
    if buf.is_null() && len != 0 {
        return posted(Err(null("buf")));
    }
    let c = Common { context: context as usize, desc: desc as u64, ..Common::default() };
    posted(ep.recv(&[Iov { addr: buf as usize, len }], &c, from_ref(&c.desc)))
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
    let _ = src_addr;
    // SAFETY: the C caller says that the handle is open and the arrays live.
    posting(|| unsafe {
        object(ep, "ep").and_then(|ep| {
            let iov = iovecs(iov, count, "iov")?;
            let c = Common { context: context as usize, ..Common::default() };
            ep.recv(iov, &c, descs(desc, count))
        })
    })
}

/// Posts a receive with pieces, flags and a deadline. Mirrors fi_recvmsg.
///
/// @param msg   the receive; read during the call only
/// @param flags 0 or GDRFAB_COMPLETION
/// @return as gdrfab_recv(); -E2BIG; -GDRFAB_EBADFLAGS
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_recvmsg(ep: *mut gdrfab_ep, msg: *const gdrfab_msg, flags: u64) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and the structs live.
    posting(|| unsafe {
        object(ep, "ep").and_then(|ep| {
            let (iov, c, descs) = parse(msg, flags)?;
            match flags & !(GDRFAB_COMPLETION | GDRFAB_MORE) {
                0 => ep.recv(iov, &c, descs),
                unknown => Err(Error::new(GDRFAB_EBADFLAGS, format!("flags: {unknown:#x} have no meaning for a receive"))),
            }
        })
    })
}

/// Cancels the first receive, waiting operation or unmatched message with this context: it completes with
/// ECANCELED, and its buffer is not touched after the call. Mirrors fi_cancel.
///
/// @return 0, -EINVAL, -ENOENT (none with that context can still be cancelled), -EOPNOTSUPP (verbs: a queue
///   pair returns no single request; shut the endpoint down, or give operations a deadline, which ends the
///   connection)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cancel(ep: *mut gdrfab_ep, context: *mut c_void) -> ssize_t {
    // SAFETY: the C caller says that the handle is open.
    posting(|| unsafe { object(ep, "ep").and_then(|ep| ep.cancel(context as usize)) })
}
