// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages.

use super::boundary::{Sized0, descs, hold, iovecs, null, object, object_if, posted, posting, read_sized, short};
use super::objects::gdrfab_ep;
use super::rma::{check_op_flags, fire, on_host};
use super::types::*;
use crate::error::{Error, Result};
use crate::fabric::{Endpoint, Quick};
use crate::prov::op::{Common, Iov, One};
use crate::prov::wish::DEVICE_DESC;
use libc::{c_void, iovec, ssize_t};
use std::slice::from_ref;

/// A message operation with everything (mirrors fi_msg).
#[repr(C)]
pub struct gdrfab_msg {
    /// sizeof(gdrfab_msg)
    pub struct_size: usize,
    /// Pieces of the buffer.
    pub msg_iov: *const iovec,
    /// Their descriptors, or NULL.
    pub desc: *mut *mut c_void,
    /// Number of pieces.
    pub iov_count: usize,
    /// Unused on connected endpoints.
    pub addr: u64,
    /// Handed out in the completion.
    pub context: *mut c_void,
    /// Remote CQ data, with GDRFAB_REMOTE_CQ_DATA.
    pub data: u64,
    /// Nanoseconds after which the operation fails with ETIMEDOUT; UINT64_MAX = none; 0 = the endpoint's GDRFAB_OPT_DEADLINE, of
    /// a receive its GDRFAB_OPT_RECV_DEADLINE.
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

/// Sends a message. Mirrors fi_send.
///
/// The completion says that the buffer may be reused; with GDRFAB_DELIVERY_COMPLETE, that a receive of the peer has it.
/// Messages arrive in the order of posting.
///
/// @param ep        connected endpoint
/// @param buf       bytes, unchanged until the completion
/// @param len       bytes; 0 is a message too
/// @param desc      gdrfab_mr_desc() of a region that holds buf, or NULL
/// @param dest_addr unused
/// @param context   handed out in the completion
/// @return 0 posted, or
///   -EAGAIN too many operations are outstanding, or the queue could overrun: read completions and call again;
///   -ENOTCONN not connected yet, -ESHUTDOWN not any more; -EINVAL NULL; -EMSGSIZE longer than max_msg_size
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

/// Sends several pieces as one message. Mirrors fi_sendv.
///
/// @param ep        connected endpoint
/// @param iov       pieces, up to tx_iov_limit; the array is read during the call only
/// @param desc      their descriptors, or NULL
/// @param count     number of pieces
/// @param dest_addr unused
/// @param context   handed out in the completion
/// @return as gdrfab_send()
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

/// Sends with everything. Mirrors fi_sendmsg.
///
/// @param ep    connected endpoint
/// @param msg   the operation; read during the call only
/// @param flags GDRFAB_COMPLETION, DELIVERY_COMPLETE, TRANSMIT_COMPLETE, INJECT_COMPLETE, REMOTE_CQ_DATA, INJECT, FENCE, MORE; the
///   endpoint's tx_op_flags do not apply
/// @return as gdrfab_send(); -E2BIG msg of a newer version; -GDRFAB_EBADFLAGS
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

/// Sends a message with 64 bits of data for the peer's completion entry. Mirrors fi_senddata.
///
/// @param ep        connected endpoint
/// @param buf       bytes, unchanged until the completion
/// @param len       bytes
/// @param desc      descriptor, or NULL
/// @param data      64 bits for the peer
/// @param dest_addr unused
/// @param context   handed out in the completion
/// @return as gdrfab_send()
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

/// Sends up to inject_size bytes; the buffer is the caller's again at once, and only a failure gives an entry (the loss of
/// the connection none).
/// Mirrors fi_inject.
///
/// @param ep        connected endpoint
/// @param buf       bytes
/// @param len       bytes, up to inject_size
/// @param dest_addr unused
/// @return as gdrfab_send(); -EMSGSIZE longer than inject_size
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
///
/// @param ep        connected endpoint
/// @param buf       bytes
/// @param len       bytes, up to inject_size
/// @param data      64 bits for the peer
/// @param dest_addr unused
/// @return as gdrfab_inject()
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_injectdata(ep: *mut gdrfab_ep, buf: *const c_void, len: usize, data: u64, dest_addr: u64) -> ssize_t {
    let _ = dest_addr;
    let c = Common { flags: Endpoint::INJECT | GDRFAB_REMOTE_CQ_DATA, data, ..Common::default() };
    // SAFETY: the C caller's promises, handed on.
    unsafe { send_one(ep, buf, len, c) }
}

/// Posts a buffer for one message. Mirrors fi_recv.
///
/// Allowed as soon as the endpoint is enabled. A longer message fills the buffer and gives an error entry,
/// GDRFAB_ETRUNC, with the lost bytes in olen. When the connection ends, the receive completes with ECONNRESET (the
/// peer's end) or ECANCELED (this side's).
///
/// @param ep       enabled endpoint with a queue or counter for receives
/// @param buf      gets the bytes; undefined until the completion
/// @param len      bytes
/// @param desc     descriptor, or NULL
/// @param src_addr unused
/// @param context  handed out in the completion
/// @return 0, -EAGAIN (rx_size receives are posted), -EINVAL, -GDRFAB_ENOCQ, -GDRFAB_EOPBADSTATE (not enabled), -ESHUTDOWN (the
///   connection is over)
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

/// Posts several pieces for one message. Mirrors fi_recvv.
///
/// @param ep       enabled endpoint
/// @param iov      pieces, up to rx_iov_limit; the array is read during the call only
/// @param desc     their descriptors, or NULL
/// @param count    number of pieces
/// @param src_addr unused
/// @param context  handed out in the completion
/// @return as gdrfab_recv()
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

/// Posts a receive with everything. Mirrors fi_recvmsg.
///
/// @param ep    enabled endpoint
/// @param msg   the receive; read during the call only
/// @param flags 0 or GDRFAB_COMPLETION
/// @return as gdrfab_recv(); -E2BIG msg of a newer version; -GDRFAB_EBADFLAGS
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

/// Cancels an operation. Mirrors fi_cancel.
///
/// The first receive, waiting operation or offered message with this context ends with an ECANCELED entry, and its
/// buffer is quiet when the call returns.
///
/// @param ep      endpoint
/// @param context what the operation was posted with
/// @return 0, -ENOENT (none with that context can still be cancelled), -EINVAL, -EOPNOTSUPP (verbs: a queue pair takes back
///   nothing alone; shut the endpoint down, or give operations a deadline, which ends the connection)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cancel(ep: *mut gdrfab_ep, context: *mut c_void) -> ssize_t {
    // SAFETY: the C caller says that the handle is open.
    posting(|| unsafe { object(ep, "ep").and_then(|ep| ep.cancel(context as usize)) })
}
