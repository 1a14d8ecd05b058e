// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The header word of each line of a ring, and the message description in it.

use super::cache_line::WORDS;

/// Largest number of lines of a message; less than three quarters of the smallest ring, because the consumer may hold
/// back a quarter of the lines.
pub const MAX_LINES: usize = 160;
/// Flag of a message whose bytes lie out of line, in the area that `area.rs` describes. The first two fixed words of
/// such a message are the place and the length of the bytes; the message kind defines the others.
pub(super) const OUT_OF_LINE: u8 = 0x80;
pub(super) const OUT_OF_LINE_WORDS: usize = 2;

/// The reason why a ring cannot be used any more.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum RingError {
    /// The peer violated the protocol.
    Broken,
    /// This process cannot map more of the ring or the area.
    Unmapped,
}
pub use RingError::{Broken, Unmapped};

/// A message's description: kind, flags, and the payload's length in words and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Header {
    pub kind: u8,
    pub flags: u8,
    /// Fixed words before the bytes.
    pub words: u8,
    /// Bytes after the fixed words.
    pub bytes: u16,
}

impl Header {
    /// Lines that the message takes.
    pub fn lines(self) -> usize {
        let words = self.words as usize + (self.bytes as usize).div_ceil(8);
        words.div_ceil(WORDS).max(1)
    }

    pub(super) fn pack(self, lap: u16) -> u64 {
        u64::from(lap)
            | u64::from(self.kind) << 16
            | u64::from(self.flags) << 24
            | u64::from(self.words) << 32
            | u64::from(self.bytes) << 40
    }

    /// The number of bytes of a message, if its header has this kind and lap, and neither fixed words nor flags.
    #[inline(always)]
    pub(super) fn bytes_only(raw: u64, kind: u8, lap: u16) -> Option<usize> {
        let low = Header { kind, ..Header::default() }.pack(lap);
        ((raw ^ low) << 24 == 0).then_some((raw >> 40) as u16 as usize)
    }

    /// The numbers of fixed words and of bytes of a message, if its header has this kind and lap, and no flags.
    #[inline(always)]
    pub(super) fn unflagged(raw: u64, kind: u8, lap: u16) -> Option<(usize, usize)> {
        let low = Header { kind, ..Header::default() }.pack(lap);
        ((raw ^ low) << 32 == 0).then_some(((raw >> 32) as u8 as usize, (raw >> 40) as u16 as usize))
    }

    /// True if the header has this kind and lap, and its message has its bytes out of line, no other fixed words and no
    /// other flags.
    pub(super) fn is_out_of_line(raw: u64, kind: u8, lap: u16) -> bool {
        raw == Header { kind, flags: OUT_OF_LINE, words: OUT_OF_LINE_WORDS as u8, bytes: 0 }.pack(lap)
    }

    /// The number of fixed words, without those for place and length, if the header has this kind and lap, its bytes
    /// out of line, and no other flags.
    #[inline(always)]
    pub(super) fn words_out_of_line(raw: u64, kind: u8, lap: u16) -> Option<usize> {
        let low = Header { kind, flags: OUT_OF_LINE, ..Header::default() }.pack(lap);
        let words = usize::from((raw >> 32) as u8).checked_sub(OUT_OF_LINE_WORDS)?;
        ((raw ^ low) << 32 == 0 && raw >> 40 == 0).then_some(words)
    }

    pub(super) fn unpack(raw: u64) -> Header {
        Header { kind: (raw >> 16) as u8, flags: (raw >> 24) as u8, words: (raw >> 32) as u8, bytes: (raw >> 40) as u16 }
    }
}

/// The lap number in the lines at position `at` of a ring of 2^`shift` lines. The number differs from that of the
/// previous lap, and is not 0 in the first lap, because a line that was never written has a header of 0.
#[inline(always)]
pub(super) fn lap(at: u64, shift: u32) -> u16 {
    ((at >> shift) as u16).wrapping_add(1)
}
