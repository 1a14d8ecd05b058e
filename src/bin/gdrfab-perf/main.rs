// SPDX-License-Identifier: Apache-2.0 OR MIT
//! gdrfab-perf: latency, bandwidth and rate of writes, reads and messages between two processes, and
//! the cost of registration; always with the path that the bytes took.

mod args;
#[path = "../common/cli.rs"]
mod cli;
mod client;
mod conn;
mod devmem;
mod io;
#[path = "../common/json.rs"]
mod json;
mod layout;
mod local;
mod measure;
mod memory;
mod mrreg;
mod provider;
mod report;
mod server;
mod stats;
mod tests;
mod wire;

use args::{Options, Parsed, Role};
use client::Client;
use conn::{Side, patience_ms};
use gdrfab::config;
use gdrfab::error::{Error, Result, errno};
use gdrfab::fabric::PathAnswer;
use json::Json;
use local::LocalServer;
use report::{About, Report};
use stats::Clock;
use std::process::ExitCode;
use std::time::Duration;
use tests::Test;
use wire::Plan;

fn run(o: &Options) -> Result<()> {
    let clock = Clock::calibrate();
    let mut report = Report::new(o.json);
    match (&o.role, o.test) {
        (_, Test::MrReg) => mrreg::run(o, clock, &mut report)?,
        (Role::Server, _) => return server::run(o, clock),
        (Role::Client(server), _) => client(o, clock, server, &o.cpus, &mut report)?,
        (Role::Local, _) => {
            let cpus = local::choose_cpus(&o.cpus);
            let server = LocalServer::start(o, &cpus)?;
            let address = server.address.clone();
            client(o, clock, &address, &cpus, &mut report)?;
            server.finish(Duration::from_secs(10))?;
        }
    }
    report.end()
}

fn client(o: &Options, clock: Clock, server: &str, cpus: &[usize], report: &mut Report) -> Result<()> {
    let shared = o.role == Role::Local && (cpus.len() < 2 || cpus[0] == cpus[1]);
    let alone = std::thread::available_parallelism().is_ok_and(|n| n.get() == 1);
    let plan = Plan::of(o, shared || alone);
    let mut side = Side::dial(server, &o.choice, &plan, o.memory, clock, cpus.first().copied())?;
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
    let path = path_words(o, &answer, side.link.manners.far)?;
    report.begin(about(o, side, cpus, plan, path))?;
    Client { link: &mut side.link, options: o, clock, report }.run()
}

fn about(o: &Options, side: &Side, cpus: &[usize], plan: &Plan, path: String) -> About {
    let address = side.address.clone();
    // Of a server elsewhere only its own command line knows the CPU.
    let pinned = if o.role == Role::Local { cpus } else { cpus.get(..1).unwrap_or_default() };
    let (threading, progress) = (if o.one_thread { "domain" } else { "safe" }, if o.auto { "auto" } else { "manual" });
    let mut how = vec![format!("threading {threading}"), format!("{progress} progress")];
    if !side.link.manners.far {
        how.push(if plan.coop { "the target helps with large copies" } else { "no help from the target" }.into());
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
            ("path", path.clone()),
            ("cpus", cpu_words),
            ("how", how.join(", ")),
        ],
        json: vec![
            ("test", Json::str(o.test.name())),
            ("server", Json::Str(address)),
            ("memory", Json::str(o.memory.name())),
            ("remote_memory", Json::str(o.remote_memory.name())),
            ("path", Json::Str(path)),
            ("cpus", Json::list(pinned.iter().map(|c| Json::Int(*c as u64)))),
            ("threading", Json::str(threading)),
            ("progress", Json::str(progress)),
            ("coop", Json::Bool(plan.coop)),
            ("target_sleeps", Json::Bool(o.sleep)),
            ("depth", if o.test.is_latency() { Json::Null } else { Json::Int(o.depth as u64) }),
            ("deadline_ms", Json::Int(patience_ms(plan))),
            ("device", Json::maybe(side.device.clone())),
        ],
    };
    if let Some(device) = &side.device {
        about.lines.insert(2, ("device", device.clone()));
    }
    about
}

/// The chosen path, and why none of the faster ones, which a network has not.
fn path_words(o: &Options, answer: &PathAnswer, far: bool) -> Result<String> {
    if answer.path.is_empty() {
        return Err(Error::new(errno::EOPNOTSUPP, answer.text.trim_end().to_string()));
    }
    if far {
        return Ok(answer.path.words());
    }
    if o.test.is_message() {
        return Ok(format!("messages up to {} bytes in the ring; longer ones are fetched by the receiver", config::get().eager_max));
    }
    let mut words = answer.path.words();
    // Device memory is not for the CPU to map, and host memory not for a device's driver: that goes without saying.
    let needless = if o.remote_memory.is_device() { "direct" } else { "ipc" };
    let faster = [("direct", &answer.verdicts.direct), ("ipc", &answer.verdicts.ipc), ("cma", &answer.verdicts.cma)];
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

fn main() -> ExitCode {
    let parsed = cli::Args::of_process().and_then(args::parse);
    match parsed {
        Ok(Parsed::Help) => cli::say(&args::help()),
        Ok(Parsed::Version) => cli::say(concat!("gdrfab-perf ", env!("CARGO_PKG_VERSION"), "\n")),
        Err(words) => return cli::usage("gdrfab-perf", &words),
        Ok(Parsed::Run(options)) => {
            return match run(&options) {
                Ok(()) => ExitCode::SUCCESS,
                Err(e) => {
                    let serves = options.role == Role::Server && options.test != Test::MrReg;
                    let side = if serves { "server: " } else { "" };
                    if e.words != report::UNREAD.words {
                        cli::complain(&format!("gdrfab-perf: {side}{e}"));
                    }
                    ExitCode::FAILURE
                }
            };
        }
    };
    ExitCode::SUCCESS
}
