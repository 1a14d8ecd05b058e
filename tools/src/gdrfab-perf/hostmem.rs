// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kinds of host memory that not every machine has: huge pages, and dma-bufs that the kernel makes. If the machine lacks
//! them, the error says what to do about it.

use gdrfab::error::{Error, Result, errno};
use gdrfab::sys::mem::{Mapping, Protection, memfd, page_round};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::fs::read_to_string;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

const HUGE: usize = 2 << 20;
const HUGE_FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

/// Anonymous memory in pages of 2 MiB.
pub struct Huge {
    pub addr: usize,
    len: usize,
}

impl Huge {
    pub fn new(len: usize) -> Result<Huge> {
        let pages = len.div_ceil(HUGE).max(1);
        let refused = |e: Errno| {
            let free = read_to_string(HUGE_FREE).unwrap_or_default();
            let have = match (free.trim(), e) {
                ("", _) => "this kernel has none".to_string(),
                (n, _) => format!("{n} are free"),
            };
            let words = format!(
                "{len} bytes take {pages} huge page(s) of 2 MiB and {have}; as root, `sysctl vm.nr_hugepages={pages}` (or more) \
                 reserves them; each side on this host takes its own"
            );
            Error::new(if e == Errno::INVAL { errno::EOPNOTSUPP } else { errno::ENOMEM }, words)
        };
        let size = pages.checked_mul(HUGE).ok_or_else(|| refused(Errno::NOMEM))?;
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        // SAFETY: the kernel chooses the address, so no existing mapping changes.
        let at = unsafe { rustix::mm::mmap_anonymous(null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, flags) }.map_err(refused)?;
        let huge = Huge { addr: at as usize, len: size };
        // Touches the pages by a call: a limit of the control group is an error here, and would be a signal at the first
        // access.
        // SAFETY: the range was mapped above.
        match unsafe { rustix::mm::madvise(at, size, Advice::LinuxPopulateWrite) } {
            // Kernels before 5.14 do not know this advice.
            Ok(()) | Err(Errno::INVAL) => Ok(huge),
            Err(e) => Err(refused(e)),
        }
    }
}

impl Drop for Huge {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the range, and it is unmapped once; a failure is ignored.
        let _ = unsafe { rustix::mm::munmap(self.addr as *mut std::ffi::c_void, self.len) };
    }
}

/// A dma-buf, and the mapping by which the CPU reaches it.
pub struct DmaBuf {
    pub fd: OwnedFd,
    pub map: Mapping,
}

/// The structure of `linux/udmabuf.h`.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}
const UDMABUF_CREATE: u32 = 0x4018_7542;
const UDMABUF_CLOEXEC: u32 = 1;
const UDMABUF_LIMIT: &str = "/sys/module/udmabuf/parameters/size_limit_mb";

/// The structure of `linux/dma-heap.h`.
#[repr(C)]
struct HeapAllocation {
    len: u64,
    fd: u32,
    fd_flags: u32,
    heap_flags: u64,
}
const DMA_HEAP_ALLOC: u32 = 0xC018_4800;

fn device(path: &str, remedy: &str) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|e| Error::os(format_args!("{path} ({remedy})"), e))
}

fn size_of_pages(len: usize) -> Result<usize> {
    page_round(len.max(1)).ok_or_else(|| Error::new(errno::ENOMEM, format!("{len} bytes are more than an address space holds")))
}

/// # Safety
/// `argument` has the type that `request` takes.
unsafe fn ioctl<T>(device: &OwnedFd, request: u32, argument: &mut T) -> std::result::Result<i32, Errno> {
    // SAFETY: the caller says that the request takes this argument, which lives until the call returns.
    match unsafe { libc::ioctl(device.as_raw_fd(), request as _, argument) } {
        n if n < 0 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        n => Ok(n),
    }
}

fn mapped(fd: i32, size: usize) -> Result<DmaBuf> {
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let map = Mapping::new(fd.as_fd(), 0, size, Protection::ReadWrite)?;
    Ok(DmaBuf { fd, map })
}

/// A dma-buf over a memory file of this process.
pub fn udmabuf(len: usize) -> Result<DmaBuf> {
    let maker = device("/dev/udmabuf", "`modprobe udmabuf` makes it")?;
    let size = size_of_pages(len)?;
    let file = memfd("gdrfab-perf", size)?;
    let mut create = UdmabufCreate { memfd: file.as_raw_fd() as u32, flags: UDMABUF_CLOEXEC, offset: 0, size: size as u64 };
    // SAFETY: this is the structure that the request takes.
    let made = unsafe { ioctl(&maker, UDMABUF_CREATE, &mut create) };
    let limit = || read_to_string(UDMABUF_LIMIT).map_or(String::new(), |mb| format!(" ({UDMABUF_LIMIT}: {})", mb.trim()));
    mapped(made.map_err(|e| Error::os(format_args!("UDMABUF_CREATE of {size} bytes{}", limit()), e))?, size)
}

/// A dma-buf of the kernel's system heap.
pub fn dma_heap(len: usize) -> Result<DmaBuf> {
    let heap = device("/dev/dma_heap/system", "of a kernel with CONFIG_DMABUF_HEAPS_SYSTEM")?;
    let size = size_of_pages(len)?;
    let fd_flags = (libc::O_RDWR | libc::O_CLOEXEC) as u32;
    let mut allocation = HeapAllocation { len: size as u64, fd: 0, fd_flags, heap_flags: 0 };
    // SAFETY: this is the structure that the request takes.
    unsafe { ioctl(&heap, DMA_HEAP_ALLOC, &mut allocation) }
        .map_err(|e| Error::os(format_args!("DMA_HEAP_IOCTL_ALLOC of {size} bytes"), e))?;
    mapped(allocation.fd as i32, size)
}
