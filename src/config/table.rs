// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of the variables: the values that each may have, its default, and its help.

use super::names::{RING_MOST, SETS, SHM_PATHS, TCP_PATHS, TCP_SECURITY, VERBS_PATHS};
use super::value::Kind;

/// One variable, as checks and listings need it.
pub struct Variable {
    pub name: &'static str,
    /// The values that it may have.
    pub kind: Kind,
    pub default: &'static str,
    pub help: &'static str,
}

/// 0 or 1.
const SWITCH: Kind = Kind::Number(0, 1);

/// All variables the library reads.
pub const VARIABLES: &[Variable] = &[
    Variable { name: "GDRFAB_LOG", kind: Kind::Level, default: "off", help: "lines on stderr" },
    Variable {
        name: "GDRFAB_PROVIDER",
        kind: Kind::Word(&SETS),
        default: "",
        help: "getinfo offers only this provider, or this combination of providers for connectionless endpoints",
    },
    Variable {
        name: "GDRFAB_SPIN_US",
        kind: Kind::Number(0, 1_000_000),
        default: "50",
        help: "microseconds for which a blocking wait polls before it sleeps",
    },
    Variable {
        name: "GDRFAB_SHM_PATHS",
        kind: Kind::Paths(&SHM_PATHS),
        default: "direct,cma,staged,ipc",
        help: "paths of shm that this process may use or offer",
    },
    Variable {
        name: "GDRFAB_SHM_RING_SLOTS",
        kind: Kind::PowerOfTwo(256, 65_536),
        default: "2048",
        help: "64-byte lines in each connected endpoint's receive ring",
    },
    Variable {
        name: "GDRFAB_SHM_EAGER_MAX",
        kind: Kind::Number(0, RING_MOST as u64),
        default: "4096",
        help: "bytes up to which a message travels through the ring; up to twice as many bytes from memory that the peer cannot map",
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
    Variable { name: "GDRFAB_SHM_COOP", kind: SWITCH, default: "1", help: "0: a target that polls makes no part of large copies" },
    Variable {
        name: "GDRFAB_SHM_COOP_MIN",
        kind: Kind::Number(4096, u64::MAX),
        default: "262144",
        help: "size in bytes from which the target's core may make a part of a copy",
    },
    Variable {
        name: "GDRFAB_SHM_CLOSE_MS",
        kind: Kind::Number(1, 600_000),
        default: "1000",
        help: "milliseconds for which mr_close and ep_close wait for a peer's copy in flight",
    },
    Variable {
        name: "GDRFAB_SHM_PIDFD",
        kind: SWITCH,
        default: "1",
        help: "0: never fetch a peer's memory file by pidfd_getfd, always ask the peer",
    },
    Variable {
        name: "GDRFAB_SHM_DIR",
        kind: Kind::Directory,
        default: "",
        help: "directory, shared by containers, for shm's sockets without a name from the user; unset: abstract names of the network namespace",
    },
    Variable {
        name: "GDRFAB_SHM_USERS",
        kind: Kind::Users,
        default: "same",
        help: "users who may connect over shm: same: only this user; user numbers (0,1000): these users too; path: every user who may open the socket's path",
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
        help: "1: device drivers are called on a thread of the library, never on the caller's",
    },
    Variable {
        name: "GDRFAB_HMEM_PROCESS",
        kind: SWITCH,
        default: "0",
        help: "1: operations of shm's connected endpoints call no device driver in this process unless an endpoint asks for it; a helper process copies (GDRFAB_OPT_DRIVER_CALLS)",
    },
    Variable {
        name: "GDRFAB_CUDA_MAX_CTAS",
        kind: Kind::Number(0, 65_535),
        default: "1056",
        help: "thread blocks (of 128 threads) of the kernel that copies lists between GPU memory; 0: the driver copies, without a kernel",
    },
    Variable {
        name: "GDRFAB_COPIER",
        kind: Kind::Text,
        default: "",
        help: "program of the helper process that copies; unset: gdrfab/gdrfab-copier beside the library",
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
        help: "interface whose address tcp uses if the user names none; unset: tcp listens on the loopback interface, and routes choose the address of connections",
    },
    Variable {
        name: "GDRFAB_TCP_KEY_FILE",
        kind: Kind::Text,
        default: "",
        help: "file with the key (16 to 1024 bytes), or the keys of hosts, that tcp peers must have if no auth_key is given; owned by this user or root, and readable only by its owner",
    },
    Variable {
        name: "GDRFAB_TCP_SECURITY",
        kind: Kind::Word(&TCP_SECURITY),
        default: "",
        help: "none: no key; greeting: the key only decides who may connect; sealed: all data is encrypted as well; unset: sealed if there is a key, else none",
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
        help: "milliseconds after which a tcp peer counts as dead if its kernel answers nothing (0 = the kernel's defaults)",
    },
    Variable {
        name: "GDRFAB_TCP_BUFFER",
        kind: Kind::ZeroOr(32_768, 1 << 30),
        default: "0",
        help: "bytes of each tcp socket's send and receive buffer; 0: chosen by the path",
    },
    Variable {
        name: "GDRFAB_TCP_CONGESTION",
        kind: Kind::Text,
        default: "",
        help: "congestion control of tcp's sockets (reno, cubic, bbr...); unset: reno within a host, else the host's",
    },
    Variable {
        name: "GDRFAB_TCP_STREAMS",
        kind: Kind::Number(0, 16),
        default: "0",
        help: "number of tcp connections beside the first that carry transfers of 256 KiB and more, if both sides want it (1: none; 0: automatic, between hosts)",
    },
    Variable {
        name: "GDRFAB_TCP_RAILS",
        kind: Kind::Text,
        default: "",
        help: "interfaces or addresses, nearest first, that a tcp connection uses together, if both sides name some (eth0,eth1); unset: one",
    },
    Variable {
        name: "GDRFAB_TCP_RAIL_TIMEOUT_MS",
        kind: Kind::Number(50, 600_000),
        default: "1000",
        help: "milliseconds without an answer after which a rail counts as lost while another is up",
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
        name: "GDRFAB_VERBS_RAILS",
        kind: Kind::Text,
        default: "",
        help: "ports that long RMA of a verbs connection uses together, if both sides name theirs in the same order (mlx5_0:1,mlx5_1:1), or all; unset: one",
    },
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
        help: "time to wait for an acknowledgement: 4.096 us << this value (0 = for ever)",
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
        help: "repeats if the peer has posted no receive; 7 = without end",
    },
    Variable {
        name: "GDRFAB_VERBS_MIN_RNR_TIMER",
        kind: Kind::Number(0, 31),
        default: "12",
        help: "code of the time that a sender waits if no receive is posted (12: 0.64 ms)",
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
        help: "1: writes to memory may overtake each other on the bus, if the device supports it: faster on some hosts, but then only completions tell that data has arrived",
    },
    Variable {
        name: "GDRFAB_VERBS_ODP",
        kind: SWITCH,
        default: "0",
        help: "1: host memory is registered for on-demand paging, if the device supports it",
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
        name: "GDRFAB_DEBUG",
        kind: SWITCH,
        default: "0",
        help: "1: every operation's local descriptors (desc) are checked, also where the provider needs none; operations take longer",
    },
    Variable {
        name: "GDRFAB_FAULT",
        kind: Kind::Faults,
        default: "",
        help: "faults to inject: delay=US[:OP], drop=N[:OP][:once], refuse=STEP[:N], short=N, each of all providers or of one (tcp/drop=5)",
    },
];
