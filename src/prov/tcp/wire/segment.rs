// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments: the pieces of the stream of frames that rails carry. Each segment names the position of its first byte in
//! the stream, so the segment can come over any rail, and more than once.
//!
//! Both sides agree on rails in the handshake. INTRO and ANSWER may end with a token of 8 bytes and, for each rail, 16
//! bytes of IPv6 address (IPv4 mapped) and 2 bytes of port. In INTRO the addresses are the dialer's, and token and
//! ports are zero. If the listener wants rails too, ANSWER has a random token, and the addresses and ports at which the
//! listener awaits the rails; the first of them is the address that was dialed. Such an ANSWER grants no further
//! streams.
//!
//! The connection itself is rail 0. The dialer connects from its other addresses to the listener's others, with purpose
//! 3 and ANSWER's token. The private data of such a connection has 5 bytes: the rail's number (1 byte) and a generation
//! (4 bytes), which grows with each attempt and is 1 for the connection itself. The dialer dials a lost rail again in
//! the same way, also rail 0; the new connection replaces the old one of the same number. The listener REJECTS a number
//! for which ANSWER has no address, a generation that is not new, and a connection within 50 ms of the one before.
//! After each handshake come segments, in records if the connection is sealed:
//!
//! ```text
//! bytes  field
//! 0      kind    0 DATA, 1 DOWN
//! 1-3    zero
//! 4-7    length  DATA: bytes that follow the head, at most 61,440; 0: the segment only acknowledges. DOWN: 0
//! 8-15   from    DATA: position of the first of these bytes in the stream, from 0. DOWN: rail (8-11), generation (12-15)
//! 16-23  taken   number of bytes of the other direction's stream that the sender has received without a gap
//! ```
//!
//! A segment may come again over another rail, with the same position and length; the receiver skips the repetition. A
//! sender may be at most 8 MiB and 2,048 segments ahead of the last `taken` that it has received. A side that has lost
//! a rail sends DOWN over another rail. Positions that contradict each other end the connection with EPROTO.

use super::frame::protocol_error;
use crate::error::Result;
pub use crate::prov::bind::RAILS_MAX;

/// Bytes of a segment's head.
pub const SEGMENT_HEAD: usize = 24;
/// Most bytes of data in a segment: with its head it fits into one sealed record.
pub const SEGMENT: usize = 60 << 10;
/// Most bytes of one direction that may be unacknowledged.
pub const WINDOW: u64 = 8 << 20;
/// Most segments of one direction that may be unacknowledged.
pub const SEGMENTS: usize = 2048;

const DATA: u8 = 0;
const DOWN: u8 = 1;

/// The content of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// `len` bytes of the stream, which begin at position `from`. With `len` 0 the segment only acknowledges.
    Data { from: u64, len: usize },
    /// The sender has lost this rail, in this generation, and does not read it any more.
    Down { rail: usize, generation: u32 },
}

/// A segment's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHead {
    pub word: SegmentKind,
    /// Acknowledgement: the sender has received the other direction's stream up to this position.
    pub taken: u64,
}

impl SegmentHead {
    pub fn encode(&self) -> [u8; SEGMENT_HEAD] {
        let mut bytes = [0; SEGMENT_HEAD];
        let (kind, len, from) = match self.word {
            SegmentKind::Data { from, len } => (DATA, len as u32, from),
            SegmentKind::Down { rail, generation } => (DOWN, 0, rail as u64 | u64::from(generation) << 32),
        };
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&len.to_le_bytes());
        bytes[8..16].copy_from_slice(&from.to_le_bytes());
        bytes[16..].copy_from_slice(&self.taken.to_le_bytes());
        bytes
    }

    /// Decodes and checks a head. An error ends the connection.
    pub fn decode(bytes: &[u8; SEGMENT_HEAD]) -> Result<SegmentHead> {
        let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let (first, from, taken) = (word(0), word(8), word(16));
        // Bytes 1 to 3 must be zero, so `kind` is read from bytes 0 to 3 and compared as a whole.
        let (kind, len) = (first as u32, (first >> 32) as usize);
        let word = match (u8::try_from(kind).unwrap_or(u8::MAX), len) {
            (DATA, len) if len <= SEGMENT && from.checked_add(len as u64).is_some() => SegmentKind::Data { from, len },
            (DATA, _) => return Err(protocol_error("a segment that exceeds its maximum length")),
            (DOWN, 0) if (from as u32 as usize) < RAILS_MAX => {
                SegmentKind::Down { rail: from as u32 as usize, generation: (from >> 32) as u32 }
            }
            _ => return Err(protocol_error("a segment of an unknown kind")),
        };
        Ok(SegmentHead { word, taken })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_survives() {
        for word in [
            SegmentKind::Data { from: 0, len: 0 },
            SegmentKind::Data { from: u64::MAX - SEGMENT as u64, len: SEGMENT },
            SegmentKind::Down { rail: RAILS_MAX - 1, generation: u32::MAX },
        ] {
            let head = SegmentHead { word, taken: 0x0123_4567_89ab_cdef };
            assert_eq!(SegmentHead::decode(&head.encode()).unwrap(), head);
        }
        let bytes = SegmentHead { word: SegmentKind::Data { from: 3, len: 2 }, taken: 1 }.encode();
        assert_eq!((bytes[0], bytes[4], bytes[8], bytes[16]), (0, 2, 3, 1));
    }

    #[test]
    fn nonsense_is_refused() {
        let good = SegmentHead { word: SegmentKind::Data { from: 0, len: 1 }, taken: 0 }.encode();
        for (at, value) in [(0, 2), (1, 1), (3, 1), (6, 1), (7, 128)] {
            let mut bytes = good;
            bytes[at] = value;
            assert!(SegmentHead::decode(&bytes).is_err(), "{at}");
        }
        let wraps = SegmentHead { word: SegmentKind::Data { from: u64::MAX, len: 1 }, taken: 0 };
        assert!(SegmentHead::decode(&wraps.encode()).is_err());
        let down = SegmentHead { word: SegmentKind::Down { rail: RAILS_MAX, generation: 1 }, taken: 0 };
        assert!(SegmentHead::decode(&down.encode()).is_err());
    }
}
