// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory for the small allocations of a call that has begun when the system has none left: an arena in .bss, counted against
//! the address space from the start. The next call ends with -ENOMEM before it does anything ([`enough`]).
//!
//! Large allocations never come from here. Their callers ask for them by [`crate::room`], which can fail.

use crate::error::{Error, Result, errno};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The unit of the arena, and the largest alignment that it gives.
const GRANULE: usize = 256;
const WORDS: usize = 80;
const ARENA: usize = WORDS * 64 * GRANULE;
/// Longer allocations are refused.
const MOST: usize = 64 * GRANULE;

/// In use beyond this, a call begins only if the system has memory again.
const LOW: usize = ARENA / 8;
/// In use beyond this, no call begins that may allocate, and progress waits. The rest is for calls that run, and for those that
/// give memory back.
const HIGH: usize = ARENA / 2;
/// What the system must have to count as having memory again.
const PROBE: usize = 256 << 10;

#[repr(C, align(4096))]
struct Arena(UnsafeCell<[u8; ARENA]>);
// SAFETY: a piece of the arena belongs to the one thread that has set its bits in `TAKEN`.
unsafe impl Sync for Arena {}

static PLACE: Arena = Arena(UnsafeCell::new([0; ARENA]));
/// A bit for each granule. A piece lies within one word, so that one exchange takes it: no lock, also after fork().
static TAKEN: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// Bytes of the arena in use.
static USED: AtomicUsize = AtomicUsize::new(0);

fn bits(size: usize) -> u64 {
    u64::MAX >> (64 - size.div_ceil(GRANULE).clamp(1, 64))
}

fn take(layout: Layout) -> *mut u8 {
    if layout.size() > MOST || layout.align() > GRANULE {
        return std::ptr::null_mut();
    }
    let piece = bits(layout.size());
    for (at, word) in TAKEN.iter().enumerate() {
        let mut now = word.load(Ordering::Relaxed);
        while let Some(shift) = (0..=piece.leading_zeros()).find(|s| now & (piece << s) == 0) {
            match word.compare_exchange_weak(now, now | piece << shift, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    USED.fetch_add(piece.count_ones() as usize * GRANULE, Ordering::Relaxed);
                    return PLACE.0.get().cast::<u8>().wrapping_add((at * 64 + shift as usize) * GRANULE);
                }
                Err(other) => now = other,
            }
        }
    }
    std::ptr::null_mut()
}

/// Where in the arena `at` lies, if it does.
#[inline(always)]
fn offset(at: *mut u8) -> Option<usize> {
    let offset = at.addr().wrapping_sub(PLACE.0.get().addr());
    (offset < ARENA).then_some(offset)
}

#[cold]
#[inline(never)]
fn give(offset: usize, size: usize) {
    let piece = bits(size);
    let first = offset / GRANULE;
    if let Some(word) = TAKEN.get(first / 64) {
        word.fetch_and(!(piece << (first % 64)), Ordering::Release);
        USED.fetch_sub(piece.count_ones() as usize * GRANULE, Ordering::Relaxed);
    }
}

#[cold]
#[inline(never)]
fn fall_back(layout: Layout, zeroed: bool) -> *mut u8 {
    let at = take(layout);
    if zeroed && !at.is_null() {
        // SAFETY: `take` gave that many bytes.
        unsafe { at.write_bytes(0, layout.size()) };
    }
    at
}

/// The system's allocator, and the arena where that has none.
pub struct Reserve;

#[cfg(feature = "reserve")]
#[global_allocator]
static GLOBAL: Reserve = Reserve;

// SAFETY: each of the two keeps the promises of an allocator, and memory goes back to the one that it is from.
unsafe impl GlobalAlloc for Reserve {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let at = unsafe { System.alloc(layout) };
        if at.is_null() { fall_back(layout, false) } else { at }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let at = unsafe { System.alloc_zeroed(layout) };
        if at.is_null() { fall_back(layout, true) } else { at }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match offset(at) {
            Some(offset) => give(offset, layout.size()),
            // SAFETY: outside the arena it is the system's, of this layout says the caller.
            None => unsafe { System.dealloc(at, layout) },
        }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if offset(at).is_none() {
            // SAFETY: outside the arena it is the system's, of this layout says the caller.
            let new = unsafe { System.realloc(at, layout, size) };
            if !new.is_null() {
                return new;
            }
        }
        moved(at, layout, size)
    }
}

/// `at` in new memory of `size`; it stays as it is where there is none.
#[cold]
#[inline(never)]
fn moved(at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
    let Ok(wanted) = Layout::from_size_align(size, layout.align()) else { return std::ptr::null_mut() };
    // SAFETY: `at` has `layout`, says the caller of realloc; the new memory is another and holds the shorter of both.
    unsafe {
        let new = Reserve.alloc(wanted);
        if !new.is_null() {
            new.copy_from_nonoverlapping(at, layout.size().min(size));
            Reserve.dealloc(at, layout);
        }
        new
    }
}

pub const NONE_LEFT: Error =
    Error::fixed(errno::ENOMEM, "no memory left for the library's own records: close or complete something, then call again");

/// Whether so much of the reserve is in use that `enough` may fail.
#[inline(always)]
pub fn is_low() -> bool {
    USED.load(Ordering::Relaxed) > LOW
}

/// Fails where memory has run out and the reserve is in use: before each call that may allocate, and within those that repeat.
pub fn enough() -> Result<()> {
    if !is_low() || (!is_lowest() && system_has_again()) { Ok(()) } else { Err(NONE_LEFT) }
}

/// Whether so much of the reserve is in use that also work which has begun waits.
#[inline(always)]
pub fn is_lowest() -> bool {
    USED.load(Ordering::Relaxed) > HIGH
}

#[cold]
fn system_has_again() -> bool {
    // SAFETY: what malloc gave is freed, once.
    unsafe {
        let probe = libc::malloc(PROBE);
        libc::free(probe);
        !probe.is_null()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both tests use the one arena.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn pieces_do_not_overlap_and_all_come_back() {
        let _alone = ALONE.lock();
        let before = USED.load(Ordering::Relaxed);
        let mut pieces = Vec::new();
        for size in (0..MOST).step_by(199).cycle() {
            let layout = Layout::from_size_align(size, 16).unwrap();
            let at = take(layout);
            if at.is_null() {
                break;
            }
            assert!(at.addr() % GRANULE == 0 && offset(at).is_some_and(|o| o + size <= ARENA));
            // SAFETY: the piece is `size` long.
            unsafe { at.write_bytes(pieces.len() as u8, size) };
            pieces.push((at, layout));
        }
        assert!(pieces.len() > ARENA / MOST && is_lowest() && enough().is_err());
        for (k, (at, layout)) in pieces.into_iter().enumerate() {
            // SAFETY: as written above.
            assert!((0..layout.size()).all(|i| unsafe { at.add(i).read() } == k as u8), "piece {k}");
            // SAFETY: it is from the arena.
            unsafe { Reserve.dealloc(at, layout) };
        }
        assert_eq!(USED.load(Ordering::Relaxed), before);
    }

    #[test]
    fn what_is_long_or_aligned_to_more_is_refused_and_what_grows_is_moved() {
        let _alone = ALONE.lock();
        assert!(take(Layout::from_size_align(MOST + 1, 8).unwrap()).is_null());
        assert!(take(Layout::from_size_align(8, 2 * GRANULE).unwrap()).is_null());
        let layout = Layout::from_size_align(100, 8).unwrap();
        // SAFETY: memory of the allocator, with the layouts that it has.
        unsafe {
            let at = fall_back(layout, true);
            assert!((0..100).all(|i| at.add(i).read() == 0));
            at.write(7);
            let moved = Reserve.realloc(at, layout, 100_000);
            assert!(offset(moved).is_none() && moved.read() == 7);
            Reserve.dealloc(moved, Layout::from_size_align(100_000, 8).unwrap());
        }
    }
}
