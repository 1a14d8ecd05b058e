// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory in pieces, and the one walk over them: every scatter and gather, of local buffers and of regions, takes it.

use crate::error::Result;
use crate::hmem::Site;
pub use crate::sys::iov::Iov;

/// What consecutive bytes consist of.
pub trait Span {
    fn bytes(&self) -> usize;
}

impl Span for Iov {
    #[inline(always)]
    fn bytes(&self) -> usize {
        self.len()
    }
}

/// The parts of a run of bytes: for each piece that it touches, the first byte in that piece, and how many.
pub struct Walk<'a, P> {
    pieces: std::slice::Iter<'a, P>,
    skip: usize,
    left: usize,
}

// Derived, it would ask for pieces that can be copied.
impl<P> Clone for Walk<'_, P> {
    fn clone(&self) -> Self {
        Walk { pieces: self.pieces.clone(), ..*self }
    }
}

/// Walks `len` bytes from byte `skip` of the pieces on; it ends early where the pieces do. No part is empty.
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

/// Where each of many pieces ends among the bytes of all, so that a walk need not begin with the first.
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

    /// The piece that has byte `skip` of all, and which byte of it that is.
    #[inline]
    pub fn find(&self, skip: usize) -> (usize, usize) {
        let at = self.0.partition_point(|end| *end <= skip);
        (at, skip - at.checked_sub(1).and_then(|before| self.0.get(before)).copied().unwrap_or(0))
    }
}

/// The same walk over local memory.
#[inline]
pub fn parts(iov: &[Iov], skip: usize, len: usize) -> impl Iterator<Item = Iov> + '_ {
    walk(iov, skip, len).map(|(v, from, n)| v.part(from, n))
}

/// Copies `to.len()` bytes out of memory at `site`, from byte `skip` of the pieces on.
pub fn load(site: Site, pieces: &[Iov], skip: usize, to: &mut [u8]) -> Result<()> {
    let mut at = 0;
    for part in parts(pieces, skip, to.len()) {
        let to = &mut to[at..at + part.len()];
        // SAFETY: `to` has the part's length; the part is memory (`Iov::new`), a device's where its driver checks it.
        unsafe { site.load(to.as_mut_ptr(), part.addr() as u64, part.len())? };
        at += part.len();
    }
    Ok(())
}

/// Copies bytes into memory at `site`, from byte `skip` of the pieces on.
pub fn store(site: Site, pieces: &[Iov], skip: usize, from: &[u8]) -> Result<()> {
    let mut at = 0;
    for part in parts(pieces, skip, from.len()) {
        let from = &from[at..at + part.len()];
        // SAFETY: `from` has the part's length; the part is memory (`Iov::new`), a device's where its driver checks it.
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
        // SAFETY: nobody touches what they name.
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
        // SAFETY: nobody touches what they name.
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
