// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies into and out of memory that another process may be reading or writing.
//!
//! The last eight bytes of a copy of eight bytes or more become visible after all others, and an aligned copy of eight
//! bytes is one store. Peers that poll the last bytes of a buffer rely on both.

#[cfg(target_arch = "x86_64")]
use std::sync::atomic::AtomicU8;
use std::sync::atomic::{Ordering, fence};

/// Bits of [`cpu`], which decide how this CPU copies.
#[cfg(target_arch = "x86_64")]
const KNOWN: u8 = 1;
#[cfg(target_arch = "x86_64")]
const AVX512: u8 = 2;
/// The CPU has AVX2, and a string instruction (`rep movsb`) that is slow in some cases; see [`copy_any`].
#[cfg(target_arch = "x86_64")]
const AVOID_STRINGS: u8 = 4;

/// The CPU's properties, determined at first use. Several threads may determine them at once, and all get the same
/// result.
#[cfg(target_arch = "x86_64")]
#[inline]
fn cpu() -> u8 {
    static CPU: AtomicU8 = AtomicU8::new(0);
    match CPU.load(Ordering::Relaxed) {
        0 => {
            let found = ask_cpu();
            CPU.store(found, Ordering::Relaxed);
            found
        }
        known => known,
    }
}

#[cfg(target_arch = "x86_64")]
#[cold]
fn ask_cpu() -> u8 {
    #[allow(unused_unsafe)] // safe in later compilers only
    // SAFETY: every x86-64 CPU has the instruction.
    let maker = unsafe { core::arch::x86_64::__cpuid(0) };
    let amd = [b"AuthenticAMD", b"HygonGenuine"]
        .iter()
        .any(|name| [maker.ebx, maker.edx, maker.ecx].iter().flat_map(|r| r.to_le_bytes()).eq(name.iter().copied()));
    let avoids = amd && std::arch::is_x86_feature_detected!("avx2");
    KNOWN | if std::arch::is_x86_feature_detected!("avx512f") { AVX512 } else { 0 } | if avoids { AVOID_STRINGS } else { 0 }
}

/// Copies with stores that bypass the caches, 256 bytes per step, then fences. Returns the number of bytes copied.
///
/// # Safety
/// As for [`copy_ordered`]; the CPU must have AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn stream_512(dst: *mut u8, src: *const u8, len: usize) -> usize {
    use core::arch::x86_64::{__m512i, _mm_sfence, _mm512_loadu_si512, _mm512_stream_si512};
    let mut done = 0;
    while len - done >= 256 {
        for k in [0, 64, 128, 192] {
            // SAFETY: done + k + 64 <= len, inside both ranges, which the caller promises to hold `len` bytes; the
            // caller has aligned dst to 64.
            unsafe { _mm512_stream_si512(dst.add(done + k).cast::<__m512i>(), _mm512_loadu_si512(src.add(done + k).cast())) };
        }
        done += 256;
    }
    _mm_sfence();
    done
}

/// Like [`stream_512`], with SSE2 and 64 bytes per step, for CPUs without AVX-512.
///
/// # Safety
/// As for [`copy_ordered`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream_128(dst: *mut u8, src: *const u8, len: usize) -> usize {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    let mut done = 0;
    while len - done >= 64 {
        for k in [0, 16, 32, 48] {
            // SAFETY: done + k + 16 <= len, inside both ranges, which the caller promises to hold `len` bytes; the
            // caller has aligned dst to 64; SSE2 is part of x86-64.
            unsafe { _mm_stream_si128(dst.add(done + k).cast::<__m128i>(), _mm_loadu_si128(src.add(done + k).cast())) };
        }
        done += 64;
    }
    // SAFETY: sfence has no preconditions.
    unsafe { _mm_sfence() };
    done
}

/// Copies `len` bytes with stores that bypass the caches, if the CPU has such stores and there are at least 512 bytes.
///
/// # Safety
/// As for [`copy_ordered`].
pub unsafe fn copy_streaming(dst: *mut u8, src: *const u8, len: usize) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if len >= 512 {
        let head = dst.align_offset(64);
        // The last eight bytes are left for the end, because they must come after the fence.
        let body = len - head - 8;
        // SAFETY: head < 64 and head + body < len; the caller promises that both ranges hold `len` bytes; cpu() checked
        // for AVX-512.
        unsafe {
            std::ptr::copy_nonoverlapping(src, dst, head);
            let (to, from) = (dst.add(head), src.add(head));
            done = head + if cpu() & AVX512 != 0 { stream_512(to, from, body) } else { stream_128(to, from, body) };
        }
    }
    // SAFETY: this is the rest of the same ranges.
    unsafe { copy_ordered(dst.add(done), src.add(done), len - done) };
}

/// Copies `len` bytes. The last eight become visible last.
///
/// # Safety
/// `src..src+len` is readable, `dst..dst+len` is writable, and they do not overlap. Another process may change either
/// range meanwhile; the copied bytes are then unspecified, and no caller relies on them.
#[inline(always)]
pub unsafe fn copy_ordered(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: every access stays inside the ranges that the caller promised. Volatile, because a peer may look at any
    // moment; unaligned, because the user's buffers may be.
    unsafe {
        if len >= 8 {
            if len > 8 {
                copy_any(dst, src, len - 8);
                fence(Ordering::Release);
            }
            let word = src.add(len - 8).cast::<u64>().read_unaligned();
            let to = dst.add(len - 8).cast::<u64>();
            if to.is_aligned() { to.write_volatile(word) } else { to.write_unaligned(word) }
        } else {
            bytes(dst, src, len);
        }
    }
}

/// Length from which [`vectors`] is faster than the C library's copy.
const VECTORS: usize = 512;

/// Copies 128 bytes per step, all of which are read before any is written.
///
/// # Safety
/// As for [`copy_ordered`]. In addition the CPU must have AVX2, and `len` must be at least 64.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn vectors(dst: *mut u8, src: *const u8, len: usize) {
    use core::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_store_si256, _mm256_storeu_si256};
    // SAFETY: every `at` below is at most len - 32, inside both ranges, which the caller promises to hold `len` bytes;
    // aligned stores go to multiples of 32 behind the first aligned address.
    unsafe {
        let load = |at: usize| _mm256_loadu_si256(src.add(at).cast::<__m256i>());
        let store = |at: usize, v| _mm256_store_si256(dst.add(at).cast::<__m256i>(), v);
        _mm256_storeu_si256(dst.cast(), load(0));
        let mut at = 32 - (dst as usize & 31);
        while len - at >= 128 {
            let four = (load(at), load(at + 32), load(at + 64), load(at + 96));
            store(at, four.0);
            store(at + 32, four.1);
            store(at + 64, four.2);
            store(at + 96, four.3);
            at += 128;
        }
        while len - at >= 32 {
            store(at, load(at));
            at += 32;
        }
        _mm256_storeu_si256(dst.add(len - 32).cast(), load(len - 32));
    }
}

/// Copies `len` bytes, which may become visible in any order.
///
/// Above 2 KiB the C library copies with the string instruction. On AMD's CPUs that instruction is 2 to 16 times slower
/// if the target lies 16 or 8 bytes further into its page than the source, as it does behind a header; on Intel's it is
/// as fast as anything. `benches/peers/raw_copy.c` measures both.
///
/// # Safety
/// As for [`copy_ordered`].
#[inline]
pub unsafe fn copy_any(dst: *mut u8, src: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= VECTORS && cpu() & AVOID_STRINGS != 0 {
        // SAFETY: the caller promises that both ranges hold `len` bytes; cpu() checked for AVX2.
        return unsafe { vectors(dst, src, len) };
    }
    // SAFETY: the caller promises that both ranges hold `len` bytes.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}

/// Largest length for [`copy_short`].
pub const SHORT: usize = 64;

/// Like [`copy_ordered`], for up to [`SHORT`] bytes, and without a call.
///
/// # Safety
/// As for [`copy_ordered`], and `len` is at most [`SHORT`].
#[inline(always)]
pub unsafe fn copy_short(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: every access stays inside the ranges that the caller promised: `body` bytes, then the last eight.
    unsafe {
        let body = len.wrapping_sub(8);
        if len == 8 {
            // The most frequent length is one store.
        } else if len > 8 {
            let run = |at: usize, n: usize| std::ptr::copy_nonoverlapping(src.add(at), dst.add(at), n);
            if body >= 16 {
                // 16-byte runs from the front, and one that ends where the body ends.
                run(0, 16);
                if body > 32 {
                    run(16, 16);
                    run(body - 32, 16);
                }
                run(body - 16, 16);
            } else if body >= 8 {
                run(0, 8);
                run(body - 8, 8);
            } else {
                bytes(dst, src, body);
            }
            fence(Ordering::Release);
        } else {
            return bytes(dst, src, len);
        }
        let word = src.add(body).cast::<u64>().read_unaligned();
        let to = dst.add(body).cast::<u64>();
        if to.is_aligned() { to.write_volatile(word) } else { to.write_unaligned(word) }
    }
}

/// Copies byte by byte.
///
/// # Safety
/// As for [`copy_ordered`].
#[inline(always)]
unsafe fn bytes(dst: *mut u8, src: *const u8, len: usize) {
    for i in 0..len {
        // SAFETY: inside both ranges. Volatile, because a peer may look at any moment.
        unsafe { dst.add(i).write_volatile(src.add(i).read_volatile()) };
    }
}

/// Copies `len` bytes: like [`copy_streaming`], past the caches, if there are `streaming_from` bytes or more, else like
/// [`copy_ordered`].
///
/// # Safety
/// As for [`copy_ordered`].
#[inline(always)]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize, streaming_from: usize) {
    // SAFETY: the caller promises that both ranges hold `len` bytes.
    unsafe { if len >= streaming_from { copy_streaming(dst, src, len) } else { copy_ordered(dst, src, len) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_short_length_copies_exactly() {
        let src: Vec<u8> = (0..128u8).map(|i| i.wrapping_mul(7).wrapping_add(3)).collect();
        for len in 0..=SHORT {
            for shift in 0..9 {
                let mut dst = vec![0xEEu8; 160];
                // SAFETY: shift + len < 128, both inside their vectors.
                unsafe { copy_short(dst.as_mut_ptr().add(40 + shift), src.as_ptr().add(shift), len) };
                assert_eq!(&dst[40 + shift..40 + shift + len], &src[shift..shift + len]);
                assert!(dst[..40 + shift].iter().chain(&dst[40 + shift + len..]).all(|b| *b == 0xEE), "len {len} shift {shift}");
            }
        }
    }

    #[test]
    fn every_length_and_alignment_copies_exactly() {
        let src: Vec<u8> = (0..4096u32).map(|i| (i * 7 + 3) as u8).collect();
        for way in [copy_ordered as unsafe fn(*mut u8, *const u8, usize), copy_streaming, copy_any] {
            for len in (0..600).chain([1023, 1024, 1025, 2047, 2048, 2049, 3900]) {
                for shift in [0usize, 1, 7, 63] {
                    let mut dst = vec![0xEEu8; 4096];
                    // SAFETY: shift + len < 4096, both inside their vectors.
                    unsafe { way(dst.as_mut_ptr().add(64 + shift), src.as_ptr().add(shift), len) };
                    assert_eq!(&dst[64 + shift..64 + shift + len], &src[shift..shift + len]);
                    assert!(dst[..64 + shift].iter().chain(&dst[64 + shift + len..]).all(|b| *b == 0xEE), "len {len} shift {shift}");
                }
            }
        }
    }
}
