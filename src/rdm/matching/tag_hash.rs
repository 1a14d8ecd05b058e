// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hash for tags and other numbers that peers choose. The hash has a secret, so peers cannot choose numbers that
//! collide.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Combines words by multiplication with secret numbers.
pub struct TagHash {
    secret: [u64; 2],
    state: u64,
}

/// Makes hashers that share one random secret.
#[derive(Clone)]
pub struct TagHashBuilder([u64; 2]);

impl Default for TagHashBuilder {
    fn default() -> Self {
        TagHashBuilder([RandomState::new().hash_one(1u8), RandomState::new().hash_one(2u8) | 1])
    }
}

impl BuildHasher for TagHashBuilder {
    type Hasher = TagHash;
    fn build_hasher(&self) -> TagHash {
        TagHash { secret: self.0, state: self.0[0] }
    }
}

impl Hasher for TagHash {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.secret[1]);
        self.state = (product as u64 ^ (product >> 64) as u64).wrapping_add(self.secret[0]);
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u8(*b));
    }

    fn finish(&self) -> u64 {
        let product = u128::from(self.state) * u128::from(self.secret[0] | 1);
        product as u64 ^ (product >> 64) as u64
    }
}
