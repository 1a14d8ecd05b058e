// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Device memory: the devices of the host, the owner of a pointer, dma-bufs, copies and allocations.

use super::boundary::{ExtensibleStruct, control, counted, null, output, output_sized, write_sized, write_text};
use super::memory::{gdrfab_mr_dmabuf, iface_of};
use super::types::*;
use crate::error::{Error, Result};
use crate::fabric::hmem::{self, CopyDevice};
use crate::hmem::{DeviceFacts, Iface};
use libc::{c_char, c_int, c_void, ssize_t};
use std::os::fd::IntoRawFd;

// == Device memory ==

/// An interface and one of its devices.
#[repr(C)]
pub struct gdrfab_hmem_info {
    /// sizeof(gdrfab_hmem_info), set by the caller
    pub struct_size: usize,
    /// GDRFAB_HMEM_*
    pub iface: u32,
    /// Number of the device in this process; UINT32_MAX if none was asked for.
    pub device: u32,
    /// Devices of the interface; 0 for GDRFAB_HMEM_SYSTEM.
    pub devices: u32,
    /// 0: its memory can be exported as dma-buf; else a negative errno.
    pub dmabuf: c_int,
    /// 0: other processes can map its memory; else a negative errno.
    pub ipc: c_int,
    /// 1: this process uses the device already, so that work on it makes no new context (GDRFAB_HMEM_CUDA:
    /// the primary context is active, whoever made it so; contexts of cuCtxCreate are not seen). 0: it does
    /// not, or the interface cannot tell (all others), or no device was asked for.
    pub active: u32,
    /// Bytes of memory; 0: unknown.
    pub memory: u64,
    /// Bit per device below 64 that copies to and from it directly.
    pub peers: u64,
    /// Bytes per second of a copy from the host; 0: not measured.
    pub rate_to: u64,
    /// Bytes per second of a copy to the host; 0: not measured.
    pub rate_from: u64,
    /// Bytes per second of a copy to the first of its peers; 0: not measured.
    pub rate_peer: u64,
    /// Names the device in every process: a UUID, or the PCI address as text.
    pub id: [u8; 16],
    /// PCI address as text, "0000:4d:00.0"; empty: unknown.
    pub pci: [c_char; 16],
    /// Name, cut to 63 bytes.
    pub name: [c_char; 64],
}

/// The memory that a pointer points into.
#[repr(C)]
pub struct gdrfab_hmem_place {
    /// sizeof(gdrfab_hmem_place), set by the caller
    pub struct_size: usize,
    /// GDRFAB_HMEM_*; GDRFAB_HMEM_SYSTEM: no vendor that is here knows the pointer.
    pub iface: u32,
    /// Number of the device in this process.
    pub device: u32,
    /// GDRFAB_HMEM_KIND_*
    pub kind: u32,
    /// 0
    pub reserved: u32,
    /// First byte of the allocation or physical segment; 0: host memory.
    pub base: u64,
    /// Bytes of the allocation or segment; 0 for host memory.
    pub len: u64,
    /// Never another allocation's in this process; 0: unknown.
    pub id: u64,
    /// Bytes from the pointer on that are this device's without a gap, its allocation's neighbours too, up to
    /// the length that was asked for. Of host memory: that length.
    pub covered: u64,
}

// SAFETY: repr(C), size first, integers and arrays of them.
unsafe impl ExtensibleStruct for gdrfab_hmem_info {
    const FIRST: usize = 168;
}
// SAFETY: repr(C), size first, integers only.
unsafe impl ExtensibleStruct for gdrfab_hmem_place {
    const FIRST: usize = 56;
}

/// The device number that names no device.
const NO_DEVICE: u32 = u32::MAX;

fn copy_device_of(iface: u32, device: u32) -> Result<CopyDevice> {
    let iface = if iface == GDRFAB_HMEM_AUTO { None } else { Some(iface_of(iface)?) };
    Ok(CopyDevice { iface, device })
}

/// Text in a field of fixed size: as much as fits before the NUL, in whole characters.
pub(super) fn field<const N: usize>(text: &str) -> [c_char; N] {
    let mut end = text.len().min(N - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut out = [0; N];
    out.iter_mut().zip(&text.as_bytes()[..end]).for_each(|(to, byte)| *to = *byte as c_char);
    out
}

fn info_of(iface: Iface, device: u32, count: usize, facts: &DeviceFacts, active: bool) -> gdrfab_hmem_info {
    let refused = |why: &Option<Error>| why.as_ref().map_or(0, |e| -e.errno);
    gdrfab_hmem_info {
        struct_size: 0,
        iface: iface as u32,
        device,
        devices: count as u32,
        dmabuf: refused(&facts.dmabuf),
        ipc: refused(&facts.ipc),
        active: active as u32,
        memory: facts.memory,
        peers: facts.peers.iter().filter(|n| **n < 64).fold(0, |bits, n| bits | 1 << n),
        rate_to: 0,
        rate_from: 0,
        rate_peer: 0,
        id: facts.id,
        pci: field(&facts.pci),
        name: field(&facts.name),
    }
}

/// The length of a range that a pointer begins, which must not be empty.
fn range(ptr: *const c_void, len: usize) -> Result<(u64, u64)> {
    match len {
        _ if ptr.is_null() => Err(null("ptr")),
        0 => Err(Error::invalid("len: 0, must be at least 1")),
        n => Ok((ptr as u64, n as u64)),
    }
}

fn check_copy(dest: *const c_void, src: *const c_void, len: usize) -> Result<()> {
    match len {
        0 => Ok(()),
        _ if dest.is_null() => Err(null("dest")),
        _ if src.is_null() => Err(null("src")),
        n if n > isize::MAX as usize => Err(Error::invalid(format!("len: {n} bytes exceed the address space"))),
        _ => Ok(()),
    }
}

/// Tells whether an interface can be used, how many devices it has, and what one of them can do.
///
/// Loads and initialises the vendor's driver, unless GDRFAB_HMEM or GDRFAB_HMEM_DRIVER=adopt forbids it. With
/// CUDA it calls cuInit() and only such functions as need no context, so it makes none.
///
/// @param iface  GDRFAB_HMEM_*, not GDRFAB_HMEM_AUTO
/// @param device number of the device; UINT32_MAX asks for the interface alone: only iface and devices are set
/// @return 0, -EINVAL, -ENOSYS, -ENODEV (of host memory too, which has no devices), -EPERM, -EIO
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_hmem_query(iface: u32, device: u32, info: *mut gdrfab_hmem_info) -> c_int {
    // SAFETY: the C caller says that the struct is writable for its size.
    control(|| unsafe {
        let out = output_sized(info, "info")?;
        let iface = iface_of(iface)?;
        let count = hmem::devices(iface)?.len();
        let facts = match device {
            NO_DEVICE => info_of(iface, device, count, &DeviceFacts::default(), false),
            number => info_of(iface, device, count, hmem::device(iface, number)?, hmem::active(iface, number)),
        };
        write_sized(out, &facts);
        Ok(())
    })
}

/// Tells in words whether an interface can be used or why not, and describes each device: its name and
/// memory, the devices that it reaches without the host, and whether its memory can be exported as dma-buf
/// and mapped by other processes. It may open the driver, as gdrfab_hmem_query(); an interface that cannot
/// be used is no error.
///
/// @param iface GDRFAB_HMEM_*; GDRFAB_HMEM_AUTO: all of them
/// @return length of the text, or -EINVAL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_hmem_explain(iface: u32, buf: *mut c_char, len: usize) -> ssize_t {
    // SAFETY: the C caller says that the buffer is writable.
    counted(|| unsafe {
        let text = match iface {
            GDRFAB_HMEM_AUTO => Iface::ALL.into_iter().map(hmem::explain).collect(),
            one => hmem::explain(iface_of(one)?),
        };
        write_text(buf, len, &text)
    })
}

/// Tells which memory a pointer points into, by asking each vendor's driver of this host. A pointer that no
/// vendor knows is host memory; whether it can be accessed is not examined. The answer holds until the
/// memory is freed. Mirrors ofi_get_hmem_iface, which is internal to libfabric.
///
/// @param ptr   any address but NULL
/// @param len   bytes from it that `covered` looks at; 0: only the allocation of ptr
/// @return 0, -EINVAL (also: ptr + len overflows), -EIO
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_hmem_detect(ptr: *const c_void, len: usize, place: *mut gdrfab_hmem_place) -> c_int {
    // SAFETY: the C caller says that the struct is writable for its size.
    control(|| unsafe {
        let out = output_sized(place, "place")?;
        if ptr.is_null() {
            return Err(null("ptr"));
        }
        let found = hmem::detect(ptr as u64, len as u64)?;
        let answer = gdrfab_hmem_place {
            struct_size: 0,
            iface: found.of.iface as u32,
            device: found.of.device,
            kind: found.of.kind as u32,
            reserved: 0,
            base: found.of.base,
            len: found.of.len,
            id: found.of.id,
            covered: found.covered,
        };
        write_sized(out, &answer);
        Ok(())
    })
}

/// Exports device memory as a dma-buf, for other drivers and for gdrfab_mr_regattr() with GDRFAB_MR_DMABUF.
/// The driver exports whole pages; `out` says where the range begins in them, and that its first byte has the
/// address ptr. The dma-buf keeps the memory alive, but not its address. Mirrors ofi_hmem_get_dmabuf_fd, which
/// is internal to libfabric.
///
/// @param ptr   first byte, in memory of a device
/// @param len   bytes, not 0; they may span allocations where the vendor can export that
/// @param flags 0, GDRFAB_DMABUF_PCIE
/// @param out   gets the descriptor (close-on-exec; the caller closes it), offset, len and base_addr
/// @return 0, -GDRFAB_EBADFLAGS, -ENOSYS, -EPERM, -EMFILE, -ENOMEM, -EIO, or
///   -EINVAL also memory that ends before the range does;
///   -EOPNOTSUPP host memory, or memory that its vendor or device cannot export: gdrfab_last_error() tells
///   which
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_hmem_export_dmabuf(ptr: *const c_void, len: usize, flags: u64, out: *mut gdrfab_mr_dmabuf) -> c_int {
    // SAFETY: the C caller says that the struct is writable.
    control(|| unsafe {
        let out = output(out, "out")?;
        let (addr, bytes) = range(ptr, len)?;
        if flags & !GDRFAB_DMABUF_PCIE != 0 {
            return Err(Error::new(GDRFAB_EBADFLAGS, format!("flags: {flags:#x}, must be 0 or GDRFAB_DMABUF_PCIE")));
        }
        let made = hmem::export_dmabuf(addr, bytes, flags & GDRFAB_DMABUF_PCIE != 0)?;
        let base_addr = (addr - made.offset) as *mut c_void;
        out.write(gdrfab_mr_dmabuf { fd: made.fd.into_raw_fd(), reserved: 0, offset: made.offset, len, base_addr });
        Ok(())
    })
}

/// Copies host memory into memory of a device; when it returns 0, the bytes are there. It waits for no stream
/// of the caller's, and copies of other threads that touch the same bytes are the callers' to order. Mirrors
/// ofi_copy_to_hmem.
///
/// @param iface  GDRFAB_HMEM_* of dest; GDRFAB_HMEM_SYSTEM: both sides are host memory; GDRFAB_HMEM_AUTO: asks
///   the drivers
/// @param device number of the device of dest; 0 with GDRFAB_HMEM_SYSTEM, ignored with GDRFAB_HMEM_AUTO
/// @param src    must not overlap dest
/// @param len    bytes; 0 checks iface and device and copies nothing
/// @return 0, -ENOSYS, -ENODEV, -EPERM, or
///   -EINVAL also dest that is not memory of that device to its end, or src in device memory;
///   -EIO, and then the content of dest is undefined
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_hmem_copy_to(iface: u32, device: u32, dest: *mut c_void, src: *const c_void, len: usize) -> c_int {
    // SAFETY: the C caller says that the host side is readable for len bytes, and dest writable if it is host memory.
    control(|| unsafe {
        let at = copy_device_of(iface, device)?;
        check_copy(dest, src, len)?;
        hmem::copy_to(at, dest as u64, src as u64, len)
    })
}

/// gdrfab_hmem_copy_to() the other way; iface and device are those of src. Mirrors ofi_copy_from_hmem.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_hmem_copy_from(iface: u32, device: u32, dest: *mut c_void, src: *const c_void, len: usize) -> c_int {
    // SAFETY: the C caller says that the host side is writable for len bytes, and src readable if it is host memory.
    control(|| unsafe {
        let at = copy_device_of(iface, device)?;
        check_copy(dest, src, len)?;
        hmem::copy_from(at, dest as u64, src as u64, len)
    })
}

/// Makes bytes that a NIC wrote into device memory before this call visible to the device's kernels, running
/// ones too. For memory that a NIC reaches by itself (verbs: GDRFAB_PATH_DMABUF, GDRFAB_PATH_PEER_MEM): call
/// it after the completion of the operation that brought the bytes, and before a kernel is told.
///
/// CUDA: returns at once where the device orders these writes itself
/// (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING). Else the driver flushes with the device's primary
/// context current, which is made if need be: for its memory, mapped segments and pools. For memory of
/// contexts of cuCtxCreate the program calls cuFlushGPUDirectRDMAWrites itself. Waits for no stream.
///
/// @param iface GDRFAB_HMEM_*, not GDRFAB_HMEM_AUTO; GDRFAB_HMEM_SYSTEM needs no flush: 0
/// @return 0, -EINVAL, -ENOSYS, -ENODEV, -EPERM, -EIO, or
///   -EOPNOTSUPP the device neither orders the writes nor has such a flush: all interfaces but CUDA, and CUDA
///   before 11.3
#[unsafe(no_mangle)]
pub extern "C" fn gdrfab_hmem_flush(iface: u32, device: u32) -> c_int {
    control(|| hmem::flush(iface_of(iface)?, device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_field_ends_with_a_nul_and_a_whole_character() {
        let bytes = |f: [c_char; 5]| f.map(|c| c as u8);
        assert_eq!(bytes(field("ab")), *b"ab\0\0\0");
        assert_eq!(bytes(field("abcdef")), *b"abcd\0");
        assert_eq!(bytes(field("abcé")), *b"abc\0\0");
    }
}
