// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gives pages to fresh memory before the memory is registered. Most of the cost of registering fresh memory is the
//! clearing of its pages by the kernel. Several threads can clear pages at once, but one registration cannot. Memory
//! that already has its pages is left alone, because walking the pages again would cost as much as pinning them.

use crate::mr::Access;
use crate::prov::op::Iov;
use crate::sys::{mem, thread};

/// The bytes for which one more thread pays off.
const SHARE: usize = 32 << 20;

/// The distance between two sampled pages. One sample stands for all pages of the distance, because the pages of a huge
/// page come together, and a program that has touched a page has mostly touched the neighbouring pages too.
const STEP: usize = 2 << 20;

/// True if at least `2 * SHARE` bytes of the range have no pages yet, judged by one page per `STEP`.
fn is_fresh(start: usize, end: usize) -> bool {
    let steps = (start..end).step_by(STEP);
    // The number of samples that may have a page. With one more, the range is not fresh, and the rest need not be
    // sampled.
    let Some(most) = steps.len().checked_sub(2 * SHARE / STEP) else { return false };
    steps.filter(|at| mem::is_resident(*at)).nth(most).is_none()
}

/// True if a range of `len` bytes is large enough to gain from populating.
pub fn may_pay_off(len: usize) -> bool {
    len / SHARE >= 2
}

/// Populates host ranges on up to `threads` threads. Errors are ignored here, because the registration will report
/// them.
pub fn populate(iovs: &[Iov], access: Access, threads: usize) {
    let write = access.intersects(Access::READ | Access::RECV | Access::REMOTE_WRITE);
    for iov in iovs {
        let parts = (iov.len() / SHARE).min(threads);
        if parts < 2 {
            continue;
        }
        let page = mem::page_size();
        let start = iov.addr() & !(page - 1);
        let end = (iov.addr() + iov.len()).div_ceil(page) * page;
        if !is_fresh(start, end) {
            continue;
        }
        let share = ((end - start) / parts).next_multiple_of(STEP);
        let begin = |at: usize| {
            let n = share.min(end - at);
            thread::spawn("gdrfab-populate", move || mem::populate(at, n, write)).ok()
        };
        let begun: Vec<_> = (start..end).step_by(share).map_while(begin).collect();
        for part in begun {
            let _ = part.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    #[test]
    fn only_memory_without_pages_is_fresh() {
        let len = 4 * SHARE;
        // SAFETY: a new mapping of this test.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }.unwrap();
        let start = at as usize;
        assert!(is_fresh(start, start + len) && !mem::is_resident(start));
        mem::populate(start, len / 2, true);
        assert!(mem::is_resident(start) && !is_fresh(start, start + len / 2));
        assert!(is_fresh(start, start + len), "half of it still is");
        // SAFETY: mapped above.
        unsafe { munmap(at, len) }.unwrap();
        assert!(!mem::is_resident(start), "what is not mapped has no pages");
    }
}
