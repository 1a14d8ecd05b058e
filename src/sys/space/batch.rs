// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pieces of one call, and of several.

use super::call::{PIECES, Piece, piece};
use crate::sys::iov::Iov;

/// Many pieces for one call, which leaves room for the guard.
pub struct Batch {
    pub(super) ours: Vec<Iov>,
    pub(super) theirs: Vec<Piece>,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch { ours: vec![Iov::EMPTY], theirs: vec![piece(0, 0)] }
    }
}

impl Batch {
    /// Pieces on each side.
    pub const MOST: usize = PIECES - 1;

    pub fn clear(&mut self) {
        self.ours.truncate(1);
        self.theirs.truncate(1);
    }

    #[inline]
    pub fn push_local(&mut self, piece: Iov) {
        self.ours.push(piece);
    }

    #[inline]
    pub fn push_remote(&mut self, piece: Piece) {
        self.theirs.push(piece);
    }

    /// The larger number of pieces of both sides.
    pub fn pieces(&self) -> usize {
        self.ours.len().max(self.theirs.len()) - 1
    }
}

/// The pieces that `len` bytes lie in from byte `skip` on: where in each, and how many.
pub fn within<T>(pieces: &[T], len_of: fn(&T) -> usize, skip: usize, len: usize) -> impl Iterator<Item = (&T, usize, usize)> {
    let mut begin = 0usize;
    pieces.iter().filter_map(move |p| {
        let (first, end) = (begin, begin.saturating_add(len_of(p)));
        begin = end;
        let (from, to) = (first.max(skip), end.min(skip + len));
        (from < to).then(|| (p, from - first, to - from))
    })
}
