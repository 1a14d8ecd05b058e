// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frames: the header in front of every body, and the layout of bodies, as `docs/tcp-wire.md` specifies both.
//! `Header::decode` checks everything that does not depend on the connection's state.

use crate::error::{Code, Error, Result, errno};
use crate::prov::op::IOV_LIMIT;

/// Bytes of a header.
pub const HEADER: usize = 16;
/// Most words behind a header: the data, a number, and three words for each piece.
pub const WORDS: usize = 2 + 3 * IOV_LIMIT;
/// Most bytes of a header and its words.
pub const HEAD_MAX: usize = HEADER + 8 * WORDS;
/// The longest body that may go without PARTS or STRIPED.
pub const WHOLE_MAX: u64 = 16 << 10;
/// Bytes of a part: a long body is cut into parts, with a status word in front of each and one behind the last.
pub const PART: u64 = 256 << 10;
/// The longest body.
pub const BODY_MAX: u64 = 1 << 40;
/// Bytes of a stripe: a striped body is cut into stripes, each of which goes over one of the further streams.
pub const STRIPE: u64 = 64 << 10;
/// The shortest body that may go in stripes.
pub const STRIPED_MIN: u64 = 256 << 10;
/// Most blocks of a list in one frame.
pub const BLOCKS_MAX: usize = 4096;
/// Bytes of a block: address, length, key.
pub const BLOCK: usize = 24;
/// Bytes of the two words in front of each stripe, and of the two words that end a striped body on the first stream.
pub const STRIPE_HEAD: usize = 16;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The dialer's first frame.
    Ready = 0,
    /// Bytes for regions of the receiver.
    Write = 1,
    /// Asks for bytes of the receiver's regions.
    Read = 2,
    /// Answers the oldest unanswered READ, or an ATOMIC that fetches.
    Answered = 3,
    /// A message within the receiver's window and budget.
    Send = 4,
    /// Announces a message whose bytes wait at the sender.
    Offer = 5,
    /// Asks for the bytes of an offer.
    Take = 6,
    /// The bytes of an offer that the receiver asked for.
    Taken = 7,
    /// A WRITE failed; comes before `done` counts that WRITE.
    Report = 8,
    /// The message with this number filled its receive, or failed to.
    Got = 9,
    /// Totals of the messages and bytes that the sender of this frame has matched with receives, since the beginning.
    Matched = 10,
    /// Only carries `done`.
    Nothing = 11,
    /// The last frame: the sender closes the connection.
    Bye = 12,
    /// From the dialer, once: all further streams are connected.
    Streams = 13,
    Atomic = 14,
    /// Asks for the port of further streams, answers with the port, or refuses.
    Door = 15,
}

const KINDS: [Kind; 16] = [
    Kind::Ready,
    Kind::Write,
    Kind::Read,
    Kind::Answered,
    Kind::Send,
    Kind::Offer,
    Kind::Take,
    Kind::Taken,
    Kind::Report,
    Kind::Got,
    Kind::Matched,
    Kind::Nothing,
    Kind::Bye,
    Kind::Streams,
    Kind::Atomic,
    Kind::Door,
];

/// Flag: a word of remote data comes along.
pub const DATA: u8 = 1;
/// Flag: the message has a number, and the receiver answers with GOT.
pub const ACK: u8 = 2;
/// Flag: the receiver acknowledges at once, not with its next frame.
pub const PROMPT: u8 = 4;
/// Flag: the body comes in parts.
pub const PARTS: u8 = 8;
/// Flag: a status word stands in place of the body.
pub const FAILED: u8 = 16;
/// Flag: the body comes in stripes.
pub const STRIPED: u8 = 32;
/// Flag: the pieces are a list, whose words stand before the body.
pub const LIST: u8 = 64;

/// Bit of the header's `paths`: the path `socket` is permitted at the target.
pub const SOCKET: u8 = 1;
/// Bit of the header's `paths`: the path `staged` is permitted at the target.
pub const STAGED: u8 = 2;

impl Kind {
    /// The flags that this kind may have.
    fn flags(self) -> u8 {
        match self {
            Kind::Write => DATA | PROMPT | PARTS | STRIPED | LIST,
            Kind::Read => LIST,
            Kind::Answered => PARTS | FAILED | STRIPED,
            Kind::Send => DATA | ACK | PARTS | STRIPED,
            Kind::Offer => DATA | ACK,
            Kind::Atomic => PROMPT,
            Kind::Taken => PARTS | FAILED | STRIPED,
            _ => 0,
        }
    }

    fn has_pieces(self) -> bool {
        matches!(self, Kind::Write | Kind::Read)
    }

    pub fn has_body(self) -> bool {
        matches!(self, Kind::Write | Kind::Answered | Kind::Send | Kind::Taken | Kind::Atomic)
    }

    /// Number of words behind the header that are neither remote data, nor a list's count, nor pieces.
    fn plain_words(self, flags: u8) -> usize {
        match self {
            Kind::Send => usize::from(flags & ACK != 0),
            Kind::Offer | Kind::Take => 1,
            Kind::Taken => 1 + usize::from(flags & FAILED != 0),
            Kind::Atomic => 3,
            Kind::Report | Kind::Got | Kind::Matched | Kind::Door => 2,
            Kind::Answered => usize::from(flags & FAILED != 0),
            _ => 0,
        }
    }
}

/// A header as it stands on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    pub flags: u8,
    /// Number of pieces whose words follow the header; 0 with LIST.
    pub pieces: u8,
    /// The paths that the operation permits at the target: `SOCKET`, `STAGED`.
    pub paths: u8,
    /// Number of the receiver's WRITEs that the sender has carried out, modulo 2^32.
    pub done: u32,
    /// Bytes of the body. READ, TAKE: bytes wanted. OFFER: bytes offered. STREAMS, DOOR: number of streams.
    pub len: u64,
}

impl Header {
    pub fn new(kind: Kind, flags: u8, len: u64) -> Header {
        Header { kind, flags, pieces: 0, paths: 0, done: 0, len }
    }

    #[inline]
    pub fn encode(&self) -> [u8; HEADER] {
        let (done, len) = (self.done.to_le_bytes(), self.len.to_le_bytes());
        let mut bytes = [0; HEADER];
        bytes[0] = self.kind as u8;
        bytes[1] = self.flags;
        bytes[2] = self.pieces;
        bytes[3] = self.paths;
        bytes[4..8].copy_from_slice(&done);
        bytes[8..].copy_from_slice(&len);
        bytes
    }

    /// Decodes and checks a header. An error ends the connection.
    #[inline]
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Header> {
        let [kind, flags, pieces, paths, done @ .., _, _, _, _, _, _, _, _] = *bytes;
        let len = u64::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11], bytes[12], bytes[13], bytes[14], bytes[15]]);
        let Some(kind) = KINDS.get(kind as usize).copied() else { return Err(protocol_error("a frame of an unknown kind")) };
        let header = Header { kind, flags, pieces, paths, done: u32::from_le_bytes(done), len };
        // Most frames are short writes of one piece, which pass with one test.
        let common = (kind == Kind::Write) & (flags & !PROMPT == 0) & (pieces == 1) & (paths <= SOCKET | STAGED) & (len <= WHOLE_MAX);
        if !common {
            header.check()?;
        }
        Ok(header)
    }

    /// Checks a header that does not pass as one of a short write.
    fn check(&self) -> Result<()> {
        let pieces_fit =
            if self.kind.has_pieces() && !self.has(LIST) { (1..=IOV_LIMIT as u8).contains(&self.pieces) } else { self.pieces == 0 };
        let paths_fit =
            if self.kind.has_pieces() || self.kind == Kind::Atomic { self.paths & !(SOCKET | STAGED) == 0 } else { self.paths == 0 };
        let counts = self.kind.has_body() || matches!(self.kind, Kind::Read | Kind::Offer | Kind::Take | Kind::Streams | Kind::Door);
        let long = self.len > WHOLE_MAX;
        let cut_up = self.flags & (PARTS | STRIPED);
        let words = match () {
            () if self.flags & !self.kind.flags() != 0 => "a frame with flags that its kind does not define",
            () if !pieces_fit || !paths_fit => "a frame with a wrong number of pieces, or with unknown paths",
            () if self.len > if counts { BODY_MAX } else { 0 } => "a frame that exceeds its maximum length",
            () if self.has(LIST) && self.len == 0 => "a list without data",
            () if self.flags & FAILED != 0 && (self.len != 0 || cut_up != 0) => "a failed answer with data",
            () if self.kind.has_body() && long && cut_up == 0 => "a long frame that is not divided into parts",
            () if self.len == 0 && self.flags & PARTS != 0 => "a divided frame without data",
            () if cut_up == PARTS | STRIPED => "a frame both in parts and in stripes",
            () if self.has(STRIPED) && self.len < STRIPED_MIN => "a short frame in stripes",
            () => return Ok(()),
        };
        Err(protocol_error(words))
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Number of words behind the header.
    #[inline]
    pub fn words(&self) -> usize {
        usize::from(self.has(DATA)) + usize::from(self.has(LIST)) + self.kind.plain_words(self.flags) + 3 * usize::from(self.pieces)
    }
}

/// The word at `index` behind the header.
#[inline]
pub fn word(words: &[u8], index: usize) -> u64 {
    words.get(8 * index..8 * index + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// The error that ends a connection whose peer violated the protocol; `words` say what the peer sent.
#[cold]
pub fn protocol_error(words: &'static str) -> Error {
    Error::coded(errno::EPROTO, Code::PeerBroke, format!("the peer sent {words}"))
}

/// The status word for an error.
pub fn status_of(code: Code) -> u64 {
    match code {
        // An error without a code of its own comes from memory that could not be accessed.
        Code(0) => Code::Fault.0 as u64,
        Code(n) => n as u64,
    }
}

/// The error that a status word stands for.
pub fn error_of(status: u64) -> Result<()> {
    let code = || Code(i32::try_from(status).unwrap_or(Code::PeerBroke.0));
    if status == 0 { Ok(()) } else { Err(Error::reported(code())) }
}

/// The status word for an error of a list. Bits 0 to 15: the status. Bits 16 to 31: the number of the block that
/// failed, from 1; 0: not known. Bits 32 to 63: the number of this block's bytes that lie inside the region.
pub fn list_status(why: &Error) -> u64 {
    let place = why.piece.map_or(0, |(block, good)| u64::from(good) << 32 | (u64::from(block) + 1) << 16);
    status_of(why.code) & 0xffff | place
}

/// The error that a status word of a list stands for.
pub fn error_of_list(status: u64) -> Result<()> {
    let piece = (status as u32 >> 16).checked_sub(1).map(|block| (block as u16, (status >> 32) as u32));
    error_of(status & 0xffff).map_err(|e| Error { piece, ..e })
}

/// The content of one byte of a body on the wire. On the wire a body in parts has status words between its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WirePosition {
    /// The byte with this index in a status word.
    Word(u8),
    /// The byte at this offset of the body, and the number of bytes from this byte to the end of its part.
    Byte(u64, u64),
    End,
}

/// The bytes of two words, as they stand in front of a stripe and at the end of a striped body.
pub fn two_words(first: u64, second: u64) -> [u8; STRIPE_HEAD] {
    let mut bytes = [0; STRIPE_HEAD];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&second.to_le_bytes());
    bytes
}

/// Bytes that a body of `len` takes on the wire; with `parts`, status words included.
pub fn wire_len(len: u64, parts: bool) -> u64 {
    if parts { len + 8 * (len.div_ceil(PART) + 1) } else { len }
}

/// The content of byte `at` of a body of `len` bytes on the wire.
#[inline]
pub fn wire_position(at: u64, len: u64, parts: bool) -> WirePosition {
    if !parts {
        return if at < len { WirePosition::Byte(at, len - at) } else { WirePosition::End };
    }
    if at >= wire_len(len, true) {
        return WirePosition::End;
    }
    let (part, inside) = (at / (PART + 8), at % (PART + 8));
    // The last part may be shorter than `PART`; the word behind the last part follows at once.
    let begin = part * PART;
    let bytes = (len - begin.min(len)).min(PART);
    match inside {
        0..8 => WirePosition::Word(inside as u8),
        _ if inside - 8 < bytes => WirePosition::Byte(begin + inside - 8, bytes - (inside - 8)),
        _ => WirePosition::Word((inside - 8 - bytes) as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives() {
        for kind in KINDS {
            let h = Header { pieces: u8::from(kind.has_pieces()), done: 0xfedc_ba98, ..Header::new(kind, 0, 0) };
            assert_eq!(Header::decode(&h.encode()).unwrap(), h);
        }
        let h = Header { pieces: 8, paths: 3, done: 7, ..Header::new(Kind::Write, DATA | PROMPT | PARTS, 1 << 30) };
        assert_eq!(Header::decode(&h.encode()).unwrap(), h);
        assert_eq!((h.words(), 8 * h.words() + HEADER <= HEAD_MAX), (25, true));
    }

    #[test]
    fn nonsense_is_refused() {
        let bad = [
            Header::new(Kind::Write, 0, 8),
            Header { pieces: 9, ..Header::new(Kind::Write, 0, 8) },
            Header { pieces: 1, paths: 4, ..Header::new(Kind::Read, 0, 8) },
            Header { pieces: 1, ..Header::new(Kind::Send, 0, 8) },
            Header::new(Kind::Send, PROMPT, 8),
            Header::new(Kind::Send, PARTS, 0),
            Header::new(Kind::Send, 0, WHOLE_MAX + 1),
            Header::new(Kind::Send, PARTS, BODY_MAX + 1),
            Header::new(Kind::Offer, 0, u64::MAX),
            Header::new(Kind::Nothing, 0, 1),
            Header::new(Kind::Answered, FAILED, 1),
            Header::new(Kind::Bye, 128, 0),
            Header::new(Kind::Bye, STRIPED, 0),
            Header::new(Kind::Send, STRIPED, STRIPED_MIN - 1),
            Header::new(Kind::Send, STRIPED | PARTS, STRIPED_MIN),
            Header::new(Kind::Answered, STRIPED | FAILED, 0),
            Header::new(Kind::Send, LIST, 8),
            Header::new(Kind::Read, LIST, 0),
            Header { pieces: 1, ..Header::new(Kind::Write, LIST, 8) },
        ];
        for h in bad {
            assert!(Header::decode(&h.encode()).is_err(), "{h:?}");
        }
        let mut bytes = Header::new(Kind::Bye, 0, 0).encode();
        bytes[0] = 16;
        assert!(Header::decode(&bytes).is_err());
    }

    #[test]
    fn a_status_of_a_list_names_the_block() {
        for piece in [None, Some((0, 0)), Some((4095, u32::MAX)), Some((7, 1))] {
            let status = list_status(&Error { piece, ..Error::reported(Code::Bounds) });
            let came = error_of_list(status).unwrap_err();
            assert_eq!((came.code, came.piece), (Code::Bounds, piece));
        }
        assert!(error_of_list(0).is_ok() && error_of_list(1 << 16).is_ok());
    }

    #[test]
    fn parts_have_words_around_them() {
        assert_eq!(
            (wire_position(0, 5, false), wire_position(4, 5, false), wire_position(5, 5, false)),
            (WirePosition::Byte(0, 5), WirePosition::Byte(4, 1), WirePosition::End)
        );
        let len = 2 * PART + 10;
        assert_eq!(wire_len(len, true), len + 32);
        assert_eq!(
            (wire_position(0, len, true), wire_position(7, len, true), wire_position(8, len, true)),
            (WirePosition::Word(0), WirePosition::Word(7), WirePosition::Byte(0, PART))
        );
        assert_eq!(
            (wire_position(PART + 7, len, true), wire_position(PART + 8, len, true)),
            (WirePosition::Byte(PART - 1, 1), WirePosition::Word(0))
        );
        let third = 2 * (PART + 8);
        assert_eq!(
            (wire_position(third + 8, len, true), wire_position(third + 17, len, true)),
            (WirePosition::Byte(2 * PART, 10), WirePosition::Byte(2 * PART + 9, 1))
        );
        assert_eq!(
            (wire_position(third + 18, len, true), wire_position(third + 25, len, true)),
            (WirePosition::Word(0), WirePosition::Word(7))
        );
        assert_eq!(wire_position(third + 26, len, true), WirePosition::End);
        let whole = 2 * PART;
        assert_eq!((wire_position(third, whole, true), wire_position(third + 8, whole, true)), (WirePosition::Word(0), WirePosition::End));
    }
}
