// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory for calls that have already begun when the system's memory runs out: two arenas in .bss. The arenas take
//! address space from the start, but pages only when they are used. While the reserve is in use, the next call fails
//! with -ENOMEM before it does anything ([`enough`]), unless the call closes, frees or cancels something. If little of
//! the reserve is left, progress waits too ([`is_lowest`]).
//!
//! The reserve does not cover thread-local storage that the C library allocates at a thread's first call into a library
//! loaded by dlopen(), and the destructors of thread-local values in a static link (`sys::thread_end`). If memory for
//! one of these is lacking, the C library ends the process.

use crate::error::{Error, Result, errno};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Memory that is given out in units of `UNIT` bytes, which is also the largest alignment of a piece.
#[repr(C, align(4096))]
struct Arena<const UNIT: usize, const WORDS: usize> {
    memory: UnsafeCell<[[[u8; UNIT]; 64]; WORDS]>,
    /// A bit for each unit. The bits of a piece lie in one word, so that one exchange takes the piece. Without a lock,
    /// the arena also works after fork().
    taken: [AtomicU64; WORDS],
}

// SAFETY: a piece belongs to the allocation that has set its bits.
unsafe impl<const UNIT: usize, const WORDS: usize> Sync for Arena<UNIT, WORDS> {}

impl<const UNIT: usize, const WORDS: usize> Arena<UNIT, WORDS> {
    const BYTES: usize = WORDS * 64 * UNIT;
    /// Longer pieces are refused.
    const LONGEST_PIECE: usize = 64 * UNIT;

    const fn new() -> Self {
        Arena { memory: UnsafeCell::new([[[0; UNIT]; 64]; WORDS]), taken: [const { AtomicU64::new(0) }; WORDS] }
    }

    fn bits(size: usize) -> u64 {
        u64::MAX >> (64 - size.div_ceil(UNIT).clamp(1, 64))
    }

    fn take(&self, layout: Layout) -> *mut u8 {
        if layout.size() > Self::LONGEST_PIECE || layout.align() > UNIT.min(4096) {
            return std::ptr::null_mut();
        }
        let piece = Self::bits(layout.size());
        for (at, word) in self.taken.iter().enumerate() {
            let mut now = word.load(Ordering::Relaxed);
            while let Some(shift) = (0..=piece.leading_zeros()).find(|s| now & (piece << s) == 0) {
                match word.compare_exchange_weak(now, now | piece << shift, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => {
                        USED.fetch_add(piece.count_ones() as usize * UNIT, Ordering::Relaxed);
                        return self.memory.get().cast::<u8>().wrapping_add((at * 64 + shift as usize) * UNIT);
                    }
                    Err(other) => now = other,
                }
            }
        }
        std::ptr::null_mut()
    }

    #[inline(always)]
    fn has(&self, at: *mut u8) -> bool {
        at.addr().wrapping_sub(self.memory.get().addr()) < Self::BYTES
    }

    /// Gives back a piece of `take`.
    fn give_back(&self, at: *mut u8, size: usize) {
        let (piece, first) = (Self::bits(size), at.addr().wrapping_sub(self.memory.get().addr()) / UNIT);
        if let Some(word) = self.taken.get(first / 64) {
            word.fetch_and(!(piece << (first % 64)), Ordering::Release);
            USED.fetch_sub(piece.count_ones() as usize * UNIT, Ordering::Relaxed);
        }
    }
}

/// The small arena is for records, and the large one for collections whose length has a bound. Longer collections grow
/// by [`crate::fallible`], which can fail.
#[repr(C)]
struct Arenas {
    small: Arena<256, 80>,
    large: Arena<32768, 1>,
}

static ARENAS: Arenas = Arenas { small: Arena::new(), large: Arena::new() };
/// Bytes of both arenas that are in use.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Bytes in use above which a call begins only if the system has memory again.
const LOW_BYTES: usize = 160 << 10;
/// Bytes in use above which progress waits until the system has memory again. The rest is for running calls, and for
/// calls that free memory.
const HIGH_BYTES: usize = 640 << 10;
/// Bytes in use above which no call that may allocate begins, even if the system has memory.
const HIGHEST_BYTES: usize = 1 << 20;
/// Largest piece that the reserve gives out, so that the large arena has room for several pieces.
const LONGEST: usize = 512 << 10;
/// Bytes of a test allocation that tells whether the system has memory again.
const PROBE: usize = 256 << 10;

/// True if an address lies in the reserve.
#[inline(always)]
pub fn is_ours(at: *const u8) -> bool {
    at.addr().wrapping_sub((&raw const ARENAS).addr()) < size_of::<Arenas>()
}

#[cold]
#[inline(never)]
fn give_back(at: *mut u8, size: usize) {
    if ARENAS.small.has(at) { ARENAS.small.give_back(at, size) } else { ARENAS.large.give_back(at, size) }
}

#[cold]
#[inline(never)]
fn take_from_reserve(layout: Layout, zeroed: bool) -> *mut u8 {
    let mut at = ARENAS.small.take(layout);
    if at.is_null() && layout.size() <= LONGEST {
        at = ARENAS.large.take(layout);
    }
    if zeroed && !at.is_null() {
        // SAFETY: `take` returned that many bytes.
        unsafe { at.write_bytes(0, layout.size()) };
    }
    at
}

/// The system's allocator, and the arenas if it fails.
pub struct Reserve;

#[cfg(feature = "reserve")]
#[global_allocator]
static GLOBAL: Reserve = Reserve;

// SAFETY: both allocators keep the contract of `GlobalAlloc`, and memory returns to the allocator that it came from.
unsafe impl GlobalAlloc for Reserve {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller promises a valid layout.
        let at = unsafe { System.alloc(layout) };
        if at.is_null() { take_from_reserve(layout, false) } else { at }
    }

    #[inline(never)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller promises a valid layout.
        let at = unsafe { System.alloc_zeroed(layout) };
        if at.is_null() { take_from_reserve(layout, true) } else { at }
    }

    #[inline(never)]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if is_ours(at) {
            return give_back(at, layout.size());
        }
        // SAFETY: the memory is outside the arenas, so it is the system's; the caller promises that it has this layout.
        unsafe { System.dealloc(at, layout) }
    }

    #[inline(never)]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !is_ours(at) {
            // SAFETY: the memory is outside the arenas, so it is the system's; the caller promises that it has this
            // layout.
            let new = unsafe { System.realloc(at, layout, size) };
            if !new.is_null() {
                return new;
            }
        }
        reallocate(at, layout, size)
    }
}

/// Moves `at` to new memory of `size` bytes. If there is none, `at` stays as it is.
#[cold]
#[inline(never)]
fn reallocate(at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
    let Ok(wanted) = Layout::from_size_align(size, layout.align()) else { return std::ptr::null_mut() };
    // SAFETY: the caller of realloc promises that `at` has `layout`. The new memory is another piece, and holds the
    // shorter of both.
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
    Error::fixed(errno::ENOMEM, "no memory for the library's own records; close objects or complete operations, then call again");

/// True if so much of the reserve is in use that [`enough`] may fail.
#[inline(always)]
pub fn is_low() -> bool {
    USED.load(Ordering::Relaxed) > LOW_BYTES
}

/// Fails if memory has run out and the reserve is in use. Called before each call that may allocate, and again in calls
/// that repeat their work.
pub fn enough() -> Result<()> {
    let used = USED.load(Ordering::Relaxed);
    if used <= LOW_BYTES || (used <= HIGHEST_BYTES && system_has_memory()) { Ok(()) } else { Err(NONE_LEFT) }
}

/// True if memory is so short that work in progress has to wait too.
#[inline(always)]
pub fn is_lowest() -> bool {
    USED.load(Ordering::Relaxed) > HIGH_BYTES && !system_has_memory()
}

#[cold]
#[inline(never)]
fn system_has_memory() -> bool {
    // SAFETY: the pointer of malloc, or NULL, is freed once.
    unsafe {
        let probe = libc::malloc(PROBE);
        libc::free(probe);
        !probe.is_null()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both tests use the same arenas.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn pieces_do_not_overlap_and_all_come_back() {
        let _alone = ALONE.lock();
        let before = USED.load(Ordering::Relaxed);
        let mut pieces = Vec::new();
        for size in (0..40_000).step_by(199).chain(0..).map(|n| n % 16_385) {
            let layout = Layout::from_size_align(size, 16).unwrap();
            // Some of the reserve is left, because other tests run at the same time.
            let at = if USED.load(Ordering::Relaxed) > HIGH_BYTES { std::ptr::null_mut() } else { take_from_reserve(layout, false) };
            if at.is_null() {
                break;
            }
            assert!(at.is_aligned() && is_ours(at) && is_ours(at.wrapping_add(size.max(1) - 1)));
            // SAFETY: the piece has `size` bytes.
            unsafe { at.write_bytes(pieces.len() as u8, size) };
            pieces.push((at, layout));
        }
        assert!(pieces.len() > 10 && is_low() && enough().is_ok());
        for (k, (at, layout)) in pieces.into_iter().enumerate() {
            // SAFETY: the piece was written above.
            assert!((0..layout.size()).all(|i| unsafe { at.add(i).read() } == k as u8), "piece {k}");
            // SAFETY: the piece is from the arena.
            unsafe { Reserve.dealloc(at, layout) };
        }
        assert_eq!(USED.load(Ordering::Relaxed), before);
    }

    #[test]
    fn what_is_long_or_aligned_to_more_is_refused_and_what_grows_is_moved() {
        let _alone = ALONE.lock();
        assert!(take_from_reserve(Layout::from_size_align(LONGEST + 1, 8).unwrap(), false).is_null());
        assert!(take_from_reserve(Layout::from_size_align(8, 8192).unwrap(), false).is_null());
        let layout = Layout::from_size_align(100, 8).unwrap();
        // SAFETY: memory of this allocator, with the layouts that it was allocated with.
        unsafe {
            let at = take_from_reserve(layout, true);
            assert!((0..100).all(|i| at.add(i).read() == 0));
            at.write(7);
            let reallocate = Reserve.realloc(at, layout, 100_000);
            assert!(!is_ours(reallocate) && reallocate.read() == 7);
            Reserve.dealloc(reallocate, Layout::from_size_align(100_000, 8).unwrap());
        }
    }
}
