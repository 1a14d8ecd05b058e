// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of the variables. Each variable has one entry: the field that holds its value, its name, the values that it
//! may have, its default, and its help (a text for users). The entries are grouped by purpose ([`Goal`]).

use super::debug::{Debug, WORDS as DEBUG_WORDS};
use super::faults::Fault;
use super::goal::Goal;
use super::kind::{Kind, Variable};
use super::names::{DRIVER_WORDS, HMEM_WORDS, PATHS, RING_MOST, SETS, TCP_SECURITY};
use super::users::Users;
use super::value::{Driver, Value, Words};
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
            "getinfo offers only this provider, or this combination of providers for connectionless endpoints";
        paths: Words = "GDRFAB_PATHS", Kind::List(&PATHS, None), "direct,cma,staged,ipc,nic,dmabuf,peer-mem,socket",
            "paths that this process may use or offer; each provider takes those of the list that it has, and a provider that has none of them is not offered (direct,socket: shm maps memory, tcp uses sockets, verbs is not offered)";
    }
    Shm {
        eager_max: usize = "GDRFAB_SHM_EAGER_MAX", Kind::Number(0, RING_MOST as u64), "4096",
            "bytes up to which a message travels through the ring; up to twice as many bytes from memory that the peer cannot map";
        socket_dir: Option<String> = "GDRFAB_SHM_DIR", Kind::Directory, "",
            "directory, shared by containers, for shm's sockets without a name from the user; unset: abstract names of the network namespace";
        users: Users = "GDRFAB_SHM_USERS", Kind::Users, "same",
            "users who may connect over shm: same: only this user; user numbers (0,1000): these users too; path: every user who may open the socket's path";
    }
    Waiting {
        spin_us: u64 = "GDRFAB_SPIN_US", Kind::Number(0, 1_000_000), "50",
            "microseconds for which a blocking wait polls before it sleeps";
        close_ms: u64 = "GDRFAB_SHM_CLOSE_MS", Kind::Number(1, 600_000), "1000",
            "milliseconds for which mr_close and ep_close wait for a peer's copy in flight";
    }
    Diagnosis {
        "GDRFAB_LOG", Kind::Level, "off", "lines on stderr";
        faults: Vec<Fault> = "GDRFAB_FAULT", Kind::Faults, "",
            "faults to inject: delay=US[:OP], drop=N[:OP][:once], refuse=STEP[:N], short=N, each of all providers or of one (tcp/drop=5)";
        debug: Debug = "GDRFAB_DEBUG", Kind::Settings(DEBUG_WORDS), "",
            "words for tests and diagnosis, which may change in any release (desc,ring-slots=256); desc: every operation's local descriptors are checked, also where the provider needs none, and operations take longer";
    }

    /// Use of device drivers.
    struct Hmem {}
    Memory {
        allowed: Words = "GDRFAB_HMEM", Kind::List(&HMEM_WORDS, Some("none")), "cuda,rocr,ze,neuron,synapseai",
            "device interfaces that may be used; \"none\" for host memory only";
        driver: Driver = "GDRFAB_HMEM_DRIVER", Kind::List(&DRIVER_WORDS, Some("caller")), "caller",
            "use of the devices' drivers, or several uses together (adopt,process): caller: loaded and initialised when needed, and called on the caller's threads; adopt: only drivers that the process has loaded and initialised itself; thread: called on a thread of the library, never on the caller's; process: operations of shm's connected endpoints call no driver in this process unless an endpoint asks for it, a helper process copies";
        groups: u32 = "GDRFAB_CUDA_MAX_CTAS", Kind::Number(0, 65_535), "1056",
            "thread blocks (of 128 threads) of the kernel that copies lists between GPU memory; 0: the driver copies, without a kernel";
    }

    /// Use of TCP sockets.
    struct Tcp {}
    TcpSecurity {
        key_file: Option<String> = "GDRFAB_TCP_KEY_FILE", Kind::Text, "",
            "file with the key (16 to 1024 bytes), or the keys of hosts, that tcp peers must have if no auth_key is given; owned by this user or root, and readable only by its owner";
        security: Option<String> = "GDRFAB_TCP_SECURITY", Kind::Word(&TCP_SECURITY), "",
            "none: no key; greeting: the key only decides who may connect; sealed: all data is encrypted as well; unset: sealed if there is a key, else none";
    }
    TcpAddresses {
        iface: Option<String> = "GDRFAB_TCP_IFACE", Kind::Text, "",
            "interface whose address tcp uses if the user names none; unset: tcp listens on the loopback interface, and routes choose the address of connections";
        rails: String = "GDRFAB_TCP_RAILS", Kind::Text, "",
            "interfaces or addresses, nearest first, that a tcp connection uses together, if both sides name some (eth0,eth1); unset: one";
    }
    TcpSpeed {
        streams: u32 = "GDRFAB_TCP_STREAMS", Kind::Number(0, 16), "0",
            "number of tcp connections beside the first that carry transfers of 256 KiB and more, if both sides want it (1: none; 0: automatic, between hosts); also for programs that set no option, because the best number is the network's";
        buffer: usize = "GDRFAB_TCP_BUFFER", Kind::ZeroOr(32_768, 1 << 30), "0",
            "bytes of each tcp socket's send and receive buffer; 0: chosen by the path";
        congestion: Option<String> = "GDRFAB_TCP_CONGESTION", Kind::Text, "",
            "congestion control of tcp's sockets (reno, cubic, bbr...); unset: reno within a host, else the host's";
    }
    TcpFailures {
        timeout_ms: u32 = "GDRFAB_TCP_TIMEOUT_MS", Kind::Number(0, 86_400_000), "30000",
            "milliseconds after which a tcp peer counts as dead if its kernel answers nothing (0 = the kernel's defaults)";
        rail_timeout_ms: u32 = "GDRFAB_TCP_RAIL_TIMEOUT_MS", Kind::Number(50, 600_000), "1000",
            "milliseconds without an answer after which a rail counts as lost while another is up; longer where busy links are silent for seconds";
    }

    /// Use of RDMA devices.
    struct Verbs {}
    VerbsPorts {
        devices: Vec<String> = "GDRFAB_VERBS_DEVICE", Kind::Text, "", "only these RDMA devices are offered (mlx5_0,mlx5_1)";
        rails: Vec<String> = "GDRFAB_VERBS_RAILS", Kind::Text, "",
            "ports that long RMA of a verbs connection uses together, if both sides name theirs in the same order (mlx5_0:1,mlx5_1:1), or all; unset: one";
        gid_index: Option<u8> = "GDRFAB_VERBS_GID_INDEX", Kind::Index, "-1", "index in the port's GID table; -1: the best of each type";
    }
    VerbsNetwork {
        mtu: u32 = "GDRFAB_VERBS_MTU", Kind::Word(&["0", "256", "512", "1024", "2048", "4096"]), "0",
            "largest packet in bytes; 0: the port's";
        service_level: u8 = "GDRFAB_VERBS_SERVICE_LEVEL", Kind::Number(0, 15), "0",
            "InfiniBand service level of connections by exchanged addresses";
        traffic_class: u8 = "GDRFAB_VERBS_TRAFFIC_CLASS", Kind::Number(0, 255), "0",
            "traffic class (RoCE v2: DSCP << 2) of connections by exchanged addresses";
        timeout: u8 = "GDRFAB_VERBS_TIMEOUT", Kind::Number(0, 31), "14",
            "time to wait for an acknowledgement: 4.096 us << this value (0 = for ever); also for programs that set no option, because large or lossy fabrics need a longer time";
        retries: u8 = "GDRFAB_VERBS_RETRIES", Kind::Number(0, 7), "7",
            "repeats of an unacknowledged packet before the connection fails; also for programs that set no option (soft-RoCE: 6, because there 7 has no end)";
    }
    VerbsMemory {
        relaxed_ordering: bool = "GDRFAB_VERBS_RELAXED_ORDERING", SWITCH, "0",
            "1: writes to memory may overtake each other on the bus, if the device supports it: faster on some hosts, but then only completions tell that data has arrived";
        odp: bool = "GDRFAB_VERBS_ODP", SWITCH, "0",
            "1: host memory is registered for on-demand paging, if the device supports it";
    }
}
