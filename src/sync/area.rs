// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The out-of-line area of a ring: the bytes of its longer messages. They lie there in one piece, so that both sides copy them
//! as they would copy anything, where in the ring each line has a header of its own. The message in the ring names the
//! place, and its header, stored with release, announces the bytes as well.
//!
//! Places are given out in order and come back in order, as the ring's lines do: the writer counts what it has used, the
//! reader what it has given back, and neither believes the other's number before it is checked.
//!
//! The area is no smaller than a core's second-level cache on purpose. A line that the reader still holds must be fetched from
//! its core before it can be written again; of a lap so long that it has dropped out of there, it comes from the cache that
//! both share, in half the time.
//!
//! The first place is at the area's end, and each one in front of the last. A CPU that reads a message fetches lines behind it
//! too, and those must be what has been read, and not what the writer is about to write.
//!
//! Connections that carry little need no such area: a writer goes round in a small part of it
//! first, and in twice as much whenever it has come round often.

use super::header::{Broken, RingError, Unmapped};
use super::primitive::{AtomicU64, Ordering};
use std::ptr::NonNull;

/// Bytes of the area.
#[cfg(not(loom))]
pub const AREA: usize = 2 << 20;
#[cfg(loom)]
pub const AREA: usize = 4 * START;
/// Bytes that a writer goes round in at first.
pub const START: usize = 128 * 1024;
/// Laps after which it goes round in twice as much.
const LAPS: u32 = 8;
/// Bytes after which the reader says how far it is.
const STEP: u64 = START as u64 / 4;
/// Messages of fewer bytes stay in the ring: for them the second place to look at costs more than it saves.
pub const FROM: usize = 512;
/// What begins a line of the cache shares it with nothing.
const GRAIN: u64 = 64;

/// Where the area is, and the reader's word.
pub struct Area<'a> {
    /// One past its last byte.
    pub end: NonNull<u8>,
    /// How many bytes the reader has given back.
    pub returned: &'a AtomicU64,
}

impl Area<'_> {
    /// The address of the `len` bytes at `at`, a place that [`Outgoing::allocate`] gave for as many or [`Incoming::check`] has seen.
    #[inline]
    pub fn address(&self, at: u64, len: usize) -> *mut u8 {
        let from_end = (at % AREA as u64) as usize + len.next_multiple_of(GRAIN as usize);
        debug_assert!(from_end <= AREA);
        // SAFETY: a place ends inside the area, and who gave it or has seen it had it mapped.
        unsafe { self.end.as_ptr().sub(from_end) }
    }
}

/// Where an area lies, as far as it is mapped.
pub trait AreaStore {
    /// None: nothing of it.
    fn area(&self) -> Option<Area<'_>>;
    /// How many bytes at the area's end are mapped.
    fn span(&self) -> usize {
        AREA
    }
    /// Maps so many, or more. False: it cannot be done.
    fn reach_area(&self, _bytes: usize) -> bool {
        true
    }
}

/// The writer's account.
pub struct Outgoing {
    tail: u64,
    returned: u64,
    /// Bytes at the beginning of the area that are in use, and how many may be.
    span: u64,
    most: u64,
    /// How often the end of `span` was reached.
    laps: u32,
}

impl Outgoing {
    /// Uses up to `most` bytes of the area, all of it if that is more.
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

    /// A place for `len` bytes, if there is room: the bytes go to [`Area::address`] of it. Whoever has looked at the area before
    /// looks again.
    #[inline]
    pub fn allocate(&mut self, len: usize, store: &impl AreaStore) -> Option<u64> {
        let size = AREA as u64;
        let need = (len as u64).next_multiple_of(GRAIN);
        let into = self.tail % size;
        // In one piece, so what is left at the end may stay unused.
        let fits = into + need <= self.span;
        let at = if fits { self.tail } else { self.tail - into + size };
        let end = at + need;
        if end - self.returned > size {
            let seen = store.area()?.returned.load(Ordering::Acquire);
            // A reader that counts wrong gets its messages through the ring.
            if seen < self.returned || seen > self.tail {
                return None;
            }
            self.returned = seen;
            if end - seen > size {
                // The reader lags: its backlog goes through the ring, what comes after has more room.
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

/// The reader's account.
#[derive(Default)]
pub struct Incoming {
    head: u64,
    published: u64,
}

impl Incoming {
    /// Whether a writer may have put `len` bytes there, which are mapped then; gives where they end.
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

    /// Gives everything back that lies in front of `end`, and says so now and then.
    #[inline]
    pub fn pass(&mut self, end: u64, area: &Area<'_>) {
        self.head = end;
        if end.wrapping_sub(self.published) >= STEP {
            self.published = end;
            // Release: our reads of the bytes come before the writer's next ones.
            area.returned.store(end, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// An area that nobody looks into.
    struct Word<'a>(&'a AtomicU64);

    impl AreaStore for Word<'_> {
        fn area(&self) -> Option<Area<'_>> {
            Some(area(self.0))
        }
    }

    fn area(word: &AtomicU64) -> Area<'_> {
        Area { end: NonNull::dangling(), returned: word }
    }

    /// One of which no more than its beginning can be mapped.
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

    /// Gives out `turns` places and takes each back at once; the bytes of the area that were touched.
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
        // As often as it was full, so much more of it is used.
        while places.len() < AREA / 8000 {
            for at in &places {
                let end = inn.check(*at, 8000, &Word(&word)).unwrap();
                inn.pass(end, &area(&word));
            }
            let next = fill(&mut out);
            assert!(next.len() + 5 >= places.len(), "{} after {}", next.len(), places.len());
            places = next;
        }
        // A word that nobody could have written.
        word.store(u64::MAX, Ordering::Relaxed);
        while out.allocate(8000, &Word(&word)).is_some() {}
    }

    #[test]
    fn each_place_lies_right_in_front_of_the_last() {
        let word = AtomicU64::new(0);
        let mut memory = vec![0u64; AREA / 8];
        // SAFETY: one past its last byte.
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
