// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes: pidfds, identities of host and namespaces, and the process-wide memory barrier that lets fast paths omit
//! fences.

use super::fd;
use crate::error::{Error, Result, errno};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// True if a limit on the size of this process's files is set (RLIMIT_FSIZE). The program may set the limit at any
/// time, so no caller may keep the answer.
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

/// True if the process behind a pidfd has ended.
pub fn ended(pidfd: &OwnedFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
    let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&zero)), Ok(n) if n > 0)
}

/// The pid of the process behind a pidfd, in this process's namespace.
pub fn pid_of(pidfd: &OwnedFd) -> Option<i32> {
    let facts = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    facts.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok()).filter(|pid| *pid > 0)
}

/// A number that distinguishes the process of a pidfd from all other processes since the host was started, if the
/// kernel (Linux 6.9) has one.
pub fn identity(pidfd: BorrowedFd<'_>) -> Option<u64> {
    const PID_FS_MAGIC: u64 = 0x5049_4446;
    let known = rustix::fs::fstatfs(pidfd).is_ok_and(|s| s.f_type as u64 == PID_FS_MAGIC);
    rustix::fs::fstat(pidfd).ok().filter(|_| known).map(|st| st.st_ino)
}

/// True if a descriptor from a peer is a pidfd. Only then are other calls with this descriptor safe.
pub fn is_pidfd(fd: &OwnedFd) -> bool {
    // SAFETY: signal 0 is never sent, and no siginfo is passed.
    let rc = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), 0, std::ptr::null::<libc::siginfo_t>(), 0) };
    rc == 0 || matches!(std::io::Error::last_os_error().raw_os_error(), Some(errno::ESRCH | errno::EPERM))
}

/// True if a peer's descriptor is a memfd, dma-buf, device or pidfd. The sender of any other file can delay a process
/// that examines or closes the file, by serving the file (FUSE) or by letting it linger (a socket). Therefore this
/// function asks no file system.
pub fn is_kernel_file(fd: &OwnedFd) -> bool {
    use rustix::fs::{AtFlags, FileType, StatxFlags, fcntl_get_seals, statx};
    let of_device = || {
        let known = statx(fd, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
        known.is_ok_and(|known| FileType::from_raw_mode(known.stx_mode.into()) == FileType::CharacterDevice)
    };
    // Only the fdinfo of dma-bufs has an exporter's name.
    let of_dmabuf = || {
        let facts = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()));
        facts.is_ok_and(|facts| facts.lines().any(|line| line.starts_with("exp_name:")))
    };
    fcntl_get_seals(fd).is_ok() || is_pidfd(fd) || of_device() || of_dmabuf()
}

/// True if a process is stopped, by a signal or a debugger; false if that cannot be found out.
pub fn is_stopped(pid: i32) -> bool {
    let Ok(facts) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The process's name, in parentheses, may contain anything.
    facts.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// Has the kernel kill this process when the other end of this socket is closed, even if this process is stopped.
/// Nothing may be sent over the socket, because a packet would kill this process too. False: the other end is closed
/// already.
pub fn die_with(socket: BorrowedFd<'_>) -> bool {
    let fd = socket.as_raw_fd();
    // SAFETY: sets flags of an open descriptor.
    unsafe {
        libc::fcntl(fd, libc::F_SETOWN, libc::getpid());
        libc::fcntl(fd, F_SETSIG, libc::SIGKILL);
        libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_ASYNC);
    }
    // The other end may have been closed before the kernel was told.
    !super::socket::readable(socket)
}

/// From the kernel's headers; the libc crate has it for few systems.
const F_SETSIG: i32 = 10;

/// Closes every descriptor above standard error.
pub fn close_descriptors() {
    // SAFETY: the caller uses none of these descriptors any more.
    if unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) } == 0 {
        return;
    }
    // The kernel is older than 5.9, or a filter forbids the call.
    let open: Vec<i32> = match std::fs::read_dir("/proc/self/fd") {
        Ok(dir) => dir.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect(),
        // SAFETY: sysconf only returns a number.
        Err(_) => (3..unsafe { libc::sysconf(libc::_SC_OPEN_MAX) }.clamp(1024, 1 << 20) as i32).collect(),
    };
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // SAFETY: the caller uses none of these descriptors any more; the directory's own is closed by now.
        unsafe { libc::close(fd) };
    }
}

/// True if a process with this pid exists. For kernels without pidfds.
pub fn exists(pid: i32) -> bool {
    match Pid::from_raw(pid) {
        Some(pid) => !matches!(rustix::process::test_kill_process(pid), Err(rustix::io::Errno::SRCH)),
        None => false,
    }
}

/// Duplicates the peer's descriptor `number`; needs the permission that ptrace needs.
pub fn fetch_fd(pidfd: &OwnedFd, number: i32) -> Result<OwnedFd> {
    rustix::process::pidfd_getfd(pidfd.as_fd(), number, PidfdGetfdFlags::empty())
        .and_then(fd::own)
        .map_err(|e| Error::os("fetching the peer's memory file by pidfd_getfd", e))
}

pub fn pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// A word that holds this process's pid. In a child of fork() the word is 0 until the child calls this function,
/// because the word lies in a page that the kernel wipes in children. On kernels that cannot wipe a page, the word
/// never changes.
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

/// A page that the kernel zeroes in children.
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

/// True if `uid` may stand for several users: the kernel shows this number for all users that this user namespace does
/// not map.
pub fn is_shared_uid(uid: u32) -> bool {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse().ok();
    if uid != number("/proc/sys/kernel/overflowuid").unwrap_or(65534u32) {
        return false;
    }
    // The initial user namespace maps every user.
    let everybody = |line: &str| {
        let mut words = line.split_ascii_whitespace().map(str::parse);
        matches!((words.next(), words.next(), words.next()), (Some(Ok(0u32)), Some(_), Some(Ok(u32::MAX))))
    };
    !std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.lines().any(everybody))
}

/// True if this process may send signals to the process behind a pidfd: it runs as the same user, or has privileges
/// over it.
pub fn may_signal(pidfd: &OwnedFd) -> bool {
    let fd = std::os::fd::AsRawFd::as_raw_fd(pidfd);
    // SAFETY: signal 0 is only checked and never sent, and no siginfo is passed.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, 0, std::ptr::null::<libc::siginfo_t>(), 0) == 0 }
}

const MEMBARRIER_GLOBAL_EXPEDITED: i32 = 1 << 1;
const MEMBARRIER_REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;

fn membarrier(command: i32) -> i64 {
    // SAFETY: membarrier takes plain integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}

/// Registers this process for [`barrier_everywhere`]. True if the kernel agreed. Both processes of a pair must have
/// registered before either omits its fences.
pub fn barrier_register() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(MEMBARRIER_REGISTER_GLOBAL_EXPEDITED) == 0 && membarrier(MEMBARRIER_GLOBAL_EXPEDITED) == 0)
}

/// A full memory barrier on every thread of every registered process, completed before this returns. Fails if a system
/// call filter was installed after [`barrier_register`].
pub fn barrier_everywhere() -> Result<()> {
    if membarrier(MEMBARRIER_GLOBAL_EXPEDITED) != 0 {
        let e = std::io::Error::last_os_error().raw_os_error().unwrap_or(errno::EPERM);
        return Err(Error::new(e, format!("membarrier(2) is refused, although it was permitted before: {}", errno::words(e))));
    }
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    Ok(())
}

/// A file whose content differs for each boot of each host.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// `host_id` of processes that cannot read `BOOT_ID`.
pub const HOST_UNKNOWN: u32 = 0x811c_9dc5;

/// An opaque identity of this boot of this host. Two processes can share memory only if theirs are equal. If a resource
/// for reading `BOOT_ID` is lacking now, this call fails, and the next one tries again.
pub fn host_id() -> Result<u32> {
    static ID: OnceLock<u32> = OnceLock::new();
    if let Some(id) = ID.get() {
        return Ok(*id);
    }
    let boot = std::fs::read(BOOT_ID).or_else(|e| {
        let e = Error::new(e.raw_os_error().unwrap_or(errno::EIO), format!("reading {BOOT_ID}: {e}"));
        if e.is_shortage() { Err(e) } else { Ok(Vec::new()) }
    })?;
    // FNV-1a; the value is no secret, and only equality matters.
    Ok(*ID.get_or_init(|| boot.iter().fold(HOST_UNKNOWN, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193))))
}

/// True if a process is known to be in another namespace of this kind (a name in /proc/PID/ns) than this one.
pub fn is_in_other_namespace(pid: i32, kind: &str) -> bool {
    let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/{kind}")).ok();
    matches!((of(&pid.to_string()), of("self")), (Some(theirs), Some(ours)) if theirs != ours)
}

/// An opaque identity of this process's network namespace on this host; 0 if it is not known.
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
