// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server: the target of one-sided tests, and the other side of the ping-pongs.

use crate::args::{DEFAULT_NAME, Options};
use crate::blocks::Blocks;
use crate::cli;
use crate::client::{BEAT_US, LOOK_TURNS};
use crate::conn::{Listener, Side};
use crate::control::Exchange;
use crate::cpu::CpuUse;
use crate::inspect::{check_range, inspect, poison};
use crate::io::Link;
use crate::measure::{Pulse, Until};
use crate::memory::Mismatch;
use crate::provider::listening;
use crate::report::say;
use crate::stats::Clock;
use crate::stream::Stream;
use crate::tests::Test;
use crate::wire::{Kinds, Mail, Plan, Stopped, pack_mismatch, seed, silent, words};
use gdrfab::error::{Code, Error, Result, errno};
use gdrfab::mr::Paths;
use gdrfab::prov::op::Dir;
use gdrfab::sys::time::ticks;

/// The microseconds that a client has to read why it is sent away.
const LAST_WORDS_US: f64 = 300_000.0;
/// The number of round trips between two looks at the clock.
const ROUNDS: u64 = 4096;

/// The listener for clients.
enum Door {
    Cm(Listener),
    Addresses(Exchange),
}

impl Door {
    fn open(o: &Options) -> Result<Door> {
        if o.drive.addresses {
            return Ok(Door::Addresses(Exchange::open(o)?));
        }
        Ok(Door::Cm(Listener::open(&listening(&o.choice, o.name.as_deref(), o.port, DEFAULT_NAME), o)?))
    }

    fn address(&self) -> String {
        match self {
            Door::Cm(listener) => listener.address(),
            Door::Addresses(exchange) => exchange.address(),
        }
    }

    fn accept(&self, clock: Clock, cpu: Option<usize>) -> Result<(Side, Plan)> {
        match self {
            Door::Cm(listener) => listener.accept(clock, cpu),
            Door::Addresses(exchange) => exchange.accept(clock, cpu),
        }
    }

    fn close(self) -> Result<()> {
        match self {
            Door::Cm(listener) => listener.close(),
            Door::Addresses(_) => Ok(()),
        }
    }
}

pub fn run(o: &Options, clock: Clock) -> Result<()> {
    if let Some(parent) = o.parent {
        stay_with(parent)?;
    }
    let mut listener = Some(Door::open(o)?);
    while let Some(open) = &listener {
        announce(o, &open.address())?;
        let accepted = open.accept(clock, o.cpus.last().copied());
        if !o.keep
            && let Some(open) = listener.take()
        {
            // Later clients are refused at once instead of waiting in vain.
            open.close()?;
        }
        let outcome = accepted.and_then(|(mut side, plan)| {
            side.link.until = ticks().saturating_add(clock.ticks_of_us(o.bounds.seconds * 1e6));
            let served = serve(&mut side.link, &plan, clock);
            if let Err(e) = &served
                && e.code != Code::PeerGone
            {
                side.link.complain(e);
                // A client in the middle of a window reads this message before its operations fail, whose errors would say
                // less.
                let until = ticks().saturating_add(clock.ticks_of_us(LAST_WORDS_US));
                while ticks() < until && side.link.poll().is_ok() {
                    std::thread::yield_now();
                }
            }
            served.and(side.close()).map(|()| plan)
        });
        match outcome {
            Ok(plan) if o.parent.is_none() && o.output.is_text() => {
                say(&format!("served {} up to {} bytes\n", plan.test.name(), plan.max_size))?;
            }
            Ok(_) => {}
            Err(e) if o.keep => cli::complain(&format!("gdrfab-perf: server: {e}")),
            // The client belongs to the same command, and reports the result.
            Err(e) if o.parent.is_some() && (e.code == Code::PeerGone || e.errno == errno::ECONNABORTED) => std::process::exit(1),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn announce(o: &Options, address: &str) -> Result<()> {
    if o.parent.is_some() {
        return say(&format!("{address}\n"));
    }
    if o.output.is_text() {
        let words = if o.drive.addresses { "[options] --connect addresses" } else { "[options]" };
        let name = if o.drive.addresses || o.choice.network(o.name.as_deref()).is_some() {
            address
        } else {
            o.name.as_deref().unwrap_or(DEFAULT_NAME)
        };
        say(&format!("waiting on {address} for: gdrfab-perf {} {words} {name}\n", o.test.name()))?;
    }
    Ok(())
}

/// Ends this process when the process that started it ends.
fn stay_with(parent: i32) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|e| Error::os("staying with the parent", e))?;
    if rustix::process::getppid().map(|p| p.as_raw_nonzero().get()) != Some(parent) {
        return Err(Error::fixed(errno::ESRCH, "the process that started this server is gone"));
    }
    Ok(())
}

/// Serves one client until it says goodbye.
pub fn serve(link: &mut Link, plan: &Plan, clock: Clock) -> Result<()> {
    let mut size = 0;
    loop {
        let mail = match link.next_mail("request of the client", false) {
            Err(e) if e.code == Code::PeerGone && link.took_leave() => return Ok(()),
            mail => mail?,
        };
        link.check_time(ticks())?;
        match mail.kind {
            Kinds::Begin => {
                let [wanted, checked, signal, gap_ns, burst] = mail.words();
                size = usize::try_from(wanted).ok().filter(|n| (1..=plan.max_size).contains(n)).ok_or_else(|| unexpected(&mail))?;
                let signal = usize::try_from(signal).ok().filter(|n| (1..=1024).contains(n)).ok_or_else(|| unexpected(&mail))?;
                let stream = Stream {
                    blocks: Blocks::default(),
                    depth: plan.depth,
                    list: plan.list,
                    signal,
                    gap_ns,
                    burst: burst.max(plan.list as u64),
                };
                phase(link, plan, size, checked != 0, stream, clock)?;
            }
            Kinds::Check => {
                let m = inspect(link, plan.test, size, false);
                link.post_mail(Kinds::Verdict, &words(&pack_mismatch(m)))?;
            }
            Kinds::Bye => return Ok(()),
            _ => return Err(unexpected(&mail)),
        }
    }
}

fn unexpected(mail: &Mail) -> Error {
    Error::new(errno::EPROTO, format!("the client sent {:?}, which makes no sense here", mail.kind))
}

fn phase(link: &mut Link, plan: &Plan, size: usize, checked: bool, stream: Stream, clock: Clock) -> Result<()> {
    let layout = link.layout;
    let (before, sent) = (link.arrived, link.sent);
    link.memory.set(layout.target(size) + size - 1, 1, 0);
    if plan.verify {
        link.memory.fill(layout.source(size), size, seed(size, 0, true));
        if plan.test != Test::WriteLat || plan.one_way {
            poison(link, plan.test, size);
        }
        link.places = Some(Vec::new());
    }
    let back = if plan.test.is_round_trip() || plan.test.is_message() { link.path()?.path } else { Paths::empty() };
    link.post_mail(Kinds::Ready, &words(&[back.bits()]))?;
    let cpu = CpuUse::start();
    let mut stopped = Stopped::default();
    let mut end = None;
    match plan.test {
        Test::WriteLat if !plan.one_way => stopped.mismatch = echo_writes(link, size, back, checked)?,
        Test::SendLat => stopped.mismatch = echo_messages(link, size, checked)?,
        _ => end = Some(target(link, plan, size, stream, clock, &mut stopped)?),
    };
    stopped.cpu_percent = cpu.percent();
    if let Some(mail) = end {
        // Messages may arrive over other endpoints than the last control message, and later.
        let [expected] = mail.words();
        link.wait("last messages of the client", |l| l.arrived - before >= expected)?;
    }
    (stopped.arrived, stopped.sent) = (link.arrived - before, link.sent - sent);
    link.post_mail(Kinds::Stopped, &stopped.encode())
}

/// Serves a window until the client stops, as its target only or with a window of this side.
fn target(link: &mut Link, plan: &Plan, size: usize, stream: Stream, clock: Clock, stopped: &mut Stopped) -> Result<Mail> {
    let mut before = None;
    loop {
        let mail = link.next_mail("end of the run", plan.sleep)?;
        match mail.kind {
            Kinds::Stop => return Ok(mail),
            Kinds::Go if plan.both => {}
            _ => return Err(unexpected(&mail)),
        }
        link.post_mail(Kinds::Go, &[])?;
        // If the client only writes, only its control messages show that it lives.
        let beat = |l: &mut Link, _: f64| match ticks().saturating_sub(l.heard) > l.patience {
            true => Err(silent("message of the client")),
            false => l.check_time(ticks()).and_then(|()| (0..LOOK_TURNS).try_for_each(|_| l.poll())),
        };
        let mut pulse = Pulse { every: clock.ticks_of_us(BEAT_US).min(link.patience / 8), beat };
        let what = (plan.test, size);
        let run = stream.run(link, what, before, Until::time(u64::MAX >> 1), clock, &mut pulse, Link::has_mail)?;
        (before, stopped.rate) = (Some(run.flow), run.rate);
    }
}

/// Answers every write with a write, until the client stops.
fn echo_writes(link: &mut Link, size: usize, back: Paths, checked: bool) -> Result<Option<Mismatch>> {
    let layout = link.layout;
    let op = link.op(Dir::Write, size);
    let (last_in, last_out) = (layout.target(size) + size - 1, layout.source(size) + size - 1);
    let looks = link.looks(size, back);
    let mut found = None;
    let mut round = 0u64;
    loop {
        round += 1;
        if round.is_multiple_of(ROUNDS) {
            link.check_time(ticks())?;
        }
        if !link.await_byte(last_in, round as u8, looks)? {
            link.expect(Kinds::Stop, "end of the run")?;
            return Ok(found);
        }
        if checked {
            found = found.or_else(|| link.memory.check(layout.target(size), size - 1, seed(size, round, false)));
            link.memory.fill(layout.source(size), size, seed(size, round, true));
        }
        link.memory.store(last_out, round as u8);
        link.must("room for a write", |l| l.rma(&op, false))?;
    }
}

/// Answers every message with a message, until the client stops.
fn echo_messages(link: &mut Link, size: usize, checked: bool) -> Result<Option<Mismatch>> {
    let source = link.layout.source(size);
    let mut found = None;
    let mut round = 0u64;
    loop {
        let next = link.arrived + 1;
        link.wait("message of the client", |l| l.arrived >= next || l.has_mail())?;
        if link.arrived < next {
            link.expect(Kinds::Stop, "end of the run")?;
            return Ok(found);
        }
        round += 1;
        if round.is_multiple_of(ROUNDS) {
            link.check_time(ticks())?;
        }
        if checked {
            found = found.or_else(|| check_range(link, link.last, size, seed(size, round, false)));
            link.memory.fill(source, size, seed(size, round, true));
        }
        link.must("room for a message", |l| l.send(size, false))?;
    }
}
