// SPDX-License-Identifier: Apache-2.0 OR MIT
//! State that outlives an input: settings, files that a peer may hand over, and a process that stands for the peer's. This process was
//! forked before anything else happened, called listen(), and does nothing more. The kernel therefore reports another process as the peer
//! of every connection through its socket: a process whose memory may be written anywhere without harm, whose descriptors can be taken, and
//! for whose end nobody waits.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of the peer process's memory that this process maps too.
pub const ARENA: usize = 512 << 10;
/// Address of the guard in the peer's process, between the addresses of the format.
const GUARD_ADDR: usize = 0x2000_0000_0000;
const PAGE: usize = 4096;
/// Number of files in the pool.
pub const FILES: usize = 12;

pub struct World {
    pub name: String,
    pub listener: OwnedFd,
    pub arena: Map,
    pub guard: Map,
    files: Vec<OwnedFd>,
}

static WORLD: OnceLock<World> = OnceLock::new();

pub fn world() -> &'static World {
    WORLD.get().expect("made at the beginning")
}

/// A mapping of shared memory, of this side alone.
pub struct Map {
    at: *mut u8,
    pub len: usize,
}

// SAFETY: only an address range; its words are accessed as atomics.
unsafe impl Send for Map {}
// SAFETY: only an address range; its words are accessed as atomics.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a file. `fd` -1: fresh memory that children share.
    pub fn new(fd: RawFd, len: usize) -> Option<Map> {
        Map::at(0, fd, len)
    }

    /// Maps at `addr`, or anywhere if that is 0.
    fn at(addr: usize, fd: RawFd, len: usize) -> Option<Map> {
        let place = if addr == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
        let flags = libc::MAP_SHARED | place | if fd < 0 { libc::MAP_ANONYMOUS } else { 0 };
        // SAFETY: the kernel chooses a free address, or refuses one that is in use.
        let at = unsafe { libc::mmap(addr as *mut libc::c_void, len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
        (at != libc::MAP_FAILED).then_some(Map { at: at.cast(), len })
    }

    pub fn addr(&self) -> u64 {
        self.at as u64
    }

    /// The word at `offset`, which is reduced to lie inside.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        let offset = (offset & !7) % (self.len - 7);
        // SAFETY: aligned, inside the mapping, and accessed as an atomic by everybody.
        unsafe { &*self.at.add(offset & !7).cast::<AtomicU64>() }
    }

    /// Copies bytes to `offset`, as far as they fit.
    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        let offset = offset.min(self.len);
        let n = bytes.len().min(self.len - offset);
        // SAFETY: n bytes from `offset` on are inside, and no other code runs meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.add(offset), n) };
    }

    fn touch(&self) {
        (0..self.len).step_by(PAGE).for_each(|page| self.word(page).store(0, Relaxed));
    }

    pub fn wipe(&self) {
        // SAFETY: all of the mapping, and no other code runs meanwhile.
        unsafe { std::ptr::write_bytes(self.at, 0, self.len) };
    }

    pub fn bytes(&self, from: usize, to: usize) -> &[u8] {
        let to = to.min(self.len);
        // SAFETY: inside the mapping, and no code writes while the slice is used.
        unsafe { std::slice::from_raw_parts(self.at.add(from.min(to)), to - from.min(to)) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`, and its words do not outlive it.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// Makes a memory file of this size, with these flags and seals.
pub fn memfd(len: usize, flags: u32, seals: i32) -> OwnedFd {
    const NAME: &CStr = c"fuzz";
    // SAFETY: plain system calls on a descriptor that is ours.
    unsafe {
        let fd = libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | flags);
        if fd < 0 && flags != 0 {
            // Some kernels lack pages of that size.
            return memfd(len, 0, 0);
        }
        assert!(fd >= 0, "a memory file");
        let fd = OwnedFd::from_raw_fd(fd);
        assert!(libc::ftruncate(fd.as_raw_fd(), len as i64) == 0 || flags != 0);
        if seals != 0 {
            libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals);
        }
        fd
    }
}

pub const SEALED: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

impl World {
    /// A file of the pool. The peer's process has it under the same number.
    pub fn file(&self, n: usize) -> &OwnedFd {
        &self.files[n % FILES]
    }
}

fn files() -> Vec<OwnedFd> {
    let huge = libc::MFD_HUGETLB;
    // SAFETY: the calls return descriptors that belong to this code alone.
    let (null, event) = unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        (OwnedFd::from_raw_fd(null), OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)))
    };
    let all = vec![
        memfd(1 << 20, 0, SEALED),
        memfd(256 << 10, 0, SEALED),
        memfd(4096, 0, SEALED),
        memfd(5000, 0, libc::F_SEAL_SHRINK),
        memfd(256 << 10, 0, SEALED | libc::F_SEAL_FUTURE_WRITE),
        memfd(0, 0, SEALED),
        memfd(256 << 10, 0, 0),
        memfd(256 << 10, 0, libc::F_SEAL_GROW),
        memfd(2 << 20, huge, SEALED),
        memfd(64 << 20, 0, SEALED),
        null,
        event,
    ];
    assert_eq!(all.len(), FILES);
    all
}

/// Sets the world up. Called before anything else happens.
pub fn begin() {
    // Small rings and early sharing reach more code with short inputs, and nothing waits long.
    let settings = [("RING_SLOTS", "256"), ("COOP_MIN", "8192"), ("NT_THRESHOLD", "100000"), ("CLOSE_MS", "1"), ("EAGER_MAX", "2048")];
    for (name, value) in settings {
        // SAFETY: there is only one thread.
        unsafe { std::env::set_var(format!("GDRFAB_SHM_{name}"), value) };
    }
    // SAFETY: there is only one thread.
    unsafe { std::env::set_var("GDRFAB_HMEM", "none") };
    let name = format!("fuzz.{}", std::process::id());
    let arena = Map::new(-1, ARENA).expect("an arena");
    let guard = Map::at(GUARD_ADDR, -1, PAGE).expect("a guard");
    let files = files();
    // SAFETY: plain system calls; the child makes no other calls.
    let listener = unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as u16;
        let path = format!("\0gdrfab/{name}");
        address.sun_path.iter_mut().zip(path.bytes()).for_each(|(to, from)| *to = from as libc::c_char);
        let len = size_of::<libc::sa_family_t>() + path.len();
        assert_eq!(libc::bind(fd, (&raw const address).cast(), len as u32), 0, "the listener's name");
        let parent = libc::getpid();
        match libc::fork() {
            0 => {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // Touched, so that no access waits for a missing page.
                arena.touch();
                guard.touch();
                libc::listen(fd, 8);
                if libc::getppid() == parent {
                    loop {
                        libc::pause();
                    }
                }
                libc::_exit(0)
            }
            child => assert!(child > 0, "a process for the peer"),
        }
        OwnedFd::from_raw_fd(fd)
    };
    // Waits until the process listens.
    let listens = || {
        let (mut on, mut len) = (0i32, size_of::<i32>() as u32);
        // SAFETY: both are live, and `len` is `on`'s size.
        unsafe { libc::getsockopt(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ACCEPTCONN, (&raw mut on).cast(), &raw mut len) };
        on == 1
    };
    while !listens() {
        std::thread::yield_now();
    }
    assert!(WORLD.set(World { name, listener, arena, guard, files }).is_ok());
}

/// Resets the state that the last input may have changed.
pub fn reset() {
    let world = world();
    world.arena.wipe();
    for n in [6, 7] {
        // SAFETY: the file is ours.
        unsafe { libc::ftruncate(world.file(n).as_raw_fd(), 256 << 10) };
    }
}

/// Number of open descriptors among the first few hundred.
pub fn open_fds() -> usize {
    // SAFETY: the call only asks about a number.
    (0..256).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0).count()
}

/// CPU time of this thread, which other processes of the machine do not lengthen.
pub fn cpu_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is live.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
