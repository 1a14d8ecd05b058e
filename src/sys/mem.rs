// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory files and mappings: memfds sealed so that no peer can make a mapping fault, and dma-bufs.

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
    // Kept, because the C library looks it up in a table of all that can be asked.
    static SIZE: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: the number is all that is shared, and always the same.
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

/// Where mappings lie: anywhere.
#[cfg(not(fuzzing))]
mod place {
    use super::{MapFlags, NonNull, Result};

    pub fn find(_len: usize) -> Result<(*mut std::ffi::c_void, MapFlags)> {
        Ok((std::ptr::null_mut(), MapFlags::empty()))
    }

    /// Nothing was mapped at a place.
    pub fn leave(_at: *mut std::ffi::c_void, _len: usize) {}

    /// # Safety
    /// The range came from mmap, and nobody uses it any more.
    pub unsafe fn give_back(addr: NonNull<u8>, len: usize) -> rustix::io::Result<()> {
        // SAFETY: the caller says that the range came from mmap, and is out of use.
        unsafe { rustix::mm::munmap(addr.as_ptr().cast(), len) }
    }
}

/// When fuzzed: between guard pages, and the place of an unmapped one stays empty for a while, so that an access past an
/// end or after the unmapping faults instead of finding another mapping.
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
        let whole = whole(len).ok_or(Error::fixed(errno::ENOMEM, "more than an address space"))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh address chosen by the kernel.
        let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), whole, ProtFlags::empty(), flags) };
        let at = at.map_err(|e| Error::os("finding a place between guards", e))?;
        Ok((at.wrapping_byte_add(page_size()), MapFlags::FIXED))
    }

    /// Nothing was mapped at a place.
    pub fn leave(at: *mut c_void, len: usize) {
        if let Some(at) = NonNull::new(at.cast()) {
            // SAFETY: the place is from `find`, and empty.
            let _ = unsafe { give_back(at, len) };
        }
    }

    /// # Safety
    /// The range is a mapping in a place that `find` gave, and nobody uses it any more.
    pub unsafe fn give_back(addr: NonNull<u8>, len: usize) -> rustix::io::Result<()> {
        let (at, whole) = (addr.as_ptr().wrapping_sub(page_size()).cast::<c_void>(), whole(len).unwrap_or(len));
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the caller says that nobody uses the mapping any more; the place and its guards are ours.
        unsafe { rustix::mm::mmap_anonymous(at, whole, ProtFlags::empty(), flags)? };
        let mut empty = EMPTY.lock();
        empty.push_back((at as usize, whole));
        while empty.len() > KEPT
            && let Some((at, whole)) = empty.pop_front()
        {
            // SAFETY: nobody uses an empty place.
            unsafe { rustix::mm::munmap(at as *mut c_void, whole)? };
        }
        Ok(())
    }
}

/// Of a process that locks its memory (mlockall), the kernel refuses more than its limit with EAGAIN, as if that would pass.
#[cold]
fn not_mapped(doing: impl std::fmt::Display, e: rustix::io::Errno) -> Error {
    match e {
        rustix::io::Errno::AGAIN => {
            Error::new(errno::ENOMEM, format!("{doing}: all of this process's memory is locked, and RLIMIT_MEMLOCK allows no more of it"))
        }
        e => Error::os(doing, e),
    }
}

/// A mapping that is undone when dropped.
#[derive(Debug)]
pub struct Mapping {
    addr: NonNull<u8>,
    len: usize,
}

// SAFETY: a Mapping is an address range owned by value; what may be done with the bytes is decided
// by those who make pointers from it.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method gives access to the bytes.
unsafe impl Sync for Mapping {}

/// What a mapping may be used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protection {
    ReadOnly,
    ReadWrite,
}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset` (page multiple), shared.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, len: usize, prot: Protection) -> Result<Mapping> {
        let prot = match prot {
            Protection::ReadOnly => ProtFlags::READ,
            Protection::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let (place, flags) = place::find(len)?;
        // SAFETY: a fresh address chosen by the kernel, now or by `find`, disturbs no existing memory.
        let addr = unsafe { rustix::mm::mmap(place, len, prot, MapFlags::SHARED | flags, fd, offset) }
            .inspect_err(|_| place::leave(place, len))
            .map_err(|e| not_mapped(format_args!("mapping {len} bytes of shared memory"), e))?;
        match NonNull::new(addr.cast()) {
            Some(addr) => Ok(Mapping { addr, len }),
            None => Err(Error::fixed(errno::ENOMEM, "the kernel mapped shared memory at address zero")),
        }
    }

    /// Maps `len` bytes of the same file from `from` on, counted from where this mapping begins, once more and without the file's
    /// descriptor; they may lie behind what is mapped here. Both are page multiples. Only where [`maps_again`].
    ///
    /// The file must have as many bytes, for ever.
    pub fn again(&self, from: usize, len: usize) -> Result<Mapping> {
        let doing = |e| not_mapped(format_args!("mapping {len} bytes of shared memory once more"), e);
        let whole = from.checked_add(len).ok_or(Error::fixed(errno::ENOMEM, "more than an address space"))?;
        // SAFETY: an old size of 0 leaves the old mapping as it is, and makes another at a place that the kernel chooses.
        let at = unsafe { rustix::mm::mremap(self.addr.as_ptr().cast(), 0, whole, rustix::mm::MremapFlags::MAYMOVE) }.map_err(doing)?;
        let at: *mut u8 = at.cast();
        if from > 0 {
            // SAFETY: the beginning of what was just mapped, which nobody knows.
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

    /// Whether `[addr, addr+len)` lies inside, and if so its offset.
    pub fn offset_of(&self, addr: usize, len: usize) -> Option<usize> {
        let offset = addr.checked_sub(self.addr.as_ptr() as usize)?;
        (offset.checked_add(len)? <= self.len).then_some(offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range came from mmap and is unmapped once; whoever made pointers into it kept
        // the Mapping alive.
        if let Err(e) = unsafe { place::give_back(self.addr, self.len) } {
            crate::log!(Error, "munmap of {} bytes: {e}", self.len);
        }
    }
}

/// Whether mappings can be made from others: memory checkers refuse it, and the guards around mappings when fuzzed need a place
/// of their own choice.
pub fn maps_again() -> bool {
    static DOES: OnceLock<bool> = OnceLock::new();
    if let Some(does) = DOES.get() {
        return *does;
    }
    let page = page_size();
    let probe = || Mapping::new(memfd("gdrfab-probe", 2 * page)?.as_fd(), 0, page, Protection::ReadWrite)?.again(page, page);
    // Without guards around it, when fuzzed the probe's end would unmap what lies beside it.
    match cfg!(not(fuzzing)).then(probe) {
        Some(Err(e)) if e.is_for_want() => false,
        probed => *DOES.get_or_init(|| probed.is_some_and(|made| made.is_ok())),
    }
}

/// Gives a range its pages now; what cannot be done is left to whoever touches it.
pub fn populate(addr: usize, len: usize, write: bool) {
    let advice = if write { rustix::mm::Advice::LinuxPopulateWrite } else { rustix::mm::Advice::LinuxPopulateRead };
    // SAFETY: populating changes no byte, and the kernel checks the range.
    let _ = unsafe { rustix::mm::madvise(addr as *mut std::ffi::c_void, len, advice) };
}

/// Whether the page that begins at `addr` is there without a fault; of memory that is not mapped it is not.
pub fn is_resident(addr: usize) -> bool {
    let mut flags = 0u8;
    // SAFETY: the kernel writes one byte for the one page, and checks the address.
    unsafe { libc::mincore(addr as *mut std::ffi::c_void, 1, &raw mut flags) == 0 && flags & 1 != 0 }
}

/// Whether a peer can map a file without the risk that its owner shrinks it under the mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mappable {
    Yes,
    No(&'static str),
}

/// An anonymous memory file of `len` bytes that can never change its size.
pub fn memfd(name: &str, len: usize) -> Result<OwnedFd> {
    let doing = || format!("creating {len} bytes of shared memory");
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .and_then(fd::own)
        .map_err(|e| Error::os(doing(), e))?;
    set_size(fd.as_fd(), len).map_err(|e| e.context(doing()))?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).map_err(|e| Error::os(doing(), e))?;
    Ok(fd)
}

/// The kernel sends SIGXFSZ to a process that makes a file longer than its limit.
fn set_size(fd: BorrowedFd<'_>, len: usize) -> Result<()> {
    // SAFETY: changes no memory; the descriptor is open.
    let cut = signals::without_signal(|| unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) } as isize);
    match cut.map_err(|e| e.raw_os_error().unwrap_or(errno::EIO)) {
        Ok(_) => Ok(()),
        Err(errno::EFBIG) => Err(Error::fixed(errno::EFBIG, "more than this process's files may have (RLIMIT_FSIZE, ulimit -f)")),
        Err(e) => Err(Error::new(e, errno::words(e))),
    }
}

/// Forbids any further writable mapping and any further seal; mappings that exist stay writable.
pub fn seal_against_writers(fd: BorrowedFd<'_>) -> Result<()> {
    rustix::fs::fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL).map_err(|e| Error::os("sealing shared memory", e))
}

/// Identity and size of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    pub dev: u64,
    pub ino: u64,
}

pub fn file_id(fd: BorrowedFd<'_>) -> Result<(FileId, u64)> {
    let st = rustix::fs::fstat(fd).map_err(|e| Error::os("looking at a file descriptor", e))?;
    let mut size = st.st_size.max(0) as u64;
    if size == 0 && is_dmabuf(fd) {
        // A dma-buf's size shows only by seeking.
        size = rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0)).map_err(|e| Error::os("asking a dma-buf for its size", e))?;
    }
    Ok((FileId { dev: st.st_dev as u64, ino: st.st_ino as u64 }, size))
}

/// "DMAB", the magic of the kernel's dma-buf file system.
const DMA_BUF_MAGIC: u64 = 0x444d_4142;

/// The magic of its file system; 0: not known.
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
    // It shows only by seeking, which moves nothing.
    let size = rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0)).map_err(|e| Error::os("asking a dma-buf for its size", e))?;
    Ok(Some(size))
}

/// Where memfds lie. Pages of others may be refused at first touch, because a disk is full or there is no huge page left, and
/// that kills whoever touches them.
const TMPFS: u64 = libc::TMPFS_MAGIC as u64;

/// Seals `fd` against shrinking if it is not yet, and says whether a peer may map it.
pub fn make_mappable(fd: BorrowedFd<'_>) -> Mappable {
    let system = file_system(fd);
    if system == DMA_BUF_MAGIC {
        return Mappable::Yes;
    }
    if rustix::fs::fcntl_get_seals(fd).is_ok() && system != TMPFS {
        return Mappable::No("the memfd is of huge pages (MFD_HUGETLB), and one that the kernel lacks would kill a peer that maps it");
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

/// Whether nobody can take pages away from under a mapping of this file.
pub fn never_shrinks(fd: BorrowedFd<'_>) -> bool {
    is_dmabuf(fd) || is_sealed(fd)
}

/// Checks memory that a peer handed over: a dma-buf, or a file as for `check_peer_file`.
pub fn check_peer_memory(fd: BorrowedFd<'_>, need: u64) -> Result<()> {
    match file_system(fd) {
        DMA_BUF_MAGIC => check_size(fd, need),
        system => check_file_of(fd, system, need),
    }
}

/// Checks a file that a peer handed over: it must hold `need` bytes, never shrink, and have base pages (no huge ones).
pub fn check_peer_file(fd: BorrowedFd<'_>, need: u64) -> Result<()> {
    check_file_of(fd, file_system(fd), need)
}

fn check_file_of(fd: BorrowedFd<'_>, system: u64, need: u64) -> Result<()> {
    if system != TMPFS {
        return Err(Error::fixed(errno::EPROTO, "the peer offered a file that is no memfd of base pages"));
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

/// A second descriptor for the same open file, closed on exec.
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
        // SAFETY: both are mapped, and nobody else writes.
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
        // Sealed and large enough, but its pages need not come. Making one takes no page of the pool.
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let Ok(huge) = rustix::fs::memfd_create("gdrfab-test", flags) else { return };
        rustix::fs::ftruncate(&huge, 2 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&huge, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert!(check_peer_memory(huge.as_fd(), 4096).is_err_and(|e| e.words.contains("base pages")));
        assert!(matches!(make_mappable(huge.as_fd()), Mappable::No(why) if why.contains("MFD_HUGETLB")));
        // Whatever has no seals.
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
