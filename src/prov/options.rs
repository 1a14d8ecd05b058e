// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of an endpoint that every provider keeps, and the settings of an RDMA device.

use crate::error::{Error, Result};
use crate::mr::PathPolicy;
use std::net::IpAddr;

/// The most rails of a connection.
pub const RAILS_MAX: usize = 8;

/// The processes that copy the bytes of large operations within a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Coop {
    /// The initiator only.
    #[default]
    Off,
    /// The target helps while it polls.
    Polling,
    /// The target helps while it polls, and is woken if it sleeps in a wait.
    Waking,
}

impl Coop {
    pub const ALL: [Coop; 3] = [Coop::Off, Coop::Polling, Coop::Waking];

    /// The value of the environment's switch.
    pub fn of(on: bool) -> Coop {
        if on { Coop::Polling } else { Coop::Off }
    }

    pub fn is_on(self) -> bool {
        self != Coop::Off
    }
}

/// The addresses of this host from which a connection's rails start, nearest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RailList([Option<IpAddr>; RAILS_MAX]);

impl RailList {
    pub fn of(ips: &[IpAddr]) -> Result<RailList> {
        if ips.len() > RAILS_MAX {
            return Err(Error::invalid(format!("optval: {} addresses for rails, at most {RAILS_MAX} are possible", ips.len())));
        }
        Ok(RailList(std::array::from_fn(|i| ips.get(i).copied())))
    }

    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        self.0.iter().flatten().copied()
    }

    /// The addresses, separated by commas.
    pub fn words(&self) -> String {
        self.iter().map(|ip| ip.to_string()).collect::<Vec<_>>().join(",")
    }
}

/// Options that `setopt` changes.
#[derive(Clone, Copy)]
pub struct Options {
    pub deadline_ns: u64,
    /// The deadline of receives.
    pub recv_deadline_ns: u64,
    pub connect_timeout_ns: u64,
    pub policy: PathPolicy,
    pub coop: Coop,
    /// The caller's stream behind which device copies go; 0: none.
    pub stream: u64,
    /// Operations may call a device's driver in this process.
    pub driver_calls: bool,
    /// A receive of several messages ends when fewer bytes than this are free in it.
    pub min_multi_recv: usize,
    /// Peers that connect must know the endpoint's whole name.
    pub whole_name: bool,
    /// The number of TCP connections for long transfers; `None`: as GDRFAB_TCP_STREAMS says.
    pub tcp_streams: Option<u32>,
    /// The rails of a connection; `None`: as GDRFAB_TCP_RAILS says.
    pub rails: Option<RailList>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            deadline_ns: 0,
            recv_deadline_ns: 0,
            connect_timeout_ns: 10_000_000_000,
            policy: PathPolicy::default(),
            coop: Coop::Off,
            stream: 0,
            driver_calls: true,
            min_multi_recv: 64,
            whole_name: false,
            tcp_streams: None,
            rails: None,
        }
    }
}

/// The settings of a queue pair that decide how long an RDMA device tries before it fails an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    AckTimeout,
    Retries,
    RnrRetries,
    MinRnrTimer,
}
