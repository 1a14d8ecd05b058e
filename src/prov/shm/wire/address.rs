// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses of endpoints (`shm://NAME`), and the sockets that the addresses name. A NAME without a leading `/` names
//! an abstract socket, which all processes of one network namespace can reach. A NAME with a leading `/` is the path of
//! a socket file, which all processes that share the directory can reach.

use super::frame;
use crate::config::{self, Users};
use crate::error::{Error, Result, errno};
use crate::sys::path_socket::{self, BoundPath};
use crate::sys::{process, socket};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// The prefix of every address.
pub const SCHEME: &str = "shm://";

/// True if a name is a path of a socket file; else the name is that of an abstract socket.
pub fn is_path(name: &str) -> bool {
    name.starts_with('/')
}

/// Checks an address and returns the name in it.
pub fn check_address(address: &str) -> Result<&str> {
    let Some(name) = address.strip_prefix(SCHEME) else {
        return Err(Error::invalid(format!("addr: {address:?} does not begin with {SCHEME:?}")));
    };
    if name.is_empty() || name.len() > frame::NAME_MAX || name.chars().any(|c| c.is_control()) {
        return Err(Error::invalid(format!("addr: the name in {address:?} must have 1 to {} printable bytes", frame::NAME_MAX)));
    }
    if is_path(name) && name.ends_with('/') {
        return Err(Error::invalid(format!("addr: {address:?} names a directory instead of a socket in it")));
    }
    // A last component that begins with `@` is a name from `fresh_name`, and has the host id in hexadecimal before its
    // first dot.
    if let Some(rest) =
        name.rsplit('/').next().filter(|last| last.len() == name.len() || is_path(name)).and_then(|last| last.strip_prefix('@'))
    {
        let host = rest.split('.').next().and_then(|h| u32::from_str_radix(h, 16).ok());
        match host {
            Some(theirs) => {
                let ours = process::host_id()?;
                if theirs != ours {
                    let why = other_host_words(theirs, ours);
                    return Err(Error::new(errno::EHOSTUNREACH, format!("addr: {address:?}: {why}")));
                }
            }
            None => return Err(Error::invalid(format!("addr: {address:?} is not a complete name"))),
        }
    }
    Ok(name)
}

/// The reason, in words, why host `theirs` is out of reach of host `ours`.
pub fn other_host_words(theirs: u32, ours: u32) -> String {
    match (theirs, ours) {
        (_, process::HOST_UNKNOWN) => format!("this process cannot read {}, which identifies its host", process::BOOT_ID),
        (process::HOST_UNKNOWN, _) => format!("the peer cannot read {}, which identifies its host", process::BOOT_ID),
        _ => "the peer is on another host (or was before a reboot); shm reaches only this host".into(),
    }
}

/// A name that no other endpoint has, in the directory of `GDRFAB_SHM_DIR` if that is set.
pub fn fresh_name() -> Result<String> {
    let mut raw = [0u8; 8];
    process::random(&mut raw)?;
    let own = format!("@{:08x}.{}.{:016x}", process::host_id()?, process::pid(), u64::from_ne_bytes(raw));
    Ok(match &config::get().socket_dir {
        Some(dir) => format!("{}/{own}", dir.trim_end_matches('/')),
        None => own,
    })
}

/// The address of a lane's listener, derived from the address by which the lane's endpoint is known.
pub fn of_lane(at: SocketAddr) -> String {
    let name = format!("rdm.{}", at.to_string().replace(':', "_"));
    match &config::get().socket_dir {
        Some(dir) => format!("{SCHEME}{}/{name}", dir.trim_end_matches('/')),
        None => format!("{SCHEME}{name}"),
    }
}

fn socket_name(name: &str) -> String {
    format!("gdrfab/{name}")
}

/// Checks the directory of the socket at `path`. With GDRFAB_SHM_USERS=path, access to the directory alone decides
/// which users connect, so a directory into which any user may put a socket is an error.
fn check_directory(path: &str, users: &Users) -> Result<()> {
    if *users == Users::Path && path_socket::is_open_to_all(path)? {
        let words = format!(
            "addr: every user may create a socket in the directory of {path}; GDRFAB_SHM_USERS=path needs one with a stricter mode"
        );
        return Err(Error::new(errno::EACCES, words));
    }
    Ok(())
}

/// Listens under `name`. For a path, also returns the [`BoundPath`], which removes the socket file when dropped.
pub fn listen(name: &str, backlog: i32) -> Result<(OwnedFd, Option<BoundPath>)> {
    if !is_path(name) {
        return Ok((socket::listen(&socket_name(name), backlog)?, None));
    }
    let users = &config::get().users;
    check_directory(name, users)?;
    let (fd, place) = path_socket::listen(name, backlog, *users != Users::Same)?;
    Ok((fd, Some(place)))
}

/// Connects to the listener `name`.
pub fn dial(name: &str) -> Result<socket::Connect> {
    if !is_path(name) {
        return socket::connect(&socket_name(name));
    }
    check_directory(name, &config::get().users)?;
    path_socket::connect(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_know_its_host_is_not_on_another() {
        assert!(other_host_words(1, 2).contains("another host"));
        for (theirs, ours) in [(1, process::HOST_UNKNOWN), (process::HOST_UNKNOWN, 1)] {
            assert!(other_host_words(theirs, ours).contains(process::BOOT_ID));
            assert!(!other_host_words(theirs, ours).contains("another host"));
        }
    }
}
