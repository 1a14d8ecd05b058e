// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guard: one page per process by which others recognise its address space. The page lies at a random address and
//! begins with a random word. A program that the process executes later has no such page there, and a child of fork()
//! has another word in it.

use crate::error::{Error, Result, errno};
use crate::sys::{mem, process};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Address and word of a guard. A peer announces its guard, and reading the page verifies the announcement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guard {
    pub addr: u64,
    pub word: u64,
}

/// Number of random addresses that are tried.
const DRAWS: usize = 8;
/// Bounds of an address range that has no programs, libraries, stacks or heaps.
const LOW: u64 = 0x1000_0000_0000;
const HIGH: u64 = 0x5000_0000_0000;

impl Guard {
    /// The guard of this process.
    pub fn own() -> Result<Guard> {
        let addr = page()?;
        // SAFETY: the page is never unmapped, and begins with eight aligned bytes.
        let word = unsafe { &*(addr as *const AtomicU64) };
        // The kernel zeroes the page in children.
        if word.load(Ordering::Relaxed) == 0 {
            let _ = word.compare_exchange(0, random()? | 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        Ok(Guard { addr: addr as u64, word: word.load(Ordering::Relaxed) })
    }

    /// True if the address is one that no other program uses, so that bytes may be written without reading the guard
    /// first.
    #[inline]
    pub fn is_unique_address(&self) -> bool {
        (LOW..HIGH).contains(&self.addr)
    }
}

fn random() -> Result<u64> {
    let mut raw = [0; 8];
    process::random(&mut raw)?;
    Ok(u64::from_ne_bytes(raw))
}

/// The address of this process's guard page, which is mapped once.
fn page() -> Result<usize> {
    static PAGE: AtomicUsize = AtomicUsize::new(0);
    let known = PAGE.load(Ordering::Acquire);
    if known != 0 {
        return Ok(known);
    }
    let fresh = map()?;
    match PAGE.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(fresh),
        Err(other) => {
            // SAFETY: another thread was faster, and no code knows this page.
            unsafe { libc::munmap(fresh as *mut libc::c_void, mem::page_size()) };
            Ok(other)
        }
    }
}

fn map() -> Result<usize> {
    let len = mem::page_size();
    // The address is only a hint (no MAP_FIXED_NOREPLACE): ThreadSanitizer permits none of these addresses and turns a
    // hint into 0. With MAP_FIXED_NOREPLACE, root would then get page 0, and the sanitizer would end the process.
    let at = |wish: usize| {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping, which replaces no other.
        let got = unsafe { libc::mmap(wish as *mut libc::c_void, len, protection, flags, -1, 0) };
        if got != libc::MAP_FAILED {
            return Ok(got as usize);
        }
        let e = std::io::Error::last_os_error();
        let words = format!("mapping the page that identifies this process to peers: {e}");
        Err(Error::new(e.raw_os_error().unwrap_or(errno::ENOMEM), words))
    };
    let mut addr = 0;
    for draw in 1..=DRAWS {
        let wish = (LOW + random()? % (HIGH - LOW)) as usize & !(len - 1);
        addr = at(wish)?;
        // The last attempt keeps whatever address the kernel gave: the address space is small, or a tool keeps the
        // wanted addresses to itself.
        if addr == wish || draw == DRAWS {
            break;
        }
        // SAFETY: the page just mapped, of which nobody knows.
        unsafe { libc::munmap(addr as *mut libc::c_void, len) };
    }
    // SAFETY: advice on the page just mapped. A kernel before 4.14 does not know this advice: then a child has the same
    // word, but another pid.
    unsafe { libc::madvise(addr as *mut libc::c_void, len, libc::MADV_WIPEONFORK) };
    Ok(addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_guard_and_its_child_another() {
        let guard = Guard::own().unwrap();
        assert_eq!(guard, Guard::own().unwrap());
        assert_ne!(guard.word, 0);
        // SAFETY: the child makes only calls that are safe after fork() in a process with threads, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let other = Guard::own().is_ok_and(|own| own.addr == guard.addr && own.word != guard.word);
            // SAFETY: ends only the child.
            unsafe { libc::_exit(i32::from(!other)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
