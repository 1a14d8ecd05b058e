// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The peer's writes to the rings, to their words and to the slots, and its reads from them.

use super::input::Input;
use super::layout::{self as at, *};
use super::peer::{Peer, some};
use super::world::{ARENA, world};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Offset of a list's rows in the peer's memory.
const ROWS: usize = ARENA - 32 * 64;

impl Peer {
    /// Opens a slot of the peer's own with this many chunks.
    fn open(&self, input: &mut Input<'_>, chunks: u64) -> u64 {
        let (index, generation) = (input.below(4) as u64, 1 + input.below(3) as u64);
        if let Some((m, _)) = &self.mine {
            m.word(at::slot(index as usize) + 8).store(generation << 48, Relaxed);
            m.word(at::slot(index as usize)).store(generation << 48 | chunks & 0xff_ffff, SeqCst);
        }
        index | generation << 16
    }

    pub fn message(&mut self, input: &mut Input<'_>) {
        let how = input.byte();
        let kind = match how & 31 {
            12 => ATOMIC,
            28 => COOP_LIST,
            _ => [SEND, SEND, RENDEZVOUS, FRAGMENT, NOTIFY, COOP, STAGED_WRITE, STAGED_READ, STAGED_DATA][input.below(9)],
        };
        let mut flags = 0;
        let (mut words, mut len) = (Vec::new(), 0);
        match kind {
            SEND => {
                len = input.size().min(70_000);
                flags = input.byte() & (DATA | ACK);
                if flags & DATA != 0 {
                    words.push(77);
                }
                if flags & ACK != 0 {
                    words.push(self.open(input, 1));
                }
            }
            RENDEZVOUS => {
                let total = input.size() as u64;
                let slot = self.open(input, 1);
                let (file, offset) = self.file_place(input);
                flags = [0, 0, DATA, 32][input.below(4)];
                let count = 1 + input.below(3) as u64;
                words = vec![slot, total, count, 5, file, offset];
                for k in 0..count {
                    let n = total / count + if k == 0 { total % count } else { 0 };
                    words.extend([self.address(input), n]);
                }
                self.offered = (slot, 0);
            }
            FRAGMENT => {
                len = input.size().min(8192);
                words = vec![self.offered.0, self.offered.1];
                self.offered.1 += len as u64;
                if input.below(16) == 0 {
                    (flags, len) = (LAST, 0);
                }
            }
            NOTIFY => {
                flags = [8, 1, 9, 1][input.below(4)];
                words = vec![self.target(input).0, input.number(), 9];
            }
            COOP => {
                let (key, addr, n) = self.target(input);
                let chunk = match input.byte() {
                    0..160 => 1 << (16 + input.below(4)),
                    160..200 => 1 << input.below(24),
                    _ => input.number(),
                };
                let slot = self.open(input, if chunk == 0 { 1 } else { n.div_ceil(chunk) });
                let (source, place) = (self.address(input), self.file_place(input));
                flags = if input.flag() { 16 } else { 0 };
                words = vec![slot, key, addr, n, chunk, source, place.0, place.1];
            }
            STAGED_WRITE => {
                let (key, addr, n) = self.target(input);
                len = (n as usize).min(8192);
                flags = [LAST, LAST, 0, 8, LAST | 8, LAST | DATA][input.below(6)];
                words = vec![self.open(input, 1), key, addr, 6, n];
            }
            STAGED_READ => {
                let (key, addr, n) = self.target(input);
                words = vec![self.open(input, 1), key, addr, n, input.number()];
            }
            ATOMIC => {
                let (key, addr, _) = self.target(input);
                let (op, datatype, how, count) = (input.below(24), input.below(16), input.below(4), 1 + input.below(8));
                let operation = (op | datatype << 8 | how << 16 | count << 32) as u64;
                // Mostly with the number of operands that the operation has.
                let wanted = [0, 1, 1, 2][input.below(4)];
                len = wanted * count * [1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 16, 16, 32, 8, 0][datatype];
                words = vec![self.open(input, 1), key, addr, operation];
            }
            COOP_LIST => {
                let (rows, each) = (1 + input.below(64) as u64, 1 + input.below(8) as u64);
                let list = &world().arena;
                for row in 0..rows as usize {
                    let (key, addr, n) = self.target(input);
                    let fields = [self.address(input), addr, n.min(input.size() as u64), key];
                    fields.iter().enumerate().for_each(|(i, w)| list.word(ROWS + 32 * row + 8 * i).store(*w, Relaxed));
                }
                flags = if input.flag() { 16 } else { 0 };
                words = vec![self.open(input, rows.div_ceil(each)), list.addr() + ROWS as u64, rows, each];
            }
            _ => {
                let (slot, want) = some(&self.seen, input.below(8)).copied().unwrap_or((0, 0));
                len = (want as usize).min(8192);
                words = vec![slot, 0];
            }
        }
        if how & 15 == 1 && !words.is_empty() {
            let n = input.below(words.len());
            words[n] = input.number();
        }
        if how & 15 == 2 {
            flags = input.byte();
        }
        if how & 15 == 3 {
            words.truncate(input.below(8));
        }
        let kind = if how & 31 == 4 { input.byte() } else { kind };
        let len = if how & 15 == 5 { input.size().min(70_000) } else { len };
        self.put(input, how, kind, flags, &words, len);
    }

    /// True if the ring that the library reads has this many free lines.
    fn has_room(&self, lines: u64) -> bool {
        let Some((m, size)) = &self.theirs else { return false };
        self.tail.wrapping_sub(m.word(RETURNED).load(SeqCst)).saturating_add(lines) <= *size as u64
    }

    fn put(&mut self, input: &mut Input<'_>, how: u8, kind: u8, flags: u8, words: &[u64], len: usize) {
        static BYTES: [u8; 70_000] = [0x22; 70_000];
        let Some((m, size)) = &self.theirs else { return };
        let mut all = words.to_vec();
        let mut header = u64::from(kind) << 16 | u64::from(flags) << 24;
        let mut area = self.area;
        if len >= 512 && how & 32 != 0 || how & 0xe0 == 0xe0 {
            // In the out-of-line area, in one piece.
            let need = len.next_multiple_of(64);
            let into = area as usize % AREA;
            if into + need > AREA {
                area += (AREA - into) as u64;
            }
            let place = match how & 15 {
                6 => input.number().wrapping_mul(64),
                7 => area.wrapping_add(input.number()),
                _ => area,
            };
            let from_end = place as usize % AREA + need;
            if from_end <= AREA {
                m.fill(at::area(*size) + AREA - from_end, &BYTES[..len]);
            }
            area += need as u64;
            all.splice(0..0, [place, len as u64]);
            header |= u64::from(OUT_OF_LINE) << 24 | (all.len() as u64 & 255) << 32;
        } else {
            let len = len.min(65_535);
            header |= (words.len() as u64 & 255) << 32 | (len as u64) << 40;
            all.resize(words.len() + len.div_ceil(8), 0x2222_2222_2222_2222);
        }
        let count = all.len().div_ceil(7).max(1) as u64;
        if count > 200 || !self.has_room(count) {
            return;
        }
        self.area = area;
        let shift = size.trailing_zeros();
        let lap = |at: u64| u64::from(((at >> shift) as u16).wrapping_add(1));
        let line = |at: u64| RING + 64 * (at as usize % size);
        for (k, seven) in all.chunks(7).enumerate() {
            let line = line(self.tail + k as u64);
            seven.iter().enumerate().for_each(|(i, w)| m.word(line + 8 + 8 * i).store(*w, Relaxed));
        }
        for k in 1..count {
            let wrong = how & 31 == 8 && k == count / 2;
            m.word(line(self.tail + k)).store(if wrong { 0 } else { lap(self.tail + k) }, Relaxed);
        }
        m.word(line(self.tail)).store(header | lap(self.tail), SeqCst);
        self.tail += count;
    }

    /// Sends several short messages at once.
    pub fn stream(&mut self, input: &mut Input<'_>) {
        let (n, len) = (input.byte() as usize, input.size().min(600));
        for _ in 0..n {
            self.put(input, 0, SEND, 0, &[], len);
        }
    }

    /// Writes a line of any content, at the ring's next line or beside it.
    pub fn line(&mut self, input: &mut Input<'_>) {
        let Some((m, size)) = &self.theirs else { return };
        let at = self.tail + input.below(4) as u64;
        let line = RING + 64 * (at as usize % size);
        let lap = u64::from(((at >> size.trailing_zeros()) as u16).wrapping_add(1));
        let header = [input.byte(), input.byte(), input.byte(), input.byte(), input.byte()];
        for i in 0..input.below(8) {
            m.word(line + 8 + 8 * i).store(input.number(), Relaxed);
        }
        let wild = header.iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b)) << 16;
        m.word(line).store(wild | lap, SeqCst);
        self.tail = at + u64::from(input.flag());
    }

    pub fn word(&mut self, input: &mut Input<'_>) {
        let of = input.byte();
        let map = if of & 1 == 0 { &self.mine } else { &self.theirs };
        let Some((m, _)) = map else { return };
        let at = match of >> 1 & 7 {
            0 => RETURNED,
            1 => MATCHED,
            2 => AREA_RETURNED,
            3 => BUSY,
            4 => SLEEPING,
            5 => FILTER + 8 * input.below(64),
            6 => FLIGHTS + 8 * input.below(64),
            _ => at::slot(input.below(SLOTS)) + 8 * input.below(2),
        };
        let word = m.word(at);
        let value = match of >> 4 & 3 {
            0 => word.load(Relaxed).wrapping_add(1),
            1 => input.number(),
            2 => word.load(Relaxed).wrapping_sub(input.number()),
            _ => word.load(Relaxed) ^ 1 << input.below(64),
        };
        word.store(value, SeqCst);
    }

    /// Reports on an operation of the library's.
    pub fn report(&mut self, input: &mut Input<'_>) {
        let how = input.byte();
        let Some((m, _)) = &self.theirs else { return };
        let (slot, _) = some(&self.seen, usize::from(how & 7)).copied().unwrap_or((0, 0));
        let status = [0, 0, 0, 1, 5, 0x100, 0x100, 9][usize::from(how >> 3 & 7)];
        let chunks = if how & 64 == 0 { u64::from(status != 0x100) } else { input.number() };
        m.word(at::slot(slot as usize & 0xffff) + 8).store((slot >> 16 & 0xffff) << 48 | status << 32 | chunks & 0xffff_ffff, SeqCst);
    }

    /// Claims chunks of an operation of the library's, or writes another state.
    pub fn claim(&mut self, input: &mut Input<'_>) {
        let how = input.byte();
        let Some((m, _)) = &self.theirs else { return };
        // An offer that was just made and not read yet is in the slot that was taken last.
        let slot =
            if how & 1 == 0 { how as usize >> 4 & 7 } else { some(&self.seen, usize::from(how >> 4)).map_or(0, |s| s.0 as usize & 0xffff) };
        let word = m.word(at::slot(slot));
        let now = word.load(SeqCst);
        let (front, back) = (now >> 24 & 0xff_ffff, now & 0xff_ffff);
        let next = match how >> 1 & 7 {
            0..4 if front < back => now - 1,
            4 => now & !0xff_ffff | front,
            5 => input.number() | now & 0xffff << 48,
            6 => now.wrapping_add(1),
            _ => now,
        };
        word.store(next, SeqCst);
    }

    /// Reads messages of the library's, returns their lines, and notes those that want an answer.
    pub fn read(&mut self, input: &mut Input<'_>) {
        let how = input.byte();
        let Some((m, size)) = &self.mine else { return };
        for _ in 0..64 {
            let line = RING + 64 * (self.head as usize % size);
            let header = m.word(line).load(SeqCst);
            if header as u16 != ((self.head >> size.trailing_zeros()) as u16).wrapping_add(1) {
                break;
            }
            let (kind, flags) = ((header >> 16) as u8, (header >> 24) as u8);
            let (words, bytes) = ((header >> 32 & 255) as usize, (header >> 40 & 0xffff) as usize);
            let first = if flags & OUT_OF_LINE != 0 { 2 } else { 0 };
            let word = |i: usize| m.word(line + 8 + 8 * (first + i)).load(Relaxed);
            match kind {
                SEND if flags & ACK != 0 => self.seen.push((word(usize::from(flags & DATA != 0)), 0)),
                RENDEZVOUS | COOP | COOP_LIST => self.seen.push((word(0), 0)),
                STAGED_WRITE if flags & LAST != 0 => self.seen.push((word(0), 0)),
                STAGED_READ => self.seen.push((word(0), word(3))),
                _ => {}
            }
            self.sends += u64::from(matches!(kind, SEND | RENDEZVOUS));
            if flags & OUT_OF_LINE != 0 && how & 2 == 0 {
                let (place, len) = (m.word(line + 8).load(Relaxed), m.word(line + 16).load(Relaxed));
                m.word(AREA_RETURNED).store(place.wrapping_add(len.div_ceil(64).wrapping_mul(64)), SeqCst);
            }
            self.head += (words + bytes.div_ceil(8)).div_ceil(7).max(1) as u64;
        }
        let old = self.seen.len().saturating_sub(8);
        self.seen.drain(..old);
        if how & 1 == 0 {
            m.word(RETURNED).store(self.head, SeqCst);
            m.word(MATCHED).store(self.sends, SeqCst);
        }
    }
}
