// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A ring of cache lines between one producer and one consumer in different processes.
//!
//! Every line begins with a header word that carries the lap in which it was written, so flag and payload share the
//! line, and a message of up to 56 bytes moves in one cache line transfer. Longer messages take consecutive lines; the
//! first line's header is stored last, with release, and announces all of them. The consumer returns lines lazily
//! through one word of its own.
//!
//! Neither side trusts the other. Positions are kept privately, the peer's words are range-checked, and an impossible
//! value is [`Broken`]. Payload moves by relaxed atomic words, so a peer that overwrites a message while it is read
//! causes wrong bytes but no undefined behaviour.

use super::area::AreaStore;
use super::cache_line::Line;
pub use super::header::{Broken, Header, MAX_LINES, RingError, Unmapped};
use super::primitive::AtomicU64;

/// The memory of a ring.
pub trait Store: AreaStore {
    /// The lines that are mapped: all, or the first ones.
    fn lines(&self) -> &[Line];
    /// Number of lines of the ring.
    fn capacity(&self) -> usize {
        self.lines().len()
    }
    /// Maps all lines, if some are not mapped. False: they cannot be mapped.
    fn reach_lines(&self) -> bool {
        true
    }
    /// The consumer's word: the number of lines that it has returned.
    fn returned(&self) -> &AtomicU64;
}

/// The binary logarithm of the number of lines.
pub(super) fn shift_of<S: Store>(store: &S) -> u32 {
    store.capacity().trailing_zeros()
}

#[cfg(any(test, loom))]
pub mod model {
    //! A ring in plain memory, for tests and models.
    use super::super::area::{self, Area};
    use super::super::primitive::Ordering;
    use super::*;
    use std::sync::Arc;

    pub struct Heap {
        lines: Vec<Line>,
        returned: AtomicU64,
        /// Plain atomics, not the model's: only the address matters here, and that the bytes may change.
        area: Vec<std::sync::atomic::AtomicU64>,
        area_returned: AtomicU64,
    }

    #[derive(Clone)]
    pub struct Shared(Arc<Heap>);

    impl Shared {
        pub fn new(lines: usize) -> Shared {
            let lines = (0..lines).map(|_| Line::empty()).collect();
            let area = (0..area::AREA / 8).map(|_| Default::default()).collect();
            Shared(Arc::new(Heap { lines, returned: AtomicU64::new(0), area, area_returned: AtomicU64::new(0) }))
        }

        pub fn scribble(&self, line: usize, word: usize, value: u64) {
            match word {
                0 => self.0.lines[line].header.store(value, Ordering::Relaxed),
                8 => self.0.returned.store(value, Ordering::Relaxed),
                _ => self.0.lines[line].words[word - 1].store(value, Ordering::Relaxed),
            }
        }
    }

    impl AreaStore for Shared {
        fn area(&self) -> Option<Area<'_>> {
            let base = std::ptr::NonNull::from(self.0.area.as_slice()).cast::<u8>();
            // SAFETY: the pointer is one past the last byte.
            let end = unsafe { base.add(area::AREA) };
            Some(Area { end, returned: &self.0.area_returned })
        }
    }

    impl Store for Shared {
        fn lines(&self) -> &[Line] {
            &self.0.lines
        }
        fn returned(&self) -> &AtomicU64 {
            &self.0.returned
        }
    }
}
