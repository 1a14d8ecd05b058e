// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shm provider: processes of one host, with nothing installed and nothing left behind.
//!
//! `docs/shm-format.md` describes what lies in shared memory and who may write it.

mod cm;
mod conn;
mod coop;
mod device;
mod domain;
mod endpoint;
mod files;
mod frame;
mod layout;
mod link;
mod locate;
mod mr;
mod msg;
mod pep;
mod progress;
mod quiesce;
mod region;
mod remote;
mod rendezvous;
mod rma;
mod staged;
mod state;
mod table;

pub use cm::{Request, SCHEME, check_address};
pub use domain::Domain;
pub use endpoint::{Binding, Endpoint, PathReport};
pub use frame::{DATA_MAX, NAME_MAX};
pub use pep::PassiveEndpoint;
pub use region::{DEVICE_DESC, Facts, MR_IOV_LIMIT, Memory, RegionId, Source, Wish};
pub use rma::Quick;
pub use state::{Stats, TX_SIZE};
pub use table::MAX_REGIONS;

use super::Offer;
use crate::config;
use crate::sys::{mem, process};

/// Largest message or RMA operation.
pub const MAX_MSG: usize = 1 << 40;
/// Bytes that an inject call takes.
pub const INJECT_SIZE: usize = 1024;
/// Receives that can be posted.
pub const RX_SIZE: usize = 16384;

/// What this host lets the provider do.
pub fn offer() -> Offer {
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: Result<String, String>| facts.push((name.to_string(), value));
    let file = mem::memfd("gdrfab-probe", mem::page_size());
    let usable = file.as_ref().map(|_| ()).map_err(|e| e.clone().context("shm needs memfd_create and file sealing"));
    fact(
        "direct",
        file.map(|_| "memfd and sealing work: memory of mem_alloc and sealable memfds is mapped by peers".to_string())
            .map_err(|e| e.to_string()),
    );
    let cma = link::probe_cma(process::pid(), link::probe_word() as *const u64 as u64, *link::probe_word());
    fact(
        "cma",
        match cma {
            Err(e) => Err(e.to_string()),
            Ok(()) => match std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").map(|s| s.trim().to_string()) {
                Ok(scope) if scope != "0" => Err(format!(
                    "cross-memory attach works within this process, but kernel.yama.ptrace_scope={scope} refuses it between unrelated processes"
                )),
                _ => Ok("cross-memory attach works; each connection tries it on its own peer".to_string()),
            },
        },
    );
    fact("staged", Ok("always possible, with the target's progress".to_string()));
    let barrier = config::get().membarrier && process::barrier_register();
    fact(
        "membarrier",
        if barrier {
            Ok("no fences on the data path".to_string())
        } else {
            Err("refused or switched off: a fence on every operation instead".to_string())
        },
    );
    Offer { name: "shm", usable, facts }
}
