// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CPU time of this process in relation to the time that passed.

use gdrfab::sys::time::now_ns;
use rustix::time::{ClockId, clock_gettime};

/// The CPU time since a moment.
#[derive(Clone, Copy)]
pub struct CpuUse {
    used: u64,
    then: u64,
}

fn used() -> u64 {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

impl CpuUse {
    pub fn start() -> CpuUse {
        CpuUse { used: used(), then: now_ns() }
    }

    /// Percent of one CPU; more than 100 if several threads worked.
    pub fn percent(&self) -> f64 {
        let passed = now_ns().saturating_sub(self.then).max(1);
        used().saturating_sub(self.used) as f64 * 100.0 / passed as f64
    }
}

/// The number of this host's CPUs that are online.
pub fn count() -> usize {
    // SAFETY: no arguments but a name.
    let n = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(n).unwrap_or(1).max(1)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn spinning_uses_a_cpu_and_sleeping_does_not() {
        let spin = CpuUse::start();
        let until = now_ns() + 5_000_000;
        while now_ns() < until {}
        assert!(spin.percent() > 1.0);
        assert!(count() > 0);
    }
}
