// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Allocation whose size a caller or a peer decides. If memory runs out, such an allocation fails with -ENOMEM, where
//! one of the standard library ends the process. `tests/growth.rs` finds the places where a collection grows in another
//! way.

use crate::error::Result;
use crate::reserve::{NONE_LEFT, enough, is_ours};
use std::collections::{HashMap, HashSet, TryReserveError, VecDeque};
use std::hash::{BuildHasher, Hash};

/// A collection whose room is made before elements are added.
pub trait MakeRoom {
    fn try_room(&mut self, more: usize) -> std::result::Result<(), TryReserveError>;
    /// Elements that fit without another allocation.
    fn spare(&self) -> usize;

    /// Makes room: `more` elements then go in without an allocation.
    #[inline]
    fn room(&mut self, more: usize) -> Result<()> {
        if self.spare() >= more { Ok(()) } else { grow(self, more) }
    }
}

#[cold]
#[inline(never)]
fn grow<R: MakeRoom + ?Sized>(of: &mut R, more: usize) -> Result<()> {
    enough()?;
    of.try_room(more).map_err(|_| NONE_LEFT)
}

impl<T> MakeRoom for Vec<T> {
    fn try_room(&mut self, more: usize) -> std::result::Result<(), TryReserveError> {
        self.try_reserve(more)
    }
    fn spare(&self) -> usize {
        self.capacity() - self.len()
    }
}

impl<T> MakeRoom for VecDeque<T> {
    fn try_room(&mut self, more: usize) -> std::result::Result<(), TryReserveError> {
        self.try_reserve(more)
    }
    fn spare(&self) -> usize {
        self.capacity() - self.len()
    }
}

impl<K: Eq + Hash, V, S: BuildHasher> MakeRoom for HashMap<K, V, S> {
    fn try_room(&mut self, more: usize) -> std::result::Result<(), TryReserveError> {
        self.try_reserve(more)
    }
    fn spare(&self) -> usize {
        self.capacity() - self.len()
    }
}

impl<K: Eq + Hash, S: BuildHasher> MakeRoom for HashSet<K, S> {
    fn try_room(&mut self, more: usize) -> std::result::Result<(), TryReserveError> {
        self.try_reserve(more)
    }
    fn spare(&self) -> usize {
        self.capacity() - self.len()
    }
}

/// An empty vector with room for `n` elements.
pub fn with_room<T>(n: usize) -> Result<Vec<T>> {
    let mut all: Vec<T> = Vec::new();
    all.room(n)?;
    // Memory of the reserve is only for allocations that cannot fail.
    if is_ours(all.as_ptr().cast()) && n > 0 { Err(NONE_LEFT) } else { Ok(all) }
}

/// Like `with_room`, for memory that a peer was granted. The memory may come from the reserve, because without it the
/// connection would end.
pub fn granted<T>(n: usize) -> Result<Vec<T>> {
    let mut all: Vec<T> = Vec::new();
    all.try_room(n).map_err(|_| NONE_LEFT)?;
    Ok(all)
}

/// `n` copies of a value, like `vec![value; n]`.
pub fn filled<T: Clone>(value: T, n: usize) -> Result<Vec<T>> {
    let mut all = with_room(n)?;
    all.resize(n, value);
    Ok(all)
}

/// `n` zero bytes.
pub fn zeroed(n: usize) -> Result<Box<[u8]>> {
    filled(0, n).map(Vec::into_boxed_slice)
}

/// Like `from.to_vec()`.
pub fn copied<T: Copy>(from: &[T]) -> Result<Vec<T>> {
    let mut all = with_room(from.len())?;
    all.extend_from_slice(from);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_system_has_is_an_error_and_the_collection_stays_as_it_was() {
        const MUCH: usize = 1 << 60;
        let (mut list, mut map) = (vec![1u64], HashMap::from([(1u64, 2u64)]));
        for rc in [list.room(MUCH), map.room(MUCH), with_room::<u64>(MUCH).map(|_| ()), filled(0u64, MUCH).map(|_| ())] {
            assert_eq!(rc.map_err(|e| e.errno), Err(libc::ENOMEM));
        }
        assert!(list == [1] && map[&1] == 2);
        assert_eq!(copied(&[1, 2, 3]).unwrap(), [1, 2, 3]);
    }
}
