// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Binding and connecting.

use super::boundary::{address, bytes, control, object, output, shared, write_address};
use super::info::gdrfab_connreq;
use super::objects::*;
use crate::fabric::RequestId;
use libc::{c_int, c_void};

/// Binds a completion queue, before gdrfab_ep_enable(). Mirrors fi_ep_bind.
///
/// @param ep    endpoint
/// @param cq    queue of the same domain; it may serve many endpoints
/// @param flags GDRFAB_TRANSMIT, GDRFAB_RECV or both; GDRFAB_SELECTIVE_COMPLETION
/// @return 0, -EINVAL (an argument; another domain), -GDRFAB_EBADFLAGS, -EBUSY (bound already), -GDRFAB_EOPBADSTATE (enabled)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_bind_cq(ep: *mut gdrfab_ep, cq: *mut gdrfab_cq, flags: u64) -> c_int {
    // SAFETY: the C caller says that the handles are open.
    control(|| unsafe { shared(ep, "ep")?.bind_cq(&shared(cq, "cq")?, flags) })
}

/// Binds an event queue, before gdrfab_ep_enable(). Mirrors fi_ep_bind.
///
/// @param ep    endpoint
/// @param eq    queue of the same fabric; it may serve many endpoints
/// @param flags 0
/// @return 0, -EINVAL, -GDRFAB_EBADFLAGS, -EBUSY (bound already), -GDRFAB_EOPBADSTATE (enabled)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_bind_eq(ep: *mut gdrfab_ep, eq: *mut gdrfab_eq, flags: u64) -> c_int {
    // SAFETY: the C caller says that the handles are open.
    control(|| unsafe { shared(ep, "ep")?.bind_eq(&shared(eq, "eq")?, flags) })
}

/// Binds a counter, before gdrfab_ep_enable(). Mirrors fi_ep_bind.
///
/// @param ep    endpoint
/// @param cntr  counter of the same domain
/// @param flags which completions it counts: GDRFAB_SEND, GDRFAB_RECV, GDRFAB_READ, GDRFAB_WRITE of this endpoint's
///   own, GDRFAB_REMOTE_WRITE for writes with data that arrive
/// @return 0, -EINVAL, -GDRFAB_EBADFLAGS, -GDRFAB_EOPBADSTATE (enabled)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_bind_cntr(ep: *mut gdrfab_ep, cntr: *mut gdrfab_cntr, flags: u64) -> c_int {
    // SAFETY: the C caller says that the handles are open.
    control(|| unsafe { shared(ep, "ep")?.bind_cntr(&shared(cntr, "cntr")?, flags) })
}

/// Binds an event queue to a passive endpoint, before gdrfab_pep_listen(). Mirrors fi_pep_bind.
///
/// @param pep   passive endpoint
/// @param eq    queue of the same fabric
/// @param flags 0
/// @return 0, -EINVAL, -GDRFAB_EBADFLAGS, -EBUSY (bound already)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_pep_bind_eq(pep: *mut gdrfab_pep, eq: *mut gdrfab_eq, flags: u64) -> c_int {
    // SAFETY: the C caller says that the handles are open.
    control(|| unsafe { shared(pep, "pep")?.bind_eq(&shared(eq, "eq")?, flags) })
}

/// Makes an endpoint ready for receives and for connecting. Mirrors fi_enable.
///
/// @return 0, -EINVAL, -GDRFAB_ENOCQ (neither a queue nor a counter for transmits is bound), -GDRFAB_EOPBADSTATE (enabled
///   already), -EMFILE or -ENOMEM (shared memory cannot be made)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_enable(ep: *mut gdrfab_ep) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    control(|| unsafe { shared(ep, "ep")?.enable() })
}

/// Starts to listen; requests come as GDRFAB_CONNREQ on the event queue. Mirrors fi_listen.
///
/// @return 0, -EINVAL, -GDRFAB_ENOEQ, -EADDRINUSE (somebody listens under this name), -GDRFAB_EOPBADSTATE (listens
///   already), -EMFILE
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_pep_listen(pep: *mut gdrfab_pep) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    control(|| unsafe { object(pep, "pep")?.listen() })
}

/// Begins to connect to a passive endpoint; never blocks. Mirrors fi_connect.
///
/// The outcome is an event: GDRFAB_CONNECTED with the acceptor's data, or an error entry: ECONNREFUSED (nobody
/// listens; or rejected, prov_errno GDRFAB_PROV_REJECTED with the rejector's data), ETIMEDOUT (GDRFAB_OPT_CONNECT_TIMEOUT),
/// EACCES (the listener is another user), EPROTO (another version).
///
/// @param ep       enabled endpoint with an event queue
/// @param addr     "shm://name", "tcp://host:port" or "verbs://host:port", as gdrfab_pep_getname() or info->dest_addr gives it
/// @param addrlen  its bytes, NUL included
/// @param param    private data for the peer's GDRFAB_CONNREQ, or NULL
/// @param paramlen its bytes, up to cm_data_size
/// @return 0, -EINVAL, -EHOSTUNREACH (the address was made on another host), -GDRFAB_ENOEQ, -GDRFAB_EOPBADSTATE (not
///   enabled; or was connected before), -EISCONN
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
        crate::log!(Debug, "ep {ep:p}: connects to {to:?}");
        ep.connect(to, bytes(param, paramlen, "param")?)
    })
}

/// Accepts the connection request from which the endpoint was opened. Mirrors fi_accept.
///
/// GDRFAB_CONNECTED follows on the event queue. If the asking peer is gone meanwhile, the request is lost.
///
/// @param ep       enabled endpoint opened from a request's info, with an event queue
/// @param param    private data for the peer's GDRFAB_CONNECTED, or NULL
/// @param paramlen its bytes, up to cm_data_size
/// @return 0, -EINVAL, -GDRFAB_ENOEQ, -GDRFAB_EOPBADSTATE (not enabled; no request, or answered), -ECONNRESET (the peer
///   is gone), -EPROTO (what the peer handed over makes no sense), -EMFILE
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_accept(ep: *mut gdrfab_ep, param: *const c_void, paramlen: usize) -> c_int {
    // SAFETY: the C caller says that the handle is open and the range readable.
    control(|| unsafe {
        let ep = object(ep, "ep")?;
        crate::log!(Debug, "ep {ep:p}: accepts its request");
        ep.accept(bytes(param, paramlen, "param")?)
    })
}

/// Rejects a connection request. Mirrors fi_reject.
///
/// @param pep      passive endpoint
/// @param handle   info->handle of the event; used up by this call
/// @param param    private data for the peer's error entry, or NULL
/// @param paramlen its bytes, up to cm_data_size
/// @return 0 (also if the peer is gone), -EINVAL (an argument; the request was answered already)
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

/// Ends a connection. Mirrors fi_shutdown.
///
/// The peer gets GDRFAB_SHUTDOWN after everything that was written before. Here, outstanding operations and
/// posted receives complete with ECANCELED before the call returns.
///
/// @param flags 0
/// @return 0, -EINVAL, -GDRFAB_EBADFLAGS, -ENOTCONN (not connected yet), -ESHUTDOWN (not any more)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_shutdown(ep: *mut gdrfab_ep, flags: u64) -> c_int {
    // SAFETY: the C caller says that the handle is open.
    control(|| unsafe {
        let ep = object(ep, "ep")?;
        crate::log!(Debug, "ep {ep:p}: is shut down by this side");
        ep.shutdown(flags)
    })
}

/// Begins to connect to an endpoint whose address came by other means; never blocks.
///
/// Both sides call it, each with what the other's gdrfab_ep_getname() gave, in any order. The outcome is an event, as
/// with gdrfab_ep_connect(), without private data.
///
/// @param ep      enabled endpoint with an event queue, whose own address was asked for
/// @param addr    the peer's address
/// @param addrlen its bytes, NUL included
/// @return 0, -EINVAL (an argument; its own address), -EHOSTUNREACH, -GDRFAB_ENOEQ, -GDRFAB_EOPBADSTATE, -EISCONN
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_connect_addr(ep: *mut gdrfab_ep, addr: *const c_void, addrlen: usize) -> c_int {
    // SAFETY: the C caller says that the handle is open and the range readable.
    control(|| unsafe {
        let (ep, to) = (object(ep, "ep")?, address(addr, addrlen)?);
        crate::log!(Debug, "ep {ep:p}: connects to {to:?}");
        ep.connect_addr(to)
    })
}

/// Gives the endpoint's own address, for gdrfab_ep_connect_addr() of the peer. Mirrors fi_getname.
///
/// @param ep      endpoint, not yet connected
/// @param addr    gets NUL-terminated text; GDRFAB_ADDR_MAX bytes suffice
/// @param addrlen in: bytes of addr; out: bytes used, NUL included. Also written with -GDRFAB_ETOOSMALL
/// @return 0, -GDRFAB_ETOOSMALL, -EINVAL, -GDRFAB_EOPBADSTATE (connecting or over), -EMFILE
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_getname(ep: *mut gdrfab_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    // SAFETY: the C caller says that the handle is open and the buffer as long as *addrlen.
    control(|| unsafe {
        let object = object(ep, "ep")?;
        output(addrlen, "addrlen")?;
        write_address(addr, addrlen, &object.address()?)
    })
}

/// Gives the address of a passive endpoint. Mirrors fi_getname.
///
/// @param pep     passive endpoint
/// @param addr    gets NUL-terminated text; GDRFAB_ADDR_MAX bytes suffice
/// @param addrlen in: bytes of addr; out: bytes used, NUL included. Also written with -GDRFAB_ETOOSMALL
/// @return 0, -GDRFAB_ETOOSMALL, -EINVAL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_pep_getname(pep: *mut gdrfab_pep, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    // SAFETY: the C caller says that the handle is open and the buffer as long as *addrlen.
    control(|| unsafe {
        let object = object(pep, "pep")?;
        output(addrlen, "addrlen")?;
        write_address(addr, addrlen, &object.address())
    })
}

/// Gives the peer's address, or that of its listener; "shm://" alone if the peer that connected has none. Mirrors fi_getpeer.
///
/// @param ep      connected endpoint
/// @param addr    gets NUL-terminated text; GDRFAB_ADDR_MAX bytes suffice
/// @param addrlen in: bytes of addr; out: bytes used, NUL included. Also written with -GDRFAB_ETOOSMALL
/// @return 0, -GDRFAB_ETOOSMALL, -EINVAL, -ENOTCONN (not connected yet), -ESHUTDOWN (not any more)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_getpeer(ep: *mut gdrfab_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    // SAFETY: the C caller says that the handle is open and the buffer as long as *addrlen.
    control(|| unsafe {
        let object = object(ep, "ep")?;
        output(addrlen, "addrlen")?;
        write_address(addr, addrlen, &object.peer_address()?)
    })
}
