// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The address space of another process: copies from and to it, each of which checks the guard, and the reasons why
//! copying ends.

use super::batch::{Batch, within};
use super::call::{Attach, Piece, attach, piece};
use super::guard::Guard;
use super::pages;
use super::populate::{self, PageRequest};
use super::procfs::{maps, page_map, threads};
use crate::error::{Code, Error, Result, errno};
use crate::sys::cancel::CancelDisabled;
use crate::sys::iov::Iov;
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Bytes of one call. A copy that runs while the peer executes another program thus ends soon; the kernel stops at 2
/// GiB anyway.
pub const STEP: usize = 64 << 20;
/// Pieces, including the guard, up to which the arrays of a copy lie on the stack.
const FEW: usize = 8;
/// Time for which a new connection waits for the peer's guard page. The page can be missing for a moment while the
/// kernel moves it.
const GUARD_GLANCE: Duration = Duration::from_millis(1);
/// Like `GUARD_GLANCE`, if there is no page map and a thread has to find out whether the page is there.
const GUARD_WAIT: Duration = Duration::from_millis(100);
/// Time limit for locks: a child of fork() may find one held by a thread that the child does not have.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The address space of another process, as it was when that process connected.
pub struct AddressSpace {
    pid: i32,
    /// A live thread of the process. Replaced by another one when that thread ends.
    tid: AtomicI32,
    guard: Guard,
    /// /proc/PID/pagemap. The descriptor refers to the address space, not to the pid.
    pages: Result<OwnedFd>,
    /// The reason why copying has ended for good.
    over: OnceLock<Error>,
}

/// The address spaces in use. Connections to the same process share one.
static KNOWN: Mutex<Vec<Weak<AddressSpace>>> = Mutex::new(Vec::new());

impl AddressSpace {
    /// Finds the address space of process `pid`. Fails if the process does not have the guard, or if the kernel refuses
    /// copies.
    pub fn of(pid: i32, guard: Guard) -> Result<Arc<AddressSpace>> {
        if pid <= 0 {
            return Err(Error::fixed(errno::ESRCH, "the peer lives in another pid namespace, so cross-memory attach cannot name it"));
        }
        let same = |s: &Arc<AddressSpace>| s.pid == pid && s.guard == guard && s.over.get().is_none();
        if let Some(all) = KNOWN.try_lock_for(LOCK_TIMEOUT)
            && let Some(known) = all.iter().filter_map(Weak::upgrade).find(same)
        {
            return Ok(known);
        }
        let fresh = Arc::new(AddressSpace::open(pid, guard)?);
        if let Some(mut all) = KNOWN.try_lock_for(LOCK_TIMEOUT) {
            all.retain(|other| other.strong_count() > 0);
            all.push(Arc::downgrade(&fresh));
        }
        Ok(fresh)
    }

    fn open(pid: i32, guard: Guard) -> Result<AddressSpace> {
        let mut space = AddressSpace {
            pid,
            tid: AtomicI32::new(pid),
            guard,
            // Opened before the guard is read, so the page map belongs to the same address space or to an earlier one.
            pages: page_map(pid),
            over: OnceLock::new(),
        };
        space.await_guard()?;
        space.verify_guard()?;
        if space.tid() != pid {
            // The first thread has ended, and another was found; its page map has to be opened again.
            space.pages = page_map(space.tid());
            space.verify_guard()?;
        }
        Ok(space)
    }

    /// Waits a short time for the guard's page, because a copy must not wait for a page that may never come. The page
    /// of a peer that has just announced it is normally there.
    fn await_guard(&self) -> Result<()> {
        let (begun, request) = (Instant::now(), PageRequest::new(self.pid, self.tid(), self.guard, Attach::Read, Vec::new()));
        let mut sent = false;
        while !self.has_guard() && !request.is_finished() {
            if self.page_map().is_none() && !sent {
                sent = populate::submit(&request)?;
            }
            if begun.elapsed() > if self.page_map().is_some() { GUARD_GLANCE } else { GUARD_WAIT } {
                return Err(Error::fixed(errno::ETIMEDOUT, "the page that identifies the peer's memory could not be read in time"));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Reads the guard alone, and so verifies the address space and the permission to copy.
    fn verify_guard(&self) -> Result<()> {
        let read = self.once(Attach::Read, &mut [Iov::EMPTY], &mut [piece(0, 0)], 0);
        read.map_err(|e| match e.errno {
            errno::EPERM => e.context(
                "this process may not trace the peer: another user or user namespace, Yama's ptrace_scope, or CAP_SYS_PTRACE lacking",
            ),
            _ => e,
        })
    }

    /// The reason why nothing is copied any more.
    pub fn why_over(&self) -> Option<&Error> {
        self.over.get()
    }

    fn tid(&self) -> i32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// Copies all bytes, or fails. If the copy takes several calls, a failed one may have moved a part. The kernel
    /// checks the peer's pieces.
    #[inline]
    pub(super) fn copy(&self, how: Attach, local: &[Iov], remote: &[Piece]) -> Result<()> {
        if let ([here], [there]) = (local, remote)
            && there.iov_len <= STEP
        {
            return self.once(how, &mut [Iov::EMPTY, *here], &mut [piece(0, 0), *there], there.iov_len);
        }
        let want: usize = remote.iter().map(|p| p.iov_len).sum();
        if want <= STEP && local.len() < FEW && remote.len() < FEW {
            let (mut ours, mut theirs) = ([Iov::EMPTY; FEW], [piece(0, 0); FEW]);
            ours[1..=local.len()].copy_from_slice(local);
            theirs[1..=remote.len()].copy_from_slice(remote);
            return self.once(how, &mut ours[..=local.len()], &mut theirs[..=remote.len()], want);
        }
        self.in_steps(how, local, remote, want, STEP)
    }

    #[cold]
    pub(super) fn in_steps(&self, how: Attach, local: &[Iov], remote: &[Piece], want: usize, step: usize) -> Result<()> {
        let mut batch = Batch::default();
        for done in (0..want).step_by(step) {
            let n = step.min(want - done);
            batch.clear();
            within(local, Iov::len, done, n).for_each(|(of, from, n)| batch.push_local(of.part(from, n)));
            within(remote, |p| p.iov_len, done, n)
                .for_each(|(of, from, n)| batch.push_remote(piece((of.iov_base as u64).wrapping_add(from as u64), n)));
            self.once(how, &mut batch.ours, &mut batch.theirs, n)?;
        }
        Ok(())
    }

    /// Makes one call. The first element of `ours` and `theirs` is free: this function puts the guard there.
    #[inline]
    pub(super) fn once(&self, how: Attach, ours: &mut [Iov], theirs: &mut [Piece], want: usize) -> Result<()> {
        if how == Attach::Write && !self.guard.is_unique_address() {
            // The guard's address is one where any program may have memory, so the guard is read before anything is
            // written.
            self.verify_guard()?;
        }
        let mut word = if how == Attach::Write { self.guard.word.to_ne_bytes() } else { [0; 8] };
        // SAFETY: the word outlives the call.
        ours[0] = unsafe { Iov::of_mut(&mut word) };
        theirs[0] = piece(self.guard.addr, word.len());
        let got = attach(self.tid(), how, ours, theirs);
        if got == Ok(want + word.len()) && u64::from_ne_bytes(word) == self.guard.word {
            return Ok(());
        }
        self.failed(how, ours, theirs, want, got, u64::from_ne_bytes(word))
    }

    #[cold]
    fn failed(
        &self,
        how: Attach,
        ours: &mut [Iov],
        theirs: &mut [Piece],
        want: usize,
        got: std::result::Result<usize, i32>,
        word: u64,
    ) -> Result<()> {
        let (_held, name) = (CancelDisabled::off(), how.name());
        match got {
            Err(errno::ESRCH) if self.switch_thread() => self.once(how, ours, theirs, want),
            Err(errno::ESRCH) => Err(self.ends("the peer's process has ended")),
            // The guard is the first piece, so a call without a single byte means that it is missing.
            Err(errno::EFAULT) => Err(self.ends("the peer's process has executed another program, or has ended")),
            Ok(_) if word != self.guard.word => Err(self.ends("the peer's process has executed another program, or has ended")),
            Err(e @ (errno::EPERM | errno::EACCES | errno::ENOSYS)) => {
                let words = format!("{name} with process {} is refused: {}", self.pid, errno::words(e));
                Err(self.over.get_or_init(|| Error::coded(e, Code::Path, words)).clone())
            }
            Err(e) => Err(Error::new(e, format!("{name} with process {}: {}", self.pid, errno::words(e)))),
            Ok(got) => {
                let moved = got.saturating_sub(8);
                if self.is_refused_by_kernel(how, &theirs[1..], moved) {
                    let words = format!("{name} with process {}: the kernel does not copy this memory between processes", self.pid);
                    return Err(Error::coded(errno::EFAULT, Code::Path, words));
                }
                Err(Error::new(
                    errno::EFAULT,
                    format!("{name} with process {} moved {moved} of {want} bytes: the rest is not mapped", self.pid),
                ))
            }
        }
    }

    fn ends(&self, words: &'static str) -> Error {
        self.over.get_or_init(|| Error::coded(errno::ECONNRESET, Code::PeerGone, words)).clone()
    }

    /// Uses another thread of the same address space in place of one that has ended.
    fn switch_thread(&self) -> bool {
        let is_of_it = |tid: &i32| {
            let mut word = [0; 8];
            // SAFETY: the word outlives the call.
            let ours = [unsafe { Iov::of_mut(&mut word) }];
            attach(*tid, Attach::Read, &ours, &[piece(self.guard.addr, word.len())]) == Ok(8) && u64::from_ne_bytes(word) == self.guard.word
        };
        let Some(tid) = threads(self.pid).find(is_of_it) else { return false };
        self.tid.store(tid, Ordering::Relaxed);
        true
    }

    /// True if the byte after the first `moved` bytes lies in a mapping that permits the copy, and yet the kernel does
    /// not copy the byte.
    fn is_refused_by_kernel(&self, how: Attach, theirs: &[Piece], moved: usize) -> bool {
        let Some((of, from, _)) = within(theirs, |p| p.iov_len, moved, 1).next() else { return false };
        let addr = (of.iov_base as u64).wrapping_add(from as u64);
        let mut byte = [0; 9];
        // SAFETY: the bytes outlive the call.
        let ours = [unsafe { Iov::of_mut(&mut byte) }];
        // If the byte can be read, only a right was missing, or this process's memory was at fault.
        let read = attach(self.tid(), Attach::Read, &ours, &[piece(self.guard.addr, 8), piece(addr, 1)]);
        read == Ok(8) && maps(self.tid(), addr, how)
    }

    /// The page map, if the kernel lets this process open it.
    pub(super) fn page_map(&self) -> Option<&OwnedFd> {
        self.pages.as_ref().ok()
    }

    /// True if the guard's page is present, or the address space has ended.
    pub(super) fn has_guard(&self) -> bool {
        self.page_map().is_some_and(|map| pages::is_there(map, self.guard.addr) != Some(false))
    }

    /// Has a thread fault pages in and wait until they have come. `None`: a thread already waits for other pages of
    /// that process.
    pub(super) fn request_pages(&self, how: Attach, ranges: Vec<(u64, usize)>) -> Result<Option<Arc<PageRequest>>> {
        let request = PageRequest::new(self.pid, self.tid(), self.guard, how, ranges);
        Ok(populate::submit(&request)?.then_some(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::process;

    /// `None` in a sandbox that refuses the calls.
    fn own() -> Option<Arc<AddressSpace>> {
        match AddressSpace::of(process::pid(), Guard::own().unwrap()) {
            Err(e) if matches!(e.errno, errno::EPERM | errno::ENOSYS) => None,
            other => Some(other.unwrap()),
        }
    }

    #[test]
    fn copies_read_and_write() {
        let Some(space) = own() else { return };
        let (mut a, b) = ([0u8; 100], [7u8; 100]);
        // SAFETY: the array outlives the calls.
        let (here, there) = (unsafe { Iov::of_mut(&mut a) }, piece(b.as_ptr() as u64, 100));
        space.copy(Attach::Read, &[here], &[there]).unwrap();
        assert_eq!(a, b);
        let bad = space.copy(Attach::Write, &[here], &[piece(8, 100)]).unwrap_err();
        assert_eq!((bad.errno, bad.code), (errno::EFAULT, Code::None));
        assert!(space.why_over().is_none());
    }

    #[test]
    fn what_one_call_cannot_move_goes_in_steps() {
        let Some(space) = own() else { return };
        let theirs: Vec<u8> = (0..=255).collect();
        let at = |from: usize, n: usize| piece(theirs[from..].as_ptr() as u64, n);
        let wanted = [&theirs[100..190], &theirs[..0], &theirs[3..10], &theirs[200..253]].concat();
        for step in [1, 7, 64, 149, 150, 1000] {
            let (mut a, mut b) = ([0u8; 70], [0u8; 80]);
            // SAFETY: the arrays outlive the calls.
            let ours = unsafe { [Iov::of_mut(&mut a), Iov::EMPTY, Iov::of_mut(&mut b)] };
            space.in_steps(Attach::Read, &ours, &[at(100, 90), at(0, 0), at(3, 7), at(200, 53)], 150, step).unwrap();
            assert!([&a[..], &b[..]].concat() == wanted, "steps of {step}");
        }
    }

    #[test]
    fn an_address_space_without_the_guard_is_not_touched() {
        let Some(known) = own() else { return };
        for guard in [Guard { word: !known.guard.word, ..known.guard }, Guard { addr: 8, ..known.guard }] {
            assert!(AddressSpace::of(process::pid(), guard).is_err());
        }
        let lost = AddressSpace { guard: Guard { addr: 4096, ..known.guard }, ..AddressSpace::open(process::pid(), known.guard).unwrap() };
        let (mut a, mut b) = ([1u8; 100], [2u8; 100]);
        // SAFETY: the arrays outlive the calls.
        let (here, there) = (unsafe { Iov::of_mut(&mut a) }, piece(b.as_mut_ptr() as u64, 100));
        assert_eq!(lost.copy(Attach::Write, &[here], &[there]).unwrap_err().code, Code::PeerGone);
        assert_eq!(lost.copy(Attach::Read, &[here], &[there]).unwrap_err().code, Code::PeerGone);
        assert_eq!((a, b), ([1; 100], [2; 100]));
        assert!(lost.why_over().is_some());
    }

    #[test]
    fn memory_that_the_kernel_copies_for_nobody_is_told_from_none() {
        let Some(space) = own() else { return };
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        // The kernel's own clock page.
        let line = maps.lines().find(|line| line.ends_with("[vvar]"));
        let Some(addr) = line.and_then(|line| u64::from_str_radix(line.split('-').next()?, 16).ok()) else { return };
        let mut byte = [0];
        // SAFETY: the byte outlives the call.
        let withheld = space.copy(Attach::Read, &[unsafe { Iov::of_mut(&mut byte) }], &[piece(addr, 1)]).unwrap_err();
        assert_eq!((withheld.errno, withheld.code), (errno::EFAULT, Code::Path));
    }

    #[test]
    fn another_thread_stands_for_a_first_one_that_has_ended() {
        let Some(space) = own() else { return };
        // A pid that no process has.
        space.tid.store(i32::MAX, Ordering::Relaxed);
        let (stop, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || wait.recv());
        let (mut a, b) = ([0u8; 8], [7u8; 8]);
        // SAFETY: the array outlives the call.
        space.copy(Attach::Read, &[unsafe { Iov::of_mut(&mut a) }], &[piece(b.as_ptr() as u64, 8)]).unwrap();
        assert_eq!(a, b);
        drop(stop);
        let _ = other.join();
    }
}
