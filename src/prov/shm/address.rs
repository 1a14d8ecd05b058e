// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses of endpoints, and the names in them.

use super::frame;
use crate::error::{Error, Result, errno};
use crate::sys::process;

/// Every address begins so.
pub const SCHEME: &str = "shm://";

/// Checks an address and gives the name in it.
pub fn check_address(address: &str) -> Result<&str> {
    let Some(name) = address.strip_prefix(SCHEME) else {
        return Err(Error::invalid(format!("addr: {address:?} does not begin with {SCHEME:?}")));
    };
    if name.is_empty() || name.len() > frame::NAME_MAX || name.chars().any(|c| c.is_control()) {
        return Err(Error::invalid(format!("addr: the name in {address:?} must have 1 to {} printable bytes", frame::NAME_MAX)));
    }
    // Names of endpoints' own making tell their host.
    if let Some(rest) = name.strip_prefix('@') {
        let host = rest.split('.').next().and_then(|h| u32::from_str_radix(h, 16).ok());
        match host {
            Some(h) if h != process::host_id() => {
                return Err(Error::new(
                    errno::EHOSTUNREACH,
                    format!("addr: {address:?} was made on another host (or before a reboot); shm reaches only this host"),
                ));
            }
            Some(_) => {}
            None => return Err(Error::invalid(format!("addr: {address:?} is not a complete name"))),
        }
    }
    Ok(name)
}

/// A name that nobody else has.
pub fn fresh_name() -> Result<String> {
    let mut raw = [0u8; 8];
    process::random(&mut raw)?;
    Ok(format!("@{:08x}.{}.{:016x}", process::host_id(), process::pid(), u64::from_ne_bytes(raw)))
}

pub fn socket_name(name: &str) -> String {
    format!("gdrfab/{name}")
}
