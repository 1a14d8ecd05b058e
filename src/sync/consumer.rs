// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The reading end of a ring.

use super::area::Incoming;
use super::cache_line::{LINE_BYTES, WORDS};
use super::cursor::{Cursor, ShortMessage};
use super::header::{Broken, Header, MAX_LINES, OUT_OF_LINE, OUT_OF_LINE_WORDS, RingError, Unmapped, lap};
use super::primitive::Ordering;
use super::ring::{Store, shift_of};
use crate::sys::copy::copy_any;
use crate::sys::iov::Iov;

/// The reading end.
pub struct Consumer<S> {
    store: S,
    shift: u32,
    mask: u64,
    /// A quarter of the ring's lines. The consumer returns lines to the producer when it has passed this many.
    quarter: u64,
    head: u64,
    /// Number of lines that the consumer has returned to the producer.
    published: u64,
    area: Incoming,
}

/// The message at the head of the ring. `finish` returns its lines to the producer.
pub struct Message<'a, S> {
    of: &'a mut Consumer<S>,
    /// The header that the sender passed to `write`. For bytes out of line, too, the header counts the bytes; the two
    /// words for place and length are not counted, and the flag is cleared.
    pub header: Header,
    lines: usize,
    out_of_line: Option<Span>,
}

/// The bytes of an out-of-line message, which stay in place until the area is returned up to position `end`.
pub struct OutOfLine {
    pub from: *const u8,
    pub len: usize,
    pub end: u64,
}

/// Begin and end of a message's bytes in the area.
#[derive(Clone, Copy)]
struct Span {
    at: u64,
    end: u64,
}

impl<S: Store> Consumer<S> {
    pub fn new(store: S) -> Self {
        let size = store.capacity() as u64;
        Consumer { shift: shift_of(&store), mask: size - 1, quarter: size / 4, store, head: 0, published: 0, area: Incoming::default() }
    }

    /// A cursor at the next message. A cursor is a separate value, so that a loop keeps it in registers.
    #[inline(always)]
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor::new(self.store.lines(), self.mask, self.shift, self.head)
    }

    /// Returns the lines that a cursor, now at `head`, has passed.
    #[inline(always)]
    pub fn pass(&mut self, head: u64) {
        self.give_back(head - self.head);
    }

    /// The message at the cursor, if it has no fixed words and its bytes lie out of line.
    #[inline(never)]
    pub fn out_of_line(&self, cursor: &Cursor<'_>, kind: u8) -> Option<OutOfLine> {
        self.find(cursor.out_of_line(kind)?)
    }

    /// The bytes at the place that a message names. The check may map more of the area.
    #[inline(always)]
    fn find(&self, [at, len]: [u64; OUT_OF_LINE_WORDS]) -> Option<OutOfLine> {
        let (end, area) = (self.area.check(at, len, &self.store).ok()?, self.store.area()?);
        let len = usize::from(u16::try_from(len).ok()?);
        Some(OutOfLine { from: area.address(at, len), len, end })
    }

    /// The message at the cursor, if its bytes lie out of line: its words and bytes, and the end of the bytes in the
    /// area.
    #[inline(never)]
    pub fn short_out_of_line<'a>(&'a self, cursor: &Cursor<'a>, kind: u8) -> Option<(ShortMessage<'a>, u64)> {
        let (own, place) = cursor.words_out_of_line(kind)?;
        let found = self.find(place)?;
        // SAFETY: that many bytes lie there, in whole lines, until `pass_area`, which cannot be called while `self` is
        // borrowed.
        Some((unsafe { ShortMessage::new(own, found.from.cast(), found.len) }, found.end))
    }

    /// Moves past a message whose bytes lie out of line and end at `end`.
    pub fn pass_out_of_line(&mut self, end: u64) {
        self.pass_area(end);
        self.give_back(1);
    }

    /// Returns the area up to position `end` to the writer.
    #[inline(never)]
    pub fn pass_area(&mut self, end: u64) {
        if let Some(area) = self.store.area() {
            self.area.pass(end, &area);
        }
    }

    /// Returns lines to the producer, a quarter of the ring at a time. At first only a quarter of the ring and the
    /// length of one message are mapped; the rest is mapped when the first quarter is returned.
    #[inline(always)]
    fn give_back(&mut self, count: u64) {
        self.head += count;
        if self.head - self.published >= self.quarter {
            if self.published == 0 {
                // If the mapping fails, the read of the next message fails too (`Unmapped`).
                self.store.reach_lines();
            }
            self.published = self.head;
            // Release: this side's reads of the lines come before the producer's next writes to them.
            self.store.returned().store(self.head, Ordering::Release);
        }
    }

    /// The oldest message, if it has arrived completely.
    #[inline]
    pub fn front(&mut self) -> Result<Option<Message<'_, S>>, RingError> {
        let (lines, mask) = (self.store.lines(), self.mask as usize);
        let Some(first) = lines.get(self.head as usize & mask) else { return Err(Unmapped) };
        let raw = first.header.load(Ordering::Acquire);
        if raw as u16 != lap(self.head, self.shift) {
            return Ok(None);
        }
        let header = Header::unpack(raw);
        let count = header.lines();
        if count > MAX_LINES {
            return Err(Broken);
        }
        for k in 1..count as u64 {
            let at = self.head + k;
            let Some(line) = lines.get(at as usize & mask) else { return Err(Unmapped) };
            if line.header.load(Ordering::Relaxed) as u16 != lap(at, self.shift) {
                return Err(Broken);
            }
        }
        if header.flags & OUT_OF_LINE != 0 {
            return self.front_out_of_line(header).map(Some);
        }
        Ok(Some(Message { of: self, header, lines: count, out_of_line: None }))
    }

    /// The oldest message, which has its bytes out of line.
    fn front_out_of_line(&mut self, header: Header) -> Result<Message<'_, S>, RingError> {
        let words = &self.store.lines()[(self.head & self.mask) as usize].words;
        let [at, len] = [&words[0], &words[1]].map(|w| w.load(Ordering::Relaxed));
        let of_kind = (header.words as usize).checked_sub(OUT_OF_LINE_WORDS).filter(|_| header.bytes == 0 && header.lines() == 1);
        let (Some(of_kind), Ok(bytes)) = (of_kind, u16::try_from(len)) else { return Err(Broken) };
        let end = self.area.check(at, len, &self.store)?;
        let header = Header { flags: header.flags & !OUT_OF_LINE, words: of_kind as u8, bytes, ..header };
        Ok(Message { of: self, header, lines: 1, out_of_line: Some(Span { at, end }) })
    }

    /// Number of lines passed since the beginning.
    pub fn passed(&self) -> u64 {
        self.head
    }

    /// Number of lines of the ring.
    pub fn lines(&self) -> usize {
        self.mask as usize + 1
    }

    /// True if the ring is empty; false also if `front` would return an error.
    pub fn is_empty(&self) -> bool {
        self.cursor().is_empty()
    }
}

impl<S: Store> Message<'_, S> {
    /// Fixed word `index` of the message; 0 beyond the last.
    #[inline]
    pub fn word(&self, index: usize) -> u64 {
        if index >= self.header.words as usize {
            return 0;
        }
        self.raw_word(index + if self.out_of_line.is_some() { OUT_OF_LINE_WORDS } else { 0 })
    }

    #[inline]
    fn raw_word(&self, index: usize) -> u64 {
        let at = self.of.head as usize + index / WORDS;
        self.of.store.lines()[at & self.of.mask as usize].words[index % WORDS].load(Ordering::Relaxed)
    }

    /// Copies bytes of the message from byte `from` on. False for a range outside the message; then nothing is copied.
    #[inline]
    pub fn copy_out(&self, from: usize, to: Iov) -> bool {
        // SAFETY: the piece is memory that may be written (`Iov::new`).
        unsafe { self.copy_raw(from, to.as_ptr(), to.len()) }
    }

    /// Like `copy_out`, into a slice.
    #[inline]
    pub fn copy_into(&self, from: usize, to: &mut [u8]) -> bool {
        // SAFETY: the slice has that many bytes.
        unsafe { self.copy_raw(from, to.as_mut_ptr(), to.len()) }
    }

    /// Copies `len` bytes of the message from byte `from` on. False for a range outside the message; then nothing is
    /// copied.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    #[inline]
    unsafe fn copy_raw(&self, from: usize, mut to: *mut u8, len: usize) -> bool {
        match from.checked_add(len) {
            Some(end) if end <= self.header.bytes as usize => {}
            _ => return false,
        }
        if let (Some(span), Some(area)) = (self.out_of_line, self.of.store.area()) {
            // SAFETY: the caller promises that `to` is writable; the range lies inside the bytes whose place was
            // checked. The peer may overwrite them meanwhile, which only spoils that peer's own message.
            unsafe { copy_any(to, area.address(span.at, self.header.bytes as usize).add(from), len) };
            return true;
        }
        let base = self.header.words as usize;
        let mut at = from;
        let end = from + len;
        while at < end {
            if end - at >= LINE_BYTES && at.is_multiple_of(8) && (base + at / 8).is_multiple_of(WORDS) {
                // SAFETY: `end - at` bytes remain of the caller's range.
                let done = unsafe { self.whole_lines((base + at / 8) / WORDS, to, end - at) };
                // SAFETY: `done` is at most the bytes that remain of the caller's range.
                to = unsafe { to.add(done) };
                at += done;
                continue;
            }
            let bytes = self.raw_word(base + at / 8).to_ne_bytes();
            let skip = at % 8;
            let take = (8 - skip).min(end - at);
            // SAFETY: `take` bytes remain of the caller's range.
            unsafe {
                if take == 8 {
                    to.cast::<u64>().write_unaligned(u64::from_ne_bytes(bytes));
                } else {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr().add(skip), to, take);
                }
                to = to.add(take);
            }
            at += take;
        }
        true
    }

    /// Copies whole lines, beginning with line `first` of the message, at most `len` bytes. Returns the number of
    /// bytes.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    #[inline]
    unsafe fn whole_lines(&self, first: usize, to: *mut u8, len: usize) -> usize {
        let lines = self.of.store.lines();
        let (start, mask) = (self.of.head as usize + first, self.of.mask as usize);
        let count = len / LINE_BYTES;
        for k in 0..count {
            // SAFETY: (k + 1) * LINE_BYTES <= len.
            unsafe { lines[(start + k) & mask].drain(to.add(k * LINE_BYTES), LINE_BYTES) };
        }
        count * LINE_BYTES
    }

    /// Returns the message's lines to the producer.
    #[inline]
    pub fn finish(self) {
        if let Some(span) = self.out_of_line {
            self.of.pass_area(span.end);
        }
        self.of.give_back(self.lines as u64);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::area;
    use super::super::producer::Producer;
    use super::super::ring::model::Shared;
    use super::*;

    fn send(p: &mut Producer<Shared>, kind: u8, fixed: &[u64], bytes: &[u8]) -> bool {
        let header = Header { kind, flags: 0, words: fixed.len() as u8, bytes: bytes.len() as u16 };
        if !p.room(header.lines()).unwrap() {
            return false;
        }
        // SAFETY: the slice lives during the call.
        p.write(header, fixed, &[unsafe { Iov::of(bytes) }]);
        true
    }

    #[test]
    fn messages_of_every_length_arrive_in_order_over_many_laps() {
        let shared = Shared::new(1024);
        let (mut p, mut c) = (Producer::new(shared.clone(), area::START), Consumer::new(shared));
        let data: Vec<u8> = (0..8000u32).map(|i| (i % 251) as u8).collect();
        for round in 0..3000usize {
            let len = round * 13 % 5000;
            assert!(send(&mut p, 9, &[round as u64, 5], &data[..len]));
            let message = c.front().unwrap().expect("just sent");
            assert_eq!((message.header.kind, message.word(0), message.word(1), message.word(2)), (9, round as u64, 5, 0));
            let mut out = vec![0u8; len + 1];
            assert!(!message.copy_into(0, &mut out));
            assert!(message.copy_into(0, &mut out[..len]));
            assert_eq!(out[..len], data[..len]);
            if len > 3 {
                assert!(message.copy_into(3, &mut out[..len - 3]));
                assert_eq!(out[..len - 3], data[3..len]);
            }
            message.finish();
            assert!(c.front().unwrap().is_none());
        }
    }

    #[test]
    fn a_cursor_reads_bytes_alone_and_leaves_others() {
        let shared = Shared::new(1024);
        let (mut p, mut c) = (Producer::new(shared.clone(), area::START), Consumer::new(shared.clone()));
        let data: Vec<u8> = (0..8000u32).map(|i| (i % 251) as u8).collect();
        for len in (0..2000).chain([8000]) {
            assert!(send(&mut p, 9, &[], &data[..len]) && p.room(1).unwrap());
            if len <= LINE_BYTES {
                // SAFETY: `data` outlives the call.
                p.write_line(9, unsafe { Iov::of(&data[..len]) });
            }
            assert!(send(&mut p, 9, &[1], &[]));
            let mut cursor = c.cursor();
            let mut passed = None;
            for _ in 0..if len <= LINE_BYTES { 2 } else { 1 } {
                let mut out = vec![0xEEu8; len + 8];
                if len < area::FROM {
                    assert_eq!((cursor.bytes_only(8), cursor.bytes_only(9)), (None, Some(len)));
                    assert!(c.out_of_line(&cursor, 9).is_none());
                    // SAFETY: `out` holds more bytes.
                    unsafe { cursor.copy_out(out.as_mut_ptr(), len) };
                } else {
                    assert!(cursor.bytes_only(9).is_none() && c.out_of_line(&cursor, 8).is_none());
                    let found = c.out_of_line(&cursor, 9).expect("out of line");
                    // SAFETY: that many bytes lie there, and `out` holds more.
                    unsafe { std::ptr::copy_nonoverlapping(found.from, out.as_mut_ptr(), found.len) };
                    (passed, _) = (Some(found.end), cursor.skip());
                }
                assert!(out[..len] == data[..len] && out[len..] == [0xEE; 8]);
            }
            assert!(cursor.bytes_only(9).is_none() && !cursor.is_empty(), "the one with a fixed word");
            let head = cursor.head();
            c.pass(head);
            if let Some(end) = passed {
                c.pass_area(end);
            }
            c.front().unwrap().expect("the one with a fixed word").finish();
            assert!(c.cursor().is_empty() && c.is_empty());
        }
    }

    #[test]
    fn a_short_message_has_its_words_and_its_bytes_in_the_line_or_out_of_it() {
        let shared = Shared::new(1024);
        let (mut p, mut c) = (Producer::new(shared.clone(), area::START), Consumer::new(shared));
        let data: Vec<u8> = (0..8000u32).map(|i| (i % 251) as u8).collect();
        for round in 0..4000usize {
            let len = if round & 1 == 0 { round % 41 } else { area::FROM + round * 13 % 7000 };
            let words = &[round as u64, 5, 6][..1 + round % 2];
            assert!(p.room(1).unwrap());
            // SAFETY: `data` outlives the call.
            let from = unsafe { Iov::of(&data[..len]) };
            match round % 4 {
                1 => assert!(p.write_bytes_out_of_line(9, words, from)),
                _ => assert!(send(&mut p, 9, words, &data[..len])),
            }
            assert!(c.cursor().one_line(8).is_none() && c.short_out_of_line(&c.cursor(), 8).is_none());
            let (cursor, mut end) = (c.cursor(), None);
            let found = cursor.one_line(9).or_else(|| {
                let (found, e) = c.short_out_of_line(&cursor, 9)?;
                end = Some(e);
                Some(found)
            });
            let found = found.expect("just sent");
            assert_eq!((found.words(), found.len(), found.word(0), found.word(words.len())), (words.len(), len, round as u64, 0));
            let mut out = vec![0xEEu8; len + 8];
            // SAFETY: `out` outlives the calls, and holds more bytes.
            unsafe { found.copy_out(out.as_mut_ptr()) };
            assert!(out[..len] == data[..len] && out[len..] == [0xEE; 8]);
            // SAFETY: `out` outlives the call, and holds that many bytes.
            let part = unsafe { Iov::of_mut(&mut out[..len + 2]) };
            found.copy_part(3, part);
            assert_eq!(out[..len.saturating_sub(3)], data[..len][len.min(3)..]);
            match end {
                Some(end) => c.pass_out_of_line(end),
                None => c.front().unwrap().expect("the same").finish(),
            }
            assert!(c.is_empty());
        }
    }

    #[test]
    fn a_cursor_leaves_a_long_message_whose_lines_are_not_in_order() {
        let shared = Shared::new(1024);
        let (mut p, mut c) = (Producer::new(shared.clone(), area::START), Consumer::new(shared.clone()));
        assert!(send(&mut p, 9, &[], &[1; 100]));
        shared.scribble(1, 0, 77);
        assert_eq!(c.cursor().bytes_only(9), None);
        assert!(matches!(c.front(), Err(Broken)));
        // More lines than a message may have.
        shared.scribble(0, 0, Header { kind: 9, bytes: u16::MAX, ..Header::default() }.pack(1));
        assert_eq!(c.cursor().bytes_only(9), None);
    }

    #[test]
    fn long_messages_lie_out_of_line_while_there_is_room_and_in_lines_else() {
        let shared = Shared::new(4096);
        let (mut p, mut c) = (Producer::new(shared.clone(), area::START), Consumer::new(shared));
        let data: Vec<u8> = (0..8000u32).map(|i| (i % 251) as u8).collect();
        let mut sent = 0;
        while send(&mut p, 9, &[sent, 5, 6, 7, 8], &data) {
            sent += 1;
        }
        let out_of_line = area::START / 8000;
        assert_eq!(sent as usize, out_of_line + (4096 - out_of_line) / 144, "one line each, then 144");
        for turn in 0..sent {
            let message = c.front().unwrap().expect("sent");
            assert_eq!((message.header.words, message.header.bytes, message.header.flags), (5, 8000, 0));
            assert_eq!([0, 4, 5].map(|i| message.word(i)), [turn, 8, 0]);
            let mut out = vec![0u8; 8000];
            assert!(message.copy_into(0, &mut out) && out == data);
            message.finish();
        }
        // Six words and the two of the place are more than a line has.
        assert!(send(&mut p, 9, &[0; 6], &data[..600]) && c.front().unwrap().expect("sent").lines == 12);
    }

    #[test]
    fn a_full_ring_refuses_and_recovers() {
        let shared = Shared::new(1024);
        let (mut p, mut c) = (Producer::new(shared.clone(), area::START), Consumer::new(shared));
        let mut sent = 0u64;
        while send(&mut p, 1, &[sent], &[]) {
            sent += 1;
        }
        assert_eq!(sent, 1024);
        for expect in 0..sent {
            let m = c.front().unwrap().expect("sent");
            assert_eq!(m.word(0), expect);
            m.finish();
        }
        assert!(send(&mut p, 1, &[0], &[]));
    }

    #[test]
    fn scribbled_words_are_an_error_or_wrong_bytes_but_never_a_panic() {
        let mut seed = 1u64;
        let mut rnd = move || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            seed >> 20
        };
        for _ in 0..3000 {
            let shared = Shared::new(1024);
            let (mut p, mut c) = (Producer::new(shared.clone(), area::START), Consumer::new(shared.clone()));
            for _ in 0..40 {
                let (line, word) = (rnd() as usize % 48, rnd() as usize % 9);
                let value = if rnd() & 1 == 0 { rnd() << 40 | rnd() } else { rnd() & !0xffff | 1 };
                shared.scribble(line, word, value);
                let bytes = if rnd() & 1 == 0 { 100 } else { 600 };
                let header = Header { kind: 1, words: 1, bytes, ..Header::default() };
                if p.room(header.lines()) == Ok(true) {
                    let zeros = [0u8; 600];
                    // SAFETY: the array lives for the call.
                    p.write(header, &[3], &[unsafe { Iov::of(&zeros[..bytes as usize]) }]);
                }
                if let Some(found) = c.out_of_line(&c.cursor(), 1) {
                    let mut out = vec![0u8; found.len];
                    // SAFETY: `found` was checked to be inside the area.
                    unsafe { std::ptr::copy_nonoverlapping(found.from, out.as_mut_ptr(), found.len) };
                }
                if let Some((found, _)) = c.short_out_of_line(&c.cursor(), 1) {
                    let mut out = vec![0u8; found.len()];
                    // SAFETY: `out` holds as many.
                    unsafe { found.copy_out(out.as_mut_ptr()) };
                }
                if let Ok(Some(m)) = c.front() {
                    let mut out = vec![0u8; m.header.bytes as usize];
                    m.copy_into(0, &mut out);
                    m.finish();
                }
            }
        }
    }
}
