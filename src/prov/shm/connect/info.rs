// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The facts of this host that decide which paths work, the attributes that the provider offers, and its answer to a getinfo call.

use crate::config;
use crate::error::{Error, Result, errno};
use crate::mr::Paths;
use crate::prov::info::{Ask, Info, check_permitted, permitted};
use crate::prov::shm::limits::{INJECT_SIZE, MAX_MSG, PATHS, RX_SIZE, TX_SIZE};
use crate::prov::shm::memory::table::MAX_REGIONS;
use crate::prov::shm::wire::address::{SCHEME, check_address};
use crate::prov::{Offer, flags};
use crate::sys::space::{AddressSpace, Guard};
use crate::sys::{mem, path_socket, process};

/// Probes this host for the facts that decide which paths work.
pub fn offer() -> Offer {
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: std::result::Result<String, String>| facts.push((name.to_string(), value));
    let file = mem::memfd("gdrfab-probe", mem::page_size());
    let usable = file.as_ref().map(|_| ()).map_err(|e| e.clone().context("shm needs memfd_create and file sealing"));
    fact(
        "direct",
        file.map(|_| "memfd and sealing work: peers can map memory of gdrfab_mem_alloc() and sealable memfds".to_string())
            .map_err(|e| e.to_string()),
    );
    let cma = Guard::own().and_then(|guard| AddressSpace::of(process::pid(), guard));
    fact(
        "cma",
        match cma {
            Err(e) => Err(e.to_string()),
            Ok(_) => match std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").map(|s| s.trim().to_string()) {
                Ok(scope) if scope != "0" => Err(format!(
                    "cross-memory attach works within this process, but kernel.yama.ptrace_scope={scope} forbids it between unrelated \
                     processes; 0 permits it"
                )),
                _ => Ok("cross-memory attach works; each connection tries it on its own peer".to_string()),
            },
        },
    );
    fact("users", Ok(config::get().users.words()));
    fact(
        "sockets",
        match &config::get().socket_dir {
            None => {
                Ok("abstract names, visible in this network namespace only; GDRFAB_SHM_DIR or addresses shm:///PATH reach other namespaces"
                    .to_string())
            }
            Some(dir) => match path_socket::directory_id(dir) {
                Ok(_) => Ok(format!("in {dir}: reaches all processes that share this directory")),
                Err(e) => Err(format!("GDRFAB_SHM_DIR: {e}")),
            },
        },
    );
    fact("staged", Ok("always possible, if the target makes progress".to_string()));
    let barrier = !config::get().debug.no_membarrier && process::barrier_register();
    fact(
        "membarrier",
        if barrier {
            Ok("no fences on the data path".to_string())
        } else {
            Err("refused by the kernel or switched off: each operation has a memory fence instead".to_string())
        },
    );
    Offer { name: "shm", usable: usable.and_then(|()| check_permitted(PATHS)), facts }
}

/// The attributes that the provider offers.
pub fn info() -> Info {
    let info = Info::of_cpu("shm");
    Info {
        caps: info.caps | flags::RMA_EVENT | flags::ATOMIC | flags::HMEM | flags::LOCAL_COMM,
        msg_order: flags::ORDER_ALL | flags::ORDER_ATOMICS,
        paths: permitted(PATHS),
        inject_size: INJECT_SIZE,
        tx_size: TX_SIZE,
        rx_size: RX_SIZE,
        max_msg_size: MAX_MSG,
        list_paths: permitted(PATHS) & (Paths::DIRECT | Paths::CMA | Paths::IPC),
        mr_cnt: MAX_REGIONS,
        ..info
    }
}

/// Fills the address of a getinfo call into `info`. `Err`: the reason why shm cannot serve the call.
pub fn answer(info: &mut Info, ask: &Ask<'_>) -> Result<()> {
    let address = |s: &str| if s.starts_with(SCHEME) { s.to_string() } else { format!("{SCHEME}{s}") };
    if let Some(other) = ask.service.filter(|s| s.contains("://") && !s.starts_with(SCHEME)) {
        return Err(Error::new(errno::ENODATA, format!("service {other:?} is the address of another provider")));
    }
    let address = ask.service.map(address);
    if let Some(a) = &address {
        check_address(a).map_err(|e| e.context("service"))?;
    }
    offer().usable?;
    if let Some(node) = ask.node
        && !["localhost", "127.0.0.1", "::1"].contains(&node)
        && rustix::system::uname().nodename().to_str() != Ok(node)
    {
        return Err(Error::new(errno::ENODATA, format!("node {node:?} is not this host, and shm reaches only this host")));
    }
    *(if ask.source { &mut info.src_addr } else { &mut info.dest_addr }) = address;
    Ok(())
}
