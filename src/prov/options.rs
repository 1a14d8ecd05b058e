// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options of an endpoint: what every provider keeps, and what is asked of an RDMA device.

use crate::error::{Error, Result};
use crate::mr::PathPolicy;
use std::net::IpAddr;

/// Rails of a connection at most.
pub const RAILS_MAX: usize = 8;

/// Whose cores carry large copies within a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Coop {
    /// The initiator's alone.
    #[default]
    Off,
    /// The target's too, while it polls.
    Polling,
    /// And one that sleeps in a wait is woken.
    Waking,
}

impl Coop {
    pub const ALL: [Coop; 3] = [Coop::Off, Coop::Polling, Coop::Waking];

    /// As the environment says.
    pub fn of(on: bool) -> Coop {
        if on { Coop::Polling } else { Coop::Off }
    }

    pub fn is_on(self) -> bool {
        self != Coop::Off
    }
}

/// Addresses of this host from which a connection's rails go, nearest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RailList([Option<IpAddr>; RAILS_MAX]);

impl RailList {
    pub fn of(ips: &[IpAddr]) -> Result<RailList> {
        if ips.len() > RAILS_MAX {
            return Err(Error::invalid(format!("{} addresses for rails, of which there are {RAILS_MAX} at most", ips.len())));
        }
        Ok(RailList(std::array::from_fn(|i| ips.get(i).copied())))
    }

    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        self.0.iter().flatten().copied()
    }

    /// With commas.
    pub fn words(&self) -> String {
        self.iter().map(|ip| ip.to_string()).collect::<Vec<_>>().join(",")
    }
}

/// Options that `setopt` changes.
#[derive(Clone, Copy)]
pub struct Options {
    pub deadline_ns: u64,
    /// The same of receives.
    pub recv_deadline_ns: u64,
    pub connect_timeout_ns: u64,
    pub policy: PathPolicy,
    pub coop: Coop,
    /// The caller's stream behind which device copies go; 0: none.
    pub stream: u64,
    /// Operations may call a device's driver in this process.
    pub driver_calls: bool,
    /// A receive of several messages ends when fewer bytes are left of it.
    pub min_multi_recv: usize,
    /// Who calls must know the endpoint's whole name.
    pub whole_name: bool,
    /// Further tcp connections for long transfers; none: as GDRFAB_TCP_STREAMS says.
    pub tcp_streams: Option<u32>,
    /// Addresses at once; none: as GDRFAB_TCP_RAILS says.
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

/// What decides how hard an RDMA device tries before it fails an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    AckTimeout,
    Retries,
    RnrRetries,
    MinRnrTimer,
}
