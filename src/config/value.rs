// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The types of the variables' values: a check of each value, and the words that tell a user the valid ones.

use super::faults;
use super::names::HMEM_WORDS;
use crate::log::Level;

/// The type of a variable's value. Numbers are decimal, and ranges include both ends.
pub enum Kind {
    Text,
    Number(u64, u64),
    PowerOfTwo(u64, u64),
    ZeroOr(u64, u64),
    /// -1 to 255.
    Index,
    /// One of these words.
    Word(&'static [&'static str]),
    Level,
    /// A list of these words, separated by commas.
    Paths(&'static [(&'static str, u64)]),
    /// The path of a directory.
    Directory,
    /// [`Users`].
    Users,
    /// A list of device interfaces, or "none".
    Interfaces,
    /// See docs/faults.md.
    Faults,
}

/// Largest length of the path of a directory, so that the path of a socket in it fits into an address.
const DIRECTORY_MOST: usize = 60;

/// The users that may connect.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Users {
    #[default]
    Same,
    /// This process's user and the listed users.
    These(Vec<u32>),
    /// Every user who may open the socket's path.
    Path,
}

impl Users {
    pub fn words(&self) -> String {
        match self {
            Users::Same => "this process's user connects".into(),
            Users::These(some) => format!("this process's user and {some:?} connect"),
            Users::Path => "whoever may open the path of a socket connects; by other names this process's user".into(),
        }
    }

    /// `None`: not a valid list of users.
    pub fn parse(text: &str) -> Option<Users> {
        let number = |word: &str| word.parse().ok().filter(|_| word.bytes().all(|b| b.is_ascii_digit()));
        match text {
            "same" => Some(Users::Same),
            "path" => Some(Users::Path),
            list => list.split(',').map(number).collect::<Option<_>>().map(Users::These),
        }
    }
}

fn within(text: &str, low: u64, high: u64) -> bool {
    // Only digits, because parse() would also accept a sign.
    text.bytes().all(|b| b.is_ascii_digit()) && text.parse().is_ok_and(|n: u64| (low..=high).contains(&n))
}

/// The first word of a list that is not known.
fn first_unknown(text: &str, known: impl Fn(&str) -> bool) -> Option<&str> {
    text.split(',').map(str::trim).find(|word| !known(word))
}

impl Kind {
    /// The allowed values in words; "" for any text.
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
            Kind::Paths(words) => format!("a list of {}", words.iter().map(|(w, _)| *w).collect::<Vec<_>>().join(", ")),
            Kind::Interfaces => format!("a list of {}, or none", HMEM_WORDS.join(", ")),
            Kind::Faults => "a list of faults".into(),
            Kind::Directory => format!("a path from / of at most {DIRECTORY_MOST} bytes"),
            Kind::Users => "same, path, or a list of user numbers".into(),
        }
    }

    /// The reason why a value is invalid; `None` if it is valid.
    pub fn wrong(&self, text: &str) -> Option<String> {
        let word = |first_unknown: Option<&str>| first_unknown.map(|w| format!("{w:?} is not known; {} is allowed", self.allowed()));
        let fits = match self {
            Kind::Text => true,
            Kind::Number(low, high) => within(text, *low, *high),
            Kind::PowerOfTwo(low, high) => within(text, *low, *high) && text.parse().is_ok_and(u64::is_power_of_two),
            Kind::ZeroOr(low, high) => within(text, 0, 0) || within(text, *low, *high),
            Kind::Index => text == "-1" || within(text, 0, 255),
            Kind::Word(words) => words.contains(&text),
            Kind::Level => Level::parse(text).is_some(),
            Kind::Directory => text.starts_with('/') && text.len() <= DIRECTORY_MOST && !text.contains(char::is_control),
            Kind::Users => Users::parse(text).is_some(),
            Kind::Paths(words) => return word(first_unknown(text, |w| words.iter().any(|(known, _)| *known == w))),
            Kind::Interfaces => return word(first_unknown(text, |w| text == "none" || HMEM_WORDS.contains(&w))),
            Kind::Faults => {
                let (some, wrong) = faults::parse(text);
                return match (some.is_empty(), wrong.is_empty()) {
                    (true, true) => Some("it names no fault".into()),
                    (_, told) => (!told).then(|| wrong.join(", ")),
                };
            }
        };
        (!fits).then(|| format!("{} is allowed", self.allowed()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{VARIABLES, number};
    use super::*;

    #[test]
    fn every_default_is_allowed_and_is_what_holds() {
        for v in VARIABLES {
            assert_eq!(if v.default.is_empty() { None } else { v.kind.wrong(v.default) }, None, "{}", v.name);
            if matches!(v.kind, Kind::Number(..) | Kind::PowerOfTwo(..) | Kind::ZeroOr(..)) {
                assert_eq!(number(v.name).to_string(), v.default, "{}", v.name);
            }
        }
    }

    #[test]
    fn what_a_variable_cannot_be_is_told() {
        for v in VARIABLES.iter().filter(|v| !matches!(v.kind, Kind::Text)) {
            for bad in ["nonsense", "-2", "+1", " 1", "1 ", "1e3", "0x10", "300000000000000000000", ",", "0,nonsense", "\u{1}"] {
                assert!(v.kind.wrong(bad).is_some_and(|why| !why.is_empty()), "{}={bad:?}", v.name);
            }
        }
    }

    #[test]
    fn users_are_words_or_numbers() {
        assert_eq!(Users::parse("0,1000"), Some(Users::These(vec![0, 1000])));
        assert_eq!((Users::parse("path"), Users::parse("same")), (Some(Users::Path), Some(Users::Same)));
        for bad in ["", "0,", "0, 1", "same,0", "root", "4294967296", "-1"] {
            assert_eq!(Users::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn ranges_end_where_they_say() {
        for v in VARIABLES {
            if let Kind::Number(low, high) | Kind::PowerOfTwo(low, high) = v.kind {
                assert!([low, high].iter().all(|n| v.kind.wrong(&n.to_string()).is_none()), "{}", v.name);
                let beyond = [low.checked_sub(1), high.checked_add(1)];
                assert!(beyond.into_iter().flatten().all(|n| v.kind.wrong(&n.to_string()).is_some()), "{}", v.name);
            }
        }
        assert!(Kind::PowerOfTwo(256, 65_536).wrong("300").is_some() && Kind::ZeroOr(32_768, 65_536).wrong("100").is_some());
        assert_eq!(Kind::ZeroOr(32_768, 65_536).wrong("0"), None);
    }
}
