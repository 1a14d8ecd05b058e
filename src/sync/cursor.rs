// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A reader's position in a ring, for the most frequent messages: bytes without fixed words, messages of one line, and
//! a few words with their bytes out of line. The cursor makes the same checks as `consumer.rs`, and leaves all other
//! messages to that file.

use super::cache_line::{LINE_BYTES, Line, drain};
use super::header::{Header, MAX_LINES, OUT_OF_LINE_WORDS, lap};
use super::primitive::{AtomicU64, Ordering};
use crate::sys::copy::copy_any;
use crate::sys::iov::Iov;

/// A message of one line, read in place: fixed words, and bytes that lie behind the words or out of line.
#[derive(Clone, Copy)]
pub struct ShortMessage<'a> {
    words: &'a [AtomicU64],
    from: *const AtomicU64,
    bytes: usize,
}

impl<'a> ShortMessage<'a> {
    /// # Safety
    /// As long as the result is used, `from` is readable for `bytes` bytes, rounded up to whole words.
    #[inline(always)]
    pub(super) unsafe fn new(words: &'a [AtomicU64], from: *const AtomicU64, bytes: usize) -> ShortMessage<'a> {
        ShortMessage { words, from, bytes }
    }

    /// Number of fixed words.
    #[inline(always)]
    pub fn words(&self) -> usize {
        self.words.len()
    }

    /// Fixed word `i`; 0 beyond the last.
    #[inline(always)]
    pub fn word(&self, i: usize) -> u64 {
        self.words.get(i).map_or(0, |w| w.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        self.bytes
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies all bytes.
    ///
    /// # Safety
    /// `to` is writable for `len()` bytes.
    #[inline(always)]
    pub unsafe fn copy_out(&self, to: *mut u8) {
        // SAFETY: the caller promises that `to` has room for all bytes, and the caller of `new` promised that they lie
        // at `from`.
        unsafe {
            match self.bytes <= LINE_BYTES {
                true => drain(std::slice::from_raw_parts(self.from, self.bytes.div_ceil(8)), to, self.bytes),
                false => copy_any(to, self.from.cast(), self.bytes),
            }
        }
    }

    /// Copies as many bytes as both the message and `to` have.
    #[inline(always)]
    pub fn copy_to(&self, to: Iov) {
        if to.len() < self.bytes {
            return self.copy_part(0, to);
        }
        // SAFETY: `to` has room for all bytes.
        unsafe { self.copy_out(to.as_ptr()) }
    }

    /// Copies the bytes from byte `skip` on: as many as the message has there and `to` has room for.
    pub fn copy_part(&self, skip: usize, to: Iov) {
        let skip = skip.min(self.bytes);
        // SAFETY: the bytes lie inside the message, and `to` has room for as many as are copied.
        unsafe { copy_any(to.as_ptr(), self.from.cast::<u8>().add(skip), to.len().min(self.bytes - skip)) };
    }
}

/// Reads frequent messages, one after the other, from a copy of the consumer's position.
pub struct Cursor<'a> {
    lines: &'a [Line],
    mask: u64,
    shift: u32,
    head: u64,
}

impl<'a> Cursor<'a> {
    #[inline(always)]
    pub(super) fn new(lines: &'a [Line], mask: u64, shift: u32, head: u64) -> Cursor<'a> {
        Cursor { lines, mask, shift, head }
    }

    #[inline(always)]
    fn at(&self, position: u64) -> Option<&'a Line> {
        self.lines.get((position & self.mask) as usize)
    }

    /// The length of the next message, if it has arrived, has this kind, and has neither fixed words nor flags.
    #[inline(always)]
    pub fn bytes_only(&self, kind: u8) -> Option<usize> {
        let raw = self.at(self.head)?.header.load(Ordering::Acquire);
        let len = Header::bytes_only(raw, kind, lap(self.head, self.shift))?;
        (len <= LINE_BYTES || self.follows(len)).then_some(len)
    }

    /// The next message, if it has arrived, has this kind, has no flags, and lies in one line.
    #[inline(always)]
    pub fn one_line(&self, kind: u8) -> Option<ShortMessage<'a>> {
        let line = self.at(self.head)?;
        let (words, bytes) = Header::unflagged(line.header.load(Ordering::Acquire), kind, lap(self.head, self.shift))?;
        if words * 8 + bytes > LINE_BYTES {
            return None;
        }
        let (words, rest) = line.words.split_at_checked(words)?;
        // SAFETY: the rest of the line has that many bytes.
        Some(unsafe { ShortMessage::new(words, rest.as_ptr(), bytes) })
    }

    /// True if the lines behind the first of a longer message have the right headers.
    #[inline(never)]
    fn follows(&self, len: usize) -> bool {
        let count = len.div_ceil(LINE_BYTES);
        let rest = self.head + 1..self.head + count as u64;
        let is_one = |at| self.at(at).is_some_and(|line| line.header.load(Ordering::Relaxed) as u16 == lap(at, self.shift));
        count <= MAX_LINES && rest.into_iter().all(is_one)
    }

    /// Place and length of the next message's bytes, if it has arrived, has this kind, has neither fixed words nor
    /// flags, and its bytes lie out of line.
    #[inline(always)]
    pub(super) fn out_of_line(&self, kind: u8) -> Option<[u64; 2]> {
        let line = self.at(self.head)?;
        let raw = line.header.load(Ordering::Acquire);
        Header::is_out_of_line(raw, kind, lap(self.head, self.shift)).then(|| [0, 1].map(|i| line.words[i].load(Ordering::Relaxed)))
    }

    /// For the next message, if it has arrived, has this kind, and its bytes lie out of line: its fixed words, and the
    /// words that give place and length.
    #[inline(always)]
    pub(super) fn words_out_of_line(&self, kind: u8) -> Option<(&'a [AtomicU64], [u64; OUT_OF_LINE_WORDS])> {
        let line = self.at(self.head)?;
        let words = Header::words_out_of_line(line.header.load(Ordering::Acquire), kind, lap(self.head, self.shift))?;
        let (place, rest) = line.words.split_first_chunk::<OUT_OF_LINE_WORDS>()?;
        Some((rest.get(..words)?, place.each_ref().map(|w| w.load(Ordering::Relaxed))))
    }

    /// Moves past a message of one line.
    #[inline(always)]
    pub fn skip(&mut self) {
        self.head += 1;
    }

    /// The cursor's position: the number of lines before it since the beginning.
    #[inline(always)]
    pub fn head(&self) -> u64 {
        self.head
    }

    /// True if no message has arrived; false also if the next line is not mapped yet.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.at(self.head).is_some_and(|line| line.header.load(Ordering::Acquire) as u16 != lap(self.head, self.shift))
    }

    /// Copies the message that `bytes_only` found, and moves to the next.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    #[inline(always)]
    pub unsafe fn copy_out(&mut self, to: *mut u8, len: usize) {
        // SAFETY: the caller promises that `to` has room for `len` bytes.
        unsafe {
            match len <= LINE_BYTES {
                true => self.copy_line(to, len),
                false => self.copy_lines(to, len),
            }
        }
    }

    /// # Safety
    /// As for `copy_out`, and `len` is at most [`LINE_BYTES`].
    #[inline(always)]
    unsafe fn copy_line(&mut self, to: *mut u8, len: usize) {
        if let Some(line) = self.at(self.head) {
            // SAFETY: the caller promises that `to` has room for `len` bytes, and they lie in the line.
            unsafe { line.drain(to, len) };
        }
        self.head += 1;
    }

    /// # Safety
    /// As for `copy_out`.
    #[inline(never)]
    unsafe fn copy_lines(&mut self, to: *mut u8, len: usize) {
        let mut done = 0;
        while len - done >= LINE_BYTES {
            if let Some(line) = self.at(self.head) {
                // SAFETY: done + LINE_BYTES <= len.
                unsafe { line.drain(to.add(done), LINE_BYTES) };
            }
            self.head += 1;
            done += LINE_BYTES;
        }
        if done < len {
            // SAFETY: the last len - done bytes, which are fewer than a line's.
            unsafe { self.copy_line(to.add(done), len - done) };
        }
    }
}
