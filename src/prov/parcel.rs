// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A received parcel that lies in memory in one piece, as tcp and verbs receive it: the words in little-endian order, then
//! the bytes. The peer wrote it, so no length in it is trusted.

use super::lane::Parcel;
use super::op::Iov;

pub struct Flat<'a> {
    /// The number of words, as the peer gave it. Words beyond `bytes` read as 0.
    pub words: usize,
    pub bytes: &'a [u8],
}

impl Flat<'_> {
    /// The bytes behind the words.
    pub fn rest(&self) -> &[u8] {
        self.bytes.get(8 * self.words..).unwrap_or_default()
    }
}

impl Parcel for Flat<'_> {
    fn words(&self) -> usize {
        self.words
    }

    fn word(&self, i: usize) -> u64 {
        let at = self.bytes.get(8 * i..8 * i + 8).filter(|_| i < self.words);
        at.and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
    }

    fn len(&self) -> usize {
        self.rest().len()
    }

    fn copy(&self, skip: usize, to: Iov) {
        to.put(self.rest().get(skip..).unwrap_or_default());
    }
}
