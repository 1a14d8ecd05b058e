// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Log lines, which are written only if `GDRFAB_LOG` or the caller asks for them. All lines go to one sink, chosen at
//! run time. Logging never panics, and a line that cannot be written is lost.

use crate::{environment, signals};
use parking_lot::RwLock;
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};

/// Severity. A sink that is set to a level gets that level and all lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    Off = 0,
    Error = 1,
    Warn = 2,
    Info = 3,
    Debug = 4,
}

impl Level {
    const ALL: [Level; 5] = [Level::Off, Level::Error, Level::Warn, Level::Info, Level::Debug];
    /// The names of the levels in `GDRFAB_LOG`, which accepts their numbers as well.
    pub const WORDS: [&str; 5] = ["off", "error", "warn", "info", "debug"];

    pub fn from_raw(raw: i32) -> Option<Level> {
        Level::ALL.into_iter().find(|l| *l as i32 == raw)
    }

    pub fn parse(word: &str) -> Option<Level> {
        match Level::WORDS.iter().position(|w| *w == word) {
            Some(at) => Level::ALL.get(at).copied(),
            // Only a digit, because parse() would also accept a sign.
            None => Level::ALL.into_iter().find(|l| word.parse() == Ok(*l as u8) && !word.starts_with('+')),
        }
    }

    fn word(self) -> &'static str {
        Level::WORDS.get(self as usize).copied().unwrap_or_default()
    }
}

/// Receives finished lines.
pub type Sink = Box<dyn Fn(Level, &str) + Send + Sync>;

const UNSET: u8 = u8::MAX;
static LEVEL: AtomicU8 = AtomicU8::new(UNSET);
static SINK: RwLock<Option<Sink>> = RwLock::new(None);

/// Sets the level and the sink. Without a sink, lines go to stderr.
pub fn set(level: Level, sink: Option<Sink>) {
    *SINK.write() = sink;
    LEVEL.store(level as u8, Ordering::Relaxed);
}

pub fn enabled(level: Level) -> bool {
    let mut now = LEVEL.load(Ordering::Relaxed);
    if now == UNSET {
        // An unknown word is reported as an error of gdrfab_getinfo(), by `config`.
        let asked = environment::get("GDRFAB_LOG").and_then(|word| Level::parse(word.to_str()?));
        now = asked.unwrap_or(Level::Off) as u8;
        // A concurrent set() wins over the environment.
        let _ = LEVEL.compare_exchange(UNSET, now, Ordering::Relaxed, Ordering::Relaxed);
    }
    level as u8 <= now && level != Level::Off
}

/// Passes a line to the sink. Callers use the macro, which does not format a line that no sink wants.
#[cold]
pub fn emit(level: Level, args: fmt::Arguments<'_>) {
    let held = catch_unwind(AssertUnwindSafe(|| {
        let mut line = String::new();
        // If a value fails to format itself, the rest of the line is still useful.
        let _ = write!(line, "{args}");
        // Some words come from a peer, and a line must stay one line.
        if line.contains(char::is_control) {
            line = line.replace(char::is_control, "?");
        }
        match &*SINK.read() {
            Some(sink) => sink(level, &line),
            None => print(level, &line),
        }
    }));
    if let Err(panic) = held {
        // The panic's value is not dropped, because its drop may panic again.
        std::mem::forget(panic);
    }
}

/// Prints one line with one write, so that lines of several threads and processes are not mixed.
fn print(level: Level, line: &str) {
    let whole = format!("{} gdrfab[{}] {}: {line}\n", now(), std::process::id(), level.word());
    // SAFETY: the bytes are live during the call.
    let wrote = || unsafe { libc::syscall(libc::SYS_write, libc::STDERR_FILENO, whole.as_ptr(), whole.len()) as isize };
    // A write can fail by a full disk, a closed pipe, or a limit on the file's size. Nobody is there to be told.
    let _ = signals::without_signal(wrote);
}

/// "2026-01-31T12:00:00.123456Z"
fn now() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs() as libc::time_t;
    // SAFETY: zeros are a valid tm, and gmtime_r writes only this one.
    let t = unsafe {
        let mut t: libc::tm = std::mem::zeroed();
        libc::gmtime_r(&raw const seconds, &raw mut t);
        t
    };
    let (year, month) = (t.tm_year + 1900, t.tm_mon + 1);
    format!("{year:04}-{month:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", t.tm_mday, t.tm_hour, t.tm_min, t.tm_sec, since.subsec_micros())
}

/// `log!(Warn, "...")`
#[macro_export]
macro_rules! log {
    ($level:ident, $($arg:tt)*) => {
        if $crate::log::enabled($crate::log::Level::$level) {
            $crate::log::emit($crate::log::Level::$level, format_args!($($arg)*));
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken;
    impl fmt::Display for Broken {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            Err(fmt::Error)
        }
    }
    struct Panics;
    impl fmt::Display for Panics {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("on purpose")
        }
    }

    #[test]
    fn whatever_is_logged_never_panics() {
        emit(Level::Debug, format_args!("{Broken}"));
        emit(Level::Debug, format_args!("{Panics}"));
    }

    #[test]
    fn words_and_numbers_of_levels_agree() {
        for (number, word) in Level::WORDS.iter().enumerate() {
            let level = Level::parse(word);
            assert!(level.is_some() && level == Level::parse(&number.to_string()) && level == Level::from_raw(number as i32), "{word}");
        }
        for wrong in ["", "5", "-1", "00x", "Debug", "debug ", "verbose"] {
            assert_eq!(Level::parse(wrong), None, "{wrong:?}");
        }
    }
}
