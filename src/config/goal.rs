// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The purposes of variables. The documentation (docs/options.md) has one heading for each purpose, with the variables
//! below it.

/// The purpose for which a user sets a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    Provider,
    Memory,
    TcpSecurity,
    TcpAddresses,
    TcpSpeed,
    TcpFailures,
    VerbsPorts,
    VerbsNetwork,
    VerbsMemory,
    Shm,
    Waiting,
    Diagnosis,
}

impl Goal {
    /// All purposes, in the order of the documentation.
    pub const ALL: [Goal; 12] = [
        Goal::Provider,
        Goal::Memory,
        Goal::TcpSecurity,
        Goal::TcpAddresses,
        Goal::TcpSpeed,
        Goal::TcpFailures,
        Goal::VerbsPorts,
        Goal::VerbsNetwork,
        Goal::VerbsMemory,
        Goal::Shm,
        Goal::Waiting,
        Goal::Diagnosis,
    ];

    /// The heading in the documentation.
    pub fn title(self) -> &'static str {
        match self {
            Goal::Provider => "Choose a provider or a path",
            Goal::Memory => "Memory of GPUs and other devices",
            Goal::TcpSecurity => "tcp: security",
            Goal::TcpAddresses => "tcp: addresses",
            Goal::TcpSpeed => "tcp: speed",
            Goal::TcpFailures => "tcp: peers and links that fail",
            Goal::VerbsPorts => "verbs: devices and ports",
            Goal::VerbsNetwork => "verbs: network",
            Goal::VerbsMemory => "verbs: memory",
            Goal::Shm => "shm: containers, users and messages",
            Goal::Waiting => "Waiting and CPU",
            Goal::Diagnosis => "Diagnosis",
        }
    }

    /// The means of a program to the same end, in Markdown: options of an endpoint, attributes of a region, hints. Empty
    /// if a program has none.
    pub fn by_program(self) -> &'static str {
        match self {
            Goal::Provider => {
                "`hints->prov_name`, `hints->paths`, `require` and `forbid` of `gdrfab_mr_attr`, `GDRFAB_OPT_REQUIRE_PATH`, `GDRFAB_OPT_FORBID_PATH`"
            }
            Goal::Memory => "`iface` and `device` of `gdrfab_mr_attr`, `GDRFAB_OPT_STREAM`, `GDRFAB_OPT_DRIVER_CALLS`",
            Goal::TcpSecurity => "`hints->auth_key`",
            Goal::TcpAddresses => "the node and the service of `gdrfab_getinfo()`, `GDRFAB_OPT_RAILS`",
            Goal::TcpSpeed => "`GDRFAB_OPT_TCP_STREAMS`",
            Goal::TcpFailures => "`GDRFAB_OPT_DEADLINE`, `GDRFAB_OPT_RECV_DEADLINE`, `GDRFAB_OPT_CONNECT_TIMEOUT`",
            Goal::VerbsPorts => "`hints->domain_name`, `hints->near_iface`",
            Goal::VerbsNetwork => {
                "`GDRFAB_OPT_ACK_TIMEOUT`, `GDRFAB_OPT_RETRY_COUNT`, `GDRFAB_OPT_RNR_RETRY`, `GDRFAB_OPT_MIN_RNR_TIMER`, `tx_size`, `rx_size` and `inject_size` of the info"
            }
            Goal::VerbsMemory => "",
            Goal::Shm => "the service of `gdrfab_getinfo()`, such as `shm:///run/gdrfab/name`",
            Goal::Waiting => "`GDRFAB_OPT_COOP`, `hints->progress`",
            Goal::Diagnosis => "`gdrfab_log_set()`, `gdrfab_mr_explain()`, `gdrfab_ep_explain()`",
        }
    }
}
