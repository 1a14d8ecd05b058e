// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory files and mappings: memfds, sealed so that no peer can make a mapping fault, and dma-bufs.

use super::fd;
use crate::error::{Error, Result, errno};
use crate::signals;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes in a page.
pub fn page_size() -> usize {
    // Cached, because the C library's lookup is slow.
    static SIZE: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: only this number is shared, and it never changes.
    match SIZE.load(Ordering::Relaxed) {
        0 => {
            let size = rustix::param::page_size();
            SIZE.store(size, Ordering::Relaxed);
            size
        }
        size => size,
    }
}

/// `len` rounded up to whole pages; `None` if that overflows.
pub fn page_round(len: usize) -> Option<usize> {
    let page = page_size();
    Some(len.checked_add(page - 1)? / page * page)
}

/// The place of a mapping: the kernel chooses it.
#[cfg(not(fuzzing))]
mod place {
    use super::{MapFlags, NonNull, Result};

    pub fn find(_len: usize) -> Result<(*mut std::ffi::c_void, MapFlags)> {
        Ok((std::ptr::null_mut(), MapFlags::empty()))
    }

    /// Undoes `find` if nothing was mapped.
    pub fn leave(_at: *mut std::ffi::c_void, _len: usize) {}

    /// # Safety
    /// The range came from mmap, and is not used any more.
    pub unsafe fn give_back(addr: NonNull<u8>, len: usize) -> rustix::io::Result<()> {
        // SAFETY: the caller promises that the range came from mmap and is not used any more.
        unsafe { rustix::mm::munmap(addr.as_ptr().cast(), len) }
    }
}

/// For fuzzing, each mapping lies between guard pages, and the place of an unmapped mapping stays empty for a while. An
/// access past an end or after the unmapping then faults instead of reaching another mapping.
#[cfg(fuzzing)]
mod place {
    use super::{Error, MapFlags, NonNull, ProtFlags, Result, errno, page_round, page_size};
    use parking_lot::Mutex;
    use std::collections::VecDeque;
    use std::ffi::c_void;

    static EMPTY: Mutex<VecDeque<(usize, usize)>> = Mutex::new(VecDeque::new());
    const KEPT: usize = 64;

    fn whole(len: usize) -> Option<usize> {
        page_round(len)?.checked_add(2 * page_size())
    }

    pub fn find(len: usize) -> Result<(*mut c_void, MapFlags)> {
        let whole = whole(len).ok_or(Error::fixed(errno::ENOMEM, "the length exceeds the address space"))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), whole, ProtFlags::empty(), flags) };
        let at = at.map_err(|e| Error::os("reserving address space between guard pages", e))?;
        Ok((at.wrapping_byte_add(page_size()), MapFlags::FIXED))
    }

    /// Undoes `find` if nothing was mapped.
    pub fn leave(at: *mut c_void, len: usize) {
        if let Some(at) = NonNull::new(at.cast()) {
            // SAFETY: the place came from `find`, and is empty.
            let _ = unsafe { give_back(at, len) };
        }
    }

    /// # Safety
    /// The range is a mapping in a place that `find` returned, and is not used any more.
    pub unsafe fn give_back(addr: NonNull<u8>, len: usize) -> rustix::io::Result<()> {
        let (at, whole) = (addr.as_ptr().wrapping_sub(page_size()).cast::<c_void>(), whole(len).unwrap_or(len));
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the caller promises that the mapping is not used any more; the place and its guards belong to this
        // module.
        unsafe { rustix::mm::mmap_anonymous(at, whole, ProtFlags::empty(), flags)? };
        let mut empty = EMPTY.lock();
        empty.push_back((at as usize, whole));
        while empty.len() > KEPT
            && let Some((at, whole)) = empty.pop_front()
        {
            // SAFETY: no mapping lies in an empty place.
            unsafe { rustix::mm::munmap(at as *mut c_void, whole)? };
        }
        Ok(())
    }
}

/// The error of a failed mapping. If a process locks its memory (mlockall), the kernel refuses more than the limit with
/// EAGAIN. The error is then ENOMEM, because waiting does not help.
#[cold]
fn not_mapped(doing: impl std::fmt::Display, e: rustix::io::Errno) -> Error {
    match e {
        rustix::io::Errno::AGAIN => {
            Error::new(errno::ENOMEM, format!("{doing}: all of this process's memory is locked, and RLIMIT_MEMLOCK allows no more of it"))
        }
        e => Error::os(doing, e),
    }
}

/// A mapping that is unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    addr: NonNull<u8>,
    len: usize,
}

// SAFETY: a Mapping owns an address range. Code that makes pointers from it decides what may be done with the bytes.
unsafe impl Send for Mapping {}
// SAFETY: a Mapping owns an address range, and no method gives access to the bytes.
unsafe impl Sync for Mapping {}

/// The access that a mapping permits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protection {
    ReadOnly,
    ReadWrite,
}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset` (a multiple of the page size), shared.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, len: usize, prot: Protection) -> Result<Mapping> {
        let prot = match prot {
            Protection::ReadOnly => ProtFlags::READ,
            Protection::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let (place, flags) = place::find(len)?;
        // SAFETY: the address is chosen by the kernel, now or in `find`, so no existing memory is replaced.
        let addr = unsafe { rustix::mm::mmap(place, len, prot, MapFlags::SHARED | flags, fd, offset) }
            .inspect_err(|_| place::leave(place, len))
            .map_err(|e| not_mapped(format_args!("mapping {len} bytes of shared memory"), e))?;
        match NonNull::new(addr.cast()) {
            Some(addr) => Ok(Mapping { addr, len }),
            None => Err(Error::fixed(errno::ENOMEM, "the kernel mapped shared memory at address zero")),
        }
    }

    /// Maps `len` bytes of the same file once more, without the file's descriptor, from byte `from` of this mapping on.
    /// The bytes may lie beyond the end of this mapping. `from` and `len` are multiples of the page size. Only if
    /// [`maps_again`] is true.
    ///
    /// The file must have at least all these bytes, for ever.
    pub fn again(&self, from: usize, len: usize) -> Result<Mapping> {
        let doing = |e| not_mapped(format_args!("mapping {len} bytes of shared memory a second time"), e);
        let whole = from.checked_add(len).ok_or(Error::fixed(errno::ENOMEM, "the length exceeds the address space"))?;
        // SAFETY: an old size of 0 leaves the old mapping unchanged, and makes another one at a place that the kernel
        // chooses.
        let at = unsafe { rustix::mm::mremap(self.addr.as_ptr().cast(), 0, whole, rustix::mm::MremapFlags::MAYMOVE) }.map_err(doing)?;
        let at: *mut u8 = at.cast();
        if from > 0 {
            // SAFETY: this is the beginning of the new mapping, which no other code knows.
            unsafe { rustix::mm::munmap(at.cast(), from) }.map_err(doing)?;
        }
        match NonNull::new(at.wrapping_add(from)) {
            Some(addr) => Ok(Mapping { addr, len }),
            None => Err(Error::fixed(errno::ENOMEM, "the kernel mapped shared memory at address zero")),
        }
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.addr.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The offset of `[addr, addr+len)` in the mapping, if the range lies inside.
    pub fn offset_of(&self, addr: usize, len: usize) -> Option<usize> {
        let offset = addr.checked_sub(self.addr.as_ptr() as usize)?;
        (offset.checked_add(len)? <= self.len).then_some(offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range came from mmap and is unmapped once; code that makes pointers into it keeps the Mapping
        // alive.
        if let Err(e) = unsafe { place::give_back(self.addr, self.len) } {
            crate::log!(Error, "munmap of {} bytes: {e}", self.len);
        }
    }
}

/// True if [`Mapping::again`] works. Memory checkers refuse the mremap(2) call; under fuzzing a mapping between guard
/// pages needs a chosen place, and that call lets the kernel choose.
pub fn maps_again() -> bool {
    static DOES: OnceLock<bool> = OnceLock::new();
    if let Some(does) = DOES.get() {
        return *does;
    }
    let page = page_size();
    let probe = || Mapping::new(memfd("gdrfab-probe", 2 * page)?.as_fd(), 0, page, Protection::ReadWrite)?.again(page, page);
    // Not called under fuzzing, where the drop of an unguarded mapping would unmap its neighbours.
    match cfg!(not(fuzzing)).then(probe) {
        Some(Err(e)) if e.is_shortage() => false,
        probed => *DOES.get_or_init(|| probed.is_some_and(|made| made.is_ok())),
    }
}

/// Faults in the pages of a range. If that fails, the pages come at the first access.
pub fn populate(addr: usize, len: usize, write: bool) {
    let advice = if write { rustix::mm::Advice::LinuxPopulateWrite } else { rustix::mm::Advice::LinuxPopulateRead };
    // SAFETY: populating changes no byte, and the kernel checks the range.
    let _ = unsafe { rustix::mm::madvise(addr as *mut std::ffi::c_void, len, advice) };
}

/// True if an access to the page that begins at `addr` causes no page fault; false for unmapped memory.
pub fn is_resident(addr: usize) -> bool {
    let mut flags = 0u8;
    // SAFETY: the kernel writes one byte for the one page, and checks the address.
    unsafe { libc::mincore(addr as *mut std::ffi::c_void, 1, &raw mut flags) == 0 && flags & 1 != 0 }
}

/// The answer of [`make_mappable`]: `Yes` if a peer can map the file without the risk that the owner truncates it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mappable {
    Yes,
    No(&'static str),
}

/// An anonymous memory file of `len` bytes whose size can never change.
pub fn memfd(name: &str, len: usize) -> Result<OwnedFd> {
    let doing = || format!("creating {len} bytes of shared memory");
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .and_then(fd::own)
        .map_err(|e| Error::os(doing(), e))?;
    set_size(fd.as_fd(), len).map_err(|e| e.context(doing()))?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).map_err(|e| Error::os(doing(), e))?;
    Ok(fd)
}

/// Sets a file's size. The kernel sends SIGXFSZ to a process that exceeds its limit, so the signal is taken back.
fn set_size(fd: BorrowedFd<'_>, len: usize) -> Result<()> {
    // SAFETY: changes no memory; the descriptor is open.
    let cut = signals::without_signal(|| unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) } as isize);
    match cut.map_err(|e| e.raw_os_error().unwrap_or(errno::EIO)) {
        Ok(_) => Ok(()),
        Err(errno::EFBIG) => Err(Error::fixed(errno::EFBIG, "the file would exceed RLIMIT_FSIZE (ulimit -f)")),
        Err(e) => Err(Error::new(e, errno::words(e))),
    }
}

/// Forbids further writable mappings and further seals; existing mappings stay writable.
pub fn seal_against_writers(fd: BorrowedFd<'_>) -> Result<()> {
    rustix::fs::fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL).map_err(|e| Error::os("sealing shared memory", e))
}

/// Identity of an open file: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    pub dev: u64,
    pub ino: u64,
}

/// Identity and size of an open file.
pub fn file_id(fd: BorrowedFd<'_>) -> Result<(FileId, u64)> {
    let st = rustix::fs::fstat(fd).map_err(|e| Error::os("examining a file descriptor", e))?;
    let mut size = st.st_size.max(0) as u64;
    if size == 0 && is_dmabuf(fd) {
        // lseek is the only call that returns a dma-buf's size.
        size = rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0)).map_err(|e| Error::os("asking a dma-buf for its size", e))?;
    }
    Ok((FileId { dev: st.st_dev as u64, ino: st.st_ino as u64 }, size))
}

/// "DMAB", the magic number of the kernel's dma-buf file system.
const DMA_BUF_MAGIC: u64 = 0x444d_4142;

/// The magic number of the file's file system; 0 if it is not known.
fn file_system(fd: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstatfs(fd).map_or(0, |s| s.f_type as u64)
}

pub fn is_dmabuf(fd: BorrowedFd<'_>) -> bool {
    file_system(fd) == DMA_BUF_MAGIC
}

/// The size of a dma-buf; `None` for any other file.
pub fn dmabuf_size(fd: BorrowedFd<'_>) -> Result<Option<u64>> {
    if !is_dmabuf(fd) {
        return Ok(None);
    }
    // lseek is the only call that returns the size; it moves nothing in a dma-buf.
    let size = rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0)).map_err(|e| Error::os("asking a dma-buf for its size", e))?;
    Ok(Some(size))
}

/// The file system of memfds with pages of the base size. Pages of other file systems may fail at the first access,
/// because a disk is full or no huge page is left, which kills the accessing process.
const TMPFS: u64 = libc::TMPFS_MAGIC as u64;

/// Seals `fd` against shrinking if it is not sealed yet, and returns whether a peer may map it.
pub fn make_mappable(fd: BorrowedFd<'_>) -> Mappable {
    let system = file_system(fd);
    if system == DMA_BUF_MAGIC {
        return Mappable::Yes;
    }
    if rustix::fs::fcntl_get_seals(fd).is_ok() && system != TMPFS {
        return Mappable::No("the memfd has huge pages (MFD_HUGETLB); if the kernel ran out of them, a peer that maps it would be killed");
    }
    match rustix::fs::fcntl_get_seals(fd) {
        Err(_) => Mappable::No("the file cannot be sealed (not a memfd or dma-buf), so its owner could shrink it under a peer's mapping"),
        Ok(seals) if seals.contains(SealFlags::SHRINK) => Mappable::Yes,
        Ok(_) => match rustix::fs::fcntl_add_seals(fd, SealFlags::SHRINK) {
            Ok(()) => Mappable::Yes,
            Err(_) => Mappable::No(
                "the memfd was made without MFD_ALLOW_SEALING and so cannot be sealed against shrinking, which would kill a peer that maps it",
            ),
        },
    }
}

fn is_sealed(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok_and(|s| s.contains(SealFlags::SHRINK))
}

/// True if no process can take pages away from a mapping of this file.
pub fn never_shrinks(fd: BorrowedFd<'_>) -> bool {
    is_dmabuf(fd) || is_sealed(fd)
}

/// Checks memory that a peer sent: a dma-buf, or a file as in `check_peer_file`.
pub fn check_peer_memory(fd: BorrowedFd<'_>, need: u64) -> Result<()> {
    match file_system(fd) {
        DMA_BUF_MAGIC => check_size(fd, need),
        system => check_file_of(fd, system, need),
    }
}

/// Checks a file that a peer sent: it must have `need` bytes, never shrink, and consist of base pages (no huge ones).
pub fn check_peer_file(fd: BorrowedFd<'_>, need: u64) -> Result<()> {
    check_file_of(fd, file_system(fd), need)
}

fn check_file_of(fd: BorrowedFd<'_>, system: u64, need: u64) -> Result<()> {
    if system != TMPFS {
        return Err(Error::fixed(errno::EPROTO, "the peer offered a file that is not a memfd of base pages"));
    }
    if !is_sealed(fd) {
        return Err(Error::fixed(errno::EPROTO, "the peer offered a file that can shrink under our mapping"));
    }
    check_size(fd, need)
}

fn check_size(fd: BorrowedFd<'_>, need: u64) -> Result<()> {
    let (_, size) = file_id(fd)?;
    if size < need {
        return Err(Error::new(errno::EPROTO, format!("the peer offered a file of {size} bytes where {need} were announced")));
    }
    Ok(())
}

/// A second descriptor of the same open file, closed on exec.
pub fn duplicate(fd: impl AsFd) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(|e| Error::os("duplicating a file descriptor", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_memfd_cannot_shrink_and_a_bare_one_is_refused() {
        let fd = memfd("gdrfab-test", 8192).unwrap();
        assert!(rustix::fs::ftruncate(&fd, 4096).is_err());
        assert_eq!(make_mappable(fd.as_fd()), Mappable::Yes);
        assert!(check_peer_file(fd.as_fd(), 8192).is_ok());
        assert_eq!(check_peer_file(fd.as_fd(), 8193).unwrap_err().errno, errno::EPROTO);
        let bare = rustix::fs::memfd_create("gdrfab-test", MemfdFlags::CLOEXEC).unwrap();
        assert!(matches!(make_mappable(bare.as_fd()), Mappable::No(_)));
        assert!(check_peer_file(bare.as_fd(), 0).is_err());
    }

    #[test]
    fn a_file_is_mapped_again_without_its_descriptor() {
        if !maps_again() {
            return;
        }
        let page = page_size();
        let fd = memfd("gdrfab-test", 4 * page).unwrap();
        let all = Mapping::new(fd.as_fd(), 0, 4 * page, Protection::ReadWrite).unwrap();
        let first = Mapping::new(fd.as_fd(), 0, page, Protection::ReadWrite).unwrap();
        drop(fd);
        let last = first.again(3 * page, page).unwrap();
        // SAFETY: both ranges are mapped, and nothing else writes them.
        unsafe {
            all.as_ptr().add(3 * page + 5).write_volatile(9);
            assert_eq!(last.as_ptr().add(5).read_volatile(), 9);
            first.as_ptr().write_volatile(3);
            assert_eq!(all.as_ptr().read_volatile(), 3);
        }
        assert!(first.again(usize::MAX, page).is_err());
    }

    #[test]
    fn only_ordinary_pages_are_taken_from_a_peer() {
        // Sealed and large enough, but its pages may not be available. Creating the file takes no huge page.
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let Ok(huge) = rustix::fs::memfd_create("gdrfab-test", flags) else { return };
        rustix::fs::ftruncate(&huge, 2 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&huge, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert!(check_peer_memory(huge.as_fd(), 4096).is_err_and(|e| e.words.contains("base pages")));
        assert!(matches!(make_mappable(huge.as_fd()), Mappable::No(why) if why.contains("MFD_HUGETLB")));
        // Files that cannot have seals.
        for path in ["/proc/self/exe", "/dev/zero", "/proc/self/maps"] {
            let file = std::fs::File::open(path).unwrap();
            assert!(check_peer_memory(file.as_fd(), 0).is_err(), "{path}");
        }
    }

    #[test]
    fn a_file_sealed_against_writers_still_shows_the_owner_s_writes() {
        let fd = memfd("gdrfab-test", 4096).unwrap();
        let own = Mapping::new(fd.as_fd(), 0, 4096, Protection::ReadWrite).unwrap();
        seal_against_writers(fd.as_fd()).unwrap();
        assert!(Mapping::new(fd.as_fd(), 0, 4096, Protection::ReadWrite).is_err());
        let peer = Mapping::new(fd.as_fd(), 0, 4096, Protection::ReadOnly).unwrap();
        // SAFETY: both mappings are 4096 bytes and live.
        unsafe {
            own.as_ptr().write_volatile(7);
            assert_eq!(peer.as_ptr().read_volatile(), 7);
        }
    }
}
