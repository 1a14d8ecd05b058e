// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A ring of cache lines between one producer and one consumer in different processes.
//!
//! Every line begins with a header word that carries the lap in which it was written, so flag and
//! payload share the line and a message of up to 56 bytes costs one line transfer. Longer messages
//! take consecutive lines; the first line's header is stored last, with release, and announces all
//! of them. The consumer returns lines lazily through one word of its own.
//!
//! Neither side trusts the other: positions are kept privately, the peer's words are range-checked,
//! and what does not fit is [`Broken`]. Payload moves by relaxed atomic words, so a peer that
//! scribbles while we read gives us wrong bytes but no undefined behaviour.

use super::aside::{self, Area, Incoming, Outgoing};
use super::cursor::Cursor;
use super::header::{ASIDE, ASIDE_WORDS, lap};
pub use super::header::{Broken, Header, MAX_LINES};
use super::line::{LINE_BYTES, Line, WORDS, tail};
use super::primitive::{AtomicU64, Ordering};
use crate::sys::copy::copy_any;

/// Where a ring lives.
pub trait Store {
    fn lines(&self) -> &[Line];
    /// The consumer's word: how many lines it has given back.
    fn returned(&self) -> &AtomicU64;
    /// The area beside the ring; without one, all bytes go through the ring.
    fn aside(&self) -> Option<Area<'_>>;
}

/// The binary logarithm of a ring's lines.
fn shift_of<S: Store>(store: &S) -> u32 {
    store.lines().len().trailing_zeros()
}

/// The writing end.
pub struct Producer<S> {
    store: S,
    shift: u32,
    tail: u64,
    returned: u64,
    aside: Outgoing,
}

/// The reading end.
pub struct Consumer<S> {
    store: S,
    shift: u32,
    head: u64,
    published: u64,
    aside: Incoming,
}

impl<S: Store> Producer<S> {
    /// `area`: how many bytes of the area beside the ring may be used.
    pub fn new(store: S, area: usize) -> Self {
        Producer { shift: shift_of(&store), store, tail: 0, returned: 0, aside: Outgoing::new(area) }
    }

    /// Whether a line is free for all that the last look at the consumer's word tells.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        (self.tail - self.returned) >> self.shift == 0
    }

    /// Writes a message of bytes alone that fits into one line, after `is_open`.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes, at most [`LINE_BYTES`].
    #[inline(always)]
    pub unsafe fn write_line(&mut self, kind: u8, from: *const u8, len: usize) {
        debug_assert!(self.is_open() && len <= LINE_BYTES);
        let lines = self.store.lines();
        let Some(line) = lines.get(self.tail as usize & lines.len().wrapping_sub(1)) else { return };
        // SAFETY: the caller's promise.
        unsafe { line.fill(from, len) };
        let header = Header { kind, flags: 0, words: 0, bytes: len as u16 };
        // Release: whoever sees the header sees the payload.
        line.header.store(header.pack(lap(self.tail, self.shift)), Ordering::Release);
        self.tail += 1;
    }

    /// Writes a message of bytes alone beside the ring, after `is_open`. False: there is no room aside, and nothing was written.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes, of which there are no more than a message's header can count.
    #[inline(always)]
    pub unsafe fn write_far(&mut self, kind: u8, from: *const u8, len: usize) -> bool {
        debug_assert!(self.is_open());
        let lines = self.store.lines();
        let Some(line) = lines.get(self.tail as usize & lines.len().wrapping_sub(1)) else { return false };
        let Some(area) = self.store.aside() else { return false };
        let Some(at) = self.aside.take(len, &area) else { return false };
        // SAFETY: the caller's promise; `take` gave room for all of it in one piece.
        unsafe { copy_any(area.address(at, len), from, len) };
        line.words[0].store(at, Ordering::Relaxed);
        line.words[1].store(len as u64, Ordering::Relaxed);
        let header = Header { kind, flags: ASIDE, words: ASIDE_WORDS as u8, bytes: 0 };
        // Release: whoever sees the header sees the words, and the bytes aside.
        line.header.store(header.pack(lap(self.tail, self.shift)), Ordering::Release);
        self.tail += 1;
        true
    }

    /// Free lines, looking at the consumer's word only if the last look does not suffice.
    #[inline]
    pub fn room(&mut self, need: usize) -> Result<bool, Broken> {
        let size = self.store.lines().len() as u64;
        if size - (self.tail - self.returned) >= need as u64 {
            return Ok(true);
        }
        let seen = self.store.returned().load(Ordering::Acquire);
        if seen < self.returned || seen > self.tail {
            return Err(Broken);
        }
        self.returned = seen;
        Ok(size - (self.tail - seen) >= need as u64)
    }

    /// Whether at least half of the ring is free: room for what the peer may do without.
    pub fn is_roomy(&mut self) -> Result<bool, Broken> {
        let half = self.store.lines().len() / 2;
        self.room(half)
    }

    /// Writes a message whose room was checked: the fixed words, then the pieces of bytes in order, aside if there are many.
    ///
    /// # Safety
    /// Every piece is readable for its length, and the lengths sum to `header.bytes`.
    #[inline]
    pub unsafe fn write(&mut self, header: Header, fixed: &[u64], pieces: &[(*const u8, usize)]) {
        // SAFETY: the caller's promise.
        unsafe {
            if (header.bytes as usize) < aside::FROM || !self.write_aside(header, fixed, pieces) {
                self.write_lines(header, fixed, pieces);
            }
        }
    }

    /// False: there is no room aside, and nothing was written.
    ///
    /// # Safety
    /// As for `write`.
    unsafe fn write_aside(&mut self, header: Header, fixed: &[u64], pieces: &[(*const u8, usize)]) -> bool {
        let lines = self.store.lines();
        let line = &lines[self.tail as usize & (lines.len() - 1)];
        let Some((to, rest)) = line.words.split_at_checked(ASIDE_WORDS) else { return false };
        let Some(area) = self.store.aside().filter(|_| fixed.len() <= rest.len()) else { return false };
        let Some(at) = self.aside.take(header.bytes as usize, &area) else { return false };
        let mut end = area.address(at, header.bytes as usize);
        for &(from, len) in pieces {
            // SAFETY: the pieces are the caller's promise; `take` gave room for all of them in one piece.
            unsafe {
                copy_any(end, from, len);
                end = end.add(len);
            }
        }
        for (word, value) in to.iter().chain(rest).zip([at, u64::from(header.bytes)].iter().chain(fixed)) {
            word.store(*value, Ordering::Relaxed);
        }
        let words = (fixed.len() + ASIDE_WORDS) as u8;
        let header = Header { flags: header.flags | ASIDE, words, bytes: 0, ..header };
        // Release: whoever sees the header sees the words, and the bytes aside.
        line.header.store(header.pack(lap(self.tail, self.shift)), Ordering::Release);
        self.tail += 1;
        true
    }

    /// # Safety
    /// As for `write`.
    #[inline]
    unsafe fn write_lines(&mut self, header: Header, fixed: &[u64], pieces: &[(*const u8, usize)]) {
        debug_assert!(fixed.len() == header.words as usize && header.lines() <= MAX_LINES);
        let lines = self.store.lines();
        let mask = lines.len() - 1;
        let count = header.lines();
        let mut out = Out { lines, mask, at: self.tail, word: 0 };
        for word in fixed {
            out.put(*word);
        }
        // SAFETY: the pieces are the caller's promise.
        unsafe { out.bytes(pieces) };
        let lap = lap(self.tail, self.shift);
        for k in (1..count).rev() {
            let at = self.tail + k as u64;
            let of_line = self::lap(at, self.shift);
            lines[at as usize & mask].header.store(u64::from(of_line), Ordering::Relaxed);
        }
        // Release: whoever sees this header sees the payload and the other headers.
        lines[self.tail as usize & mask].header.store(header.pack(lap), Ordering::Release);
        self.tail += count as u64;
    }
}

/// Cursor over payload words being written.
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

    /// Fills whole lines from the start of one; gives how many bytes went.
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

    /// # Safety
    /// Every piece is readable for its length.
    #[inline]
    unsafe fn bytes(&mut self, pieces: &[(*const u8, usize)]) {
        let (mut carry, mut held) = ([0u8; 8], 0usize);
        for (i, &(mut from, mut len)) in pieces.iter().enumerate() {
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

/// A message at the head of the ring; `finish` gives its lines back.
pub struct Message<'a, S> {
    of: &'a mut Consumer<S>,
    /// As its sender gave it, wherever the bytes lie.
    pub header: Header,
    lines: usize,
    aside: Option<Aside>,
}

/// Bytes of a message beside the ring, which lie there until everything in front of `end` is given back.
pub struct Far {
    pub from: *const u8,
    pub len: usize,
    pub end: u64,
}

/// Where the bytes of a message begin and end beside the ring.
#[derive(Clone, Copy)]
struct Aside {
    at: u64,
    end: u64,
}

impl<S: Store> Consumer<S> {
    pub fn new(store: S) -> Self {
        Consumer { shift: shift_of(&store), store, head: 0, published: 0, aside: Incoming::default() }
    }

    /// Where the next messages lie, apart from all else, so that a loop keeps it in registers.
    #[inline(always)]
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor::new(self.store.lines(), self.shift, self.head)
    }

    /// Gives back the lines that a cursor, now at `head`, has passed.
    #[inline(always)]
    pub fn pass(&mut self, head: u64) {
        self.give_back(head - self.head);
    }

    /// The message at the cursor, if it is plain but for its bytes, which lie aside.
    #[inline(never)]
    pub fn far(&self, cursor: &Cursor<'_>, kind: u8) -> Option<Far> {
        let [at, len] = cursor.aside(kind)?;
        let (end, area) = (self.aside.check(at, len).ok()?, self.store.aside()?);
        let len = usize::from(u16::try_from(len).ok()?);
        Some(Far { from: area.address(at, len), len, end })
    }

    /// Gives back what lies in front of `end` aside.
    #[inline(never)]
    pub fn pass_aside(&mut self, end: u64) {
        if let Some(area) = self.store.aside() {
            self.aside.pass(end, &area);
        }
    }

    /// Gives lines back to the producer, a quarter of the ring at a time.
    #[inline(always)]
    fn give_back(&mut self, count: u64) {
        self.head += count;
        if self.head - self.published >= self.store.lines().len() as u64 / 4 {
            self.published = self.head;
            // Release: our reads of the lines come before the producer's next writes to them.
            self.store.returned().store(self.head, Ordering::Release);
        }
    }

    /// The oldest message, if one has fully arrived.
    #[inline]
    pub fn front(&mut self) -> Result<Option<Message<'_, S>>, Broken> {
        let lines = self.store.lines();
        let mask = lines.len() - 1;
        let raw = lines[self.head as usize & mask].header.load(Ordering::Acquire);
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
            if lines[at as usize & mask].header.load(Ordering::Relaxed) as u16 != lap(at, self.shift) {
                return Err(Broken);
            }
        }
        if header.flags & ASIDE != 0 {
            return self.front_aside(header).map(Some);
        }
        Ok(Some(Message { of: self, header, lines: count, aside: None }))
    }

    /// The oldest message, which has its bytes aside.
    fn front_aside(&mut self, header: Header) -> Result<Message<'_, S>, Broken> {
        let lines = self.store.lines();
        let words = &lines[self.head as usize & (lines.len() - 1)].words;
        let [at, len] = [&words[0], &words[1]].map(|w| w.load(Ordering::Relaxed));
        let of_kind = (header.words as usize).checked_sub(ASIDE_WORDS).filter(|_| header.bytes == 0 && header.lines() == 1);
        let (Some(of_kind), Ok(bytes), Some(_)) = (of_kind, u16::try_from(len), self.store.aside()) else { return Err(Broken) };
        let end = self.aside.check(at, len)?;
        let header = Header { flags: header.flags & !ASIDE, words: of_kind as u8, bytes, ..header };
        Ok(Message { of: self, header, lines: 1, aside: Some(Aside { at, end }) })
    }

    /// Lines taken since the beginning.
    pub fn passed(&self) -> u64 {
        self.head
    }

    /// Lines that the ring holds.
    pub fn lines(&self) -> usize {
        self.store.lines().len()
    }

    /// Whether a message waits.
    pub fn is_empty(&self) -> bool {
        let lines = self.store.lines();
        let raw = lines[self.head as usize & (lines.len() - 1)].header.load(Ordering::Acquire);
        raw as u16 != lap(self.head, self.shift)
    }
}

impl<S: Store> Message<'_, S> {
    /// Payload word `index`; words past the message's own are read as 0.
    #[inline]
    pub fn word(&self, index: usize) -> u64 {
        if index >= self.header.words as usize {
            return 0;
        }
        self.raw_word(index + if self.aside.is_some() { ASIDE_WORDS } else { 0 })
    }

    #[inline]
    fn raw_word(&self, index: usize) -> u64 {
        let lines = self.of.store.lines();
        let at = self.of.head as usize + index / WORDS;
        lines[at & (lines.len() - 1)].words[index % WORDS].load(Ordering::Relaxed)
    }

    /// Copies payload bytes `[from, from+len)` to `to`; a range outside the message copies nothing
    /// and is false.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    #[inline]
    pub unsafe fn copy_out(&self, from: usize, mut to: *mut u8, len: usize) -> bool {
        match from.checked_add(len) {
            Some(end) if end <= self.header.bytes as usize => {}
            _ => return false,
        }
        if let (Some(aside), Some(area)) = (self.aside, self.of.store.aside()) {
            // SAFETY: `to` is the caller's; the range is inside the bytes whose place was checked. Its peer may scribble over
            // them meanwhile: what is copied then is nobody's but that peer's.
            unsafe { copy_any(to, area.address(aside.at, self.header.bytes as usize).add(from), len) };
            return true;
        }
        let base = self.header.words as usize;
        let mut at = from;
        let end = from + len;
        while at < end {
            if end - at >= LINE_BYTES && at.is_multiple_of(8) && (base + at / 8).is_multiple_of(WORDS) {
                // SAFETY: `end - at` bytes remain of the caller's range.
                let done = unsafe { self.whole_lines((base + at / 8) / WORDS, to, end - at) };
                // SAFETY: as above.
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

    /// Copies whole lines from line `first` of the message, up to `len` bytes; gives how many.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    #[inline]
    unsafe fn whole_lines(&self, first: usize, to: *mut u8, len: usize) -> usize {
        let lines = self.of.store.lines();
        let (start, mask) = (self.of.head as usize + first, lines.len() - 1);
        let count = len / LINE_BYTES;
        for k in 0..count {
            // SAFETY: (k + 1) * LINE_BYTES <= len.
            unsafe { lines[(start + k) & mask].drain(to.add(k * LINE_BYTES), LINE_BYTES) };
        }
        count * LINE_BYTES
    }

    /// Gives the message's lines back to the producer.
    #[inline]
    pub fn finish(self) {
        if let Some(aside) = self.aside {
            self.of.pass_aside(aside.end);
        }
        self.of.give_back(self.lines as u64);
    }
}

#[cfg(any(test, loom))]
pub mod model {
    //! A ring in plain memory, for tests and models.
    use super::*;
    use std::sync::Arc;

    pub struct Heap {
        lines: Vec<Line>,
        returned: AtomicU64,
        /// Not the model's own sort of atomic: only the place counts, and that it may change.
        aside: Vec<std::sync::atomic::AtomicU64>,
        aside_returned: AtomicU64,
    }

    #[derive(Clone)]
    pub struct Shared(Arc<Heap>);

    impl Shared {
        pub fn new(lines: usize) -> Shared {
            let lines = (0..lines).map(|_| Line::empty()).collect();
            let aside = (0..aside::AREA / 8).map(|_| Default::default()).collect();
            Shared(Arc::new(Heap { lines, returned: AtomicU64::new(0), aside, aside_returned: AtomicU64::new(0) }))
        }

        pub fn scribble(&self, line: usize, word: usize, value: u64) {
            match word {
                0 => self.0.lines[line].header.store(value, Ordering::Relaxed),
                8 => self.0.returned.store(value, Ordering::Relaxed),
                _ => self.0.lines[line].words[word - 1].store(value, Ordering::Relaxed),
            }
        }
    }

    impl Store for Shared {
        fn lines(&self) -> &[Line] {
            &self.0.lines
        }
        fn returned(&self) -> &AtomicU64 {
            &self.0.returned
        }
        fn aside(&self) -> Option<Area<'_>> {
            let base = std::ptr::NonNull::from(self.0.aside.as_slice()).cast();
            Some(Area { base, returned: &self.0.aside_returned })
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::model::Shared;
    use super::*;

    fn send(p: &mut Producer<Shared>, kind: u8, fixed: &[u64], bytes: &[u8]) -> bool {
        let header = Header { kind, flags: 0, words: fixed.len() as u8, bytes: bytes.len() as u16 };
        if !p.room(header.lines()).unwrap() {
            return false;
        }
        // SAFETY: the slice is live for its length.
        unsafe { p.write(header, fixed, &[(bytes.as_ptr(), bytes.len())]) };
        true
    }

    #[test]
    fn messages_of_every_length_arrive_in_order_over_many_laps() {
        let shared = Shared::new(1024);
        let (mut p, mut c) = (Producer::new(shared.clone(), aside::START), Consumer::new(shared));
        let data: Vec<u8> = (0..8000u32).map(|i| (i % 251) as u8).collect();
        for round in 0..3000usize {
            let len = round * 13 % 5000;
            assert!(send(&mut p, 9, &[round as u64, 5], &data[..len]));
            let message = c.front().unwrap().expect("just sent");
            assert_eq!((message.header.kind, message.word(0), message.word(1), message.word(2)), (9, round as u64, 5, 0));
            let mut out = vec![0u8; len + 1];
            // SAFETY: out holds len + 1 bytes.
            unsafe {
                assert!(!message.copy_out(0, out.as_mut_ptr(), len + 1));
                assert!(message.copy_out(0, out.as_mut_ptr(), len));
                assert_eq!(out[..len], data[..len]);
                if len > 3 {
                    assert!(message.copy_out(3, out.as_mut_ptr(), len - 3));
                    assert_eq!(out[..len - 3], data[3..len]);
                }
            }
            message.finish();
            assert!(c.front().unwrap().is_none());
        }
    }

    #[test]
    fn a_cursor_takes_plain_messages_and_leaves_others() {
        let shared = Shared::new(1024);
        let (mut p, mut c) = (Producer::new(shared.clone(), aside::START), Consumer::new(shared.clone()));
        let data: Vec<u8> = (0..8000u32).map(|i| (i % 251) as u8).collect();
        for len in (0..2000).chain([8000]) {
            assert!(send(&mut p, 9, &[], &data[..len]) && p.room(1).unwrap());
            if len <= LINE_BYTES {
                // SAFETY: `data` is longer.
                unsafe { p.write_line(9, data.as_ptr(), len) };
            }
            assert!(send(&mut p, 9, &[1], &[]));
            let mut cursor = c.cursor();
            let mut passed = None;
            for _ in 0..if len <= LINE_BYTES { 2 } else { 1 } {
                let mut out = vec![0xEEu8; len + 8];
                if len < aside::FROM {
                    assert_eq!((cursor.plain(8), cursor.plain(9)), (None, Some(len)));
                    assert!(c.far(&cursor, 9).is_none());
                    // SAFETY: `out` holds more.
                    unsafe { cursor.take(out.as_mut_ptr(), len) };
                } else {
                    assert!(cursor.plain(9).is_none() && c.far(&cursor, 8).is_none());
                    let far = c.far(&cursor, 9).expect("aside");
                    // SAFETY: so many bytes lie there, and `out` holds more.
                    unsafe { std::ptr::copy_nonoverlapping(far.from, out.as_mut_ptr(), far.len) };
                    (passed, _) = (Some(far.end), cursor.skip());
                }
                assert!(out[..len] == data[..len] && out[len..] == [0xEE; 8]);
            }
            assert!(cursor.plain(9).is_none() && !cursor.is_empty(), "the one with a fixed word");
            let head = cursor.head();
            c.pass(head);
            if let Some(end) = passed {
                c.pass_aside(end);
            }
            c.front().unwrap().expect("the one with a fixed word").finish();
            assert!(c.cursor().is_empty() && c.is_empty());
        }
    }

    #[test]
    fn a_cursor_leaves_a_long_message_whose_lines_are_not_in_order() {
        let shared = Shared::new(1024);
        let (mut p, mut c) = (Producer::new(shared.clone(), aside::START), Consumer::new(shared.clone()));
        assert!(send(&mut p, 9, &[], &[1; 100]));
        shared.scribble(1, 0, 77);
        assert_eq!(c.cursor().plain(9), None);
        assert!(matches!(c.front(), Err(Broken)));
        // More lines than a message may have.
        shared.scribble(0, 0, Header { kind: 9, bytes: u16::MAX, ..Header::default() }.pack(1));
        assert_eq!(c.cursor().plain(9), None);
    }

    #[test]
    fn long_messages_lie_aside_while_there_is_room_and_in_lines_else() {
        let shared = Shared::new(4096);
        let (mut p, mut c) = (Producer::new(shared.clone(), aside::START), Consumer::new(shared));
        let data: Vec<u8> = (0..8000u32).map(|i| (i % 251) as u8).collect();
        let mut sent = 0;
        while send(&mut p, 9, &[sent, 5, 6, 7, 8], &data) {
            sent += 1;
        }
        let aside = aside::START / 8000;
        assert_eq!(sent as usize, aside + (4096 - aside) / 144, "one line each, then 144");
        for turn in 0..sent {
            let message = c.front().unwrap().expect("sent");
            assert_eq!((message.header.words, message.header.bytes, message.header.flags), (5, 8000, 0));
            assert_eq!([0, 4, 5].map(|i| message.word(i)), [turn, 8, 0]);
            let mut out = vec![0u8; 8000];
            // SAFETY: `out` holds so many.
            assert!(unsafe { message.copy_out(0, out.as_mut_ptr(), 8000) } && out == data);
            message.finish();
        }
        // Six words and two more are more than a line has.
        assert!(send(&mut p, 9, &[0; 6], &data[..600]) && c.front().unwrap().expect("sent").lines == 12);
    }

    #[test]
    fn a_full_ring_refuses_and_recovers() {
        let shared = Shared::new(1024);
        let (mut p, mut c) = (Producer::new(shared.clone(), aside::START), Consumer::new(shared));
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
            let (mut p, mut c) = (Producer::new(shared.clone(), aside::START), Consumer::new(shared.clone()));
            for _ in 0..40 {
                let (line, word) = (rnd() as usize % 48, rnd() as usize % 9);
                let value = if rnd() & 1 == 0 { rnd() << 40 | rnd() } else { rnd() & !0xffff | 1 };
                shared.scribble(line, word, value);
                let bytes = if rnd() & 1 == 0 { 100 } else { 600 };
                let header = Header { kind: 1, words: 1, bytes, ..Header::default() };
                if p.room(header.lines()) == Ok(true) {
                    // SAFETY: a live array of more bytes.
                    unsafe { p.write(header, &[3], &[([0u8; 600].as_ptr(), bytes as usize)]) };
                }
                if let Some(far) = c.far(&c.cursor(), 1) {
                    let mut out = vec![0u8; far.len];
                    // SAFETY: `far` was checked to be inside the area.
                    unsafe { std::ptr::copy_nonoverlapping(far.from, out.as_mut_ptr(), far.len) };
                }
                if let Ok(Some(m)) = c.front() {
                    let mut out = vec![0u8; m.header.bytes as usize];
                    // SAFETY: out holds header.bytes bytes.
                    unsafe { m.copy_out(0, out.as_mut_ptr(), out.len()) };
                    m.finish();
                }
            }
        }
    }
}
