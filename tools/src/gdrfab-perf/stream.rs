// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A window of the test's operations, run by the client, and for tests of both directions by the server too.

use crate::blocks::{Blocks, post as post_list};
use crate::io::Link;
use crate::measure::{Pulse, Until};
use crate::post::Turn;
use crate::report::Rate;
use crate::stats::{Clock, Histogram};
use crate::tests::Test;
use crate::window::{Flow, PARTS, Pace, Window, window};
use gdrfab::error::Result;
use gdrfab::prov::op::Dir;

/// The microseconds of a slice.
const SLICE_US: f64 = 20.0;

/// The parameters of a window besides its test and size.
#[derive(Clone, Copy)]
pub struct Stream {
    /// The blocks, for tests of lists.
    pub blocks: Blocks,
    pub depth: usize,
    pub list: usize,
    /// The number of operations for one completion.
    pub signal: usize,
    /// The nanoseconds from one burst to the next, and the operations of a burst; 0: no limit.
    pub gap_ns: u64,
    pub burst: u64,
}

impl Stream {
    fn shape(&self, clock: Clock) -> Window {
        let gap = clock.ticks_of_us(self.gap_ns as f64 / 1e3).max(1);
        Window {
            depth: self.depth as u64,
            signal: self.signal as u64,
            list: self.list as u64,
            pace: (self.gap_ns > 0).then_some(Pace { burst: self.burst, gap }),
            slice: self.depth as u64,
            slice_ticks: 0,
        }
    }

    /// Runs a window once. `before` is the result of an earlier run, from which the length of the slices follows.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &self,
        link: &mut Link,
        (test, size): (Test, usize),
        before: Option<Flow>,
        until: Until,
        clock: Clock,
        pulse: &mut Pulse<impl FnMut(&mut Link, f64) -> Result<()>>,
        stop: impl Fn(&Link) -> bool,
    ) -> Result<Run> {
        let op = link.op(if matches!(test, Test::ReadBw | Test::ListRead) { Dir::Read } else { Dir::Write }, size);
        let lists = if test.is_list() { link.lists(&op, &self.blocks)? } else { Vec::new() };
        let atomic = test.action().map(|action| link.atomic(action)).transpose()?;
        let post = |l: &Link, turn: Turn| match (lists.get(turn.lane), &atomic) {
            (Some(list), _) => post_list(&op, list, turn.signal, turn.lane),
            (None, Some(atomic)) => l.atomic_by(atomic, turn),
            (None, None) if test == Test::SendBw => l.send_by(size, turn),
            (None, None) => l.rma_by(&op, turn),
        };
        let mut shape = self.shape(clock);
        if let Some(flow) = before {
            shape.slice = (clock.ticks_of_us(SLICE_US) * flow.ops / flow.ticks.max(1)).max(1);
            shape.slice_ticks = clock.ticks_of_us(SLICE_US / 2.0);
        }
        let mut samples = Histogram::new();
        let flow = window(link, until, shape, &mut samples, post, pulse, stop)?;
        if test.is_message() {
            link.sent += flow.ops;
        }
        Ok(Run { flow, slice: shape.slice, rate: rate(size, flow, &samples, clock) })
    }
}

pub struct Run {
    pub flow: Flow,
    /// The number of operations of a slice.
    pub slice: u64,
    pub rate: Rate,
}

fn rate(size: usize, flow: Flow, samples: &Histogram, clock: Clock) -> Rate {
    if flow.ops == 0 {
        return Rate::default();
    }
    let of = |ticks_per_op: f64| if ticks_per_op > 0.0 { size as f64 / clock.us(ticks_per_op) } else { 0.0 };
    let part = |t: f64| of(t / PARTS as f64);
    let each = flow.ticks as f64 / flow.ops as f64;
    Rate {
        peak: part(flow.best as f64),
        avg: of(each),
        median: part(samples.quantile(0.5)),
        p99: part(samples.quantile(0.99)),
        mops: 1.0 / clock.us(each),
    }
}
