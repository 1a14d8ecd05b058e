// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The description of a variable for checks and listings, and the type of its value. A type checks a value, and has the
//! words that tell a user the valid values.

use super::faults;
use super::goal::Goal;
use super::users::Users;
use crate::log::Level;

/// A variable, or a setting: an item of the list that is the value of a variable of [`Kind::Settings`].
pub struct Variable {
    pub goal: Goal,
    pub name: &'static str,
    /// The values that it may have.
    pub kind: Kind,
    /// The value of a variable that is not set; "" for none.
    pub default: &'static str,
    /// The text for users. It is printed by `gdrfab-info -e`, and copied into docs/options.md and into the documentation
    /// of the field with the value.
    pub help: &'static str,
}

/// The type of a variable's value. Numbers are decimal, and ranges include both ends.
pub enum Kind {
    /// Any text. As a setting: a file.
    Text,
    /// From the least to the largest number; `u64::MAX`: no limit.
    Number(u64, u64),
    /// The same, but only powers of two.
    PowerOfTwo(u64, u64),
    /// 0, or from the least to the largest number.
    ZeroOr(u64, u64),
    /// -1 to 255.
    Index,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A `Level` of the log.
    Level,
    /// A list of these words, separated by commas; or the second word, which stands alone.
    List(&'static [&'static str], Option<&'static str>),
    /// The absolute path of a directory, of at most `DIRECTORY_MOST` bytes.
    Directory,
    /// [`Users`].
    Users,
    /// A list of faults (docs/faults.md).
    Faults,
    /// A list of settings, separated by commas, each NAME=VALUE, or NAME of a flag.
    Settings(&'static [Variable]),
    /// A setting without a value.
    Flag,
}

/// Largest length in bytes of the path of a directory. The path of a socket in the directory has to fit into an address,
/// which has 108 bytes.
const DIRECTORY_MOST: usize = 60;

/// True if the text is a decimal number of the range.
fn is_in_range(text: &str, low: u64, high: u64) -> bool {
    // Only digits, because parse() would also accept a sign.
    text.bytes().all(|b| b.is_ascii_digit()) && text.parse().is_ok_and(|n: u64| (low..=high).contains(&n))
}

/// The first word of a list that is not known.
fn first_unknown(text: &str, known: impl Fn(&str) -> bool) -> Option<&str> {
    text.split(',').map(str::trim).find(|word| !known(word))
}

/// The items of a list of settings, each with its value; a flag has the value "".
fn settings(list: &str) -> impl Iterator<Item = (&str, &str)> {
    list.split(',').map(|item| item.trim().split_once('=').unwrap_or((item.trim(), "")))
}

/// The reason why a list of settings is invalid; `None` if it is valid. Each setting may occur once.
fn invalid_setting_reason(list: &str, known: &[Variable]) -> Option<String> {
    settings(list).enumerate().find_map(|(place, (name, value))| {
        let Some(variable) = known.iter().find(|v| v.name == name) else {
            let all: Vec<String> = known.iter().map(Variable::spelled).collect();
            return Some(format!("{name:?} is not known; a list of {} is allowed", all.join(", ")));
        };
        if settings(list).take(place).any(|(other, _)| other == name) {
            return Some(format!("{name} is there twice"));
        }
        match variable.kind {
            Kind::Flag => (!value.is_empty()).then(|| format!("{name} takes no value")),
            _ if value.is_empty() => Some(format!("{name} lacks its value")),
            _ => variable.kind.invalid_reason(value).map(|why| format!("{name}={value}: {why}")),
        }
    })
}

impl Variable {
    /// The value of this setting in a list of settings; the value of a flag is "1". `None`: the setting is not in the list.
    pub fn value_in(&self, list: &str) -> Option<String> {
        let (_, value) = settings(list).find(|(given, _)| *given == self.name)?;
        Some(if matches!(self.kind, Kind::Flag) { "1" } else { value }.into())
    }

    /// The setting as a user writes it, with FILE or N in the place of its value.
    pub fn spelled(&self) -> String {
        match self.kind {
            Kind::Flag => self.name.into(),
            Kind::Text => format!("{}=FILE", self.name),
            _ => format!("{}=N", self.name),
        }
    }
}

impl Kind {
    /// The allowed values in words; "" if every text is allowed.
    pub fn allowed(&self) -> String {
        match self {
            Kind::Text => String::new(),
            Kind::Number(0, 1) => "0 or 1".into(),
            Kind::Number(low, u64::MAX) => format!("a number from {low}"),
            Kind::Number(low, high) => format!("a number from {low} to {high}"),
            Kind::PowerOfTwo(low, high) => format!("a power of two from {low} to {high}"),
            Kind::ZeroOr(low, high) => format!("0, or a number from {low} to {high}"),
            Kind::Index => "a number from -1 to 255".into(),
            Kind::Word(words) => format!("one of {}", words.join(", ")),
            Kind::Level => format!("one of {}", Level::WORDS.join(", ")),
            Kind::List(words, None) => format!("a list of {}", words.join(", ")),
            Kind::List(words, Some(alone)) => format!("a list of {}, or {alone}", words.join(", ")),
            Kind::Settings(all) => format!("a list of {}", all.iter().map(Variable::spelled).collect::<Vec<_>>().join(", ")),
            Kind::Flag => "no value".into(),
            Kind::Faults => "a list of faults".into(),
            Kind::Directory => format!("a path from / of at most {DIRECTORY_MOST} bytes"),
            Kind::Users => "same, path, or a list of user numbers".into(),
        }
    }

    /// The reason why a value is invalid; `None` if it is valid.
    pub fn invalid_reason(&self, text: &str) -> Option<String> {
        let word = |first_unknown: Option<&str>| first_unknown.map(|w| format!("{w:?} is not known; {} is allowed", self.allowed()));
        let fits = match self {
            Kind::Text => true,
            Kind::Number(low, high) => is_in_range(text, *low, *high),
            Kind::PowerOfTwo(low, high) => is_in_range(text, *low, *high) && text.parse().is_ok_and(u64::is_power_of_two),
            Kind::ZeroOr(low, high) => is_in_range(text, 0, 0) || is_in_range(text, *low, *high),
            Kind::Index => text == "-1" || is_in_range(text, 0, 255),
            Kind::Word(words) => words.contains(&text),
            Kind::Level => Level::parse(text).is_some(),
            Kind::Directory => text.starts_with('/') && text.len() <= DIRECTORY_MOST && !text.contains(char::is_control),
            Kind::Users => Users::parse(text).is_some(),
            Kind::List(words, alone) => return word(first_unknown(text, |w| Some(text) == *alone || words.contains(&w))),
            Kind::Settings(all) => return invalid_setting_reason(text, all),
            Kind::Flag => text == "1",
            Kind::Faults => {
                let (some, errors) = faults::parse(text);
                return match (some.is_empty(), errors.is_empty()) {
                    (true, true) => Some("it names no fault".into()),
                    (_, all_valid) => (!all_valid).then(|| errors.join(", ")),
                };
            }
        };
        (!fits).then(|| format!("{} is allowed", self.allowed()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::value::Value;
    use super::super::{DEBUG_WORDS, VARIABLES};
    use super::*;

    #[test]
    fn every_default_is_allowed_and_is_what_holds() {
        for v in VARIABLES.iter().chain(DEBUG_WORDS) {
            assert_eq!(if v.default.is_empty() { None } else { v.kind.invalid_reason(v.default) }, None, "{}", v.name);
            if matches!(v.kind, Kind::Number(..) | Kind::PowerOfTwo(..) | Kind::ZeroOr(..)) {
                assert_eq!(u64::of_variable(v, None).to_string(), v.default, "{}", v.name);
            }
        }
    }

    #[test]
    fn what_a_variable_cannot_be_is_told() {
        for v in VARIABLES.iter().filter(|v| !matches!(v.kind, Kind::Text)) {
            for bad in ["nonsense", "-2", "+1", " 1", "1 ", "1e3", "0x10", "300000000000000000000", ",", "0,nonsense", "\u{1}"] {
                assert!(v.kind.invalid_reason(bad).is_some_and(|why| !why.is_empty()), "{}={bad:?}", v.name);
            }
        }
    }

    #[test]
    fn ranges_end_where_they_say() {
        for v in VARIABLES.iter().chain(DEBUG_WORDS) {
            if let Kind::Number(low, high) | Kind::PowerOfTwo(low, high) = v.kind {
                assert!([low, high].iter().all(|n| v.kind.invalid_reason(&n.to_string()).is_none()), "{}", v.name);
                let beyond = [low.checked_sub(1), high.checked_add(1)];
                assert!(beyond.into_iter().flatten().all(|n| v.kind.invalid_reason(&n.to_string()).is_some()), "{}", v.name);
            }
        }
        assert!(
            Kind::PowerOfTwo(256, 65_536).invalid_reason("300").is_some() && Kind::ZeroOr(32_768, 65_536).invalid_reason("100").is_some()
        );
        assert_eq!(Kind::ZeroOr(32_768, 65_536).invalid_reason("0"), None);
    }
}
