// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The arrays of pieces for one system call, and the division of long pieces among several calls.

use super::call::{PIECES, Piece, piece};
use crate::sys::iov::Iov;

/// Many pieces for one call. The first element on each side is kept free for the guard.
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
    /// Largest number of pieces on each side.
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

    /// The number of pieces of the side that has more.
    pub fn pieces(&self) -> usize {
        self.ours.len().max(self.theirs.len()) - 1
    }
}

/// The parts of the pieces that hold `len` bytes from byte `skip` on: each with its position in the piece, and its
/// length.
pub fn within<T>(pieces: &[T], len_of: fn(&T) -> usize, skip: usize, len: usize) -> impl Iterator<Item = (&T, usize, usize)> {
    let mut begin = 0usize;
    pieces.iter().filter_map(move |p| {
        let (first, end) = (begin, begin.saturating_add(len_of(p)));
        begin = end;
        let (from, to) = (first.max(skip), end.min(skip + len));
        (from < to).then(|| (p, from - first, to - from))
    })
}
