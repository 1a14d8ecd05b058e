// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads files of results. Another program may have written or cut them, so everything is checked before it is used, and
//! errors name the file and the key.

use gdrfab::error::{self, Error, errno};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::Read;

/// The largest file that is read: more than any run writes.
const MAX_BYTES: u64 = 64 << 20;
/// The range of figures for which every computation gives a number.
const SENSIBLE: std::ops::Range<f64> = 1e-15..1e15;
/// The most characters of a text from a file that are shown.
const SHOWN: usize = 80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Latency,
    Rate,
    /// Writes and reads, one at a time, as bandwidths.
    Transfer,
}

impl Kind {
    /// The figure that represents a row.
    pub fn main_figure(self) -> &'static str {
        match self {
            Kind::Latency => "t_typical_usec",
            Kind::Rate => "bw_average_mb_s",
            Kind::Transfer => "write_gb_s",
        }
    }
}

#[derive(Debug)]
pub struct Line {
    pub bytes: u64,
    pub path: String,
    all: Map<String, Value>,
}

/// The results of one run.
#[derive(Debug)]
pub struct Results {
    /// The name of the file.
    pub name: String,
    pub kind: Kind,
    pub test: String,
    pub run: Map<String, Value>,
    pub lines: Vec<Line>,
}

/// Text that cannot harm a terminal or a drawing, and is not too long.
pub fn tame(text: &str) -> String {
    // Besides control characters, also removes characters that are invisible, turn the direction of writing, break lines, or
    // cannot be in XML.
    let wild = |c: char| {
        let unseen =
            matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        c.is_control() || unseen || matches!(c, '\u{fff9}'..='\u{ffff}')
    };
    let mut out: String = text.chars().map(|c| if wild(c) { '?' } else { c }).take(SHOWN).collect();
    if text.chars().nth(SHOWN).is_some() {
        out.push_str("...");
    }
    out
}

fn wrong(name: &str, words: impl std::fmt::Display) -> Error {
    Error::new(errno::EINVAL, format!("{name}: {words}"))
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "another number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The value of `key` as a `T`; `at` names the place of the map for errors.
fn take<'a, T>(map: &'a Map<String, Value>, at: &str, key: &str, what: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<T, String> {
    match map.get(key) {
        None => Err(format!("{at}{key}: missing")),
        Some(value) => read(value).ok_or_else(|| format!("{at}{key}: {what} is expected, not {}", kind_of(value))),
    }
}

impl Results {
    pub fn load(name: &str) -> error::Result<Results> {
        let os = |e: std::io::Error| Error::new(e.raw_os_error().unwrap_or(errno::EIO), format!("{name}: {e}"));
        let mut text = Vec::new();
        File::open(name).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut text)).map_err(os)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(wrong(name, format_args!("more than {} MiB are no results of a run", MAX_BYTES >> 20)));
        }
        let value: Value = serde_json::from_slice(&text).map_err(|e| wrong(name, format_args!("not JSON: {e}")))?;
        Results::of(name, value).map_err(|words| wrong(name, words))
    }

    fn of(name: &str, value: Value) -> Result<Results, String> {
        let top = value.as_object().ok_or_else(|| format!("the results of gdrfab-perf are expected, not {}", kind_of(&value)))?;
        let program = take(top, "", "program", "text", Value::as_str)?;
        if program != "gdrfab-perf" {
            return Err(format!("program: these are results of {}, not of gdrfab-perf", tame(program)));
        }
        let run = take(top, "", "run", "an object", Value::as_object)?.clone();
        let test = tame(take(&run, "run.", "test", "text", Value::as_str)?);
        let rows = take(top, "", "results", "a list", Value::as_array)?;
        let mut lines = Vec::new();
        let mut kind = None;
        for (i, row) in rows.iter().enumerate() {
            let of = row_kind(row, i)?;
            if kind.is_some_and(|kind| kind != of) {
                return Err(format!("results[{i}]: other figures than in the rows before"));
            }
            kind = Some(of);
            lines.push(line(row, i, of)?);
        }
        let kind = kind.ok_or("results: there are none")?;
        Ok(Results { name: name.to_string(), kind, test, run, lines })
    }

    /// A figure of every row, above 0 as ratios and logarithms need.
    pub fn figures(&self, key: &str) -> error::Result<Vec<f64>> {
        let all = self.lines.iter().enumerate().map(|(i, line)| figure(&line.all, i, key));
        all.collect::<Result<_, _>>().map_err(|words| wrong(&self.name, words))
    }

    /// A value of the run as text that can be shown; `None` if there is none.
    pub fn about(&self, key: &str) -> Option<String> {
        match self.run.get(key)? {
            Value::Null => None,
            Value::String(text) => Some(tame(text)),
            other => Some(tame(&other.to_string())),
        }
    }
}

fn row_kind(row: &Value, i: usize) -> Result<Kind, String> {
    let row = row.as_object().ok_or_else(|| format!("results[{i}]: an object is expected, not {}", kind_of(row)))?;
    let kinds = [Kind::Latency, Kind::Rate, Kind::Transfer];
    let found = kinds.into_iter().find(|kind| row.contains_key(kind.main_figure()));
    found.ok_or_else(|| format!("results[{i}]: none of {}", kinds.map(Kind::main_figure).join(", ")))
}

fn line(row: &Value, i: usize, kind: Kind) -> Result<Line, String> {
    let all = row.as_object().cloned().unwrap_or_default();
    let at = format!("results[{i}].");
    let bytes = take(&all, &at, "bytes", "a whole number above 0", |v| v.as_u64().filter(|n| *n > 0))?;
    figure(&all, i, kind.main_figure())?;
    let path = match all.get("path") {
        Some(Value::String(path)) => tame(path),
        None | Some(Value::Null) => String::new(),
        Some(other) => return Err(format!("{at}path: text is expected, not {}", kind_of(other))),
    };
    Ok(Line { bytes, path, all })
}

fn figure(row: &Map<String, Value>, i: usize, key: &str) -> Result<f64, String> {
    take(row, &format!("results[{i}]."), key, "a number above 0", |v| v.as_f64().filter(|x| SENSIBLE.contains(x)))
}

#[cfg(test)]
pub mod unit {
    use super::*;
    use serde_json::json;

    pub fn results(name: &str, run: Value, rows: Value) -> Result<Results, String> {
        Results::of(name, json!({"program": "gdrfab-perf", "run": run, "results": rows}))
    }

    #[test]
    fn mistakes_in_files_are_named() {
        let run = || json!({"test": "write-lat"});
        let row = || json!({"bytes": 8, "t_typical_usec": 0.5, "path": "direct"});
        let good = results("x", run(), json!([row()])).unwrap();
        assert_eq!((good.kind, good.lines[0].bytes, good.lines[0].path.as_str()), (Kind::Latency, 8, "direct"));
        assert_eq!(good.figures("t_typical_usec").unwrap(), [0.5]);
        assert!(good.figures("t_p99_usec").unwrap_err().words.contains("x: results[0].t_p99_usec: missing"));
        for (run, rows, words) in [
            (json!([]), json!([row()]), "run: an object is expected, not a list"),
            (json!({}), json!([row()]), "run.test: missing"),
            (run(), json!({}), "results: a list"),
            (run(), json!([]), "results: there are none"),
            (run(), json!([row(), 5]), "results[1]: an object"),
            (run(), json!([{"bytes": 8}]), "results[0]: none of t_typical_usec, bw"),
            (run(), json!([{"bytes": 8.5, "t_typical_usec": 1}]), "results[0].bytes: a whole number"),
            (run(), json!([{"bytes": 0, "t_typical_usec": 1}]), "results[0].bytes: a whole number"),
            (run(), json!([{"t_typical_usec": 1}]), "results[0].bytes: missing"),
            (run(), json!([{"bytes": 8, "t_typical_usec": "1"}]), "results[0].t_typical_usec: a number above 0 is expected, not text"),
            (run(), json!([{"bytes": 8, "t_typical_usec": -1}]), "results[0].t_typical_usec"),
            (run(), json!([{"bytes": 8, "t_typical_usec": null}]), "results[0].t_typical_usec"),
            (run(), json!([{"bytes": 8, "t_typical_usec": 1, "path": 1}]), "results[0].path"),
            (run(), json!([row(), {"bytes": 8, "bw_average_mb_s": 1}]), "results[1]: other figures"),
        ] {
            let got = results("x", run, rows.clone()).unwrap_err();
            assert!(got.contains(words), "{rows}: {got}");
        }
        for (value, words) in
            [(json!(5), "expected"), (json!({}), "program: missing"), (json!({"program": "fio\u{1b}[2J"}), "results of fio?[2J,")]
        {
            assert!(Results::of("x", value).unwrap_err().contains(words));
        }
        assert_eq!(tame(&"x".repeat(100)).len(), SHOWN + 3);
        assert_eq!(tame("ä\u{1b}[\u{9b}\u{202e}\u{ffff}\n"), "ä?[????");
    }
}
