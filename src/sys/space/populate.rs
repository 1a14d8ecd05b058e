// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads that wait, in place of the library's callers, until missing pages of another process have come. Such a
//! thread touches no buffer: the kernel faults the pages in, and then finds no local memory to copy to. A thread whose
//! pages never come stays until the kernel releases it; others serve other processes. At most one thread works for each
//! other process, and idle threads end soon.

use super::call::{Attach, Piece, attach, piece};
use super::guard::Guard;
use crate::error::{Error, Result, errno};
use crate::sys::iov::Iov;
use crate::sys::{mem, process, thread};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Pages that one call faults in: as many as the kernel holds at once.
const PAGES: usize = 1024;
/// Time after which an idle thread ends.
const IDLE: Duration = Duration::from_secs(1);
/// Time limit for the lock: a child of fork() may find it held by a thread that the child does not have.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The pages of one process that a thread has to fault in.
pub struct PageRequest {
    pid: i32,
    tid: i32,
    guard: Guard,
    how: Attach,
    ranges: Vec<(u64, usize)>,
    over: AtomicBool,
}

impl PageRequest {
    pub fn new(pid: i32, tid: i32, guard: Guard, how: Attach, ranges: Vec<(u64, usize)>) -> Arc<PageRequest> {
        Arc::new(PageRequest { pid, tid, guard, how, ranges, over: AtomicBool::new(false) })
    }

    /// True if the pages have come, or never can come. A copy of them no longer waits in either case.
    pub fn is_finished(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Faults the pages in, and waits for them in the kernel.
    fn fetch(&self) {
        let mut word = self.guard.word.to_ne_bytes();
        // SAFETY: the word outlives the calls.
        let word = unsafe { Iov::of_mut(&mut word) };
        let pages = PAGES * mem::page_size();
        let call = |addr: u64, len: usize| {
            // SAFETY: the memory is inaccessible, so the kernel can neither read nor write it.
            let ours = [word, unsafe { Iov::new(untouchable_memory(), len) }];
            let theirs: [Piece; 2] = [piece(self.guard.addr, word.len()), piece(addr, len)];
            // Only the guard's bytes can be moved.
            attach(self.tid, self.how, &ours, &theirs) == Ok(word.len())
        };
        let mut well = untouchable_memory() != 0 && (!self.ranges.is_empty() || call(self.guard.addr, word.len()));
        for (addr, len) in &self.ranges {
            for from in (0..*len).step_by(pages) {
                well = well && call(addr.wrapping_add(from as u64), pages.min(len - from));
            }
        }
    }
}

/// Inaccessible memory for the local side of a call; 0 if it could not be mapped.
fn untouchable_memory() -> usize {
    static PAGE: OnceLock<usize> = OnceLock::new();
    *PAGE.get_or_init(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, never unmapped.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGES * mem::page_size(), libc::PROT_NONE, flags, -1, 0) };
        if at == libc::MAP_FAILED { 0 } else { at as usize }
    })
}

/// The threads, and the requests that they work on or have to begin.
struct Pool {
    /// The process whose threads these are.
    of: i32,
    idle: usize,
    waiting: VecDeque<Arc<PageRequest>>,
    /// The processes whose requests are not finished.
    busy: Vec<i32>,
}

impl Pool {
    const fn new(of: i32) -> Pool {
        Pool { of, idle: 0, waiting: VecDeque::new(), busy: Vec::new() }
    }
}

static POOL: Mutex<Pool> = Mutex::new(Pool::new(0));
static WORK_ARRIVED: Condvar = Condvar::new();

/// Passes a request to an idle thread or a new one. False: the previous request for that process is not finished, or
/// the lock was not free in time.
pub fn submit(request: &Arc<PageRequest>) -> Result<bool> {
    let Some(mut pool) = POOL.try_lock_for(LOCK_TIMEOUT) else { return Ok(false) };
    if pool.of != process::pid() {
        *pool = Pool::new(process::pid());
    }
    if pool.busy.contains(&request.pid) {
        return Ok(false);
    }
    pool.busy.push(request.pid);
    let request = request.clone();
    if pool.idle > pool.waiting.len() {
        pool.waiting.push_back(request);
        WORK_ARRIVED.notify_one();
        return Ok(true);
    }
    drop(pool);
    let pid = request.pid;
    thread::spawn("gdrfab-pages", move || run(request)).map(|_| true).map_err(|e| {
        POOL.lock().busy.retain(|busy| *busy != pid);
        let words = format!("starting a thread that waits for a peer's pages: {e}");
        Error::new(e.raw_os_error().unwrap_or(errno::EAGAIN), words)
    })
}

/// The body of a thread: works on requests until none has come for `IDLE`.
fn run(first: Arc<PageRequest>) {
    let mut next = Some(first);
    while let Some(request) = next {
        request.fetch();
        let mut pool = POOL.lock();
        pool.busy.retain(|busy| *busy != request.pid);
        request.over.store(true, Ordering::Release);
        drop(request);
        if pool.waiting.is_empty() {
            pool.idle += 1;
            WORK_ARRIVED.wait_for(&mut pool, IDLE);
            pool.idle -= 1;
        }
        next = pool.waiting.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::space::pages;
    use std::time::Instant;

    fn await_finished(request: &PageRequest) {
        let begun = Instant::now();
        while !request.is_finished() {
            assert!(begun.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
    }

    #[test]
    fn pages_come_and_keep_their_bytes() {
        let Ok(map) = std::fs::File::open("/proc/self/pagemap").map(std::os::fd::OwnedFd::from) else { return };
        let (guard, len) = (Guard::own().unwrap(), 3 * PAGES * mem::page_size() + 5);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) } as u64;
        // SAFETY: a byte of it.
        unsafe { (at as *mut u8).write_volatile(7) };
        let last = at + len as u64 - 1;
        assert_eq!(pages::is_there(&map, last), Some(false));
        let request = PageRequest::new(process::pid(), process::pid(), guard, Attach::Write, vec![(at, len)]);
        while !submit(&request).unwrap() {
            std::thread::yield_now();
        }
        await_finished(&request);
        // A sandbox may refuse the call.
        let mut byte = [0];
        // SAFETY: both outlive the call.
        if attach(process::pid(), Attach::Read, &[unsafe { Iov::of_mut(&mut byte) }], &[piece(at, 1)]) != Ok(1) {
            return;
        }
        assert_eq!((byte[0], pages::is_there(&map, last)), (7, Some(true)));
        // SAFETY: a byte of the mapping.
        assert_eq!(unsafe { (last as *const u8).read_volatile() }, 0);
    }

    #[test]
    fn no_page_of_a_space_without_the_guard_comes() {
        let request = PageRequest::new(1, process::pid(), Guard { addr: 8, word: 1 }, Attach::Write, vec![(8, 1)]);
        while !submit(&request).unwrap() {
            std::thread::yield_now();
        }
        await_finished(&request);
    }
}
