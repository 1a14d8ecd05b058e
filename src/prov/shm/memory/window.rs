// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table of a peer's, mapped as far as its rows were used: of a thousand peers with a few regions each, a few pages.

use crate::error::Result;
use crate::sys::mem::{self, Mapping};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Bytes that are mapped at first, and how many times more each time that they do not suffice.
const FIRST: usize = 16 << 10;
const MORE: usize = 8;

/// What a row is that nobody has written. A model's atomics are larger, and no model has a window.
#[repr(align(64))]
struct Zeros([AtomicU64; WORDS]);
const WORDS: usize = if cfg!(loom) { 1 << 12 } else { 24 };
static ZEROS: Zeros = Zeros([const { AtomicU64::new(0) }; WORDS]);

/// Rows of a file, of which all words are atomic and of which 0 means that there is nothing.
pub struct RowWindow<T: 'static> {
    rows: AtomicPtr<T>,
    /// One less than how many there are, a power of two.
    mask: AtomicUsize,
    /// Where the first one lies in the file, and how many it has: a power of two.
    at: usize,
    most: usize,
    /// All that was ever mapped: somebody may be looking at it.
    kept: Mutex<Vec<Mapping>>,
}

impl<T> RowWindow<T> {
    /// Of the `most` rows from byte `at` of the file on. `whole`: they are all there, in this mapping of the file.
    ///
    /// # Safety
    /// `T` has atomic words alone, and the file as many bytes. The mapping lives as long as the window.
    pub unsafe fn new(at: usize, most: usize, whole: Option<&Mapping>) -> RowWindow<T> {
        const { assert!(size_of::<T>() <= size_of::<Zeros>() && align_of::<T>() <= align_of::<Zeros>()) };
        let (rows, mask) = match whole {
            Some(map) => (map.as_ptr().wrapping_add(at).cast(), most - 1),
            None => ((&raw const ZEROS.0).cast_mut().cast(), 0),
        };
        RowWindow { rows: AtomicPtr::new(rows), mask: AtomicUsize::new(mask), at, most, kept: Mutex::new(Vec::new()) }
    }

    /// A row without anything in it.
    pub fn nothing() -> &'static T {
        // SAFETY: as many bytes and more, aligned at least as well (`new`), all of them 0, which is what atomic words may be.
        unsafe { &*(&raw const ZEROS.0).cast() }
    }

    /// A row that `reach` has given before; of another, whatever row is mapped in its place.
    #[inline(always)]
    pub fn get(&self, i: usize) -> &T {
        // The mask first: rows that are seen are no fewer than it says.
        let mask = self.mask.load(Ordering::Acquire);
        let rows = self.rows.load(Ordering::Acquire);
        // SAFETY: `new` and `grow` stored as many rows before the mask, which stay mapped as long as self.
        unsafe { &*rows.add(i & mask) }
    }

    /// A row, which is mapped now if it was not; `file` is a mapping of the file's beginning.
    pub fn reach(&self, i: usize, file: &Mapping) -> Result<&T> {
        let i = i % self.most;
        if i > self.mask.load(Ordering::Acquire) || self.is_none() {
            self.grow(i, file)?;
        }
        Ok(self.get(i))
    }

    fn is_none(&self) -> bool {
        std::ptr::eq(self.rows.load(Ordering::Acquire).cast_const().cast(), &raw const ZEROS.0)
    }

    #[cold]
    fn grow(&self, i: usize, file: &Mapping) -> Result<()> {
        let mut kept = self.kept.lock();
        let mut rows = if self.is_none() { FIRST / size_of::<T>().next_power_of_two() } else { self.mask.load(Ordering::Acquire) + 1 };
        while i >= rows {
            rows *= MORE;
        }
        let rows = rows.min(self.most);
        let page = mem::page_size();
        let (from, end) = (self.at / page * page, (self.at + rows * size_of::<T>()).next_multiple_of(page));
        let map = file.again(from, end - from)?;
        self.rows.store(map.as_ptr().wrapping_add(self.at - from).cast(), Ordering::Release);
        self.mask.store(rows - 1, Ordering::Release);
        kept.push(map);
        Ok(())
    }
}
