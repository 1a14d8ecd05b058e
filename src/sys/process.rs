// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other processes: pidfds, and the process-wide barrier that lets a fast path go without fences.

use super::fd;
use crate::error::{Error, Result, errno};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether this process may not make files as long as it likes (RLIMIT_FSIZE). A program sets the limit whenever it wants.
#[inline]
pub fn limits_files() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills in the limit, which is live.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) == 0 && limit.rlim_cur != libc::RLIM_INFINITY }
}

/// A pidfd of a live process.
pub fn open(pid: i32) -> Result<OwnedFd> {
    let Some(pid) = Pid::from_raw(pid) else { return Err(Error::fixed(errno::ESRCH, "process id 0")) };
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).and_then(fd::own).map_err(|e| Error::os("opening a pidfd of the peer", e))
}

/// Whether the process behind a pidfd has ended.
pub fn ended(pidfd: &OwnedFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
    let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&zero)), Ok(n) if n > 0)
}

/// The number of the process behind a pidfd, in this process's namespace.
pub fn pid_of(pidfd: &OwnedFd) -> Option<i32> {
    let facts = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    facts.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok()).filter(|pid| *pid > 0)
}

/// What tells the process of a pidfd from all others since the host was started, if the kernel (Linux 6.9) has such a thing.
pub fn identity(pidfd: BorrowedFd<'_>) -> Option<u64> {
    const PID_FS_MAGIC: u64 = 0x5049_4446;
    let known = rustix::fs::fstatfs(pidfd).is_ok_and(|s| s.f_type as u64 == PID_FS_MAGIC);
    rustix::fs::fstat(pidfd).ok().filter(|_| known).map(|st| st.st_ino)
}

/// Whether a descriptor from a peer is a pidfd: only then it is safe to ask it anything.
pub fn is_pidfd(fd: &OwnedFd) -> bool {
    // SAFETY: signal 0 is never sent; without information there is no pointer.
    let rc = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), 0, std::ptr::null::<libc::siginfo_t>(), 0) };
    rc == 0 || matches!(std::io::Error::last_os_error().raw_os_error(), Some(errno::ESRCH | errno::EPERM))
}

/// Whether a descriptor that came from elsewhere is of a memfd, a dma-buf, a device or a process: whoever sent another file
/// may serve it (FUSE) or let it linger (a socket), and then to look at it or to close it waits for them. Asks no file system.
pub fn is_the_kernels(fd: &OwnedFd) -> bool {
    use rustix::fs::{AtFlags, FileType, StatxFlags, fcntl_get_seals, statx};
    let of_device = || {
        let known = statx(fd, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
        known.is_ok_and(|known| FileType::from_raw_mode(known.stx_mode.into()) == FileType::CharacterDevice)
    };
    // Only dma-bufs tell the name of an exporter.
    let of_dmabuf = || {
        let facts = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()));
        facts.is_ok_and(|facts| facts.lines().any(|line| line.starts_with("exp_name:")))
    };
    fcntl_get_seals(fd).is_ok() || is_pidfd(fd) || of_device() || of_dmabuf()
}

/// Whether a process is stopped, by a signal or a debugger; false where nobody tells.
pub fn is_stopped(pid: i32) -> bool {
    let Ok(facts) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name, in parentheses, may hold anything.
    facts.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// Has the kernel kill this process when the other end of this socket is closed, even a stopped process. Nothing may be sent
/// over it. False: that end is closed already.
pub fn die_with(socket: BorrowedFd<'_>) -> bool {
    let fd = socket.as_raw_fd();
    // SAFETY: flags of a descriptor that is open.
    unsafe {
        libc::fcntl(fd, libc::F_SETOWN, libc::getpid());
        libc::fcntl(fd, F_SETSIG, libc::SIGKILL);
        libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_ASYNC);
    }
    // What came before the kernel was told.
    !super::socket::readable(socket)
}

/// From the kernel's headers; the libc crate has it for few systems.
const F_SETSIG: i32 = 10;

/// Closes every descriptor above standard error.
pub fn close_descriptors() {
    // SAFETY: the caller has none of them in use.
    if unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) } == 0 {
        return;
    }
    // A kernel before 5.9, or a filter.
    let open: Vec<i32> = match std::fs::read_dir("/proc/self/fd") {
        Ok(dir) => dir.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect(),
        // SAFETY: a plain question.
        Err(_) => (3..unsafe { libc::sysconf(libc::_SC_OPEN_MAX) }.clamp(1024, 1 << 20) as i32).collect(),
    };
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // SAFETY: as above; the directory's own is closed by now.
        unsafe { libc::close(fd) };
    }
}

/// Whether some process has this number; for where no pidfd can be had.
pub fn exists(pid: i32) -> bool {
    match Pid::from_raw(pid) {
        Some(pid) => !matches!(rustix::process::test_kill_process(pid), Err(rustix::io::Errno::SRCH)),
        None => false,
    }
}

/// Takes a copy of the peer's descriptor `number`; needs the permission that ptrace needs.
pub fn fetch_fd(pidfd: &OwnedFd, number: i32) -> Result<OwnedFd> {
    rustix::process::pidfd_getfd(pidfd.as_fd(), number, PidfdGetfdFlags::empty())
        .and_then(fd::own)
        .map_err(|e| Error::os("fetching the peer's memory file by pidfd_getfd", e))
}

pub fn pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// A word that holds this process's number, and 0 in a child that a fork made: it lies in a page that
/// the kernel wipes there. Where the kernel cannot, the word never changes.
pub fn instance() -> &'static AtomicU64 {
    static PAGE: OnceLock<Option<Page>> = OnceLock::new();
    static FALLBACK: AtomicU64 = AtomicU64::new(0);
    let word = match PAGE.get_or_init(Page::new) {
        Some(page) => page.word(),
        None => &FALLBACK,
    };
    if word.load(Ordering::Relaxed) == 0 {
        word.store(pid() as u64, Ordering::Relaxed);
    }
    word
}

/// A page that is zeroed in children.
struct Page(usize);

impl Page {
    fn new() -> Option<Page> {
        use rustix::mm::{Advice, MapFlags, ProtFlags};
        let len = super::mem::page_size();
        // SAFETY: a fresh private mapping, never unmapped, on which advice is then given.
        unsafe {
            let at = rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE).ok()?;
            rustix::mm::madvise(at, len, Advice::LinuxWipeOnFork).ok()?;
            Some(Page(at as usize))
        }
    }

    fn word(&self) -> &'static AtomicU64 {
        // SAFETY: the page lives for ever and begins with eight aligned bytes.
        unsafe { &*(self.0 as *const AtomicU64) }
    }
}

pub fn euid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether `uid` may be several users: it is what the kernel shows of all that have no number in this user namespace.
pub fn is_shared_uid(uid: u32) -> bool {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse().ok();
    if uid != number("/proc/sys/kernel/overflowuid").unwrap_or(65534u32) {
        return false;
    }
    // The namespace that a system begins with has a number for everybody.
    let everybody = |line: &str| {
        let mut words = line.split_ascii_whitespace().map(str::parse);
        matches!((words.next(), words.next(), words.next()), (Some(Ok(0u32)), Some(_), Some(Ok(u32::MAX))))
    };
    !std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.lines().any(everybody))
}

/// Whether this process may send signals to the one behind a pidfd: it runs as the same user, or this one is privileged
/// over it.
pub fn may_signal(pidfd: &OwnedFd) -> bool {
    let fd = std::os::fd::AsRawFd::as_raw_fd(pidfd);
    // SAFETY: signal 0 is only asked for, and a null pointer says nothing of its sender.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, 0, std::ptr::null::<libc::siginfo_t>(), 0) == 0 }
}

const MEMBARRIER_GLOBAL_EXPEDITED: i32 = 1 << 1;
const MEMBARRIER_REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;

fn membarrier(command: i32) -> i64 {
    // SAFETY: membarrier takes plain integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}

/// Registers this process for [`barrier_everywhere`]; true if the kernel agreed. Both sides of a
/// pair must have registered before either leaves out its fences.
pub fn barrier_register() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(MEMBARRIER_REGISTER_GLOBAL_EXPEDITED) == 0 && membarrier(MEMBARRIER_GLOBAL_EXPEDITED) == 0)
}

/// A full memory barrier on every thread of every registered process before it returns. It can fail where a filter of
/// system calls came after [`barrier_register`].
pub fn barrier_everywhere() -> Result<()> {
    if membarrier(MEMBARRIER_GLOBAL_EXPEDITED) != 0 {
        let e = std::io::Error::last_os_error().raw_os_error().unwrap_or(errno::EPERM);
        return Err(Error::new(e, format!("membarrier(2), which had been permitted, is refused: {}", errno::words(e))));
    }
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    Ok(())
}

/// Tells one boot of one host from others.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// `host_id` of processes that cannot read `BOOT_ID`.
pub const HOST_UNKNOWN: u32 = 0x811c_9dc5;

/// An opaque identity of this boot of this host: two processes can only share memory if theirs agree. A process that lacks
/// something to read it with now is told so, and reads it the next time.
pub fn host_id() -> Result<u32> {
    static ID: OnceLock<u32> = OnceLock::new();
    if let Some(id) = ID.get() {
        return Ok(*id);
    }
    let boot = std::fs::read(BOOT_ID).or_else(|e| {
        let e = Error::new(e.raw_os_error().unwrap_or(errno::EIO), format!("reading {BOOT_ID}: {e}"));
        if e.is_for_want() { Err(e) } else { Ok(Vec::new()) }
    })?;
    // FNV-1a: no secret, only equality matters.
    Ok(*ID.get_or_init(|| boot.iter().fold(HOST_UNKNOWN, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193))))
}

/// Whether a process is known to be in another namespace of this kind (of /proc/PID/ns) than this one.
pub fn is_elsewhere(pid: i32, kind: &str) -> bool {
    let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/{kind}")).ok();
    matches!((of(&pid.to_string()), of("self")), (Some(theirs), Some(ours)) if theirs != ours)
}

/// An opaque identity of this process's network namespace on this host; 0: not known.
pub fn network_id() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/net").map_or(0, |m| m.ino())
}

/// Random bytes from the kernel.
pub fn random(out: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < out.len() {
        done += rustix::rand::getrandom(&mut out[done..], rustix::rand::GetRandomFlags::empty())
            .map_err(|e| Error::os("reading random bytes", e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pidfd_tells_that_its_process_ended() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let fd = open(child.id() as i32).unwrap();
        assert!(!ended(&fd));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ended(&fd));
    }
}
