// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lane whose listeners have names instead of ports: which peers it may reach.

use crate::config;
use crate::error::Result;
use crate::prov::av::Name;
use crate::sys::{path_socket, process};

/// What two processes of one host have in common that find each other's local sockets: the network namespace, or the
/// directory of `GDRFAB_SHM_DIR`.
pub fn host_hint() -> Result<u64> {
    let place = match config::get().socket_dir.as_deref().map(path_socket::directory_id) {
        None => process::network_id(),
        // Not as a namespace's, which has the high bit.
        Some(Ok((device, inode))) => (device << 20 ^ device >> 12 ^ inode) & 0x7fff_ffff,
        // Then listening fails, and says so.
        Some(Err(_)) => 0,
    };
    Ok((u64::from(process::host_id()?) << 32 | place & 0xffff_ffff).max(1))
}

/// Why a peer of this name is not reached by local sockets from `own`, where it is another lane that leads there. `tried`: what
/// came of it.
pub fn why_not_local<'a>(name: &Name, own: &Name, tried: Option<&'a str>) -> &'a str {
    let unknown = |of: &Name| of.host >> 32 == u64::from(process::HOST_UNKNOWN);
    match (name.host == own.host, name.host >> 32 == own.host >> 32) {
        (true, _) => tried.unwrap_or("shm: not tried, as it was the peer who called"),
        (_, true) => "shm: on this host, but in another network namespace, and not in the same GDRFAB_SHM_DIR",
        _ if unknown(name) || unknown(own) => "shm: one of the two cannot read /proc/sys/kernel/random/boot_id, which tells the host",
        _ => "shm: on another host",
    }
}
