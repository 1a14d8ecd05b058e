// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that is lent to the library. It has guards around it and known bytes in it, and is freed as soon as the library has no business
//! there, so that AddressSanitizer reports a late access.

use gdrfab::prov::op::Iov;
use std::sync::OnceLock;

/// Bytes of the largest area.
const AREA_MAX: usize = 1 << 20;
const GUARD: usize = 32;
/// Fills memory that the peer must not read. Data sent to the peer is searched for this word.
const SECRET: u64 = 0x9f3b_d1c7_5ae8_2607;
/// Fills memory of ours that the peer may see.
const PLAIN: u8 = 0x11;

/// The access that the peer has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum May {
    Nothing,
    Read,
    Write,
    Both,
}

impl May {
    fn read(self) -> bool {
        matches!(self, May::Read | May::Both)
    }

    fn write(self) -> bool {
        matches!(self, May::Write | May::Both)
    }
}

pub struct Area {
    bytes: Box<[u8]>,
    may: May,
}

/// Contents of areas, copied and compared as a whole: the fuzzer's instrumentation makes loops of our own slow.
struct Patterns {
    plain: Vec<u8>,
    secret: Vec<u8>,
}

fn patterns() -> &'static Patterns {
    static ONCE: OnceLock<Patterns> = OnceLock::new();
    ONCE.get_or_init(|| Patterns { plain: vec![PLAIN; AREA_MAX], secret: SECRET.to_le_bytes().repeat(AREA_MAX / 8 + 2 * GUARD) })
}

impl Area {
    pub fn new(len: usize, may: May) -> Area {
        let Patterns { plain, secret } = patterns();
        let mut bytes = Vec::with_capacity(GUARD + len + GUARD);
        bytes.extend_from_slice(&secret[..GUARD]);
        bytes.extend_from_slice(if may.read() { &plain[..len] } else { &secret[GUARD..GUARD + len] });
        bytes.extend_from_slice(&secret[GUARD + len..GUARD + len + GUARD]);
        Area { bytes: bytes.into(), may }
    }

    pub fn len(&self) -> usize {
        self.bytes.len() - 2 * GUARD
    }

    /// The area as `n` pieces, some of them empty if there are more pieces than bytes.
    pub fn pieces(&self, n: usize) -> Vec<Iov> {
        let (base, len) = (self.bytes.as_ptr() as usize + GUARD, self.len());
        let step = len / n;
        let piece = |i| (base + i * step, if i + 1 == n { len - i * step } else { step });
        // SAFETY: inside the area, which the caller keeps until the operations on it are over.
        (0..n).map(piece).map(|(addr, len)| unsafe { Iov::new(addr, len) }).collect()
    }

    /// True if all bytes that must not have changed, from byte `from` on, are unchanged.
    fn is_intact(&self, from: usize) -> bool {
        let (Patterns { plain, secret }, len) = (patterns(), self.len());
        let (before, rest) = self.bytes.split_at(GUARD);
        let (inside, behind) = rest.split_at(len);
        let was = if self.may.read() { &plain[..len] } else { &secret[GUARD..GUARD + len] };
        before == &secret[..GUARD] && behind == &secret[GUARD + len..GUARD + len + GUARD] && inside[from..] == was[from..]
    }

    /// Frees the area, whose operation has ended. The library may have written its first `written` bytes.
    pub fn end(self, written: usize) {
        let from = if self.may.write() { written } else { 0 };
        assert!(self.is_intact(from.min(self.len())), "memory was written that nobody may write: {:?}, {} bytes", self.may, self.len());
    }
}

/// True if data sent to the peer contains a run of the secret. Products are compared, so that the fuzzer cannot learn the secret from the
/// comparisons that it observes.
pub fn has_secret(bytes: &[u8]) -> bool {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let wanted: [u64; 8] = std::array::from_fn(|k| SECRET.rotate_right(8 * k as u32).wrapping_mul(ODD));
    // Without a branch, and in blocks: 0 once one of them is equal.
    let differ = |a: u64, b: u64| ((a ^ b) | (a ^ b).wrapping_neg()) >> 63;
    let word = |block: &[u8; 64], i: usize| {
        let at = |k: usize| u64::from(block[8 * i + k]) << (8 * k);
        let found = (at(0) | at(1) | at(2) | at(3) | at(4) | at(5) | at(6) | at(7)).wrapping_mul(ODD);
        let w = &wanted;
        let first = differ(found, w[0]) & differ(found, w[1]) & differ(found, w[2]) & differ(found, w[3]);
        first & differ(found, w[4]) & differ(found, w[5]) & differ(found, w[6]) & differ(found, w[7])
    };
    let check = |block: &[u8; 64]| {
        let first = word(block, 0) & word(block, 1) & word(block, 2) & word(block, 3);
        first & word(block, 4) & word(block, 5) & word(block, 6) & word(block, 7)
    };
    // Long data is sampled: if wrong memory is sent, more than a few bytes of it are.
    let (blocks, rest) = bytes.as_chunks::<64>();
    let step = 1 + blocks.len() / 32;
    let mut last = [0; 64];
    last[..rest.len()].copy_from_slice(rest);
    blocks.iter().step_by(step).fold(check(&last), |none, block| none & check(block)) == 0
}
