// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads files of results. Another program may have written or cut them, so everything is checked before it is used, and
//! errors name the file and the key.

use gdrfab::error::{self, Error, errno};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::Read;
use std::num::NonZeroU64;

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

/// A file of results as it is written.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Written {
    program: String,
    run: Map<String, Value>,
    results: Vec<Line>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub struct Line {
    pub bytes: NonZeroU64,
    #[serde(default, deserialize_with = "tamed")]
    pub path: String,
    #[serde(flatten)]
    figures: Map<String, Value>,
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

fn tamed<'de, D: Deserializer<'de>>(source: D) -> Result<String, D::Error> {
    Ok(tame(&Option::<String>::deserialize(source)?.unwrap_or_default()))
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
        let written: Written = serde_path_to_error::deserialize(value).map_err(|e| tame(&e.to_string()))?;
        let Written { program, run, results: lines } = written;
        if program != "gdrfab-perf" {
            return Err(format!("program: these are results of {}, not of gdrfab-perf", tame(&program)));
        }
        let test = tame(run.get("test").and_then(Value::as_str).ok_or("run.test: text is expected")?);
        let kinds: Vec<Kind> = lines.iter().enumerate().map(|(i, line)| line.kind(i)).collect::<Result<_, _>>()?;
        let kind = *kinds.first().ok_or("results: there are none")?;
        match kinds.iter().position(|of| *of != kind) {
            Some(i) => Err(format!("results[{i}]: other figures than in the rows before")),
            None => Ok(Results { name: name.to_string(), kind, test, run, lines }),
        }
    }

    /// A figure of every row, above 0 as ratios and logarithms need.
    pub fn figures(&self, key: &str) -> error::Result<Vec<f64>> {
        let all = self.lines.iter().enumerate().map(|(i, line)| line.figure(i, key));
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

impl Line {
    /// The kind of the row with the number `i`, whose main figure is sound.
    fn kind(&self, i: usize) -> Result<Kind, String> {
        let kinds = [Kind::Latency, Kind::Rate, Kind::Transfer];
        let found = kinds.into_iter().find(|kind| self.figures.contains_key(kind.main_figure()));
        let kind = found.ok_or_else(|| format!("results[{i}]: none of {}", kinds.map(Kind::main_figure).join(", ")))?;
        self.figure(i, kind.main_figure()).map(|_| kind)
    }

    fn figure(&self, i: usize, key: &str) -> Result<f64, String> {
        let value = self.figures.get(key).ok_or_else(|| format!("results[{i}].{key}: missing"))?;
        let sensible = value.as_f64().filter(|x| SENSIBLE.contains(x));
        sensible.ok_or_else(|| format!("results[{i}].{key}: a number above 0 is expected, not {}", tame(&value.to_string())))
    }
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
        assert_eq!((good.kind, good.lines[0].bytes.get(), good.lines[0].path.as_str()), (Kind::Latency, 8, "direct"));
        assert_eq!(good.figures("t_typical_usec").unwrap(), [0.5]);
        assert!(good.figures("t_p99_usec").unwrap_err().words.contains("x: results[0].t_p99_usec: missing"));
        for (run, rows, words) in [
            (json!([]), json!([row()]), "run: invalid type: sequence, expected a map"),
            (json!({}), json!([row()]), "run.test: text is expected"),
            (json!({"test": 1}), json!([row()]), "run.test: text is expected"),
            (run(), json!({}), "results: invalid type: map, expected a sequence"),
            (run(), json!([]), "results: there are none"),
            (run(), json!([row(), 5]), "results[1]: invalid type: integer `5`, expected an object"),
            (run(), json!([{"bytes": 8}]), "results[0]: none of t_typical_usec, bw"),
            (run(), json!([{"bytes": 8.5, "t_typical_usec": 1}]), "results[0].bytes: invalid type: floating point `8.5`"),
            (run(), json!([{"bytes": 0, "t_typical_usec": 1}]), "results[0].bytes: invalid value: integer `0`, expected a nonzero u64"),
            (run(), json!([{"t_typical_usec": 1}]), "results[0]: missing field `bytes`"),
            (run(), json!([{"bytes": 8, "t_typical_usec": "1"}]), "results[0].t_typical_usec: a number above 0 is expected, not \"1\""),
            (run(), json!([{"bytes": 8, "t_typical_usec": -1}]), "results[0].t_typical_usec"),
            (run(), json!([{"bytes": 8, "t_typical_usec": null}]), "results[0].t_typical_usec"),
            (run(), json!([{"bytes": 8, "t_typical_usec": 1, "path": 1}]), "results[0].path"),
            (run(), json!([row(), {"bytes": 8, "bw_average_mb_s": 1}]), "results[1]: other figures"),
        ] {
            let got = results("x", run, rows.clone()).unwrap_err();
            assert!(got.contains(words), "{rows}: {got}");
        }
        let fio = json!({"program": "fio\u{1b}[2J", "run": {}, "results": []});
        for (value, words) in [(json!(5), "expected an object"), (json!({}), "missing field `program`"), (fio, "results of fio?[2J,")] {
            assert!(Results::of("x", value).unwrap_err().contains(words));
        }
        assert_eq!(tame(&"x".repeat(100)).len(), SHOWN + 3);
        assert_eq!(tame("ä\u{1b}[\u{9b}\u{202e}\u{ffff}\n"), "ä?[????");
    }
}
