// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes the values that the library works with from the texts of variables.

use super::faults::{self, Fault};
use super::kind::{Kind, Variable};
use super::users::Users;

/// A set of words out of those of a [`Kind::List`]: one bit for each word, in the order in which the kind lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordSet(pub u64);

impl WordSet {
    /// True if the set has the word that is in this place of the kind's list.
    pub fn has(self, place: usize) -> bool {
        self.0 & 1 << place != 0
    }
}

/// The value of `GDRFAB_HMEM_DRIVER`; all false: the word `caller`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverUse {
    /// Use only drivers that the process has loaded and initialised itself.
    pub adopt: bool,
    /// Call drivers only on threads of the library.
    pub thread: bool,
    /// New endpoints of shm forbid calls of device drivers in this process, and a helper process copies.
    pub process: bool,
}

/// A value of the configuration, made from the text of a variable. The text is valid; it is `None` if the variable is
/// not set and has no default.
pub trait Value: Sized {
    fn of(text: Option<&str>, kind: &Kind) -> Self;

    /// The value of a variable that has this text, or else its default.
    fn of_variable(variable: &Variable, text: Option<String>) -> Self {
        let default = || (!variable.default.is_empty()).then(|| variable.default.to_string());
        Self::of(text.or_else(default).as_deref(), &variable.kind)
    }
}

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl Value for $type {
            fn of(text: Option<&str>, _: &Kind) -> $type {
                text.and_then(|t| t.parse().ok()).unwrap_or_default()
            }
        })*
    };
}
numbers!(u8, u32, u64, usize);

impl Value for bool {
    fn of(text: Option<&str>, _: &Kind) -> bool {
        text == Some("1")
    }
}

impl Value for String {
    fn of(text: Option<&str>, _: &Kind) -> String {
        text.unwrap_or_default().into()
    }
}

impl Value for Option<String> {
    fn of(text: Option<&str>, _: &Kind) -> Option<String> {
        text.map(String::from)
    }
}

/// The value of a [`Kind::Index`]; -1 becomes `None`.
impl Value for Option<u8> {
    fn of(text: Option<&str>, _: &Kind) -> Option<u8> {
        text?.parse().ok()
    }
}

/// The words between commas; none if the variable is not set. A variable that is set, but has only commas, gives one
/// empty word. The empty word names nothing, and keeps the variable apart from an unset one, which means the default.
impl Value for Vec<String> {
    fn of(text: Option<&str>, _: &Kind) -> Vec<String> {
        let Some(text) = text else { return Vec::new() };
        let words: Vec<String> = text.split(',').map(|w| w.trim().to_string()).filter(|w| !w.is_empty()).collect();
        if words.is_empty() { vec![String::new()] } else { words }
    }
}

impl Value for WordSet {
    fn of(text: Option<&str>, kind: &Kind) -> WordSet {
        let Kind::List(known, _) = kind else { return WordSet(0) };
        let bit = |word: &str| known.iter().position(|k| *k == word.trim()).map_or(0, |at| 1 << at);
        WordSet(text.unwrap_or_default().split(',').fold(0, |bits, word| bits | bit(word)))
    }
}

impl Value for DriverUse {
    fn of(text: Option<&str>, _: &Kind) -> DriverUse {
        let has = |word: &str| text.unwrap_or_default().split(',').any(|w| w.trim() == word);
        DriverUse { adopt: has("adopt"), thread: has("thread"), process: has("process") }
    }
}

impl Value for Users {
    fn of(text: Option<&str>, _: &Kind) -> Users {
        text.and_then(Users::parse).unwrap_or_default()
    }
}

impl Value for Vec<Fault> {
    fn of(text: Option<&str>, _: &Kind) -> Vec<Fault> {
        faults::parse(text.unwrap_or_default()).0
    }
}
