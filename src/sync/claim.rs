// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shared claims on the chunks of one operation.
//!
//! The initiator claims chunks from the front and the helper from the back, each by compare-and-swap on one word. Thus
//! each chunk is copied by exactly one of them, and either can stop the other from starting a new one. A rendezvous
//! message is the case of one chunk that only the receiver copies: the sender cancels by claiming the chunk itself. The
//! claim word contains the slot's generation, so a message about an operation that has ended cannot claim a chunk of
//! the next.

use super::primitive::{AtomicU64, Ordering};

/// Largest number of chunks of one operation.
pub const MAX_CHUNKS: u32 = (1 << 24) - 1;

/// Number of attempts at a compare-and-swap. A well-behaved peer makes the swap fail at most once per chunk.
const TRIES: u32 = 1 << 16;

/// The claims and the helper's report of one operation: a slot in the initiator's segment, one cache line long.
#[repr(C, align(64))]
pub struct ClaimSlot {
    /// generation:16 | front:24 | back:24. Chunks [front, back) are unclaimed.
    claim: AtomicU64,
    /// generation:16 | status:16 | chunks finished by the helper:32.
    done: AtomicU64,
    pad: [u64; 6],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<ClaimSlot>() == 64);

#[cfg(loom)]
impl ClaimSlot {
    pub fn model() -> ClaimSlot {
        ClaimSlot { claim: AtomicU64::new(0), done: AtomicU64::new(0), pad: [0; 6] }
    }
}

fn pack(generation: u16, front: u32, back: u32) -> u64 {
    u64::from(generation) << 48 | u64::from(front) << 24 | u64::from(back)
}

fn unpack(word: u64) -> (u16, u32, u32) {
    ((word >> 48) as u16, (word >> 24) as u32 & MAX_CHUNKS, word as u32 & MAX_CHUNKS)
}

/// The helper's report on its chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub status: u16,
    pub chunks: u32,
}

impl ClaimSlot {
    /// Initiator: begins an operation of `chunks` chunks.
    pub fn open(&self, generation: u16, chunks: u32) {
        self.done.store(u64::from(generation) << 48, Ordering::Relaxed);
        self.claim.store(pack(generation, 0, chunks), Ordering::Release);
    }

    /// Initiator: claims chunk `front`, which must be the next. `Ok(false)`: the helper has claimed the rest. `Err`:
    /// the peer wrote an impossible value.
    pub fn claim_front(&self, generation: u16, front: u32, chunks: u32) -> Result<bool, super::header::RingError> {
        let mut now = self.claim.load(Ordering::Relaxed);
        for _ in 0..TRIES {
            let (g, f, b) = unpack(now);
            if g != generation || f != front || b > chunks || b < f {
                break;
            }
            if f == b {
                return Ok(false);
            }
            match self.claim.compare_exchange_weak(now, pack(g, f + 1, b), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(true),
                Err(seen) => now = seen,
            }
        }
        Err(super::header::Broken)
    }

    /// Initiator: prevents all further claims. Returns the first chunk that the helper claimed.
    pub fn stop(&self, generation: u16, front: u32, chunks: u32) -> Result<u32, super::header::RingError> {
        let mut now = self.claim.load(Ordering::Relaxed);
        for _ in 0..TRIES {
            let (g, f, b) = unpack(now);
            if g != generation || f != front || b > chunks || b < f {
                break;
            }
            match self.claim.compare_exchange_weak(now, pack(g, b, b), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(b),
                Err(seen) => now = seen,
            }
        }
        Err(super::header::Broken)
    }

    /// Helper: claims the last unclaimed chunk, if the operation still runs.
    pub fn claim_back(&self, generation: u16) -> Option<u32> {
        let mut now = self.claim.load(Ordering::Relaxed);
        for _ in 0..TRIES {
            let (g, f, b) = unpack(now);
            if g != generation || f >= b {
                break;
            }
            match self.claim.compare_exchange_weak(now, pack(g, f, b - 1), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(b - 1),
                Err(seen) => now = seen,
            }
        }
        None
    }

    /// Helper: reports that `chunks` of its chunks are done, with `status` (0 for success).
    pub fn report(&self, generation: u16, status: u16, chunks: u32) {
        let word = u64::from(generation) << 48 | u64::from(status) << 32 | u64::from(chunks);
        // Release: the copied bytes come before the report. The exchange fails if the operation has ended meanwhile,
        // because the report must not reach its successor.
        let now = self.done.load(Ordering::Relaxed);
        if (now >> 48) as u16 == generation {
            let _ = self.done.compare_exchange(now, word, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Initiator: the helper's last report.
    #[inline]
    pub fn reported(&self, generation: u16) -> Report {
        let word = self.done.load(Ordering::Acquire);
        if (word >> 48) as u16 != generation {
            return Report { status: 0, chunks: 0 };
        }
        Report { status: (word >> 32) as u16, chunks: word as u32 }
    }
}
