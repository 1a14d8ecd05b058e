// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The writing end of a ring.

use super::area::{self, Outgoing};
use super::cache_line::{LINE_BYTES, Line, WORDS, tail};
use super::header::{Broken, Header, MAX_LINES, OUT_OF_LINE, OUT_OF_LINE_WORDS, RingError, Unmapped, lap};
use super::primitive::Ordering;
use super::ring::{Store, shift_of};
use crate::sys::copy::copy_any;
use crate::sys::iov::Iov;

/// Lines between the write position and the prefetched line. With fewer lines the prefetch comes too late; with more,
/// it takes lines from a consumer that still reads them.
const AHEAD: u64 = 4;

/// The writing end.
pub struct Producer<S> {
    store: S,
    shift: u32,
    mask: u64,
    tail: u64,
    /// Number of lines that the consumer has returned, as last read. While only the first lines of the ring are mapped,
    /// the number lies below 0 by as many lines as are not mapped (modulo 2^64), so that none of these seems free.
    returned: u64,
    area: Outgoing,
    /// The caller's count of arrivals at the last call of `claim_ahead`.
    heard: u64,
}

impl<S: Store> Producer<S> {
    /// `area`: bytes of the out-of-line area that may be used.
    pub fn new(store: S, area: usize) -> Self {
        let (size, mapped) = (store.capacity() as u64, store.lines().len() as u64);
        let returned = mapped.wrapping_sub(size);
        Producer { shift: shift_of(&store), mask: size - 1, store, tail: 0, returned, area: Outgoing::new(area), heard: 0 }
    }

    /// True if a line is free, by the consumer's position as it was last read.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.tail.wrapping_sub(self.returned) >> self.shift == 0
    }

    /// Writes a message without fixed words that fits into one line. Only after `is_open`.
    #[inline(always)]
    pub fn write_line(&mut self, kind: u8, from: Iov) {
        let len = from.len();
        debug_assert!(self.is_open() && len <= LINE_BYTES);
        let lines = self.store.lines();
        let Some(line) = lines.get((self.tail & self.mask) as usize) else { return };
        // SAFETY: the piece is memory that may be read (`Iov::new`).
        unsafe { line.fill(from.as_ptr(), len) };
        let header = Header { kind, flags: 0, words: 0, bytes: len as u16 };
        // Release: a reader that sees the header also sees the payload.
        line.header.store(header.pack(lap(self.tail, self.shift)), Ordering::Release);
        self.tail += 1;
    }

    /// Like `write_line`, with fixed words before the bytes.
    #[inline(always)]
    pub fn write_line_behind(&mut self, kind: u8, words: &[u64], from: Iov) {
        let len = from.len();
        debug_assert!(self.is_open() && words.len() * 8 + len <= LINE_BYTES);
        let lines = self.store.lines();
        let Some(line) = lines.get((self.tail & self.mask) as usize) else { return };
        // SAFETY: the piece is memory (`Iov::new`).
        unsafe { line.fill_behind(words, from.as_ptr(), len) };
        let header = Header { kind, flags: 0, words: words.len() as u8, bytes: len as u16 };
        // Release: a reader that sees the header also sees the payload.
        line.header.store(header.pack(lap(self.tail, self.shift)), Ordering::Release);
        self.tail += 1;
    }

    /// Writes a message of a few words, with its bytes out of line. Only after `is_open`. False: there is no room, and
    /// nothing was written.
    ///
    /// `from` has at most 65535 bytes, as in other messages, whose headers count the bytes in 16 bits.
    #[inline(always)]
    pub fn write_bytes_out_of_line(&mut self, kind: u8, words: &[u64], from: Iov) -> bool {
        let len = from.len();
        debug_assert!(self.is_open());
        let lines = self.store.lines();
        let Some(line) = lines.get((self.tail & self.mask) as usize) else { return false };
        let Some(([place, length], rest)) = line.words.split_first_chunk::<OUT_OF_LINE_WORDS>() else { return false };
        if words.len() > rest.len() || !self.has_area() {
            return false;
        }
        let Some(at) = self.area.allocate(len, &self.store) else { return false };
        let Some(area) = self.store.area() else { return false };
        // SAFETY: the piece is memory that may be read (`Iov::new`); `allocate` returned a contiguous place for all of
        // it.
        unsafe { copy_any(area.address(at, len), from.as_ptr(), len) };
        place.store(at, Ordering::Relaxed);
        length.store(len as u64, Ordering::Relaxed);
        rest.iter().zip(words).for_each(|(to, word)| to.store(*word, Ordering::Relaxed));
        let header = Header { kind, flags: OUT_OF_LINE, words: (OUT_OF_LINE_WORDS + words.len()) as u8, bytes: 0 };
        // Release: a reader that sees the header also sees the words and the out-of-line bytes.
        line.header.store(header.pack(lap(self.tail, self.shift)), Ordering::Release);
        self.tail += 1;
        true
    }

    /// Prefetches a line that is soon to be written. In a stream of messages that line is still in the cache of the
    /// consumer's core, and waiting for each line would halve the rate. `heard` counts arrivals from the consumer's
    /// side. A changed count means a dialogue, in which the consumer polls the lines ahead, so this call leaves those
    /// lines alone.
    #[inline(always)]
    pub fn claim_ahead(&mut self, heard: u64) {
        if self.heard != heard {
            self.heard = heard;
        } else if let Some(line) = self.store.lines().get((self.tail.wrapping_add(AHEAD) & self.mask) as usize) {
            line.claim();
        }
    }

    /// True if `need` lines are free. Reads the consumer's word only if the last known value of the word shows too
    /// little room.
    #[inline]
    pub fn room(&mut self, need: usize) -> Result<bool, RingError> {
        let size = self.mask + 1;
        if size - self.tail.wrapping_sub(self.returned) >= need as u64 {
            return Ok(true);
        }
        if self.store.lines().len() as u64 != size {
            self.grow()?;
        }
        let seen = self.store.returned().load(Ordering::Acquire);
        if seen < self.returned || seen > self.tail {
            return Err(Broken);
        }
        self.returned = seen;
        Ok(size - (self.tail - seen) >= need as u64)
    }

    /// True if at least half of the ring is free. Callers then also send messages that the peer can do without.
    pub fn is_roomy(&mut self) -> Result<bool, RingError> {
        let half = self.mask.div_ceil(2) as usize;
        self.room(half)
    }

    /// Maps the lines beyond those that were mapped at first.
    #[cold]
    fn grow(&mut self) -> Result<(), RingError> {
        if !self.store.reach_lines() {
            return Err(Unmapped);
        }
        self.returned = 0;
        Ok(())
    }

    /// True if a part of the area is mapped. The first call maps the part that a writer uses at first, `area::START`
    /// bytes.
    #[inline(always)]
    fn has_area(&self) -> bool {
        self.store.area().is_some() || self.begin_area()
    }

    #[cold]
    fn begin_area(&self) -> bool {
        self.store.reach_area(area::START)
    }

    /// Writes a message for which `room` was checked: the fixed words, then the pieces of bytes in order. The bytes go
    /// out of line if there are `area::FROM` or more of them and the area has room. The lengths of the pieces sum to
    /// `header.bytes`.
    #[inline]
    pub fn write(&mut self, header: Header, fixed: &[u64], pieces: &[Iov]) {
        if (header.bytes as usize) < area::FROM || !self.write_out_of_line(header, fixed, pieces) {
            self.write_lines(header, fixed, pieces);
        }
    }

    /// Writes the fixed words into one line and the bytes out of line. False: there is no room, and nothing was
    /// written.
    fn write_out_of_line(&mut self, header: Header, fixed: &[u64], pieces: &[Iov]) -> bool {
        let lines = self.store.lines();
        let line = &lines[(self.tail & self.mask) as usize];
        let Some(([place, len], rest)) = line.words.split_first_chunk::<OUT_OF_LINE_WORDS>() else { return false };
        if fixed.len() > rest.len() || !self.has_area() {
            return false;
        }
        let Some(at) = self.area.allocate(header.bytes as usize, &self.store) else { return false };
        let Some(area) = self.store.area() else { return false };
        let mut end = area.address(at, header.bytes as usize);
        for from in parts(pieces, header.bytes as usize) {
            // SAFETY: the piece is memory that may be read (`Iov::new`); `allocate` returned a contiguous place for the
            // bytes that the header counts.
            unsafe {
                copy_any(end, from.as_ptr(), from.len());
                end = end.add(from.len());
            }
        }
        place.store(at, Ordering::Relaxed);
        len.store(header.bytes.into(), Ordering::Relaxed);
        for (word, value) in rest.iter().zip(fixed) {
            word.store(*value, Ordering::Relaxed);
        }
        let words = (fixed.len() + OUT_OF_LINE_WORDS) as u8;
        let header = Header { flags: header.flags | OUT_OF_LINE, words, bytes: 0, ..header };
        // Release: a reader that sees the header also sees the words and the out-of-line bytes.
        line.header.store(header.pack(lap(self.tail, self.shift)), Ordering::Release);
        self.tail += 1;
        true
    }

    #[inline]
    fn write_lines(&mut self, header: Header, fixed: &[u64], pieces: &[Iov]) {
        debug_assert!(fixed.len() == header.words as usize && header.lines() <= MAX_LINES);
        let lines = self.store.lines();
        let mask = self.mask as usize;
        let count = header.lines();
        let mut out = Out { lines, mask, at: self.tail, word: 0 };
        for word in fixed {
            out.put(*word);
        }
        out.bytes(pieces);
        let lap = lap(self.tail, self.shift);
        for k in (1..count).rev() {
            let at = self.tail + k as u64;
            let of_line = self::lap(at, self.shift);
            lines[at as usize & mask].header.store(u64::from(of_line), Ordering::Relaxed);
        }
        // Release: a reader that sees this header also sees the payload and the other headers.
        lines[self.tail as usize & mask].header.store(header.pack(lap), Ordering::Release);
        self.tail += count as u64;
    }
}

/// The first `len` bytes of the pieces.
fn parts(pieces: &[Iov], mut len: usize) -> impl Iterator<Item = Iov> + '_ {
    pieces.iter().map(move |piece| {
        let part = piece.part(0, len);
        len -= part.len();
        part
    })
}

/// Writes the payload words of a message one after the other.
struct Out<'a> {
    lines: &'a [Line],
    mask: usize,
    at: u64,
    word: usize,
}

impl Out<'_> {
    #[inline]
    fn put(&mut self, value: u64) {
        if self.word == WORDS {
            self.word = 0;
            self.at += 1;
        }
        self.lines[self.at as usize & self.mask].words[self.word].store(value, Ordering::Relaxed);
        self.word += 1;
    }

    /// Fills whole lines, beginning at the start of a line. Returns the number of bytes written.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    #[inline]
    unsafe fn whole_lines(&mut self, from: *const u8, len: usize) -> usize {
        let mut done = 0;
        while len - done >= LINE_BYTES {
            if self.word == WORDS {
                self.at += 1;
            }
            // SAFETY: done + LINE_BYTES <= len.
            unsafe { self.lines[self.at as usize & self.mask].fill(from.add(done), LINE_BYTES) };
            self.word = WORDS;
            done += LINE_BYTES;
        }
        done
    }

    /// Writes the bytes of all pieces as payload words. `carry` collects the bytes of a word that lies in several
    /// pieces.
    #[inline]
    fn bytes(&mut self, pieces: &[Iov]) {
        let (mut carry, mut held) = ([0u8; 8], 0usize);
        for (i, piece) in pieces.iter().enumerate() {
            let (mut from, mut len) = (piece.as_ptr().cast_const(), piece.len());
            let last = i + 1 == pieces.len();
            while len > 0 {
                if held == 0 && len >= LINE_BYTES && self.word.is_multiple_of(WORDS) {
                    // SAFETY: `len` bytes remain in the piece.
                    unsafe {
                        let done = self.whole_lines(from, len);
                        from = from.add(done);
                        len -= done;
                    }
                    continue;
                }
                if held == 0 && len >= 8 {
                    // SAFETY: eight bytes remain in the piece.
                    unsafe {
                        self.put(from.cast::<u64>().read_unaligned());
                        from = from.add(8);
                    }
                    len -= 8;
                    continue;
                }
                if held == 0 && last {
                    // SAFETY: 1 to 7 bytes, which remain in the piece.
                    self.put(unsafe { tail(from, len) });
                    return;
                }
                // SAFETY: at least one byte remains in the piece.
                unsafe {
                    carry[held] = from.read();
                    from = from.add(1);
                }
                len -= 1;
                held += 1;
                if held == 8 {
                    self.put(u64::from_ne_bytes(carry));
                    held = 0;
                }
            }
        }
        if held > 0 {
            carry[held..].fill(0);
            self.put(u64::from_ne_bytes(carry));
        }
    }
}
