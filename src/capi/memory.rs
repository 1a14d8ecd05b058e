// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Registration of memory, and allocation of host memory that peers can map.

use super::boundary::{
    ExtensibleStruct, control, counted, hold, iovecs, null, object, output, output_sized, read_sized, release, share, shared, write_sized,
    write_text,
};
use super::objects::{gdrfab_cntr, gdrfab_domain};
use super::types::*;
use crate::error::{Error, Result, errno};
use crate::fabric::Mr;
use crate::hmem::{Iface, Site};
use crate::mr::{Access, PathPolicy, Paths};
use crate::mr::{Attr, MR_IOV_LIMIT, Memory, Source};
use crate::prov::op::Iov;
use libc::{c_char, c_int, c_void, iovec, ssize_t};
use std::os::fd::{AsRawFd, BorrowedFd};

// == Memory ==

/// A registered region.
pub struct gdrfab_mr {
    _opaque: [u8; 0],
}

/// Memory behind a descriptor: a dma-buf, or a file that can be mapped, such as a memfd (mirrors
/// fi_mr_dmabuf).
///
/// The region is [offset, offset + len) of the file. With GDRFAB_MR_VIRT_ADDR its first byte has the remote
/// address base_addr + offset. The descriptor is duplicated; the caller may close its own. A memfd that is not
/// sealed yet gets F_SEAL_SHRINK, so that no truncation can kill a peer that maps it.
#[repr(C)]
pub struct gdrfab_mr_dmabuf {
    /// Descriptor.
    pub fd: c_int,
    /// 0
    pub reserved: u32,
    /// First byte of the region in the file.
    pub offset: u64,
    /// Bytes of the region.
    pub len: usize,
    /// Address that stands for the start of the file, or NULL for 0.
    pub base_addr: *mut c_void,
}

/// The memory to register, and how (mirrors fi_mr_attr).
#[repr(C)]
pub struct gdrfab_mr_attr {
    /// sizeof(gdrfab_mr_attr)
    pub struct_size: usize,
    /// Pieces of the region, in order; not with GDRFAB_MR_DMABUF.
    pub mr_iov: *const iovec,
    /// With GDRFAB_MR_DMABUF: the file.
    pub dmabuf: *const gdrfab_mr_dmabuf,
    /// Pieces, up to mr_iov_limit; 1 with GDRFAB_MR_DMABUF.
    pub iov_count: usize,
    /// GDRFAB_SEND, RECV, READ, WRITE, REMOTE_READ, REMOTE_WRITE; ATOMIC: atomics by a card (verbs).
    pub access: u64,
    /// Without GDRFAB_MR_VIRT_ADDR: remote address of the first byte; else 0.
    pub offset: u64,
    /// The key, without GDRFAB_MR_PROV_KEY; else ignored.
    pub requested_key: u64,
    /// Any pointer; gdrfab_mr_context() returns it.
    pub context: *mut c_void,
    /// Number of the memory's device; 0 with GDRFAB_HMEM_SYSTEM, ignored with GDRFAB_HMEM_AUTO.
    pub device: u64,
    /// GDRFAB_HMEM_*. GDRFAB_HMEM_AUTO: asks each driver of this host for the owner of the first address. A
    /// file does not tell the device of its memory: with GDRFAB_MR_DMABUF, AUTO counts as GDRFAB_HMEM_SYSTEM,
    /// and the CPU may read the bytes of small operations. If it must not, name the device
    /// (gdrfab_hmem_detect()).
    pub iface: u32,
    /// 0
    pub reserved: u32,
    /// Peers use only these GDRFAB_PATH_*; 0: any.
    pub require: u64,
    /// GDRFAB_PATH_* that peers never use.
    pub forbid: u64,
}

/// A region's attributes and paths.
#[repr(C)]
pub struct gdrfab_mr_info {
    /// sizeof(gdrfab_mr_info), set by the caller
    pub struct_size: usize,
    /// The key by which peers name it.
    pub key: u64,
    /// Remote address of the first byte.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// Access rights.
    pub access: u64,
    /// GDRFAB_PATH_* that it offers to peers.
    pub paths: u64,
    /// The fastest of them.
    pub path: u64,
    /// Number of the device.
    pub device: u64,
    /// GDRFAB_HMEM_*
    pub iface: u32,
    /// Pieces.
    pub iov_count: u32,
}

// SAFETY: repr(C), size first; pointers are checked at use.
unsafe impl ExtensibleStruct for gdrfab_mr_attr {
    const FIRST: usize = 96;
}
// SAFETY: repr(C), size first, integers only.
unsafe impl ExtensibleStruct for gdrfab_mr_info {
    const FIRST: usize = 72;
}

/// The rights that any provider grants.
const ACCESS_PLAIN: u64 = GDRFAB_SEND | GDRFAB_RECV | GDRFAB_READ | GDRFAB_WRITE | GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE;

fn access(bits: u64) -> Result<Access> {
    match bits & !(ACCESS_PLAIN | GDRFAB_ATOMIC) {
        0 => Ok(Access::from_bits_truncate(bits)),
        unknown => Err(Error::invalid(format!("access: {unknown:#x} are not access rights"))),
    }
}

fn paths(bits: u64, name: &str) -> Result<Paths> {
    Paths::from_bits(bits).ok_or_else(|| Error::invalid(format!("{name}: {bits:#x} are not GDRFAB_PATH_* bits")))
}

fn check_count(count: usize) -> Result<()> {
    if count == 0 || count > MR_IOV_LIMIT {
        return Err(Error::invalid(format!("iov_count: {count}, must be 1 to {MR_IOV_LIMIT}")));
    }
    Ok(())
}

fn check_flags(flags: u64) -> Result<()> {
    match flags & !(GDRFAB_RMA_EVENT | GDRFAB_MR_DMABUF) {
        0 => Ok(()),
        unknown => Err(Error::new(GDRFAB_EBADFLAGS, format!("flags: {unknown:#x} are not flags of registration"))),
    }
}

fn memory_of(iface: u32, device: u64) -> Result<Memory> {
    if iface == GDRFAB_HMEM_AUTO {
        return Ok(Memory::Auto);
    }
    match Iface::from_raw(iface) {
        None => Err(Error::invalid(format!("attr->iface: {iface} is not a GDRFAB_HMEM_*"))),
        Some(Iface::System) => Ok(Memory::Host),
        Some(iface) => match u32::try_from(device) {
            Ok(device) => Ok(Memory::Device(Site { iface, device })),
            Err(_) => Err(Error::invalid(format!("attr->device: {device} is not a device number"))),
        },
    }
}

/// Only gdrfab_mr_regattr() has a place for a descriptor; elsewhere the flag is an unknown one.
fn flags_of_ranges(flags: u64) -> u64 {
    if flags & GDRFAB_MR_DMABUF != 0 { u64::MAX } else { flags }
}

/// Registers the usual case: one range of host memory without conditions. False: the request is special or
/// wrong, and nothing was done.
///
/// # Safety
/// As for gdrfab_mr_regattr().
#[inline]
unsafe fn register_fast(domain: *mut gdrfab_domain, attr: *const gdrfab_mr_attr, flags: u64, mr: *mut *mut gdrfab_mr) -> bool {
    if attr.is_null() || !attr.is_aligned() || mr.is_null() || !mr.is_aligned() || flags != 0 {
        return false;
    }
    // SAFETY: the struct begins with its size, and only a struct of exactly our size is read further.
    unsafe {
        if attr.cast::<usize>().read() != size_of::<gdrfab_mr_attr>() {
            return false;
        }
        let a = &*attr;
        let plain = a.iov_count == 1 && a.iface == GDRFAB_HMEM_SYSTEM && (a.reserved, a.require, a.forbid, a.offset) == (0, 0, 0, 0);
        if !plain || a.access & !ACCESS_PLAIN != 0 || a.mr_iov.is_null() || !a.mr_iov.is_aligned() {
            return false;
        }
        let iov = a.mr_iov.cast::<Iov>().read();
        if iov.addr() == 0 || iov.is_empty() || iov.addr().checked_add(iov.len()).is_none() {
            return false;
        }
        let Ok(open) = object(domain, "domain") else { return false };
        let Some(opened) = open.register_fast(iov, Access::from_bits_truncate(a.access), || share(domain)) else { return false };
        opened.context.set(a.context as usize);
        mr.write(give_mr(opened));
    }
    true
}

fn give_mr(mr: Box<Mr>) -> *mut gdrfab_mr {
    Box::into_raw(mr).cast()
}

/// # Safety
/// NULL, or an open region's handle.
unsafe fn mr_of<'a>(mr: *mut gdrfab_mr) -> Result<&'a Mr> {
    if mr.is_null() || !mr.cast::<Mr>().is_aligned() {
        return Err(null("mr"));
    }
    // SAFETY: the C caller says that the handle is open.
    Ok(unsafe { &*mr.cast::<Mr>() })
}

/// Registers one range of host memory. Handle and errors as of gdrfab_mr_regattr(). Mirrors fi_mr_reg.
///
/// @param buf           first byte; the memory must stay mapped until gdrfab_mr_close() has returned
/// @param len           bytes, not 0
/// @param access        rights, as in gdrfab_mr_attr
/// @param offset        as in gdrfab_mr_attr
/// @param requested_key as in gdrfab_mr_attr
/// @param flags         0, GDRFAB_RMA_EVENT
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_mr_reg(
    domain: *mut gdrfab_domain,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    context: *mut c_void,
    mr: *mut *mut gdrfab_mr,
) -> c_int {
    if buf.is_null() || len == 0 {
        return control(|| if buf.is_null() { Err(null("buf")) } else { Err(Error::invalid("len: 0, must be at least 1")) });
    }
    let one = iovec { iov_base: buf.cast_mut(), iov_len: len };
    // SAFETY: the C caller says that the domain is open; the iovec is live.
    unsafe { gdrfab_mr_regv(domain, &raw const one, 1, access, offset, requested_key, flags, context, mr) }
}

/// Registers several ranges of host memory as one region. Errors as of gdrfab_mr_regattr(). Mirrors
/// fi_mr_regv.
///
/// @param iov   the pieces; peers see them joined, beginning at the first one's address
/// @param count number of pieces, up to info->mr_iov_limit; all else as in gdrfab_mr_reg()
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_mr_regv(
    domain: *mut gdrfab_domain,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    context: *mut c_void,
    mr: *mut *mut gdrfab_mr,
) -> c_int {
    // SAFETY: zeros are a valid attribute struct.
    let mut attr = unsafe { std::mem::zeroed::<gdrfab_mr_attr>() };
    attr.struct_size = size_of::<gdrfab_mr_attr>();
    attr.mr_iov = iov;
    attr.iov_count = count;
    attr.access = access;
    attr.offset = offset;
    attr.requested_key = requested_key;
    attr.context = context;
    // SAFETY: the C caller says that the domain is open; the attributes are live.
    unsafe { gdrfab_mr_regattr(domain, &raw const attr, flags_of_ranges(flags), mr) }
}

/// Registers memory of any kind; gdrfab_mr_close() frees the handle. Mirrors fi_mr_regattr.
///
/// shm and tcp pin nothing and touch no page (a driver may pin host memory when shm first copies between it
/// and a device). verbs pins host memory, unless GDRFAB_VERBS_ODP is set, and device memory by its dma-buf.
/// For device memory the driver makes a handle for other processes, where the vendor has one; the range may
/// span allocations of one device and kind. gdrfab_mr_query() and gdrfab_mr_explain() tell which paths the
/// region offers, and why not the others.
///
/// @param flags 0, GDRFAB_MR_DMABUF, GDRFAB_RMA_EVENT
/// @return 0, or
///   -EINVAL also length 0, overflow, unknown rights, an offset beyond the file, memory that is not of iface
///   and device to its end;
///   -ENOSYS, -ENODEV the driver or its devices are not here; -EPERM also a driver that was opened before a
///   fork;
///   -EOPNOTSUPP no path is left after require and forbid: gdrfab_last_error() tells why for each;
///   -GDRFAB_ENOKEY requested_key is in use; -ENOSPC info->mr_cnt regions are open;
///   -EBADF, -EACCES, -ENODEV the descriptor is none, is not open for the access, or cannot be mapped;
///   -E2BIG, -GDRFAB_EBADFLAGS, -EMFILE, -ENOMEM
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_mr_regattr(
    domain: *mut gdrfab_domain,
    attr: *const gdrfab_mr_attr,
    flags: u64,
    mr: *mut *mut gdrfab_mr,
) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that the structs and arrays are live.
    if let Some(rc) = hold(Some, || unsafe { register_fast(domain, attr, flags, mr) }.then_some(0)) {
        return rc;
    }
    // SAFETY: the C caller says that the handle is open, and that the structs and arrays are live.
    control(|| unsafe {
        let out = output(mr, "mr")?;
        let a = read_sized(attr, "attr")?;
        check_flags(flags)?;
        let memory = memory_of(a.iface, a.device)?;
        if a.reserved != 0 {
            return Err(Error::invalid("attr->reserved: must be 0"));
        }
        let source = if flags & GDRFAB_MR_DMABUF != 0 {
            if a.dmabuf.is_null() || !a.dmabuf.is_aligned() {
                return Err(null("attr->dmabuf"));
            }
            if a.iov_count != 1 {
                return Err(Error::invalid(format!("attr->iov_count: {}, must be 1 with GDRFAB_MR_DMABUF", a.iov_count)));
            }
            let d = a.dmabuf.read();
            if d.reserved != 0 {
                return Err(Error::invalid("attr->dmabuf->reserved: must be 0"));
            }
            if d.fd < 0 {
                return Err(no_descriptor(d.fd));
            }
            Source::File { fd: BorrowedFd::borrow_raw(d.fd), offset: d.offset, len: d.len, base_addr: d.base_addr as u64 }
        } else {
            check_count(a.iov_count)?;
            Source::Iov(iovecs(a.mr_iov, a.iov_count, "attr->mr_iov")?)
        };
        let attr = Attr {
            source,
            memory,
            access: access(a.access)?,
            offset: a.offset,
            requested_key: a.requested_key,
            policy: PathPolicy { require: paths(a.require, "attr->require")?, forbid: paths(a.forbid, "attr->forbid")? },
            rma_event: flags & GDRFAB_RMA_EVENT != 0,
        };
        // The first call on the descriptor finds out whether it is open.
        let named = |e: Error| match &attr.source {
            Source::File { fd, .. } if e.errno == errno::EBADF => no_descriptor(fd.as_raw_fd()),
            _ => e,
        };
        let opened = shared(domain, "domain")?.register(&attr).map_err(named)?;
        opened.context.set(a.context as usize);
        out.write(give_mr(opened));
        Ok(())
    })
}

fn no_descriptor(fd: c_int) -> Error {
    Error::new(errno::EBADF, format!("attr->dmabuf->fd: {fd} is not an open descriptor"))
}

/// Closes a region. When it returns 0, no peer that runs this library reaches the memory: copies in flight
/// have ended, those of broken connections too, and later operations on the key fail at their initiator with
/// EKEYREJECTED. A hostile process of the same user can keep what it has mapped. Mirrors fi_close.
///
/// @return 0, -EINVAL, -EPERM, or -EBUSY: a peer (stopped, perhaps) or a thread of this process has been
///   inside a copy for GDRFAB_SHM_CLOSE_MS, and gdrfab_last_error() says which. The region stays closed to new
///   operations; the call is to be repeated
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_mr_close(mr: *mut gdrfab_mr) -> c_int {
    // SAFETY: the C caller says that the handle is open, and that it is not used again after 0.
    release(|| unsafe {
        mr_of(mr)?.close()?;
        Box::from_raw(mr.cast::<Mr>()).put_back();
        Ok(())
    })
}

/// The context that a region was registered with; NULL for NULL. Mirrors fid->context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_mr_context(mr: *mut gdrfab_mr) -> *mut c_void {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| std::ptr::null_mut(), || unsafe { mr_of(mr) }.map_or(std::ptr::null_mut(), |m| m.context.get() as *mut c_void))
}

/// The key by which peers name the region; 0 for NULL. Mirrors fi_mr_key.
///
/// Of the keys that shm and tcp choose, 44 bits are random; of those of staged regions of verbs, 43. Knowing
/// some keys of a domain does not help to compute others. The device's own keys over verbs have 32 bits, as
/// random as the device makes them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_mr_key(mr: *mut gdrfab_mr) -> u64 {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| 0, || unsafe { mr_of(mr) }.map_or(0, Mr::key))
}

/// The descriptor (desc) by which operations name local buffers inside the region; NULL for NULL. It is a
/// number, not memory. Mirrors fi_mr_desc.
///
/// Device memory needs it: without it an operation expects host memory. For host memory it lets a peer help
/// with large copies, and a driver pin the memory. Pieces of one operation are all host memory, or all in the
/// region of the first descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_mr_desc(mr: *mut gdrfab_mr) -> *mut c_void {
    // SAFETY: the C caller says that the handle is open.
    hold(|_| std::ptr::null_mut(), || unsafe { mr_of(mr) }.map_or(std::ptr::null_mut(), |m| m.desc() as *mut c_void))
}

/// Binds a counter that grows by one with each complete write of a peer into the region. Mirrors fi_mr_bind.
///
/// @param mr    region; if peers have used it already, it was registered with GDRFAB_RMA_EVENT, or their
///   writes may go uncounted
/// @param cntr  counter; closed after the region
/// @param flags GDRFAB_REMOTE_WRITE
/// @return 0, -EINVAL, -GDRFAB_EBADFLAGS, -EPERM, -EOPNOTSUPP (connected endpoints over verbs: a card does not
///   report plain writes)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_mr_bind_cntr(mr: *mut gdrfab_mr, cntr: *mut gdrfab_cntr, flags: u64) -> c_int {
    // SAFETY: the C caller says that the handles are open.
    control(|| unsafe {
        if flags != GDRFAB_REMOTE_WRITE {
            return Err(Error::new(GDRFAB_EBADFLAGS, format!("flags: {flags:#x}, must be GDRFAB_REMOTE_WRITE; reads are not reported")));
        }
        mr_of(mr)?.bind_cntr(object(cntr, "cntr")?)
    })
}

/// Tells a region's attributes and paths: 0 or -EINVAL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_mr_query(mr: *mut gdrfab_mr, info: *mut gdrfab_mr_info) -> c_int {
    // SAFETY: the C caller says that the handle is open, and the struct writable for its size.
    control(|| unsafe {
        let out = output_sized(info, "info")?;
        let f = mr_of(mr)?.facts()?;
        let facts = gdrfab_mr_info {
            struct_size: 0,
            key: f.key,
            base: f.base,
            len: f.len,
            access: f.access.bits(),
            paths: f.paths.bits(),
            path: f.paths.best().bits(),
            device: u64::from(f.site.device),
            iface: f.site.iface as u32,
            iov_count: f.iov_count,
        };
        write_sized(out, &facts);
        Ok(())
    })
}

/// Tells in words which paths a region offers, and why not the others: length of the text, or -EINVAL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_mr_explain(mr: *mut gdrfab_mr, buf: *mut c_char, len: usize) -> ssize_t {
    // SAFETY: the C caller says that the handle is open and the buffer writable.
    counted(|| unsafe { write_text(buf, len, &mr_of(mr)?.explain()?) })
}

pub(super) fn iface_of(raw: u32) -> Result<Iface> {
    Iface::from_raw(raw).ok_or_else(|| Error::invalid(format!("iface: {raw} is not a GDRFAB_HMEM_* that can be used here")))
}

/// Allocates memory that peers can map; gdrfab_mem_free() frees it. The caller registers it afterwards, by
/// gdrfab_mr_reg(), or memory of a device by gdrfab_mr_regattr() with the same iface and device.
///
/// Host memory is zeroed, and peers on this host reach it by GDRFAB_PATH_DIRECT. It is a memory file, whose
/// descriptor is held until gdrfab_mem_free(). Memory of a device is of a kind that the vendor lets other
/// processes map, where it has one; it is not zeroed, and works with the vendor's own functions.
///
/// @param iface  GDRFAB_HMEM_*, not GDRFAB_HMEM_AUTO
/// @param device number of the device in this process; 0 with GDRFAB_HMEM_SYSTEM
/// @param len    bytes, not 0; rounded up to pages of the host, or to the granularity of the driver
/// @param addr   gets the address; that of host memory is page aligned
/// @return 0, -EINVAL, -GDRFAB_EBADFLAGS, -EPERM, -ENODEV (no such device), -ENOMEM, -EMFILE, -ENOSPC (too
///   many memory files); of devices also -EPERM (the driver was opened before a fork), -ENOSYS, -EIO (see
///   Device memory), and -EOPNOTSUPP (the vendor's driver lets no library allocate for it)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_mem_alloc(
    domain: *mut gdrfab_domain,
    iface: u32,
    device: u32,
    len: usize,
    flags: u64,
    addr: *mut *mut c_void,
) -> c_int {
    // SAFETY: the C caller says that the handle is open and addr live.
    control(|| unsafe {
        let out = output(addr, "addr")?;
        if flags != 0 {
            return Err(Error::new(GDRFAB_EBADFLAGS, format!("flags: {flags:#x}, must be 0")));
        }
        out.write(object(domain, "domain")?.allocate_on(iface_of(iface)?, device, len)? as *mut c_void);
        Ok(())
    })
}

/// Frees memory of gdrfab_mem_alloc().
///
/// @param domain the domain that allocated it
/// @param addr   the address that was given
/// @return 0, -EBUSY (an open region covers it), -EINVAL (also: no such address), -EPERM; of device memory
///   also an errno of the driver, and then it is still there
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_mem_free(domain: *mut gdrfab_domain, addr: *mut c_void) -> c_int {
    // SAFETY: the C caller says that the handle is open; the address is looked up.
    release(|| unsafe { object(domain, "domain")?.free(addr as usize) })
}
