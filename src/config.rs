// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every `GDRFAB_*` environment variable: parsed once, listed by `gdrfab-info -e`.

use std::sync::OnceLock;

/// One variable, for listings.
pub struct Variable {
    pub name: &'static str,
    pub default: &'static str,
    pub help: &'static str,
}

/// All variables the library reads.
pub const VARIABLES: &[Variable] = &[
    Variable { name: "GDRFAB_LOG", default: "off", help: "off, error, warn, info or debug: lines on stderr" },
    Variable { name: "GDRFAB_PROVIDER", default: "", help: "only this provider is offered by getinfo (shm)" },
    Variable { name: "GDRFAB_SPIN_US", default: "50", help: "microseconds that a blocking wait polls before it sleeps" },
    Variable { name: "GDRFAB_SHM_PATHS", default: "direct,cma,staged,ipc", help: "paths this process may use or offer" },
    Variable {
        name: "GDRFAB_SHM_RING_SLOTS",
        default: "2048",
        help: "64-byte lines in each endpoint's receive ring (power of two, 256..65536)",
    },
    Variable { name: "GDRFAB_SHM_EAGER_MAX", default: "1536", help: "bytes up to which a message travels inside the ring (0..8192)" },
    Variable { name: "GDRFAB_SHM_NT_THRESHOLD", default: "16777216", help: "bytes from which a copy bypasses the cache (0 = never)" },
    Variable { name: "GDRFAB_SHM_COOP", default: "1", help: "0: a polling target carries no part of large copies" },
    Variable { name: "GDRFAB_SHM_COOP_MIN", default: "262144", help: "bytes from which a copy is offered to the target's core as well" },
    Variable { name: "GDRFAB_SHM_CLOSE_MS", default: "1000", help: "milliseconds mr_close and ep_close wait for a peer's copy in flight" },
    Variable { name: "GDRFAB_SHM_PIDFD", default: "1", help: "0: never fetch a peer's memory file by pidfd_getfd, always ask the peer" },
    Variable {
        name: "GDRFAB_HMEM",
        default: "cuda,rocr,ze,neuron,synapseai",
        help: "device interfaces that may be used; \"none\" for host memory only",
    },
    Variable { name: "GDRFAB_HMEM_INIT", default: "1", help: "0: never load or initialise a driver that the process has not" },
    Variable {
        name: "GDRFAB_HMEM_THREAD",
        default: "0",
        help: "1: device drivers are called on a thread of the library's own, never on the caller's",
    },
    Variable {
        name: "GDRFAB_SHM_MEMBARRIER",
        default: "1",
        help: "0: fences on every operation instead of membarrier(2) on close and sleep",
    },
];

/// Bits of `GDRFAB_SHM_PATHS`, in the order of the path bits.
pub const PATH_WORDS: [&str; 4] = ["direct", "cma", "staged", "ipc"];

/// Words of `GDRFAB_HMEM`, in the order of the interfaces' numbers from 1.
const HMEM_WORDS: [&str; 5] = ["cuda", "rocr", "ze", "neuron", "synapseai"];

/// What may be done about device drivers.
#[derive(Debug, Clone)]
pub struct Hmem {
    /// Bit per interface number.
    pub allowed: u32,
    /// Only drivers that the process has loaded and initialised itself.
    pub adopt: bool,
    /// Drivers are called on threads of the library's own only.
    pub apart: bool,
}

/// The values in force in this process.
#[derive(Debug, Clone)]
pub struct Config {
    pub provider: Option<String>,
    pub spin_us: u64,
    pub paths: u64,
    pub ring_slots: u32,
    pub eager_max: usize,
    pub nt_threshold: usize,
    pub coop: bool,
    pub coop_min: usize,
    pub close_ms: u64,
    pub pidfd: bool,
    pub membarrier: bool,
    pub hmem: Hmem,
}

fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

/// The variable's value, or its listed default; a value that does not parse or lies outside is
/// reported and replaced by the default.
fn number(name: &str, low: u64, high: u64) -> u64 {
    let default = VARIABLES.iter().find(|v| v.name == name).and_then(|v| v.default.parse().ok()).unwrap_or(low);
    match text(name) {
        None => default,
        Some(raw) => match raw.parse() {
            Ok(n) if (low..=high).contains(&n) => n,
            _ => {
                crate::log!(Warn, "{name}={raw}: not a number from {low} to {high}; {default} is used");
                default
            }
        },
    }
}

fn paths() -> u64 {
    let all = (1 << PATH_WORDS.len()) - 1;
    let Some(raw) = text("GDRFAB_SHM_PATHS") else { return all };
    let mut bits = 0;
    for word in raw.split(',') {
        match PATH_WORDS.iter().position(|w| *w == word.trim()) {
            Some(i) => bits |= 1 << i,
            None => crate::log!(Warn, "GDRFAB_SHM_PATHS: unknown path {word:?}"),
        }
    }
    if bits == 0 { all } else { bits }
}

fn hmem() -> Hmem {
    let adopt = number("GDRFAB_HMEM_INIT", 0, 1) == 0;
    let apart = number("GDRFAB_HMEM_THREAD", 0, 1) == 1;
    let Some(raw) = text("GDRFAB_HMEM") else { return Hmem { allowed: u32::MAX, adopt, apart } };
    let mut allowed = 0;
    for word in raw.split(',').map(str::trim).filter(|w| *w != "none") {
        match HMEM_WORDS.iter().position(|w| *w == word) {
            Some(i) => allowed |= 2 << i,
            None => crate::log!(Warn, "GDRFAB_HMEM: unknown interface {word:?}"),
        }
    }
    Hmem { allowed, adopt, apart }
}

/// The configuration, read from the environment at first use.
pub fn get() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| Config {
        provider: text("GDRFAB_PROVIDER"),
        spin_us: number("GDRFAB_SPIN_US", 0, 1_000_000),
        paths: paths(),
        ring_slots: (number("GDRFAB_SHM_RING_SLOTS", 256, 65536) as u32).next_power_of_two(),
        eager_max: number("GDRFAB_SHM_EAGER_MAX", 0, 8192) as usize,
        nt_threshold: match number("GDRFAB_SHM_NT_THRESHOLD", 0, u64::MAX) {
            0 => usize::MAX,
            n => n as usize,
        },
        coop: number("GDRFAB_SHM_COOP", 0, 1) == 1,
        coop_min: number("GDRFAB_SHM_COOP_MIN", 4096, u64::MAX) as usize,
        close_ms: number("GDRFAB_SHM_CLOSE_MS", 1, 600_000),
        pidfd: number("GDRFAB_SHM_PIDFD", 0, 1) == 1,
        membarrier: number("GDRFAB_SHM_MEMBARRIER", 0, 1) == 1,
        hmem: hmem(),
    })
}
