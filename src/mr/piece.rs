// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory in pieces, and the walk over the pieces that every scatter and gather uses, for local buffers and for
//! regions.

use crate::error::Result;
use crate::hmem::Site;
pub use crate::sys::iov::Iov;

/// An element of a sequence of bytes that is stored in pieces.
pub trait Span {
    fn bytes(&self) -> usize;
}

impl Span for Iov {
    #[inline(always)]
    fn bytes(&self) -> usize {
        self.len()
    }
}

/// Iterator over a range of a sequence of bytes. For each piece that the range touches, an item has the piece, the
/// position of the range's first byte in the piece, and the number of bytes.
pub struct Walk<'a, P> {
    pieces: std::slice::Iter<'a, P>,
    skip: usize,
    left: usize,
}

// Written by hand, because a derived `Clone` would require `P: Clone`.
impl<P> Clone for Walk<'_, P> {
    fn clone(&self) -> Self {
        Walk { pieces: self.pieces.clone(), ..*self }
    }
}

/// Walks over `len` bytes from byte `skip` of the pieces on. The walk ends early if the pieces have fewer bytes, and
/// never yields an empty part.
#[inline]
pub fn walk<P: Span>(pieces: &[P], skip: usize, len: usize) -> Walk<'_, P> {
    Walk { pieces: pieces.iter(), skip, left: len }
}

impl<'a, P: Span> Iterator for Walk<'a, P> {
    type Item = (&'a P, usize, usize);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        while self.left > 0 {
            let piece = self.pieces.next()?;
            let len = piece.bytes();
            if self.skip >= len {
                self.skip -= len;
                continue;
            }
            let from = std::mem::take(&mut self.skip);
            let n = self.left.min(len - from);
            self.left -= n;
            return Some((piece, from, n));
        }
        None
    }
}

/// For many pieces, the position where each ends in the whole sequence, so that a walk need not start at the first
/// piece.
#[derive(Clone, Debug)]
pub struct PieceEnds(Box<[usize]>);

impl PieceEnds {
    pub fn of<P: Span>(pieces: &[P]) -> PieceEnds {
        let mut end = 0usize;
        PieceEnds(
            pieces
                .iter()
                .map(|p| {
                    end = end.saturating_add(p.bytes());
                    end
                })
                .collect(),
        )
    }

    /// The piece that holds byte `skip` of the sequence, and the position of that byte in the piece.
    #[inline]
    pub fn find(&self, skip: usize) -> (usize, usize) {
        let at = self.0.partition_point(|end| *end <= skip);
        (at, skip - at.checked_sub(1).and_then(|before| self.0.get(before)).copied().unwrap_or(0))
    }
}

/// Like [`walk`], over local memory; each item is the part of a piece as an [`Iov`].
#[inline]
pub fn parts(iov: &[Iov], skip: usize, len: usize) -> impl Iterator<Item = Iov> + '_ {
    walk(iov, skip, len).map(|(v, from, n)| v.part(from, n))
}

/// Copies `to.len()` bytes out of memory at `site`, beginning with byte `skip` of the pieces.
pub fn load(site: Site, pieces: &[Iov], skip: usize, to: &mut [u8]) -> Result<()> {
    let mut at = 0;
    for part in parts(pieces, skip, to.len()) {
        let to = &mut to[at..at + part.len()];
        // SAFETY: `to` has the part's length; the part is memory (`Iov::new`), and a driver checks device addresses.
        unsafe { site.load(to.as_mut_ptr(), part.addr() as u64, part.len())? };
        at += part.len();
    }
    Ok(())
}

/// Copies bytes into memory at `site`, beginning with byte `skip` of the pieces.
pub fn store(site: Site, pieces: &[Iov], skip: usize, from: &[u8]) -> Result<()> {
    let mut at = 0;
    for part in parts(pieces, skip, from.len()) {
        let from = &from[at..at + part.len()];
        // SAFETY: `from` has the part's length; the part is memory (`Iov::new`), and a driver checks device addresses.
        unsafe { site.store(part.addr() as u64, from.as_ptr(), part.len())? };
        at += part.len();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_exactly_the_run() {
        // SAFETY: the test does not access the memory.
        let iov = [(1000, 10), (2000, 0), (3000, 5)].map(|(addr, len)| unsafe { Iov::new(addr, len) });
        let of = |skip, len| parts(&iov, skip, len).map(|p| (p.addr(), p.len())).collect::<Vec<_>>();
        assert_eq!(of(8, 6), [(1008, 2), (3000, 4)]);
        assert_eq!(of(0, 15), [(1000, 10), (3000, 5)]);
        assert_eq!(of(10, 1), [(3000, 1)]);
        assert_eq!(of(14, usize::MAX), [(3004, 1)]);
        assert!(of(15, 0).is_empty() && of(0, 0).is_empty() && of(15, 1).is_empty());
    }

    #[test]
    fn a_walk_of_many_begins_where_it_should() {
        // SAFETY: the test does not access the memory.
        let iov = [(1000, 10), (2000, 0), (3000, 5)].map(|(addr, len)| unsafe { Iov::new(addr, len) });
        let ends = PieceEnds::of(&iov);
        assert_eq!([0, 9, 10, 14, 15, 20].map(|at| ends.find(at)), [(0, 0), (0, 9), (2, 0), (2, 4), (3, 0), (3, 5)]);
    }

    #[test]
    fn what_is_stored_is_loaded() {
        let (mut one, mut two) = ([0u8; 3], [0u8; 4]);
        // SAFETY: both arrays are live.
        let iov = [(one.as_mut_ptr(), 3), (two.as_mut_ptr(), 4)].map(|(at, len)| unsafe { Iov::new(at as usize, len) });
        store(Site::HOST, &iov, 2, &[1, 2, 3]).unwrap();
        assert_eq!((one, two), ([0, 0, 1], [2, 3, 0, 0]));
        let mut back = [9u8; 4];
        load(Site::HOST, &iov, 1, &mut back).unwrap();
        assert_eq!(back, [0, 1, 2, 3]);
    }
}
