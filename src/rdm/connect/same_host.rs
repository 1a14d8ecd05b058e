// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limits of the shm lane. The lane leads only to processes of this host, because its listeners have names in the
//! file system or in the network namespace instead of ports.

use crate::config;
use crate::error::Result;
use crate::prov::av::Name;
use crate::sys::{path_socket, process};

/// A number that is equal in two processes if they can find each other's local sockets. The number stands for the host,
/// and for the network namespace or the directory `GDRFAB_SHM_DIR`.
pub fn host_hint() -> Result<u64> {
    let place = match config::get().socket_dir.as_deref().map(path_socket::directory_id) {
        None => process::network_id(),
        // Bit 31 is clear, so that the number differs from the number of any network namespace.
        Some(Ok((device, inode))) => (device << 20 ^ device >> 12 ^ inode) & 0x7fff_ffff,
        // The number does not matter, because listening in the directory will fail and report the reason.
        Some(Err(_)) => 0,
    };
    Ok((u64::from(process::host_id()?) << 32 | place & 0xffff_ffff).max(1))
}

/// Explains why a peer is reached by another lane than shm. `tried`: the error of the attempt over shm, if there was one.
pub fn why_not_local<'a>(name: &Name, own: &Name, tried: Option<&'a str>) -> &'a str {
    let unknown = |of: &Name| of.host >> 32 == u64::from(process::HOST_UNKNOWN);
    match (name.host == own.host, name.host >> 32 == own.host >> 32) {
        (true, _) => tried.unwrap_or("shm: not tried, as it was the peer who called"),
        (_, true) => "shm: on this host, but in another network namespace, and not in the same GDRFAB_SHM_DIR",
        _ if unknown(name) || unknown(own) => "shm: one of the two cannot read /proc/sys/kernel/random/boot_id, which tells the host",
        _ => "shm: on another host",
    }
}
