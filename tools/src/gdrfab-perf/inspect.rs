// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks of the bytes that arrived under a test against those that the other side sent.

use crate::io::Link;
use crate::memory::{Mismatch, POISON};
use crate::tests::Test;
use crate::wire::seed;

/// The bytes behind a range that must stay unchanged.
pub const GUARD: usize = 64;

/// The range where the bytes of the peer's operations arrive, or those that this side reads.
fn landing(link: &Link, test: Test, size: usize, i: usize) -> usize {
    if test.is_message() { link.layout.slot(i) } else { link.layout.target(size) }
}

/// Makes sure that everything that was written before has arrived.
pub fn poison(link: &mut Link, test: Test, size: usize) {
    (0..link.layout.slots).for_each(|i| link.memory.set(landing(link, test, size, i), size + GUARD, POISON));
    link.places = Some(Vec::new());
}

/// Compares the bytes with the pattern that the other side should have sent.
pub fn inspect(link: &mut Link, test: Test, size: usize, by_server: bool) -> Option<Mismatch> {
    let places = if test.is_message() { link.places.clone().unwrap_or_default() } else { vec![link.layout.target(size)] };
    places.iter().find_map(|place| check_range(link, *place, size, seed(size, 0, by_server)))
}

/// Checks a pattern and that nothing was written behind it.
pub fn check_range(link: &Link, place: usize, size: usize, seed: u64) -> Option<Mismatch> {
    let behind = || link.memory.check_set(place + size, GUARD, POISON).map(|m| Mismatch { offset: size + m.offset, ..m });
    link.memory.check(place, size, seed).or_else(behind)
}
