// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Opening and closing. Every close takes its own type; an object that others still use answers
//! -EBUSY and stays open.

use super::boundary::{Handle, Sized0, control, give, hold, object, output, read_sized, reclaim, shared};
use super::info::{gdrfab_info, import};
use super::types::*;
use crate::error::{Error, Result};
use crate::fabric::{self, CqFormat};
use libc::{c_int, c_void};

/// A fabric: what processes that can reach each other share.
pub struct gdrfab_fabric {
    _opaque: [u8; 0],
}
/// A domain: regions, queues, counters and endpoints that work together.
pub struct gdrfab_domain {
    _opaque: [u8; 0],
}
/// A connected endpoint.
pub struct gdrfab_ep {
    _opaque: [u8; 0],
}
/// A passive endpoint: listens.
pub struct gdrfab_pep {
    _opaque: [u8; 0],
}
/// A completion queue.
pub struct gdrfab_cq {
    _opaque: [u8; 0],
}
/// An event queue.
pub struct gdrfab_eq {
    _opaque: [u8; 0],
}
/// A counter.
pub struct gdrfab_cntr {
    _opaque: [u8; 0],
}

/// Attributes of a completion queue (mirrors fi_cq_attr).
#[repr(C)]
pub struct gdrfab_cq_attr {
    /// sizeof(gdrfab_cq_attr)
    pub struct_size: usize,
    /// Entries; 0 = 1024. Posting calls answer -EAGAIN rather than overrun it.
    pub size: usize,
    /// 0
    pub flags: u64,
    /// GDRFAB_CQ_FORMAT_*
    pub format: u32,
    /// GDRFAB_WAIT_*
    pub wait_obj: u32,
}

/// Attributes of an event queue (mirrors fi_eq_attr).
#[repr(C)]
pub struct gdrfab_eq_attr {
    /// sizeof(gdrfab_eq_attr)
    pub struct_size: usize,
    /// A hint; event queues grow.
    pub size: usize,
    /// 0
    pub flags: u64,
    /// GDRFAB_WAIT_*
    pub wait_obj: u32,
    /// 0
    pub reserved: u32,
}

/// Attributes of a counter (mirrors fi_cntr_attr).
#[repr(C)]
pub struct gdrfab_cntr_attr {
    /// sizeof(gdrfab_cntr_attr)
    pub struct_size: usize,
    /// 0
    pub flags: u64,
    /// GDRFAB_WAIT_*
    pub wait_obj: u32,
    /// 0
    pub reserved: u32,
}

// SAFETY: repr(C), size first, integers only.
unsafe impl Sized0 for gdrfab_cq_attr {
    const FIRST: usize = 32;
}
// SAFETY: repr(C), size first, integers only.
unsafe impl Sized0 for gdrfab_eq_attr {
    const FIRST: usize = 32;
}
// SAFETY: repr(C), size first, integers only.
unsafe impl Sized0 for gdrfab_cntr_attr {
    const FIRST: usize = 24;
}

/// Entries of a queue whose attributes name no size.
const CQ_SIZE: usize = 1024;
/// Entries that a queue may have.
const CQ_SIZE_MAX: usize = 1 << 22;

fn wants_fd(wait_obj: u32) -> Result<bool> {
    match wait_obj {
        GDRFAB_WAIT_NONE | GDRFAB_WAIT_UNSPEC => Ok(false),
        GDRFAB_WAIT_FD => Ok(true),
        n => Err(Error::invalid(format!("attr->wait_obj: {n}; GDRFAB_WAIT_NONE, UNSPEC or FD"))),
    }
}

fn no_attr_flags(flags: u64) -> Result<()> {
    match flags {
        0 => Ok(()),
        n => Err(Error::new(GDRFAB_EBADFLAGS, format!("attr->flags: {n:#x}, must be 0"))),
    }
}

fn no_reserved(reserved: u32) -> Result<()> {
    match reserved {
        0 => Ok(()),
        n => Err(Error::invalid(format!("attr->reserved: {n}, must be 0"))),
    }
}

/// Opens a fabric. Mirrors fi_fabric.
///
/// @param info    a candidate of gdrfab_getinfo(); copied, not kept
/// @param context the caller's; gdrfab_fabric_context() gives it back
/// @param fabric  the handle; close it with gdrfab_fabric_close()
/// @return 0, -EINVAL (an argument; no provider name), -E2BIG (info of a newer version), -ENODEV (no such provider)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_fabric_open(info: *const gdrfab_info, context: *mut c_void, fabric: *mut *mut gdrfab_fabric) -> c_int {
    // SAFETY: the C caller says that info and fabric are live.
    control(|| unsafe {
        let out = output(fabric, "fabric")?;
        let opened = fabric::Fabric::open(&import(info, "info")?)?;
        opened.context.set(context as usize);
        out.write(give(opened));
        Ok(())
    })
}

/// Closes a fabric. Mirrors fi_close.
///
/// @return 0; -EBUSY while domains, event queues or passive endpoints are open; -EINVAL for NULL;
///   -EPERM in a process that did not open it
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_fabric_close(fabric: *mut gdrfab_fabric) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that it is not used again after 0.
    control(|| unsafe {
        object(fabric, "fabric")?.check_close()?;
        drop(reclaim(fabric));
        Ok(())
    })
}

/// Opens a domain. Mirrors fi_domain.
///
/// info->threading, progress and mr_mode decide how the domain behaves. With GDRFAB_PROGRESS_AUTO a thread
/// is started, and the domain locks whatever the threading level.
///
/// @param fabric  open fabric
/// @param info    a candidate of gdrfab_getinfo(), or the info of a connection request; copied, not kept
/// @param context the caller's; gdrfab_domain_context() gives it back
/// @param domain  the handle; close it with gdrfab_domain_close()
/// @return 0, -EINVAL, -E2BIG, -EMFILE or -ENOMEM (shared memory cannot be made), -EAGAIN (no thread can be started)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_domain_open(
    fabric: *mut gdrfab_fabric,
    info: *const gdrfab_info,
    context: *mut c_void,
    domain: *mut *mut gdrfab_domain,
) -> c_int {
    // SAFETY: the C caller says that the handle is open and the pointers live.
    control(|| unsafe {
        let out = output(domain, "domain")?;
        let fabric = shared(fabric, "fabric")?;
        let opened = fabric::Domain::open(&fabric, &import(info, "info")?)?;
        opened.context.set(context as usize);
        out.write(give(opened));
        Ok(())
    })
}

/// Closes a domain. Mirrors fi_close.
///
/// @return 0; -EBUSY while endpoints, queues, counters, regions or allocations of it exist (the words count
///   them); -EINVAL for NULL; -EPERM in a process that did not open it
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_domain_close(domain: *mut gdrfab_domain) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that it is not used again after 0.
    control(|| unsafe {
        object(domain, "domain")?.check_close()?;
        reclaim(domain).close();
        Ok(())
    })
}

/// Opens a connected endpoint. Mirrors fi_endpoint.
///
/// @param domain  open domain
/// @param info    a candidate, or a connection request's info, whose request the endpoint takes and
///   gdrfab_ep_accept() answers
/// @param context handed out in events of the endpoint, and by gdrfab_ep_context()
/// @param ep      the handle; close it with gdrfab_ep_close()
/// @return 0, -EINVAL (an argument; the request was taken already), -E2BIG
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_open(
    domain: *mut gdrfab_domain,
    info: *const gdrfab_info,
    context: *mut c_void,
    ep: *mut *mut gdrfab_ep,
) -> c_int {
    // SAFETY: the C caller says that the handle is open and the pointers live.
    control(|| unsafe {
        let out = output(ep, "ep")?;
        let domain = shared(domain, "domain")?;
        let opened = fabric::Endpoint::open(&domain, &import(info, "info")?, context as usize)?;
        opened.context.set(context as usize);
        out.write(give(opened));
        Ok(())
    })
}

/// Closes an endpoint. Mirrors fi_close.
///
/// The peer gets GDRFAB_SHUTDOWN. Outstanding operations and posted receives complete with ECANCELED in
/// their queues before the call returns 0, and no buffer of theirs is touched afterwards. Events of the endpoint that were
/// not read are dropped.
///
/// @return 0;
///   -EBUSY a peer (stopped, perhaps) or a device still has the buffer of an operation after GDRFAB_SHM_CLOSE_MS: the
///   connection is over, the entry comes when the buffer is quiet, and the call is to be made again;
///   -EINVAL for NULL, -EPERM in a process that did not open it
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_close(ep: *mut gdrfab_ep) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that it is not used again after 0.
    control(|| unsafe {
        shared(ep, "ep")?.close()?;
        crate::log!(Debug, "ep {ep:p}: closed");
        drop(reclaim(ep));
        Ok(())
    })
}

/// Opens a passive endpoint. Mirrors fi_passive_ep.
///
/// @param fabric  open fabric
/// @param info    its src_addr is where gdrfab_pep_listen() will listen; NULL there: a name of its own
/// @param context handed out in events of the passive endpoint, and by gdrfab_pep_context()
/// @param pep     the handle; close it with gdrfab_pep_close()
/// @return 0, -EINVAL (an argument; a malformed address), -E2BIG, -EHOSTUNREACH (another host's address)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_pep_open(
    fabric: *mut gdrfab_fabric,
    info: *const gdrfab_info,
    context: *mut c_void,
    pep: *mut *mut gdrfab_pep,
) -> c_int {
    // SAFETY: the C caller says that the handle is open and the pointers live.
    control(|| unsafe {
        let out = output(pep, "pep")?;
        let fabric = shared(fabric, "fabric")?;
        let opened = fabric::Pep::open(&fabric, &import(info, "info")?, context as usize)?;
        opened.context.set(context as usize);
        out.write(give(opened));
        Ok(())
    })
}

/// Closes a passive endpoint, whatever other threads wait on its event queue: its name is free, requests that nobody answered
/// are rejected, and no event names it from now on. Mirrors fi_close.
///
/// @return 0, -EINVAL for NULL, -EPERM in a process that did not open it
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_pep_close(pep: *mut gdrfab_pep) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that it is not used again after 0.
    control(|| unsafe {
        shared(pep, "pep")?.close()?;
        drop(reclaim(pep));
        Ok(())
    })
}

/// Opens a completion queue. Mirrors fi_cq_open.
///
/// @param domain  open domain
/// @param attr    attributes, or NULL: 1024 entries of GDRFAB_CQ_FORMAT_CONTEXT, no descriptor
/// @param context the caller's; gdrfab_cq_context() gives it back
/// @param cq      the handle; close it with gdrfab_cq_close()
/// @return 0, -EINVAL, -E2BIG, -GDRFAB_EBADFLAGS, -EMFILE (no descriptor for GDRFAB_WAIT_FD)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_open(
    domain: *mut gdrfab_domain,
    attr: *const gdrfab_cq_attr,
    context: *mut c_void,
    cq: *mut *mut gdrfab_cq,
) -> c_int {
    // SAFETY: the C caller says that the handle is open and the pointers live.
    control(|| unsafe {
        let out = output(cq, "cq")?;
        let domain = shared(domain, "domain")?;
        let (mut size, mut format, mut fd) = (CQ_SIZE, CqFormat::Context, false);
        if !attr.is_null() {
            let a = read_sized(attr, "attr")?;
            no_attr_flags(a.flags)?;
            fd = wants_fd(a.wait_obj)?;
            size = if a.size == 0 { CQ_SIZE } else { a.size };
            format = match a.format {
                GDRFAB_CQ_FORMAT_UNSPEC | GDRFAB_CQ_FORMAT_CONTEXT => CqFormat::Context,
                GDRFAB_CQ_FORMAT_MSG => CqFormat::Msg,
                GDRFAB_CQ_FORMAT_DATA => CqFormat::Data,
                n => return Err(Error::invalid(format!("attr->format: {n}; GDRFAB_CQ_FORMAT_CONTEXT, MSG or DATA"))),
            };
        }
        if size > CQ_SIZE_MAX {
            return Err(Error::invalid(format!("attr->size: {size}, at most {CQ_SIZE_MAX}")));
        }
        let opened = fabric::Cq::open(&domain, size, format, fd)?;
        opened.context.set(context as usize);
        out.write(give(opened));
        Ok(())
    })
}

/// Closes a completion queue; entries in it are lost. Mirrors fi_close.
///
/// @return 0, -EBUSY while endpoints are bound to it, -EINVAL for NULL, -EPERM in a process that did not open it
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_close(cq: *mut gdrfab_cq) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that it is not used again after 0.
    control(|| unsafe {
        object(cq, "cq")?.close()?;
        drop(reclaim(cq));
        Ok(())
    })
}

/// Opens an event queue. Mirrors fi_eq_open.
///
/// @param fabric  open fabric
/// @param attr    attributes, or NULL for none
/// @param context the caller's; gdrfab_eq_context() gives it back
/// @param eq      the handle; close it with gdrfab_eq_close()
/// @return 0, -EINVAL, -E2BIG, -GDRFAB_EBADFLAGS, -EMFILE
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_eq_open(
    fabric: *mut gdrfab_fabric,
    attr: *const gdrfab_eq_attr,
    context: *mut c_void,
    eq: *mut *mut gdrfab_eq,
) -> c_int {
    // SAFETY: the C caller says that the handle is open and the pointers live.
    control(|| unsafe {
        let out = output(eq, "eq")?;
        let fabric = shared(fabric, "fabric")?;
        let mut fd = false;
        if !attr.is_null() {
            let a = read_sized(attr, "attr")?;
            no_attr_flags(a.flags)?;
            no_reserved(a.reserved)?;
            fd = wants_fd(a.wait_obj)?;
        }
        let opened = fabric::Eq::open(&fabric, fd)?;
        opened.context.set(context as usize);
        out.write(give(opened));
        Ok(())
    })
}

/// Closes an event queue; events in it are lost. Mirrors fi_close.
///
/// @return 0, -EBUSY while endpoints are bound to it, -EINVAL for NULL, -EPERM in a process that did not open it
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_eq_close(eq: *mut gdrfab_eq) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that it is not used again after 0.
    control(|| unsafe {
        object(eq, "eq")?.close()?;
        drop(reclaim(eq));
        Ok(())
    })
}

/// Opens a counter. Mirrors fi_cntr_open.
///
/// @param domain  open domain
/// @param attr    attributes, or NULL for none
/// @param context the caller's; gdrfab_cntr_context() gives it back
/// @param cntr    the handle; close it with gdrfab_cntr_close()
/// @return 0, -EINVAL, -E2BIG, -GDRFAB_EBADFLAGS, -EMFILE
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_open(
    domain: *mut gdrfab_domain,
    attr: *const gdrfab_cntr_attr,
    context: *mut c_void,
    cntr: *mut *mut gdrfab_cntr,
) -> c_int {
    // SAFETY: the C caller says that the handle is open and the pointers live.
    control(|| unsafe {
        let out = output(cntr, "cntr")?;
        let domain = shared(domain, "domain")?;
        let mut fd = false;
        if !attr.is_null() {
            let a = read_sized(attr, "attr")?;
            no_attr_flags(a.flags)?;
            no_reserved(a.reserved)?;
            fd = wants_fd(a.wait_obj)?;
        }
        let opened = fabric::Cntr::open(&domain, fd)?;
        opened.context.set(context as usize);
        out.write(give(opened));
        Ok(())
    })
}

/// Closes a counter. Mirrors fi_close.
///
/// @return 0, -EBUSY while endpoints or regions are bound to it, -EINVAL for NULL, -EPERM in a process that did
///   not open it
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_close(cntr: *mut gdrfab_cntr) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that it is not used again after 0.
    control(|| unsafe {
        object(cntr, "cntr")?.close()?;
        drop(reclaim(cntr));
        Ok(())
    })
}

/// The context that a fabric was opened with; NULL for NULL. Mirrors fid->context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_fabric_context(fabric: *mut gdrfab_fabric) -> *mut c_void {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| std::ptr::null_mut(), || unsafe { object(fabric, "fabric") }.map_or(std::ptr::null_mut(), |o| o.context.get() as *mut c_void))
}

/// The context that a domain was opened with; NULL for NULL. Mirrors fid->context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_domain_context(domain: *mut gdrfab_domain) -> *mut c_void {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| std::ptr::null_mut(), || unsafe { object(domain, "domain") }.map_or(std::ptr::null_mut(), |o| o.context.get() as *mut c_void))
}

/// The context that an endpoint was opened with; NULL for NULL. Mirrors fid->context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_context(ep: *mut gdrfab_ep) -> *mut c_void {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| std::ptr::null_mut(), || unsafe { object(ep, "ep") }.map_or(std::ptr::null_mut(), |o| o.context.get() as *mut c_void))
}

/// The context that a passive endpoint was opened with; NULL for NULL. Mirrors fid->context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_pep_context(pep: *mut gdrfab_pep) -> *mut c_void {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| std::ptr::null_mut(), || unsafe { object(pep, "pep") }.map_or(std::ptr::null_mut(), |o| o.context.get() as *mut c_void))
}

/// The context that a completion queue was opened with; NULL for NULL. Mirrors fid->context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_context(cq: *mut gdrfab_cq) -> *mut c_void {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| std::ptr::null_mut(), || unsafe { object(cq, "cq") }.map_or(std::ptr::null_mut(), |o| o.context.get() as *mut c_void))
}

/// The context that an event queue was opened with; NULL for NULL. Mirrors fid->context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_eq_context(eq: *mut gdrfab_eq) -> *mut c_void {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| std::ptr::null_mut(), || unsafe { object(eq, "eq") }.map_or(std::ptr::null_mut(), |o| o.context.get() as *mut c_void))
}

/// The context that a counter was opened with; NULL for NULL. Mirrors fid->context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_context(cntr: *mut gdrfab_cntr) -> *mut c_void {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| std::ptr::null_mut(), || unsafe { object(cntr, "cntr") }.map_or(std::ptr::null_mut(), |o| o.context.get() as *mut c_void))
}

/// Names the object behind a handle for event entries.
pub(super) fn same<H: Handle>(handle: usize) -> *mut H {
    handle as *mut H
}
