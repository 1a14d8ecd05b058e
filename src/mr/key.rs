// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The numbers that name regions: keys for peers, and descriptors for operations.

use crate::error::Result;
use crate::sys::process;

/// Set in descriptors of device memory. The fast paths, in which the CPU reads the buffer, refuse such descriptors.
pub const DEVICE_DESC: u64 = 1;

/// Bits of a key and of a descriptor that hold the index of a region, for providers without a device of their own.
pub const INDEX_BITS: u32 = 19;
/// Regions that the program may have in one domain of such a provider. The other indexes are for regions that the
/// library exposes to peers itself.
pub const OWN_REGIONS: usize = 1 << (INDEX_BITS - 1);
const DESC_NUMBER: u64 = u64::MAX >> (INDEX_BITS + 1);

/// Makes a descriptor of the index, a part of the generation, and whether the memory is a device's.
#[inline]
pub fn desc_of(index: u32, generation: u64, on_device: bool) -> u64 {
    let number = generation >> INDEX_BITS & DESC_NUMBER;
    number << (INDEX_BITS + 1) | u64::from(index) << 1 | u64::from(on_device)
}

/// The index that a descriptor names.
pub fn desc_index(desc: u64) -> u32 {
    (desc >> 1) as u32 & ((1 << INDEX_BITS) - 1)
}

/// True if a descriptor was made of this generation.
pub fn desc_fits(desc: u64, generation: u64) -> bool {
    desc >> (INDEX_BITS + 1) == generation >> INDEX_BITS & DESC_NUMBER
}

/// Source of 64-bit numbers that cannot be guessed even if others of them are known: SipHash-2-4 of a seven-byte
/// counter, with a random 128-bit key per source. A child of fork() opens its own domains, and thus has its own
/// sources. (A system call for each number would make a registration much slower.)
pub struct KeySource {
    secret: [u64; 2],
    count: u64,
}

impl KeySource {
    pub fn new() -> Result<KeySource> {
        let mut bytes = [0u8; 16];
        process::random(&mut bytes)?;
        let (low, high) = (u128::from_le_bytes(bytes) as u64, (u128::from_le_bytes(bytes) >> 64) as u64);
        Ok(KeySource { secret: [low, high], count: 0 })
    }

    /// A number that is never 0.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.count += 1;
        siphash_2_4(self.secret, self.count).max(1)
    }
}

/// SipHash-2-4 (Aumasson, Bernstein) of the low seven bytes, which together with their length are one word of its
/// input. Not inlined, so that the caller's values stay in registers.
#[inline(never)]
fn siphash_2_4([k0, k1]: [u64; 2], message: u64) -> u64 {
    let mut v = [k0 ^ 0x736f_6d65_7073_6575, k1 ^ 0x646f_7261_6e64_6f6d, k0 ^ 0x6c79_6765_6e65_7261, k1 ^ 0x7465_6462_7974_6573];
    let word = message & (u64::MAX >> 8) | 7 << 56;
    v[3] ^= word;
    v = round(round(v));
    v[0] ^= word;
    v[2] ^= 0xff;
    v = round(round(round(round(v))));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[inline]
fn round([mut a, mut b, mut c, mut d]: [u64; 4]) -> [u64; 4] {
    a = a.wrapping_add(b);
    b = b.rotate_left(13) ^ a;
    a = a.rotate_left(32);
    c = c.wrapping_add(d);
    d = d.rotate_left(16) ^ c;
    a = a.wrapping_add(d);
    d = d.rotate_left(21) ^ a;
    c = c.wrapping_add(b);
    b = b.rotate_left(17) ^ c;
    c = c.rotate_left(32);
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_its_authors() {
        // The test vectors of SipHash's authors: key 00 01 … 0f, message 00 01 … 06.
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(siphash_2_4(key, 0x0006_0504_0302_0100).to_le_bytes(), [0x37, 0xd1, 0x01, 0x8b, 0xf5, 0x00, 0x02, 0xab]);
    }

    #[test]
    fn sources_do_not_agree_and_every_bit_varies() {
        let (mut one, mut other) = (KeySource::new().unwrap(), KeySource::new().unwrap());
        let drawn: Vec<u64> = (0..1000).flat_map(|_| [one.draw(), other.draw()]).collect();
        let distinct: std::collections::HashSet<u64> = drawn.iter().copied().collect();
        assert_eq!(distinct.len(), drawn.len());
        for bit in 0..64 {
            let set = drawn.iter().filter(|n| *n >> bit & 1 == 1).count();
            assert!((800..1200).contains(&set), "bit {bit} is set in {set} of 2000");
        }
    }
}
