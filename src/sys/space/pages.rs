// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Remembers, for about 100 ms, which pages of another process were present, as the kernel's page map or a fault by
//! `populate.rs` has shown. A copy would wait in the kernel for a missing page: of userfaultfd memory, or of a file
//! served by FUSE or by an unreachable server.

use super::call::Attach;
use crate::sys::cancel::raw;
use crate::sys::mem;
use std::os::fd::{AsRawFd, OwnedFd};

/// Pages of one entry.
const SPAN: u64 = 64;
/// Ticks for which an entry is valid; of the order of 100 ms.
pub const FRESH_TICKS: u64 = 200_000_000;
/// Number of entries at first, and at most (2 GiB of pages of 4 KiB).
const FIRST: usize = 64;
const MOST: usize = 8192;
/// Spans whose entries are read from the page map at once.
const SPANS: u64 = 8;

/// Bits of an entry of the page map.
const PRESENT: u64 = 1 << 63;
const WRITE_PROTECTED: u64 = 1 << 57;

/// The present pages of one span of `SPAN` pages, one bit per page.
#[derive(Clone, Copy, Default)]
struct SpanState {
    span: u64,
    when: u64,
    readable: u64,
    writable: u64,
}

impl SpanState {
    #[inline]
    fn there(&self, how: Attach) -> u64 {
        if how == Attach::Write { self.writable } else { self.readable }
    }
}

/// A range of pages, including the last one.
#[derive(Clone, Copy)]
struct Range {
    first: u64,
    last: u64,
}

impl Range {
    #[inline]
    fn of(addr: u64, len: usize) -> Range {
        Range::by(mem::page_size().trailing_zeros(), addr, len)
    }

    #[inline]
    fn by(shift: u32, addr: u64, len: usize) -> Range {
        Range { first: addr >> shift, last: addr.saturating_add(len.saturating_sub(1) as u64) >> shift }
    }

    /// The bits of the range's pages within a span.
    #[inline]
    fn within(&self, span: u64) -> u64 {
        let first = self.first.saturating_sub(span * SPAN).min(SPAN - 1);
        let last = self.last.saturating_sub(span * SPAN).min(SPAN - 1);
        (u64::MAX >> (SPAN - 1 - last)) & (u64::MAX << first)
    }
}

/// The pages that were seen present lately. A hash table with one entry per slot; a new entry replaces the old one.
#[derive(Default)]
pub struct PresentPages(Vec<SpanState>);

impl PresentPages {
    #[inline]
    fn slot(&self, span: u64) -> usize {
        span as usize & self.0.len().wrapping_sub(1)
    }

    /// The pages of a span that were seen present lately.
    #[inline]
    fn of_span(&self, span: u64, how: Attach, now: u64) -> u64 {
        match self.0.get(self.slot(span)) {
            Some(fact) if fact.span == span && now.wrapping_sub(fact.when) < FRESH_TICKS => fact.there(how),
            _ => 0,
        }
    }

    #[inline]
    fn knows(&self, range: Range, span: u64, how: Attach, now: u64) -> bool {
        range.within(span) & !self.of_span(span, how, now) == 0
    }

    /// Stores the state of a span. The table doubles, up to `MOST` entries, while another fresh span has the same slot.
    fn learn(&mut self, fact: SpanState) {
        if self.0.is_empty() {
            self.0.resize(FIRST, SpanState::default());
        }
        while self.0.len() < MOST {
            let other = &self.0[self.slot(fact.span)];
            let is_free = other.span == fact.span || fact.when.wrapping_sub(other.when) >= FRESH_TICKS;
            if is_free {
                break;
            }
            let grown = vec![SpanState::default(); self.0.len() * 2];
            for known in std::mem::replace(&mut self.0, grown).into_iter().filter(|f| f.when != 0) {
                let at = self.slot(known.span);
                self.0[at] = known;
            }
        }
        let at = self.slot(fact.span);
        self.0[at] = fact;
    }

    /// True if all pages of the range were seen lately. Makes no system call.
    #[inline]
    pub fn has(&self, how: Attach, addr: u64, len: usize, now: u64) -> bool {
        self.has_all(how, std::iter::once((addr, len)), now)
    }

    /// Like `has`, for many ranges, which often lie in one span.
    #[inline]
    pub fn has_all(&self, how: Attach, mut ranges: impl Iterator<Item = (u64, usize)>, now: u64) -> bool {
        let (mut known, mut there, shift) = (u64::MAX, 0, mem::page_size().trailing_zeros());
        ranges.all(|(addr, len)| {
            let range = Range::by(shift, addr, len);
            (range.first / SPAN..=range.last / SPAN).all(|span| {
                if span != known {
                    (known, there) = (span, self.of_span(span, how, now));
                }
                range.within(span) & !there == 0
            })
        })
    }

    /// Reads the page map for pages of the range that were not seen lately. False: some are missing, or there is no
    /// page map.
    pub fn look(&mut self, map: Option<&OwnedFd>, how: Attach, addr: u64, len: usize, now: u64) -> bool {
        let Some(map) = map else { return self.has(how, addr, len, now) };
        let range = Range::of(addr, len);
        let (mut span, end) = (range.first / SPAN, range.last / SPAN + 1);
        while span < end {
            if self.knows(range, span, how, now) {
                span += 1;
                continue;
            }
            let mut entries = [0u64; (SPAN * SPANS) as usize];
            let spans = SPANS.min(end - span);
            match read(map, span * SPAN, &mut entries[..(spans * SPAN) as usize]) {
                // The address space has ended, so a copy fails at once instead of waiting.
                Some(0) => return true,
                Some(_) => {}
                None => return false,
            }
            for part in entries[..(spans * SPAN) as usize].chunks_exact(SPAN as usize) {
                let fact = SpanState { span, when: now, ..bits(part) };
                self.learn(fact);
                if range.within(span) & !fact.there(how) != 0 {
                    return false;
                }
                span += 1;
            }
        }
        true
    }

    /// Records that the pages were present just now.
    pub fn note(&mut self, how: Attach, addr: u64, len: usize, now: u64) {
        let range = Range::of(addr, len);
        for span in range.first / SPAN..=range.last / SPAN {
            let there = range.within(span);
            let mut fact = SpanState { span, when: now, readable: there, writable: if how == Attach::Write { there } else { 0 } };
            if let Some(known) = self.0.get(self.slot(span)).filter(|f| f.span == span && now.wrapping_sub(f.when) < FRESH_TICKS) {
                let (readable, writable) = (known.readable | fact.readable, known.writable | fact.writable);
                fact = SpanState { readable, writable, ..*known };
            }
            self.learn(fact);
        }
    }
}

/// The state of a span whose entries of the page map are `entries`; number and time are 0.
fn bits(entries: &[u64]) -> SpanState {
    let mut fact = SpanState::default();
    for (i, entry) in entries.iter().enumerate().filter(|(_, entry)| *entry & PRESENT != 0) {
        fact.readable |= 1 << i;
        if entry & WRITE_PROTECTED == 0 {
            fact.writable |= 1 << i;
        }
    }
    fact
}

/// Reads entries of the page map, beginning with page `first`. Returns their number, which is 0 if the address space
/// has ended.
fn read(map: &OwnedFd, first: u64, into: &mut [u64]) -> Option<usize> {
    // SAFETY: the kernel writes at most as many bytes as the slice has.
    let got = unsafe { raw!(SYS_pread64, map.as_raw_fd(), into.as_mut_ptr(), size_of_val(into), first * 8) };
    usize::try_from(got).ok().map(|bytes| bytes / 8)
}

/// True if a page is present and not write-protected. `None`: the address space has ended, or the map cannot be read.
pub fn is_there(map: &OwnedFd, addr: u64) -> Option<bool> {
    let mut entry = [0];
    match read(map, Range::of(addr, 1).first, &mut entry) {
        Some(1) => Some(entry[0] & (PRESENT | WRITE_PROTECTED) == PRESENT),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mem::page_size;

    fn own_map() -> Option<OwnedFd> {
        std::fs::File::open("/proc/self/pagemap").ok().map(OwnedFd::from)
    }

    fn pages(n: usize) -> usize {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), n * page_size(), libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at as usize
    }

    fn touch(at: usize) {
        // SAFETY: a byte of a mapping of this test.
        unsafe { (at as *mut u8).write_volatile(1) };
    }

    #[test]
    fn only_the_pages_of_the_range_decide() {
        let Some(map) = own_map() else { return };
        let (n, page) = (256, page_size());
        let at = pages(n);
        (0..n).filter(|i| *i != 100).for_each(|i| touch(at + i * page));
        let mut seen = PresentPages::default();
        let mut look = |from: usize, pages: usize| seen.look(Some(&map), Attach::Write, (at + from * page) as u64, pages * page, 1 << 40);
        assert!(look(0, 100) && look(101, n - 101) && look(99, 1));
        assert!(!look(100, 1) && !look(0, n) && !look(99, 3) && !look(100, 50));
        touch(at + 100 * page);
        assert!(look(100, 1) && look(0, n));
    }

    #[test]
    fn what_was_seen_is_believed_for_a_while() {
        let (addr, len, then) = (0x1234_5678, 5 << 20, 1 << 40);
        let mut seen = PresentPages::default();
        assert!(!seen.has(Attach::Read, addr, 1, then));
        seen.note(Attach::Read, addr, len, then);
        assert!(seen.has(Attach::Read, addr, len, then + FRESH_TICKS - 1));
        assert!(!seen.has(Attach::Read, addr, len, then + FRESH_TICKS));
        assert!(!seen.has(Attach::Write, addr, 1, then));
        assert!(!seen.has(Attach::Read, addr + len as u64 + page_size() as u64, 1, then));
        seen.note(Attach::Write, addr, 1, then);
        assert!(seen.has(Attach::Write, addr, 1, then));
    }

    #[test]
    fn many_spans_make_the_table_grow_up_to_its_end() {
        let (mut seen, bytes, now) = (PresentPages::default(), SPAN * page_size() as u64, 1 << 40);
        for i in 0..2 * MOST as u64 {
            seen.note(Attach::Read, i * bytes, 1, now);
            assert!(seen.has(Attach::Read, i * bytes, 1, now));
        }
        assert_eq!(seen.0.len(), MOST);
        assert!(!seen.has(Attach::Read, 0, 1, now) && seen.has(Attach::Read, (2 * MOST as u64 - 1) * bytes, 1, now));
    }
}
