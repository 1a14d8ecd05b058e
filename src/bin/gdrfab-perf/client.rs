// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client: leads the server through the sizes, times the operations, and judges what arrived.

use crate::args::Options;
use crate::io::{Link, Op};
use crate::measure::{Flow, PARTS, Pulse, Until, Window, latency, window};
use crate::memory::{Mismatch, POISON};
use crate::report::{Bar, Figures, Latency, Rate, Report, Row};
use crate::server::{GUARD, check_range};
use crate::stats::{Clock, Histogram};
use crate::tests::Test;
use crate::wire::{Kinds, seed, unpack_mismatch, words};
use gdrfab::config;
use gdrfab::error::{Error, Result, errno};
use gdrfab::fabric::Stats;
use gdrfab::mr::Paths;
use gdrfab::prov::op::Dir;
use gdrfab::sys::time::ticks;

/// Rounds of a ping-pong in which every arrival is checked.
const CHECKED_ROUNDS: u64 = 16;
/// Microseconds between two signs of life on the terminal.
const BEAT_US: f64 = 100_000.0;
/// A sample of reads covers at least so much, because looking at the clock takes about 10 ns.
const SAMPLE_US: f64 = 1.0;
const SLICE_US: f64 = 20.0;
/// What a size takes at most if the command line does not say how much of it is wanted.
const RUN_S: f64 = 2.0;
const WARM_UP_S: f64 = 0.2;

pub struct Client<'a> {
    pub link: &'a mut Link,
    pub options: &'a Options,
    pub clock: Clock,
    pub report: &'a mut Report,
}

/// What a measured phase came to, before it has a path.
struct Outcome {
    iterations: u64,
    batch: u64,
    figures: Figures,
}

impl Client<'_> {
    pub fn run(&mut self) -> Result<()> {
        for i in 0..self.options.sizes.len() {
            let row = self.measure(self.options.sizes[i])?;
            self.report.row(row)?;
        }
        self.link.post_last(Kinds::Bye, &[])
    }

    fn until(&self, size: usize) -> Until {
        let span = |seconds: f64| self.clock.ticks_of_us(seconds * 1e6);
        match (self.options.seconds, self.options.iterations) {
            (Some(s), _) => Until::time(span(s)),
            (_, Some(n)) => Until::count(n),
            _ => Until::within(self.options.test.default_iterations(size), span(RUN_S)),
        }
    }

    fn warm_up(&self, size: usize) -> Until {
        match self.options.warm_up {
            Some(n) => Until::count(n),
            None => {
                let n = self.options.iterations.unwrap_or_else(|| self.options.test.default_iterations(size));
                Until::within((n / 10).clamp(1, 10_000), self.clock.ticks_of_us(WARM_UP_S * 1e6))
            }
        }
    }

    /// Asks the server to get ready; gives its path to our memory.
    fn begin(&mut self, size: usize, checked: bool) -> Result<Paths> {
        let layout = self.link.layout;
        if self.options.verify {
            self.link.memory.fill(layout.source(size), size, seed(size, 0, false));
            self.link.memory.set(layout.target(size), size + GUARD, POISON);
        }
        self.link.memory.set(layout.target(size) + size - 1, 1, 0);
        self.link.post_mail(Kinds::Begin, &words(&[size as u64, u64::from(checked)]))?;
        let [path] = self.link.expect(Kinds::Ready, "server that is ready")?.words();
        Ok(Paths::from_bits_truncate(path))
    }

    fn stop(&mut self) -> Result<(u64, Option<Mismatch>)> {
        self.link.post_mail(Kinds::Stop, &[])?;
        let answer: [u64; 5] = self.link.expect(Kinds::Stopped, "end of the run at the server")?.words();
        Ok((answer[0], unpack_mismatch(&answer[1..])))
    }

    fn measure(&mut self, size: usize) -> Result<Row> {
        let test = self.options.test;
        let back = self.begin(size, false)?;
        self.link.stats();
        let done = match test {
            Test::WriteLat if self.options.one_way() => {
                self.one_by_one(self.link.op(Dir::Write, size).complete(self.link.manners.delivered), size)?
            }
            Test::WriteLat => self.ping_writes(size, back, None)?,
            Test::SendLat => self.ping_messages(size, None)?,
            Test::ReadLat => self.one_by_one(self.link.op(Dir::Read, size), size)?,
            _ => self.windows(size)?,
        };
        let stats = self.link.stats();
        let (arrived, _) = self.stop()?;
        if test.is_message() && arrived < done.iterations {
            return Err(Error::new(errno::EIO, format!("{size} bytes: the server saw {arrived} of at least {} messages", done.iterations)));
        }
        if self.options.verify {
            self.verify(size)?;
        }
        let (path, helped) = self.path(size, back, &stats)?;
        Ok(Row {
            size,
            iterations: done.iterations,
            batch: done.batch,
            figures: done.figures,
            path: Some(path),
            helped,
            verified: self.options.verify,
        })
    }

    /// The path that the bytes took, in words; an error if another was required.
    fn path(&mut self, size: usize, back: Paths, stats: &Stats) -> Result<(String, f64)> {
        let test = self.options.test;
        let (nic, far) = (self.link.manners.nic, self.link.manners.far);
        // Of a device, the path is that of the registration, which had to be the required one.
        let required = if nic { Paths::empty() } else { self.options.path };
        if test.is_message() {
            if nic {
                return Ok((Paths::NIC.words(), 0.0));
            }
            if !far && size <= config::get().eager_max {
                return Ok(("ring".into(), 0.0));
            }
            // Over shared memory the receiver fetches, so its path counts; over a network both memories do.
            let ours = if far || test == Test::SendLat { self.link.path()?.path } else { back };
            for path in [back, ours] {
                check_required(size, required, path)?;
            }
            return Ok((both_ways(back, ours), 0.0));
        }
        let counts = [
            (Paths::DIRECT, stats.ops_direct),
            (Paths::IPC, stats.ops_ipc),
            (Paths::CMA, stats.ops_cma),
            (Paths::STAGED, stats.ops_staged),
            (Paths::NIC, stats.ops_nic),
            (Paths::SOCKET, stats.ops_socket),
        ];
        let taken = counts.into_iter().filter(|(_, n)| *n > 0).fold(Paths::empty(), |all, (p, _)| all | p);
        // Counted when they complete, which the last ones did unheard.
        let taken = if far && taken.is_empty() { self.link.path()?.path } else { taken };
        check_required(size, required, taken)?;
        let bytes = [
            stats.bytes_direct,
            stats.bytes_ipc,
            stats.bytes_cma,
            stats.bytes_staged,
            stats.bytes_nic,
            stats.bytes_socket,
            stats.bytes_helped,
        ];
        let helped = stats.bytes_helped as f64 / bytes.into_iter().sum::<u64>().max(1) as f64;
        let back = if test == Test::WriteLat && !self.options.one_way() { back } else { taken };
        check_required(size, required, back)?;
        Ok((both_ways(taken, back), helped))
    }

    fn ping_writes(&mut self, size: usize, back: Paths, checked: Option<u64>) -> Result<Outcome> {
        let layout = self.link.layout;
        let op = self.link.op(Dir::Write, size);
        let (last_in, last_out) = (layout.target(size) + size - 1, layout.source(size) + size - 1);
        let looks = self.link.looks(size, back);
        let mut round = 0u64;
        let ping = move |l: &mut Link| {
            round += 1;
            if checked.is_some() {
                l.memory.fill(layout.source(size), size, seed(size, round, false));
            }
            l.memory.store(last_out, round as u8);
            l.must("room for a write", |l| l.rma(&op, false))?;
            if !l.await_byte(last_in, round as u8, looks)? {
                return Err(interrupted(l));
            }
            match checked.and_then(|_| l.memory.check(layout.target(size), size - 1, seed(size, round, true))) {
                Some(m) => Err(mismatch(size, "the answer to a write", m)),
                None => Ok(()),
            }
        };
        self.ping(size, checked, ping)
    }

    fn ping_messages(&mut self, size: usize, checked: Option<u64>) -> Result<Outcome> {
        let source = self.link.layout.source(size);
        let mut round = 0u64;
        let ping = move |l: &mut Link| {
            round += 1;
            if checked.is_some() {
                l.memory.fill(source, size, seed(size, round, false));
            }
            let next = l.arrived + 1;
            l.must("room for a message", |l| l.send(size, false))?;
            l.wait("answer to a message", |l| l.arrived >= next || l.has_mail())?;
            if l.arrived < next {
                return Err(interrupted(l));
            }
            match checked.and_then(|_| l.memory.check(l.last, size, seed(size, round, true))) {
                Some(m) => Err(mismatch(size, "the answer to a message", m)),
                None => Ok(()),
            }
        };
        self.ping(size, checked, ping)
    }

    fn ping(&mut self, size: usize, checked: Option<u64>, mut op: impl FnMut(&mut Link) -> Result<()>) -> Result<Outcome> {
        let mut samples = Histogram::new();
        if checked.is_none() {
            warm(self.link, self.warm_up(size), &mut op)?;
        }
        let until = checked.map_or_else(|| self.until(size), Until::count);
        let mut pulse = beat(self.report.bar(), size, self.clock, None);
        let iterations = latency(self.link, until, 1, &mut samples, op, &mut pulse)?;
        Ok(Outcome { iterations, batch: 1, figures: Figures::Latency(Latency::of(&samples, self.clock, 2)) })
    }

    fn one_by_one(&mut self, op: Op, size: usize) -> Result<Outcome> {
        let once = move |l: &mut Link| {
            let next = l.done + 1;
            l.must("room for an operation", |l| l.rma(&op, true))?;
            l.wait("completion", |l| l.done >= next)
        };
        let warm_up = warm(self.link, self.warm_up(size), once)?;
        let batch = batch(self.clock, warm_up);
        let mut samples = Histogram::new();
        let until = self.until(size);
        let mut pulse = beat(self.report.bar(), size, self.clock, Some(self.link.patience));
        let iterations = latency(self.link, until, batch, &mut samples, once, &mut pulse)?;
        Ok(Outcome { iterations, batch, figures: Figures::Latency(Latency::of(&samples, self.clock, batch)) })
    }

    fn windows(&mut self, size: usize) -> Result<Outcome> {
        let (clock, test) = (self.clock, self.options.test);
        let op = self.link.op(if test == Test::ReadBw { Dir::Read } else { Dir::Write }, size);
        let post = |l: &Link, signal: bool| if test == Test::SendBw { l.send(size, signal) } else { l.rma(&op, signal) };
        let mut shape = Window::new(self.options.depth, self.options.completion_every(size), u64::MAX, 0);
        if self.options.warm_up == Some(0) {
            shape.slice = shape.depth;
        } else {
            let until = self.warm_up(size);
            let mut pulse = beat(self.report.bar(), size, clock, Some(self.link.patience));
            let flow = window(self.link, until, shape, &mut Histogram::new(), post, &mut pulse)?;
            shape.slice = (clock.ticks_of_us(SLICE_US) * flow.ops / flow.ticks.max(1)).max(1);
        }
        shape.slice_ticks = clock.ticks_of_us(SLICE_US / 2.0);
        let until = self.until(size);
        let mut samples = Histogram::new();
        let mut pulse = beat(self.report.bar(), size, clock, Some(self.link.patience));
        let flow = window(self.link, until, shape, &mut samples, post, &mut pulse)?;
        let rate = rate(size, flow, &samples, clock);
        Ok(Outcome { iterations: flow.ops, batch: shape.slice, figures: Figures::Rate(rate) })
    }

    fn verify(&mut self, size: usize) -> Result<()> {
        match self.options.test {
            Test::WriteLat | Test::SendLat if !self.options.one_way() => {
                let back = self.begin(size, true)?;
                match self.options.test {
                    Test::WriteLat => self.ping_writes(size, back, Some(CHECKED_ROUNDS))?,
                    _ => self.ping_messages(size, Some(CHECKED_ROUNDS))?,
                };
                match self.stop()? {
                    (_, Some(m)) => Err(mismatch(size, "what the server got", m)),
                    _ => Ok(()),
                }
            }
            Test::ReadLat | Test::ReadBw => match check_range(self.link, self.link.layout.target(size), size, seed(size, 0, true)) {
                Some(m) => Err(mismatch(size, "what was read", m)),
                None => Ok(()),
            },
            _ => {
                self.link.post_mail(Kinds::Check, &[])?;
                let verdict: [u64; 4] = self.link.expect(Kinds::Verdict, "verdict of the server")?.words();
                match unpack_mismatch(&verdict) {
                    Some(m) => Err(mismatch(size, "what the server got", m)),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Turns of progress that are enough for a look at the connection. A loop that always finds its own
/// completions makes none.
const LOOK_TURNS: u32 = 64;

/// Draws the bar, looks whether the server lives, and if it would otherwise hear nothing, tells it
/// that we do.
fn beat(bar: &mut Bar, size: usize, clock: Clock, patience: Option<u64>) -> Pulse<impl FnMut(&mut Link, f64) -> Result<()> + '_> {
    let mut told = ticks();
    let beat = move |l: &mut Link, share: f64| {
        bar.draw(&format!("{size} bytes"), share);
        let now = ticks();
        if patience.is_some_and(|p| now - told > p / 4) {
            told = now;
            l.post_mail(Kinds::Tick, &[])?;
        }
        (0..LOOK_TURNS).try_for_each(|_| l.poll())
    };
    let most = patience.map_or(u64::MAX, |p| p / 8);
    Pulse { every: clock.ticks_of_us(BEAT_US).min(most), beat }
}

/// Runs `op` without timing it; gives what it took altogether.
pub fn warm<C>(context: &mut C, until: Until, mut op: impl FnMut(&mut C) -> Result<()>) -> Result<Flow> {
    let (begin, mut ops) = (ticks(), 0);
    while until.goes_on(ops, ticks()) {
        op(context)?;
        ops += 1;
    }
    Ok(Flow { ops, ticks: ticks() - begin, best: 0 })
}

/// How many operations make a sample, as learnt from the warm-up.
pub fn batch(clock: Clock, warm_up: Flow) -> u64 {
    let each = warm_up.ticks as f64 / warm_up.ops.max(1) as f64;
    if warm_up.ops == 0 { 1 } else { ((SAMPLE_US * clock.ticks_per_us / each.max(1.0)) as u64).clamp(1, 256) }
}

fn rate(size: usize, flow: Flow, samples: &Histogram, clock: Clock) -> Rate {
    let of = |ticks_per_op: f64| if ticks_per_op > 0.0 { size as f64 / clock.us(ticks_per_op) } else { 0.0 };
    let part = |t: f64| of(t / PARTS as f64);
    let each = flow.ticks as f64 / flow.ops.max(1) as f64;
    Rate {
        peak: part(flow.best as f64),
        avg: of(each),
        median: part(samples.quantile(0.5)),
        p99: part(samples.quantile(0.99)),
        mops: 1.0 / clock.us(each),
    }
}

fn both_ways(there: Paths, back: Paths) -> String {
    if there == back { there.words() } else { format!("{}, back {}", there.words(), back.words()) }
}

fn check_required(size: usize, required: Paths, taken: Paths) -> Result<()> {
    if required.is_empty() || required.contains(taken) && !taken.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        errno::EOPNOTSUPP,
        format!("{size} bytes: the path {} was required, and the bytes took {}", required.words(), taken.words()),
    ))
}

fn mismatch(size: usize, what: &str, m: Mismatch) -> Error {
    Error::new(
        errno::EILSEQ,
        format!("{size} bytes: {what} is wrong at byte {}: {:#04x} instead of {:#04x}", m.offset, m.found, m.expected),
    )
}

/// The server sent a control message in the middle of a ping-pong.
fn interrupted(link: &mut Link) -> Error {
    match link.next_mail("reason", false) {
        Ok(mail) => Error::new(errno::EPROTO, format!("the server sent {:?} in the middle of a run", mail.kind)),
        Err(e) => e,
    }
}
