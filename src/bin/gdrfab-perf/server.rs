// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server: the target of one-sided tests, and the other half of the ping-pongs.

use crate::args::{DEFAULT_NAME, Options};
use crate::cli;
use crate::conn::Listener;
use crate::io::Link;
use crate::memory::{Mismatch, POISON};
use crate::provider::listening;
use crate::stats::Clock;
use crate::tests::Test;
use crate::wire::{Kinds, Mail, Plan, pack_mismatch, seed, words};
use gdrfab::error::{Code, Error, Result, errno};
use gdrfab::mr::Paths;
use gdrfab::prov::op::Dir;

/// Bytes behind a range that must stay as they were.
pub const GUARD: usize = 64;

pub fn run(o: &Options, clock: Clock) -> Result<()> {
    if let Some(parent) = o.parent {
        stay_with(parent)?;
    }
    let mut listener = Some(Listener::open(&listening(&o.choice, o.name.as_deref(), o.port, DEFAULT_NAME), &o.choice)?);
    while let Some(open) = &listener {
        announce(o, &open.address());
        let accepted = open.accept(clock, o.cpus.last().copied());
        if !o.keep
            && let Some(open) = listener.take()
        {
            // Who comes later is refused at once instead of waiting in vain.
            open.close()?;
        }
        let outcome = accepted.and_then(|(mut side, plan)| {
            let served = serve(&mut side.link, &plan);
            if let Err(e) = &served
                && e.code != Code::PeerGone
            {
                side.link.complain(e);
            }
            served.and(side.close()).map(|()| plan)
        });
        match outcome {
            Ok(plan) if o.parent.is_none() && !o.json => {
                cli::say(&format!("served {} up to {} bytes\n", plan.test.name(), plan.max_size));
            }
            Ok(_) => {}
            Err(e) if o.keep => cli::complain(&format!("gdrfab-perf: server: {e}")),
            // The client belongs to the same command, and has the word.
            Err(e) if o.parent.is_some() && (e.code == Code::PeerGone || e.errno == errno::ECONNABORTED) => std::process::exit(1),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn announce(o: &Options, address: &str) {
    if o.parent.is_some() {
        cli::say(&format!("{address}\n"));
    } else if !o.json {
        let name = if o.choice.network(o.name.as_deref()).is_some() { address } else { o.name.as_deref().unwrap_or(DEFAULT_NAME) };
        cli::say(&format!("waiting on {address} for: gdrfab-perf {} [options] {name}\n", o.test.name()));
    }
}

/// Ends this process when the one that started it ends.
fn stay_with(parent: i32) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|e| Error::os("staying with the parent", e))?;
    if rustix::process::getppid().map(|p| p.as_raw_nonzero().get()) != Some(parent) {
        return Err(Error::fixed(errno::ESRCH, "the process that started this server is gone"));
    }
    Ok(())
}

/// Does what one client asks until it says goodbye.
pub fn serve(link: &mut Link, plan: &Plan) -> Result<()> {
    let mut size = 0;
    loop {
        let mail = link.next_mail("request of the client", false)?;
        match mail.kind {
            Kinds::Begin => {
                let [wanted, checked] = mail.words();
                size = usize::try_from(wanted).ok().filter(|n| (1..=plan.max_size).contains(n)).ok_or_else(|| unexpected(&mail))?;
                phase(link, plan, size, checked != 0)?;
            }
            Kinds::Check => {
                let m = inspect(link, plan.test, size);
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

fn phase(link: &mut Link, plan: &Plan, size: usize, checked: bool) -> Result<()> {
    let layout = link.layout;
    let before = link.arrived;
    link.memory.set(layout.target(size) + size - 1, 1, 0);
    if plan.verify {
        link.memory.fill(layout.source(size), size, seed(size, 0, true));
        if plan.test != Test::WriteLat || plan.one_way {
            (0..layout.slots).for_each(|i| link.memory.set(landing(link, plan.test, size, i), size + GUARD, POISON));
        }
        link.places = Some(Vec::new());
    }
    let back = if plan.test.is_round_trip() || plan.test.is_message() { link.path()?.path } else { Paths::empty() };
    link.post_mail(Kinds::Ready, &words(&[back.bits()]))?;
    let mismatch = match plan.test {
        Test::WriteLat if !plan.one_way => echo_writes(link, size, back, checked)?,
        Test::SendLat => echo_messages(link, size, checked)?,
        _ => {
            let mail = link.next_mail("end of the run", plan.sleep)?;
            if mail.kind != Kinds::Stop {
                return Err(unexpected(&mail));
            }
            None
        }
    };
    let mut answer = vec![link.arrived - before];
    answer.extend(pack_mismatch(mismatch));
    link.post_mail(Kinds::Stopped, &words(&answer))
}

/// Where the bytes of a client's operation land.
fn landing(link: &Link, test: Test, size: usize, i: usize) -> usize {
    if test.is_message() { link.layout.slot(i) } else { link.layout.target(size) }
}

fn inspect(link: &mut Link, test: Test, size: usize) -> Option<Mismatch> {
    let places = if test.is_message() { link.places.clone().unwrap_or_default() } else { vec![link.layout.target(size)] };
    places.iter().find_map(|place| check_range(link, *place, size, seed(size, 0, false)))
}

/// Checks a pattern and that nothing was written behind it.
pub fn check_range(link: &Link, place: usize, size: usize, seed: u64) -> Option<Mismatch> {
    let behind = || link.memory.check_set(place + size, GUARD, POISON).map(|m| Mismatch { offset: size + m.offset, ..m });
    link.memory.check(place, size, seed).or_else(behind)
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
        if checked {
            found = found.or_else(|| check_range(link, link.last, size, seed(size, round, false)));
            link.memory.fill(source, size, seed(size, round, true));
        }
        link.must("room for a message", |l| l.send(size, false))?;
    }
}
