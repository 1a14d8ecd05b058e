// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Registration as far as it does not depend on the provider: access rights, paths, keys.

pub mod piece;

pub use piece::{Iov, parts};

use crate::error::Result;
use crate::sys::process;

bitflags::bitflags! {
    /// Rights of a region; the bits are libfabric's.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Access: u64 {
        const READ = 1 << 8;
        const WRITE = 1 << 9;
        const RECV = 1 << 10;
        const SEND = 1 << 11;
        const REMOTE_READ = 1 << 12;
        const REMOTE_WRITE = 1 << 13;
    }

    /// Ways the bytes can take.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
    pub struct Paths: u64 {
        /// Both processes map the pages; the initiator's CPU copies.
        const DIRECT = 1;
        /// Cross-memory attach: the initiator's kernel copies.
        const CMA = 2;
        /// Through buffers of the library, with the target's progress.
        const STAGED = 4;
        /// The initiator's device driver copies through a mapping of the peer's device memory.
        const IPC = 8;
        /// The RDMA device reads and writes host pages that it has pinned (ibv_reg_mr).
        const NIC = 16;
        /// The RDMA device reaches the memory through a dma-buf (ibv_reg_dmabuf_mr).
        const DMABUF = 32;
        /// The RDMA device reaches device memory through the vendor's peer-memory module (ibv_reg_mr).
        const PEER_MEM = 64;
        /// The kernel copies between the memory and a socket; the target's progress puts the bytes in place.
        const SOCKET = 128;
    }
}

impl Paths {
    /// Every path of the shm provider, fastest first.
    pub const SHM: [Paths; 4] = [Paths::DIRECT, Paths::IPC, Paths::CMA, Paths::STAGED];
    /// Every path, fastest first.
    pub const ALL: [Paths; 8] =
        [Paths::DIRECT, Paths::IPC, Paths::NIC, Paths::DMABUF, Paths::PEER_MEM, Paths::CMA, Paths::SOCKET, Paths::STAGED];
    /// Their names, in the order of the bits.
    pub const WORDS: [&str; 8] = ["direct", "cma", "staged", "ipc", "nic", "dmabuf", "peer-mem", "socket"];

    /// The fastest of the set.
    pub fn best(self) -> Paths {
        Paths::ALL.into_iter().find(|p| self.contains(*p)).unwrap_or(Paths::empty())
    }

    /// "direct,cma", or "none".
    pub fn words(self) -> String {
        let names: Vec<&str> = Paths::WORDS.iter().enumerate().filter(|(i, _)| self.bits() & 1 << i != 0).map(|(_, w)| *w).collect();
        if names.is_empty() { "none".into() } else { names.join(",") }
    }
}

/// What a caller may restrict a region or an endpoint to.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathPolicy {
    pub require: Paths,
    pub forbid: Paths,
}

impl PathPolicy {
    pub fn allowed(self) -> Paths {
        let base = if self.require.is_empty() { Paths::all() } else { self.require };
        base - self.forbid
    }
}

/// Unguessable 64-bit numbers, whoever knows others of them: SipHash-2-4 of a counter, keyed with 128 bits from the kernel
/// for each source. A child of fork() opens domains of its own, and so has sources of its own. (The kernel's generator
/// itself costs 30 ns a number, a third of a registration.)
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

/// SipHash-2-4 (Aumasson, Bernstein) of eight bytes.
#[inline]
fn siphash_2_4([k0, k1]: [u64; 2], message: u64) -> u64 {
    let mut v = [k0 ^ 0x736f_6d65_7073_6575, k1 ^ 0x646f_7261_6e64_6f6d, k0 ^ 0x6c79_6765_6e65_7261, k1 ^ 0x7465_6462_7974_6573];
    // The last word holds the length.
    for word in [message, 8 << 56] {
        v[3] ^= word;
        v = round(round(v));
        v[0] ^= word;
    }
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
        // Their test vectors: key 00 01 … 0f, message 00 01 … 07.
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(siphash_2_4(key, 0x0706_0504_0302_0100).to_le_bytes(), [0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93]);
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
