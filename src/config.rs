// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `GDRFAB_*` environment variables, read once per process and listed by `gdrfab-info -e`. An invalid value is an
//! error of `gdrfab_getinfo()`; calls before `gdrfab_getinfo()` use the default instead.

pub mod faults;

mod names;
mod spelling;
mod table;
mod value;

use crate::error::{Error, Result};
use crate::{environment, log};
use names::{HMEM_WORDS, SHM_PATHS, TCP_PATHS, VERBS_PATHS};
pub use names::{RING_MOST, SETS};
use std::ffi::OsStr;
use std::sync::OnceLock;
pub use table::{VARIABLES, Variable};
pub use value::{Kind, Users};

/// Use of device drivers.
#[derive(Debug, Clone)]
pub struct Hmem {
    /// One bit per interface number.
    pub allowed: u32,
    /// Use only drivers that the process has loaded and initialised itself.
    pub adopt: bool,
    /// Call drivers only on threads of the library.
    pub threaded: bool,
    /// A new endpoint forbids calls of device drivers in this process, and a helper process copies.
    pub process: bool,
    /// Largest number of thread blocks of the GPU kernel that copies lists; 0: no kernel.
    pub groups: u32,
    pub copier: Option<String>,
}

/// Use of TCP sockets.
#[derive(Debug, Clone)]
pub struct Tcp {
    pub iface: Option<String>,
    pub key_file: Option<String>,
    /// none, greeting or sealed. If unset: sealed if there is a key, else none.
    pub security: Option<String>,
    pub paths: u64,
    pub pending: usize,
    pub greeting_ms: u64,
    /// 0: the kernel's defaults.
    pub timeout_ms: u32,
    /// Bytes of each socket buffer; 0: chosen by the path.
    pub buffer: usize,
    pub congestion: Option<String>,
    /// Connections for long bodies beside the first; 1: the first carries all.
    pub streams: u32,
    /// Interfaces and addresses that one connection may use together; empty: only one.
    pub rails: String,
    pub rail_timeout_ms: u32,
    pub window: u32,
    pub budget: u32,
}

/// Use of RDMA devices.
#[derive(Debug, Clone)]
pub struct Verbs {
    /// The devices to use; empty: all.
    pub devices: Vec<String>,
    /// Ports used as rails, as device or device:port; empty: none.
    pub rails: Vec<String>,
    pub gid_index: Option<u8>,
    pub tx_size: usize,
    pub rx_size: usize,
    pub inline: usize,
    pub paths: u64,
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub min_rnr_timer: u8,
    pub mtu: u32,
    pub service_level: u8,
    pub traffic_class: u8,
    pub relaxed_ordering: bool,
    pub odp: bool,
    pub reg_threads: usize,
    pub library: Option<String>,
    pub cm_library: Option<String>,
}

/// The values in force in this process.
#[derive(Debug, Clone)]
pub struct Config {
    pub provider: Option<String>,
    pub spin_us: u64,
    pub paths: u64,
    pub ring_slots: u32,
    pub eager_max: usize,
    /// Largest number of bytes of a ring's out-of-line area that may be in use.
    pub area_max: usize,
    pub nt_threshold: usize,
    pub coop: bool,
    pub coop_min: usize,
    pub close_ms: u64,
    pub pidfd: bool,
    /// Users other than this process's that may connect.
    pub users: Users,
    /// Directory for sockets that the user has not named; `None`: abstract sockets.
    pub socket_dir: Option<String>,
    pub membarrier: bool,
    pub hmem: Hmem,
    pub tcp: Tcp,
    pub verbs: Verbs,
    /// Fault injection; usually empty.
    pub faults: Vec<faults::Fault>,
    /// Check the local descriptors of every operation.
    pub debug: bool,
}

impl Config {
    /// Length up to which a message travels through the ring. `private`: the receiver cannot map the sender's memory.
    /// From such memory twice as many bytes travel through the ring, because the other way is a system call, which
    /// costs more than two copies of some kilobytes.
    pub fn ring_max(&self, private: bool) -> usize {
        if private { (2 * self.eager_max).min(RING_MOST) } else { self.eager_max }
    }
}

/// The error of a variable's value, in words that name the variable and the value; `None` if the value is valid.
fn wrong(v: &Variable, raw: &OsStr) -> Option<String> {
    let why = match raw.to_str() {
        Some(text) => v.kind.wrong(text)?,
        None => "it is not UTF-8".to_string(),
    };
    Some(format!("{}={}: {why}", v.name, raw.to_string_lossy()))
}

/// The value of a variable, if it is set to a valid value.
fn text(name: &str) -> Option<String> {
    let raw = environment::get(name)?;
    let known = VARIABLES.iter().find(|v| v.name == name)?;
    if wrong(known, &raw).is_some() { None } else { raw.into_string().ok() }
}

/// The value of a variable, or its default.
fn number(name: &str) -> u64 {
    let default = || VARIABLES.iter().find(|v| v.name == name).and_then(|v| v.default.parse().ok());
    text(name).and_then(|raw| raw.parse().ok()).or_else(default).unwrap_or_default()
}

fn switch(name: &str) -> bool {
    number(name) == 1
}

/// The path bits of the words in a variable; all bits if it is unset.
fn paths(name: &str, known: &[(&str, u64)]) -> u64 {
    let bits =
        |raw: String| raw.split(',').filter_map(|word| known.iter().find(|(w, _)| *w == word.trim())).fold(0, |sum, (_, bit)| sum | bit);
    text(name).map_or(known.iter().fold(0, |sum, (_, bit)| sum | bit), bits)
}

/// Checks that every variable has a valid value, and that no variable that decides who may connect is mistyped. The
/// error names each wrong variable.
pub fn check() -> Result<()> {
    let wrong: Vec<String> = VARIABLES.iter().filter_map(|v| wrong(v, &environment::get(v.name)?)).chain(mistyped()).collect();
    if wrong.is_empty() { Ok(()) } else { Err(Error::invalid(format!("the environment: {}", wrong.join("; ")))) }
}

/// The errors in the names of variables that are set.
fn mistyped() -> impl Iterator<Item = String> {
    let set = |name: &String| environment::get(name).is_some();
    environment::names("GDRFAB").into_iter().filter(set).filter_map(|name| spelling::wrong(&name))
}

/// Names of variables that begin like the library's but are not known, perhaps because they are mistyped. Variables of
/// the plugins have prefixes of their own, and are not reported.
pub fn unknown() -> Vec<String> {
    let told = |name: &String| (name.starts_with("GDRFAB_") && spelling::is_unknown(name)) || spelling::meant(name).is_some();
    environment::names("GDRFAB").into_iter().filter(told).collect()
}

fn tcp() -> Tcp {
    Tcp {
        iface: text("GDRFAB_TCP_IFACE"),
        key_file: text("GDRFAB_TCP_KEY_FILE"),
        security: text("GDRFAB_TCP_SECURITY"),
        paths: paths("GDRFAB_TCP_PATHS", &TCP_PATHS),
        pending: number("GDRFAB_TCP_PENDING") as usize,
        greeting_ms: number("GDRFAB_TCP_GREETING_MS"),
        timeout_ms: number("GDRFAB_TCP_TIMEOUT_MS") as u32,
        buffer: number("GDRFAB_TCP_BUFFER") as usize,
        congestion: text("GDRFAB_TCP_CONGESTION"),
        streams: number("GDRFAB_TCP_STREAMS") as u32,
        rails: text("GDRFAB_TCP_RAILS").unwrap_or_default(),
        rail_timeout_ms: number("GDRFAB_TCP_RAIL_TIMEOUT_MS") as u32,
        window: number("GDRFAB_TCP_WINDOW") as u32,
        budget: number("GDRFAB_TCP_BUDGET") as u32,
    }
}

/// The words between commas.
fn list(name: &str) -> Vec<String> {
    text(name).map_or(Vec::new(), |t| t.split(',').map(|w| w.trim().to_string()).filter(|w| !w.is_empty()).collect())
}

fn verbs() -> Verbs {
    let byte = |name: &str| number(name) as u8;
    Verbs {
        devices: text("GDRFAB_VERBS_DEVICE").map_or(Vec::new(), |t| t.split(',').map(|w| w.trim().to_string()).collect()),
        rails: list("GDRFAB_VERBS_RAILS"),
        gid_index: text("GDRFAB_VERBS_GID_INDEX").and_then(|t| t.parse().ok()),
        tx_size: number("GDRFAB_VERBS_TX_SIZE") as usize,
        rx_size: number("GDRFAB_VERBS_RX_SIZE") as usize,
        inline: number("GDRFAB_VERBS_INLINE") as usize,
        paths: paths("GDRFAB_VERBS_PATHS", &VERBS_PATHS),
        timeout: byte("GDRFAB_VERBS_TIMEOUT"),
        retries: byte("GDRFAB_VERBS_RETRIES"),
        rnr_retries: byte("GDRFAB_VERBS_RNR_RETRIES"),
        min_rnr_timer: byte("GDRFAB_VERBS_MIN_RNR_TIMER"),
        mtu: number("GDRFAB_VERBS_MTU") as u32,
        service_level: byte("GDRFAB_VERBS_SERVICE_LEVEL"),
        traffic_class: byte("GDRFAB_VERBS_TRAFFIC_CLASS"),
        relaxed_ordering: switch("GDRFAB_VERBS_RELAXED_ORDERING"),
        odp: switch("GDRFAB_VERBS_ODP"),
        reg_threads: number("GDRFAB_VERBS_REG_THREADS") as usize,
        library: text("GDRFAB_VERBS_LIBRARY"),
        cm_library: text("GDRFAB_RDMACM_LIBRARY"),
    }
}

fn hmem() -> Hmem {
    let adopt = !switch("GDRFAB_HMEM_INIT");
    let threaded = switch("GDRFAB_HMEM_THREAD");
    let process = switch("GDRFAB_HMEM_PROCESS");
    let all =
        Hmem { allowed: u32::MAX, adopt, threaded, process, groups: number("GDRFAB_CUDA_MAX_CTAS") as u32, copier: text("GDRFAB_COPIER") };
    let Some(raw) = text("GDRFAB_HMEM") else { return all };
    let bits = HMEM_WORDS.iter().enumerate().filter(|(_, known)| raw.split(',').any(|w| w.trim() == **known));
    let allowed = bits.fold(0, |sum, (i, _)| sum | 2 << i);
    Hmem { allowed, ..all }
}

/// The faults of `GDRFAB_FAULT`. A log line reminds a user who has forgotten that the variable is set.
fn faults() -> Vec<faults::Fault> {
    let Some(raw) = text("GDRFAB_FAULT") else { return Vec::new() };
    let (faults, _) = faults::parse(&raw);
    if !faults.is_empty() {
        crate::log!(Warn, "GDRFAB_FAULT={raw}: {} fault(s) happen on purpose", faults.len());
    }
    faults
}

/// The configuration, read from the environment at first use.
pub fn get() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| {
        if let Err(e) = check() {
            log!(Warn, "{e}");
        }
        for name in unknown() {
            let meant = spelling::meant(&name).map_or(String::new(), |known| format!("; {known} is"));
            log!(Warn, "{name} is no variable of this library{meant}");
        }
        read()
    })
}

fn read() -> Config {
    Config {
        provider: text("GDRFAB_PROVIDER"),
        spin_us: number("GDRFAB_SPIN_US"),
        paths: paths("GDRFAB_SHM_PATHS", &SHM_PATHS),
        ring_slots: number("GDRFAB_SHM_RING_SLOTS") as u32,
        eager_max: number("GDRFAB_SHM_EAGER_MAX") as usize,
        area_max: number("GDRFAB_SHM_AREA_MAX") as usize,
        nt_threshold: match number("GDRFAB_SHM_NT_THRESHOLD") {
            0 => usize::MAX,
            n => n as usize,
        },
        coop: switch("GDRFAB_SHM_COOP"),
        coop_min: number("GDRFAB_SHM_COOP_MIN") as usize,
        close_ms: number("GDRFAB_SHM_CLOSE_MS"),
        pidfd: switch("GDRFAB_SHM_PIDFD"),
        users: text("GDRFAB_SHM_USERS").and_then(|t| Users::parse(&t)).unwrap_or_default(),
        socket_dir: text("GDRFAB_SHM_DIR"),
        membarrier: switch("GDRFAB_SHM_MEMBARRIER"),
        hmem: hmem(),
        tcp: tcp(),
        verbs: verbs(),
        faults: faults(),
        debug: switch("GDRFAB_DEBUG"),
    }
}
