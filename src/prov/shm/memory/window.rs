// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows of a peer's table, mapped as far as they are used: a thousand peers with a few regions each cost a few pages each.

use crate::error::Result;
use crate::sys::mem::{self, Mapping};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Bytes that are mapped at first.
const FIRST: usize = 16 << 10;
/// The factor by which the mapping grows.
const MORE: usize = 8;

/// A row of zeros, as a row that was never written. Under the model checker (loom) atomics are larger than 8 bytes, and
/// no model uses a window, so there the count of words only has to satisfy the size check.
#[repr(align(64))]
struct Zeros([AtomicU64; WORDS]);
const WORDS: usize = if cfg!(loom) { 1 << 12 } else { 24 };
static ZEROS: Zeros = Zeros([const { AtomicU64::new(0) }; WORDS]);

/// Rows of a file. All words of a row are atomic, and a row of zeros is empty. Before the first `reach`, the window has
/// one row: `ZEROS`.
pub struct RowWindow<T: 'static> {
    rows: AtomicPtr<T>,
    /// One less than the count of mapped rows, which is a power of two.
    mask: AtomicUsize,
    /// Offset of the first row in the file.
    at: usize,
    /// Count of rows in the file, a power of two.
    most: usize,
    /// All mappings ever made. None is unmapped before the window ends, because another thread may be reading in an
    /// older mapping.
    kept: Mutex<Vec<Mapping>>,
}

impl<T> RowWindow<T> {
    /// A window of the `most` rows from byte `at` of the file on. `whole`: a mapping of the whole file, which has all rows.
    ///
    /// # Safety
    /// `T` consists of atomic words, and the file has all rows. The mapping lives as long as the window.
    pub unsafe fn new(at: usize, most: usize, whole: Option<&Mapping>) -> RowWindow<T> {
        const { assert!(size_of::<T>() <= size_of::<Zeros>() && align_of::<T>() <= align_of::<Zeros>()) };
        let (rows, mask) = match whole {
            Some(map) => (map.as_ptr().wrapping_add(at).cast(), most - 1),
            None => ((&raw const ZEROS.0).cast_mut().cast(), 0),
        };
        RowWindow { rows: AtomicPtr::new(rows), mask: AtomicUsize::new(mask), at, most, kept: Mutex::new(Vec::new()) }
    }

    /// An empty row.
    pub fn nothing() -> &'static T {
        // SAFETY: `new` checked that `ZEROS` is as large and as aligned as a row; all its bytes are 0, a valid value of atomic words.
        unsafe { &*(&raw const ZEROS.0).cast() }
    }

    /// The row `i`, if `reach` has returned that row before. For any other index, an arbitrary mapped row.
    #[inline(always)]
    pub fn get(&self, i: usize) -> &T {
        // The mask is loaded before the rows, so the loaded mapping has at least mask + 1 rows.
        let mask = self.mask.load(Ordering::Acquire);
        let rows = self.rows.load(Ordering::Acquire);
        // SAFETY: `new` and `grow` stored a mapping of at least mask + 1 rows before the mask, and mappings stay as long as self.
        unsafe { &*rows.add(i & mask) }
    }

    /// The row `i`, mapped now if it was not. `file` is a mapping of the file's beginning.
    pub fn reach(&self, i: usize, file: &Mapping) -> Result<&T> {
        let i = i % self.most;
        if i > self.mask.load(Ordering::Acquire) || self.is_none() {
            self.grow(i, file)?;
        }
        Ok(self.get(i))
    }

    /// True if no row of the file is mapped yet.
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
