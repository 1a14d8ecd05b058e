// SPDX-License-Identifier: Apache-2.0 OR MIT
//! JSON text, for programs that read the tools' output: a value tree and its printer. Writing needs
//! no more than this, and nothing here reads JSON.

use std::fmt::{self, Display, Formatter, Write};

#[derive(Clone, Debug, PartialEq)]
#[allow(dead_code, reason = "neither program prints every kind of value")]
pub enum Json {
    Null,
    Bool(bool),
    Int(u64),
    Num(f64),
    Str(String),
    List(Vec<Json>),
    Map(Vec<(String, Json)>),
}

impl Json {
    /// An object, in the order given.
    pub fn map<K: Into<String>>(pairs: impl IntoIterator<Item = (K, Json)>) -> Json {
        Json::Map(pairs.into_iter().map(|(k, v)| (k.into(), v)).collect())
    }

    pub fn list(items: impl IntoIterator<Item = Json>) -> Json {
        Json::List(items.into_iter().collect())
    }

    pub fn str(text: impl Into<String>) -> Json {
        Json::Str(text.into())
    }

    /// A string, or null.
    pub fn maybe(text: Option<impl Into<String>>) -> Json {
        text.map_or(Json::Null, Json::str)
    }

    fn is_flat(&self) -> bool {
        match self {
            Json::List(items) => items.iter().all(|i| !matches!(i, Json::List(_) | Json::Map(_))),
            Json::Map(pairs) => pairs.is_empty(),
            _ => true,
        }
    }

    fn print(&self, f: &mut Formatter<'_>, depth: usize) -> fmt::Result {
        let (open, close) = ("  ".repeat(depth + 1), "  ".repeat(depth));
        match self {
            Json::Null => f.write_str("null"),
            Json::Bool(b) => write!(f, "{b}"),
            Json::Int(n) => write!(f, "{n}"),
            // JSON has no words for what is not a number.
            Json::Num(x) if !x.is_finite() => f.write_str("null"),
            Json::Num(x) => write!(f, "{x}"),
            Json::Str(s) => quote(f, s),
            Json::List(items) if self.is_flat() => {
                f.write_char('[')?;
                for (i, item) in items.iter().enumerate() {
                    f.write_str(if i > 0 { ", " } else { "" })?;
                    item.print(f, depth)?;
                }
                f.write_char(']')
            }
            Json::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    write!(f, "{}\n{open}", if i > 0 { "," } else { "[" })?;
                    item.print(f, depth + 1)?;
                }
                write!(f, "\n{close}]")
            }
            Json::Map(pairs) if pairs.is_empty() => f.write_str("{}"),
            Json::Map(pairs) => {
                for (i, (key, value)) in pairs.iter().enumerate() {
                    write!(f, "{}\n{open}", if i > 0 { "," } else { "{" })?;
                    quote(f, key)?;
                    f.write_str(": ")?;
                    value.print(f, depth + 1)?;
                }
                write!(f, "\n{close}}}")
            }
        }
    }
}

impl Display for Json {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.print(f, 0)
    }
}

fn quote(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    f.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            c if c.is_control() => write!(f, "\\u{:04x}", c as u32)?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped_and_nesting_is_indented() {
        let j = Json::map([("a\"b", Json::str("x\ny\u{1}\\")), ("n", Json::list([Json::Int(1), Json::Num(0.5), Json::Num(f64::NAN)]))]);
        assert_eq!(j.to_string(), "{\n  \"a\\\"b\": \"x\\ny\\u0001\\\\\",\n  \"n\": [1, 0.5, null]\n}");
        assert_eq!(
            Json::map([("l", Json::list([Json::map([("k", Json::Null)])]))]).to_string(),
            "{\n  \"l\": [\n    {\n      \"k\": null\n    }\n  ]\n}"
        );
        assert_eq!((Json::list([]).to_string(), Json::Map(vec![]).to_string()), ("[]".into(), "{}".into()));
    }
}
