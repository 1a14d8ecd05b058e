// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The values that the library works with, made from the texts of variables.

use super::faults::{self, Fault};
use super::kind::{Kind, Variable};
use super::users::Users;

/// The set of words of a [`Kind::List`]: one bit for each word, in the list's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words(pub u64);

impl Words {
    /// True if the set has the word in this place of the list.
    pub fn has(self, place: usize) -> bool {
        self.0 & 1 << place != 0
    }
}

/// The use of device drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Use only drivers that the process has loaded and initialised itself.
    pub adopt: bool,
    /// Call drivers only on threads of the library.
    pub thread: bool,
    /// A new endpoint forbids calls of device drivers in this process, and a helper process copies.
    pub process: bool,
}

/// A value of the configuration, made from the text of a variable. The text is valid, or `None`, if the variable has
/// neither a value nor a default.
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

/// A [`Kind::Index`]; `None`: -1.
impl Value for Option<u8> {
    fn of(text: Option<&str>, _: &Kind) -> Option<u8> {
        text?.parse().ok()
    }
}

/// The words between commas. A list without any word has an empty one, which is no name of anything, so that it is not
/// taken for an unset variable.
impl Value for Vec<String> {
    fn of(text: Option<&str>, _: &Kind) -> Vec<String> {
        let Some(text) = text else { return Vec::new() };
        let words: Vec<String> = text.split(',').map(|w| w.trim().to_string()).filter(|w| !w.is_empty()).collect();
        if words.is_empty() { vec![String::new()] } else { words }
    }
}

impl Value for Words {
    fn of(text: Option<&str>, kind: &Kind) -> Words {
        let Kind::List(known, _) = kind else { return Words(0) };
        let bit = |word: &str| known.iter().position(|k| *k == word.trim()).map_or(0, |at| 1 << at);
        Words(text.unwrap_or_default().split(',').fold(0, |bits, word| bits | bit(word)))
    }
}

impl Value for Driver {
    fn of(text: Option<&str>, _: &Kind) -> Driver {
        let has = |word: &str| text.unwrap_or_default().split(',').any(|w| w.trim() == word);
        Driver { adopt: has("adopt"), thread: has("thread"), process: has("process") }
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
