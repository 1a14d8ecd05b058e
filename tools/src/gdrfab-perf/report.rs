// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports: results for people in perftest's columns, or for programs as JSON or CSV; and a progress bar on a terminal.

use crate::output::{Format, Output};
use crate::stats::{Clock, Histogram};
use crate::{cli, csv, save};
use gdrfab::error::{Error, Result, errno};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::io::{IsTerminal, Write};

/// A time in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    #[serde(rename = "t_min_usec")]
    pub min: f64,
    #[serde(rename = "t_max_usec")]
    pub max: f64,
    #[serde(rename = "t_typical_usec")]
    pub typical: f64,
    #[serde(rename = "t_avg_usec")]
    pub avg: f64,
    #[serde(rename = "t_stdev_usec")]
    pub stdev: f64,
    #[serde(rename = "t_p99_usec")]
    pub p99: f64,
    #[serde(rename = "t_p999_usec")]
    pub p999: f64,
}

impl Latency {
    /// `parts` is the number by which a sample is divided.
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

/// The unit of bandwidth is MB/s of 10^6 bytes; the rate is in millions a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rate {
    #[serde(rename = "bw_peak_mb_s")]
    pub peak: f64,
    #[serde(rename = "bw_average_mb_s")]
    pub avg: f64,
    #[serde(rename = "msg_rate_mpps")]
    pub mops: f64,
    #[serde(rename = "bw_median_mb_s")]
    pub median: f64,
    /// The value that 99 % of all slices reached.
    #[serde(rename = "bw_p99_mb_s")]
    pub p99: f64,
}

impl std::ops::Add for Rate {
    type Output = Rate;

    fn add(self, other: Rate) -> Rate {
        Rate {
            peak: self.peak + other.peak,
            avg: self.avg + other.avg,
            median: self.median + other.median,
            p99: self.p99 + other.p99,
            mops: self.mops + other.mops,
        }
    }
}

/// The median times of a write and of a read, and the bandwidths that follow.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Transfer {
    write_usec: f64,
    write_gb_s: f64,
    read_usec: f64,
    read_gb_s: f64,
}

impl Transfer {
    pub fn of(size: usize, write_usec: f64, read_usec: f64) -> Transfer {
        let speed = |us: f64| if us > 0.0 { size as f64 / us / 1e3 } else { 0.0 };
        Transfer { write_usec, write_gb_s: speed(write_usec), read_usec, read_gb_s: speed(read_usec) }
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub enum Figures {
    Latency(Latency),
    Rate(Rate),
    Transfer(Transfer),
}

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    #[serde(rename = "bytes")]
    pub size: usize,
    pub iterations: u64,
    /// The number of operations of a sample.
    #[serde(rename = "operations_per_sample")]
    pub batch: u64,
    #[serde(flatten)]
    pub figures: Figures,
    /// The path that the bytes took; `None` if no bytes moved.
    pub path: Option<String>,
    /// The share of the bytes that the peer's CPU copied.
    #[serde(rename = "helped_by_peer")]
    pub helped: f64,
    pub verified: bool,
    /// MB/s of the server's direction if both sides ran the window; the other figures are then sums.
    #[serde(rename = "bw_server_mb_s", skip_serializing_if = "Option::is_none")]
    pub back: Option<f64>,
    /// The CPU time of each process while the bytes moved, in percent of one CPU; `None` if it was not measured.
    #[serde(rename = "cpu_client_percent")]
    pub cpu_client: Option<f64>,
    #[serde(rename = "cpu_server_percent")]
    pub cpu_server: Option<f64>,
}

impl Row {
    pub fn new(size: usize, iterations: u64, batch: u64, figures: Figures) -> Row {
        Row { size, iterations, batch, figures, path: None, helped: 0.0, verified: false, back: None, cpu_client: None, cpu_server: None }
    }
}

pub struct Report {
    output: Output,
    bar: Bar,
    about: Value,
    rows: Vec<Row>,
    /// Bandwidths are shown in Gb/s, in text.
    gbits: bool,
}

/// The description of a measurement: lines for people, and the same for programs.
pub struct About {
    pub lines: Vec<(&'static str, String)>,
    pub json: Value,
}

/// Converts MB/s into Gb/s.
const GBITS: f64 = 8.0 / 1000.0;

/// A figure with as many digits as a column has room for.
pub fn number(x: f64) -> String {
    match x {
        x if x >= 1e9 => format!("{x:.3e}"),
        x if x >= 1000.0 => format!("{x:.2}"),
        x if x >= 1.0 => format!("{x:.3}"),
        x if x >= 0.001 || x <= 0.0 => format!("{x:.4}"),
        x => format!("{x:.3e}"),
    }
}

/// The columns of the text: the key of a value in JSON, and the head.
const COLUMNS: [(&str, &str); 20] = [
    ("bytes", "#bytes"),
    ("iterations", "#iterations"),
    ("t_min_usec", "t_min[usec]"),
    ("t_max_usec", "t_max[usec]"),
    ("t_typical_usec", "t_typical[usec]"),
    ("t_avg_usec", "t_avg[usec]"),
    ("t_stdev_usec", "t_stdev[usec]"),
    ("t_p99_usec", "99%[usec]"),
    ("t_p999_usec", "99.9%[usec]"),
    ("bw_peak_mb_s", "BW peak[MB/sec]"),
    ("bw_average_mb_s", "BW average[MB/sec]"),
    ("msg_rate_mpps", "MsgRate[Mpps]"),
    ("bw_median_mb_s", "BW median[MB/sec]"),
    ("bw_p99_mb_s", "BW 99%[MB/sec]"),
    ("write_usec", "write[usec]"),
    ("write_gb_s", "write[GB/sec]"),
    ("read_usec", "read[usec]"),
    ("read_gb_s", "read[GB/sec]"),
    ("cpu_client_percent", "CPU client[%]"),
    ("cpu_server_percent", "CPU server[%]"),
];

/// A line of the table: the cells, each as wide as its head and no narrower than a figure, then words.
fn line<'a>(cells: impl Iterator<Item = (&'a str, String)>, last: &str) -> String {
    let cells: String = cells.map(|(head, cell)| format!("{cell:>width$}", width = (head.len() + 1).max(12))).collect();
    format!("{cells}  {last}").trim_end().to_string() + "\n"
}

/// Rounds to the digits that were measured: five after the point, or for values below 1 as many significant ones.
pub fn rounded(x: f64) -> Value {
    let text = if x.abs() < 1.0 { format!("{x:.4e}") } else { format!("{x:.5}") };
    json!(text.parse().unwrap_or(x))
}

impl Row {
    /// The columns that the row has: head and value.
    fn columns(&self, cpu: bool) -> Vec<(&'static str, Value)> {
        let mut all = self.json();
        let shown = COLUMNS.into_iter().filter(|(key, _)| cpu || !key.starts_with("cpu_"));
        shown.filter_map(|(key, head)| Some((head, all.remove(key)?))).collect()
    }

    fn heads(&self, cpu: bool, gbits: bool) -> String {
        let shown = |head: &str| if gbits { head.replace("MB/sec", "Gb/sec") } else { head.to_string() };
        line(self.columns(cpu).into_iter().map(|(head, _)| (head, shown(head))), if self.path.is_some() { "path" } else { "" })
    }

    fn text(&self, cpu: bool, gbits: bool) -> String {
        let factor = if gbits { GBITS } else { 1.0 };
        let cell = |head: &str, value: Value| match (value.as_f64(), value.is_f64()) {
            (None, _) => "-".to_string(),
            (Some(x), true) if head.starts_with("CPU") => format!("{x:.1}"),
            (Some(x), true) => number(if head.ends_with("[MB/sec]") { x * factor } else { x }),
            (Some(_), false) => value.to_string(),
        };
        let mut last = self.path.clone().unwrap_or_default();
        if self.helped >= 0.005 {
            last.push_str(&format!(", {:.0}% by the peer", self.helped * 100.0));
        }
        if let (Some(back), Figures::Rate(r)) = (self.back, self.figures) {
            let unit = if gbits { "Gb/sec" } else { "MB/sec" };
            last.push_str(&format!(", both directions: {} and {} {unit}", number((r.avg - back) * factor), number(back * factor)));
        }
        if self.verified {
            last.push_str(", verified");
        }
        line(self.columns(cpu).into_iter().map(|(head, value)| (head, cell(head, value))), &last)
    }

    fn json(&self) -> Map<String, Value> {
        let Ok(Value::Object(mut all)) = serde_json::to_value(self) else { return Map::new() };
        all.values_mut().filter(|value| value.is_f64()).for_each(|value| *value = rounded(value.as_f64().unwrap_or_default()));
        all
    }
}

/// The error of a write whose reader has closed the other end of the pipe. It is not reported, since no one reads the
/// results.
pub const UNREAD: Error = Error::fixed(errno::EPIPE, "nobody reads the results");

pub fn say(text: &str) -> Result<()> {
    if cli::say(text) { Ok(()) } else { Err(UNREAD) }
}

impl Report {
    pub fn new(output: &Output, gbits: bool) -> Report {
        let bar = Bar { on: output.is_text() && std::io::stderr().is_terminal(), drawn: false };
        Report { output: output.clone(), bar, about: Value::Null, rows: Vec::new(), gbits }
    }

    pub fn begin(&mut self, about: About) -> Result<()> {
        self.about = about.json;
        if !self.output.is_text() {
            return Ok(());
        }
        let text: String = about.lines.iter().map(|(name, value)| format!(" {name:<10} {value}\n")).collect();
        say(&format!("{text}\n"))
    }

    pub fn row(&mut self, row: Row) -> Result<()> {
        self.bar.clear();
        if self.output.is_text() {
            if self.rows.is_empty() {
                say(&row.heads(self.output.cpu, self.gbits))?;
            }
            say(&row.text(self.output.cpu, self.gbits))?;
        }
        self.rows.push(row);
        Ok(())
    }

    /// Ends the report of a run with this `outcome`. The sizes of a failed run are kept too, with the reason.
    pub fn end(&mut self, outcome: Result<()>) -> Result<()> {
        self.bar.clear();
        let failed = outcome.as_ref().err();
        if failed.is_some() && self.rows.is_empty() {
            return outcome;
        }
        self.about["complete"] = json!(failed.is_none());
        self.about["error"] = json!(failed.map(Error::to_string));
        let kept = match &self.output.file {
            Some((path, format)) => save::whole("--out", path, &self.text(*format)),
            None => Ok(()),
        };
        outcome.and(kept).and(say(&self.text(self.output.format)))
    }

    /// All results as one text; in the form for people, only the part that was not printed yet.
    fn text(&self, format: Format) -> String {
        let rows: Vec<Map<String, Value>> = self.rows.iter().map(Row::json).collect();
        match format {
            Format::Text if self.rows.iter().any(|r| r.batch > 1 && matches!(r.figures, Figures::Latency(_))) => {
                "\n Of operations this short, a sample is the mean of several in a row.\n".into()
            }
            Format::Text => String::new(),
            Format::Csv => csv::text(&self.about, &rows),
            Format::Json => {
                let version = env!("CARGO_PKG_VERSION");
                format!("{:#}\n", json!({"program": "gdrfab-perf", "version": version, "run": self.about, "results": rows}))
            }
        }
    }

    pub fn bar(&mut self) -> &mut Bar {
        &mut self.bar
    }
}

/// A progress bar: one line on a terminal's standard error.
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
        // If the terminal is gone, the run continues.
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
