// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the fuzzer's input as a sequence of choices. After its end every choice is 0.

/// Sizes around every bound of the format and of its implementation. Long ones are rare, because they take long.
const SIZES: [usize; 32] = [
    0, 1, 8, 64, 1000, 1024, 4096, 4097, 9000, 16384, 16385, 70_000, 262_144, 262_145, 300_000, 524_289, //
    0, 1, 2, 3, 8, 16, 64, 100, 1000, 2000, 4096, 4097, 5000, 16384, 16385, 20_000,
];

pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    pub fn size(&mut self) -> usize {
        SIZES[self.below(SIZES.len())]
    }

    pub fn bytes(&mut self) -> Vec<u8> {
        let n = usize::from(self.byte()).min(self.0.len());
        let (taken, rest) = self.0.split_at(n);
        self.0 = rest;
        taken.to_vec()
    }

    /// Mostly small, sometimes huge.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            n @ 0..250 => u64::from(n),
            250 => u64::MAX,
            251 => 1 << 63,
            252 => u64::from(u32::MAX),
            253 => 1 << 40,
            254 => (1 << 40) + 1,
            _ => u64::from(self.byte()) << 8 | u64::from(self.byte()),
        }
    }
}
