// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Binding and connecting.

use super::boundary::{address, bytes, control, object, output, release, shared, write_address, write_name};
use super::info::gdrfab_connreq;
use super::objects::*;
use crate::fabric::RequestId;
use libc::{c_int, c_void};

// == Endpoints and connections ==

/// Binds a completion queue, before gdrfab_ep_enable(). Mirrors fi_ep_bind.
///
/// @param cq    queue of the same domain; it may serve many endpoints
/// @param flags GDRFAB_TRANSMIT, GDRFAB_RECV or both; GDRFAB_SELECTIVE_COMPLETION
/// @return 0, -EINVAL (also: another domain), -GDRFAB_EBADFLAGS, -EPERM, -EBUSY (bound already),
///   -GDRFAB_EOPBADSTATE (enabled)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_bind_cq(ep: *mut gdrfab_ep, cq: *mut gdrfab_cq, flags: u64) -> c_int {
    // SAFETY: the C caller says that the handles are open.
    control(|| unsafe { shared(ep, "ep")?.bind_cq(&shared(cq, "cq")?, flags) })
}

/// Binds an event queue, before gdrfab_ep_enable(). Mirrors fi_ep_bind.
///
/// @param eq    queue of the same fabric; it may serve many endpoints
/// @return 0, -EINVAL (also: another fabric), -GDRFAB_EBADFLAGS, -EPERM, -EBUSY (bound already),
///   -GDRFAB_EOPBADSTATE (enabled)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_bind_eq(ep: *mut gdrfab_ep, eq: *mut gdrfab_eq, flags: u64) -> c_int {
    // SAFETY: the C caller says that the handles are open.
    control(|| unsafe { shared(ep, "ep")?.bind_eq(&shared(eq, "eq")?, flags) })
}

/// Binds a counter, before gdrfab_ep_enable() or later; operations posted before then may go uncounted.
/// Mirrors fi_ep_bind.
///
/// @param cntr  counter of the same domain
/// @param flags the operations counted: completions of GDRFAB_SEND, GDRFAB_RECV, GDRFAB_READ, GDRFAB_WRITE;
///   GDRFAB_REMOTE_WRITE for writes with data that arrive. Peers' other operations, over mapped memory or by a
///   card, pass no CPU of this side that could count them; gdrfab_mr_bind_cntr() counts a region's writes
/// @return 0, -EINVAL (also: another domain), -GDRFAB_EBADFLAGS, -EPERM, -EBUSY (one of these has a counter),
///   -EOPNOTSUPP (GDRFAB_REMOTE_READ)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_bind_cntr(ep: *mut gdrfab_ep, cntr: *mut gdrfab_cntr, flags: u64) -> c_int {
    // SAFETY: the C caller says that the handles are open.
    control(|| unsafe { shared(ep, "ep")?.bind_cntr(&shared(cntr, "cntr")?, flags) })
}

/// gdrfab_ep_bind_eq() of a passive endpoint, before gdrfab_pep_listen(). Mirrors fi_pep_bind.
///
/// @return as gdrfab_ep_bind_eq()
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_pep_bind_eq(pep: *mut gdrfab_pep, eq: *mut gdrfab_eq, flags: u64) -> c_int {
    // SAFETY: the C caller says that the handles are open.
    control(|| unsafe { shared(pep, "pep")?.bind_eq(&shared(eq, "eq")?, flags) })
}

/// Makes an endpoint ready for receives and for connecting. Mirrors fi_enable.
///
/// @return 0, -EINVAL, -EPERM, -GDRFAB_ENOCQ (no queue or counter is bound for transmits), -GDRFAB_EOPBADSTATE
///   (enabled already), -EMFILE or -ENOMEM (no shared memory)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_enable(ep: *mut gdrfab_ep) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    control(|| unsafe { shared(ep, "ep")?.enable() })
}

/// Starts to listen; requests come as GDRFAB_CONNREQ on the event queue. Mirrors fi_listen.
///
/// @return 0, -EINVAL, -EPERM, -GDRFAB_ENOEQ, -EADDRINUSE (another one listens there), -GDRFAB_EOPBADSTATE
///   (listens already), -EMFILE; of shm by a path: -EACCES, -ENOENT, -ENOTDIR (its directory)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_pep_listen(pep: *mut gdrfab_pep) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    control(|| unsafe { object(pep, "pep")?.listen() })
}

/// Begins to connect to a passive endpoint; never waits: a thread of the library looks up a host's name
/// meanwhile. Mirrors fi_connect.
///
/// The outcome is an event: GDRFAB_CONNECTED with the acceptor's data, or an error entry with ECONNREFUSED
/// (nobody listens; or rejected: GDRFAB_PROV_REJECTED, with the rejecting side's data), ETIMEDOUT
/// (GDRFAB_OPT_CONNECT_TIMEOUT, also of the look-up), EADDRNOTAVAIL (no such host), EHOSTUNREACH or
/// ENETUNREACH (tcp: no way leads there), EACCES (shm: the listener does not let this user in; tcp: the keys
/// differ, or one side has none), EKEYREJECTED (tcp: keys of hosts that do not know each other),
/// EPROTONOSUPPORT (the peer has another version), EPROTO (its answer makes no sense).
///
/// @param ep       enabled endpoint with an event queue
/// @param addr     "shm://name", "tcp://host:port" or "verbs://host:port", as of gdrfab_pep_getname() or
///   info->dest_addr
/// @param addrlen  bytes of addr, NUL included
/// @param param    private data for the peer's GDRFAB_CONNREQ, or NULL
/// @param paramlen bytes of param, up to info->cm_data_size
/// @return 0, -EINVAL, -EPERM, -EHOSTUNREACH (the address was made on another host), -GDRFAB_ENOEQ, -EISCONN,
///   -GDRFAB_EOPBADSTATE (not enabled, or connected before), -EOPNOTSUPP (connectionless)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_connect(
    ep: *mut gdrfab_ep,
    addr: *const c_void,
    addrlen: usize,
    param: *const c_void,
    paramlen: usize,
) -> c_int {
    // SAFETY: the C caller says that the handle is open and the ranges readable.
    control(|| unsafe {
        let (ep, to) = (object(ep, "ep")?, address(addr, addrlen)?);
        crate::log!(Debug, "ep {ep:p}: connecting to {to:?}");
        ep.connect(to, bytes(param, paramlen, "param")?)
    })
}

/// Accepts the connection request that the endpoint was opened from. Mirrors fi_accept.
///
/// GDRFAB_CONNECTED follows on the event queue. If the peer is gone meanwhile, the request is lost.
///
/// @param ep       enabled endpoint with an event queue, opened from a request's info
/// @param param    private data for the peer's GDRFAB_CONNECTED, or NULL
/// @param paramlen bytes of param, up to info->cm_data_size
/// @return 0, -EINVAL, -EPERM, -GDRFAB_ENOEQ, -GDRFAB_EOPBADSTATE (not enabled; no request, or answered),
///   -ECONNRESET (the peer is gone), -EPROTO (the peer's message makes no sense), -EMFILE
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_accept(ep: *mut gdrfab_ep, param: *const c_void, paramlen: usize) -> c_int {
    // SAFETY: the C caller says that the handle is open and the range readable.
    control(|| unsafe {
        let ep = object(ep, "ep")?;
        crate::log!(Debug, "ep {ep:p}: accepting its connection request");
        ep.accept(bytes(param, paramlen, "param")?)
    })
}

/// Rejects a connection request. Mirrors fi_reject.
///
/// @param handle   info->handle of the event; used up by this call
/// @param param    private data for the peer's error entry, or NULL
/// @param paramlen bytes of param, up to info->cm_data_size
/// @return 0 (also if the peer is gone), -EINVAL (also: the request was answered before), -EPERM
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_pep_reject(
    pep: *mut gdrfab_pep,
    handle: *mut gdrfab_connreq,
    param: *const c_void,
    paramlen: usize,
) -> c_int {
    // SAFETY: the C caller says that the endpoint is open and the range readable; the request's
    // handle is a number that is looked up.
    control(|| unsafe { object(pep, "pep")?.reject(RequestId(handle as usize), bytes(param, paramlen, "param")?) })
}

/// Ends a connection. The peer gets GDRFAB_SHUTDOWN after everything that was written before. Outstanding
/// operations and receives of this side complete with ECANCELED before the call returns. Mirrors fi_shutdown.
///
/// @return 0, -EINVAL, -GDRFAB_EBADFLAGS, -EPERM, -ENOTCONN (not connected yet), -ESHUTDOWN (not connected any
///   more)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_shutdown(ep: *mut gdrfab_ep, flags: u64) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    release(|| unsafe {
        let ep = object(ep, "ep")?;
        crate::log!(Debug, "ep {ep:p}: shut down by this side");
        ep.shutdown(flags)
    })
}

/// Begins to connect to an endpoint whose address was exchanged by other means; never waits.
///
/// Both sides call it, in any order, with the address that the other's gdrfab_ep_getname() gave. The outcome
/// is an event, as with gdrfab_ep_connect(), without private data.
///
/// @param ep      enabled endpoint with an event queue, after gdrfab_ep_getname()
/// @param addr    the peer's address
/// @param addrlen bytes of addr, NUL included
/// @return 0, -EINVAL (also: its own address), -EPERM, -EHOSTUNREACH (an address of another host),
///   -GDRFAB_ENOEQ, -EISCONN, -GDRFAB_EOPBADSTATE (not enabled, or connected before), -EOPNOTSUPP
///   (connectionless)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_connect_addr(ep: *mut gdrfab_ep, addr: *const c_void, addrlen: usize) -> c_int {
    // SAFETY: the C caller says that the handle is open and the range readable.
    control(|| unsafe {
        let (ep, to) = (object(ep, "ep")?, address(addr, addrlen)?);
        crate::log!(Debug, "ep {ep:p}: connecting to {to:?}");
        ep.connect_addr(to)
    })
}

/// Gives the endpoint's own address, for gdrfab_ep_connect_addr() of the peer; of a connectionless endpoint
/// its name, for gdrfab_av_insert() of any process. Mirrors fi_getname.
///
/// @param ep      endpoint that is not connected yet; a connectionless one is enabled
/// @param addr    gets text, GDRFAB_ADDR_MAX bytes suffice; or the name, GDRFAB_NAME_LEN bytes that are no
///   text
/// @param addrlen in: bytes of addr; out: bytes used
/// @return 0, -GDRFAB_ETOOSMALL, -EINVAL, -EPERM, -GDRFAB_EOPBADSTATE (connecting, or over), -EMFILE
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_getname(ep: *mut gdrfab_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    // SAFETY: the C caller says that the handle is open and the buffer as long as *addrlen.
    control(|| unsafe {
        let object = object(ep, "ep")?;
        output(addrlen, "addrlen")?;
        write_name(addr, addrlen, &object.name()?)
    })
}

/// Gives the address of a passive endpoint: 0, or -GDRFAB_ETOOSMALL, -EINVAL, -EPERM. Parameters as of
/// gdrfab_ep_getname(). Mirrors fi_getname.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_pep_getname(pep: *mut gdrfab_pep, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    // SAFETY: the C caller says that the handle is open and the buffer as long as *addrlen.
    control(|| unsafe {
        let object = object(pep, "pep")?;
        output(addrlen, "addrlen")?;
        write_address(addr, addrlen, &object.address())
    })
}

/// Gives the peer's address, or that of its listener; "shm://" alone if the peer that connected has none.
/// Parameters as of gdrfab_ep_getname(). Mirrors fi_getpeer.
///
/// @return 0, -GDRFAB_ETOOSMALL, -EINVAL, -ENOTCONN (not connected yet), -ESHUTDOWN (not connected any more)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_getpeer(ep: *mut gdrfab_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    // SAFETY: the C caller says that the handle is open and the buffer as long as *addrlen.
    control(|| unsafe {
        let object = object(ep, "ep")?;
        output(addrlen, "addrlen")?;
        write_address(addr, addrlen, &object.peer_address()?)
    })
}
