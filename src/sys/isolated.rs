// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs instructions on pages that another process can take away at any moment, because they belong to a file that can
//! be truncated. For an access beyond the file's end the kernel sends SIGBUS, and a check before the access cannot
//! prevent the signal, because the file can be truncated after the check. A child process that shares this address
//! space runs the instructions, so the signal ends only the child.

use super::cancel::CancelDisabled;
use super::mem::page_size;
use crate::error::{Code, Error, Result, errno};
use crate::fallible::MakeRoom;
use crate::signals;
use libc::{c_int, c_void};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Pages of one span. One read of /proc/self/pagemap covers a span.
const SPAN: usize = 512;
/// Bits of an entry of /proc/self/pagemap: `PRESENT`: the page is present; `OF_FILE`: the page belongs to a file or to
/// shared memory.
const PRESENT: u64 = 1 << 63;
const OF_FILE: u64 = 1 << 61;

/// A remembered fact is valid until the epoch ends in which it was noted. An epoch has 2 to the power of this many
/// ticks, some seconds.
const EPOCH_BITS: u32 = 32;
const FACTS: usize = 4096;
/// Pages, and whole spans, that no other process could take away lately. One word holds number, kind and epoch.
static RECENT: [AtomicU64; FACTS] = [const { AtomicU64::new(0) }; FACTS];

struct PageFact(u64);

impl PageFact {
    /// The fact about a page, or about a span, in this epoch. `number` counts pages or spans from address 0.
    fn now(number: usize, is_span: bool) -> PageFact {
        let epoch = super::time::ticks() >> EPOCH_BITS;
        PageFact((number as u64) << 20 | u64::from(is_span) << 19 | epoch & 0x7_ffff)
    }

    fn place(&self) -> &'static AtomicU64 {
        &RECENT[(self.0 >> 19) as usize % FACTS]
    }

    fn holds(&self) -> bool {
        self.place().load(Ordering::Relaxed) == self.0
    }

    fn note(&self) {
        self.place().store(self.0, Ordering::Relaxed);
    }
}

/// True if the page at `at`, which is mapped, may belong to a file that can be truncated. Also true if /proc does not
/// tell.
pub fn may_be_truncated(at: usize) -> bool {
    let page = at / page_size();
    let (one, span) = (PageFact::now(page, false), PageFact::now(page / SPAN, true));
    if one.holds() || span.holds() {
        return false;
    }
    look_up(page, &one, &span)
}

/// Asks /proc about the page, and remembers a fact that no other process can take the page, or its whole span, away.
#[cold]
fn look_up(page: usize, one: &PageFact, span: &PageFact) -> bool {
    let (_held, first) = (CancelDisabled::off(), page / SPAN * SPAN);
    let mut entries = [0u8; SPAN * 8];
    let read = File::open("/proc/self/pagemap").and_then(|map| map.read_exact_at(&mut entries, first as u64 * 8));
    let is_private = |entry: &[u8; 8]| u64::from_ne_bytes(*entry) & (PRESENT | OF_FILE) == PRESENT;
    let (entries, _) = entries.as_chunks::<8>();
    if read.is_err() {
        return true;
    }
    let is_whole = if entries.get(page - first).is_some_and(is_private) {
        entries.iter().all(is_private)
    } else {
        let Some(mapping) = unshrinkable_mapping(page * page_size()) else { return true };
        mapping.start <= first * page_size() && (first + SPAN) * page_size() <= mapping.end
    };
    (if is_whole { span } else { one }).note();
    false
}

/// The mapping around `at` if it is shared memory that cannot be truncated: anonymous, System V, or a sealed memory
/// file of this library (`mem::memfd`).
fn unshrinkable_mapping(at: usize) -> Option<Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let range = |line: &str| {
        let (low, high) = line.split_once(' ')?.0.split_once('-')?;
        Some(usize::from_str_radix(low, 16).ok()?..usize::from_str_radix(high, 16).ok()?)
    };
    let line = maps.lines().find(|line| range(line).is_some_and(|range| range.contains(&at)))?;
    let name = line.splitn(6, ' ').nth(5)?.trim_start();
    let is_kept = name == "/dev/zero (deleted)" || ["/SYSV", "/memfd:gdrfab"].iter().any(|of| name.starts_with(of));
    range(line).filter(|_| is_kept)
}

/// Bytes of the child's stack, with room for a signal frame.
const STACK: usize = 64 << 10;

struct Job<F> {
    f: Option<F>,
    is_done: AtomicBool,
}

/// Runs `f` in a child that shares this address space, while this thread waits. Takes 10 to 20 microseconds. `EFAULT`:
/// a page was taken away before `f` had ended.
pub fn run_isolated<F: FnOnce()>(f: F) -> Result<()> {
    let (_held, mut stack) = (CancelDisabled::off(), Vec::<u128>::new());
    stack.room(STACK / size_of::<u128>())?;
    let mut job = Job { f: Some(f), is_done: AtomicBool::new(false) };
    // SAFETY: only the child uses the stack, from its end downwards, and the job. Both live until the child has ended,
    // because this thread does not continue before (CLONE_VFORK).
    let child = signals::blocked(|| unsafe {
        let top = stack.as_mut_ptr().wrapping_add(STACK / size_of::<u128>());
        libc::clone(child_main::<F>, top.cast(), libc::CLONE_VM | libc::CLONE_VFORK, (&raw mut job).cast())
    });
    if child < 0 {
        let e = std::io::Error::last_os_error().raw_os_error().unwrap_or(errno::EAGAIN);
        let words = format!("starting a process for an operation on memory of a file: {}", errno::words(e));
        return Err(Error::coded(e, Code::Fault, words));
    }
    // SAFETY: waits for a child of this process, and does not ask for its status.
    while unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WCLONE) } < 0
        && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
    {}
    match job.is_done.load(Ordering::Acquire) {
        true => Ok(()),
        false => Err(Error::coded(errno::EFAULT, Code::Fault, "memory of a region no longer exists: its file was shortened")),
    }
}

extern "C" fn child_main<F: FnOnce()>(job: *mut c_void) -> c_int {
    // SAFETY: `run_isolated` passed its job, and waits. The calls change only the child's signals, as it has a handler
    // table and a mask of its own; the set and the action are live.
    let job = unsafe {
        let (mut action, mut faults): (libc::sigaction, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        action.sa_sigaction = exit_child as *const () as usize;
        for signal in [libc::SIGBUS, libc::SIGSEGV] {
            libc::sigaction(signal, &action, std::ptr::null_mut());
            libc::sigaddset(&mut faults, signal);
        }
        libc::sigprocmask(libc::SIG_UNBLOCK, &faults, std::ptr::null_mut());
        &mut *job.cast::<Job<F>>()
    };
    if let Some(f) = job.f.take()
        && catch_unwind(AssertUnwindSafe(f)).is_ok()
    {
        job.is_done.store(true, Ordering::Release);
    }
    0
}

extern "C" fn exit_child(_signal: c_int) {
    // SAFETY: _exit may be called in a signal handler, and ends only the child.
    unsafe { libc::_exit(1) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mem::{Mapping, Protection};
    use std::os::fd::AsFd;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_fault_ends_the_child_alone() {
        let count = AtomicUsize::new(0);
        run_isolated(|| count.store(7, Ordering::Relaxed)).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 7);
        let file = rustix::fs::memfd_create("a-program", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, page_size() as u64).unwrap();
        let map = Mapping::new(file.as_fd(), 0, page_size(), Protection::ReadWrite).unwrap();
        // SAFETY: aligned, and mapped as long as `map` is.
        let word = unsafe { &*map.as_ptr().cast::<AtomicUsize>() };
        run_isolated(|| word.store(1, Ordering::Relaxed)).unwrap();
        assert!(may_be_truncated(map.as_ptr() as usize));
        rustix::fs::ftruncate(&file, 0).unwrap();
        assert_eq!(run_isolated(|| word.store(2, Ordering::Relaxed)).unwrap_err().errno, errno::EFAULT);
        assert!(catch_unwind(|| run_isolated(|| panic!("on purpose"))).unwrap().is_err());
    }

    #[test]
    fn shared_memory_that_nobody_can_open_is_no_file() {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        let len = 3 * page_size();
        // SAFETY: a fresh mapping, written within its bounds and undone at the end.
        unsafe {
            let at = mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED).unwrap();
            at.cast::<u8>().write_bytes(1, len);
            assert!(!may_be_truncated(at as usize + page_size()));
            munmap(at, len).unwrap();
        }
    }

    #[test]
    fn private_memory_is_told_from_that_of_files() {
        let own = vec![1u8; 4 * SPAN * page_size()];
        for at in [0, page_size(), SPAN * page_size(), own.len() - 1] {
            assert!(!may_be_truncated(own.as_ptr() as usize + at));
            assert!(!may_be_truncated(own.as_ptr() as usize + at), "the second look");
        }
    }
}
