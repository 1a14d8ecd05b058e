// SPDX-License-Identifier: Apache-2.0 OR MIT
//! gdrfab-perf: measures latency, bandwidth and rate of writes, reads and messages between two processes, and the cost of
//! registration, and always reports the path that the bytes took.

mod action;
mod args;
mod atomics;
mod axes;
mod blocks;
mod bounds;
#[path = "../cli.rs"]
mod cli;
mod client;
mod compare;
mod conn;
mod control;
mod cpu;
mod csv;
mod devmem;
mod drive;
mod hostmem;
mod inspect;
mod io;
mod kind;
mod layout;
mod local;
mod mail;
mod measure;
mod memory;
mod mrreg;
mod output;
mod plot;
mod post;
mod provider;
mod report;
mod results;
mod runtime;
mod save;
mod server;
mod socket;
mod stats;
mod stream;
mod tests;
mod transfer;
mod values;
mod window;
mod wire;

use args::{Options, Parsed, Role};
use client::Client;
use conn::Side;
use gdrfab::config;
use gdrfab::error::{Error, Result, errno};
use gdrfab::fabric::PathAnswer;
use gdrfab::mr::Paths;
use local::LocalServer;
use report::{About, Report};
use serde_json::json;
use stats::Clock;
use std::process::ExitCode;
use std::time::Duration;
use tests::Test;
use wire::Plan;

fn run(o: &Options) -> Result<()> {
    if let Some((path, _)) = &o.output.file {
        save::check("--out", path)?;
    }
    let clock = Clock::calibrate();
    if o.role == Role::Server && o.test != Test::MrReg {
        return server::run(o, clock);
    }
    let mut report = Report::new(&o.output, o.drive.gbits);
    let outcome = measure(o, clock, &mut report);
    report.end(outcome)
}

fn measure(o: &Options, clock: Clock, report: &mut Report) -> Result<()> {
    match (&o.role, o.test) {
        (_, Test::MrReg) => mrreg::run(o, clock, report),
        (Role::Client(server), _) => client(o, clock, server, &o.cpus, report),
        (Role::Server | Role::Local, _) => {
            let cpus = local::choose_cpus(&o.cpus);
            let server = LocalServer::start(o, &cpus)?;
            let address = server.address.clone();
            client(o, clock, &address, &cpus, report)?;
            server.finish(Duration::from_secs(10))
        }
    }
}

fn client(o: &Options, clock: Clock, server: &str, cpus: &[usize], report: &mut Report) -> Result<()> {
    let shared = o.role == Role::Local && (cpus.len() < 2 || cpus[0] == cpus[1]);
    let alone = std::thread::available_parallelism().is_ok_and(|n| n.get() == 1);
    let plan = o.plan(shared || alone);
    let cpu = cpus.first().copied();
    let mut side = match o.drive.addresses {
        true => Side::call(o, server, &plan, clock, cpu)?,
        false => Side::dial(server, &o.choice, &plan, o.memory, clock, cpu)?,
    };
    let result = lead(o, clock, cpus, &plan, &mut side, report);
    if let Err(e) = &result
        && e.code != gdrfab::error::Code::PeerGone
    {
        side.link.complain(e);
    }
    result.and(side.close())
}

fn lead(o: &Options, clock: Clock, cpus: &[usize], plan: &Plan, side: &mut Side, report: &mut Report) -> Result<()> {
    let answer = side.link.path()?;
    let network = side.link.traits.network || o.drive.rdm;
    let path = path_words(o, &answer, network)?;
    let mut about = about(o, side, cpus, plan, path);
    if o.test == Test::RdmaTransport {
        let policy = side.link.traits.of_region(plan.path);
        let us = transfer::registration(&side.domain, o.memory, policy, clock)?;
        about.lines.push(("register", format!("and deregister {} bytes: {us:.3} usec", transfer::BYTES)));
        about.json["register_8k_usec"] = report::rounded(us);
    }
    report.begin(about)?;
    Client { link: &mut side.link, options: o, clock, report }.run()
}

fn about(o: &Options, side: &Side, cpus: &[usize], plan: &Plan, path: String) -> About {
    let address = side.address.clone();
    // The CPU of a server elsewhere is known only to that server's command line.
    let pinned = if o.role == Role::Local { cpus } else { cpus.get(..1).unwrap_or_default() };
    let (threading, progress) = (if o.one_thread { "domain" } else { "safe" }, if o.auto { "auto" } else { "manual" });
    let mut how = vec![format!("threading {threading}"), format!("{progress} progress")];
    if !side.link.traits.network {
        how.push(if plan.coop { "the target helps with large copies" } else { "no help from the target" }.into());
        if gdrfab::config::get().hmem.driver.process {
            how.push("device memory is copied by another process".into());
        }
    }
    if o.sleep {
        how.push("the target sleeps".into());
    }
    if !o.test.is_latency() {
        how.push(format!("depth {}", o.depth));
        let mut every: Vec<usize> = o.sizes.iter().map(|size| o.completion_every(*size)).collect();
        every.dedup();
        let every: Vec<String> = every.iter().map(usize::to_string).collect();
        how.push(format!("{} operation(s) to a completion", every.join(" and ")));
    }
    if o.test.is_list() {
        how.push(o.blocks.words(&o.sizes));
    }
    how.extend(o.drive.words());
    let inline = side.inline(plan);
    how.extend(inline.map(|n| if n > 0 { format!("up to {n} bytes inline") } else { "nothing inline".into() }));
    let help = if o.one_way() { "one write at a time, from post to delivery" } else { o.test.help() };
    let mut cpu_words = match pinned {
        [a, b, ..] => format!("client {a}, server {b}"),
        [a] => format!("client {a}"),
        [] => "not pinned".to_string(),
    };
    if plan.yields {
        cpu_words.push_str(" (shared: these are the scheduler's figures)");
    }
    let registered = side.registered().map_or(String::new(), |path| format!(" ({path})"));
    let mut about = About {
        lines: vec![
            ("test", format!("{}: {help}", o.test.name())),
            ("server", address.clone()),
            ("memory", format!("{} here{registered}, {} there", o.memory.name(), o.remote_memory.name())),
            ("registered", registration_words(side)),
            ("path", path.clone()),
            ("cpus", cpu_words),
            ("how", how.join(", ")),
        ],
        json: json!({
            "test": o.test.name(),
            "provider": side.provider,
            "server": address,
            "memory": o.memory.name(),
            "remote_memory": o.remote_memory.name(),
            "registration_bytes": side.registered_bytes,
            "registration_usec": usec(side.registration_ns),
            "remote_registration_usec": usec(side.peer_registration_ns),
            "path": path,
            "cpus": pinned,
            "threading": threading,
            "progress": progress,
            "coop": plan.coop,
            "target_sleeps": o.sleep,
            "depth": (!o.test.is_latency()).then_some(o.depth),
            "blocks": o.test.is_list().then_some(o.blocks.count),
            "post_list": o.drive.list,
            "bidirectional": o.drive.both,
            "endpoints": o.drive.endpoints,
            "inline": inline,
            "rate_limit": o.drive.limit.map(|l| l.rate),
            "rate_unit": o.drive.limit.map(|l| l.unit.words()),
            "burst": o.drive.limit.map(|l| l.burst),
            "ep": if o.drive.rdm { "rdm" } else { "msg" },
            "tagged": o.drive.tagged,
            "connect": if o.drive.addresses { "addresses" } else { "cm" },
            "cpus_online": cpu::count(),
            "deadline_ms": plan.patience_ms(),
            "device": side.device,
        }),
    };
    if let Some(device) = &side.device {
        about.lines.insert(2, ("device", device.clone()));
    }
    about
}

fn usec(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

fn registration_words(side: &Side) -> String {
    let n = side.registered_bytes;
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let size = match units.into_iter().find(|(shift, _)| n >= 1 << shift) {
        Some((shift, unit)) if n.is_multiple_of(1 << shift) => format!("{} {unit}", n >> shift),
        Some((shift, unit)) => format!("{:.1} {unit}", n as f64 / (1u64 << shift) as f64),
        None => format!("{n} bytes"),
    };
    format!("{size} in {:.1} us here, {:.1} us there", usec(side.registration_ns), usec(side.peer_registration_ns))
}

/// The chosen path, and why no faster one was taken; over a network there is no faster one.
fn path_words(o: &Options, answer: &PathAnswer, network: bool) -> Result<String> {
    if answer.path.is_empty() {
        return Err(Error::new(errno::EOPNOTSUPP, answer.text.trim_end().to_string()));
    }
    if network {
        return Ok(answer.path.words());
    }
    if o.test.is_message() {
        let private = !answer.path.intersects(Paths::DIRECT | Paths::IPC);
        let most = config::get().ring_max(private);
        return Ok(format!("messages up to {most} bytes in the ring; longer ones are fetched by the receiver"));
    }
    let mut words = answer.path.words();
    // Obvious refusals are left out: the CPU cannot map device memory, and a device's driver does not copy host memory.
    let needless = if o.remote_memory.is_device() { "direct" } else { "ipc" };
    let faster = [("direct", &answer.refusals.direct), ("ipc", &answer.refusals.ipc), ("cma", &answer.refusals.cma)];
    for (name, verdict) in faster.into_iter().filter(|(name, _)| *name != needless) {
        if name == answer.path.words() {
            break;
        }
        if let Some(e) = verdict {
            words.push_str(&format!("; not {name}: {}", e.words));
        }
    }
    Ok(words)
}

fn ended(outcome: Result<()>, who: &str) -> ExitCode {
    match outcome {
        Ok(()) => return ExitCode::SUCCESS,
        Err(e) if e.words == report::UNREAD.words => {}
        Err(e) => cli::complain(&format!("gdrfab-perf: {who}{e}")),
    }
    ExitCode::FAILURE
}

/// Sets variables that the library reads only from the environment, once, before its first call.
fn choose(o: &Options) {
    let set = |name: &str, value: String| {
        // SAFETY: this process has no other thread yet that could read the environment.
        unsafe { std::env::set_var(name, value) }
    };
    if let Some(index) = o.drive.gid_index {
        set("GDRFAB_VERBS_GID_INDEX", index.to_string());
    }
    if o.drive.inline == Some(0) {
        // A server that this host's client has started finds the word already there.
        let words = std::env::var("GDRFAB_DEBUG").unwrap_or_default();
        let others = words.split(',').filter(|word| !word.is_empty() && !word.trim().starts_with("inline="));
        set("GDRFAB_DEBUG", others.chain(["inline=0"]).collect::<Vec<_>>().join(","));
    }
}

fn main() -> ExitCode {
    let parsed = cli::Args::of_process().and_then(args::parse);
    match parsed {
        Ok(Parsed::Help(text)) => cli::conclude(&text),
        Ok(Parsed::Version) => cli::conclude(concat!("gdrfab-perf ", env!("CARGO_PKG_VERSION"), "\n")),
        Err(words) => cli::usage("gdrfab-perf", &words),
        Ok(Parsed::Plot(plot)) => ended(plot::run(&plot), ""),
        Ok(Parsed::Compare(compare)) => {
            let outcome = compare::run(&compare);
            let Ok(Some(words)) = outcome else { return ended(outcome.map(|_| ()), "") };
            cli::complain(&format!("gdrfab-perf: {words}"));
            ExitCode::FAILURE
        }
        Ok(Parsed::Run(options)) => {
            choose(&options);
            let serves = options.role == Role::Server && options.test != Test::MrReg;
            ended(run(&options), if serves { "server: " } else { "" })
        }
    }
}
