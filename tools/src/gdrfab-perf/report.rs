// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports: results for people in perftest's columns, or for programs as JSON or CSV; and a progress bar on a terminal.

use crate::output::{Format, Output};
use crate::stats::{Clock, Histogram};
use crate::{cli, csv, save};
use gdrfab::error::{Error, Result, errno};
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};

/// A time in microseconds.
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
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    pub peak: f64,
    pub avg: f64,
    pub median: f64,
    /// The value that 99 % of all slices reached.
    pub p99: f64,
    pub mops: f64,
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

#[derive(Clone, Copy, Debug)]
pub enum Figures {
    Latency(Latency),
    Rate(Rate),
    /// The medians of a write and of a read, in microseconds.
    Transfer(f64, f64),
}

#[derive(Clone, Debug)]
pub struct Row {
    pub size: usize,
    pub iterations: u64,
    /// The number of operations of a sample.
    pub batch: u64,
    pub figures: Figures,
    /// The path that the bytes took; `None` if no bytes moved.
    pub path: Option<String>,
    /// The share of the bytes that the peer's CPU copied.
    pub helped: f64,
    pub verified: bool,
    /// MB/s of the server's direction if both sides ran the window; the other figures are then sums.
    pub back: Option<f64>,
    /// The CPU time of each process while the bytes moved, in percent of one CPU; `None` if it was not measured.
    pub cpu_client: Option<f64>,
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

fn number(x: f64) -> String {
    match x {
        x if x >= 1000.0 => format!("{x:.2}"),
        x if x >= 1.0 => format!("{x:.3}"),
        x => format!("{x:.4}"),
    }
}

/// A figure of a row: the head and the width of its column, and its key in JSON.
struct Column {
    head: &'static str,
    width: usize,
    key: &'static str,
}

const fn column(head: &'static str, width: usize, key: &'static str) -> Column {
    Column { head, width, key }
}

const FIRST: [Column; 2] = [column("#bytes", 10, "bytes"), column("#iterations", 12, "iterations")];
const LATENCY: [Column; 7] = [
    column("t_min[usec]", 12, "t_min_usec"),
    column("t_max[usec]", 12, "t_max_usec"),
    column("t_typical[usec]", 16, "t_typical_usec"),
    column("t_avg[usec]", 12, "t_avg_usec"),
    column("t_stdev[usec]", 14, "t_stdev_usec"),
    column("99%[usec]", 12, "t_p99_usec"),
    column("99.9%[usec]", 12, "t_p999_usec"),
];
const RATE: [Column; 5] = [
    column("BW peak[MB/sec]", 16, "bw_peak_mb_s"),
    column("BW average[MB/sec]", 19, "bw_average_mb_s"),
    column("MsgRate[Mpps]", 14, "msg_rate_mpps"),
    column("BW median[MB/sec]", 18, "bw_median_mb_s"),
    column("BW 99%[MB/sec]", 15, "bw_p99_mb_s"),
];
const TRANSFER: [Column; 4] = [
    column("write[usec]", 13, "write_usec"),
    column("write[GB/sec]", 15, "write_gb_s"),
    column("read[usec]", 13, "read_usec"),
    column("read[GB/sec]", 15, "read_gb_s"),
];
const CPU: [Column; 2] = [column("CPU client[%]", 15, "cpu_client_percent"), column("CPU server[%]", 15, "cpu_server_percent")];

/// A line of the table: the cells with the widths of their columns, then words.
fn line(cells: &[(String, usize)], last: &str) -> String {
    let cells: String = cells.iter().map(|(cell, width)| format!("{cell:>width$}")).collect();
    format!("{cells}  {last}").trim_end().to_string() + "\n"
}

/// Rounds to the digits that were measured: five after the point, or for values below 1 as many significant ones.
pub fn rounded(x: f64) -> Value {
    let scale = 10f64.powi(5 - if x.abs() < 1.0 && x != 0.0 { x.abs().log10().ceil() as i32 } else { 0 });
    let round = (x * scale).round() / scale;
    // A value that is too small for a scale rounds to 0.
    json!(if round.is_finite() { round } else { x })
}

impl Row {
    fn figures(&self) -> Vec<(&'static Column, f64)> {
        match self.figures {
            Figures::Latency(l) => LATENCY.iter().zip([l.min, l.max, l.typical, l.avg, l.stdev, l.p99, l.p999]).collect(),
            Figures::Rate(r) => RATE.iter().zip([r.peak, r.avg, r.mops, r.median, r.p99]).collect(),
            Figures::Transfer(write, read) => {
                let speed = |us: f64| if us > 0.0 { self.size as f64 / us / 1e3 } else { 0.0 };
                TRANSFER.iter().zip([write, speed(write), read, speed(read)]).collect()
            }
        }
    }

    /// The figures for people: head, width, and value.
    fn columns(&self, gbits: bool) -> Vec<(String, usize, f64)> {
        let shown = |(c, x): (&Column, f64)| match c.head.strip_suffix("[MB/sec]") {
            Some(name) if gbits => (format!("{name}[Gb/sec]"), c.width, x * GBITS),
            _ => (c.head.to_string(), c.width, x),
        };
        self.figures().into_iter().map(shown).collect()
    }

    /// The CPU use, if its columns are asked for.
    fn cpu(&self, asked: bool) -> impl Iterator<Item = (&'static Column, Option<f64>)> {
        CPU.iter().zip([self.cpu_client, self.cpu_server]).filter(move |_| asked)
    }

    fn heads(&self, cpu: bool, gbits: bool) -> String {
        let of = |c: &Column| (c.head.to_string(), c.width);
        let figures = self.columns(gbits).into_iter().map(|(head, width, _)| (head, width));
        let heads: Vec<_> = FIRST.iter().map(of).chain(figures).chain(self.cpu(cpu).map(|(c, _)| of(c))).collect();
        line(&heads, if self.path.is_some() { "path" } else { "" })
    }

    fn text(&self, cpu: bool, gbits: bool) -> String {
        let first = [self.size as u64, self.iterations];
        let mut cells: Vec<_> = FIRST.iter().zip(first).map(|(c, n)| (n.to_string(), c.width)).collect();
        cells.extend(self.columns(gbits).into_iter().map(|(_, width, x)| (number(x), width)));
        cells.extend(self.cpu(cpu).map(|(c, x)| (x.map_or("-".to_string(), |x| format!("{x:.1}")), c.width)));
        let mut last = self.path.clone().unwrap_or_default();
        if self.helped >= 0.005 {
            last.push_str(&format!(", {:.0}% by the peer", self.helped * 100.0));
        }
        if let (Some(back), Figures::Rate(r)) = (self.back, self.figures) {
            let (unit, factor) = if gbits { ("Gb/sec", GBITS) } else { ("MB/sec", 1.0) };
            last.push_str(&format!(", both directions: {} and {} {unit}", number((r.avg - back) * factor), number(back * factor)));
        }
        if self.verified {
            last.push_str(", verified");
        }
        line(&cells, &last)
    }

    fn json(&self) -> Value {
        let mut all = json!({"bytes": self.size, "iterations": self.iterations, "operations_per_sample": self.batch});
        self.figures().into_iter().for_each(|(column, x)| all[column.key] = rounded(x));
        all["path"] = json!(self.path);
        all["helped_by_peer"] = rounded(self.helped);
        all["verified"] = json!(self.verified);
        if let Some(back) = self.back {
            all["bw_server_mb_s"] = rounded(back);
        }
        self.cpu(true).for_each(|(column, x)| all[column.key] = json!(x.map(rounded)));
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
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
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
