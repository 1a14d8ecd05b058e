// SPDX-License-Identifier: Apache-2.0 OR MIT
//! gdrfab-info: prints what this build of the library offers on this host, what it cannot do here, and why.

mod accelerators;
#[path = "../cli.rs"]
mod cli;
mod host;
mod nics;
mod provider;

use accelerators::Vendor;
use cli::{Args, Word};
use gdrfab::hmem::{Iface, Site};
use gdrfab::log::{self, Level};
use gdrfab::{config, prov};
use host::Fact;
use provider::Provider;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

const VERSION: &str = env!("CARGO_PKG_VERSION");

const HELP: &str = "\
gdrfab-info: what gdrfab offers on this host, and why not more

Usage: gdrfab-info [options]

The drivers of accelerators are opened to ask them; GDRFAB_HMEM=none leaves them alone.

  -p, --provider PROV  only this provider, or connectionless endpoints over this set: shm+tcp for instance
  -n, --near WHERE     NICs in the order of their distance to an accelerator, cuda:0 for instance
  -e, --env            the environment variables: default, value now, meaning
  -v, --verbose        every attribute of every provider, and the facts of the host
      --json           everything, as JSON
      --make-key FILE  only makes FILE, with a private key for GDRFAB_TCP_KEY_FILE, and prints its public key
  -V, --version        the version
  -h, --help           this text

Exit status: 0, 1 if no provider can be used or the answer cannot be written, 2 for a wrong command line.
";

#[derive(Default)]
struct Options {
    provider: Option<String>,
    near: Option<Site>,
    env: bool,
    verbose: bool,
    json: bool,
    make_key: Option<String>,
}

/// Parses "cuda:0", or "cuda" for its first device.
fn site(text: &str) -> Result<Site, String> {
    let (name, device) = text.split_once(':').unwrap_or((text, "0"));
    let iface = Iface::ALL.into_iter().find(|i| *i != Iface::System && i.name() == name);
    match (iface, device.parse()) {
        (Some(iface), Ok(device)) => Ok(Site { iface, device }),
        _ => Err(format!("--near {text}: an interface and a number, such as cuda:0, are expected")),
    }
}

/// The request of the command line: options, or a text to print.
fn parse() -> Result<Result<Options, String>, String> {
    let mut args = Args::of_process()?;
    let mut options = Options::default();
    while let Some(word) = args.next()? {
        let option = match word {
            Word::Plain(word) => return Err(format!("{word:?}: no operand is expected")),
            Word::Option(option) => option,
        };
        match option.as_str() {
            "-p" | "--provider" => options.provider = Some(args.value(&option)?),
            "-n" | "--near" => options.near = Some(site(&args.value(&option)?)?),
            "-e" | "--env" => options.env = true,
            "-v" | "--verbose" => options.verbose = true,
            "--json" => options.json = true,
            "--make-key" => options.make_key = Some(args.value(&option)?),
            "-V" | "--version" => return Ok(Err(format!("gdrfab-info {VERSION}\n"))),
            "-h" | "--help" => return Ok(Err(HELP.to_string())),
            _ => return Err(format!("{option}: there is no such option")),
        }
    }
    if let Some(wanted) = &options.provider {
        let names = provider::names();
        if !names.contains(&wanted.as_str()) {
            return Err(format!("--provider {wanted}: this build has {}", names.join(", ")));
        }
    }
    Ok(Ok(options))
}

/// The library's warnings about the environment, which the library itself does not print.
fn listen_to_complaints() -> Arc<Mutex<Vec<String>>> {
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    if std::env::var_os("GDRFAB_LOG").is_none() {
        let sink = heard.clone();
        log::set(Level::Warn, Some(Box::new(move |_, line| sink.lock().unwrap_or_else(|e| e.into_inner()).push(line.to_string()))));
    }
    heard
}

fn value_now(name: &str) -> Option<String> {
    std::env::var_os(name).map(|v| v.to_string_lossy().into_owned())
}

fn environment_text() -> String {
    let mut out = String::new();
    for v in config::VARIABLES {
        let default = if v.default.is_empty() { "none" } else { v.default };
        let now = value_now(v.name).map_or("not set".to_string(), |n| format!("{n:?}"));
        let allowed = Some(v.kind.allowed()).filter(|words| !words.is_empty()).map_or(String::new(), |words| format!("; {words}"));
        let _ = writeln!(out, "{}\n    default {default}; now {now}{allowed}\n    {}", v.name, v.help);
    }
    let others = config::unknown();
    if !others.is_empty() {
        let _ = writeln!(out, "set, but no variables of this library: {}", others.join(", "));
    }
    out
}

fn environment_json() -> Value {
    let variables = config::VARIABLES.iter();
    variables
        .map(|v| json!({"name": v.name, "default": v.default, "value": value_now(v.name), "allowed": v.kind.allowed(), "help": v.help}))
        .collect()
}

fn text(options: &Options, providers: &[Provider], vendors: &[Vendor], complaints: &[String]) -> String {
    let mut out = format!("gdrfab {VERSION}\n");
    let shown: Vec<Fact> = host::facts().into_iter().filter(|f| options.verbose || f.brief).collect();
    let pairs: Vec<String> = shown.iter().map(|f| f.value.clone()).collect();
    if options.verbose {
        out.push_str("\nhost\n");
        for fact in &shown {
            let _ = writeln!(out, "  {:<16} {}", fact.name, fact.value);
        }
    } else {
        let _ = writeln!(out, "on {}", pairs.join(", "));
    }
    let (connected, sets): (Vec<&Provider>, Vec<&Provider>) = providers.iter().partition(|p| !p.is_set());
    for provider in connected {
        out.push('\n');
        out.push_str(&provider.text(options.verbose));
    }
    // Accelerators are printed in full if they were asked for.
    if options.verbose || options.provider.is_some() {
        sets.iter().for_each(|set| out.push_str(&format!("\n{}", set.text(options.verbose))));
    } else {
        out.push_str("\nconnectionless endpoints over\n");
        sets.iter().for_each(|set| out.push_str(&set.line()));
    }
    let _ = write!(out, "\naccelerators\n{}", accelerators::text(vendors, options.verbose));
    if options.env {
        let _ = write!(out, "\nenvironment\n{}", indent(&environment_text()));
    }
    if !complaints.is_empty() {
        let _ = write!(out, "\nnot as it should be\n{}", indent(&complaints.join("\n")));
    }
    out
}

fn indent(text: &str) -> String {
    text.lines().map(|l| format!("  {l}\n")).collect()
}

fn as_json(providers: &[Provider], vendors: &[Vendor], complaints: &[String]) -> Value {
    json!({
        "program": "gdrfab-info",
        "version": VERSION,
        "host": host::facts().into_iter().map(|f| (f.name.replace(' ', "_"), f.value.into())).collect::<Map<_, _>>(),
        "providers": providers.iter().filter(|p| !p.is_set()).map(Provider::json).collect::<Value>(),
        "connectionless": providers.iter().filter(|p| p.is_set()).map(Provider::json).collect::<Value>(),
        "accelerators": vendors.iter().map(Vendor::json).collect::<Value>(),
        "environment": environment_json(),
        "complaints": complaints,
    })
}

fn main() -> ExitCode {
    let options = match parse() {
        Ok(Ok(options)) => options,
        Ok(Err(text)) => return cli::conclude(&text),
        Err(words) => return cli::usage("gdrfab-info", &words),
    };
    if let Some(path) = &options.make_key {
        return match prov::tcp::secure::known::make(path) {
            Ok(public) => cli::conclude(&format!("{public}\n")),
            Err(e) => {
                cli::complain(&format!("gdrfab-info: {e}"));
                ExitCode::FAILURE
            }
        };
    }
    let only_env = options.env && !options.verbose && options.provider.is_none() && options.near.is_none() && !options.json;
    if only_env {
        let wrong = config::check().err();
        let said = cli::say(&(environment_text() + &wrong.iter().map(|e| format!("\n{e}\n")).collect::<String>()));
        return if said && wrong.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let complaints = listen_to_complaints();
    let providers = match provider::all(options.provider.as_deref(), options.near) {
        Ok(providers) => providers,
        Err(e) => {
            cli::complain(&format!("gdrfab-info: {e}"));
            return ExitCode::FAILURE;
        }
    };
    let vendors = accelerators::all();
    let complaints = complaints.lock().unwrap_or_else(|e| e.into_inner()).clone();
    let said = cli::say(&match options.json {
        true => format!("{:#}\n", as_json(&providers, &vendors, &complaints)),
        false => text(&options, &providers, &vendors, &complaints),
    });
    if said && providers.iter().any(|p| p.is_usable()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
