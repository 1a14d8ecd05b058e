// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses `GDRFAB_FAULT`: the faults to inject, and the provider of each. `prov::fault` injects the faults;
//! `docs/faults.md` describes the syntax and the effects.

use super::names::{PATHS, PROVIDERS};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The kinds of operations that faults distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOp {
    Write,
    Read,
    Send,
    Recv,
}

/// The part of a registration that is refused: one path, or everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The path with this bit; the registration goes on with the next path.
    Path(u64),
    /// The whole registration, before any path is tried.
    Whole,
}

/// The effect of a fault. An `op` of `None` stands for operations of every kind. Counts begin with 1.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Operations start late, by at least `ns`.
    Delay { ns: u64, op: Option<FaultOp> },
    /// An endpoint's operation number `nth` loses the connection.
    Drop {
        nth: u64,
        op: Option<FaultOp>,
        /// For a fault that happens only once in this process: true when the fault has happened.
        once: Option<Arc<AtomicBool>>,
    },
    /// A registration is refused: a domain's registration number `nth`; `None`: every registration.
    Refuse { step: Step, nth: Option<u64> },
    /// Transfers that go in parts go in parts of at most this many bytes.
    Short(usize),
    /// A rail is lost after every `segments` segments that it has carried: the rail `number`; `None`: each rail.
    Rail { segments: u64, number: Option<usize> },
}

#[derive(Clone, Debug)]
pub struct Fault {
    /// The provider whose endpoints and domains are affected; `None`: all.
    pub provider: Option<&'static str>,
    pub effect: Effect,
}

const OPS: [(&str, FaultOp); 4] = [("write", FaultOp::Write), ("read", FaultOp::Read), ("send", FaultOp::Send), ("recv", FaultOp::Recv)];

fn number(text: &str, low: u64, high: u64) -> Result<u64, String> {
    text.parse().ok().filter(|n| (low..=high).contains(n)).ok_or_else(|| format!("{text:?} is no number from {low} to {high}"))
}

fn op(word: &str) -> Result<FaultOp, String> {
    let known = OPS.iter().find(|(w, _)| *w == word).map(|(_, op)| *op);
    known.ok_or_else(|| format!("{word:?} is no operation (write, read, send, recv)"))
}

fn step(word: &str) -> Result<Step, String> {
    if word == "register" {
        return Ok(Step::Whole);
    }
    let bit = PATHS.iter().position(|w| *w == word).map(|i| 1 << i);
    bit.map(Step::Path).ok_or_else(|| format!("{word:?} is no step (register, {})", PATHS.join(", ")))
}

/// Parses one fault without its provider, such as `drop=5:write:once`.
fn effect(text: &str) -> Result<Effect, String> {
    let (word, value) = text.split_once('=').ok_or("delay=, drop=, refuse=, short= or rail= is expected")?;
    let mut parts = value.split(':');
    let first = parts.next().unwrap_or_default();
    let effect = match word {
        "delay" => Effect::Delay { ns: number(first, 1, 60_000_000)? * 1000, op: parts.next().map(op).transpose()? },
        "drop" => {
            let nth = number(first, 1, u64::MAX)?;
            let (mut of, mut once) = (None, None);
            for part in parts.by_ref() {
                match part {
                    "once" if once.is_none() => once = Some(Arc::default()),
                    _ if of.is_none() && once.is_none() => of = Some(op(part)?),
                    _ => return Err(format!("{part:?} is one word too many")),
                }
            }
            Effect::Drop { nth, op: of, once }
        }
        "refuse" => Effect::Refuse { step: step(first)?, nth: parts.next().map(|n| number(n, 1, u64::MAX)).transpose()? },
        "short" => Effect::Short(number(first, 1, 1 << 30)? as usize),
        "rail" => {
            let segments = number(first, 1, u64::MAX)?;
            Effect::Rail { segments, number: parts.next().map(|n| number(n, 0, 7)).transpose()?.map(|n| n as usize) }
        }
        _ => return Err(format!("{word:?} is no fault (delay, drop, refuse, short, rail)")),
    };
    match parts.next() {
        None => Ok(effect),
        Some(more) => Err(format!("{more:?} is one word too many")),
    }
}

/// Parses one fault with its provider, if it names one, such as `tcp/drop=5`.
fn one(text: &str) -> Result<Fault, String> {
    let (provider, rest) = match text.split_once('/') {
        None => (None, text),
        Some((name, rest)) => match PROVIDERS.iter().find(|p| **p == name) {
            Some(known) => (Some(*known), rest),
            None => return Err(format!("{name:?} is no provider ({})", PROVIDERS.join(", "))),
        },
    };
    match (provider, effect(rest)?) {
        (Some("shm"), Effect::Rail { .. }) => Err("shm has no rails, tcp and verbs have".into()),
        (provider, effect) => Ok(Fault { provider, effect }),
    }
}

/// The faults of a list, and an explanation for each invalid item of the list. Invalid items are reported, because a test
/// proves nothing if the fault on which it relies is not injected.
pub fn parse(text: &str) -> (Vec<Fault>, Vec<String>) {
    let (mut faults, mut errors) = (Vec::new(), Vec::new());
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        match one(item) {
            Ok(fault) => faults.push(fault),
            Err(why) => errors.push(format!("{item:?}: {why}")),
        }
    }
    (faults, errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(text: &str) -> Fault {
        let (mut faults, errors) = parse(text);
        assert!(errors.is_empty() && faults.len() == 1, "{text}: {errors:?}");
        faults.remove(0)
    }

    #[test]
    fn every_word_of_the_list_is_understood() {
        assert!(matches!(only("delay=200").effect, Effect::Delay { ns: 200_000, op: None }));
        assert!(matches!(only("delay=1:recv").effect, Effect::Delay { ns: 1000, op: Some(FaultOp::Recv) }));
        assert!(matches!(only("drop=5").effect, Effect::Drop { nth: 5, op: None, once: None }));
        assert!(matches!(only("drop=1:read").effect, Effect::Drop { nth: 1, op: Some(FaultOp::Read), once: None }));
        assert!(matches!(only("drop=7:once").effect, Effect::Drop { nth: 7, op: None, once: Some(_) }));
        assert!(matches!(only("drop=7:send:once").effect, Effect::Drop { op: Some(FaultOp::Send), once: Some(_), .. }));
        assert!(matches!(only("refuse=register").effect, Effect::Refuse { step: Step::Whole, nth: None }));
        assert!(matches!(only("refuse=cma:3").effect, Effect::Refuse { step: Step::Path(2), nth: Some(3) }));
        assert!(matches!(only("short=1").effect, Effect::Short(1)));
        assert!(matches!(only("tcp/rail=9").effect, Effect::Rail { segments: 9, number: None }));
        assert!(matches!(only("rail=1:7").effect, Effect::Rail { segments: 1, number: Some(7) }));
        assert_eq!(only(" tcp/drop=5 ").provider, Some("tcp"));
        assert_eq!(parse("short=1, verbs/refuse=nic:1,refuse=peer-mem").0.len(), 3);
        assert_eq!(parse(" , ").0.len() + parse("").1.len(), 0);
    }

    #[test]
    fn what_makes_no_sense_is_told_and_spoils_nothing_else() {
        let bad = [
            "delay",
            "delay=",
            "delay=0",
            "delay=60000001",
            "delay=5:atomic",
            "delay=5:send:recv",
            "drop=0",
            "drop=-1",
            "drop=5:once:once",
            "drop=5:once:send",
            "drop=5:send:read",
            "refuse=",
            "refuse=dma",
            "refuse=cma:0",
            "refuse=cma:1:2",
            "short=0",
            "short=2:send",
            "rail=0",
            "rail=1:8",
            "rail=1:0:once",
            "shm/rail=1",
            "mangle=1",
            "udp/drop=1",
            "/drop=1",
            "tcp/",
            "delay=99999999999999999999999",
            "=",
            "\u{0}=\u{ffff}",
        ];
        for text in bad {
            let (faults, errors) = parse(&format!("short=9,{text}"));
            assert!(faults.len() == 1 && errors.len() == 1, "{text:?}: {faults:?} {errors:?}");
        }
    }
}
