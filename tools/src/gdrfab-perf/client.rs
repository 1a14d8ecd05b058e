// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client: leads the server through the sizes, times the operations, and checks the bytes that arrived.

use crate::args::Options;
use crate::cpu::CpuUse;
use crate::inspect::{GUARD, inspect, poison};
use crate::io::Link;
use crate::measure::{Pulse, Until, latency};
use crate::memory::{Mismatch, POISON};
use crate::post::{ALONE, Turn};
use crate::report::{Bar, Figures, Latency, Report, Row, Transfer};
use crate::stats::{Clock, Histogram};
use crate::stream::Stream;
use crate::tests::Test;
use crate::window::Flow;
use crate::wire::{Kinds, Stopped, seed, unpack_mismatch, words};
use gdrfab::config;
use gdrfab::error::{Error, Result, errno};
use gdrfab::fabric::Stats;
use gdrfab::mr::Paths;
use gdrfab::prov::op::Dir;
use gdrfab::rdm::EAGER_MAX;
use gdrfab::sys::time::ticks;

/// The number of rounds of a ping-pong in which every arrival is checked.
const CHECKED_ROUNDS: u64 = 16;
/// The microseconds between two updates of the terminal.
pub const BEAT_US: f64 = 100_000.0;
/// A sample of reads covers at least this time, because reading the clock has a cost too.
const SAMPLE_US: f64 = 1.0;
/// The longest time for a size, if the command line gives none.
pub const RUN_S: f64 = 2.0;
pub const WARM_UP_S: f64 = 0.2;

pub struct Client<'a> {
    pub link: &'a mut Link,
    pub options: &'a Options,
    pub clock: Clock,
    pub report: &'a mut Report,
}

/// The result of a measured phase, without its path.
struct Outcome {
    iterations: u64,
    batch: u64,
    figures: Figures,
    cpu: f64,
}

impl Outcome {
    /// Writes and then reads: the times of both.
    fn and_read(self, size: usize, read: Outcome) -> Outcome {
        let typical = |o: &Outcome| if let Figures::Latency(l) = o.figures { l.typical } else { 0.0 };
        let figures = Figures::Transfer(Transfer::of(size, typical(&self), typical(&read)));
        Outcome { figures, cpu: (self.cpu + read.cpu) / 2.0, ..self }
    }
}

impl Client<'_> {
    pub fn run(&mut self) -> Result<()> {
        for i in 0..self.options.sizes.len() {
            match self.measure(self.options.sizes[i]) {
                Ok(row) => self.report.row(row)?,
                Err(e) => return Err(self.link.last_words(e)),
            }
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

    fn stream(&self, size: usize) -> Stream {
        let o = self.options;
        let (gap_ns, burst) = o.drive.limit.map_or((0, 0), |limit| (limit.gap_ns(size), limit.burst));
        Stream { blocks: o.blocks, depth: o.depth, list: o.drive.list, signal: o.completion_every(size), gap_ns, burst }
    }

    /// Asks the server to prepare a size, and returns the server's path to this side's memory.
    fn begin(&mut self, size: usize, checked: bool) -> Result<Paths> {
        let layout = self.link.layout;
        if self.options.verify {
            self.link.memory.fill(layout.source(size), size, seed(size, 0, false));
            self.link.memory.set(layout.target(size), size + GUARD, POISON);
        }
        self.link.memory.set(layout.target(size) + size - 1, 1, 0);
        let stream = self.stream(size);
        let begin = [size as u64, u64::from(checked), stream.signal as u64, stream.gap_ns, stream.burst];
        self.link.post_mail(Kinds::Begin, &words(&begin))?;
        let [path] = self.link.expect(Kinds::Ready, "server that is ready")?.words();
        if self.options.verify && self.options.drive.both {
            poison(self.link, self.options.test, size);
        }
        Ok(Paths::from_bits_truncate(path))
    }

    /// Ends a run: tells the server that the last operation was posted, and returns the server's result. The arguments are
    /// the numbers of messages that had arrived and been sent before the run.
    fn stop(&mut self, (arrived, sent): (u64, u64)) -> Result<Stopped> {
        self.link.post_mail(Kinds::Stop, &words(&[self.link.sent - sent]))?;
        let stopped = Stopped::decode(&self.link.expect(Kinds::Stopped, "end of the run at the server")?);
        if self.options.drive.both {
            // Messages may come over other endpoints than the control message, and later.
            self.link.wait("last messages of the server", |l| l.arrived - arrived >= stopped.sent)?;
        }
        Ok(stopped)
    }

    fn measure(&mut self, size: usize) -> Result<Row> {
        let test = self.options.test;
        let before = (self.link.arrived, self.link.sent);
        let back = self.begin(size, false)?;
        self.link.stats();
        let done = match test {
            Test::WriteLat if self.options.one_way() => self.one_write(size)?,
            Test::WriteLat => self.ping_writes(size, back, None)?,
            Test::SendLat => self.ping_messages(size, None)?,
            Test::ReadLat => self.one_read(size)?,
            Test::AddLat | Test::FetchAddLat | Test::CompareSwapLat => self.one_atomic(size)?,
            Test::RdmaTransport => {
                let write = self.one_write(size)?;
                let read = self.one_read(size)?;
                write.and_read(size, read)
            }
            _ => self.windows(size)?,
        };
        let stats = self.link.stats();
        let stopped = self.stop(before)?;
        if test.is_message() && stopped.arrived < done.iterations {
            let saw = stopped.arrived;
            return Err(Error::new(errno::EIO, format!("{size} bytes: the server saw {saw} of at least {} messages", done.iterations)));
        }
        if self.options.verify {
            self.verify(size)?;
        }
        let (path, helped) = self.path(size, back, &stats)?;
        let (figures, other) = match done.figures {
            Figures::Rate(rate) if self.options.drive.both => (Figures::Rate(rate + stopped.rate), Some(stopped.rate.avg)),
            figures => (figures, None),
        };
        Ok(Row {
            path: Some(path),
            helped,
            verified: self.options.verify,
            back: other,
            cpu_client: Some(done.cpu),
            cpu_server: Some(stopped.cpu_percent),
            ..Row::new(size, done.iterations, done.batch, figures)
        })
    }

    /// The path that the bytes took, in words. An error if another path was required.
    fn path(&mut self, size: usize, back: Paths, stats: &Stats) -> Result<(String, f64)> {
        let test = self.options.test;
        let (nic, network) = (self.link.traits.nic, self.link.traits.network);
        // For a device, the path is that of its registration, which had to be the required one.
        let required = if nic { Paths::empty() } else { self.options.path };
        if test.is_message() {
            if nic {
                return Ok((Paths::NIC.words(), 0.0));
            }
            // Over shared memory the receiver fetches the bytes, so its path counts; over a network both sides' memory
            // counts.
            let ours = if network || test == Test::SendLat { self.link.path()?.path } else { back };
            if self.link.traits.rdm && size <= EAGER_MAX {
                return Ok(("eager".into(), 0.0));
            }
            let private = !(back | ours).intersects(Paths::DIRECT | Paths::IPC);
            if !network && !self.link.traits.rdm && size <= config::get().ring_max(private) {
                return Ok(("ring".into(), 0.0));
            }
            for path in [back, ours] {
                check_required(size, required, path)?;
            }
            return Ok((both_ways(back, ours), 0.0));
        }
        let taken = Paths::ALL.into_iter().filter(|path| stats.of(*path).ops > 0).fold(Paths::empty(), |all, p| all | p);
        // The counts grow when operations complete, which this side did not see of the last ones; then the path is asked for.
        let taken =
            if (network || self.link.traits.rdm || test.action().is_some()) && taken.is_empty() { self.link.path()?.path } else { taken };
        check_required(size, required, taken)?;
        let bytes = stats.by_path.iter().map(|of| of.bytes).sum::<u64>();
        let helped = stats.bytes_helped as f64 / bytes.max(1) as f64;
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
        let cpu = CpuUse::start();
        let iterations = latency(self.link, until, 1, &mut samples, op, &mut pulse)?;
        let cpu = cpu.percent();
        Ok(Outcome { iterations, batch: 1, figures: Figures::Latency(Latency::of(&samples, self.clock, 2)), cpu })
    }

    fn one_write(&mut self, size: usize) -> Result<Outcome> {
        let op = self.link.op(Dir::Write, size).complete(self.link.traits.delivered);
        self.one_by_one(size, move |l| l.rma(&op, true))
    }

    fn one_read(&mut self, size: usize) -> Result<Outcome> {
        let op = self.link.op(Dir::Read, size);
        self.one_by_one(size, move |l| l.rma(&op, true))
    }

    fn one_atomic(&mut self, size: usize) -> Result<Outcome> {
        let action = self.options.test.action().ok_or(Error::fixed(errno::EINVAL, "this test has no atomic operation"))?;
        let op = self.link.atomic(action)?;
        self.one_by_one(size, move |l| l.atomic_by(&op, Turn { signal: true, ..ALONE }))
    }

    fn one_by_one(&mut self, size: usize, post: impl Fn(&Link) -> Result<bool> + Copy) -> Result<Outcome> {
        let once = move |l: &mut Link| {
            let next = l.done + 1;
            l.must("room for an operation", post)?;
            l.wait("completion", |l| l.done >= next)
        };
        let warm_up = warm(self.link, self.warm_up(size), once)?;
        let batch = batch(self.clock, warm_up);
        let mut samples = Histogram::new();
        let until = self.until(size);
        let mut pulse = beat(self.report.bar(), size, self.clock, Some(self.link.patience));
        let cpu = CpuUse::start();
        let iterations = latency(self.link, until, batch, &mut samples, once, &mut pulse)?;
        let cpu = cpu.percent();
        Ok(Outcome { iterations, batch, figures: Figures::Latency(Latency::of(&samples, self.clock, batch)), cpu })
    }

    /// Starts the server's window, if it has one.
    fn go(&mut self) -> Result<()> {
        if self.options.drive.both {
            self.link.post_mail(Kinds::Go, &[])?;
            self.link.expect(Kinds::Go, "start of the server")?;
        }
        Ok(())
    }

    fn windows(&mut self, size: usize) -> Result<Outcome> {
        let (clock, what, stream) = (self.clock, (self.options.test, size), self.stream(size));
        let mut before = None;
        if self.options.warm_up != Some(0) {
            self.go()?;
            let until = self.warm_up(size);
            let mut pulse = beat(self.report.bar(), size, clock, Some(self.link.patience));
            before = Some(stream.run(self.link, what, None, until, clock, &mut pulse, |_| false)?.flow);
        }
        self.go()?;
        let until = self.until(size);
        let mut pulse = beat(self.report.bar(), size, clock, Some(self.link.patience));
        let cpu = CpuUse::start();
        let run = stream.run(self.link, what, before, until, clock, &mut pulse, |_| false)?;
        Ok(Outcome { iterations: run.flow.ops, batch: run.slice, figures: Figures::Rate(run.rate), cpu: cpu.percent() })
    }

    fn verify(&mut self, size: usize) -> Result<()> {
        let test = self.options.test;
        if let Some(action) = test.action() {
            return self.link.check_atomics(action)?.map_or(Ok(()), |m| Err(mismatch(size, "the integer", m)));
        }
        if test.is_round_trip() && !self.options.one_way() {
            let before = (self.link.arrived, self.link.sent);
            let back = self.begin(size, true)?;
            match test {
                Test::WriteLat => self.ping_writes(size, back, Some(CHECKED_ROUNDS))?,
                _ => self.ping_messages(size, Some(CHECKED_ROUNDS))?,
            };
            return match self.stop(before)?.mismatch {
                Some(m) => Err(mismatch(size, "what the server got", m)),
                None => Ok(()),
            };
        }
        let (both, reads) = (self.options.drive.both, matches!(test, Test::ReadLat | Test::ReadBw | Test::ListRead));
        if (both || reads || test == Test::RdmaTransport)
            && let Some(m) = inspect(self.link, test, size, true)
        {
            return Err(mismatch(size, if reads { "what was read" } else { "what came from the server" }, m));
        }
        if reads && !both {
            return Ok(());
        }
        self.link.post_mail(Kinds::Check, &[])?;
        let verdict: [u64; 4] = self.link.expect(Kinds::Verdict, "verdict of the server")?.words();
        match unpack_mismatch(&verdict) {
            Some(m) => Err(mismatch(size, "what the server got", m)),
            None => Ok(()),
        }
    }
}

/// The number of turns of progress in which the library surely looks at the connection. A loop that always finds its own
/// completions makes no turns, so it makes these now and then.
pub const LOOK_TURNS: u32 = 64;

/// Draws the progress bar, checks that the server lives, and sends it a sign of life if nothing else would.
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

/// Runs `op` untimed for warming up, and returns the time that all of it took.
pub fn warm<C>(context: &mut C, until: Until, mut op: impl FnMut(&mut C) -> Result<()>) -> Result<Flow> {
    let (begin, mut ops) = (ticks(), 0);
    while until.goes_on(ops, ticks()) {
        op(context)?;
        ops += 1;
    }
    Ok(Flow { ops, ticks: ticks() - begin, best: 0 })
}

/// The number of operations of a sample, as the warm-up suggests.
pub fn batch(clock: Clock, warm_up: Flow) -> u64 {
    let each = warm_up.ticks as f64 / warm_up.ops.max(1) as f64;
    if warm_up.ops == 0 { 1 } else { ((SAMPLE_US * clock.ticks_per_us / each.max(1.0)) as u64).clamp(1, 256) }
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

/// The error if the server sends a control message in the middle of a ping-pong.
fn interrupted(link: &mut Link) -> Error {
    match link.next_mail("reason", false) {
        Ok(mail) => Error::new(errno::EPROTO, format!("the server sent {:?} in the middle of a run", mail.kind)),
        Err(e) => e,
    }
}
