// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results for people, in perftest's columns, or for programs, as JSON; and a progress bar where
//! somebody watches.

use crate::cli;
use crate::json::Json;
use crate::stats::{Clock, Histogram};
use gdrfab::error::{Error, Result, errno};
use std::io::{IsTerminal, Write};

/// Microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latency {
    pub min: f64,
    pub max: f64,
    pub typical: f64,
    pub avg: f64,
    pub stdev: f64,
    pub p99: f64,
    pub p999: f64,
}

impl Latency {
    /// `parts`: what a sample is to be divided by.
    pub fn of(samples: &Histogram, clock: Clock, parts: u64) -> Latency {
        let us = |ticks: f64| clock.us(ticks) / parts as f64;
        Latency {
            min: us(samples.min()),
            max: us(samples.max()),
            typical: us(samples.quantile(0.5)),
            avg: us(samples.mean()),
            stdev: us(samples.deviation()),
            p99: us(samples.quantile(0.99)),
            p999: us(samples.quantile(0.999)),
        }
    }
}

/// MB are 10^6 bytes; the rate is in millions a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    pub peak: f64,
    pub avg: f64,
    pub median: f64,
    /// What 99 % of all slices reached.
    pub p99: f64,
    pub mops: f64,
}

#[derive(Clone, Copy, Debug)]
pub enum Figures {
    Latency(Latency),
    Rate(Rate),
}

#[derive(Clone, Debug)]
pub struct Row {
    pub size: usize,
    pub iterations: u64,
    /// Operations to a sample.
    pub batch: u64,
    pub figures: Figures,
    /// The path that the bytes took; none where no bytes went.
    pub path: Option<String>,
    /// Share of them that the peer's CPU carried.
    pub helped: f64,
    pub verified: bool,
}

pub struct Report {
    json: bool,
    bar: Bar,
    about: Json,
    rows: Vec<Row>,
}

/// What is measured and how: lines for people, and the same for programs.
pub struct About {
    pub lines: Vec<(&'static str, String)>,
    pub json: Vec<(&'static str, Json)>,
}

fn number(x: f64) -> String {
    match x {
        x if x >= 1000.0 => format!("{x:.2}"),
        x if x >= 1.0 => format!("{x:.3}"),
        x => format!("{x:.4}"),
    }
}

/// Column heads and the width of each.
const LATENCY: [(&str, usize); 9] = [
    ("#bytes", 10),
    ("#iterations", 12),
    ("t_min[usec]", 12),
    ("t_max[usec]", 12),
    ("t_typical[usec]", 16),
    ("t_avg[usec]", 12),
    ("t_stdev[usec]", 14),
    ("99%[usec]", 12),
    ("99.9%[usec]", 12),
];
const RATE: [(&str, usize); 7] = [
    ("#bytes", 10),
    ("#iterations", 12),
    ("BW peak[MB/sec]", 16),
    ("BW average[MB/sec]", 19),
    ("MsgRate[Mpps]", 14),
    ("BW median[MB/sec]", 18),
    ("BW 99%[MB/sec]", 15),
];

fn line(columns: &[(&str, usize)], cells: &[String], last: &str) -> String {
    let mut out = String::new();
    for ((_, width), cell) in columns.iter().zip(cells) {
        out.push_str(&format!("{cell:>width$}"));
    }
    out.push_str(&format!("  {last}"));
    out.trim_end().to_string() + "\n"
}

impl Row {
    fn columns(&self) -> &'static [(&'static str, usize)] {
        match self.figures {
            Figures::Latency(_) => &LATENCY,
            Figures::Rate(_) => &RATE,
        }
    }

    fn numbers(&self) -> Vec<f64> {
        match self.figures {
            Figures::Latency(l) => vec![l.min, l.max, l.typical, l.avg, l.stdev, l.p99, l.p999],
            Figures::Rate(r) => vec![r.peak, r.avg, r.mops, r.median, r.p99],
        }
    }

    fn text(&self) -> String {
        let cells: Vec<String> =
            [self.size.to_string(), self.iterations.to_string()].into_iter().chain(self.numbers().into_iter().map(number)).collect();
        let mut last = self.path.clone().unwrap_or_default();
        if self.helped >= 0.005 {
            last.push_str(&format!(", {:.0}% by the peer", self.helped * 100.0));
        }
        if self.verified {
            last.push_str(", verified");
        }
        line(self.columns(), &cells, &last)
    }

    fn json(&self) -> Json {
        let names: &[&str] = match self.figures {
            Figures::Latency(_) => {
                &["t_min_usec", "t_max_usec", "t_typical_usec", "t_avg_usec", "t_stdev_usec", "t_p99_usec", "t_p999_usec"]
            }
            Figures::Rate(_) => &["bw_peak_mb_s", "bw_average_mb_s", "msg_rate_mpps", "bw_median_mb_s", "bw_p99_mb_s"],
        };
        let mut pairs = vec![
            ("bytes".to_string(), Json::Int(self.size as u64)),
            ("iterations".to_string(), Json::Int(self.iterations)),
            ("operations_per_sample".to_string(), Json::Int(self.batch)),
        ];
        // More digits than these were not measured.
        let round = |x: f64| (x * 1e5).round() / 1e5;
        pairs.extend(names.iter().zip(self.numbers()).map(|(n, x)| (n.to_string(), Json::Num(round(x)))));
        pairs.push(("path".to_string(), Json::maybe(self.path.clone())));
        pairs.push(("helped_by_peer".to_string(), Json::Num(round(self.helped))));
        pairs.push(("verified".to_string(), Json::Bool(self.verified)));
        Json::Map(pairs)
    }
}

/// Whoever started us closed the other end of the pipe, and needs no words about it.
pub const UNREAD: Error = Error::fixed(errno::EPIPE, "nobody reads the results");

fn say(text: &str) -> Result<()> {
    if cli::say(text) { Ok(()) } else { Err(UNREAD) }
}

impl Report {
    pub fn new(json: bool) -> Report {
        Report { json, bar: Bar { on: !json && std::io::stderr().is_terminal(), drawn: false }, about: Json::Null, rows: Vec::new() }
    }

    pub fn begin(&mut self, about: About) -> Result<()> {
        self.about = Json::map(about.json);
        if self.json {
            return Ok(());
        }
        let text: String = about.lines.iter().map(|(name, value)| format!(" {name:<10} {value}\n")).collect();
        say(&format!("{text}\n"))
    }

    pub fn row(&mut self, row: Row) -> Result<()> {
        self.bar.clear();
        if !self.json {
            if self.rows.is_empty() {
                let heads: Vec<String> = row.columns().iter().map(|(head, _)| head.to_string()).collect();
                say(&line(row.columns(), &heads, if row.path.is_some() { "path" } else { "" }))?;
            }
            say(&row.text())?;
        }
        self.rows.push(row);
        Ok(())
    }

    pub fn end(&mut self) -> Result<()> {
        self.bar.clear();
        let batched = self.rows.iter().any(|r| r.batch > 1 && matches!(r.figures, Figures::Latency(_)));
        if !self.json {
            return if batched { say("\n Of operations this short, a sample is the mean of several in a row.\n") } else { Ok(()) };
        }
        let results = Json::list(self.rows.iter().map(Row::json));
        let version = Json::str(env!("CARGO_PKG_VERSION"));
        let all = [("program", Json::str("gdrfab-perf")), ("version", version), ("run", self.about.clone()), ("results", results)];
        say(&format!("{}\n", Json::map(all)))
    }

    pub fn bar(&mut self) -> &mut Bar {
        &mut self.bar
    }
}

/// One line on a terminal's standard error.
pub struct Bar {
    on: bool,
    drawn: bool,
}

impl Bar {
    pub fn draw(&mut self, what: &str, share: f64) {
        const WIDTH: usize = 30;
        if !self.on {
            return;
        }
        let share = share.clamp(0.0, 1.0);
        let full = (share * WIDTH as f64) as usize;
        // A terminal that is gone is no reason to stop.
        let _ = write!(std::io::stderr(), "\r\x1b[K {what} [{}{}] {:3.0}%", "#".repeat(full), " ".repeat(WIDTH - full), share * 100.0);
        self.drawn = true;
    }

    pub fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}
