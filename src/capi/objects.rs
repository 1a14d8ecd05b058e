// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Opening and closing objects. Each kind of object has a close call of its own, which returns -EBUSY and
//! leaves the object open while others use it.

use super::boundary::{ExtensibleStruct, Handle, control, give, hold, object, output, read_sized, reclaim, release, shared};
use super::info::{gdrfab_info, import};
use super::types::*;
use crate::error::{Error, Result};
use crate::fabric::{self, CqFormat};
use crate::sync::serial::Promise;
use libc::{c_int, c_void};

// == Fabric and domain ==

/// Processes that reach each other.
pub struct gdrfab_fabric {
    _opaque: [u8; 0],
}
/// Opens regions, queues, counters and endpoints.
pub struct gdrfab_domain {
    _opaque: [u8; 0],
}
/// An endpoint.
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
/// Numbers the peers of connectionless endpoints.
pub struct gdrfab_av {
    _opaque: [u8; 0],
}

macro_rules! handles {
    ($($c:ident => $inner:ident;)*) => { $(impl Handle for $c { type Inner = fabric::$inner; })* };
}

handles! {
    gdrfab_fabric => Fabric;
    gdrfab_domain => Domain;
    gdrfab_ep => Endpoint;
    gdrfab_pep => Pep;
    gdrfab_cq => Cq;
    gdrfab_eq => Eq;
    gdrfab_cntr => Cntr;
    gdrfab_av => Av;
}

fn wants_fd(wait_obj: u32) -> Result<bool> {
    match wait_obj {
        GDRFAB_WAIT_NONE => Ok(false),
        GDRFAB_WAIT_FD => Ok(true),
        n => Err(Error::invalid(format!("attr->wait_obj: {n}, must be GDRFAB_WAIT_NONE or GDRFAB_WAIT_FD"))),
    }
}

pub(super) fn no_attr_flags(flags: u64) -> Result<()> {
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

// == Fabric and domain ==

/// Opens a fabric, freed by gdrfab_fabric_close(). Mirrors fi_fabric.
///
/// @param info   a candidate of gdrfab_getinfo()
/// @return 0, -EINVAL (also: no provider name), -E2BIG, -ENODEV (no such provider)
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

/// Closes a fabric: 0, -EBUSY (objects opened from it are open), -EINVAL, -EPERM. Mirrors fi_close.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_fabric_close(fabric: *mut gdrfab_fabric) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that it is not used again after 0.
    release(|| unsafe {
        object(fabric, "fabric")?.check_close()?;
        drop(reclaim(fabric));
        Ok(())
    })
}

/// The context of gdrfab_fabric_open(); NULL for NULL. Mirrors fid->context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_fabric_context(fabric: *mut gdrfab_fabric) -> *mut c_void {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| std::ptr::null_mut(), || unsafe { object(fabric, "fabric") }.map_or(std::ptr::null_mut(), |o| o.context.get() as *mut c_void))
}

/// Opens a domain, freed by gdrfab_domain_close(). Mirrors fi_domain.
///
/// info->threading, progress and mr_mode decide how it behaves. GDRFAB_PROGRESS_AUTO starts a thread, and
/// the domain then has locks, whatever the threading level.
///
/// @param info   a candidate of gdrfab_getinfo(), or the info of a connection request
/// @return 0, -EINVAL (also: the fabric was opened with the info of another provider or fabric), -E2BIG,
///   -EPERM, -EMFILE or -ENOMEM (no shared memory), -EAGAIN (no thread can be started), -ENOENT or -EACCES
///   (tcp: GDRFAB_TCP_KEY_FILE is not there, or others may read it), -ENODEV or -EADDRNOTAVAIL (verbs: the
///   device or its address is gone)
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
        // An info whose threading is GDRFAB_THREAD_DOMAIN is the C caller's word that calls on the domain never overlap.
        let opened = fabric::Domain::open(&fabric, &import(info, "info")?, Some(Promise::given()))?;
        opened.context.set(context as usize);
        out.write(give(opened));
        Ok(())
    })
}

/// Closes a domain: 0, -EBUSY (the words count its open objects, and its memory of gdrfab_mem_alloc()),
/// -EINVAL, -EPERM. Mirrors fi_close.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_domain_close(domain: *mut gdrfab_domain) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that it is not used again after 0.
    release(|| unsafe {
        object(domain, "domain")?.check_close()?;
        reclaim(domain).close();
        Ok(())
    })
}

/// The context of gdrfab_domain_open(); NULL for NULL. Mirrors fid->context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_domain_context(domain: *mut gdrfab_domain) -> *mut c_void {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| std::ptr::null_mut(), || unsafe { object(domain, "domain") }.map_or(std::ptr::null_mut(), |o| o.context.get() as *mut c_void))
}

// == Endpoints and connections ==

/// Opens an endpoint, connected or connectionless as info->ep_type says, freed by gdrfab_ep_close(). Mirrors
/// fi_endpoint.
///
/// @param info    a candidate, or the info of a GDRFAB_CONNREQ event, whose request this answers:
///   gdrfab_ep_accept() follows
/// @param context returned in events of the endpoint, and by gdrfab_ep_context()
/// @return 0, -EINVAL (also: the request was answered before; the domain was opened with the info of another
///   provider, fabric, domain or type), -E2BIG, -EPERM, -EADDRNOTAVAIL (tcp: info->src_addr names no host;
///   a name is waited for), -EMFILE, -ENOMEM
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

/// Closes an endpoint. A connected peer gets GDRFAB_SHUTDOWN. Outstanding operations and receives complete
/// with ECANCELED before the call returns 0, and their buffers are not touched afterwards. Unread events of
/// the endpoint are dropped. Mirrors fi_close.
///
/// @return 0, or
///   -EBUSY a peer (stopped, perhaps) or a device still uses a buffer after GDRFAB_SHM_CLOSE_MS. The
///   connection is over, the entry comes when the buffer is free, and the call is to be repeated;
///   -EINVAL, -EPERM
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_close(ep: *mut gdrfab_ep) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that it is not used again after 0.
    release(|| unsafe {
        shared(ep, "ep")?.close()?;
        crate::log!(Debug, "ep {ep:p}: closed");
        drop(reclaim(ep));
        Ok(())
    })
}

/// The context of gdrfab_ep_open(); NULL for NULL. Mirrors fid->context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_ep_context(ep: *mut gdrfab_ep) -> *mut c_void {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| std::ptr::null_mut(), || unsafe { object(ep, "ep") }.map_or(std::ptr::null_mut(), |o| o.context.get() as *mut c_void))
}

/// Opens a passive endpoint, freed by gdrfab_pep_close(). Mirrors fi_passive_ep.
///
/// @param info    its src_addr is where gdrfab_pep_listen() listens; NULL there: the library chooses a name
/// @param context returned in events of the passive endpoint, and by gdrfab_pep_context()
/// @return 0, -EINVAL (also: a malformed address; the fabric was opened with the info of another provider or
///   fabric), -E2BIG, -EPERM, -EHOSTUNREACH (shm: an address of another host), -EMFILE; of tcp and verbs,
///   which take their port now: -EADDRINUSE (somebody has it), -EADDRNOTAVAIL (no address of this host; a
///   name is waited for), -EACCES (a port below net.ipv4.ip_unprivileged_port_start); of tcp -ENOENT or
///   -EACCES (GDRFAB_TCP_KEY_FILE is not there, or others may read it)
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

/// Closes a passive endpoint, while other threads may wait on its event queue: its name is free, unanswered
/// requests are rejected, and no event names it any more. Mirrors fi_close.
///
/// @return 0, -EINVAL, -EPERM
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_pep_close(pep: *mut gdrfab_pep) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that it is not used again after 0.
    release(|| unsafe {
        shared(pep, "pep")?.close()?;
        drop(reclaim(pep));
        Ok(())
    })
}

/// The context of gdrfab_pep_open(); NULL for NULL. Mirrors fid->context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_pep_context(pep: *mut gdrfab_pep) -> *mut c_void {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| std::ptr::null_mut(), || unsafe { object(pep, "pep") }.map_or(std::ptr::null_mut(), |o| o.context.get() as *mut c_void))
}

// == Completion queue ==

/// Attributes of a completion queue (mirrors fi_cq_attr).
#[repr(C)]
pub struct gdrfab_cq_attr {
    /// sizeof(gdrfab_cq_attr)
    pub struct_size: usize,
    /// Entries; 0: 1024. At most 4194304.
    pub size: usize,
    /// 0
    pub flags: u64,
    /// GDRFAB_CQ_FORMAT_*
    pub format: u32,
    /// GDRFAB_WAIT_*
    pub wait_obj: u32,
}

// SAFETY: repr(C), size first, integers only.
unsafe impl ExtensibleStruct for gdrfab_cq_attr {
    const FIRST: usize = 32;
}

/// The size of a queue whose attributes name none.
const CQ_SIZE: usize = 1024;
/// The largest size of a queue.
const CQ_SIZE_MAX: usize = 1 << 22;

/// Opens a completion queue, freed by gdrfab_cq_close(). Mirrors fi_cq_open.
///
/// @param attr attributes, or NULL: 1024 entries of GDRFAB_CQ_FORMAT_CONTEXT, no descriptor
/// @return 0, -EINVAL, -E2BIG, -GDRFAB_EBADFLAGS, -EPERM, -EMFILE (no descriptor for GDRFAB_WAIT_FD)
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
                GDRFAB_CQ_FORMAT_TAGGED => CqFormat::Tagged,
                n => return Err(Error::invalid(format!("attr->format: {n}, must be GDRFAB_CQ_FORMAT_CONTEXT, MSG, DATA or TAGGED"))),
            };
        }
        if size > CQ_SIZE_MAX {
            return Err(Error::invalid(format!("attr->size: {size}, must be at most {CQ_SIZE_MAX}")));
        }
        let opened = fabric::Cq::open(&domain, size, format, fd)?;
        opened.context.set(context as usize);
        out.write(give(opened));
        Ok(())
    })
}

/// Closes a queue with its entries: 0, -EBUSY (endpoints are bound), -EINVAL, -EPERM. Mirrors fi_close.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_close(cq: *mut gdrfab_cq) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that it is not used again after 0.
    release(|| unsafe {
        object(cq, "cq")?.close()?;
        drop(reclaim(cq));
        Ok(())
    })
}

/// The context of gdrfab_cq_open(); NULL for NULL. Mirrors fid->context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cq_context(cq: *mut gdrfab_cq) -> *mut c_void {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| std::ptr::null_mut(), || unsafe { object(cq, "cq") }.map_or(std::ptr::null_mut(), |o| o.context.get() as *mut c_void))
}

// == Event queue ==

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

// SAFETY: repr(C), size first, integers only.
unsafe impl ExtensibleStruct for gdrfab_eq_attr {
    const FIRST: usize = 32;
}

/// Opens an event queue, freed by gdrfab_eq_close(). Mirrors fi_eq_open.
///
/// @return 0, -EINVAL, -E2BIG, -GDRFAB_EBADFLAGS, -EPERM, -EMFILE (no descriptor)
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

/// Closes a queue with its events: 0, -EBUSY (endpoints are bound), -EINVAL, -EPERM. Mirrors fi_close.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_eq_close(eq: *mut gdrfab_eq) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that it is not used again after 0.
    release(|| unsafe {
        object(eq, "eq")?.close()?;
        drop(reclaim(eq));
        Ok(())
    })
}

/// The context of gdrfab_eq_open(); NULL for NULL. Mirrors fid->context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_eq_context(eq: *mut gdrfab_eq) -> *mut c_void {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| std::ptr::null_mut(), || unsafe { object(eq, "eq") }.map_or(std::ptr::null_mut(), |o| o.context.get() as *mut c_void))
}

// == Counter ==

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
unsafe impl ExtensibleStruct for gdrfab_cntr_attr {
    const FIRST: usize = 24;
}

/// Opens a counter, freed by gdrfab_cntr_close(). Mirrors fi_cntr_open.
///
/// @return 0, -EINVAL, -E2BIG, -GDRFAB_EBADFLAGS, -EPERM, -EMFILE (no descriptor)
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

/// Closes a counter: 0, -EBUSY (endpoints or regions are bound), -EINVAL, -EPERM. Mirrors fi_close.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_close(cntr: *mut gdrfab_cntr) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that it is not used again after 0.
    release(|| unsafe {
        object(cntr, "cntr")?.close()?;
        drop(reclaim(cntr));
        Ok(())
    })
}

/// The context of gdrfab_cntr_open(); NULL for NULL. Mirrors fid->context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_cntr_context(cntr: *mut gdrfab_cntr) -> *mut c_void {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| std::ptr::null_mut(), || unsafe { object(cntr, "cntr") }.map_or(std::ptr::null_mut(), |o| o.context.get() as *mut c_void))
}

/// Names the object behind a handle for event entries.
pub(super) fn same<H: Handle>(handle: usize) -> *mut H {
    handle as *mut H
}
