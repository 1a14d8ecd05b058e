// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The peer that the fuzzer plays. It makes valid, nearly valid and invalid frames, and sends as many of their bytes at a time as the input
//! says.

use super::input::Input;
use super::links::Links;
use gdrfab::prov::tcp::wire::frame::{DATA, FAILED, Header, Kind, LIST, PART, PARTS, WHOLE_MAX};
use std::os::unix::net::UnixStream;

/// Longer bodies are not sent.
const BODY_MAX: u64 = 2 << 20;

const KINDS: [Kind; 13] = [
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
];

/// A region as the peer knows it. It may have been closed meanwhile.
#[derive(Clone, Copy)]
pub struct Known {
    pub key: u64,
    pub base: u64,
    pub len: u64,
}

pub struct Peer {
    pub links: Links,
    /// Bytes to send in one turn; 0: all.
    pub chunk: usize,
    done: u32,
    /// Writes and reads that were sent to the library.
    pub writes: u32,
    pub reads: Vec<usize>,
}

impl Peer {
    pub fn new(socket: UnixStream) -> Peer {
        Peer { links: Links::one(socket), chunk: 0, done: 0, writes: 0, reads: Vec::new() }
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.links.put(bytes);
    }

    pub fn fill(&mut self, n: usize) {
        self.links.fill(n);
    }

    /// Sends one turn's bytes.
    pub fn push(&mut self) {
        self.links.push(self.chunk);
    }

    /// Reads up to `most` bytes that have arrived, and returns their number.
    pub fn pull(&mut self, most: usize) -> usize {
        self.links.pull(most)
    }

    fn header(&mut self, input: &mut Input<'_>) -> Header {
        let how = input.byte();
        let kind = KINDS[input.below(KINDS.len())];
        let kind = match how & 0x87 {
            0x80 => Kind::Atomic,
            0x82 => Kind::Door,
            _ => kind,
        };
        let mut len = match (kind, input.byte()) {
            (Kind::Answered, 128..) => self.reads.first().map_or(0, |n| *n as u64),
            (_, 240..) => input.number(),
            (_, n) => Input(&[n]).size() as u64,
        };
        let mut flags = if how & 1 != 0 { input.byte() } else { 0 };
        let body = kind.has_body() && len > 0;
        if body && (len > WHOLE_MAX || how & 2 != 0) {
            flags |= PARTS;
        }
        if how & 4 == 0 && !kind.has_body() && !matches!(kind, Kind::Read | Kind::Offer | Kind::Take) || flags & FAILED != 0 {
            len = if how & 4 == 0 { 0 } else { len };
        }
        self.done = match how >> 3 & 7 {
            0..5 => self.done,
            5 => self.done.wrapping_add(1),
            6 => self.writes,
            _ => input.number() as u32,
        };
        let rma = matches!(kind, Kind::Write | Kind::Read | Kind::Atomic);
        let pieces = if rma && kind != Kind::Atomic { 1 + input.byte() % if how & 64 != 0 { 16 } else { 8 } } else { 0 };
        let (flags, pieces) = if rma && how & 0x87 == 0x81 { (flags | LIST, 0) } else { (flags, pieces) };
        Header { kind, flags, pieces, paths: if rma { 3 } else { 0 }, done: self.done, len }
    }

    /// Sends a frame of the input's choice; most are well formed.
    pub fn frame(&mut self, input: &mut Input<'_>, regions: &[Known]) {
        let mut h = self.header(input);
        if h.kind == Kind::Atomic {
            return self.atomic(input, &mut h, regions);
        }
        self.put(&h.encode());
        let mut words = h.words();
        if h.flags & DATA != 0 && words > 0 {
            self.put(&input.number().to_le_bytes());
            words -= 1;
        }
        if h.flags & LIST != 0 && words > 0 {
            let count: u64 = [1, 2, 3, 8, 40, 0, 200, 4097][input.below(8)];
            self.put(&count.to_le_bytes());
            self.pieces(input, h.len, count.min(200), regions);
            words = 0;
        } else if h.pieces > 0 {
            self.pieces(input, h.len, u64::from(h.pieces), regions);
            words = words.saturating_sub(3 * usize::from(h.pieces));
        }
        for _ in 0..words {
            self.put(&input.number().to_le_bytes());
        }
        if h.kind == Kind::Answered && !self.reads.is_empty() {
            self.reads.remove(0);
        }
        if h.kind.has_body() {
            self.body(input, &h);
        }
    }

    /// Chooses an atomic operation: numbers of the operation, datatype and form, and a count.
    fn atomic(&mut self, input: &mut Input<'_>, h: &mut Header, regions: &[Known]) {
        let (op, datatype, form, count) = (input.below(20), input.below(11), input.below(3), input.below(130));
        let one = [1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8][datatype] * count;
        if !input.flag() {
            (h.flags, h.len) = (0, if op == 10 { 0 } else { one * (1 + form / 2) } as u64);
        }
        let region = regions.get(input.below(regions.len().max(1))).copied().unwrap_or(Known { key: 1, base: 0, len: 64 });
        let skip = if input.flag() { 0 } else { input.number() };
        self.put(&h.encode());
        for word in [(op | datatype << 8 | form << 16 | count << 32) as u64, region.base.wrapping_add(skip), region.key] {
            self.put(&word.to_le_bytes());
        }
        self.body(input, h);
    }

    fn pieces(&mut self, input: &mut Input<'_>, sum: u64, n: u64, regions: &[Known]) {
        for i in 0..n {
            let all = sum / n;
            let len = if i + 1 == n { sum - i * all } else { all };
            let region = regions.get(input.below(regions.len().max(1))).copied().unwrap_or(Known { key: 1, base: 0, len: 64 });
            let (addr, len) = match input.below(8) {
                0..4 => (region.base, len),
                4 => (region.base.wrapping_add(region.len).wrapping_sub(len), len),
                5 => (region.base.wrapping_add(input.number()), len),
                6 => (input.number(), len),
                _ => (region.base, input.number()),
            };
            for word in [addr, len, region.key] {
                self.put(&word.to_le_bytes());
            }
        }
    }

    /// Sends the body whole, in part, or not to its end.
    fn body(&mut self, input: &mut Input<'_>, h: &Header) {
        let how = input.below(8);
        if how == 7 || h.len > BODY_MAX {
            return;
        }
        if h.flags & PARTS == 0 {
            return self.fill(if how == 6 { (h.len / 2) as usize } else { h.len as usize });
        }
        let mut left = h.len;
        while left > 0 {
            if how == 5 && (input.flag() || left < h.len) {
                break;
            }
            let n = left.min(PART);
            self.put(&[0; 8]);
            self.fill(if how == 6 { (n / 2) as usize } else { n as usize });
            left -= n;
        }
        self.put(&if how == 5 || how == 4 { input.number() } else { 0 }.to_le_bytes());
    }
}
