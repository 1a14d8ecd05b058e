// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command-line handling that both tools share: options in the usual spellings, output whose failure is reported, and
//! exit codes (1: the work failed, 2: the command line was wrong).

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Once;

/// One word of the command line.
pub enum Word {
    /// `-x` or `--long`, dashes included.
    Option(String),
    Plain(String),
}

/// Reads `--long value`, `--long=value`, `-x value`, `-xvalue`, `-xy` and `--`.
pub struct Args {
    rest: VecDeque<String>,
    /// The rest of a word after a short option.
    inline: Option<(String, bool)>,
    only_plain: bool,
}

impl Args {
    pub fn of_process() -> Result<Args, String> {
        let words: Result<VecDeque<String>, _> = std::env::args_os().skip(1).map(|w| w.into_string()).collect();
        match words {
            Ok(rest) => Ok(Args::new(rest)),
            Err(word) => Err(format!("{word:?} is not UTF-8")),
        }
    }

    pub fn new(words: impl IntoIterator<Item = String>) -> Args {
        Args { rest: words.into_iter().collect(), inline: None, only_plain: false }
    }

    /// Removes the first word if it is one of these.
    #[allow(dead_code, reason = "only one of the two programs has commands")]
    pub fn command(&mut self, names: &[&'static str]) -> Option<&'static str> {
        let found = names.iter().find(|name| self.rest.front().is_some_and(|word| word == *name))?;
        self.rest.pop_front();
        Some(found)
    }

    pub fn next(&mut self) -> Result<Option<Word>, String> {
        match self.inline.take() {
            Some((value, true)) => return Err(format!("\"={value}\" follows an option that takes no value")),
            Some((letters, false)) => return Ok(Some(self.short(&letters))),
            None => {}
        }
        let Some(word) = self.rest.pop_front() else { return Ok(None) };
        if self.only_plain || word == "-" || !word.starts_with('-') {
            return Ok(Some(Word::Plain(word)));
        }
        if word == "--" {
            self.only_plain = true;
            return self.next();
        }
        let Some(long) = word.strip_prefix("--") else { return Ok(Some(self.short(&word[1..]))) };
        match long.split_once('=') {
            Some((name, value)) => {
                self.inline = Some((value.to_string(), true));
                Ok(Some(Word::Option(format!("--{name}"))))
            }
            None => Ok(Some(Word::Option(word))),
        }
    }

    fn short(&mut self, letters: &str) -> Word {
        let end = letters.chars().next().map_or(0, char::len_utf8);
        if letters.len() > end {
            self.inline = Some((letters[end..].to_string(), false));
        }
        Word::Option(format!("-{}", &letters[..end]))
    }

    /// The value of the option that was just read.
    pub fn value(&mut self, option: &str) -> Result<String, String> {
        match self.inline.take() {
            Some((value, _)) => Ok(value),
            None => self.rest.pop_front().ok_or_else(|| format!("{option} needs a value")),
        }
    }

    /// The same as a number; `what` names the expected value in the error.
    #[allow(dead_code, reason = "only one of the two programs has numeric options")]
    pub fn number<T: FromStr>(&mut self, option: &str, what: &str) -> Result<T, String> {
        let value = self.value(option)?;
        value.parse().map_err(|_| format!("{option} {value}: {what} is expected"))
    }
}

/// Writes to standard output. If the reader is gone (EPIPE) nothing is reported; any other failure is reported once.
pub fn say(text: &str) -> bool {
    static TOLD: Once = Once::new();
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => true,
        Err(e) => {
            if e.kind() != ErrorKind::BrokenPipe {
                TOLD.call_once(|| complain(&format!("standard output: {e}")));
            }
            false
        }
    }
}

/// Writes the program's whole output, and gives its exit code: failure if it could not be written.
pub fn conclude(text: &str) -> ExitCode {
    if say(text) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes a line to standard error in one call, since another process may write there too.
pub fn complain(words: &str) {
    // If standard error cannot be written, there is no other place to report.
    let _ = std::io::stderr().write_all(format!("{words}\n").as_bytes());
}

/// Reports a wrong command line.
pub fn usage(program: &str, words: &str) -> ExitCode {
    complain(&format!("{program}: {words}\nTry '{program} --help'."));
    ExitCode::from(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Vec<String> {
        let mut args = Args::new(line.split(' ').map(String::from));
        let mut seen = Vec::new();
        while let Ok(Some(word)) = args.next() {
            seen.push(match word {
                Word::Plain(p) => p,
                Word::Option(o) if o == "-n" || o == "--num" => format!("{o}={}", args.value(&o).unwrap_or_else(|e| e)),
                Word::Option(o) => o,
            });
        }
        seen
    }

    #[test]
    fn the_usual_spellings_are_read() {
        assert_eq!(options("-av -n5 -n 6 --num=7 --num 8 x -- -y"), ["-a", "-v", "-n=5", "-n=6", "--num=7", "--num=8", "x", "-y"]);
        assert_eq!(options("-n"), ["-n=-n needs a value"]);
        assert!(options("--all=3 -v").len() == 1);
    }
}
