// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache line of a ring, and the copies of a few bytes into it and out of it. The copies use relaxed atomic words and
//! as few instructions as possible, because the instructions are most of the cost of a short message.

use super::primitive::{AtomicU64, Ordering};

/// Words of payload in a line.
pub const WORDS: usize = 7;
/// Bytes of payload in a line.
pub const LINE_BYTES: usize = WORDS * 8;

/// One cache line of a ring.
#[repr(C, align(64))]
pub struct Line {
    pub header: AtomicU64,
    pub words: [AtomicU64; WORDS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == 64);

impl Line {
    #[cfg(any(test, loom))]
    pub fn empty() -> Line {
        Line { header: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Prefetches the line for writing. This is only a hint: no later instruction waits for the line.
    #[inline(always)]
    pub fn claim(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: prefetching changes nothing, and a CPU that does not know the instruction ignores it.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) self, options(nostack, preserves_flags, readonly));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: prefetching changes nothing.
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{}]", in(reg) self, options(nostack, preserves_flags, readonly));
        }
    }

    /// Stores `len` bytes, and zeros up to the end of the last word. Bytes that do not fit are left out.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    #[inline(always)]
    pub unsafe fn fill(&self, from: *const u8, len: usize) {
        // SAFETY: the caller promises that `from` holds `len` bytes.
        unsafe { fill(&self.words, from, len) }
    }

    /// Stores words, and `len` bytes behind the words.
    ///
    /// # Safety
    /// As for `fill`.
    #[inline(always)]
    pub unsafe fn fill_behind(&self, words: &[u64], from: *const u8, len: usize) {
        let Some((front, rest)) = self.words.split_at_checked(words.len()) else { return };
        front.iter().zip(words).for_each(|(to, word)| to.store(*word, Ordering::Relaxed));
        // SAFETY: the caller promises that `from` holds `len` bytes.
        unsafe { fill(rest, from, len) }
    }

    /// Loads `len` bytes.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes, at most [`LINE_BYTES`].
    #[inline(always)]
    pub unsafe fn drain(&self, to: *mut u8, len: usize) {
        // SAFETY: the caller promises that `to` has room for `len` bytes.
        unsafe { drain(&self.words, to, len) }
    }
}

/// Stores `len` bytes, and zeros up to the end of the last word.
///
/// # Safety
/// As for `Line::fill`.
#[inline(always)]
unsafe fn fill(words: &[AtomicU64], from: *const u8, len: usize) {
    if len == 8
        && let [first, ..] = words
    {
        // The most frequent length.
        // SAFETY: the caller promises that `from` holds `len` bytes, which are eight.
        return first.store(unsafe { from.cast::<u64>().read_unaligned() }, Ordering::Relaxed);
    }
    let full = len / 8;
    for (i, word) in words.iter().enumerate().take(full) {
        // SAFETY: these are eight of the caller's bytes, because i < len / 8.
        word.store(unsafe { from.add(i * 8).cast::<u64>().read_unaligned() }, Ordering::Relaxed);
    }
    if !len.is_multiple_of(8)
        && let Some(word) = words.get(full)
    {
        // SAFETY: these are the last len % 8 of the caller's bytes.
        word.store(unsafe { tail(from.add(full * 8), len % 8) }, Ordering::Relaxed);
    }
}

/// Loads `len` bytes.
///
/// # Safety
/// `to` is writable for `len` bytes; bytes beyond the words are not written.
#[inline(always)]
pub(super) unsafe fn drain(words: &[AtomicU64], to: *mut u8, len: usize) {
    if len == 8
        && let [first, ..] = words
    {
        // SAFETY: the caller promises that `to` has room for eight bytes.
        return unsafe { to.cast::<u64>().write_unaligned(first.load(Ordering::Relaxed)) };
    }
    let full = len / 8;
    for (i, word) in words.iter().enumerate().take(full) {
        // SAFETY: eight bytes of the caller's range, because i < len / 8.
        unsafe { to.add(i * 8).cast::<u64>().write_unaligned(word.load(Ordering::Relaxed)) };
    }
    if !len.is_multiple_of(8)
        && let Some(word) = words.get(full)
    {
        // SAFETY: the last len % 8 bytes of the caller's range.
        unsafe { put_tail(to.add(full * 8), word.load(Ordering::Relaxed), len % 8) };
    }
}

/// The first `len` bytes, 1 to 7, as a word whose other bytes are zero.
///
/// # Safety
/// `from` is readable for `len` bytes.
#[inline(always)]
pub unsafe fn tail(from: *const u8, len: usize) -> u64 {
    // Two loads that may overlap; bytes that both contain are the same.
    let word = |low: u64, high: u64, at: usize| low | high << (at * 8);
    // SAFETY: every load lies within `len` bytes.
    let native = unsafe {
        match len {
            4.. => word(
                from.cast::<u32>().read_unaligned().to_le().into(),
                from.add(len - 4).cast::<u32>().read_unaligned().to_le().into(),
                len - 4,
            ),
            2.. => word(
                from.cast::<u16>().read_unaligned().to_le().into(),
                from.add(len - 2).cast::<u16>().read_unaligned().to_le().into(),
                len - 2,
            ),
            _ => from.read().into(),
        }
    };
    u64::from_le(native)
}

/// Writes the first `len` bytes, 1 to 7, of a word.
///
/// # Safety
/// `to` is writable for `len` bytes.
#[inline(always)]
pub unsafe fn put_tail(to: *mut u8, word: u64, len: usize) {
    let word = word.to_le();
    // SAFETY: every store lies within `len` bytes. Overlapping stores write the same bytes.
    unsafe {
        match len {
            4.. => {
                to.add(len - 4).cast::<u32>().write_unaligned(u32::from_le((word >> ((len - 4) * 8)) as u32));
                to.cast::<u32>().write_unaligned(u32::from_le(word as u32));
            }
            2.. => {
                to.add(len - 2).cast::<u16>().write_unaligned(u16::from_le((word >> ((len - 2) * 8)) as u16));
                to.cast::<u16>().write_unaligned(u16::from_le(word as u16));
            }
            _ => to.write(word as u8),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_length_goes_in_and_out_and_nothing_beside_it() {
        let src: Vec<u8> = (1..=LINE_BYTES as u8).collect();
        for len in 0..=LINE_BYTES {
            let line = Line::empty();
            line.words.iter().for_each(|w| w.store(u64::MAX, Ordering::Relaxed));
            let mut out = [0xEEu8; LINE_BYTES + 16];
            // SAFETY: both arrays hold LINE_BYTES.
            unsafe {
                line.fill(src.as_ptr(), len);
                line.drain(out.as_mut_ptr().add(3), len);
            }
            assert_eq!(&out[3..3 + len], &src[..len]);
            assert!(out[..3].iter().chain(&out[3 + len..]).all(|b| *b == 0xEE), "len {len}");
            let raw: Vec<u8> = line.words.iter().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()).collect();
            let whole = len.next_multiple_of(8);
            assert!(raw[len..whole].iter().all(|b| *b == 0) && raw[whole..].iter().all(|b| *b == 0xFF), "len {len}");
        }
    }
}
