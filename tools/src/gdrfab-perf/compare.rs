// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `gdrfab-perf compare`: compares two files of results size by size, and lists the other differences between the runs, since
//! a ratio of two different measurements tells little.

use crate::cli::{self, Args, Word};
use crate::report::number;
use crate::results::{Kind, Results, tame};
use gdrfab::error::{self, Error, errno};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

pub const HELP: &str = "\
gdrfab-perf compare: two files of results size by size

Usage: gdrfab-perf compare A.json B.json [options]

A and B are what runs wrote with --out or --json, both latencies or both bandwidths. A ratio is B / A. What differs in
how they were measured is told as well.

      --limit PERCENT  fail if B's typical latency is more than so much above A's, or its average bandwidth below, at
                       any size
      --json           as JSON
  -h, --help           this text

Exit status: 0, 1 if a file is of no use or B is beyond the limit, 2 for a wrong command line.
";

#[derive(Debug, Default)]
pub struct Compare {
    files: Vec<String>,
    limit: Option<f64>,
    json: bool,
}

/// Parses the rest of the command line; `None` if only help is wanted.
pub fn parse(mut args: Args) -> Result<Option<Compare>, String> {
    let mut compare = Compare::default();
    while let Some(word) = args.next()? {
        match word {
            Word::Plain(file) => compare.files.push(file),
            Word::Option(option) => match option.as_str() {
                "--limit" => {
                    let percent: f64 = args.number(&option, "a percentage")?;
                    if !(0.0..=1e6).contains(&percent) {
                        return Err(format!("--limit {percent}: a percentage from 0 up is expected"));
                    }
                    compare.limit = Some(percent);
                }
                "--json" => compare.json = true,
                "-h" | "--help" => return Ok(None),
                _ => return Err(format!("compare {option}: there is no such option")),
            },
        }
    }
    match compare.files.len() {
        2 => Ok(Some(compare)),
        n => Err(format!("compare: two files are expected, not {n}")),
    }
}

/// A figure that is compared: its key, and the head of its column.
type Figure = (&'static str, &'static str);

/// The first figure decides: the tail of a distribution is another matter, and a rate follows from the bandwidth. For tests
/// of writes and reads both figures decide.
fn figures(kind: Kind) -> [Figure; 2] {
    match kind {
        Kind::Latency => [(kind.main_figure(), "t_typical[usec]"), ("t_p99_usec", "99%[usec]")],
        Kind::Rate => [(kind.main_figure(), "BW average[MB/sec]"), ("msg_rate_mpps", "MsgRate[Mpps]")],
        Kind::Transfer => [(kind.main_figure(), "write[GB/sec]"), ("read_gb_s", "read[GB/sec]")],
    }
}

/// One size in both files.
#[derive(Debug)]
struct Pair {
    bytes: u64,
    /// For each figure, the values of A and B.
    values: Vec<(f64, f64)>,
    paths: [String; 2],
    worse: bool,
}

#[derive(Debug)]
struct Findings {
    figures: Vec<Figure>,
    pairs: Vec<Pair>,
    /// Sizes that only A has, and those that only B has.
    only: [Vec<u64>; 2],
    /// Keys that describe the measurement and differ, with the values of A and B.
    differences: Vec<(String, Value, Value)>,
}

/// Keys that differ between any two runs of the same measurement.
const OWN: [&str; 4] = ["server", "registration_bytes", "registration_usec", "remote_registration_usec"];

/// The identity of a row: its size, and its number among the rows of that size.
fn keyed(file: &Results) -> BTreeMap<(u64, usize), usize> {
    let mut seen = BTreeMap::new();
    let key = |bytes| {
        let n = seen.entry(bytes).or_insert(0);
        *n += 1;
        (bytes, *n)
    };
    file.lines.iter().map(|line| line.bytes.get()).map(key).zip(0..).collect()
}

fn find(a: &Results, b: &Results, limit: Option<f64>) -> error::Result<Findings> {
    if a.kind != b.kind {
        let (of_a, of_b) = (a.kind.main_figure(), b.kind.main_figure());
        let words = format!("{} has {of_a} and {} has {of_b}, which cannot be compared", a.name, b.name);
        return Err(Error::new(errno::EINVAL, words));
    }
    let figures = figures(a.kind).to_vec();
    let both = |key: &str| Ok((a.figures(key)?, b.figures(key)?));
    let values: Vec<(Vec<f64>, Vec<f64>)> = figures.iter().map(|(key, _)| both(key)).collect::<error::Result<_>>()?;
    let (rows_a, rows_b) = (keyed(a), keyed(b));
    let share = limit.map(|percent| percent / 100.0);
    let mut pairs = Vec::new();
    for (key, i) in &rows_a {
        let Some(j) = rows_b.get(key) else { continue };
        let values: Vec<(f64, f64)> = values.iter().map(|(a, b)| (a[*i], b[*j])).collect();
        let deciding = if a.kind == Kind::Transfer { values.len() } else { 1 };
        let beyond = |ratio: f64, share: f64| if a.kind == Kind::Latency { ratio > 1.0 + share } else { ratio < 1.0 - share };
        let worse = share.is_some_and(|share| values[..deciding].iter().any(|(a, b)| beyond(b / a, share)));
        pairs.push(Pair { bytes: key.0, values, paths: [a.lines[*i].path.clone(), b.lines[*j].path.clone()], worse });
    }
    if pairs.is_empty() {
        return Err(Error::new(errno::EINVAL, format!("{} and {} have no size in common", a.name, b.name)));
    }
    let missing = |here: &BTreeMap<(u64, usize), usize>, there: &BTreeMap<(u64, usize), usize>| {
        here.keys().filter(|key| !there.contains_key(key)).map(|key| key.0).collect()
    };
    let only = [missing(&rows_a, &rows_b), missing(&rows_b, &rows_a)];
    Ok(Findings { figures, pairs, only, differences: differences(&a.run, &b.run) })
}

fn differences(a: &Map<String, Value>, b: &Map<String, Value>) -> Vec<(String, Value, Value)> {
    let mut seen = BTreeSet::new();
    let keys = a.keys().chain(b.keys()).filter(|key| !OWN.contains(&key.as_str()) && seen.insert(key.as_str()));
    let of = |map: &Map<String, Value>, key: &str| map.get(key).cloned().unwrap_or_default();
    keys.map(|key| (key.clone(), of(a, key), of(b, key))).filter(|(_, a, b)| a != b).collect()
}

/// Writes the comparison. Returns words if B is worse than the limit allows.
pub fn run(compare: &Compare) -> error::Result<Option<String>> {
    let [a, b] = [&compare.files[0], &compare.files[1]].map(|name| Results::load(name));
    let (a, b) = (a?, b?);
    let found = find(&a, &b, compare.limit)?;
    let out = if compare.json { format!("{:#}\n", found.json(&a, &b, compare.limit)) } else { found.text(&a, &b) };
    if !cli::say(&out) {
        return Err(crate::report::UNREAD);
    }
    let worse: Vec<String> = found.pairs.iter().filter(|pair| pair.worse).map(|pair| pair.bytes.to_string()).collect();
    let limit = compare.limit.filter(|_| !worse.is_empty());
    Ok(limit.map(|limit| format!("{} is worse than {} by more than {limit} % at {} bytes", b.name, a.name, worse.join(", "))))
}

/// A value of a run as text that is safe to show, whoever wrote the file.
fn shown(value: &Value) -> String {
    tame(&match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    })
}

impl Findings {
    fn text(&self, a: &Results, b: &Results) -> String {
        let mut out = format!(" A          {}: {}\n B          {}: {}\n", a.name, a.test, b.name, b.test);
        for (key, a, b) in &self.differences {
            out.push_str(&format!(" differs    {}: {} in A, {} in B\n", tame(key), shown(a), shown(b)));
        }
        let heads: String = self.figures.iter().map(|(_, head)| format!("{head:>28}{:>8}", "")).collect();
        let columns = format!("{:>14}{:>14}{:>8}", "A", "B", "B/A").repeat(self.figures.len());
        out.push_str(&format!("\n{:>12}{}\n{:>12}{columns}  path\n", "", heads.trim_end(), "#bytes"));
        for pair in &self.pairs {
            out.push_str(&format!("{:>12}", pair.bytes));
            pair.values.iter().for_each(|(a, b)| out.push_str(&format!(" {:>13} {:>13} {:>7.3}", number(*a), number(*b), b / a)));
            let [a, b] = &pair.paths;
            let path = if a == b { a.clone() } else { format!("{a} in A, {b} in B") };
            out.push_str(&format!("  {path}{}\n", if pair.worse { "  WORSE" } else { "" }));
        }
        for (name, sizes) in ["A", "B"].iter().zip(&self.only).filter(|(_, sizes)| !sizes.is_empty()) {
            let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
            out.push_str(&format!("\n Only {name} has {} bytes.\n", sizes.join(", ")));
        }
        out
    }

    fn json(&self, a: &Results, b: &Results, limit: Option<f64>) -> Value {
        let results = self.pairs.iter().map(|pair| {
            let mut row = json!({"bytes": pair.bytes});
            for ((key, _), (a, b)) in self.figures.iter().zip(&pair.values) {
                row[*key] = json!({"a": a, "b": b, "ratio": b / a});
            }
            row["path"] = json!({"a": pair.paths[0], "b": pair.paths[1]});
            row["worse"] = json!(limit.map(|_| pair.worse));
            row
        });
        let differences = self.differences.iter().map(|(key, a, b)| (key.clone(), json!({"a": a, "b": b})));
        json!({
            "program": "gdrfab-perf compare",
            "version": env!("CARGO_PKG_VERSION"),
            "a": a.name,
            "b": b.name,
            "limit_percent": limit,
            "within_limit": limit.map(|_| !self.pairs.iter().any(|pair| pair.worse)),
            "differences": differences.collect::<Map<_, _>>(),
            "only_in_a": self.only[0],
            "only_in_b": self.only[1],
            "results": results.collect::<Value>(),
        })
    }
}

#[cfg(test)]
mod unit {
    use super::*;
    use crate::results::unit::results;

    fn rates(name: &str, depth: u64, rows: &[(u64, f64)]) -> Results {
        let row = |(bytes, mb): &(u64, f64)| json!({"bytes": bytes, "bw_average_mb_s": mb, "msg_rate_mpps": mb / *bytes as f64});
        results(name, json!({"test": "write-bw", "server": name, "depth": depth}), rows.iter().map(row).collect()).unwrap()
    }

    #[test]
    fn worse_is_smaller_bandwidth_and_larger_latency() {
        let (a, b) = (rates("a", 64, &[(8, 100.0), (16, 100.0), (32, 1.0)]), rates("b", 32, &[(16, 94.0), (8, 96.0), (64, 1.0)]));
        let found = find(&a, &b, Some(5.0)).unwrap();
        let worse: Vec<(u64, bool)> = found.pairs.iter().map(|p| (p.bytes, p.worse)).collect();
        assert_eq!(worse, [(8, false), (16, true)]);
        assert_eq!(found.only, [vec![32], vec![64]]);
        assert_eq!(found.differences, [("depth".to_string(), json!(64), json!(32))]);
        assert!(find(&b, &a, Some(5.0)).unwrap().pairs.iter().all(|p| !p.worse));
        let lat = |us: f64| results("l", json!({"test": "t"}), json!([{"bytes": 8, "t_typical_usec": us, "t_p99_usec": us}])).unwrap();
        assert!(find(&lat(1.0), &lat(1.06), Some(5.0)).unwrap().pairs[0].worse);
        assert!(!find(&lat(1.0), &lat(1.04), Some(5.0)).unwrap().pairs[0].worse);
        assert!(!find(&lat(1.0), &lat(9.0), None).unwrap().pairs[0].worse);
        let both = |read: f64| results("b", json!({"test": "t"}), json!([{"bytes": 8, "write_gb_s": 1, "read_gb_s": read}])).unwrap();
        assert!(find(&both(1.0), &both(0.9), Some(5.0)).unwrap().pairs[0].worse, "reads alone are worse");
        assert!(find(&lat(1.0), &a, None).unwrap_err().words.contains("cannot be compared"));
        assert!(find(&a, &rates("c", 64, &[(1, 1.0)]), None).unwrap_err().words.contains("no size in common"));
    }

    #[test]
    fn the_command_line_is_understood_and_mistakes_named() {
        let words = |line: &str| parse(Args::new(line.split(' ').map(String::from)));
        assert_eq!(words("a b --limit 2.5").unwrap().unwrap().limit, Some(2.5));
        for (line, word) in
            [("a", "not 1"), ("a b c", "not 3"), ("a b --limit -1", "--limit"), ("a b --limit nan", "--limit"), ("a --x", "--x")]
        {
            assert!(words(line).unwrap_err().contains(word), "{line}");
        }
    }
}
