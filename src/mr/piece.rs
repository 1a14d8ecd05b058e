// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory in pieces, and the one walk over them: every scatter and gather, of local buffers and of regions, takes it.

use crate::error::Result;
use crate::hmem::Site;

/// A local piece of memory. Laid out as `struct iovec`, so the border hands the caller's arrays on.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Iov {
    pub addr: usize,
    pub len: usize,
}

/// What consecutive bytes consist of.
pub trait Span {
    fn bytes(&self) -> usize;
}

impl Span for Iov {
    #[inline(always)]
    fn bytes(&self) -> usize {
        self.len
    }
}

/// The parts of a run of bytes: for each piece that it touches, the first byte in that piece, and how many.
pub struct Walk<'a, P> {
    pieces: std::slice::Iter<'a, P>,
    skip: usize,
    left: usize,
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

/// The same walk over local memory: the address and the length of each part.
#[inline]
pub fn parts(iov: &[Iov], skip: usize, len: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
    walk(iov, skip, len).map(|(v, from, n)| (v.addr + from, n))
}

/// Copies `to.len()` bytes out of memory at `site`, from byte `skip` of the pieces on.
///
/// # Safety
/// The pieces may be read; those of a device are checked by its driver.
pub unsafe fn load(site: Site, pieces: &[Iov], skip: usize, to: &mut [u8]) -> Result<()> {
    let mut at = 0;
    for (addr, n) in parts(pieces, skip, to.len()) {
        // SAFETY: `to` holds the part; the other side is the caller's promise.
        unsafe { site.load(to[at..at + n].as_mut_ptr(), addr as u64, n)? };
        at += n;
    }
    Ok(())
}

/// Copies bytes into memory at `site`, from byte `skip` of the pieces on.
///
/// # Safety
/// The pieces may be written; those of a device are checked by its driver.
pub unsafe fn store(site: Site, pieces: &[Iov], skip: usize, from: &[u8]) -> Result<()> {
    let mut at = 0;
    for (addr, n) in parts(pieces, skip, from.len()) {
        // SAFETY: `from` holds the part; the other side is the caller's promise.
        unsafe { site.store(addr as u64, from[at..at + n].as_ptr(), n)? };
        at += n;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_exactly_the_run() {
        let iov = [Iov { addr: 1000, len: 10 }, Iov { addr: 2000, len: 0 }, Iov { addr: 3000, len: 5 }];
        let of = |skip, len| parts(&iov, skip, len).collect::<Vec<_>>();
        assert_eq!(of(8, 6), [(1008, 2), (3000, 4)]);
        assert_eq!(of(0, 15), [(1000, 10), (3000, 5)]);
        assert_eq!(of(10, 1), [(3000, 1)]);
        assert_eq!(of(14, usize::MAX), [(3004, 1)]);
        assert!(of(15, 0).is_empty() && of(0, 0).is_empty() && of(15, 1).is_empty());
    }

    #[test]
    fn what_is_stored_is_loaded() {
        let (mut one, mut two) = ([0u8; 3], [0u8; 4]);
        let iov = [Iov { addr: one.as_mut_ptr() as usize, len: 3 }, Iov { addr: two.as_mut_ptr() as usize, len: 4 }];
        // SAFETY: both arrays are live.
        unsafe { store(Site::HOST, &iov, 2, &[1, 2, 3]) }.unwrap();
        assert_eq!((one, two), ([0, 0, 1], [2, 3, 0, 0]));
        let mut back = [9u8; 4];
        // SAFETY: as above.
        unsafe { load(Site::HOST, &iov, 1, &mut back) }.unwrap();
        assert_eq!(back, [0, 1, 2, 3]);
    }
}
