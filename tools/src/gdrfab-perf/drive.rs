// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options that say how operations are posted, as perftest has them: lists, directions, endpoints, inline data, pace, and
//! the way in which the two sides find each other; and the rules between these options.

use crate::cli::Args;
use crate::tests::Test;

pub const HELP: &str = "  -l, --post-list N     N operations to a post (1), for bandwidth and rate
  -b, --bidirectional   both sides run the window at once; the figures are sums
  -q, --endpoints N     N connections (1 to 64) share the window's operations; the depth is
                        that of each
  -I, --inline N        operations of up to N bytes travel with the request; 0: none does
                        (over RDMA a server that posts too has to be told -I 0 itself)
      --rate-limit X    at most so much, for bandwidth and rate, of each side
      --rate-unit UNIT  g: Gb/s (the default), m: MB/s, p: messages a second
      --burst N         so many operations at once, then a pause (the post list)
      --connect HOW     cm: listen and connect (also -R; the default); addresses: the sides
                        tell each other their endpoints' addresses over a TCP socket, which
                        listens on 127.0.0.1, or where --name says (0.0.0.0: everywhere)
      --ep KIND         msg (the default), or rdm: connectionless endpoints, by addresses,
                        over the set that -p names, as shm+tcp, or the library offers first
      --tagged          of --ep rdm: messages have tags
      --control-port N  of that socket (18515)
  -x, --gid-index N     entry of the RDMA port's GID table (a server has its own)
      --report-gbits    bandwidths in Gb/s
";

/// The most connections between the two sides.
pub const MAX_ENDPOINTS: usize = 64;
/// The largest inline size that is accepted, as for the word `inline` of `GDRFAB_DEBUG`.
pub const MAX_INLINE: usize = 4096;
const MAX_BURST: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Gbits,
    Megabytes,
    Messages,
}

impl Unit {
    pub fn words(self) -> &'static str {
        match self {
            Unit::Gbits => "Gb/s",
            Unit::Megabytes => "MB/s",
            Unit::Messages => "messages/s",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    pub rate: f64,
    pub unit: Unit,
    /// The number of operations of a burst.
    pub burst: u64,
}

impl Limit {
    /// The nanoseconds from one burst to the next.
    pub fn gap_ns(&self, size: usize) -> u64 {
        let per_second = match self.unit {
            Unit::Gbits => self.rate * 1e9 / 8.0 / size as f64,
            Unit::Megabytes => self.rate * 1e6 / size as f64,
            Unit::Messages => self.rate,
        };
        ((self.burst as f64 * 1e9 / per_second) as u64).max(1)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Drive {
    pub list: usize,
    pub both: bool,
    pub endpoints: usize,
    /// The inline size; `None`: the provider's own.
    pub inline: Option<usize>,
    pub limit: Option<Limit>,
    /// Endpoints connect by exchanged addresses, and not by listening.
    pub addresses: bool,
    pub control_port: Option<u16>,
    /// Endpoints are connectionless.
    pub rdm: bool,
    pub tagged: bool,
    pub gid_index: Option<u8>,
    pub gbits: bool,
    rate: Option<f64>,
    unit: Option<Unit>,
    burst: Option<u64>,
}

impl Default for Drive {
    fn default() -> Drive {
        Drive {
            list: 1,
            both: false,
            endpoints: 1,
            inline: None,
            limit: None,
            addresses: false,
            control_port: None,
            rdm: false,
            tagged: false,
            gid_index: None,
            gbits: false,
            rate: None,
            unit: None,
            burst: None,
        }
    }
}

impl Drive {
    /// Takes one option of the command line. False: it is none of these.
    pub fn take(&mut self, option: &str, args: &mut Args) -> Result<bool, String> {
        match option {
            "-l" | "--post-list" => self.list = args.number(option, "a number from 1 up")?,
            "-b" | "--bidirectional" => self.both = true,
            "-q" | "--endpoints" => self.endpoints = args.number(option, "a number from 1 up")?,
            "-I" | "--inline" => self.inline = Some(args.number(option, "a number of bytes")?),
            "--rate-limit" => self.rate = Some(args.number(option, "a number")?),
            "--rate-unit" => self.unit = Some(unit(&args.value(option)?)?),
            "--burst" => self.burst = Some(args.number(option, "a number from 1 up")?),
            "-R" => self.addresses = false,
            "--connect" => self.addresses = addresses(&args.value(option)?)?,
            "--ep" => self.rdm = connectionless(&args.value(option)?)?,
            "--tagged" => self.tagged = true,
            "--control-port" => self.control_port = Some(args.number(option, "a port")?),
            "-x" | "--gid-index" => self.gid_index = Some(args.number(option, "an index from 0 to 255")?),
            "--report-gbits" => self.gbits = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks the rules between the options.
    pub fn check(&mut self, test: Test, depth: usize, cq_mod: Option<usize>) -> Result<(), String> {
        let windows = test.is_window();
        let only = [
            ("--post-list", self.list != 1),
            ("--bidirectional", self.both),
            ("--endpoints", self.endpoints != 1),
            ("--rate-limit", self.rate.is_some()),
        ];
        if let Some((name, _)) = only.iter().find(|(_, given)| *given && !windows) {
            return Err(format!("{name}: for bandwidth and rate only: {} has one operation under way at a time", test.name()));
        }
        if self.both && test.action().is_some() {
            return Err(format!("--bidirectional: {} is of the client alone", test.name()));
        }
        if !(1..=depth).contains(&self.list) {
            return Err(format!("--post-list {}: 1 to the depth, {depth}, is expected", self.list));
        }
        if let Some(n) = cq_mod.filter(|n| n % self.list != 0) {
            return Err(format!(
                "--cq-mod {n}: a multiple of --post-list {} is expected, for a list has one completion at most",
                self.list
            ));
        }
        if !(1..=MAX_ENDPOINTS).contains(&self.endpoints) {
            return Err(format!("--endpoints {}: 1 to {MAX_ENDPOINTS} is expected", self.endpoints));
        }
        if let Some(n) = self.inline.filter(|n| *n > MAX_INLINE) {
            return Err(format!("--inline {n}: 0 to {MAX_INLINE} is expected"));
        }
        if self.rdm && !test.is_for_rdm() {
            return Err(format!("--ep rdm: {} is for connected endpoints", test.name()));
        }
        if self.tagged && !(self.rdm && test.is_message()) {
            return Err("--tagged: messages of --ep rdm have tags".into());
        }
        self.addresses |= self.rdm;
        if self.control_port.is_some() && !self.addresses {
            return Err("--control-port: is that of --connect addresses".into());
        }
        let list = self.list as u64;
        let burst = self.burst.unwrap_or(list);
        self.limit = match (self.rate, self.unit, self.burst) {
            (None, Some(_), _) => return Err("--rate-unit: of which --rate-limit?".into()),
            (None, _, Some(_)) => return Err("--burst: of which --rate-limit?".into()),
            (None, None, None) => None,
            (Some(rate), ..) if !(1e-9..=1e12).contains(&rate) => return Err(format!("--rate-limit {rate}: more than 0 is expected")),
            (Some(_), ..) if !(list..=MAX_BURST).contains(&burst) => {
                return Err(format!("--burst {burst}: the post list, {list}, to {MAX_BURST} is expected"));
            }
            (Some(rate), unit, _) => Some(Limit { rate, unit: unit.unwrap_or(Unit::Gbits), burst }),
        };
        Ok(())
    }

    /// The options that apply, for the head of a report.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if self.rdm {
            words.push(if self.tagged { "connectionless, tagged" } else { "connectionless" }.into());
        }
        if self.list > 1 {
            words.push(format!("{} operations to a post", self.list));
        }
        if self.both {
            words.push("both directions at once".into());
        }
        if self.endpoints > 1 {
            words.push(format!("{} endpoints", self.endpoints));
        }
        if let Some(limit) = self.limit {
            let side = if self.both { " of each side" } else { "" };
            words.push(format!("at most {} {}{side} in bursts of {}", limit.rate, limit.unit.words(), limit.burst));
        }
        words
    }
}

fn unit(word: &str) -> Result<Unit, String> {
    match word {
        "g" => Ok(Unit::Gbits),
        "m" | "M" => Ok(Unit::Megabytes),
        "p" => Ok(Unit::Messages),
        _ => Err(format!("--rate-unit {word}: g (Gb/s), m (MB/s) or p (messages a second) is expected")),
    }
}

fn connectionless(word: &str) -> Result<bool, String> {
    match word {
        "msg" => Ok(false),
        "rdm" => Ok(true),
        _ => Err(format!("--ep {word}: msg or rdm is expected")),
    }
}

fn addresses(word: &str) -> Result<bool, String> {
    match word {
        "cm" => Ok(false),
        "addresses" => Ok(true),
        _ => Err(format!("--connect {word}: cm or addresses is expected")),
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_limit_is_a_pause_between_bursts() {
        let limit = |rate, unit, burst| Limit { rate, unit, burst };
        assert_eq!(limit(8.0, Unit::Gbits, 1).gap_ns(1000), 1000);
        assert_eq!(limit(1.0, Unit::Megabytes, 4).gap_ns(1000), 4_000_000);
        assert_eq!(limit(1000.0, Unit::Messages, 2).gap_ns(7), 2_000_000);
        assert_eq!(limit(1e12, Unit::Messages, 1).gap_ns(7), 1);
    }
}
