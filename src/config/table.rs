// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of the variables. Each variable has one entry: the field that holds its value, its name, the values that it
//! may have, its default, and its help (a text for users). The entries are grouped by purpose ([`Goal`]).

use super::debug::{Debug, WORDS as DEBUG_WORDS};
use super::faults::Fault;
use super::goal::Goal;
use super::kind::{Kind, Variable};
use super::names::{DRIVER_WORDS, HMEM_WORDS, PATHS, RING_MOST, SETS, TCP_SECURITY};
use super::users::Users;
use super::value::{DriverUse, Value, WordSet};
use super::variables::variables;

/// 0 or 1.
const SWITCH: Kind = Kind::Number(0, 1);

variables! {
    /// All variables that the library reads.
    VARIABLES;

    /// The values in force in this process. A variable without a field is read elsewhere.
    struct Config { hmem: Hmem, tcp: Tcp, verbs: Verbs }
    Provider {
        provider: Option<String> = "GDRFAB_PROVIDER", Kind::Word(&SETS), "",
            "the only provider, or combination of providers, that getinfo offers; a combination (shm+tcp) is for connectionless endpoints only; unset: all that this host has";
        paths: WordSet = "GDRFAB_PATHS", Kind::List(&PATHS, None), "direct,cma,staged,ipc,nic,dmabuf,peer-mem,socket",
            "paths that this process may use or offer, in any order: direct, cma, ipc and staged of shm; socket and staged of tcp; nic, dmabuf, peer-mem and staged of verbs; a provider without a listed path is not offered, and memory that no listed path reaches is refused (direct,socket: shm only maps memory, tcp moves only host memory, verbs is not offered)";
    }
    Shm {
        eager_max: usize = "GDRFAB_SHM_EAGER_MAX", Kind::Number(0, RING_MOST as u64), "4096",
            "bytes up to which a message travels through shm's ring; from memory that the peer cannot map, twice as many, at most 8192; longer messages are fetched by the receiver";
        socket_dir: Option<String> = "GDRFAB_SHM_DIR", Kind::Directory, "",
            "directory for the sockets that shm names itself, with the same path in all containers that share it; their processes then reach each other; unset: abstract names, which reach one network namespace";
        users: Users = "GDRFAB_SHM_USERS", Kind::Users, "same",
            "users whose processes may connect over shm: same: only this user; user numbers (0,1000): these users too; path: every user who may open the socket's file, so that the permissions of its directory decide";
    }
    Waiting {
        spin_us: u64 = "GDRFAB_SPIN_US", Kind::Number(0, 1_000_000), "50",
            "microseconds for which a blocking wait polls before it sleeps; more: lower latency, but a busy core; 0: sleeps at once";
        close_ms: u64 = "GDRFAB_SHM_CLOSE_MS", Kind::Number(1, 600_000), "1000",
            "milliseconds for which mr_close and ep_close wait for a peer's copy in flight; after that they return -EBUSY, and have to be called again";
    }
    Diagnosis {
        "GDRFAB_LOG", Kind::Level, "off",
            "level of the lines that the library writes to stderr; each level has the lines of the levels before it too; debug: also each connection's life";
        faults: Vec<Fault> = "GDRFAB_FAULT", Kind::Faults, "",
            "faults to inject, to test a program's recovery: a list of delay=US[:OP], drop=N[:OP][:once], refuse=STEP[:N], short=N, rail=N[:R], each for all providers or for one (tcp/drop=5); operations are slower meanwhile; docs/faults.md describes them";
        debug: Debug = "GDRFAB_DEBUG", Kind::Settings(DEBUG_WORDS), "",
            "list of words for tests and diagnosis (desc,ring-slots=256), which may change in any release; desc: every operation's local descriptors are checked, also where the provider needs none, and operations take longer";
    }

    /// Use of device drivers.
    struct Hmem {}
    Memory {
        allowed: WordSet = "GDRFAB_HMEM", Kind::List(&HMEM_WORDS, Some("none")), "cuda,rocr,ze,neuron,synapseai",
            "device drivers that may be used: cuda (NVIDIA), rocr (AMD), ze (Intel Level Zero), neuron (AWS), synapseai (Intel Gaudi); a driver that is left out is never opened, and its memory cannot be registered; none: host memory only";
        driver: DriverUse = "GDRFAB_HMEM_DRIVER", Kind::List(&DRIVER_WORDS, Some("caller")), "caller",
            "use of device drivers: caller: loaded and initialised when needed, and called on the caller's threads; adopt: only drivers that the process has loaded and initialised itself; thread: called on a thread of the library, never on the caller's, which costs two thread switches for each call; process: operations of shm's connected endpoints call no driver in this process, unless the program permits it, but a helper process copies, which costs a driver context on each device (0.5 GB on an H200), and a core while it copies; adopt, thread and process can be combined (adopt,process)";
        groups: u32 = "GDRFAB_CUDA_MAX_CTAS", Kind::Number(0, 65_535), "1056",
            "largest number of thread blocks (of 128 threads) of the GPU kernel that copies lists of blocks; fewer leave more of the GPU to other kernels; 0: the driver copies each block, without a kernel";
    }

    /// Use of TCP sockets.
    struct Tcp {}
    TcpSecurity {
        key_file: Option<String> = "GDRFAB_TCP_KEY_FILE", Kind::Text, "",
            "file with the key (16 to 1024 bytes) that tcp peers share, or with the keys of hosts (gdrfab-info --make-key), owned by this user or root, and readable only by its owner; a program's auth_key takes its place; if it is set, connectionless endpoints use no RDMA devices; unset: no key";
        security: Option<String> = "GDRFAB_TCP_SECURITY", Kind::Word(&TCP_SECURITY), "",
            "mode that both sides must have: none: no key, anyone may connect; greeting: the key only decides who may connect; sealed: all data is encrypted as well, which costs CPU time, and a descriptor and 130 KiB for each connection; unset: sealed if there is a key, else none; none with a key, and the other modes without a key, are errors";
    }
    TcpAddresses {
        iface: Option<String> = "GDRFAB_TCP_IFACE", Kind::Text, "",
            "interface (eth0) at whose address tcp listens, and from which it connects, if the program names no address; unset: tcp listens on the loopback interface, which other hosts do not reach, and routes choose the address of connections";
        rails: String = "GDRFAB_TCP_RAILS", Kind::Text, "",
            "interfaces or addresses (eth0,eth1), at most 8, nearest first, that a tcp connection uses together, if both sides name some; the connection survives the loss of all but one; costs one more copy of the data on each side, and a port for each rail; unset: one address";
    }
    TcpSpeed {
        streams: u32 = "GDRFAB_TCP_STREAMS", Kind::Number(0, 16), "0",
            "number of tcp connections beside the first that carry transfers of 256 KiB and more in host memory, if both sides want them; they go to another port, which a firewall must let through, and take bandwidth from other traffic; 1: none; 0: automatic: up to 4, only between hosts, and only where they are faster; a program's GDRFAB_OPT_TCP_STREAMS takes its place";
        buffer: usize = "GDRFAB_TCP_BUFFER", Kind::ZeroOr(32_768, 1 << 30), "0",
            "bytes of each tcp socket's send and receive buffer, as far as the host allows (net.core.wmem_max, rmem_max); 0: the kernel adapts them to the network";
        congestion: Option<String> = "GDRFAB_TCP_CONGESTION", Kind::Text, "",
            "congestion control of tcp's sockets (reno, cubic, bbr...); tcp is not offered if the host does not allow it (net.ipv4.tcp_allowed_congestion_control); unset: reno within a host, else the host's";
    }
    TcpFailures {
        timeout_ms: u32 = "GDRFAB_TCP_TIMEOUT_MS", Kind::Number(0, 86_400_000), "30000",
            "milliseconds after which a tcp peer counts as dead if its kernel answers nothing (the kernel answers while the program computes); 0: only this kernel's own limit holds (some 15 minutes with data under way, none without)";
        rail_timeout_ms: u32 = "GDRFAB_TCP_RAIL_TIMEOUT_MS", Kind::Number(50, 600_000), "1000",
            "milliseconds without an answer after which a rail counts as lost while another is up; needs more where busy links are silent for seconds";
    }

    /// Use of RDMA devices.
    struct Verbs {}
    VerbsPorts {
        devices: Vec<String> = "GDRFAB_VERBS_DEVICE", Kind::Text, "", "only these RDMA devices are offered (mlx5_0,mlx5_1); unset: all";
        rails: Vec<String> = "GDRFAB_VERBS_RAILS", Kind::Text, "",
            "ports (mlx5_0:1,mlx5_1:1), at most 8, that long reads, writes and lists of a verbs connection use together, if both sides name theirs in matching order; all: every active port, nearest first; unset: one port";
        gid_index: Option<u8> = "GDRFAB_VERBS_GID_INDEX", Kind::Index, "-1",
            "index in the port's GID table, which decides the port's address and type (RoCE v1 or v2); -1: the best address of each type, IPv4 first";
    }
    VerbsNetwork {
        mtu: u32 = "GDRFAB_VERBS_MTU", Kind::Word(&["0", "256", "512", "1024", "2048", "4096"]), "0",
            "largest packet in bytes of rails and of connections by exchanged addresses, not of those by rdma_cm; 0: the port's";
        service_level: u8 = "GDRFAB_VERBS_SERVICE_LEVEL", Kind::Number(0, 15), "0",
            "InfiniBand service level of rails and of connections by exchanged addresses, not of those by rdma_cm";
        traffic_class: u8 = "GDRFAB_VERBS_TRAFFIC_CLASS", Kind::Number(0, 255), "0",
            "traffic class (RoCE v2: DSCP << 2) of rails and of connections by exchanged addresses, not of those by rdma_cm";
        timeout: u8 = "GDRFAB_VERBS_TIMEOUT", Kind::Number(0, 31), "14",
            "time for which the device waits for an acknowledgement: 4.096 us << this value (14: 67 ms; 0: for ever); large or lossy fabrics need a longer time; a program's GDRFAB_OPT_ACK_TIMEOUT takes its place";
        retries: u8 = "GDRFAB_VERBS_RETRIES", Kind::Number(0, 7), "7",
            "repeats of an unacknowledged packet before the connection fails (soft-RoCE: 6, because there 7 has no end); a program's GDRFAB_OPT_RETRY_COUNT takes its place";
    }
    VerbsMemory {
        relaxed_ordering: bool = "GDRFAB_VERBS_RELAXED_ORDERING", SWITCH, "0",
            "1: writes to memory may overtake each other on the bus, if the device supports it: faster on some hosts, but then only completions tell that data has arrived, and a program that polls memory may find incomplete data";
        odp: bool = "GDRFAB_VERBS_ODP", SWITCH, "0",
            "1: host memory is registered for on-demand paging, if the device supports it, and is not locked (RLIMIT_MEMLOCK); the device's first access to a page takes longer";
    }
}
