// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every `GDRFAB_*` environment variable: parsed once, listed by `gdrfab-info -e`. A value that a variable cannot have is an
//! error of `gdrfab_getinfo()`; until then, its default holds.

pub mod faults;

mod value;

use crate::error::{Error, Result};
use crate::{environment, log};
use std::ffi::OsStr;
use std::sync::OnceLock;
pub use value::Kind;

/// One variable, for listings.
pub struct Variable {
    pub name: &'static str,
    /// The values that it may have.
    pub kind: Kind,
    pub default: &'static str,
    pub help: &'static str,
}

/// 0 or 1.
const SWITCH: Kind = Kind::Number(0, 1);

/// Every provider there may be, in this build or another.
const PROVIDERS: [&str; 3] = ["shm", "tcp", "verbs"];

/// All variables the library reads.
pub const VARIABLES: &[Variable] = &[
    Variable { name: "GDRFAB_LOG", kind: Kind::Level, default: "off", help: "lines on stderr" },
    Variable { name: "GDRFAB_PROVIDER", kind: Kind::Word(&PROVIDERS), default: "", help: "only this provider is offered by getinfo" },
    Variable {
        name: "GDRFAB_SPIN_US",
        kind: Kind::Number(0, 1_000_000),
        default: "50",
        help: "microseconds that a blocking wait polls before it sleeps",
    },
    Variable {
        name: "GDRFAB_SHM_PATHS",
        kind: Kind::Paths(&SHM_PATHS),
        default: "direct,cma,staged,ipc",
        help: "paths this process may use or offer",
    },
    Variable {
        name: "GDRFAB_SHM_RING_SLOTS",
        kind: Kind::PowerOfTwo(256, 65_536),
        default: "2048",
        help: "64-byte lines in each endpoint's receive ring",
    },
    Variable {
        name: "GDRFAB_SHM_EAGER_MAX",
        kind: Kind::Number(0, RING_MOST as u64),
        default: "4096",
        help: "bytes up to which a message travels through the ring up to twice as many from memory that the peer cannot map",
    },
    Variable {
        name: "GDRFAB_SHM_AREA_MAX",
        kind: Kind::Number(128 << 10, 2 << 20),
        default: "2097152",
        help: "bytes beside each ring that messages of 512 bytes and more may come to use",
    },
    Variable {
        name: "GDRFAB_SHM_NT_THRESHOLD",
        kind: Kind::Number(0, u64::MAX),
        default: "16777216",
        help: "bytes from which a copy bypasses the cache (0 = never)",
    },
    Variable { name: "GDRFAB_SHM_COOP", kind: SWITCH, default: "1", help: "0: a polling target carries no part of large copies" },
    Variable {
        name: "GDRFAB_SHM_COOP_MIN",
        kind: Kind::Number(4096, u64::MAX),
        default: "262144",
        help: "bytes from which a copy is offered to the target's core as well",
    },
    Variable {
        name: "GDRFAB_SHM_CLOSE_MS",
        kind: Kind::Number(1, 600_000),
        default: "1000",
        help: "milliseconds mr_close and ep_close wait for a peer's copy in flight",
    },
    Variable {
        name: "GDRFAB_SHM_PIDFD",
        kind: SWITCH,
        default: "1",
        help: "0: never fetch a peer's memory file by pidfd_getfd, always ask the peer",
    },
    Variable {
        name: "GDRFAB_HMEM",
        kind: Kind::Interfaces,
        default: "cuda,rocr,ze,neuron,synapseai",
        help: "device interfaces that may be used; \"none\" for host memory only",
    },
    Variable {
        name: "GDRFAB_HMEM_INIT",
        kind: SWITCH,
        default: "1",
        help: "0: never load or initialise a driver that the process has not",
    },
    Variable {
        name: "GDRFAB_HMEM_THREAD",
        kind: SWITCH,
        default: "0",
        help: "1: device drivers are called on a thread of the library's own, never on the caller's",
    },
    Variable {
        name: "GDRFAB_HMEM_PROCESS",
        kind: SWITCH,
        default: "0",
        help: "1: operations of shm call no device driver here unless an endpoint says so; a process of the library's own copies (GDRFAB_OPT_DRIVER_CALLS)",
    },
    Variable {
        name: "GDRFAB_COPIER",
        kind: Kind::Text,
        default: "",
        help: "the program of that process; unset: gdrfab/gdrfab-copier beside the library",
    },
    Variable {
        name: "GDRFAB_SHM_MEMBARRIER",
        kind: SWITCH,
        default: "1",
        help: "0: fences on every operation instead of membarrier(2) on close and sleep",
    },
    Variable {
        name: "GDRFAB_TCP_IFACE",
        kind: Kind::Text,
        default: "",
        help: "interface whose address tcp uses where none is named; unset: listens on the loopback, and routes choose for connections",
    },
    Variable {
        name: "GDRFAB_TCP_KEY_FILE",
        kind: Kind::Text,
        default: "",
        help: "file with the key (16 to 1024 bytes, of this user or root, readable by its owner only) that tcp peers must know, where auth_key is not given",
    },
    Variable {
        name: "GDRFAB_TCP_PATHS",
        kind: Kind::Paths(&TCP_PATHS),
        default: "socket,staged",
        help: "paths of tcp that this process may use or offer",
    },
    Variable {
        name: "GDRFAB_TCP_PENDING",
        kind: Kind::Number(1, 65_536),
        default: "64",
        help: "pending connections of a tcp listener: those that have not introduced themselves yet",
    },
    Variable {
        name: "GDRFAB_TCP_GREETING_MS",
        kind: Kind::Number(1, 600_000),
        default: "5000",
        help: "milliseconds that a tcp connection has to introduce itself",
    },
    Variable {
        name: "GDRFAB_TCP_TIMEOUT_MS",
        kind: Kind::Number(0, 86_400_000),
        default: "30000",
        help: "milliseconds of silence after which a tcp peer is taken for dead (0 = the kernel's defaults)",
    },
    Variable {
        name: "GDRFAB_TCP_BUFFER",
        kind: Kind::ZeroOr(32_768, 1 << 30),
        default: "0",
        help: "bytes of each tcp socket's send and receive buffer; 0: by the path",
    },
    Variable {
        name: "GDRFAB_TCP_CONGESTION",
        kind: Kind::Text,
        default: "",
        help: "congestion control of tcp's sockets (reno, cubic, bbr...); unset: reno within a host, else the host's",
    },
    Variable {
        name: "GDRFAB_TCP_STREAMS",
        kind: Kind::Number(1, 16),
        default: "1",
        help: "transfers of 256 KiB and more go over so many tcp connections beside the first, if both sides want it (1: none)",
    },
    Variable {
        name: "GDRFAB_TCP_WINDOW",
        kind: Kind::Number(1, 1 << 20),
        default: "1024",
        help: "messages that a tcp endpoint keeps until their receives are posted",
    },
    Variable {
        name: "GDRFAB_TCP_BUDGET",
        kind: Kind::Number(0, 1 << 30),
        default: "1048576",
        help: "bytes of messages that a tcp endpoint keeps until their receives are posted",
    },
    Variable { name: "GDRFAB_VERBS_DEVICE", kind: Kind::Text, default: "", help: "only these RDMA devices are offered (mlx5_0,mlx5_1)" },
    Variable {
        name: "GDRFAB_VERBS_GID_INDEX",
        kind: Kind::Index,
        default: "-1",
        help: "index in the port's GID table; -1: the best of each type",
    },
    Variable {
        name: "GDRFAB_VERBS_TX_SIZE",
        kind: Kind::Number(1, 1 << 20),
        default: "512",
        help: "operations that can be outstanding on an endpoint without hints",
    },
    Variable {
        name: "GDRFAB_VERBS_RX_SIZE",
        kind: Kind::Number(1, 1 << 20),
        default: "512",
        help: "receives that can be posted on an endpoint without hints",
    },
    Variable {
        name: "GDRFAB_VERBS_INLINE",
        kind: Kind::Number(0, 4096),
        default: "220",
        help: "bytes that travel inside the work request, as far as the device can",
    },
    Variable {
        name: "GDRFAB_VERBS_PATHS",
        kind: Kind::Paths(&VERBS_PATHS),
        default: "nic,dmabuf,peer-mem,staged",
        help: "ways a region may be registered",
    },
    Variable {
        name: "GDRFAB_VERBS_TIMEOUT",
        kind: Kind::Number(0, 31),
        default: "14",
        help: "4.096 us << this is waited for an acknowledgement (0 = for ever)",
    },
    Variable {
        name: "GDRFAB_VERBS_RETRIES",
        kind: Kind::Number(0, 7),
        default: "7",
        help: "repeats of an unacknowledged packet before the connection fails",
    },
    Variable {
        name: "GDRFAB_VERBS_RNR_RETRIES",
        kind: Kind::Number(0, 7),
        default: "7",
        help: "repeats where the peer has posted no receive; 7 = without end",
    },
    Variable {
        name: "GDRFAB_VERBS_MIN_RNR_TIMER",
        kind: Kind::Number(0, 31),
        default: "12",
        help: "code of the time a sender waits where no receive is posted (12: 0.64 ms)",
    },
    Variable {
        name: "GDRFAB_VERBS_MTU",
        kind: Kind::Word(&["0", "256", "512", "1024", "2048", "4096"]),
        default: "0",
        help: "largest packet in bytes; 0: the port's",
    },
    Variable {
        name: "GDRFAB_VERBS_SERVICE_LEVEL",
        kind: Kind::Number(0, 15),
        default: "0",
        help: "InfiniBand service level of connections by exchanged addresses",
    },
    Variable {
        name: "GDRFAB_VERBS_TRAFFIC_CLASS",
        kind: Kind::Number(0, 255),
        default: "0",
        help: "traffic class (RoCE v2: DSCP << 2) of connections by exchanged addresses",
    },
    Variable {
        name: "GDRFAB_VERBS_RELAXED_ORDERING",
        kind: SWITCH,
        default: "0",
        help: "1: writes to memory may overtake each other on the bus where the device can: faster on some hosts, but only completions tell of arrival then",
    },
    Variable {
        name: "GDRFAB_VERBS_ODP",
        kind: SWITCH,
        default: "0",
        help: "1: host memory is registered for on-demand paging where the device can",
    },
    Variable {
        name: "GDRFAB_VERBS_REG_THREADS",
        kind: Kind::Number(1, 64),
        default: "4",
        help: "threads that register large host memory side by side (1 = none)",
    },
    Variable { name: "GDRFAB_VERBS_LIBRARY", kind: Kind::Text, default: "", help: "opened in place of libibverbs.so.1" },
    Variable { name: "GDRFAB_RDMACM_LIBRARY", kind: Kind::Text, default: "", help: "opened in place of librdmacm.so.1" },
    Variable {
        name: "GDRFAB_FAULT",
        kind: Kind::Faults,
        default: "",
        help: "faults on demand: delay=US[:OP], drop=N[:OP][:once], refuse=STEP[:N], short=N, each of all providers or of one (tcp/drop=5)",
    },
];

/// Words of `GDRFAB_SHM_PATHS` and their path bits.
const SHM_PATHS: [(&str, u64); 4] = [("direct", 1), ("cma", 2), ("staged", 4), ("ipc", 8)];

/// Words of `GDRFAB_TCP_PATHS` and their path bits.
const TCP_PATHS: [(&str, u64); 2] = [("staged", 1 << 2), ("socket", 1 << 7)];

/// Words of `GDRFAB_VERBS_PATHS` and their path bits.
const VERBS_PATHS: [(&str, u64); 4] = [("staged", 1 << 2), ("nic", 1 << 4), ("dmabuf", 1 << 5), ("peer-mem", 1 << 6)];

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
    pub threaded: bool,
    /// Endpoints begin with driver calls forbidden.
    pub process: bool,
    pub copier: Option<String>,
}

/// How sockets are used.
#[derive(Debug, Clone)]
pub struct Tcp {
    pub iface: Option<String>,
    pub key_file: Option<String>,
    pub paths: u64,
    pub pending: usize,
    pub greeting_ms: u64,
    /// 0: the kernel's defaults.
    pub timeout_ms: u32,
    /// Bytes; 0: by the path.
    pub buffer: usize,
    pub congestion: Option<String>,
    /// Connections for long bodies, beside the first; 1: none, the first carries all.
    pub streams: u32,
    pub window: u32,
    pub budget: u32,
}

/// How RDMA devices are used.
#[derive(Debug, Clone)]
pub struct Verbs {
    /// Only these; empty: all.
    pub devices: Vec<String>,
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
    /// Bytes of the area beside a ring that may be in use.
    pub area_max: usize,
    pub nt_threshold: usize,
    pub coop: bool,
    pub coop_min: usize,
    pub close_ms: u64,
    pub pidfd: bool,
    pub membarrier: bool,
    pub hmem: Hmem,
    pub tcp: Tcp,
    pub verbs: Verbs,
    /// Faults on demand; usually none.
    pub faults: Vec<faults::Fault>,
}

/// Bytes of the longest message that travels through the ring of the shm provider, whatever the settings.
pub const RING_MOST: usize = 8192;

impl Config {
    /// Bytes up to which a message travels through the ring. `private`: from memory that the receiver cannot map; the other
    /// way for it is a system call, which costs more than two copies of some kilobytes.
    pub fn ring_max(&self, private: bool) -> usize {
        if private { (2 * self.eager_max).min(RING_MOST) } else { self.eager_max }
    }
}

/// What is wrong with a value of a variable, in words that name both.
fn wrong(v: &Variable, raw: &OsStr) -> Option<String> {
    let why = match raw.to_str() {
        Some(text) => v.kind.wrong(text)?,
        None => "it is not UTF-8".to_string(),
    };
    Some(format!("{}={}: {why}", v.name, raw.to_string_lossy()))
}

/// The value of a variable, where it is one that the variable can have.
fn text(name: &str) -> Option<String> {
    let raw = environment::get(name)?;
    let known = VARIABLES.iter().find(|v| v.name == name)?;
    if wrong(known, &raw).is_some() { None } else { raw.into_string().ok() }
}

/// The variable's value, or its listed default.
fn number(name: &str) -> u64 {
    let default = || VARIABLES.iter().find(|v| v.name == name).and_then(|v| v.default.parse().ok());
    text(name).and_then(|raw| raw.parse().ok()).or_else(default).unwrap_or_default()
}

fn switch(name: &str) -> bool {
    number(name) == 1
}

/// The bits of the words in a variable; all where it is unset.
fn paths(name: &str, known: &[(&str, u64)]) -> u64 {
    let bits =
        |raw: String| raw.split(',').filter_map(|word| known.iter().find(|(w, _)| *w == word.trim())).fold(0, |sum, (_, bit)| sum | bit);
    text(name).map_or(known.iter().fold(0, |sum, (_, bit)| sum | bit), bits)
}

/// Whether every variable has a value that it can have; the words name each that has not.
pub fn check() -> Result<()> {
    let wrong: Vec<String> = VARIABLES.iter().filter_map(|v| wrong(v, &environment::get(v.name)?)).collect();
    if wrong.is_empty() { Ok(()) } else { Err(Error::invalid(format!("the environment: {}", wrong.join("; ")))) }
}

/// Variables of the environment that are named like ours, and are not: mistyped, perhaps. Those of the plugins have names
/// of their own.
pub fn unknown() -> Vec<String> {
    let ours = |name: &String| VARIABLES.iter().any(|v| v.name == name) || name.starts_with("GDRFAB_NCCL_");
    environment::names("GDRFAB_").into_iter().filter(|name| !ours(name)).collect()
}

fn tcp() -> Tcp {
    Tcp {
        iface: text("GDRFAB_TCP_IFACE"),
        key_file: text("GDRFAB_TCP_KEY_FILE"),
        paths: paths("GDRFAB_TCP_PATHS", &TCP_PATHS),
        pending: number("GDRFAB_TCP_PENDING") as usize,
        greeting_ms: number("GDRFAB_TCP_GREETING_MS"),
        timeout_ms: number("GDRFAB_TCP_TIMEOUT_MS") as u32,
        buffer: number("GDRFAB_TCP_BUFFER") as usize,
        congestion: text("GDRFAB_TCP_CONGESTION"),
        streams: number("GDRFAB_TCP_STREAMS") as u32,
        window: number("GDRFAB_TCP_WINDOW") as u32,
        budget: number("GDRFAB_TCP_BUDGET") as u32,
    }
}

fn verbs() -> Verbs {
    let byte = |name: &str| number(name) as u8;
    Verbs {
        devices: text("GDRFAB_VERBS_DEVICE").map_or(Vec::new(), |t| t.split(',').map(|w| w.trim().to_string()).collect()),
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
    let all = Hmem { allowed: u32::MAX, adopt, threaded, process, copier: text("GDRFAB_COPIER") };
    let Some(raw) = text("GDRFAB_HMEM") else { return all };
    let bits = HMEM_WORDS.iter().enumerate().filter(|(_, known)| raw.split(',').any(|w| w.trim() == **known));
    let allowed = bits.fold(0, |sum, (i, _)| sum | 2 << i);
    Hmem { allowed, ..all }
}

/// Whoever has forgotten that the variable is set should find it in the log.
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
            log!(Warn, "{name} is no variable of this library");
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
        membarrier: switch("GDRFAB_SHM_MEMBARRIER"),
        hmem: hmem(),
        tcp: tcp(),
        verbs: verbs(),
        faults: faults(),
    }
}
