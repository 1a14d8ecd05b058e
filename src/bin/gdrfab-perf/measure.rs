// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loops that are timed: one operation after the other, and a window of them.

use crate::io::{Link, Spin};
use crate::stats::Histogram;
use gdrfab::error::Result;
use gdrfab::sys::time::ticks;

/// Slices of a window are kept in parts of a tick per operation, which may take less than one.
pub const PARTS: u64 = 16;

/// When a loop ends: after so many operations, or at a time, whichever comes first.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    count: u64,
    /// In ticks.
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

    /// One operation at least, so that there is a result.
    #[inline]
    pub fn goes_on(self, done: u64, now: u64) -> bool {
        done < self.count && (now < self.end || done == 0)
    }

    fn left(self, done: u64) -> u64 {
        self.count - done
    }

    fn share(self, done: u64, now: u64) -> f64 {
        let time = now.saturating_sub(self.start) as f64 / (self.end - self.start) as f64;
        (done as f64 / self.count as f64).max(time)
    }
}

/// What a timed loop gets besides its operation: something to do now and then, outside the samples.
pub struct Pulse<F> {
    pub every: u64,
    pub beat: F,
}

/// Times `op`, `batch` of them to a sample. Gives how many there were.
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

/// Shape of a window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub depth: u64,
    /// Every so many operations one asks for a completion.
    pub signal: u64,
    /// Operations and ticks that a slice has at least.
    pub slice: u64,
    pub slice_ticks: u64,
}

impl Window {
    pub fn new(depth: usize, signal: usize, slice: u64, slice_ticks: u64) -> Window {
        Window { depth: depth as u64, signal: signal as u64, slice: slice.max(1), slice_ticks }
    }
}

/// How much went through a window in what time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    pub ops: u64,
    pub ticks: u64,
    /// Ticks per operation, in [`PARTS`], of the fastest stretch from a post to a completion.
    pub best: u64,
}

/// The fastest stretch. It counts from the post of its first operation, so completions that come in a
/// bunch, because this side slept over them, do not look fast.
struct Peak {
    from: u64,
    first: u64,
    need: u64,
    best: u64,
}

impl Peak {
    fn start(&mut self, now: u64, posted: u64, completed: u64, least: u64) {
        // What is in flight at the start counts against the stretch: make that little.
        (self.from, self.first, self.need) = (now, posted, least.max(8 * (posted - completed)));
    }

    fn see(&mut self, now: u64, posted: u64, completed: u64, shape: &Window) {
        if completed.saturating_sub(self.first) >= self.need && now - self.from >= shape.slice_ticks {
            self.best = self.best.min((now - self.from) * PARTS / (completed - self.first));
            self.start(now, posted, completed, shape.slice);
        }
    }
}

/// Keeps a window of operations in flight. A sample is the time per operation of one slice.
pub fn window(
    link: &mut Link,
    until: Until,
    shape: Window,
    samples: &mut Histogram,
    post: impl Fn(&Link, bool) -> Result<bool>,
    pulse: &mut Pulse<impl FnMut(&mut Link, f64) -> Result<()>>,
) -> Result<Flow> {
    let base = link.done;
    let (mut posted, mut asked, mut asked_at) = (0u64, 0u64, 0u64);
    let begin = ticks();
    let (mut mark, mut marked) = (begin, 0u64);
    let mut due = begin + pulse.every;
    let mut spin = Spin::default();
    let mut peak = Peak { from: begin, first: 0, need: shape.slice, best: u64::MAX };
    loop {
        // Operations complete in order, so the last completion speaks for all before it.
        let seen = link.done - base;
        let completed = if seen == asked { asked_at } else { seen * shape.signal };
        if completed - marked >= shape.slice {
            let now = ticks();
            peak.see(now, posted, completed, &shape);
            if now - mark >= shape.slice_ticks {
                samples.record((now - mark) * PARTS / (completed - marked));
                (mark, marked) = (now, completed);
                if now > due {
                    (pulse.beat)(link, until.share(posted, now))?;
                    mark = ticks();
                    due = mark + pulse.every;
                    peak.start(mark, posted, completed, shape.slice);
                }
            }
        }
        let more = until.goes_on(posted, mark);
        if !more && asked_at == posted && completed == posted {
            break;
        }
        let mut fruitless = true;
        // Beyond the end one more is posted if the last did not ask for a completion.
        if (more || asked_at != posted) && posted - completed < shape.depth {
            let signal = !more || (posted + 1) % shape.signal == 0 || until.left(posted) == 1;
            if post(link, signal)? {
                posted += 1;
                if signal {
                    (asked, asked_at) = (asked + 1, posted);
                }
                if !signal {
                    continue;
                }
                (spin, fruitless) = (Spin::default(), false);
            }
        }
        let before = link.done;
        link.poll()?;
        if fruitless && link.done == before {
            link.idle(&mut spin, "completion")?;
        }
    }
    let total = ticks() - begin;
    let mean = total * PARTS / posted;
    if samples.count() == 0 {
        samples.record(mean);
    }
    Ok(Flow { ops: posted, ticks: total, best: peak.best.min(mean) })
}
