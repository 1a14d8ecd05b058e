// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Monotonic time, a coarse tick cheap enough for a poll loop, and a timer to sleep on.

use crate::error::{Error, Result};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// A counter that advances steadily at an unspecified rate of the order of a GHz; for "has some
/// tens of microseconds passed", never for deadlines.
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

/// The absolute deadline for a relative timeout; 0 stands for "none" in both.
pub fn deadline(timeout_ns: u64) -> u64 {
    if timeout_ns == 0 { 0 } else { now_ns().saturating_add(timeout_ns) }
}

/// A descriptor that becomes readable at a time, and stays so until it is set again.
pub struct Timer(OwnedFd);

impl Timer {
    pub fn new() -> Result<Timer> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK);
        fd.map(Timer).map_err(|e| Error::os("creating a timer", e))
    }

    /// Readable once `now_ns` has reached `at`; 0: never.
    pub fn set(&self, at: u64) -> Result<()> {
        let part = |n: u64| rustix::time::Timespec { tv_sec: (n / 1_000_000_000) as _, tv_nsec: (n % 1_000_000_000) as _ };
        let spec = Itimerspec { it_interval: part(0), it_value: part(at) };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &spec).map(|_| ()).map_err(|e| Error::os("setting a timer", e))
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
