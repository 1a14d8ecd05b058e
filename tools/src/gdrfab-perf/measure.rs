// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop that times one operation after the other, and the parts that it shares with the loop of windows.

use crate::stats::Histogram;
use gdrfab::error::Result;
use gdrfab::sys::time::ticks;

/// The end of a loop: after a number of operations, or at a time, whichever comes first.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    count: u64,
    /// The time of the end, in ticks.
    start: u64,
    end: u64,
}

impl Until {
    pub fn count(count: u64) -> Until {
        Until { count, start: 0, end: u64::MAX }
    }

    pub fn within(count: u64, span: u64) -> Until {
        let start = ticks();
        Until { count, start, end: start.saturating_add(span) }
    }

    pub fn time(span: u64) -> Until {
        Until::within(u64::MAX, span)
    }

    /// True if the loop is over; it runs at least one operation, so that there is a result.
    #[inline]
    pub fn goes_on(self, done: u64, now: u64) -> bool {
        done < self.count && (now < self.end || done == 0)
    }

    #[inline]
    pub fn left(self, done: u64) -> u64 {
        self.count - done
    }

    pub fn share(self, done: u64, now: u64) -> f64 {
        let time = now.saturating_sub(self.start) as f64 / (self.end - self.start) as f64;
        (done as f64 / self.count as f64).max(time)
    }
}

/// Work that a timed loop does now and then, outside the samples.
pub struct Pulse<F> {
    pub every: u64,
    pub beat: F,
}

/// No such work.
pub fn undisturbed<C>() -> Pulse<impl FnMut(&mut C, f64) -> Result<()>> {
    Pulse { every: u64::MAX >> 1, beat: |_: &mut C, _| Ok(()) }
}

/// Times `op` in samples of `batch` operations, and returns the number of operations.
pub fn latency<C>(
    context: &mut C,
    until: Until,
    batch: u64,
    samples: &mut Histogram,
    mut op: impl FnMut(&mut C) -> Result<()>,
    pulse: &mut Pulse<impl FnMut(&mut C, f64) -> Result<()>>,
) -> Result<u64> {
    let mut done = 0;
    let mut then = ticks();
    let mut due = then + pulse.every;
    while until.goes_on(done, then) {
        let n = batch.min(until.left(done));
        for _ in 0..n {
            op(context)?;
        }
        done += n;
        let now = ticks();
        if n == batch || samples.count() == 0 {
            samples.record((now - then) * batch / n);
        }
        then = now;
        if now > due {
            (pulse.beat)(context, until.share(done, now))?;
            then = ticks();
            due = then + pulse.every;
        }
    }
    Ok(done)
}
