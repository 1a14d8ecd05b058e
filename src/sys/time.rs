// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Monotonic time, and a coarse tick cheap enough for a poll loop.

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// A counter that advances steadily, at an unspecified rate of about a GHz. Use it to ask whether some tens of
/// microseconds have passed, never for deadlines.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: rdtsc has no preconditions; every x86-64 CPU has it.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        now_ns()
    }
}

/// The absolute deadline of a relative timeout. 0 means "none", both as a timeout and as a deadline; so does a timeout
/// of `u64::MAX`.
pub fn deadline(timeout_ns: u64) -> u64 {
    if timeout_ns == 0 || timeout_ns == u64::MAX { 0 } else { now_ns().saturating_add(timeout_ns) }
}

/// The time left until an absolute deadline: at least 1, and `u64::MAX` without a deadline.
pub fn left(deadline: u64) -> u64 {
    if deadline == 0 { u64::MAX } else { deadline.saturating_sub(now_ns()).max(1) }
}
