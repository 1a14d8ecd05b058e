// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The out-of-line area of a ring, which holds the bytes of longer messages. The bytes of a message are contiguous in
//! the area, so that both sides copy them like any memory; in the ring, the header of each line would interrupt them.
//! The message in the ring names the place in the area, and the message's header, stored with release, announces the
//! bytes as well.
//!
//! Places are given out in order and returned in order, like the ring's lines. The writer counts the bytes used and the
//! reader the bytes returned, and neither believes the other's number before checking it.
//!
//! The area is at least as large as a core's second-level cache on purpose. A cache line that the reader's core still
//! holds must be fetched from there before it can be written again. After a lap that is long enough for the line to
//! have left that cache, it comes from the shared cache, in half the time.
//!
//! The first place is at the area's end, and each further place has lower addresses than the place before. A CPU that
//! reads a message also fetches the lines at the addresses after it, and these should be lines that were read already,
//! not lines that the writer is about to write.
//!
//! A connection that carries little does not need the whole area: a writer first cycles through a small part of the
//! area, and through twice as much whenever it has completed several laps.

use super::header::{Broken, RingError, Unmapped};
use super::primitive::{AtomicU64, Ordering};
use std::ptr::NonNull;

/// Bytes of the area.
#[cfg(not(loom))]
pub const AREA: usize = 2 << 20;
#[cfg(loom)]
pub const AREA: usize = 4 * START;
/// Bytes of the part that a writer uses at first.
pub const START: usize = 128 * 1024;
/// Laps after which a writer uses twice as much.
const LAPS: u32 = 8;
/// Bytes after which the reader publishes its position.
const STEP: u64 = START as u64 / 4;
/// Messages with fewer bytes stay in the ring, because a second place to look at costs a short message more than it
/// saves.
pub const FROM: usize = 512;
/// Alignment of places, so that no two share a cache line.
const GRAIN: u64 = 64;

/// The area, and the reader's word.
pub struct Area<'a> {
    /// The address one past the area's last byte.
    pub end: NonNull<u8>,
    /// Number of bytes that the reader has returned.
    pub returned: &'a AtomicU64,
}

impl Area<'_> {
    /// The address of the `len` bytes at `at`, a place that [`Outgoing::allocate`] returned for that many bytes or
    /// [`Incoming::check`] accepted.
    #[inline]
    pub fn address(&self, at: u64, len: usize) -> *mut u8 {
        let from_end = (at % AREA as u64) as usize + len.next_multiple_of(GRAIN as usize);
        debug_assert!(from_end <= AREA);
        // SAFETY: a place ends inside the area, and is mapped since it was allocated or checked.
        unsafe { self.end.as_ptr().sub(from_end) }
    }
}

/// The memory of an area, as far as it is mapped.
pub trait AreaStore {
    /// The area; `None` if no part of it is mapped.
    fn area(&self) -> Option<Area<'_>>;
    /// Bytes that are mapped at the area's end.
    fn span(&self) -> usize {
        AREA
    }
    /// Maps at least this many bytes at the area's end. False: they cannot be mapped.
    fn reach_area(&self, _bytes: usize) -> bool {
        true
    }
}

/// The writer's account of the area.
pub struct Outgoing {
    tail: u64,
    returned: u64,
    /// `span` is the length of the part that the writer cycles through now; `most` is the limit to which `span` may
    /// grow.
    span: u64,
    most: u64,
    /// Number of times the end of `span` was reached since `span` grew.
    laps: u32,
}

impl Outgoing {
    /// Uses up to `most` bytes of the area. A smaller `most` than [`START`] counts as `START`, a larger one than
    /// [`AREA`] as `AREA`.
    pub fn new(most: usize) -> Outgoing {
        let most = most.clamp(START, AREA) as u64;
        Outgoing { tail: 0, returned: 0, span: START as u64, most, laps: 0 }
    }

    /// Uses twice as much, if that can be mapped.
    #[cold]
    fn widen(&mut self, store: &impl AreaStore) {
        let wider = (2 * self.span).min(self.most);
        if store.reach_area(wider as usize) {
            self.span = wider;
        }
        self.laps = 0;
    }

    /// A place for `len` bytes, if there is room; the bytes go to its [`Area::address`]. Call [`AreaStore::area`] again
    /// after this, as more of the area may be mapped now.
    #[inline]
    pub fn allocate(&mut self, len: usize, store: &impl AreaStore) -> Option<u64> {
        let size = AREA as u64;
        let need = (len as u64).next_multiple_of(GRAIN);
        let into = self.tail % size;
        // A place is contiguous. A place that would cross the end of the part begins the next lap instead, and the rest
        // of the part stays unused.
        let fits = into + need <= self.span;
        let at = if fits { self.tail } else { self.tail - into + size };
        let end = at + need;
        if end - self.returned > size {
            let seen = store.area()?.returned.load(Ordering::Acquire);
            // If the reader's count is wrong, messages to this reader go through the ring.
            if seen < self.returned || seen > self.tail {
                return None;
            }
            self.returned = seen;
            if end - seen > size {
                // The reader lags: its backlog goes through the ring, and later messages get more room.
                self.widen(store);
                return None;
            }
        }
        if !fits {
            self.laps += 1;
            if self.laps == LAPS {
                self.widen(store);
            }
        }
        self.tail = end;
        Some(at)
    }
}

/// The reader's account of the area.
#[derive(Default)]
pub struct Incoming {
    head: u64,
    /// The position that the writer can see.
    published: u64,
}

impl Incoming {
    /// Checks that a writer may have put `len` bytes at `at`, and maps them. Returns the place's end.
    #[inline]
    pub fn check(&self, at: u64, len: u64, store: &impl AreaStore) -> Result<u64, RingError> {
        let size = AREA as u64;
        let fits = len <= size && at % size + len <= size;
        if !fits || at.wrapping_sub(self.head) > size || !at.is_multiple_of(GRAIN) {
            return Err(Broken);
        }
        let needs = (at % size + len.next_multiple_of(GRAIN)) as usize;
        if needs > store.span() && !store.reach_area(needs) {
            return Err(Unmapped);
        }
        Ok(at + len.next_multiple_of(GRAIN))
    }

    /// Returns all places up to position `end` to the writer. The writer learns of it after every `STEP` bytes, not
    /// at every call.
    #[inline]
    pub fn pass(&mut self, end: u64, area: &Area<'_>) {
        self.head = end;
        if end.wrapping_sub(self.published) >= STEP {
            self.published = end;
            // Release: this side's reads of the bytes come before the writer's next writes.
            area.returned.store(end, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// An area whose bytes are never accessed.
    struct Word<'a>(&'a AtomicU64);

    impl AreaStore for Word<'_> {
        fn area(&self) -> Option<Area<'_>> {
            Some(area(self.0))
        }
    }

    fn area(word: &AtomicU64) -> Area<'_> {
        Area { end: NonNull::dangling(), returned: word }
    }

    /// An area of which only the first `START` bytes can be mapped.
    struct Narrow<'a>(&'a AtomicU64);

    impl AreaStore for Narrow<'_> {
        fn area(&self) -> Option<Area<'_>> {
            Some(area(self.0))
        }
        fn span(&self) -> usize {
            START
        }
        fn reach_area(&self, bytes: usize) -> bool {
            bytes <= START
        }
    }

    #[test]
    fn what_cannot_be_mapped_is_not_used() {
        let word = AtomicU64::new(0);
        let (mut out, mut inn) = (Outgoing::new(AREA), Incoming::default());
        for _ in 0..10_000 {
            let at = out.allocate(9000, &Narrow(&word)).expect("the reader keeps up");
            assert!(at as usize % AREA + 9000 <= START);
            let end = inn.check(at, 9000, &Narrow(&word)).unwrap();
            inn.pass(end, &area(&word));
        }
        // A peer that maps more than this side can.
        let inn = Incoming::default();
        assert_eq!(inn.check(START as u64, 64, &Narrow(&word)), Err(Unmapped));
    }

    /// Gives out `turns` places and returns each at once. The result is the number of bytes of the area that were used.
    fn go_round(most: usize, turns: usize) -> usize {
        let word = AtomicU64::new(0);
        let (mut out, mut inn) = (Outgoing::new(most), Incoming::default());
        let (mut before, mut touched) = (0, 0);
        for turn in 0..turns {
            let len = 1 + turn * 37 % 9000;
            let at = out.allocate(len, &Word(&word)).expect("the reader keeps up");
            assert!(at >= before && at as usize % AREA + len <= AREA, "{at} {len}");
            touched = touched.max(at as usize % AREA + len);
            before = inn.check(at, len as u64, &Word(&word)).unwrap();
            inn.pass(before, &area(&word));
        }
        touched
    }

    #[test]
    fn places_do_not_overlap_and_are_in_order() {
        assert!((AREA - 9000..=AREA).contains(&go_round(usize::MAX, 100_000)));
    }

    #[test]
    fn the_part_in_use_grows_with_what_goes_through_it() {
        assert!(go_round(AREA, 100) <= START, "not for one round");
        let some = go_round(AREA, 1000);
        assert!(START < some && some < AREA / 2, "{some}");
        assert!(go_round(START, 100_000) <= START, "not past the limit");
        assert!(go_round(0, 100_000) <= START, "and never less");
        assert!(go_round(3 * START, 100_000) <= 3 * START);
    }

    #[test]
    fn a_full_area_refuses_until_the_reader_gives_back() {
        let word = AtomicU64::new(0);
        let (mut out, mut inn) = (Outgoing::new(AREA), Incoming::default());
        let fill = |out: &mut Outgoing| -> Vec<u64> { std::iter::from_fn(|| out.allocate(8000, &Word(&word))).collect() };
        let mut places = fill(&mut out);
        assert_eq!(places.len(), START / 8000);
        // Whenever it was full, a larger part is used.
        while places.len() < AREA / 8000 {
            for at in &places {
                let end = inn.check(*at, 8000, &Word(&word)).unwrap();
                inn.pass(end, &area(&word));
            }
            let next = fill(&mut out);
            assert!(next.len() + 5 >= places.len(), "{} after {}", next.len(), places.len());
            places = next;
        }
        // A count that no correct reader writes.
        word.store(u64::MAX, Ordering::Relaxed);
        while out.allocate(8000, &Word(&word)).is_some() {}
    }

    #[test]
    fn each_place_lies_right_in_front_of_the_last() {
        let word = AtomicU64::new(0);
        let mut memory = vec![0u64; AREA / 8];
        // SAFETY: the pointer is one past the last byte.
        let end = unsafe { NonNull::from(memory.as_mut_slice()).cast::<u8>().add(AREA) };
        let area = Area { end, returned: &word };
        let mut out = Outgoing::new(AREA);
        let mut before = end.as_ptr() as usize;
        for len in [8000, 512, 513, 4096, 1] {
            let at = out.allocate(len, &Word(&word)).unwrap();
            let here = area.address(at, len) as usize;
            assert_eq!(here + len.next_multiple_of(64), before, "{len}");
            before = here;
        }
    }

    #[test]
    fn a_place_outside_is_refused() {
        let (inn, word) = (Incoming::default(), AtomicU64::new(0));
        let size = AREA as u64;
        for (at, len) in [(0, size + 1), (64, size), (1, 8), (size + 64, 8), (!63, 8), (0, u64::MAX)] {
            assert_eq!(inn.check(at, len, &Word(&word)), Err(Broken), "{at} {len}");
        }
        assert_eq!(inn.check(size, size, &Word(&word)), Ok(2 * size));
    }
}
