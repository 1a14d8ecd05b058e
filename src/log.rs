// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Log lines go nowhere unless `GDRFAB_LOG` or the caller asks; one sink, chosen at run time.

use parking_lot::RwLock;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

/// Severity, ordered: a sink set to a level takes it and all below.
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
    pub fn from_raw(raw: i32) -> Option<Level> {
        [Level::Off, Level::Error, Level::Warn, Level::Info, Level::Debug].into_iter().find(|l| *l as i32 == raw)
    }

    pub fn parse(word: &str) -> Option<Level> {
        match word {
            "off" | "0" => Some(Level::Off),
            "error" | "1" => Some(Level::Error),
            "warn" | "2" => Some(Level::Warn),
            "info" | "3" => Some(Level::Info),
            "debug" | "4" => Some(Level::Debug),
            _ => None,
        }
    }
}

/// Receives finished lines.
pub type Sink = Box<dyn Fn(Level, &str) + Send + Sync>;

const UNSET: u8 = u8::MAX;
static LEVEL: AtomicU8 = AtomicU8::new(UNSET);
static SINK: RwLock<Option<Sink>> = RwLock::new(None);

/// Chooses the level and the sink; no sink means stderr.
pub fn set(level: Level, sink: Option<Sink>) {
    *SINK.write() = sink;
    LEVEL.store(level as u8, Ordering::Relaxed);
}

pub fn enabled(level: Level) -> bool {
    let mut now = LEVEL.load(Ordering::Relaxed);
    if now == UNSET {
        now = std::env::var("GDRFAB_LOG").ok().and_then(|w| Level::parse(&w)).unwrap_or(Level::Off) as u8;
        // A concurrent set() wins over the environment.
        let _ = LEVEL.compare_exchange(UNSET, now, Ordering::Relaxed, Ordering::Relaxed);
    }
    level as u8 <= now && level != Level::Off
}

/// Hands a line to the sink. Callers go through the macro, which skips formatting when nobody listens.
pub fn emit(level: Level, args: fmt::Arguments<'_>) {
    let line = args.to_string();
    match &*SINK.read() {
        Some(sink) => sink(level, &line),
        None => eprintln!("gdrfab[{}] {line}", std::process::id()),
    }
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
