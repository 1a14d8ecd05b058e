// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every `GDRFAB_*` environment variable: parsed once, listed by `gdrfab-info -e`.

pub mod faults;

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
    Variable { name: "GDRFAB_PROVIDER", default: "", help: "only this provider is offered by getinfo (shm, tcp or verbs)" },
    Variable { name: "GDRFAB_SPIN_US", default: "50", help: "microseconds that a blocking wait polls before it sleeps" },
    Variable { name: "GDRFAB_SHM_PATHS", default: "direct,cma,staged,ipc", help: "paths this process may use or offer" },
    Variable {
        name: "GDRFAB_SHM_RING_SLOTS",
        default: "2048",
        help: "64-byte lines in each endpoint's receive ring (power of two, 256..65536)",
    },
    Variable {
        name: "GDRFAB_SHM_EAGER_MAX",
        default: "4096",
        help: "bytes up to which a message travels through the ring (0..8192), up to twice as many from memory that the peer cannot map",
    },
    Variable {
        name: "GDRFAB_SHM_AREA_MAX",
        default: "2097152",
        help: "bytes beside each ring that messages of 512 bytes and more may come to use (131072..2097152)",
    },
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
        name: "GDRFAB_HMEM_PROCESS",
        default: "0",
        help: "1: operations of shm call no device driver here unless an endpoint says so; a process of the library's own copies (GDRFAB_OPT_DRIVER_CALLS)",
    },
    Variable { name: "GDRFAB_COPIER", default: "", help: "the program of that process; unset: gdrfab/gdrfab-copier beside the library" },
    Variable {
        name: "GDRFAB_SHM_MEMBARRIER",
        default: "1",
        help: "0: fences on every operation instead of membarrier(2) on close and sleep",
    },
    Variable {
        name: "GDRFAB_TCP_IFACE",
        default: "",
        help: "interface whose address tcp uses where none is named; unset: listens on the loopback, and routes choose for connections",
    },
    Variable {
        name: "GDRFAB_TCP_KEY_FILE",
        default: "",
        help: "file with the key (16 to 1024 bytes, readable by its owner only) that tcp peers must know, where auth_key is not given",
    },
    Variable { name: "GDRFAB_TCP_PATHS", default: "socket,staged", help: "paths of tcp that this process may use or offer" },
    Variable {
        name: "GDRFAB_TCP_STRANGERS",
        default: "64",
        help: "connections that a tcp listener keeps before they have introduced themselves",
    },
    Variable { name: "GDRFAB_TCP_GREETING_MS", default: "5000", help: "milliseconds that a tcp connection has to introduce itself" },
    Variable {
        name: "GDRFAB_TCP_TIMEOUT_MS",
        default: "30000",
        help: "milliseconds of silence after which a tcp peer is taken for dead (0 = the kernel's defaults)",
    },
    Variable {
        name: "GDRFAB_TCP_BUFFER",
        default: "0",
        help: "bytes of each tcp socket's send and receive buffer, at least 32768; 0: by the path",
    },
    Variable {
        name: "GDRFAB_TCP_CONGESTION",
        default: "",
        help: "congestion control of tcp's sockets (reno, cubic, bbr...); unset: reno within a host, else the host's",
    },
    Variable {
        name: "GDRFAB_TCP_STREAMS",
        default: "1",
        help: "2 to 16: transfers of 256 KiB and more go over so many tcp connections beside the first, if both sides want it",
    },
    Variable { name: "GDRFAB_TCP_WINDOW", default: "1024", help: "messages that a tcp endpoint keeps until their receives are posted" },
    Variable {
        name: "GDRFAB_TCP_BUDGET",
        default: "1048576",
        help: "bytes of messages that a tcp endpoint keeps until their receives are posted",
    },
    Variable { name: "GDRFAB_VERBS_DEVICE", default: "", help: "only these RDMA devices are offered (mlx5_0,mlx5_1)" },
    Variable { name: "GDRFAB_VERBS_GID_INDEX", default: "-1", help: "index in the port's GID table; -1: the best of each type" },
    Variable { name: "GDRFAB_VERBS_TX_SIZE", default: "512", help: "operations that can be outstanding on an endpoint without hints" },
    Variable { name: "GDRFAB_VERBS_RX_SIZE", default: "512", help: "receives that can be posted on an endpoint without hints" },
    Variable { name: "GDRFAB_VERBS_INLINE", default: "220", help: "bytes that travel inside the work request, as far as the device can" },
    Variable { name: "GDRFAB_VERBS_PATHS", default: "nic,dmabuf,peer-mem,staged", help: "ways a region may be registered" },
    Variable { name: "GDRFAB_VERBS_TIMEOUT", default: "14", help: "4.096 us << this is waited for an acknowledgement (0 = for ever)" },
    Variable { name: "GDRFAB_VERBS_RETRIES", default: "7", help: "repeats of an unacknowledged packet before the connection fails" },
    Variable { name: "GDRFAB_VERBS_RNR_RETRIES", default: "7", help: "repeats where the peer has posted no receive; 7 = without end" },
    Variable {
        name: "GDRFAB_VERBS_MIN_RNR_TIMER",
        default: "12",
        help: "code of the time a sender waits where no receive is posted (12: 0.64 ms)",
    },
    Variable { name: "GDRFAB_VERBS_MTU", default: "0", help: "largest packet in bytes; 0: the port's" },
    Variable { name: "GDRFAB_VERBS_SERVICE_LEVEL", default: "0", help: "InfiniBand service level of connections by exchanged addresses" },
    Variable {
        name: "GDRFAB_VERBS_TRAFFIC_CLASS",
        default: "0",
        help: "traffic class (RoCE v2: DSCP << 2) of connections by exchanged addresses",
    },
    Variable {
        name: "GDRFAB_VERBS_RELAXED_ORDERING",
        default: "0",
        help: "1: writes to memory may overtake each other on the bus where the device can: faster on some hosts, but only completions tell of arrival then",
    },
    Variable { name: "GDRFAB_VERBS_ODP", default: "0", help: "1: host memory is registered for on-demand paging where the device can" },
    Variable { name: "GDRFAB_VERBS_REG_THREADS", default: "4", help: "threads that register large host memory side by side (1 = none)" },
    Variable { name: "GDRFAB_VERBS_LIBRARY", default: "", help: "opened in place of libibverbs.so.1" },
    Variable { name: "GDRFAB_RDMACM_LIBRARY", default: "", help: "opened in place of librdmacm.so.1" },
    Variable {
        name: "GDRFAB_FAULT",
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
    pub apart: bool,
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
    pub strangers: usize,
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

/// The bits of the words in a variable; all where it is unset or has none of them.
fn paths(name: &str, known: &[(&str, u64)]) -> u64 {
    let all = known.iter().fold(0, |sum, (_, bit)| sum | bit);
    let Some(raw) = text(name) else { return all };
    let mut bits = 0;
    for word in raw.split(',') {
        match known.iter().find(|(w, _)| *w == word.trim()) {
            Some((_, bit)) => bits |= bit,
            None => crate::log!(Warn, "{name}: unknown path {word:?}"),
        }
    }
    if bits == 0 { all } else { bits }
}

fn tcp() -> Tcp {
    Tcp {
        iface: text("GDRFAB_TCP_IFACE"),
        key_file: text("GDRFAB_TCP_KEY_FILE"),
        paths: paths("GDRFAB_TCP_PATHS", &TCP_PATHS),
        strangers: number("GDRFAB_TCP_STRANGERS", 1, 65536) as usize,
        greeting_ms: number("GDRFAB_TCP_GREETING_MS", 1, 600_000),
        timeout_ms: number("GDRFAB_TCP_TIMEOUT_MS", 0, 86_400_000) as u32,
        buffer: match number("GDRFAB_TCP_BUFFER", 0, 1 << 30) {
            0 => 0,
            // With less than half a segment of the loopback the kernel waits for room that never comes.
            n => n.max(32768) as usize,
        },
        congestion: text("GDRFAB_TCP_CONGESTION"),
        streams: number("GDRFAB_TCP_STREAMS", 1, 16) as u32,
        window: number("GDRFAB_TCP_WINDOW", 1, 1 << 20) as u32,
        budget: number("GDRFAB_TCP_BUDGET", 0, 1 << 30) as u32,
    }
}

fn verbs() -> Verbs {
    let byte = |name: &str, high: u64| number(name, 0, high) as u8;
    Verbs {
        devices: text("GDRFAB_VERBS_DEVICE").map_or(Vec::new(), |t| t.split(',').map(|w| w.trim().to_string()).collect()),
        gid_index: text("GDRFAB_VERBS_GID_INDEX").filter(|t| t != "-1").map(|_| byte("GDRFAB_VERBS_GID_INDEX", 255)),
        tx_size: number("GDRFAB_VERBS_TX_SIZE", 1, 1 << 20) as usize,
        rx_size: number("GDRFAB_VERBS_RX_SIZE", 1, 1 << 20) as usize,
        inline: number("GDRFAB_VERBS_INLINE", 0, 4096) as usize,
        paths: paths("GDRFAB_VERBS_PATHS", &VERBS_PATHS),
        timeout: byte("GDRFAB_VERBS_TIMEOUT", 31),
        retries: byte("GDRFAB_VERBS_RETRIES", 7),
        rnr_retries: byte("GDRFAB_VERBS_RNR_RETRIES", 7),
        min_rnr_timer: byte("GDRFAB_VERBS_MIN_RNR_TIMER", 31),
        mtu: number("GDRFAB_VERBS_MTU", 0, 4096) as u32,
        service_level: byte("GDRFAB_VERBS_SERVICE_LEVEL", 15),
        traffic_class: byte("GDRFAB_VERBS_TRAFFIC_CLASS", 255),
        relaxed_ordering: number("GDRFAB_VERBS_RELAXED_ORDERING", 0, 1) == 1,
        odp: number("GDRFAB_VERBS_ODP", 0, 1) == 1,
        reg_threads: number("GDRFAB_VERBS_REG_THREADS", 1, 64) as usize,
        library: text("GDRFAB_VERBS_LIBRARY"),
        cm_library: text("GDRFAB_RDMACM_LIBRARY"),
    }
}

fn hmem() -> Hmem {
    let adopt = number("GDRFAB_HMEM_INIT", 0, 1) == 0;
    let apart = number("GDRFAB_HMEM_THREAD", 0, 1) == 1;
    let process = number("GDRFAB_HMEM_PROCESS", 0, 1) == 1;
    let all = Hmem { allowed: u32::MAX, adopt, apart, process, copier: text("GDRFAB_COPIER") };
    let Some(raw) = text("GDRFAB_HMEM") else { return all };
    let mut allowed = 0;
    for word in raw.split(',').map(str::trim).filter(|w| *w != "none") {
        match HMEM_WORDS.iter().position(|w| *w == word) {
            Some(i) => allowed |= 2 << i,
            None => crate::log!(Warn, "GDRFAB_HMEM: unknown interface {word:?}"),
        }
    }
    Hmem { allowed, ..all }
}

/// Whoever has forgotten that the variable is set should find it in the log.
fn faults() -> Vec<faults::Fault> {
    let Some(raw) = text("GDRFAB_FAULT") else { return Vec::new() };
    let (faults, wrong) = faults::parse(&raw);
    for why in wrong {
        crate::log!(Warn, "GDRFAB_FAULT: {why}; it is left out");
    }
    if !faults.is_empty() {
        crate::log!(Warn, "GDRFAB_FAULT={raw}: {} fault(s) happen on purpose", faults.len());
    }
    faults
}

/// The configuration, read from the environment at first use.
pub fn get() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| Config {
        provider: text("GDRFAB_PROVIDER"),
        spin_us: number("GDRFAB_SPIN_US", 0, 1_000_000),
        paths: paths("GDRFAB_SHM_PATHS", &SHM_PATHS),
        ring_slots: (number("GDRFAB_SHM_RING_SLOTS", 256, 65536) as u32).next_power_of_two(),
        eager_max: number("GDRFAB_SHM_EAGER_MAX", 0, RING_MOST as u64) as usize,
        area_max: number("GDRFAB_SHM_AREA_MAX", 128 << 10, 2 << 20) as usize,
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
        tcp: tcp(),
        verbs: verbs(),
        faults: faults(),
    })
}
