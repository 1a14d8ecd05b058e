// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The window: keeps operations outstanding, over one endpoint or several, in lists if asked for, and no faster than allowed.

use crate::io::{Link, Spin};
use crate::measure::{Pulse, Until};
use crate::post::Turn;
use crate::stats::Histogram;
use gdrfab::error::Result;
use gdrfab::sys::time::ticks;

/// Slices are kept in parts of a tick for each operation, since an operation may take less than a tick.
pub const PARTS: u64 = 16;

/// The operations of a burst, and the ticks from one burst to the next.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub burst: u64,
    pub gap: u64,
}

/// The shape of a window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The depth of each endpoint.
    pub depth: u64,
    /// An endpoint's operation asks for a completion every so many operations, at the end of a list.
    pub signal: u64,
    pub list: u64,
    pub pace: Option<Pace>,
    /// The smallest number of operations and of ticks of a slice.
    pub slice: u64,
    pub slice_ticks: u64,
}

/// The number of operations that went through a window, and the time that they took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    pub ops: u64,
    pub ticks: u64,
    /// The ticks for each operation, in [`PARTS`], of the fastest stretch from a post to a completion.
    pub best: u64,
}

/// Finds the fastest stretch. A stretch begins with the post of its first operation, so completions that come in a bunch
/// because this side slept do not look fast.
struct Peak {
    from: u64,
    first: u64,
    need: u64,
    best: u64,
}

impl Peak {
    fn start(&mut self, now: u64, posted: u64, completed: u64, least: u64) {
        // Operations that are outstanding at its start count against a stretch, so it is made long in comparison.
        (self.from, self.first, self.need) = (now, posted, least.max(8 * (posted - completed)));
    }

    fn see(&mut self, now: u64, posted: u64, completed: u64, shape: &Window) {
        if completed.saturating_sub(self.first) >= self.need && now - self.from >= shape.slice_ticks {
            self.best = self.best.min((now - self.from) * PARTS / (completed - self.first));
            self.start(now, posted, completed, shape.slice);
        }
    }
}

/// The part of a window that goes over one endpoint.
#[derive(Clone, Copy, Default)]
struct Lane {
    /// The completions before the window.
    base: u64,
    posted: u64,
    completed: u64,
    /// The number of completions that were asked for, how many of these in the regular places, and the last.
    asked: u64,
    regular: u64,
    asked_at: u64,
    /// The number of operations up to the next of these places, that operation included.
    to_regular: u64,
}

impl Lane {
    /// Updates the number of complete operations. Operations complete in order, so the last completion covers all before it.
    #[inline]
    fn see(&mut self, ends: u64, signal: u64) {
        let seen = ends - self.base;
        self.completed = if seen == self.asked { self.asked_at } else { seen.min(self.regular) * signal };
    }

    #[inline]
    fn has_room(&self, ops: u64, depth: u64) -> bool {
        self.posted - self.completed + ops <= depth
    }

    /// The number of operations that can follow each other up to the next regular completion.
    #[inline]
    fn row(&self, depth: u64) -> u64 {
        self.to_regular.min(depth - (self.posted - self.completed))
    }

    #[inline]
    fn post(&mut self, signal: bool, every: u64) {
        self.posted += 1;
        self.to_regular -= 1;
        if signal {
            self.asked += 1;
            self.asked_at = self.posted;
        }
        if self.to_regular == 0 {
            self.regular += 1;
            self.to_regular = every;
        }
    }
}

/// The next lane in turn that fits.
#[inline]
fn next(lanes: &[Lane], last: usize, fits: impl Fn(&Lane) -> bool) -> Option<usize> {
    let n = lanes.len();
    if n == 1 {
        return fits(&lanes[0]).then_some(0);
    }
    (1..=n).map(|i| if last + i < n { last + i } else { last + i - n }).find(|i| fits(&lanes[*i]))
}

/// Keeps a window of operations outstanding until the time is over or `stop` says so. A sample is the time for each operation
/// of one slice.
pub fn window(
    link: &mut Link,
    until: Until,
    shape: Window,
    samples: &mut Histogram,
    post: impl Fn(&Link, Turn) -> Result<bool>,
    pulse: &mut Pulse<impl FnMut(&mut Link, f64) -> Result<()>>,
    stop: impl Fn(&Link) -> bool,
) -> Result<Flow> {
    let mut lanes: Vec<Lane> = link.ends.iter().map(|base| Lane { base: *base, to_regular: shape.signal, ..Lane::default() }).collect();
    let tail = lanes.len() as u64 * shape.list;
    let (mut posted, mut completed, mut seen) = (0u64, 0u64, link.done);
    // The lane whose turn it is, the rest of its list, and whether the end of that list asks for a completion in any case.
    let (mut at, mut rest, mut last_asks) = (lanes.len() - 1, 0u64, false);
    let plain = lanes.len() == 1 && shape.list == 1;
    let begin = ticks();
    let (mut mark, mut marked, mut now) = (begin, 0u64, begin);
    let mut due = begin + pulse.every;
    let mut allowed = if shape.pace.is_some() { 0 } else { u64::MAX };
    let mut spin = Spin::default();
    let mut peak = Peak { from: begin, first: 0, need: shape.slice, best: u64::MAX };
    loop {
        if link.done != seen {
            seen = link.done;
            lanes.iter_mut().zip(&link.ends).for_each(|(lane, ends)| lane.see(*ends, shape.signal));
            completed = lanes.iter().map(|lane| lane.completed).sum();
            if completed - marked >= shape.slice {
                now = ticks();
                peak.see(now, posted, completed, &shape);
                if now - mark >= shape.slice_ticks {
                    samples.record((now - mark) * PARTS / (completed - marked));
                    (mark, marked) = (now, completed);
                    if now > due {
                        (pulse.beat)(link, until.share(posted, now))?;
                        mark = ticks();
                        now = mark;
                        due = mark + pulse.every;
                        peak.start(mark, posted, completed, shape.slice);
                    }
                }
            }
        }
        let more = until.goes_on(posted, now) && !stop(link);
        if rest == 0 && more {
            let left = until.left(posted);
            let list = shape.list.min(left);
            if posted + list > allowed
                && let Some(pace) = shape.pace
            {
                now = ticks();
                allowed = ((now - begin) / pace.gap + 1).saturating_mul(pace.burst);
            }
            if posted + list <= allowed
                && let Some(lane) = next(&lanes, at, |lane| lane.has_room(list, shape.depth))
            {
                // With one endpoint and no lists, no other lane's turn is delayed, so operations are posted in one go up to
                // the next completion.
                let go = if plain { lanes[lane].row(shape.depth).min(left).min(allowed - posted) } else { list };
                (at, rest, last_asks) = (lane, go, left - go < tail);
            }
        } else if rest == 0 {
            if completed == posted {
                break;
            }
            // If the last operation did not ask for a completion, one more is posted that does.
            let open = |lane: &Lane| lane.asked_at != lane.posted && lane.has_room(1, shape.depth);
            if let Some(lane) = next(&lanes, at, open) {
                (at, rest, last_asks) = (lane, 1, true);
            }
        }
        let mut fruitless = true;
        if rest > 0 {
            let lane = &mut lanes[at];
            let first = rest;
            let mut signal = false;
            while rest > 0 {
                signal = lane.to_regular == 1 || rest == 1 && last_asks;
                if !post(link, Turn { lane: at, signal, more: rest > 1 && !plain })? {
                    break;
                }
                lane.post(signal, shape.signal);
                rest -= 1;
            }
            posted += first - rest;
            if rest == 0 && !signal {
                continue;
            }
            if rest < first {
                (spin, fruitless) = (Spin::default(), false);
            }
        }
        let before = link.done;
        link.poll()?;
        if !fruitless || link.done != before {
            continue;
        }
        if completed < posted || rest > 0 {
            link.idle(&mut spin, "completion")?;
        } else {
            // Nothing is outstanding, and nothing may be posted yet.
            spin = Spin::default();
            link.give_way();
        }
        if shape.pace.is_some() {
            now = ticks();
            if now > due {
                (pulse.beat)(link, until.share(posted, now))?;
                due = now + pulse.every;
            }
        }
    }
    let total = ticks() - begin;
    let mean = total * PARTS / posted.max(1);
    if samples.count() == 0 {
        samples.record(mean);
    }
    Ok(Flow { ops: posted, ticks: total, best: peak.best.min(mean) })
}
